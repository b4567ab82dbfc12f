"""Baselines: taggers with the same interface as the trained ones."""

from lovec.baselines.base import Baseline, Bench, Claim, Judge, Wording
from lovec.baselines.consistency import LUQ, SelfConsistency
from lovec.baselines.constant import ConstantTagger, best_constant
from lovec.baselines.hybrid import Hybrid, hybrid
from lovec.baselines.judges import FactsJudge, YesNoJudge
from lovec.baselines.nli import NLIJudge
from lovec.baselines.ptrue import PTrue
from lovec.baselines.recalibrated import Isotonic, Platt, Recalibrated
from lovec.baselines.samples import Samples
from lovec.baselines.verbal import VerbalConfidence

__all__ = [
    "LUQ",
    "Baseline",
    "Bench",
    "Claim",
    "ConstantTagger",
    "FactsJudge",
    "Hybrid",
    "Isotonic",
    "Judge",
    "NLIJudge",
    "PTrue",
    "Platt",
    "Recalibrated",
    "Samples",
    "SelfConsistency",
    "VerbalConfidence",
    "Wording",
    "YesNoJudge",
    "best_constant",
    "hybrid",
]
