"""Tests with baselines, and the comparison of many adapters on one base: nothing differs from measuring each alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import answers
from forks import ranks, run_forks
from tinyrun import Lengths, Rows, module, records, tiny, trainer

from lovec.baselines import LUQ, Baseline, Claim, SourceOverlap, Words, average_confidences
from lovec.calibration import Isotonic, Platt, calibrate, weights_digest, write_calibrations
from lovec.cli import main
from lovec.datamodules import QuestionSet
from lovec.datasets.jsonl import read_records, write_records
from lovec.engines import TransformersEngine
from lovec.evaluation import Comparison
from lovec.metrics.records import sentence_pairs
from lovec.metrics.results import read_results
from lovec.modules import DPO, SFT, EvaluationConfig, PolicyConfig
from lovec.policy import Policy, TokenBatch, TokenSequence, is_adapter
from lovec.taggers import IterativeTagger
from lovec.types import MODES, LovecError, Record, ResultRow

CONTEXTS = [list(range(3, 20)), list(range(5, 50))]
CHOICES = [[7], [8, 9]]
ABLATIONS = ("no previous scores", "as its own", "as the user's")
BATCH = TokenBatch.of([TokenSequence((3, 4, 5), (6, 7))])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapters(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Adapters of unlike rank, scale and place, of full effect."""
    folder = tmp_path_factory.mktemp("adapters")
    shapes = {"A": (4, 8, ["q_proj", "v_proj"]), "B": (8, 4, ["q_proj", "up_proj"])}
    for seed, (name, (r, alpha, places)) in enumerate(shapes.items()):
        config = PolicyConfig(model=model, lora_r=r, lora_alpha=alpha, lora_dropout=0.5, target_modules=places)
        policy = Policy(config, dropout=True)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in policy.trainable():
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))
        policy.save_adapter(folder / name)
    return {name: str(folder / name) for name in shapes}


class Length(Baseline):
    """The longer the surer; a sentence of few letters has no confidence."""

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        with self.watch.phase("scoring"):
            return [[min(1.0, len(s.text) / 60) if len(s.text) > 30 else None for s in r.sentences] for r in records]


class Asked(Baseline):
    """What the model it works with gives to the score 7 after the sentence alone."""

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        resources = self.resources
        contexts = [resources.encoder.head(s.text, first=True) for r in records for s in r.sentences]
        with self.watch.phase("scoring"):
            found = iter(resources.engine.score(contexts, resources.encoder.tails))
        return [[float(torch.tensor(next(found)).softmax(0)[7]) for _ in r.sentences] for r in records]


class Strict(TransformersEngine):
    """Needs ``sync`` after every change of adapter, as an engine with a copy of the weights does."""

    def sync(self, policy: Any) -> None:
        super().sync(policy)
        self.policy, self.synced = policy, policy.active_adapter

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        assert self.synced == self.policy.active_adapter
        return super().generate(*args, **kwargs)

    def score(self, *args: Any, **kwargs: Any) -> Any:
        assert self.synced == self.policy.active_adapter
        return super().score(*args, **kwargs)


class Letters:
    """A judge without a model: the share of the sentence's letters that the text has."""

    def attach(self, resources: Any) -> None:
        """Needs none."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        return [len(set(c.hypothesis) & set(c.premise)) / len(set(c.hypothesis)) for c in claims]


def comparison(model: str, **kwargs: Any) -> Comparison:
    """A comparison on a tiny model."""
    evaluation = EvaluationConfig(**{"max_new_tokens": 8, "rows": 8, **kwargs.pop("evaluation", {})})
    made: Comparison = module(Comparison, model, evaluation=evaluation, **kwargs)
    return made


def scores(policy: Policy, engine: TransformersEngine) -> list[list[float]]:
    """What a policy makes of a few contexts."""
    engine.sync(policy)
    return engine.score(CONTEXTS, CHOICES)


def tagged(folder: Path, name: str) -> list[Record]:
    """The records of a tagged file."""
    return list(read_records(folder / "test" / "rows" / f"{name}.jsonl"))


def select(rows: Sequence[ResultRow], **where: Any) -> list[ResultRow]:
    """The rows with these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in where.items())]


# ---------------------------------------------------------------- another adapter on the same base


