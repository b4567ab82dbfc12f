"""The benchmark of the embedded world: intervals from tagged files, tables from results, several seeds at a time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from scripts import load_script

from lovec.cli.demo_methods import METHODS as DEMO
from lovec.cli.demo_methods import ORDER
from lovec.datasets.jsonl import write_records
from lovec.evaluation.evaluator import tagged_file
from lovec.metrics.bootstrap import by_question, intervals, resample
from lovec.metrics.results import write_results
from lovec.types import Record, ResultRow, Sentence

METRICS = dict.fromkeys(("brier", "ece_m", "spearman", "malformed", "mean_confidence", "mean_factuality"), 0.1)
FLAT = tuple(1 / 11 for _ in range(11))
STATED = {
    "Vanilla": 10, "Best constant": 6, "SFT": 9, "SFT + isotonic": None, "DPO": 7, "ExpectedReward": 5, "Distil": 6,
}  # fmt: skip


world = load_script("world")
world_intervals = sys.modules["world_intervals"]
common, page_parts = sys.modules["common"], sys.modules["page_parts"]
tables = sys.modules["world_tables"]


def answers(method, seed, mode, readout="stated"):
    """Return answers about ten things of the trained kinds and five companies.

    A method gives its score to the first sentence of each, and lower ones, which depend on the seed, to the others.
    """
    records = []
    for i in range(15):
        truth = (0.1 * (i % 10), 0.5, 1.0 - 0.1 * (i % 3))
        sentences = []
        for place, f in enumerate(truth):
            score = STATED[method]
            if score is None:
                tags = {"confidence": 0.5 + 0.01 * place + (0.1 if readout == "mean" else 0.0)}
            else:
                score -= 0 if method in ("Vanilla", "Best constant") else min(score, (place * i + seed) % 4)
                tags = {"confidence": score / 10, "score": score}
                tags |= {} if method == "Best constant" else {"distribution": FLAT}
            text = f"{mode} {i}.{place}"
            sentences.append(Sentence(text, factuality=f, **tags))
        meta = {"domain": "in-domain" if i < 10 else "out-of-domain"}
        records.append(Record(f"q{i}", "Q?", sentences=tuple(sentences), meta=meta))
    return records


def write_run(folder, seed, leave_out=()):
    """Write what ``lovec demo`` leaves in the folder of a seed; all metrics in the rows are 0.1."""
    for method in DEMO:
        rows = []
        for name in set(method.rows) & set(STATED) - set(leave_out):
            for mode in ("iterative", "free-form"):
                if (name, mode) == ("Best constant", "free-form"):
                    continue
                for readout in ("stated", "mean") if "isotonic" in name else ("stated",):
                    records = answers(name, seed, mode, readout)
                    write_records(folder / method.name / "test" / tagged_file(name, mode, readout), records)
                rows.append(row(name, mode, seed))
        if rows:
            if method.name != "sft":  # every test measures the constant again
                rows.append(replace(rows[0], method="Best constant", metrics={**METRICS, "brier": 0.5}))
            write_results(folder / method.name / "test" / "results.json", rows)
    note = {"date": "2026-01-01", "commit": f"abc{seed}", "versions": {"lovec": "0", "torch": "2"}, "machine": "a PC",
            "variant": "world", "seconds": 1.5 + seed}  # fmt: skip
    (folder / world.NOTE).write_text(json.dumps(note))
    return folder


def row(method, mode, seed):
    place = ("in-domain", mode, "sentence", "stated")
    return ResultRow(method, "method", *place, seed=seed, n=30, metrics=METRICS, file=tagged_file(method, mode))


@pytest.fixture
def runs(tmp_path):
    return [write_run(tmp_path / f"seed-{seed}", seed) for seed in (0, 1)]


def test_names_are_those_of_the_demo():
    assert set(tables.METHODS) == set(ORDER) == set(world_intervals.FOLDERS)
    assert len(tables.METHODS) == len(ORDER)


def test_comparisons_are_the_ones_that_claims_are_about():
    pairs = world_intervals.comparisons(ORDER)
    assert len(set(pairs)) == len(pairs) == 9 + 2 + 7 + 8
    claimed = {("DPO", "SFT-2"), ("GRPO", "SFT-2"), ("ExpectedReward", "Best constant"), ("Distil", "ExpectedReward")}
    assert claimed < set(pairs)
    assert world_intervals.comparisons(["SFT", "GRPO"]) == [("GRPO", "SFT")]


def test_intervals_are_those_of_the_tagged_files(runs):
    entries = world_intervals.interval_entries(runs)
    by_place = {tuple(e[k] for k in ("method", "against", "domain", "mode", "readout")): e for e in entries}
    assert len(by_place) == len(entries)

    def drawn(method, domain, mode, readout, read=None):
        runs = [[r for r in answers(method, seed, mode, readout) if r.meta["domain"] == domain] for seed in (0, 1)]
        return resample([by_question(run, read or readout) for run in runs], bases=["world"] * 2)

    for domain, mode in (("in-domain", "iterative"), ("out-of-domain", "free-form")):
        first, second = (drawn(m, domain, mode, "stated") for m in ("ExpectedReward", "SFT"))
        for against, expected in ((None, intervals(first)), ("SFT", intervals(first, second))):
            entry = by_place["ExpectedReward", against, domain, mode, "stated"]
            for name, i in expected.items():
                assert entry[name] == (None if i is None else [i.value, i.low, i.high])
    # The recalibrated mean is read from its own file, as a stated confidence.
    expected = intervals(drawn("SFT + isotonic", "in-domain", "iterative", "mean", "stated"))["brier"]
    assert by_place["SFT + isotonic", None, "in-domain", "iterative", "mean"]["brier"][0] == expected.value
    assert ("ExpectedReward", "Best constant", "in-domain", "iterative", "stated") in by_place
    assert not any(e["method"] == "Best constant" and e["mode"] == "free-form" for e in entries)
    assert not any(e["method"] == "Best constant" and e["readout"] == "mean" for e in entries)
    assert by_place["Vanilla", None, "in-domain", "iterative", "stated"]["spearman"] is None


def test_a_method_that_a_seed_lacks_has_no_interval(tmp_path):
    folders = [write_run(tmp_path / str(seed), seed, leave_out=["DPO"] if seed else []) for seed in (0, 1)]
    assert not any("DPO" in (entry["method"], entry["against"]) for entry in world_intervals.interval_entries(folders))


def test_results_are_collected_from_finished_runs(runs, tmp_path):
    results = world.collect([0, 1], tmp_path)
    assert (results["commit"], results["seconds"]) == ("abc0, abc1", {"0": 1.5, "1": 2.5})
    constants = [row for row in results["rows"] if row.method == "Best constant"]
    assert [(row.seed, row.metrics["brier"]) for row in constants] == [(0, 0.1), (1, 0.1)]
    assert {row.method for row in results["rows"]} == set(STATED)
    assert {row.file for row in results["rows"]} == {None}
    assert results["intervals"] == world_intervals.interval_entries(runs)
    common.write_json(tmp_path / "world.json", results)
    read = common.read_json(tmp_path / "world.json")
    assert read["rows"] == results["rows"] and read["seconds"] == results["seconds"]
    (runs[1] / world.NOTE).unlink()
    with pytest.raises(SystemExit, match=r"seed-1 holds no finished run of this benchmark"):
        world.collect([0, 1], tmp_path)


def test_the_tables_hold_the_intervals(runs, tmp_path):
    results = world.collect([0, 1], tmp_path)
    for entry in results["intervals"]:
        if (entry["method"], entry["against"], entry["domain"]) == ("DPO", "SFT", "in-domain"):
            entry["brier"] = [-0.0182, -0.0304, -0.0006]
            entry["ece_m"] = [-0.0182, -0.0304, -0.0004]  # ends at 0 as far as it is shown
    lines = tables.table(results).splitlines()
    heads = [i for i, line in enumerate(lines) if line == "| Method | BS | minus SFT's | ECE-M | SC |"]
    assert heads == [0]
    given, written = (lines.index(f"| **{section}** | | | | |") for section in ("Text given", "Free-form"))
    assert given == 2
    shown = [line.split(" | ")[0].removeprefix("| ") for line in lines[given + 1 : written]]
    assert shown == [method for method in tables.METHODS if method in STATED]
    assert "| DPO | 10.0 | -1.8 (-3.0 to -0.1) | 10.0 | 10.0 |" in lines
    assert any(re.fullmatch(r"\| SFT \| 10\.0 \| - \| .*", line) for line in lines)
    assert max(map(len, lines[:-1])) < 66  # a phone
    assert "mean over 2 seeds" in lines[-1] and "malformed tags: at most 10.0 %" in lines[-1]

    page = tables.full_tables(results)
    claims = [line for line in page.splitlines() if line.startswith("| DPO, SFT | ")][: len(tables.MODES)]
    assert all(line.endswith("| -1.8 (-3.0 to -0.1) | -1.8 (-3.0 to +0.0) | BS only |") for line in claims)
    sections = dict(re.findall(r"^### (.*?)\n\n(.*?)(?=\n\n#|\Z)", page, re.MULTILINE | re.DOTALL))
    assert list(sections) == [f"{what}, {readout} readout" for readout in ("stated", "mean")
                              for what in ("Each method", "Differences")]  # fmt: skip
    shown = "| DPO, SFT | in-domain | free-form | **-1.8 (-3.0 to -0.1)** | -1.8 (-3.0 to +0.0) |"
    assert shown in sections["Differences, stated readout"]
    assert "| Vanilla | in-domain | iterative |" in sections["Each method, stated readout"]
    assert "| DPO, SFT |" not in sections["Each method, stated readout"]


def test_the_side_of_an_interval_is_the_one_that_is_shown():
    ends = ([-0.02, -0.03, -0.01], [0.0, -0.01, 0.01], [0.02, 0.01, 0.03], [-0.02, -0.03, -0.0004], None)
    assert [page_parts.side(interval) for interval in ends] == [-1, 0, 1, 0, 0]


BELOW, AROUND, ABOVE = [-0.02, -0.03, -0.01], [0.0, -0.01, 0.01], [0.02, 0.01, 0.03]


@pytest.mark.parametrize(
    ("brier", "ece_m", "said"),
    [
        (BELOW, BELOW, "holds"),
        (BELOW, AROUND, "BS only"),
        (AROUND, BELOW, "ECE-M only"),
        (AROUND, AROUND, "not shown"),
        (AROUND, None, "not shown"),
        (AROUND, ABOVE, "worse"),
        (ABOVE, AROUND, "worse"),
        (ABOVE, ABOVE, "worse"),
        (BELOW, ABOVE, "BS better, ECE-M worse"),
        (ABOVE, BELOW, "ECE-M better, BS worse"),
    ],
)
def test_a_method_is_worse_only_where_it_is_better_by_nothing(brier, ece_m, said):
    assert page_parts.verdict({"brier": brier, "ece_m": ece_m}) == said


def test_pages_define_the_words_of_their_verdicts(runs, tmp_path):
    assert all(f"*{word}*" in page_parts.VERDICTS for word in ("BS only", "ECE-M only", "Not shown", "Worse"))
    page = tables.full_tables(world.collect([0, 1], tmp_path))
    assert page.index("## What holds here") < page.index(page_parts.VERDICTS) < page.index("| Better than |")


def test_seeds_are_named_in_the_singular_and_the_plural():
    assert [page_parts.seeds_text(seeds) for seeds in ([0], [0, 1])] == ["seed 0", "seeds 0, 1"]


def test_differences_of_one_seed_are_not_said_to_have_a_range():
    first_tokens = load_script("first_tokens")
    row = {"method": "Distil", "mode": "iterative", "readout": "stated", "brier": [0.1], "ece_m": [0.1]}
    about = {"versions": {"torch": "2"}, "date": "2026-01-01", "commit": "abc", "machine": "a machine"}
    one = {**about, "differences": [{**row, "spearman": [0.1], "seeds": [0]}]}
    two = {**about, "differences": [{**row, **{name: [0.1, 0.2] for name in first_tokens.NAMES}, "seeds": [0, 1]}]}
    assert "With one seed, these differences may be chance." in first_tokens.page(one)
    assert "as uncertain as their range" in first_tokens.page(two) and "With one seed" not in first_tokens.page(two)


def test_a_diagram_shows_the_methods_that_exist(runs, tmp_path):
    world.draw(runs[0], tmp_path / "diagram.svg")
    text = (tmp_path / "diagram.svg").read_text()
    assert [name for name in ORDER if f">{name}<" in text] == ["SFT", "DPO", "ExpectedReward", "Distil"]
    (runs[0] / "expected" / "test" / tagged_file("ExpectedReward", "iterative")).unlink()
    world.draw(runs[0], tmp_path / "diagram.svg")
    assert "ExpectedReward" not in (tmp_path / "diagram.svg").read_text()


def test_seeds_run_in_processes_with_a_thread_each(tmp_path, monkeypatch):
    calls = []

    def fake(command, cwd, env, stdout, stderr):
        calls.append(command)
        assert env["OMP_NUM_THREADS"] == "1"
        if stdout is not None:
            stdout.write("a line of the demo\n")
        return subprocess.CompletedProcess(command, 1 if "7" in command else 0)

    monkeypatch.setattr(world.subprocess, "run", fake)
    monkeypatch.setattr(world, "provenance", lambda: {"commit": "abc"})
    written = []
    monkeypatch.setattr(world, "collect", lambda seeds, out: {"seeds": seeds})
    monkeypatch.setattr(world, "write_json", lambda path, results: written.append((path.name, results)))
    words = ["world.py", "--out", str(tmp_path), "--results", str(tmp_path / "w.json"), "--variant", "world-small"]
    monkeypatch.setattr(sys, "argv", [*words, "--jobs", "2"])
    world.main()
    assert sorted(command[command.index("--seed") + 1] for command in calls) == list("01234")
    named = ["--methods", ",".join(m.name for m in DEMO), "--world", "world-small"]
    assert all(command[-7:] == ["--full", "--jobs", "1", *named] for command in calls)  # with all test sets
    assert (tmp_path / "seed-3" / "demo.log").read_text() == "a line of the demo\n"
    assert written[-1] == ("w.json", {"seeds": [0, 1, 2, 3, 4]})
    notes = [results for name, results in written if name == world.NOTE]
    assert len(notes) == 5 and all(note.keys() == {"commit", "variant", "seconds"} for note in notes)

    monkeypatch.setattr(sys, "argv", [*words, "--jobs", "2", "--seeds", "7"])
    with pytest.raises(SystemExit, match=r"seed 7 failed; see .*demo\.log"):
        world.main()
    del calls[:]
    monkeypatch.setattr(sys, "argv", [*words, "--from-runs"])
    world.main()
    assert calls == []


def test_the_costs_of_records_are_those_of_the_results():
    data = load_script("data")
    results = json.loads(data.RESULTS.read_text(encoding="utf-8"))
    assert f"{data.BEGIN}\n{data.table(results)}\n{data.END}" in data.PAGE.read_text(encoding="utf-8")


def test_the_page_on_sampling_and_tagging_is_of_its_results():
    rollouts = load_script("rollouts")
    results = common.read_json(rollouts.RESULTS)
    assert rollouts.PAGE.read_text() == rollouts.page(results)
    assert [row["work"] for row in results["work"]] == list(rollouts.WORK)
    for row in results["work"]:
        assert row["pairs"] >= 7 and row["lowest"] <= row["ratio"] <= row["highest"]
        assert row["difference"] <= rollouts.CLOSE


def test_the_page_shows_the_stored_start_up_times():
    startup = load_script("startup")
    assert startup.table(common.read_json(startup.RESULTS)) in startup.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_all_pages_are_written_from_their_results(tmp_path):
    root = common.ROOT
    for name in ("benchmarks", "docs", "CONTRIBUTING.md", "README.md", "pyproject.toml"):
        path = root / name
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, tmp_path / name, ignore=skipped) if path.is_dir() else shutil.copy(path, tmp_path)
    (tmp_path / "lovec").symlink_to(root / "lovec")
    pages = [*sorted((tmp_path / "docs").rglob("*.md")), tmp_path / "CONTRIBUTING.md", tmp_path / "README.md"]
    readme = pages[-1].read_text(encoding="utf-8")
    pages[-1].write_text(readme.replace("| Distil |", "| Other |"), encoding="utf-8")  # which is mended
    subprocess.run([sys.executable, tmp_path / "benchmarks" / "all_pages.py"], cwd=tmp_path, check=True)
    for page in pages:
        committed = root / page.relative_to(tmp_path)
        assert page.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), f"{committed}: make results"
