"""What an oracle or a judge lacks is said before the model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tinyrun import Rows, module, trainer

from lovec.baselines import LUQ, ClaimConditioned, NLIJudge, SentenceLikelihood
from lovec.callbacks import Probe
from lovec.modules import GRPO, SFT, Distil, EvaluationConfig, PTrueTuned
from lovec.oracles import OpenAIOracle
from lovec.teachers import BaselineTeacher, Blend, OracleTeacher, PolicyMean, Teacher
from lovec.types import LovecError

pytestmark = pytest.mark.usefixtures("no_key")

NO_KEY = r"^\$OPENAI_API_KEY is not set"
MISSING = "no-such-model-anywhere"


def run(stage: str, folder: Path, cls: type = SFT, modes: tuple[str, ...] = ("iterative", "free-form"), **more: Any):
    """Run a stage with a model that there is not, which says so as soon as it is looked for."""
    evaluation = EvaluationConfig(modes=[*modes], max_new_tokens=8)
    getattr(trainer(folder), stage)(module(cls, MISSING, evaluation=evaluation, **more), Rows())


@pytest.mark.parametrize(("stage", "cls"), [("fit", SFT), ("fit", GRPO), ("validate", SFT), ("test", SFT)])
def test_an_oracle_without_its_key_is_refused_before_the_model_is_looked_for(
    stage: str, cls: type, tmp_path: Path
) -> None:
    with pytest.raises(LovecError, match=NO_KEY):
        run(stage, tmp_path, cls, oracle=OpenAIOracle("gpt"))


@pytest.mark.parametrize(
    ("stage", "modes"), [("validate", ("iterative",)), ("test", ("iterative",)), ("predict", ("free-form",))]
)
def test_an_oracle_that_is_not_asked_needs_no_key(stage: str, modes: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=MISSING):
        run(stage, tmp_path, modes=modes, oracle=OpenAIOracle("gpt"))


@pytest.mark.parametrize(
    ("cls", "every", "asked"), [(SFT, 0, False), (PTrueTuned, 5, False), (SFT, 5, True), (GRPO, 0, True)]
)
def test_training_asks_the_oracle_in_probes_and_rollouts(cls: type, every: int, asked: bool, tmp_path: Path) -> None:
    evaluation = EvaluationConfig(modes=["iterative"], max_new_tokens=8)
    trained = module(cls, MISSING, evaluation=evaluation, oracle=OpenAIOracle("gpt"))
    with pytest.raises(LovecError, match=NO_KEY if asked else MISSING):
        trainer(tmp_path, callbacks=[Probe(every=every)]).fit(trained, Rows())


@pytest.mark.parametrize("baseline", [LUQ, ClaimConditioned])
def test_a_judge_that_is_not_there_is_refused_before_the_model_is_looked_for(baseline: Any, tmp_path: Path) -> None:
    baselines = [baseline(judge=NLIJudge(str(tmp_path / "nli")))]
    with pytest.raises(LovecError, match=r"cannot load the NLI model '.*nli'"):
        run("test", tmp_path, baselines=baselines)
    with pytest.raises(LovecError, match=MISSING):
        run("validate", tmp_path, baselines=baselines)


@pytest.mark.parametrize(
    ("teacher", "why"),
    [
        (PolicyMean(), MISSING),
        (Blend([PolicyMean(), BaselineTeacher(SentenceLikelihood())]), MISSING),
        (OracleTeacher(), NO_KEY),
        (Blend([PolicyMean(), OracleTeacher(OpenAIOracle("gpt"))]), NO_KEY),
        (BaselineTeacher(LUQ(judge=NLIJudge("nli-nowhere"))), "cannot load the NLI model 'nli-nowhere'"),
    ],
)
def test_a_teacher_is_refused_for_what_it_lacks_itself(teacher: Teacher, why: str, tmp_path: Path) -> None:
    evaluation = EvaluationConfig(modes=["iterative"], max_new_tokens=8)
    trained = module(Distil, MISSING, teacher=teacher, evaluation=evaluation, oracle=OpenAIOracle("gpt"))
    with pytest.raises(LovecError, match=why):
        trainer(tmp_path, max_epochs=1).fit(trained, Rows())


def test_a_teacher_that_asks_an_oracle_is_refused_where_there_is_none(tmp_path: Path) -> None:
    trained = module(Distil, MISSING, teacher=OracleTeacher(), evaluation=EvaluationConfig(modes=["iterative"]))
    with pytest.raises(LovecError, match="OracleTeacher has no oracle"):
        trainer(tmp_path, max_epochs=1).fit(trained, Rows())
