"""The model that is trained (base, adapter and reference), and the token batches that it reads."""

from lovec.policy.adapters import ADAPTER, REFERENCE, check_adapter, is_hub_id, read_adapter
from lovec.policy.loading import (
    PolicyConfig,
    checkpoint_activations,
    load_base,
    load_config,
    load_stops,
    load_tokenizer,
)
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
    "checkpoint_activations",
    "is_adapter",
    "is_hub_id",
    "load_base",
    "load_config",
    "load_stops",
    "load_tokenizer",
    "read_adapter",
]
