"""Runs become the paper's tables: every metric in its place, averaged over seeds, with its interval."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from lovec.datasets.jsonl import write_records
from lovec.metrics import CalibrationSuite
from lovec.metrics.bootstrap import by_question, intervals, resample
from lovec.metrics.records import answer_statistics, passage_pairs, sentence_pairs
from lovec.metrics.results import read_results, write_results
from lovec.metrics.table import METRICS, MetricInfo
from lovec.reports.cells import CellMaker
from lovec.reports.diagnostic_tables import sweep_table
from lovec.reports.paper_tables import report_tables
from lovec.reports.plots import write_plots
from lovec.reports.runs import RunResults, read_run
from lovec.reports.table import markdown
from lovec.reports.texts import READOUT_TITLES
from lovec.reports.times import timings
from lovec.types import LovecError, Record, ResultRow, Sentence

PAIRS = {"sentence": sentence_pairs, "passage": passage_pairs}
TRUTH = (1.0, 0.0, 0.7, 0.3)


def tagged(scores, domain="in-domain", hard=False, mean=None):
    """Records of two sentences with these scores, or of one that is true or false as a whole where ``hard``.

    Where ``mean`` is given, half of the mass lies on that score.
    """
    records = []
    length = 1 if hard else 2
    for number in range(0, len(scores), length):
        sentences = []
        for offset, score in enumerate(scores[number : number + length]):
            truth = TRUTH[(number + offset) % 4]
            spread = None if mean is None else tuple(0.5 * (s == score) + 0.5 * (s == mean) for s in range(11))
            confidence = None if score is None else score / 10
            sentences.append(Sentence("It is so.", float(truth > 0.5) if hard else truth, confidence, score, spread))
        records.append(Record(f"{domain}-{number}", "Q?", sentences=tuple(sentences), meta={"domain": domain}))
    return records


def rows(method, records, mode="iterative", seed=0, readouts=("stated",), kind="method", **more):
    """The rows that a test would write for tagged records."""
    result = []
    for domain in dict.fromkeys(record.domain for record in records):
        in_domain = [record for record in records if record.domain == domain]
        for level, pairs in PAIRS.items():
            for readout in readouts:
                confidence, factuality, malformed = pairs(in_domain, readout)
                suite = CalibrationSuite()
                answers = answer_statistics(in_domain)
                suite.update(torch.tensor(confidence).double(), torch.tensor(factuality).double(), malformed, answers)
                values = {name: float(value) for name, value in suite.compute().items()}
                n = int(values.pop("n"))
                result.append(ResultRow(method, kind, domain, mode, level, readout, seed, n, values, **more))
    return result


def write(folder, *methods, times=(), seed=0):
    """A run; methods are (name, kind, mode, records, readouts, other fields of their rows)."""
    results = []
    for number, (name, kind, mode, records, readouts, more) in enumerate(methods):
        file = f"file-{number}.jsonl"
        write_records(folder / "test" / file, records)
        results += rows(name, records, mode, seed, readouts, kind, file=file, **more)
    write_results(folder / "test" / "results.json", results)
    if times:
        (folder / "test" / "times.json").write_text(json.dumps(list(times)))
    return folder


SCORES = {"SFT": [9, 5, 8, 6] * 3, "DPO": [10, 2, 7, 3] * 3, "Vanilla": [10, 10, 10, 9] * 3, "LUQ": [6, 2, 9, 4] * 3}


def usual(mode="iterative", kind="method", domains=("Bios", "PopQA"), **options):
    """A method for ``write``, by its name."""

    def method(name, scores=None, kind=kind, **more):
        records = [r for domain in domains for r in tagged(scores or SCORES[name], domain, **options)]
        readouts = ("stated",) if options.get("mean") is None else ("stated", "mean")
        return name, kind, mode, records, readouts, more

    return method


@pytest.fixture
def run(tmp_path):
    iterative, free_form = usual(), usual("free-form")
    return write(
        tmp_path / "comparison",
        iterative("Vanilla", kind="baseline"),
        free_form("Vanilla", kind="baseline"),
        iterative("Best constant", [7] * 12, "constant"),
        iterative("LUQ", kind="baseline"),
        iterative("p(true)", [5, 2, 9, 4] * 3, "baseline"),
        iterative("SFT"),
        iterative("DPO"),
        free_form("DPO", [10, 4, 7, 3] * 3),
        iterative("DPO + isotonic", [9, 0, 7, 3] * 3, "recalibrated", bases=("DPO",), variant="isotonic"),
        iterative("DPO, unseen", [9, 1, 7, 5] * 3, "ablation", bases=("DPO",), variant="no previous scores"),
        iterative("LUQ + DPO", [8, 1, 8, 3] * 3, "hybrid", bases=("LUQ", "DPO")),
    )


def named(tables, name):
    return {table.name: table for table in tables}[name]


def texts(table):
    return {(line.section, line.name): [cell and cell.text for cell in line.cells] for line in table.lines}


def order(table):
    return [(line.section, line.name) for line in table.lines]


# The main table


def test_the_main_table_has_the_papers_layout(run):
    table = report_tables(read_run(run), draws=0)[0]
    assert [(column.group, column.heading) for column in table.columns] == [
        (domain, metric) for domain in ("Bios", "PopQA") for metric in ("BS", "ECE-M", "SC")
    ]
    assert order(table) == [
        ("Literature", "LUQ"),
        ("Baselines", "Best constant"),
        ("Baselines", "Vanilla"),
        ("Baselines", "p(true)"),
        ("Iterative tagging", "SFT"),
        ("Iterative tagging", "DPO"),
        ("Free-form tagging", "Vanilla"),
        ("Free-form tagging", "DPO"),
    ]
    # DPO is right but for 0.2 at the second sentence of four: BS 0.04 / 4, ECE-M 0.2 / 4, all ranks equal
    assert texts(table)["Iterative tagging", "DPO"] == ["1.0", "5.0", "100.0"] * 2
    assert texts(table)["Baselines", "Best constant"][2] == "-"
    assert table.lines[5].cells[0].value == pytest.approx(0.01)


def test_every_table_of_confidences_names_its_readout(run):
    (run / "test" / "times.json").write_text(json.dumps(TIMES))
    write_results(run / "sweep.json", sweep_rows())
    tables = report_tables(read_run(run), draws=0)
    names = {table.name for table in tables}
    assert {"main", "passage", "hybrid", "recalibrated", "risk-coverage", "further", "diagnostics", "sweep"} <= names
    unnamed = [table.name for table in tables if not any(word in markdown(table) for word in READOUT_TITLES.values())]
    assert set(unnamed) <= {"running-time"}, unnamed


def test_the_best_is_that_of_a_mode_and_needs_intervals(run):
    without = report_tables(read_run(run), draws=0)
    assert not any(cell and cell.best for table in without for line in table.lines for cell in line.cells)
    assert not any("Bold" in note for table in without for note in table.notes)
    table = report_tables(read_run(run), draws=100)[0]
    assert any("Bold: better than all others of its mode" in note for note in table.notes)
    best = {key for key, line in zip(order(table), table.lines, strict=True) if line.cells[0].best}
    assert best == {("Iterative tagging", "DPO"), ("Free-form tagging", "DPO")}


def test_passages_have_a_table_of_their_own(run):
    main, passage = report_tables(read_run(run), draws=0)[:2]
    assert passage.name == "passage" and order(passage) == order(main)
    # mean f is 0.5 in every answer; DPO says 0.6 and 0.5
    assert texts(passage)["Iterative tagging", "DPO"][:2] == ["0.5", "5.0"]


def test_only_tables_with_data_are_there(run, tmp_path):
    assert [table.name for table in report_tables(read_run(run), draws=0)] == [
        "main", "passage", "no-previous-scores", "hybrid", "recalibrated", "risk-coverage", "further",
        "diagnostics",
    ]  # fmt: skip
    alone = write(tmp_path / "alone", usual()("SFT"))
    assert [table.name for table in report_tables(read_run(alone), draws=0)] == [
        "main", "passage", "risk-coverage", "further", "diagnostics",
    ]  # fmt: skip


def test_the_best_constant_is_in_every_table_of_results(run):
    tables = report_tables(read_run(run), draws=0)
    for name in ("main", "passage", "no-previous-scores", "hybrid", "recalibrated", "risk-coverage"):
        assert "Best constant" in [line.name for line in named(tables, name).lines], name


# The other tables of result rows


def test_without_previous_scores_stands_below_with_them(run):
    table = named(report_tables(read_run(run), draws=0), "no-previous-scores")
    assert order(table)[1:] == [("DPO", "with previous scores"), ("DPO", "no previous scores")]
    assert [texts(table)[key][0] for key in order(table)[1:]] == ["1.0", "1.5"]


def test_a_hybrid_stands_below_its_halves(run):
    table = named(report_tables(read_run(run), draws=0), "hybrid")
    assert order(table)[1:] == [("LUQ + DPO", "LUQ"), ("LUQ + DPO", "DPO"), ("LUQ + DPO", "LUQ + DPO")]


def test_recalibrated_methods_stand_below_themselves(run):
    table = named(report_tables(read_run(run), draws=0), "recalibrated")
    section = "Iterative tagging, stated score"
    assert order(table)[1:] == [(section, "DPO"), (section, "DPO + isotonic")]


def test_readouts_stand_side_by_side(tmp_path):
    run = write(
        tmp_path / "run",
        usual(domains=["Bios"], mean=5)("DPO"),
        usual(domains=["Bios"])("Best constant", [7] * 12, "constant"),
        usual(domains=["Bios"])("SFT"),
    )
    table = named(report_tables(read_run(run), draws=0), "readouts")
    assert [line.name for line in table.lines] == ["Best constant", "DPO"]
    assert [column.group for column in table.columns] == ["stated score"] * 3 + ["mean of the distribution"] * 3
    # halfway to 0.5: off by 0.25, 0.35, 0.1 and 0.1
    values = texts(table)["Iterative tagging", "DPO"]
    assert values[0] == "1.0" and values[3] == f"{100 * (0.25**2 + 0.35**2 + 0.02) / 4:.1f}"
    assert texts(table)["Baselines", "Best constant"][3:] == [None] * 3


def test_short_answers_have_auroc_and_ece(tmp_path):
    method = usual(domains=["TriviaQA"], hard=True)
    long = tagged(SCORES["DPO"], "Bios")
    name, kind, mode, short, *others = method("DPO")
    run = write(
        tmp_path / "run", method("Best constant", [7] * 12, "constant"), method("LUQ", kind="baseline"),
        (name, kind, mode, [*long, *short], *others), usual("free-form", domains=["TriviaQA"], hard=True)("DPO"),
    )  # fmt: skip
    table = named(report_tables(read_run(run), draws=0), "short-form")
    assert [column.heading for column in table.columns] == ["AUROC", "ECE", "BS"]
    assert order(table) == [
        ("Baselines", "Best constant"), ("Baselines", "LUQ"), ("Iterative tagging", "DPO"),
        ("Free-form tagging", "DPO"),
    ]  # fmt: skip
    assert texts(table)["Iterative tagging", "DPO"] == ["100.0", "20.0", "5.5"]
    assert texts(table)["Baselines", "Best constant"][0] == "50.0"


# The paper beside


def test_the_papers_lines_stand_in_the_same_columns(run):
    main = named(report_tables(read_run(run), draws=0, paper="llama"), "main")
    assert [column.group for column in main.columns] == ["Bios"] * 3 + ["PopQA"] * 3 + ["WildHallu"] * 3
    theirs = [line for line in main.lines if line.paper]
    assert theirs[0].section == "LoVeC paper, Llama-3-8B-Instruct: Literature"
    assert [cell.text for cell in theirs[0].cells] == [
        "20.0", "29.5", "63.8", "16.7", "23.2", "62.5", "14.5", "21.5", "56.8",
    ]  # fmt: skip
    assert not any(cell.best for line in theirs for cell in line.cells)
    assert next(line for line in main.lines if not line.paper).cells[6:] == (None,) * 3
    assert not any(line.paper for table in report_tables(read_run(run), draws=0) for line in table.lines)


def test_other_data_have_the_papers_table_behind_ours(tmp_path):
    run = write(tmp_path / "run", usual(domains=["in-domain"])("DPO"))
    names = [table.name for table in report_tables(read_run(run), draws=0, paper="gemma")]
    assert names == ["main", "main-paper", "passage", "passage-paper", "risk-coverage", "further", "diagnostics"]


def test_sft_regression_is_shown_where_it_was_measured(tmp_path):
    run = write(tmp_path / "run", usual(domains=["Bios"])("SFTRegression", SCORES["SFT"]))
    assert report_tables(read_run(run), draws=0, paper="llama")[-1].name == "sft-regression-paper"


def test_an_unknown_model_is_refused_whatever_the_run_holds(tmp_path):
    (tmp_path / "sweep.json").write_text(EMPTY)
    with pytest.raises(LovecError, match="no model 'gpt'"):
        report_tables(read_run(tmp_path), paper="gpt")


# Intervals


def test_intervals_are_those_of_the_bootstrap(run):
    read = read_run(run)
    table = report_tables(read, draws=50, level=0.8)[0]
    records = [record for record in read.tagged_records("SFT", "iterative") if record.meta["domain"] == "PopQA"]
    expected = intervals(resample([by_question(records, "stated")], 50), level=0.8)
    cells = table.lines[4].cells[3:]
    for cell, name in zip(cells, ("brier", "ece_m", "spearman"), strict=True):
        assert (cell.low, cell.high) == (expected[name].low, expected[name].high)
        assert cell.interval == f"{100 * cell.low:.1f} to {100 * cell.high:.1f}"
    assert table.interval_note.startswith("Intervals: 80 % percentile bootstrap, 50 draws of the questions")
    assert not any(cell.interval for line in report_tables(read, draws=0)[0].lines for cell in line.cells if cell)


def test_passages_are_drawn_whole(run):
    read = read_run(run)
    cell = named(report_tables(read, draws=50), "passage").lines[4].cells[0]
    records = [record for record in read.tagged_records("SFT", "iterative") if record.meta["domain"] == "Bios"]
    pairs = {record.id: passage_pairs([record], "stated")[:2] for record in records}
    expected = intervals(resample([pairs], 50))["brier"]
    assert (cell.value, cell.low, cell.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_a_metric_that_differs_from_that_of_the_records_has_no_interval(run):
    path = run / "test" / "results.json"
    changed = [
        replace(row, metrics={**row.metrics, "brier": row.metrics["brier"] + 0.01}) for row in read_results(path).rows
    ]
    write_results(path, changed)
    cells = report_tables(read_run(run), draws=20)[0].lines[4].cells
    assert cells[0].low is None and cells[2].low is not None


def test_without_tagged_records_rows_have_tables_without_intervals(run):
    for path in (run / "test").glob("*.jsonl"):
        path.unlink()
    tables = report_tables(read_run(run), draws=20)
    assert texts(tables[0])["Iterative tagging", "DPO"] == ["1.0", "5.0", "100.0"] * 2
    assert not any(cell.interval for line in tables[0].lines for cell in line.cells)
    assert "risk-coverage" not in [table.name for table in tables]


@pytest.mark.parametrize("options", [{"draws": -1}, {"level": 1.0}, {"level": 0.0}])
def test_wrong_options_are_refused(run, options):
    ((name, value),) = options.items()
    with pytest.raises(LovecError, match=f"^{name} is {value}, expected "):
        CellMaker(read_run(run), **options)


# Seeds and folders


def test_seeds_are_averaged(tmp_path):
    method = usual(domains=["Bios"])
    for seed, scores in enumerate(([10, 1, 7, 3] * 3, [10, 3, 7, 3] * 3)):
        write(tmp_path / f"seed-{seed}" / "dpo", method("DPO", scores), method("Vanilla", kind="baseline"), seed=seed)
    read = read_run(tmp_path)
    assert (
        read.seed_counts == {"DPO": 2, "Vanilla": 2}
        and {row.seed for row in read.rows} == {None}
        and len(read.records_by_seed("DPO", "iterative")) == 2
    )
    table = report_tables(read, draws=30)[0]
    cell = dict(zip(order(table), table.lines, strict=True))["Iterative tagging", "DPO"].cells[0]
    assert cell.value == pytest.approx((0.01 + 0.09) / 4 / 2)
    expected = intervals(
        resample([by_question(records, "stated") for records in read.records_by_seed("DPO", "iterative")], 30)
    )
    assert cell.low == expected["brier"].low
    assert any(note.startswith("Means over 2 training seeds") for note in table.notes)
    assert "training seeds are not drawn" in table.interval_note


def test_a_seed_tested_on_a_part_of_the_questions_is_another_method(tmp_path):
    method = usual(domains=["Bios"])
    name, kind, mode, records, *rest = method("DPO")
    half = (name, kind, mode, records[: len(records) // 2], *rest)
    write(tmp_path / "s0", method("DPO"))
    write(tmp_path / "s1", half, seed=1)
    read = read_run(tmp_path)
    assert read.seed_counts == {"DPO": 1, "DPO (s1)": 1} and not read.divided
    found = {row.method: row.n for row in read.rows if row.level == "sentence" and row.readout == "stated"}
    assert found["DPO"] == sum(len(record.sentences) for record in records) > found["DPO (s1)"] > 0


def test_malformed_tags_do_not_make_a_seed_another_method(tmp_path):
    method = usual(domains=["Bios"])
    write(tmp_path / "s0", method("DPO"))
    write(tmp_path / "s1", method("DPO", [None, None, 7, 3] * 3), seed=1)
    read = read_run(tmp_path)
    assert read.seed_counts == {"DPO": 2} and not read.divided


def test_seeds_that_divide_the_data_anew_are_averaged_and_named(tmp_path):
    method = usual(domains=["Bios"])
    name, kind, mode, records, *rest = method("DPO")
    write(tmp_path / "s0", method("DPO"), method("SFT"))
    write(tmp_path / "s1", (name, kind, mode, records[:-1], *rest), method("SFT"), seed=1)
    read = read_run(tmp_path)
    assert read.seed_counts == {"DPO": 2, "SFT": 2} and read.divided == {"DPO"}
    notes = report_tables(read, draws=10)[0].notes
    assert any("The seeds of DPO were tested on different questions: n is the mean" in note for note in notes)


def test_undefined_for_one_seed_is_undefined(tmp_path):
    method = usual(domains=["Bios"])
    write(tmp_path / "a", method("DPO"))
    write(tmp_path / "b", method("DPO", [5] * 12), seed=1)
    assert texts(report_tables(read_run(tmp_path), draws=0)[0])["Iterative tagging", "DPO"][2] == "-"


def test_a_note_names_methods_with_fewer_seeds(tmp_path):
    method = usual(domains=["Bios"])
    write(tmp_path / "a", method("DPO"), method("SFT"))
    write(tmp_path / "b", method("DPO"), seed=1)
    notes = report_tables(read_run(tmp_path), draws=0)[0].notes
    assert any("over 2 training seeds (SFT: 1)" in note for note in notes)


def test_a_note_names_test_sets_with_fewer_seeds(tmp_path):
    write(tmp_path / "a", usual(domains=["Bios", "PopQA"])("DPO"))
    write(tmp_path / "b", usual(domains=["Bios"])("DPO"), seed=1)
    notes = report_tables(read_run(tmp_path), draws=0)[0].notes
    assert any("over 2 training seeds (DPO, PopQA: 1)" in note for note in notes)


def test_what_runs_have_in_common_is_one_line(tmp_path):
    method = usual(domains=["Bios"])
    constant = method("Best constant", [7] * 12, "constant")
    write(tmp_path / "a", method("SFT"), constant)
    write(tmp_path / "b", method("DPO"), constant)
    write_results(tmp_path / "results.json", [*rows("DPO", tagged([1, 2])), *rows("SFT", tagged([1, 2]))])
    read = read_run(tmp_path)
    assert [line.name for line in report_tables(read, draws=0)[0].lines] == [
        "Best constant",
        "DPO",
        "SFT",
    ]  # as in the file
    assert len(read.tagged_records("Best constant", "iterative")) == 6


def test_other_metrics_for_the_same_seed_are_another_method(tmp_path):
    method = usual(domains=["Bios"])
    for folder, scores in (("a/x", [10, 1, 7, 3]), ("b/x", [9, 1, 7, 3]), ("c/x", [8, 1, 7, 3])):
        write(tmp_path / folder, method("DPO", scores * 3))
    read = read_run(tmp_path)
    assert list(dict.fromkeys(row.method for row in read.rows)) == ["DPO", "DPO (x)", "DPO (c/x)"]
    assert [
        read.tagged_records(name, "iterative")[0].sentences[0].score for name in ("DPO", "DPO (x)", "DPO (c/x)")
    ] == [
        10,
        9,
        8,
    ]


def test_other_data_are_other_columns(tmp_path):
    for domain, scores in (("Bios", [10, 2, 7, 3] * 3), ("PopQA", [9, 5, 8, 6] * 3)):
        write(tmp_path / domain, usual(domains=[domain])("DPO", scores))
    read = read_run(tmp_path / "Bios", tmp_path / "PopQA")
    table = report_tables(read, draws=20)[0]
    assert order(table) == [("Iterative tagging", "DPO")]
    assert [cell.text for cell in table.lines[0].cells][::3] == ["1.0", "9.0"]
    assert all(table.lines[0].cells[place].interval for place in (0, 3))
    assert read.name == "Bios + PopQA"


def test_a_run_can_be_named_by_its_test_folder(run):
    assert read_run(run / "test").rows == read_run(run).rows
    assert read_run(run / "test").name == read_run(run).name == "comparison"


def test_rows_made_from_a_renamed_method_follow_it(tmp_path):
    method = usual(domains=["Bios"])
    for folder, score in (("a", 10), ("b", 9)):
        base = method("DPO", [score, 1, 7, 3] * 3)
        mapped = method("DPO + isotonic", [score, 0, 7, 3] * 3, "recalibrated", bases=("DPO",), variant="isotonic")
        write(tmp_path / folder, base, mapped)
    table = named(report_tables(read_run(tmp_path), draws=0), "recalibrated")
    assert [line.name for line in table.lines] == ["DPO", "DPO + isotonic", "DPO (b)", "DPO + isotonic (b)"]


def test_a_recalibrated_mean_is_read_from_a_file_of_its_own(tmp_path):
    results = []
    for score, readout, file in ((9, "stated", "sft-isotonic.jsonl"), (8, "mean", "sft-isotonic.mean.jsonl")):
        records = tagged([score, 2, 7, 3] * 3, "Bios")
        write_records(tmp_path / "test" / file, records)
        fields = {"kind": "recalibrated", "file": file, "bases": ("SFT",), "variant": "isotonic"}
        results += [replace(row, readout=readout) for row in rows("SFT + isotonic", records, **fields)]
    write_results(tmp_path / "test" / "results.json", results)
    read = read_run(tmp_path)
    assert read.tagged_records("SFT + isotonic", "iterative", "mean")[0].sentences[0].score == 8
    table = named(report_tables(read, draws=20), "recalibrated")
    assert [line.cells[0].value for line in table.lines] == pytest.approx([0.05 / 4, 0.08 / 4])
    assert all(line.cells[0].interval for line in table.lines)


def test_metrics_of_users_are_columns_of_the_tables_of_results(tmp_path):
    (row,) = [row for row in rows("SFT", tagged(SCORES["SFT"], "Bios")) if row.level == "sentence"]
    mine = MetricInfo("tail_risk", "tail risk", "lower", unit="number", digits=3)
    seeds = [replace(row, seed=seed, metrics={**row.metrics, "tail_risk": 0.1 + 0.1 * seed}) for seed in (0, 1)]
    write_results(tmp_path / "test" / "results.json", seeds, [mine])
    table = report_tables(read_run(tmp_path))[0]
    assert [column.heading for column in table.columns] == ["BS", "ECE-M", "SC", "tail risk"]
    assert table.lines[0].cells[3].text == "0.150"
    assert "tail risk" in table.notes[0]


EMPTY = '{"metrics": [], "rows": []}'


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (None, None, "there is no folder"),
        ("x.txt", "", "has no test/results.json"),
        ("test/results.json", "[1]", "is not a results file"),
        ("test/results.json", '{"metrics": [], "rows": [{"method": "DPO"}]}', "has no 'kind'"),
        ("sweep.json", "[]", "is not a results file"),
        ("test/times.json", "{}", "no list of entries with method, mode, kind, seconds, records"),
        ("test/times.json", '[{"method": "DPO"}]', "no list of entries with method, mode, kind, seconds, records"),
        ("test/tokens.json", "nonsense", "is not JSON"),
    ],
)
def test_broken_folders_are_named_in_one_line(tmp_path, file, content, message):
    folder = tmp_path / "run"
    if file:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content)
        if file in ("test/times.json", "test/tokens.json"):
            (folder / "test" / "results.json").write_text(EMPTY)
    with pytest.raises(LovecError, match=message) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_missing_records_are_named(run):
    with pytest.raises(LovecError, match="no tagged records of 'GRPO', iterative"):
        read_run(run).tagged_records("GRPO", "iterative")
    with pytest.raises(LovecError, match="no run to read"):
        read_run()


# Other measurements


def test_thresholds_give_what_is_kept_and_how_true_it_is(tmp_path):
    run = write(tmp_path / "run", usual(domains=["Bios"])("DPO", [10, 5, 6, None] * 3))
    table = named(report_tables(read_run(run), draws=0), "risk-coverage")
    (line,) = table.lines
    # kept of 10 (f 1), 5 (f 0) and 6 (f 0.7): risk 0, then 0.3 / 2, then 1.3 / 3, each over a third of the sentences
    values = dict(
        zip([f"{c.group} {c.heading}".strip() for c in table.columns], [c.text for c in line.cells], strict=True)
    )
    assert (values["score >= 5 kept"], values["score >= 5 mean f"]) == ("100.0", "56.7")
    assert (values["score >= 6 kept"], values["score >= 6 mean f"]) == ("66.7", "85.0")
    assert (values["score >= 10 kept"], values["score >= 10 mean f"]) == ("33.3", "100.0")
    nothing = write(tmp_path / "none", usual(domains=["Bios"])("DPO", [5, 4] * 6))
    table = named(report_tables(read_run(nothing), draws=0), "risk-coverage")
    assert [cell.text for cell in table.lines[0].cells[-2:]] == ["0.0", "-"]


def test_thresholds_are_averaged_over_seeds(tmp_path):
    for seed, scores in enumerate(([10, 1, 7, 3] * 3, [10, 1, 2, 3] * 3)):
        write(tmp_path / f"{seed}", usual(domains=["Bios"])("DPO", scores), seed=seed)
    table = named(report_tables(read_run(tmp_path), draws=0), "risk-coverage")
    assert table.lines[0].cells[1].text == "37.5"


def test_further_metrics_have_a_table(run):
    table = named(report_tables(read_run(run), draws=20), "further")
    headings = [column.heading for column in table.columns]
    assert headings == [
        "MCB", "DSC", "UNC", "smECE", "log score", "C-index", "AUROC", "AUPRC", "AUARC", "PRR", "F1@64",
    ]  # fmt: skip
    assert {line.name for line in table.lines} >= {"Best constant", "LUQ", "DPO", "DPO + isotonic", "LUQ + DPO"}
    cells = texts(table)["Iterative tagging, Bios", "DPO"]
    main = texts(named(report_tables(read_run(run), draws=0), "main"))["Iterative tagging", "DPO"]
    mcb, dsc, unc = next(line.cells[:3] for line in table.lines if line.name == "DPO")
    assert f"{100 * (mcb.value - dsc.value + unc.value):.1f}" == main[0]
    assert cells[headings.index("C-index")] == cells[headings.index("AUROC")] == "100.0"
    assert all(not cell.interval for line in table.lines for cell in line.cells)
    assert not any(cell.best for line in table.lines if line.section.startswith("Free") for cell in line.cells)


def test_older_results_lack_further_metrics(tmp_path):
    path = write(tmp_path / "run", usual(domains=["Bios"], hard=True)("DPO")) / "test" / "results.json"
    content = json.loads(path.read_text())
    older = ("brier", "ece_m", "spearman", "auroc", "aurc", "malformed", "mean_confidence", "mean_factuality")
    for row in content["rows"]:
        row["metrics"] = {name: row["metrics"][name] for name in older}
    path.write_text(json.dumps(content))
    names = [table.name for table in report_tables(read_run(tmp_path / "run"), draws=0)]
    assert names == ["main", "passage", "short-form", "risk-coverage", "further"]
    newer = write(tmp_path / "newer", usual(domains=["Bios"], hard=True)("DPO"))
    both = named(report_tables(read_run(tmp_path / "run", newer), draws=0), "main")
    assert [line.name for line in both.lines] == ["DPO"]  # the same run, with and without them


def test_diagnostics_leave_out_what_was_not_measured(run):
    table = named(report_tables(read_run(run), draws=0), "diagnostics")
    headings = [column.heading for column in table.columns]
    assert {"words", "mean f", "bad tags", "scores used", "entropy"} <= set(headings) and "diversity" not in headings
    assert {line.name for line in table.lines} == {"Vanilla", "LUQ", "p(true)", "SFT", "DPO"}
    values = texts(table)["Free-form tagging, Bios", "DPO"]
    assert values[headings.index("words")] == "6.0" and values[headings.index("scores used")] == "4.0"


def times(method, mode, kind, records=10, **seconds):
    return {
        "method": method, "mode": mode, "kind": kind, "seconds": seconds, "records": records,
        "sentences": 2 * records, "prefill_tokens": 30 * records,
    }  # fmt: skip


TIMES = (
    times("LUQ", "iterative", "baseline", sampling=60.0, judging=20.0),
    times("DPO", "iterative", "method", scoring=3.0),
    times("DPO", "free-form", "method", writing=8.0, scoring=100.0),
    times("SFT", "free-form", "method", 20, writing=24.0),
    times("DPO, no previous scores", "iterative", "ablation", scoring=5.0),
    times("Answers", "free-form", "answers", writing=7.0),
    times("Empty", "iterative", "baseline", 0),
)


def test_running_time_is_that_of_an_answer(run):
    (run / "test" / "times.json").write_text(json.dumps(TIMES))
    table = named(report_tables(read_run(run), draws=0), "running-time")
    heads = [column.heading for column in table.columns]
    assert heads == [
        "writing", "sampling", "judging", "scoring", "needed", "with the answer", "times free-form", "context tokens",
        "answers",
    ]  # fmt: skip
    assert texts(table) == {
        ("Plain answers", "Answers"): ["0.700", None, None, None, "0.700", "0.700", "0.7", "30", "10"],
        ("Baselines", "LUQ"): [None, "6.00", "2.00", None, "8.00", "8.70", "8.7", "30", "10"],
        ("Iterative tagging", "DPO"): [None, None, None, "0.300", "0.300", "1.00", "1.0", "30", "10"],
        ("Free-form tagging", "DPO"): ["0.800", None, None, "10.00", "0.800", "0.800", "0.8", "30", "10"],
        ("Free-form tagging", "SFT"): ["1.20", None, None, None, "1.20", "1.20", "1.2", "30", "20"],
    }
    assert any("the mean of SFT, DPO" in note for note in table.notes)


def test_running_times_of_several_runs_are_medians_with_their_range(run):
    doubled = [{**entry, "seconds": {p: 2 * s for p, s in entry["seconds"].items()}} for entry in TIMES]
    (run / "test" / "times.json").write_text(json.dumps([*TIMES, *TIMES, *doubled]))
    table = named(report_tables(read_run(run), draws=0), "running-time")
    cells = {(line.section, line.name): line.cells for line in table.lines}
    needed = cells["Free-form tagging", "DPO"][4]
    assert (needed.text, needed.interval, needed.low, needed.high) == ("0.800", "0.800 to 1.60", 0.8, 1.6)
    assert any("and the range over them" in note for note in table.notes)


@pytest.mark.parametrize(
    ("runs", "needed", "shown"),
    [
        (((1.0, 2.0, 0.1), (1.1, 1.7, 0.4), (1.3, 1.6, 0.2)), 3.1, "3.10 (3.10 to 3.20)"),
        (((10.0, 10.0, 1.0), (10.0, 1.0, 10.0), (1.0, 10.0, 10.0)), 21.0, "21.00"),
    ],
)
def test_the_time_that_is_needed_is_the_median_of_the_sums(runs, needed, shown, tmp_path):
    phases = ("sampling", "judging", "scoring")
    entries = [times("LUQ", "iterative", "baseline", 1, **dict(zip(phases, spent, strict=True))) for spent in runs]
    plain = times("Answers", "free-form", "answers", 1, writing=2.0)
    results = RunResults("run", tmp_path, times=tuple(entry | {"data": ""} for entry in (*entries, plain)))
    timing, _ = timings(results)
    assert timing.total == pytest.approx(needed) == sum(timing.needed.values())
    assert timing.spread[0] <= timing.total <= timing.spread[1]
    table = named(report_tables(results, draws=0), "running-time")
    cells = dict(zip([column.heading for column in table.columns], table.lines[1].cells, strict=True))
    assert cells["needed"].shown(True) == shown and cells["sampling"].value == sorted(spent[0] for spent in runs)[1]
    assert cells["with the answer"].value == pytest.approx(needed + 2)
    assert any("needed is the median of the sums" in note for note in table.notes)
    (plot,) = [plot for plot in write_plots(results, tmp_path)[0] if plot.name == "times"]
    assert f">{needed + 2:#.2g} s".replace(". s", " s") in plot.svg  # of the whole bar


def test_running_times_say_that_others_ran_at_the_same_time(run, tmp_path):
    (run / "test" / "times.json").write_text(json.dumps(TIMES))
    said = "Taken while up to 2 processes of one command shared the machine: alone, each may be faster."
    assert said not in named(report_tables(read_run(run), draws=0), "running-time").notes
    (alone,) = [plot for plot in write_plots(read_run(run), tmp_path)[0] if plot.name == "times"]
    assert alone.note == "Not drawn: DPO, no previous scores (ablation)."
    together = [{**entry, "processes": 2} for entry in TIMES[:1]] + [{**entry, "processes": 1} for entry in TIMES[1:]]
    (run / "test" / "times.json").write_text(json.dumps(together))
    assert said in named(report_tables(read_run(run), draws=0), "running-time").notes
    (plot,) = [plot for plot in write_plots(read_run(run), tmp_path)[0] if plot.name == "times"]
    assert plot.title == "Running time of an answer (not alone on the machine)" and plot.title in plot.svg
    assert plot.note == f"{said} {alone.note}"


def test_running_time_without_free_form_tagging(run):
    (run / "test" / "times.json").write_text(json.dumps(TIMES[:2]))
    table = named(report_tables(read_run(run), draws=0), "running-time")
    heads = [column.heading for column in table.columns]
    assert heads == ["sampling", "judging", "scoring", "needed", "context tokens", "answers"]


def test_running_times_of_several_runs_are_medians(tmp_path):
    for seed, seconds in enumerate((10.0, 30.0, 900.0)):
        entry = times("DPO", "iterative", "method", scoring=seconds)
        write(tmp_path / f"{seed}", usual()("DPO"), seed=seed, times=[entry])
    (timing,) = timings(read_run(tmp_path))
    assert (timing.total, timing.runs, timing.records, timing.prefill_tokens) == (3.0, 3, 10, 30)


def test_running_times_on_unlike_data_and_of_unlike_models_are_kept_apart(tmp_path):
    for name, seconds, scores in (("dpo", (10.0, 90.0), SCORES["DPO"]), ("dpo2", (20.0, 180.0), SCORES["SFT"])):
        for data, spent in zip(("world", "bios"), seconds, strict=True):
            folder = tmp_path / name / "test" / data
            written = write(tmp_path / f"{name}-{data}", usual(domains=(data,))("DPO", scores)) / "test"
            shutil.copytree(written, folder)
            shutil.rmtree(written.parent)
            plain = [times("Answers", "free-form", "answers", writing=spent / 2)] if data == "bios" else []
            entries = [*plain, times("DPO", "iterative", "method", scoring=spent)]
            (folder / "times.json").write_text(json.dumps(entries))
            token = {"method": "DPO", "case": "correct", "sentence": "A.", "tokens": []}
            (folder / "tokens.json").write_text(json.dumps([token]))
    table = named(report_tables(read_run(tmp_path / "dpo"), draws=0), "running-time")
    assert [column.heading for column in table.columns] == [
        "writing", "scoring", "needed", "with the answer", "context tokens", "answers"
    ]  # fmt: skip
    assert {place: cells[2:4] for place, cells in texts(table).items()} == {
        ("Plain answers, bios", "Answers"): ["4.50", "4.50"],
        ("Iterative tagging, bios", "DPO"): ["9.00", "13.50"],
        ("Iterative tagging, world", "DPO"): ["1.00", None],
    }
    assert not any("range over them" in note for note in table.notes)
    plots = [plot for plot in write_plots(read_run(tmp_path / "dpo"), tmp_path)[0] if plot.name.startswith("times")]
    assert [(plot.name, plot.title) for plot in plots] == [
        (f"times.{data}", f"Running time of an answer: {data}") for data in ("bios", "world")
    ]
    both = read_run(tmp_path / "dpo", tmp_path / "dpo2")
    assert [(t.method, t.data, t.total, t.runs) for t in timings(both) if t.kind == "method"] == [
        ("DPO", "bios", 9.0, 1), ("DPO", "world", 1.0, 1),
        ("DPO (dpo2)", "bios", 18.0, 1), ("DPO (dpo2)", "world", 2.0, 1),
    ]  # fmt: skip
    assert [entry["method"] for entry in both.tokens] == ["DPO"] * 2 + ["DPO (dpo2)"] * 2


def test_the_recipe_is_the_newest_one(run):
    for version in (0, 1, 10):
        folder = run / "logs" / f"version_{version}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(f"seed_everything: {version}\n")
    assert read_run(run).recipes[run.resolve()] == {"seed_everything": 10}


LOG = """step,train/loss,train/reward,val/brier,val/ece_m,val/spearman,val/malformed
-1,,,0.2,0.3,,0
9,1.5,3.25,,,,
9,,,0.15,0.2,0.5,0
19,1.2,4.5,,,,
19,,,0.1,0.1,0.6,0
29,1.1,5.5,,,,
29,,,0.09,0.1,0.625,0
"""


def test_checkpoints_are_validations_by_step(run):
    folder = run / "logs" / "version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text(LOG)
    table = named(report_tables(read_run(run), draws=0), "checkpoints")
    assert texts(table) == {
        ("comparison, first mode", "step 0"): ["20.0", "30.0", "-", "-"],
        ("comparison, first mode", "step 10"): ["15.0", "20.0", "50.0", "3.250"],
        ("comparison, first mode", "step 20"): ["10.0", "10.0", "60.0", "4.500"],
        ("comparison, first mode", "step 30"): ["9.0", "10.0", "62.5", "5.500"],
    }
    (folder / "metrics.csv").write_text(LOG.replace("train/reward", "train/kl"))
    assert len(named(report_tables(read_run(run), draws=0), "checkpoints").columns) == 3


def test_a_broken_log_spoils_no_other_table(run, caplog):
    folder = run / "logs" / "version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,train/loss\nx,y\n")
    assert "checkpoints" not in [table.name for table in report_tables(read_run(run), draws=0)]
    assert "no table of checkpoints" in caplog.text


def swept(method, option, seed, brier, mode="iterative"):
    metrics = {"brier": brier, "ece_m": 0.1, "spearman": 0.5, "malformed": 0.0, "seconds": 12.0 + seed}
    options = (option,) if option else ()
    return ResultRow(method, "variation", "in-domain", mode, "sentence", "stated", seed, 9, metrics, options=options)


def sweep_rows():
    seeds, modes = ((0, 0.1), (1, 0.2)), ("iterative", "free-form")
    return [
        *(swept("base", "", seed, brier, mode) for mode in modes for seed, brier in seeds),
        *(swept("reward=LinearReward", "--model.reward=LinearReward", seed, 0.3) for seed in (0, 1)),
        swept("beta=2", "--model.beta=2", 0, None),
        replace(swept("base", "", 0, 0.9), level="passage"),
        replace(swept("base", "", 0, 0.9), readout="mean"),
    ]  # fmt: skip


def test_a_sweep_has_a_line_per_variation_with_means_over_seeds():
    table = sweep_table(sweep_rows())
    assert [column.group for column in table.columns] == ["Iterative tagging"] * 4 + ["Free-form tagging"] * 4 + [""]
    assert [column.heading for column in table.columns[3:5]] == ["bad tags", "BS"] and table.columns[-1].heading == "s"
    assert [line.name for line in table.lines] == ["base", "reward=LinearReward", "beta=2"]
    assert [cell.text for cell in table.lines[0].cells] == ["15.0", "10.0", "50.0", "0.0"] * 2 + ["12"]
    assert table.lines[0].cells[0].best and not table.lines[1].cells[0].best
    assert table.lines[2].cells[0].text == "-"


def test_a_variation_is_bold_only_if_it_is_better_than_all_others_with_every_seed():
    def best(**briers):
        table = sweep_table([swept(name, "", seed, b) for name, pair in briers.items() for seed, b in enumerate(pair)])
        assert "Bold: better than all others with every seed: its range overlaps none of theirs." in table.notes
        return [line.cells[0].best for line in table.lines]

    assert best(base=(0.1, 0.102), one=(0.12, 0.122), two=(0.16, 0.18)) == [True, False, False]
    assert best(base=(0.1, 0.102), one=(0.12, 0.122), two=(0.09, 0.18)) == [False, False, False]  # better with seed 0


def test_a_sweep_gives_the_range_of_the_brier_score_over_seeds():
    cells = sweep_table(sweep_rows()).lines[0].cells
    assert (cells[0].low, cells[0].high, cells[0].interval) == (0.1, 0.2, "10.0 to 20.0")
    assert (cells[1].low, cells[1].high, cells[1].interval) == (0.1, 0.1, "")
    assert cells[-1].interval == ""
    wider = sweep_table([swept("base", "", seed, 0.1) for seed in (0, 1)], ranges=METRICS).lines[0].cells
    assert [cell.interval for cell in wider] == [""] * 5  # equal for both seeds


def test_the_notes_of_a_sweep_say_units_and_seeds():
    notes = sweep_table(sweep_rows()).notes
    units = "In %; lower is better: BS, ECE-M, bad tags; higher: SC"
    assert notes[0].startswith(f"Validation records, stated score. {units}; s: seconds of a run (with --jobs, beside")
    assert notes[1].startswith("Means over 2 training seeds")
    assert len(sweep_table(sweep_rows()[:1]).notes) == 1


def test_a_report_has_a_table_of_a_sweep_with_the_papers_ablation(tmp_path):
    write_results(tmp_path / "sweep.json", sweep_rows())
    (table,) = report_tables(read_run(tmp_path))
    assert (table.name, table.title) == ("sweep", f"Sweep {tmp_path.name}")
    assert table.lines[0].cells[0].interval == "10.0 to 20.0"
    (both,) = report_tables(read_run(tmp_path), paper="llama")
    assert "GRPO-linear" in [line.name for line in both.lines]  # the paper's ablation of the reward


def test_records_may_have_no_sentences(tmp_path):
    records = [replace(record, sentences=()) if n else record for n, record in enumerate(tagged([10, 1, 7, 3], "Bios"))]
    run = write(tmp_path / "run", ("DPO", "method", "free-form", records, ("stated",), {}))
    assert report_tables(read_run(run), draws=10)[0].lines[0].cells[0].text == "0.5"
