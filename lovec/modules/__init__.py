"""What is optimised: one Lightning module an objective, and the families they come from."""

from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Item
from lovec.modules.dpo import DPO
from lovec.modules.evaluation import EvaluationConfig
from lovec.modules.preference import PreferenceModule
from lovec.modules.schedules import WarmupCosine
from lovec.modules.sft import SFT
from lovec.policy import PolicyConfig

__all__ = [
    "DPO",
    "SFT",
    "Batch",
    "EvaluationConfig",
    "Item",
    "PolicyConfig",
    "PolicyModule",
    "PreferenceModule",
    "WarmupCosine",
]
