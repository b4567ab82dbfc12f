"""Every number that a class takes has a range that is checked, or the class is named here as one that takes none."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import lovec
from lovec.cli.label import LabelSettings
from lovec.cli.serve import listen
from lovec.modules import Distil, PolicyConfig
from lovec.taggers.deployment import Deployment
from lovec.tags import TagFormat
from lovec.teachers import PolicyMean
from lovec.types import LovecError

NUMBERS = {"int", "float", "int | None", "float | None"}

RESULTS = set(
    "Activity Agreement Alarm AnswerStatistics AttentionKind Bin Branch CalibratedStack Calibration Candidate "
    "Cell ChatReply Chunk City CorpCurve Country Entity Estimate Example Extent Fitted FittedOn Gain "
    "GroupedPairs GrowingTensor Guarantee Histogram Interval Kept Labelled Lead LeadPlace Left LoggedRow "
    "Matched Measured Measurement "
    "MethodAnswers MetricInfo PanelLayout Passage Pending Piece PlainText Prefill PretrainingStats "
    "Progress Prompt QuestionExample Reliability RequestRefused Resampled ResultRow RiskCurve RolloutExample Run "
    "SampleRow ScoredExample ScoredMethod Scores ScoringDifference Sentence ServerReply Step TaggedSentence Timing "
    "TokenQuery TextResponse TokenReply VllmRequest Batch Load Status".split()
)
"""Classes whose numbers are results, or are passed on by a class that has checked them: no option sets them."""

CONSTANTS = {"WorldSpec", "Schedule"}
"""Numbers that are written in the code: the variants of the embedded world."""

PASSED_ON = {
    "ApiClient", "Asker", "BatchClient", "Chat", "CompletionClient", "EngineWorker", "EvalLoader", "Evaluator",
    "Heartbeat", "SentenceQuestion", "StreamWorker", "TeacherResources", "TimedEngine"
}  # fmt: skip
"""Classes that are made by classes with the same options, which have checked them."""

IGNORED = {"Comparison.micro_batch_tokens", "Comparison.grad_norm"}
"""Options that have no effect."""

ZERO = set(
    "Beta.a Beta.b Beta.intercept Stack.intercept ConstantTagger.score CellMaker.draws "
    "DPO.sft_weight EvaluationConfig.validation_records EvaluationModule.seed GRPO.beta LabelSettings.max_cost "
    "LabelSettings.seed "
    "FilesDataModule.val_fraction Limits.* ORPO.odds_weight ORPO.sft_weight OpenAIOracle.max_cost "
    "OpenAIOracle.price_in OpenAIOracle.price_out OpenAIOracle.retries PairStep.seed Platt.slope Platt.intercept "
    "PolicyConfig.lora_dropout PolicyModule.grad_norm PreferenceModule.sft_weight Prices.tokens_in Prices.tokens_out "
    "Probe.every ProgressLine.every RaySettings.actor_gpus RecordsDataModule.first_epoch RecordsDataModule.seed "
    "RolloutModule.empty "
    "SFTRegression.regression_weight Samples.seed Sampling.seed Sampling.temperature ScoreModule.text_weight "
    "Blend.seed Demonstrations.val_fraction Distil.own_share "
    "Term.weight TextTagger.min_confidence VllmServer.retries WarmupCosine.floor WarmupCosine.warmup World.samples "
    "ScoringRule.malformed LogReward.malformed QuadraticReward.malformed ScoringRule.bonus LogReward.bonus "
    "ExpectedReward.entropy_weight ExpectedReward.variance_weight QuadraticReward.bonus RequestLimits.grace "
    "Splitting.seed listen.port".split()
)
"""Settings that may be 0."""

NEGATIVE = {name for name in ZERO if name.endswith((".malformed", ".bonus", ".empty", "Term.weight"))} | {
    "Beta.intercept",
    "Platt.slope",
    "Platt.intercept",
    "Stack.intercept",
}
"""Settings that may be below 0."""

OTHER_NAMES = {
    "Prices.tokens_in": "price_in",
    "Prices.tokens_out": "price_out",
    "Cutter.budget": "evidence_tokens",
    "Splitting.dev": "dev_share",
    "Splitting.test": "test_share",
}
"""What the message calls a setting, where that is the name of the option that it comes from."""

NEEDED: dict[str, dict[str, Any]] = {
    "Beta": {"a": 1.0, "b": 1.0, "intercept": 0.0},
    "Blend": {"teachers": [PolicyMean()]},
    "CellMaker": {"run": None},
    "ConstantTagger": {"score": 1},
    "Cutter": {"budget": 1, "how": "head", "count_tokens": len},
    "Demonstrations": {"path": "x.jsonl"},
    "FilesDataModule": {"path": "x.jsonl"},
    "NLIJudge": {"model": "x"},
    "OpenAIOracle": {"model": "x", "base_url": "http://localhost:1/v1", "price_in": 1.0, "price_out": 1.0},
    "PairStep": {"seed": 0},
    "Platt": {"slope": 1.0, "intercept": 0.0},
    "Prices": {"tokens_in": 1.0, "tokens_out": 1.0},
    "Shard": {"number": 1, "count": 1},
    "Stage": {"name": "x", "work": list, "settings": {}},
    "Stack": {
        "features": ("mean",),
        "means": (0.5,),
        "scales": (1.0,),
        "weights": (1.0,),
        "intercept": 0.0,
        "strength": 1.0,
    },
    "Term": {"values": torch.ones(1), "mask": torch.ones(1), "per": "row"},
    "TransformerEmbedder": {"model": "x"},
    "VllmServer": {"url": "http://localhost:1/v1"},
}
"""Other arguments that a class needs."""


@dataclass(frozen=True)
class Setting:
    """One number that a class or a function takes."""

    target: Any
    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.target.__name__}.{self.name}"

    def make(self, value: Any) -> Any:
        needed = NEEDED.get(self.target.__name__, {})
        parents = {parent.__name__ for parent in getattr(self.target, "__mro__", ())}
        if "EvaluationModule" in parents:
            needed = {"policy": PolicyConfig(), **({"teacher": PolicyMean()} if self.target is Distil else {})}
        elif self.target.__name__ == "WarmupCosine":
            needed = {"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)}
        elif self.target.__name__ == "TextTagger":
            needed = {"session": Session()}
        return concrete(self.target)(**{**needed, self.name: value})


class Session:
    """What ``TextTagger`` reads of a session before it tags."""

    deployment = Deployment()

    class engine:
        context_length = 8

    class encoder:
        scale = TagFormat().scale
        tags = TagFormat()


def concrete(target: Any) -> Any:
    """The class, or a subclass of it that a user would write where it is abstract."""
    if not inspect.isabstract(target):
        return target
    return type(target.__name__, (target,), dict.fromkeys(target.__abstractmethods__, lambda self, *_: 0.0))


def classes() -> Iterator[type[Any]]:
    """Every public class that lovec defines."""
    for module in pkgutil.walk_packages(lovec.__path__, "lovec."):
        if not module.name.startswith(("lovec.configs", "lovec.labelling.ray_pipeline")):  # which needs an extra
            members = vars(importlib.import_module(module.name))
            for name, value in members.items():
                if inspect.isclass(value) and value.__module__ == module.name and not name.startswith("_"):
                    yield value


def settings() -> list[Setting]:
    found = []
    for target in [*dict.fromkeys(classes()), LabelSettings, listen]:
        own = target.__init__ if inspect.isclass(target) else target
        if inspect.isclass(target) and "__init__" not in vars(target):
            continue  # its parent's
        for parameter in inspect.signature(own).parameters.values():
            if str(parameter.annotation) in NUMBERS and not parameter.name.startswith("_"):
                found.append(Setting(target, parameter.name, str(parameter.annotation)))
    excluded = RESULTS | CONSTANTS | PASSED_ON
    return [
        s for s in found if s.target.__name__ not in excluded and str(s) not in IGNORED | {"LabelSettings.max_cost"}
    ]


SETTINGS = settings()


def named(setting: Setting, group: set[str]) -> bool:
    return str(setting) in group or f"{setting.target.__name__}.*" in group


def test_the_tables_name_only_settings_that_exist() -> None:
    known = {str(setting) for setting in SETTINGS} | {f"{setting.target.__name__}.*" for setting in SETTINGS}
    names = {name for name in ZERO - {"LabelSettings.max_cost", "DPO.sft_weight"}}
    assert names - known == set() and len(SETTINGS) > 80
    defined = {cls.__name__ for cls in classes()}
    assert RESULTS | CONSTANTS | PASSED_ON <= defined


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_number_has_a_range(setting: Setting) -> None:
    """NaN, infinity, absurd sizes and other types are refused everywhere; 0 and -1 where they mean nothing."""
    wrong: list[Any] = [math.nan, math.inf, -math.inf, 1e30, -1e30, 10**30, -(10**30), "3", True, [1]]
    wrong += [1.5] if setting.kind.startswith("int") else []
    wrong += [] if named(setting, NEGATIVE) else [-1, -2]
    wrong += [] if named(setting, ZERO) else [0]
    name = OTHER_NAMES.get(str(setting), setting.name)
    for value in wrong:
        with pytest.raises(LovecError) as error:
            setting.make(value)
        assert re.search(rf"\b{name}\b", str(error.value)), (value, str(error.value))
        assert "\n" not in str(error.value) and "expected" in str(error.value)
    for value in ([0] if named(setting, ZERO) else []) + ([-1] if named(setting, NEGATIVE) else []):
        made = setting.make(value)
        getattr(made, "close", lambda: None)()  # of a socket


@pytest.mark.parametrize("seed", [2**32, 2**64])
def test_seeds_beyond_32_bits_are_refused(seed: int) -> None:
    """Not every random generator takes them."""
    for setting in SETTINGS:
        if setting.name == "seed" and setting.target.__name__ != "Sampling":
            with pytest.raises(LovecError, match=r"seed.* is .* expected at least 0 and at most 4294967295"):
                setting.make(seed)