def test_a_temporary_adapter_computes_what_it_computes_alone(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    engine = TransformersEngine()
    policy = Policy(PolicyConfig(model=model, lora_r=2, target_modules=["k_proj"])).train()
    own = [p.requires_grad for _, p in sorted(policy.named_parameters())]
    with policy.without_adapter():
        bare = scores(policy, engine)
    for name in ("A", "B", "A"):
        alone = Policy(PolicyConfig(model=model, adapter=adapters[name]), reference=False)
        with torch.inference_mode(), policy.with_adapter(adapters[name]):
            assert policy.active_adapter == "temporary" and policy.training
            temporary = scores(policy, engine)
            assert torch.equal(policy.token_logps(BATCH), alone.train().token_logps(BATCH))  # no dropout
            policy.save_adapter(tmp_path / "copy", policy.active_adapter)
            with policy.without_adapter():
                assert policy.active_adapter is None
                assert scores(policy, engine) == bare
            assert scores(policy, engine) == temporary
        assert temporary == scores(alone, engine) != bare
        copy = Policy(PolicyConfig(model=model, adapter=str(tmp_path / "copy")), reference=False)
        assert scores(copy, engine) == temporary
        assert policy.active_adapter == "default" and scores(policy, engine) == bare  # its own is an update of zero
    assert [p.requires_grad for _, p in sorted(policy.named_parameters())] == own
    assert {name.split(".")[-2] for name, _ in policy.named_parameters() if is_adapter(name)} == {"default"}


def test_an_adapter_that_does_not_fit_leaves_nothing_behind(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    policy = Policy(PolicyConfig(model=model, lora_r=2))
    with pytest.raises(LovecError, match=r"no adapter in .*/dpo/adapter; make it with: lovec fit --config dpo\.yaml"):
        with policy.with_adapter(str(tmp_path / "dpo" / "adapter")):
            pass
    wide = Policy(PolicyConfig(model=tiny(tmp_path, hidden_size=48), lora_r=2))
    wide.save_adapter(tmp_path / "wide")
    with pytest.raises(LovecError, match="does not fit the base model"):
        with policy.with_adapter(str(tmp_path / "wide")):
            pass
    assert policy.active_adapter == "default" and list(policy.peft.peft_config) == ["default"]
    with policy.with_adapter(adapters["A"]):
        assert policy.active_adapter == "temporary"


# ---------------------------------------------------------------- one test of many


@pytest.fixture(scope="module")
def compared(
    model: str, adapters: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Comparison, int]:
    """A comparison of everything, and how often it loaded a base."""
    from lovec.policy import policy as loaded_in

    folder, times, load = tmp_path_factory.mktemp("all"), [], loaded_in.load_base
    made = comparison(
        model,
        oracle=Lengths(),
        engine=Strict(8),
        adapters={**adapters, "C": ""},
        baselines=[Length(), Asked(), Asked("Asked-ft", adapters["B"]), LUQ(samples=2, judge=Letters())],
        hybrids=[["LUQ", "A"], ["Length", "Vanilla"]],
        evaluation={"recalibrated": True, "ablate_history": True, "ablate_author": True},
    )
    loaded_in.load_base = lambda config: (times.append(config), load(config))[1]  # type: ignore[assignment]
    try:
        trainer(folder).test(made, Rows(), verbose=False)
    finally:
        loaded_in.load_base = load
    return folder, made, len(times)


def test_a_comparison_has_every_row_and_file(compared: tuple[Path, Comparison, int]) -> None:
    folder, made, loaded = compared
    assert loaded == 1
    assert made.engine.synced == made.policy.active_adapter == "default"  # type: ignore[attr-defined]
    kinds = {row.method: row.kind for row in made.results}
    methods = {name: "method" for name in "AB"}
    maps = {f"{name} + {form}": "recalibrated" for name in "AB" for form in ("isotonic", "Platt")}
    assert kinds == {
        **methods, **maps, **{f"{name}, {variant}": "ablation" for name in "AB" for variant in ABLATIONS},
        **{name: "baseline" for name in ("Vanilla", "Length", "Asked", "Asked-ft", "LUQ")},
        "Best constant": "constant", "LUQ + A": "hybrid", "Length + Vanilla": "hybrid",
    }  # fmt: skip
    assert read_results(folder / "test" / "rows" / "results.json").rows == tuple(made.results)
    both = {"iterative", "free-form"}
    made_of = {(row.method, row.bases, row.variant) for row in made.results if row.bases}
    assert made_of == {
        ("LUQ + A", ("LUQ", "A"), None), ("Length + Vanilla", ("Length", "Vanilla"), None),
        *((f"{name} + isotonic", (name,), "isotonic") for name in "AB"),
        *((f"{name} + Platt", (name,), "platt") for name in "AB"),
        *((f"{name}, {variant}", (name,), variant) for name in "AB" for variant in ABLATIONS),
    }  # fmt: skip
    for name, kind in kinds.items():
        rows = select(made.results, method=name)
        # The random model writes no tag, so there is nothing to fit a map of free-form answers on.
        assert {row.mode for row in rows} == (both if kind == "method" or name == "Vanilla" else {"iterative"})
        has_mean = kind in ("method", "recalibrated", "ablation") or name == "Vanilla"
        assert {row.readout for row in rows} == ({"stated", "mean"} if has_mean else {"stated"})
        for row in rows:
            assert [r.id for r in read_records(folder / "test" / "rows" / str(row.file))] == ["r0", "r1", "r2", "r3"]
    names = {"aurc", "ttr", "diversity", "abstained", "ordinality", "brier", "words"}
    assert all(names <= row.metrics.keys() for row in made.results)
    tokens = json.loads((folder / "test" / "rows" / "tokens.json").read_text())
    assert [t["method"] for t in tokens if t["case"] == "correct"] == ["Vanilla", "A", "B"]


@pytest.mark.parametrize("name", ["A", "B"])
def test_every_method_of_a_comparison_is_as_measured_alone(
    name: str, compared: tuple[Path, Comparison, int], model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    folder, made, _ = compared
    alone = module(SFT, model, oracle=Lengths())
    alone.evaluation = replace(made.evaluation, adapter=adapters[name], name=name, embedder=None, vanilla=name == "A")
    trainer(tmp_path).test(alone, Rows(), verbose=False)
    for method in dict.fromkeys(row.method for row in alone.results):
        assert select(alone.results, method=method) == select(made.results, method=method)
    files = sorted(path.name for path in (tmp_path / "test" / "rows").glob("*.jsonl"))
    assert len(files) >= 8
    for file in files:
        assert (tmp_path / "test" / "rows" / file).read_bytes() == (folder / "test" / "rows" / file).read_bytes()


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("b-no-previous-scores", {"history": "previous"}),
        ("b-as-its-own", {"author": "model"}),
        ("b-as-the-user-s", {"author": "user"}),
    ],
)
def test_an_ablated_row_is_tagged_with_the_other_option(
    compared: tuple[Path, Comparison, int], model: str, adapters: dict[str, str], file: str, options: dict[str, Any]
) -> None:
    folder, made, _ = compared
    policy, engine = Policy(PolicyConfig(model=model, adapter=adapters["B"]), reference=False), TransformersEngine()
    engine.sync(policy)
    expected = IterativeTagger(engine, made.encoder, **options).tag(Rows().load("test"))
    records = tagged(folder, f"{file}.iterative")
    assert [s.distribution for r in records for s in r.sentences] == [
        pytest.approx(s.distribution, rel=1e-4) for r in expected for s in r.sentences
    ]
    assert records != tagged(folder, "b.iterative")


def test_maps_of_a_comparison_are_fitted_under_the_adapter(
    compared: tuple[Path, Comparison, int], model: str, adapters: dict[str, str]
) -> None:
    folder, made, _ = compared
    policy, engine = Policy(PolicyConfig(model=model, adapter=adapters["B"]), reference=False), TransformersEngine()
    engine.sync(policy)
    validation = IterativeTagger(engine, made.encoder).tag(Rows().load("validation"))
    before = [s.score / 10 for r in tagged(folder, "b.iterative") for s in r.sentences if s.score is not None]
    for name, form in (("isotonic", Isotonic), ("platt", Platt)):
        after = form.fit(*sentence_pairs(validation, "stated")[:2])(before)
        mapped = [s.confidence for r in tagged(folder, f"b-{name}.iterative") for s in r.sentences]
        assert mapped == pytest.approx(after.tolist(), abs=1e-6)


def test_baselines_judge_stored_answers_with_the_adapter_they_name(
    compared: tuple[Path, Comparison, int], model: str, adapters: dict[str, str]
) -> None:
    folder, made, _ = compared
    rows = Rows().load("test")
    lengths = [[s.confidence for s in r.sentences] for r in tagged(folder, "length.iterative")]
    assert lengths == [pytest.approx(row) for row in Length().confidences(rows)]
    assert any(c is None for row in lengths for c in row) and any(c for row in lengths for c in row)
    for name, config in (("asked", {}), ("asked-ft", {"adapter": adapters["B"]})):
        policy, engine = Policy(PolicyConfig(model=model, **config), reference=False), TransformersEngine()  # type: ignore[arg-type]
        engine.sync(policy)
        asked = Asked()
        asked.attach(replace(made.baseline_resources, engine=engine))
        expected = [c for row in asked.confidences(rows) for c in row]
        assert [s.confidence for r in tagged(folder, f"{name}.iterative") for s in r.sentences] == pytest.approx(
            expected
        )
    (row,) = select(made.results, method="Length", level="sentence")
    confidence, factuality, missing = sentence_pairs(tagged(folder, "length.iterative"), "stated")
    assert row.n == len(confidence)
    assert row.metrics["malformed"] == pytest.approx(missing / (missing + len(confidence)))
    gaps = [(c - f) ** 2 for c, f in zip(confidence, factuality, strict=True)]
    assert row.metrics["brier"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)


def test_hybrids_are_means_of_two_confidences(compared: tuple[Path, Comparison, int]) -> None:
    folder, _, _ = compared
    for first, second in (("luq", "a"), ("length", "vanilla")):
        parts = [tagged(folder, f"{name}.iterative") for name in (first, second)]
        means = [s.confidence for r in average_confidences(*parts) for s in r.sentences]
        found = [s.confidence for r in tagged(folder, f"{first}-{second}.iterative") for s in r.sentences]
        assert found == [None if c is None else pytest.approx(c, abs=1e-6) for c in means]


def test_times_tell_phases_records_and_context(compared: tuple[Path, Comparison, int]) -> None:
    folder, made, _ = compared
    times = json.loads((folder / "test" / "rows" / "times.json").read_text())
    assert times == made.measurement.times
    phases = {(row["method"], row["mode"]): set(row["seconds"]) for row in times}
    written = {"writing", "scoring"}
    assert phases == {
        ("Vanilla", "iterative"): {"scoring"}, ("Vanilla", "free-form"): phases["Vanilla", "free-form"],
        ("Answers", "free-form"): {"writing"},
        ("Length", "iterative"): {"scoring"}, ("Asked", "iterative"): {"scoring"},
        ("Asked-ft", "iterative"): {"scoring"}, ("LUQ", "iterative"): {"sampling", "judging"},
        ("A", "iterative"): {"scoring"}, ("A", "free-form"): phases["A", "free-form"],
        ("B", "iterative"): {"scoring"}, ("B", "free-form"): phases["B", "free-form"],
        **{(f"{name}, {variant}", "iterative"): {"scoring"} for name in "AB" for variant in ABLATIONS},
    }  # fmt: skip
    assert all(row["cpu_seconds"].keys() == row["seconds"].keys() for row in times)
    assert all(sum(row["cpu_seconds"].values()) > 0 for row in times if sum(row["seconds"].values()) > 0.1)
    assert all(phases[name, "free-form"] <= written and "writing" in phases[name, "free-form"] for name in ("A", "B"))
    spent = sum(
        row["seconds"]["scoring"]
        for row in times
        if row["method"] in ("Vanilla", "A", "B") and row["mode"] == "iterative"
    )
    total = made.evaluator.taggers["iterative"].watch.seconds["scoring"]  # type: ignore[attr-defined]
    assert 0 < spent < total  # that of validation records, for the maps, is not of the test
    rows = Rows().load("test")
    assert {row["records"] for row in times} == {len(rows)}
    sentences = sum(len(row.sentences) for row in rows)
    assert {row["sentences"] for row in times if row["mode"] == "iterative"} == {sentences}
    (answers,) = (row for row in times if row["kind"] == "answers")
    prompts = [made.encoder.prompt(row.question, instruct=False) for row in rows]
    assert max(map(len, prompts)) < answers["prefill_tokens"] <= sum(map(len, prompts))  # what they share counts once


def test_an_adapter_that_is_named_by_its_run_is_told_by_its_weights(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(adapters["A"], tmp_path / "run" / "adapter")
    made = comparison(model, adapters={"A": str(tmp_path / "run")}, evaluation={"vanilla": False})
    trainer(tmp_path).test(made, Rows(), verbose=False)
    tested = json.loads((tmp_path / "test" / "rows" / "tested.json").read_text())
    assert tested["weights"] == {"A": weights_digest(adapters["A"])} and tested["provenance"].keys() == {"A"}


def test_context_of_a_test_is_counted_once(model: str, adapters: dict[str, str], tmp_path: Path) -> None:
    """Labels by the model itself do not count as tagging, nor do validation records."""
    engine = TransformersEngine(8)
    policy = PolicyConfig(model, lora_r=4, scoring="exact")  # what first tokens change is measured beside the test
    made = module(DPO, model, policy=policy, oracle=Lengths(), engine=engine, baselines=[Asked()])
    made.evaluation.adapter = adapters["A"]
    trainer(tmp_path).test(made, Rows(), verbose=False)
    times = json.loads((tmp_path / "test" / "rows" / "times.json").read_text())
    assert [row["method"] for row in times] == ["DPO", "DPO", "Vanilla", "Vanilla", "Asked"]
    assert sum(row["prefill_tokens"] for row in times) == engine.prefill_tokens > 0


def test_the_time_of_plain_answers_is_not_that_of_the_first_adapter(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    made = comparison(model, oracle=Lengths(), adapters={"A": adapters["A"]}, evaluation={"vanilla": False})
    alone = module(SFT, model, oracle=Lengths(), evaluation=replace(made.evaluation, adapter=adapters["A"], name="A"))
    for name, test in (("all", made), ("alone", alone)):
        trainer(tmp_path / name).test(test, Rows(), verbose=False)
    compared, measured = (
        {(row["method"], row["mode"]): row["prefill_tokens"] for row in test.measurement.times}
        for test in (made, alone)
    )
    assert compared.pop(("Answers", "free-form")) > 0
    assert compared == measured


# ---------------------------------------------------------------- adapters with a calibration


def with_map(adapter: str, folder: Path, digest: str | None = None) -> str:
    """A copy of an adapter with a map of scores and log-probabilities beside it."""
    shutil.copytree(adapter, folder)
    options = {"adapter": digest or weights_digest(folder), "base": "tiny", "draws": 20}
    made = {str(mode): calibrate(answers(60), mode=mode, readout=("mean", "logp_mean"), **options)[0] for mode in MODES}
    write_calibrations(folder, made)
    return str(folder)


def test_confidences_by_log_probabilities_are_as_measured_alone(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    both = {"A": with_map(adapters["A"], tmp_path / "A"), "B": adapters["B"]}
    made = comparison(model, oracle=Lengths(), adapters=both, evaluation={"vanilla": False})
    trainer(tmp_path / "all").test(made, Rows(), verbose=False)
    alone = module(SFT, model, oracle=Lengths(), evaluation=replace(made.evaluation, adapter=both["A"], name="A"))
    trainer(tmp_path / "alone").test(alone, Rows(), verbose=False)
    assert select(made.results, method="A") == select(alone.results, method="A")
    found = select(made.results, method="A", readout="deployed", mode="iterative")
    assert len(found) == 2 and all(row.n > 0 and row.metrics["malformed"] == 0 for row in found)
    asked = {
        name: [s.token_logps is not None for r in tagged(tmp_path / "all", f"{name}.iterative") for s in r.sentences]
        for name in "ab"
    }
    assert all(asked["a"]) and not any(asked["b"])


def test_a_calibration_of_other_weights_is_refused_before_anything_is_tagged(
    model: str, adapters: dict[str, str], tmp_path: Path
) -> None:
    engine = TransformersEngine(8)
    stale = {"A": adapters["A"], "B": with_map(adapters["B"], tmp_path / "B", "0" * 64)}
    made = comparison(model, oracle=Lengths(), engine=engine, adapters=stale, baselines=[Asked()])
    with pytest.raises(LovecError, match=r"fitted to other weights .*; calibrate again, or .*: without that file"):
        trainer(tmp_path / "all").test(made, Rows(), verbose=False)
    assert engine.prefill_tokens == 0


# ---------------------------------------------------------------- what has nothing to learn from


class Rivers(QuestionSet):
    """Questions to test on."""

    domain = "Rivers"


class Learns(Length):
    """Would fail where nothing is labelled."""

    needs_labels = True

    def fit(self, records: Sequence[Record]) -> None:
        max(s.factuality for r in records for s in r.sentences if s.factuality is not None)


class Trained(Rows):
    """Rows with other training records; an error in their place is raised."""

    def __init__(self, training: Any) -> None:
        super().__init__()
        self.training = training

    def load(self, split: str) -> list[Record]:
        if split == "train" and isinstance(self.training, LovecError):
            raise self.training
        return self.training if split == "train" else super().load(split)  # type: ignore[no-any-return]


def test_baselines_that_learn_are_left_out_of_a_test_set(model: str, tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    write_records(file, [replace(r, evidence=("Ada wrote the first note on engines.",)) for r in records(4)])
    baselines = [Words(), Learns(), SourceOverlap()]
    made = comparison(model, baselines=baselines, evaluation={"vanilla": False, "modes": ["iterative"]})
    with pytest.warns(UserWarning) as warned:
        trainer(tmp_path).test(made, Rivers(labels=str(file)), verbose=False)
    said = [str(warning.message) for warning in warned if "is left out" in str(warning.message)]
    assert [line[: line.index(" testing")] for line in said] == [
        f"the row '{name}' is left out: Rivers is for" for name in ("Words", "Learns")
    ]
    found = read_results(tmp_path / "test" / "rivers" / "results.json").rows
    assert {row.method for row in found} == {"Overlap"} and all(row.n > 0 for row in found)


@pytest.mark.parametrize(
    ("training", "left_out"),
    [
        ([replace(r, question="Who?") for r in records(4)], ["Words"]),
        ([r.with_factuality([None] * len(r.sentences)) for r in records(4)], ["Words", "Learns"]),
        ([], ["Words", "Learns"]),
        (records(4), []),
    ],
    ids=["one question", "no label", "no record", "enough"],
)
def test_a_baseline_is_left_out_where_it_has_too_little_to_learn_from(
    model: str, tmp_path: Path, training: list[Record], left_out: list[str]
) -> None:
    evaluation = {"vanilla": False, "modes": ["iterative"]}
    made = comparison(model, baselines=[Words(), Learns(), Length()], evaluation=evaluation)
    trainer(tmp_path).test(made, Trained(training), verbose=False)
    methods = {row.method for row in made.results}
    assert methods == {"Words", "Learns", "Length", "Best constant"} - {*left_out}


def test_a_broken_training_file_ends_the_test_at_once(model: str, tmp_path: Path) -> None:
    engine = TransformersEngine(8)
    made = comparison(model, engine=engine, baselines=[Asked(), Words()])
    with pytest.raises(LovecError, match=r"train\.jsonl is broken"):
        trainer(tmp_path).test(made, Trained(LovecError("train.jsonl is broken")), verbose=False)
    assert engine.prefill_tokens == 0


class Questions(Rows):
    """Questions without answers."""

    def load(self, split: str) -> list[Record]:
        return [replace(row, sentences=(), answer="") for row in super().load(split)]


def test_questions_without_answers_leave_baselines_out(model: str, adapters: dict[str, str], tmp_path: Path) -> None:
    made = comparison(model, oracle=Lengths(), adapters={"A": adapters["A"]}, baselines=[Length()])
    trainer(tmp_path).test(made, Questions(), verbose=False)
    assert {row.method for row in made.results} == {"Vanilla", "A"}
    assert all(row.n == 0 for row in select(made.results, mode="iterative"))
    assert json.loads((tmp_path / "test" / "rows" / "tokens.json").read_text()) == []


@pytest.mark.parametrize(("data", "modes"), [(Questions(), ["iterative", "free-form"]), (Rows(), ["free-form"])])
def test_a_hybrid_of_what_was_not_measured_is_left_out(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, data: Rows, modes: list[str]
) -> None:
    hybrids = [["Length", "Vanilla"]]
    made = comparison(model, oracle=Lengths(), baselines=[Length()], hybrids=hybrids, evaluation={"modes": modes})
    with caplog.at_level("INFO"):
        trainer(tmp_path).test(made, data, verbose=False)
    assert "Length + Vanilla is left out" in caplog.text
    assert {row.method for row in read_results(tmp_path / "test" / "rows" / "results.json").rows} == {"Vanilla"}


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_compared_is_one_line(model: str, adapters: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(LovecError, match=r"no adapter in runs/dpo/adapter; make it with: lovec fit --config dpo\.yaml"):
        trainer(tmp_path).test(comparison(model, adapters={"DPO": "runs/dpo/adapter"}), Rows())
    with pytest.raises(LovecError, match=r"lovec fit --config p-true\.yaml"):
        trainer(tmp_path).test(comparison(model, baselines=[Asked("x", "runs/p-true/adapter")]), Rows())
    with pytest.raises(LovecError, match="would be called 'Length' and 'length'"):
        trainer(tmp_path).test(comparison(model, baselines=[Length(), Length("length")]), Rows())
    with pytest.raises(LovecError, match=r"hybrids contains \['A', 'LUQ'\], expected two of .*: Vanilla, A"):
        comparison(model, adapters=adapters, hybrids=[["A", "LUQ"]])
    with pytest.raises(LovecError, match=r"adapters by name: --model\.adapters\.NAME FOLDER"):
        comparison(model, policy=PolicyConfig(model=model, adapter="x"))
    run = trainer(tmp_path, max_steps=1)
    run.fit(module(SFT, model), Rows())
    run.save_checkpoint(tmp_path / "sft.ckpt")
    with pytest.raises(LovecError, match=r"measures the adapters in --model\.adapters, no checkpoint"):
        trainer(tmp_path).test(comparison(model, adapters=adapters), Rows(), ckpt_path=str(tmp_path / "sft.ckpt"))


# ---------------------------------------------------------------- the command line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a baseline of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_half.py").write_text(
        "from lovec.baselines import Baseline\n\n\n"
        "class Half(Baseline):\n"
        "    def __init__(self, at: float = 0.5) -> None:\n"
        '        super().__init__("Half")\n'
        "        self.at = at\n\n"
        "    def confidences(self, records):\n"
        "        return [[self.at] * len(r.sentences) for r in records]\n"
    )
    return tmp_path


def words(model: str) -> list[str]:
    """A test on a tiny model and the rows of tinyrun, from the command line."""
    tests = str(Path(__file__).parents[1] / "helpers")
    if tests not in sys.path:
        sys.path.append(tests)
    return ["test", "--config", "comparison.yaml", "--model.policy.model", model, "--data", "tinyrun.Rows",
            "--trainer.enable_progress_bar", "false", "--model.evaluation.modes", "[iterative]",
            "--model.hybrids", "null"]  # fmt: skip


NO_ADAPTERS = ("--model.adapters", "null", "--model.baselines", "[]")


def test_adapters_and_baselines_from_the_command_line(
    here: Path, model: str, adapters: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model.adapters", json.dumps({"A": adapters["A"], "B": "gone"}), "--model.adapters.C", adapters["B"],
             "--model.adapters.B", "", "--model.baselines", "[]", "--model.baselines+=my_half.Half",
             "--model.baselines.at", "0.25"]  # fmt: skip
    assert main([*words(model), *given]) == 0
    rows = read_results("runs/comparison/test/rows/results.json").rows
    assert {row.method for row in select(rows, kind="method")} == {"A", "C"}
    (row,) = select(rows, method="Half", level="sentence")
    assert row.metrics["mean_confidence"] == 0.25
    assert "Half" in capsys.readouterr().out


def test_the_overlay_of_a_model_fits_a_comparison(here: Path, model: str, adapters: dict[str, str]) -> None:
    """It sets the optimiser and other options of training, which a comparison ignores."""
    flags = ["--config", "llama3-8b.yaml", "--trainer.precision", "32-true", "--trainer.accelerator", "cpu",
             "--model.policy.dtype", "float32", "--model.baselines", "[]", "--model.evaluation.max_new_tokens", "8",
             "--model.adapters", json.dumps({"A": adapters["A"]})]  # fmt: skip
    assert main([*words(model), *flags]) == 0
    assert {row.method for row in read_results("runs/comparison/test/rows/results.json").rows} >= {"A", "Vanilla"}


def test_a_comparison_cannot_be_trained(here: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *words(model)[1:]]) > 0
    (error,) = (text for text in capsys.readouterr().err.splitlines() if text.startswith("lovec: error: "))
    assert error.startswith("lovec: error: comparison.yaml, line ")
    assert ": --model is lovec.evaluation.Comparison, expected a PolicyModule; known are" in error


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([*NO_ADAPTERS, "--model.baselines+=my_half.Hlf"], "there is no Hlf in my_half; did you mean Half?"),
        (
            [*NO_ADAPTERS, "--model.baselines+=lovec.modules.SFT"],
            "--model.baselines is lovec.modules.SFT, expected a Baseline",
        ),
        ([*NO_ADAPTERS, "--model.baselines+=LUKQ"], "unknown class for --model.baselines: LUKQ; did you mean LUQ?"),
        (["--model.adapters.DPO", "runs/dpo/adapter"], "there is no adapter in runs/sft/adapter; make it with: lovec"),
    ],
)
def test_what_is_mistyped_is_one_line(
    here: Path, model: str, capsys: pytest.CaptureFixture[str], flags: list[str], line: str
) -> None:
    assert main([*words(model), *flags]) > 0
    errors = [text for text in capsys.readouterr().err.splitlines() if text.startswith("lovec: error: ")]
    assert len(errors) == 1 and errors[0].startswith(f"lovec: error: {line}")


def test_no_answers_are_written_where_only_given_texts_are_measured(model: str, tmp_path: Path) -> None:
    made = comparison(model, baselines=[Length()], evaluation={"vanilla": False, "modes": ["iterative"]})
    trainer(tmp_path).test(made, Rows(), verbose=False)
    assert [entry["method"] for entry in made.measurement.times] == ["Length"]


# ---------------------------------------------------------------- processes


def compared_on(model: str, adapters: dict[str, str], folder: str, devices: int) -> None:
    """A comparison on some processes, which write to a folder."""
    made = comparison(
        model,
        oracle=Lengths(),
        adapters=adapters,
        baselines=[Length(), Asked("Asked-ft", adapters["B"]), LUQ(samples=2, judge=Letters())],
        hybrids=[["LUQ", "A"]],
        evaluation={"recalibrated": True, "ablate_history": True, "rows": 2},
    )
    kind = {"strategy": "ddp", "use_distributed_sampler": False} if devices > 1 else {}
    run = trainer(Path(folder), devices=devices, **kind)
    run.test(made, Odd(), verbose=False)


class Odd(Rows):
    """Three test records: on two processes, the second one has no more after the first."""

    def load(self, split: str) -> list[Record]:
        return super().load(split)[: 3 if split == "test" else None]


def test_two_processes_compare_as_one(model: str, adapters: dict[str, str], tmp_path: Path) -> None:
    compared_on(model, adapters, str(tmp_path / "one"), 1)
    rank = partial(compared_on, model, adapters, str(tmp_path / "two"), 2)
    for code, printed in run_forks(rank, rank, environments=ranks(2)):
        assert code == 0, printed[-2000:]
    one, two = (read_results(tmp_path / name / "test" / "rows" / "results.json").rows for name in ("one", "two"))
    assert len(one) == len(two) > 40
    for row, other in zip(one, two, strict=True):
        assert replace(other, metrics={}) == replace(row, metrics={})
        assert other.metrics == {
            name: None if value is None else pytest.approx(value, abs=1e-5) for name, value in row.metrics.items()
        }
    for path in sorted((tmp_path / "one" / "test" / "rows").glob("*.jsonl")):
        alone, together = (list(read_records(tmp_path / name / "test" / "rows" / path.name)) for name in ("one", "two"))
        assert [r.id for r in together] == ["r0", "r1", "r2"]
        for a, b in zip(alone, together, strict=True):
            assert [s.text for s in a.sentences] == [s.text for s in b.sentences]
            assert [s.confidence for s in b.sentences] == [
                None if s.confidence is None else pytest.approx(s.confidence, abs=1e-5) for s in a.sentences
            ]
    times = [json.loads((tmp_path / name / "test" / "rows" / "times.json").read_text()) for name in ("one", "two")]
    for row, other in zip(*times, strict=True):
        same = ("method", "mode", "kind", "records", "sentences")  # which beginnings are shared depends on the batches
        assert [other[name] for name in same] == [row[name] for name in same]
        assert other["seconds"].keys() == row["seconds"].keys()
    tokens = [json.loads((tmp_path / name / "test" / "rows" / "tokens.json").read_text()) for name in ("one", "two")]
    assert [(t["method"], t["sentence"]) for t in tokens[0]] == [(t["method"], t["sentence"]) for t in tokens[1]]


# ---------------------------------------------------------------- the benchmark's page

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def entry(brier: Any, ece_m: Any, spearman: Any) -> dict[str, Any]:
    """A comparison of two methods in the benchmark's file."""
    place = {"method": "DPO", "against": "LUQ", "mode": "iterative", "domain": "people"}
    return {**place, "brier": brier, "ece_m": ece_m, "spearman": spearman}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (entry([-0.1, -0.2, -0.05], [-0.1, -0.2, -0.05], [0.1, 0.05, 0.2]), "holds"),
        (entry([-0.1, -0.2, -0.05], [0.1, 0.05, 0.2], [0.0, -0.1, 0.1]), "better: BS; worse: ECE-M"),
        (entry([-0.1, -0.2, 0.05], [0.1, -0.05, 0.2], None), "not shown"),
        (entry([-0.1, -0.2, 0.0004], [0.1, -0.0004, 0.2], [-0.2, -0.3, -0.1]), "worse: SC"),
    ],
)
def test_a_claim_holds_where_all_intervals_say_so(found: dict[str, Any], said: str) -> None:
    from comparison_page import verdict

    assert verdict(found) == said


