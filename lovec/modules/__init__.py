"""Training objectives, one Lightning module each, and the families that they belong to."""

from lovec.evaluation import EvaluationConfig
from lovec.modules.base import PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.modules.distil import Distil
from lovec.modules.dpo import DPO
from lovec.modules.expected import ExpectedReward
from lovec.modules.grpo import GRPO
from lovec.modules.orpo import ORPO
from lovec.modules.preference import PreferenceModule
from lovec.modules.ptrue import PTrueTuned
from lovec.modules.regression import SFTRegression
from lovec.modules.rollout import RolloutModule
from lovec.modules.schedules import WarmupCosine
from lovec.modules.scores import ScoreModule
from lovec.modules.sft import SFT
from lovec.policy import PolicyConfig

__all__ = [
    "DPO",
    "GRPO",
    "ORPO",
    "SFT",
    "Batch",
    "Distil",
    "EvaluationConfig",
    "Example",
    "ExpectedReward",
    "PTrueTuned",
    "PolicyConfig",
    "PolicyModule",
    "PreferenceModule",
    "RolloutModule",
    "SFTRegression",
    "ScoreModule",
    "WarmupCosine",
]
