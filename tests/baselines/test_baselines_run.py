"""Baselines as users run them: with `lovec test`, on human labels, and from the files printed in the documentation."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tinynli import tiny_nli
from tinyrun import module, records, sft_adapter, tiny, trainer

from lovec.baselines import BaselineResources, Samples, Wording
from lovec.cli import main
from lovec.datasets.jsonl import read_records
from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.metrics.results import read_results
from lovec.modules import SFT, EvaluationConfig
from lovec.policy import Policy, PolicyConfig
from lovec.types import Record, ResultRow

DOCS = Path(__file__).parents[2] / "docs"
WIKIBIO = Path(__file__).parents[3] / "shared" / "data" / "wikibio_gpt3_human"
PASSAGES, REFERENCE = WIKIBIO / "dataset-generated.json", WIKIBIO / "selfcheck_reference_scores.json"
people = pytest.mark.skipif(not PASSAGES.exists(), reason="WikiBio's labelled passages are not beside the checkout")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a new directory, and restore the import path afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def printed(page: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file that a page prints, as a module."""
    (text,) = re.findall(rf"`{name}\.py`[^`]*:\n\n```python\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    assert len(text.splitlines()) < 100
    Path(f"{name}.py").write_text(text)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def test_the_printed_baseline_gives_likelihoods(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = printed("extending.md", "my_baseline", monkeypatch).Likelihood(power=0.5)
    policy = Policy(PolicyConfig(model=tiny(here), lora_r=4))
    engine, encoder = TransformersEngine(), Encoder(policy.tokenizer)
    engine.sync(policy)
    own.attach(BaselineResources(engine, encoder, Wording(), Samples()))
    (record,) = [r for r in records(8) if len(r.sentences) == 3][:1]
    (tagged,) = own.tag([record])
    whole = encoder.prompt(record.question, instruct=False)
    for i, sentence in enumerate(tagged.sentences):
        ids = encoder.pieces(sentence.text if i == 0 else f" {sentence.text}")
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([whole + ids])).logits[0].double().log_softmax(-1)
        logps = [float(logits[len(whole) + at - 1, token]) for at, token in enumerate(ids)]
        assert sentence.confidence == pytest.approx(math.exp(0.5 * sum(logps) / len(ids)), rel=1e-4)
        whole += ids
    assert own.tag([Record("x", "Who?")]) == [Record("x", "Who?")] and own.watch.seconds.keys() == {"scoring"}
    too_long = Record("x", "Who?", sentences=(record.sentences[0], type(record.sentences[0])("y" * 5000)))
    assert [c is None for c in own.confidences([too_long])[0]] == [False, True]


def test_the_printed_test_set_is_tested(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lovec.oracles import SelfJudge

    rivers = printed("extending.md", "my_rivers", monkeypatch).Rivers
    assert [r.id for r in rivers().questions("test")] == ["danube", "mekong", "orinoco", "yukon"]
    model = tiny(here)
    sft_adapter(here, model)
    config = EvaluationConfig(modes=["free-form"], max_new_tokens=8, vanilla=False)
    made = module(SFT, model, evaluation=config, oracle=SelfJudge())
    trainer(here).test(made, rivers(), verbose=False)
    assert {row.domain for row in made.results} == {"Rivers"}


OWN = """
import json

from lovec.baselines import Baseline


class Reference(Baseline):
    def __init__(self, path: str, name: str = "SelfCheck-NLI"):
        super().__init__(name)
        rows = json.load(open(path))
        self.scores = {f"wikibio-{row['wiki_bio_test_idx']}": row["scores"]["nli"] for row in rows}

    def confidences(self, records):
        return [[1 - score for score in self.scores[record.id]] for record in records]
"""


def run_test(here: Path, *words: str) -> tuple[ResultRow, ...]:
    """Return the rows of `lovec test` on WikiBio's passages, without any adapter."""
    command = ["test", "--config", "comparison.yaml", "--model.adapters", "null", "--model.hybrids", "[]"]
    command += ["--model.policy.model", tiny(here), "--model.evaluation.modes", "[iterative]"]
    command += ["--model.evaluation.vanilla", "false", "--model.evaluation.max_new_tokens", "1"]
    command += ["--trainer.enable_progress_bar", "false", "--data", "Demonstrations"]
    command += ["--data.path", str(PASSAGES), "--data.test_path", str(PASSAGES), "--model.baselines", "[]", *words]
    assert main(command) == 0
    (path,) = (here / "runs/comparison/test").glob("*/results.json")
    return read_results(path).rows


@people
def test_published_metrics_on_human_labels(here: Path) -> None:
    """SelfCheck-NLI's published scores as a baseline of one's own give the metrics published with the data set."""
    Path("my_reference.py").write_text(OWN)
    rows = run_test(here, "--model.baselines+=my_reference.Reference", "--model.baselines.path", str(REFERENCE))
    sentence, passage = (
        next(r for r in rows if (r.method, r.level, r.readout) == ("SelfCheck-NLI", level, "stated"))
        for level in ("sentence", "passage")
    )
    assert (sentence.n, sentence.domain, sentence.kind) == (959, "WikiBio", "baseline")
    metrics = [sentence.metrics[name] for name in ("malformed", "brier", "ece_m", "spearman")]
    assert [*metrics, passage.metrics["spearman"]] == pytest.approx([0.0, 0.1554, 0.2092, 0.5516, 0.7792], abs=5e-5)


@people
@pytest.mark.slow
def test_real_samples_through_the_command(here: Path) -> None:
    """LUQ and Self-Consistency on the ten samples of each passage, with a tiny NLI model: that it runs only."""
    model = tiny_nli(here, positions=256)
    words = ["--trainer.limit_test_batches", "2", "--data.eval_batch_size", "1"]
    for name in ("LUQ", "SelfConsistency"):
        words += [f"--model.baselines+=lovec.baselines.{name}", "--model.baselines.judge", "lovec.baselines.NLIJudge"]
        words += ["--model.baselines.judge.model", model]
    rows = run_test(here, *words)
    assert {"LUQ", "Self-Cons"} < {row.method for row in rows}
    (folder,) = (here / "runs/comparison/test").iterdir()
    for row in rows:
        if row.method in ("LUQ", "Self-Cons"):
            tagged = list(read_records(folder / str(row.file)))
            assert len(tagged) == 2 and all(len(record.meta["samples"]) == 10 for record in tagged)
            assert all(0 <= s.confidence < 1 for record in tagged for s in record.sentences)  # type: ignore[operator]
            assert len({s.confidence for record in tagged for s in record.sentences}) > 5
    times = {row["method"]: row for row in json.loads((folder / "times.json").read_text())}
    assert times["LUQ"]["seconds"].keys() == {"judging"}  # no sample was drawn


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["lovec.baselines.LUQ", "--model.baselines.judge", "lovec.oracles.SelfJudge"],
            "which is not a Judge: expected",
        ),
        (["lovec.baselines.LUQ", "--model.baselines.judge", "lovec.baselines.NLIJudge"], "judge.model must be given"),
        (["lovec.baselines.LUQ", "--model.baselines.sampels", "5"], "did you mean --model.baselines.samples?"),
    ],
)
def test_wrong_options_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    first, *rest = words
    none = ["--model.adapters", "null", "--model.hybrids", "null", "--model.baselines", "[]"]  # what has an adapter
    assert main(["test", "--config", "comparison.yaml", *none, f"--model.baselines+={first}", *rest]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lovec: error: ") and message in line