def test_the_ratio_of_running_times_by_hand() -> None:
    from comparison_page import luq_ratio

    def took(seed: int, factor: float) -> list[dict[str, Any]]:
        return [
            {"seed": seed, "method": "LUQ", "mode": "iterative", "seconds": {"sampling": 30 * factor, "judging": 6.0}},
            {"seed": seed, "method": "Answers", "mode": "free-form", "seconds": {"writing": 3.0}},
            {"seed": seed, "method": "DPO", "mode": "free-form", "seconds": {"writing": 6.0, "scoring": 9.0}},
        ]

    rows = [row for seed, factor in ((0, 1), (1, 2), (2, 4)) for row in took(seed, factor)]
    assert luq_ratio(rows) == {"answer": 0.5, "sampling": 10.0, "judging": 1.0, "total": 11.5}
    assert luq_ratio(rows[:2]) == {}


def test_the_page_is_made_of_a_real_test(compared: tuple[Path, Comparison, int], tmp_path: Path) -> None:
    import comparison as benchmark
    from comparison_page import page

    folder, made, _ = compared
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "test").symlink_to(folder / "test")
    note = {"commit": "c", "date": "d", "machine": "m", "part": 1.0, "test": 60.0, "versions": {}}
    (tmp_path / "seed-0" / benchmark.NOTE).write_text(json.dumps(note))
    results = benchmark.collect([0], tmp_path)
    assert {row.method for row in results["rows"]} == {
        row.method for row in made.results if row.variant in benchmark.VARIANTS
    }
    text = page(results)
    for name in ("Vanilla", "LUQ + A", "Asked-ft", "A + isotonic", "B, no previous scores"):
        assert f"| {name} | " in text
    assert text.startswith("# Baselines and methods on the embedded world\n")
    assert "| BS | ECE-M | SC | bad tags | c | f |" in text, "a column for every metric that is kept"
    tables = [block.split("\n") for block in text.strip().split("\n\n") if block.startswith("|")]
    assert tables and all(len({line.count("|") for line in table}) == 1 for table in tables)
    assert text.index("What holds") < text.index("Running time") < text.index("rows: Iterative")
    with pytest.raises(SystemExit, match="no finished run"):
        benchmark.collect([0, 1], tmp_path)
