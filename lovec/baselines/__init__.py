"""Baselines: other ways to give the sentences of an answer a confidence, with the interface of the trained taggers."""

from lovec.baselines.base import Baseline, BaselineResources, Claim, Judge, Wording, Work
from lovec.baselines.claims import ClaimConditioned
from lovec.baselines.consistency import LUQ, SelfConsistency
from lovec.baselines.constant import ConstantTagger, best_constant
from lovec.baselines.entropy import SemanticEntropy
from lovec.baselines.hybrid import average_confidences
from lovec.baselines.judges import FactsJudge, YesNoJudge
from lovec.baselines.likelihood import SentenceLikelihood
from lovec.baselines.nli import NLIJudge
from lovec.baselines.overlap import SourceOverlap
from lovec.baselines.probe import LinearProbe
from lovec.baselines.ptrue import PTrue
from lovec.baselines.recalibration import recalibrate
from lovec.baselines.samples import Samples
from lovec.baselines.verbal import VerbalConfidence
from lovec.baselines.words import Words
from lovec.baselines.world import WORLD_WORDING

__all__ = [
    "LUQ",
    "WORLD_WORDING",
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
    "SourceOverlap",
    "VerbalConfidence",
    "Wording",
    "Words",
    "Work",
    "YesNoJudge",
    "average_confidences",
    "best_constant",
    "recalibrate",
]
