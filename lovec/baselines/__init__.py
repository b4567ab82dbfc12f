"""Baselines: other ways to give the sentences of an answer a confidence, with the interface of the trained taggers."""

from lovec.baselines.base import Baseline, BaselineResources, Claim, Judge, Wording
from lovec.baselines.claims import ClaimConditioned
from lovec.baselines.consistency import LUQ, SelfConsistency
from lovec.baselines.constant import ConstantTagger, best_constant
from lovec.baselines.entropy import SemanticEntropy
from lovec.baselines.hybrid import average_confidences
from lovec.baselines.judges import FactsJudge, YesNoJudge
from lovec.baselines.likelihood import SentenceLikelihood
from lovec.baselines.nli import NLIJudge
from lovec.baselines.probe import LinearProbe
from lovec.baselines.ptrue import PTrue
from lovec.baselines.recalibration import recalibrate
from lovec.baselines.samples import Samples
from lovec.baselines.verbal import VerbalConfidence
from lovec.baselines.words import Words

__all__ = [
    "LUQ",
    "Baseline",
    "BaselineResources",
    "Claim",
    "ClaimConditioned",
    "ConstantTagger",
    "FactsJudge",
    "Judge",
    "LinearProbe",
    "NLIJudge",
    "PTrue",
    "Samples",
    "SelfConsistency",
    "SemanticEntropy",
    "SentenceLikelihood",
    "VerbalConfidence",
    "Wording",
    "Words",
    "YesNoJudge",
    "average_confidences",
    "best_constant",
    "recalibrate",
]
