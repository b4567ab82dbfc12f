"""The model that is trained (base, adapter and reference), and the token batches that it reads."""

from lovec.policy.loading import ADAPTER, REFERENCE, PolicyConfig, check_adapter, load_base, load_tokenizer
from lovec.policy.policy import Policy, is_adapter
from lovec.policy.sequences import TokenBatch, TokenSequence

__all__ = [
    "ADAPTER",
    "REFERENCE",
    "Policy",
    "PolicyConfig",
    "TokenBatch",
    "TokenSequence",
    "check_adapter",
    "is_adapter",
    "load_base",
    "load_tokenizer",
]
