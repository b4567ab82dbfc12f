"""Runs become the paper's tables: every figure in its place, averaged over seeds, with its interval."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from lovec.datasets.jsonl import write_records
from lovec.metrics import CalibrationSuite
from lovec.metrics.bootstrap import by_question, intervals, resample
from lovec.metrics.records import passage_pairs, sentence_pairs, statements
from lovec.reports.cells import Cells
from lovec.reports.paper_tables import sheets
from lovec.reports.runs import read_run
from lovec.reports.timing import timings
from lovec.types import LovecError, Record, Sentence

PAIRS = {"sentence": sentence_pairs, "passage": passage_pairs}
TRUTH = (1.0, 0.0, 0.7, 0.3)


def tagged(scores, domain="in-domain", hard=False, mean=None):
    """Records of two sentences; scores by turns, and half of what is left of certainty beside each."""
    records = []
    for number in range(0, len(scores), 2):
        sentences = []
        for offset, score in enumerate(scores[number : number + 2]):
            truth = TRUTH[(number + offset) % 4]
            spread = None if mean is None else tuple(0.5 * (s == score) + 0.5 * (s == mean) for s in range(11))
            said = None if score is None else score / 10
            sentences.append(Sentence("It is so.", float(truth > 0.5) if hard else truth, said, score, spread))
        records.append(Record(f"{domain}-{number}", "Q?", sentences=tuple(sentences), meta={"domain": domain}))
    return records


def rows(method, records, mode="iterative", seed=0, readouts=("stated",), **extra):
    found = []
    for domain in dict.fromkeys(record.meta["domain"] for record in records):
        own = [record for record in records if record.meta["domain"] == domain]
        for level, pairs in PAIRS.items():
            for readout in readouts:
                said, true, missing = pairs(own, readout)
                suite = CalibrationSuite()
                suite.update(torch.tensor(said).double(), torch.tensor(true).double(), missing, statements(own))
                figures = {name: None if value != value else float(value) for name, value in suite.compute().items()}
                place = {"method": method, "seed": seed, "domain": domain, "mode": mode, "level": level}
                found.append({**place, "readout": readout, **figures, "n": int(figures["n"]), **extra})
    return found


def write(folder, *methods, times=(), seed=0, old=False):
    """A run; methods are (name, kind, mode, records, readouts)."""
    found = []
    for number, (name, kind, mode, records, readouts) in enumerate(methods):
        file = f"{name.lower().replace(' + ', '-')}.{mode}.jsonl" if old else f"file-{number}.jsonl"
        write_records(folder / "test" / file, records)
        extra = {} if old else {"kind": kind, "file": file}
        found += rows(name, records, mode, seed, readouts, **extra)
    (folder / "test" / "results.json").write_text(json.dumps(found))
    if times:
        (folder / "test" / "times.json").write_text(json.dumps(list(times)))
    return folder


SCORES = {"SFT": [9, 5, 8, 6] * 3, "DPO": [10, 2, 7, 3] * 3, "Vanilla": [10, 10, 10, 9] * 3, "LUQ": [6, 2, 9, 4] * 3}


def usual(mode="iterative", kind="method", domains=("Bios", "PopQA"), **options):
    """A method for ``write``, by its name."""

    def made(name, scores=None, kind=kind):
        records = [r for domain in domains for r in tagged(scores or SCORES[name], domain, **options)]
        return name, kind, mode, records, ("stated",) if options.get("mean") is None else ("stated", "mean")

    return made


@pytest.fixture
def run(tmp_path):
    given, free = usual(), usual("free-form")
    return write(
        tmp_path / "comparison",
        given("Vanilla", kind="baseline"),
        free("Vanilla", kind="baseline"),
        given("Best constant", [7] * 12, "constant"),
        given("LUQ", kind="baseline"),
        given("p(true)", [5, 2, 9, 4] * 3, "baseline"),
        given("SFT"),
        given("DPO"),
        free("DPO", [10, 4, 7, 3] * 3),
        given("DPO + isotonic", [9, 0, 7, 3] * 3, "recalibrated"),
        given("DPO, no previous scores", [9, 1, 7, 5] * 3, "ablation"),
        given("LUQ + DPO", [8, 1, 8, 3] * 3, "hybrid"),
    )


def named(found, name):
    return {sheet.name: sheet for sheet in found}[name]


def texts(sheet):
    return {(line.section, line.name): [cell and cell.text for cell in line.cells] for line in sheet.lines}


def order(sheet):
    return [(line.section, line.name) for line in sheet.lines]


# The main table


def test_the_main_table_has_the_papers_layout(run):
    sheet = sheets(read_run(run), draws=0)[0]
    assert [(column.group, column.heading) for column in sheet.columns] == [
        (domain, figure) for domain in ("Bios", "PopQA") for figure in ("BS", "ECE-M", "SC")
    ]
    assert order(sheet) == [
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
    assert texts(sheet)["Iterative tagging", "DPO"] == ["1.0", "5.0", "100.0"] * 2
    assert texts(sheet)["Baselines", "Best constant"][2] == "-"
    assert sheet.lines[5].cells[0].value == pytest.approx(0.01)


def test_the_best_is_that_of_a_mode(run):
    sheet = sheets(read_run(run), draws=0)[0]
    best = {key for key, line in zip(order(sheet), sheet.lines, strict=True) if line.cells[0].best}
    assert best == {("Iterative tagging", "DPO"), ("Free-form tagging", "DPO")}


def test_passages_have_a_table_of_their_own(run):
    found = named(sheets(read_run(run), draws=0), "passage")
    assert order(found) == order(sheets(read_run(run), draws=0)[0])
    # mean f is 0.5 in every answer; DPO says 0.6 and 0.5
    assert texts(found)["Iterative tagging", "DPO"][:2] == ["0.5", "5.0"]


def test_only_tables_with_data_are_there(run, tmp_path):
    assert [sheet.name for sheet in sheets(read_run(run), draws=0)] == [
        "main", "passage", "no-previous-scores", "hybrid", "recalibrated", "risk-coverage", "diagnostics",
    ]  # fmt: skip
    alone = write(tmp_path / "alone", usual()("SFT"))
    assert [sheet.name for sheet in sheets(read_run(alone), draws=0)] == [
        "main", "passage", "risk-coverage", "diagnostics",
    ]  # fmt: skip


def test_the_best_constant_is_in_every_table_of_results(run):
    found = sheets(read_run(run), draws=0)
    for name in ("main", "passage", "no-previous-scores", "hybrid", "recalibrated", "risk-coverage"):
        assert "Best constant" in [line.name for line in named(found, name).lines], name


# The other tables of result rows


def test_without_previous_scores_stands_below_with_them(run):
    sheet = named(sheets(read_run(run), draws=0), "no-previous-scores")
    assert order(sheet)[1:] == [("DPO", "with previous scores"), ("DPO", "no previous scores")]
    assert [texts(sheet)[key][0] for key in order(sheet)[1:]] == ["1.0", "1.5"]


def test_a_hybrid_stands_below_its_halves(run):
    sheet = named(sheets(read_run(run), draws=0), "hybrid")
    assert order(sheet)[1:] == [("LUQ + DPO", "LUQ"), ("LUQ + DPO", "DPO"), ("LUQ + DPO", "LUQ + DPO")]


def test_recalibrated_methods_stand_below_themselves(run):
    sheet = named(sheets(read_run(run), draws=0), "recalibrated")
    section = "Iterative tagging, stated score"
    assert order(sheet)[1:] == [(section, "DPO"), (section, "DPO + isotonic")]


def test_readouts_stand_side_by_side(tmp_path):
    run = write(
        tmp_path / "run",
        usual(domains=["Bios"], mean=5)("DPO"),
        usual(domains=["Bios"])("Best constant", [7] * 12, "constant"),
        usual(domains=["Bios"])("SFT"),
    )
    sheet = named(sheets(read_run(run), draws=0), "readouts")
    assert [line.name for line in sheet.lines] == ["Best constant", "DPO"]
    assert [column.group for column in sheet.columns] == ["stated score"] * 3 + ["mean of the distribution"] * 3
    # halfway to 0.5: off by 0.25, 0.35, 0.1 and 0.1
    said = texts(sheet)["Iterative tagging", "DPO"]
    assert said[0] == "1.0" and said[3] == f"{100 * (0.25**2 + 0.35**2 + 0.02) / 4:.1f}"
    assert texts(sheet)["Baselines", "Best constant"][3:] == [None] * 3


def test_short_answers_have_auroc_and_ece(tmp_path):
    made = usual(domains=["TriviaQA"], hard=True)
    long = tagged(SCORES["DPO"], "Bios")
    name, kind, mode, short, readouts = made("DPO")
    run = write(
        tmp_path / "run", made("Best constant", [7] * 12, "constant"), made("LUQ", kind="baseline"),
        (name, kind, mode, [*long, *short], readouts), usual("free-form", domains=["TriviaQA"], hard=True)("DPO"),
    )  # fmt: skip
    sheet = named(sheets(read_run(run), draws=0), "short-form")
    assert [column.heading for column in sheet.columns] == ["AUROC", "ECE", "BS"]
    assert order(sheet) == [
        ("Baselines", "Best constant"), ("Baselines", "LUQ"), ("Iterative tagging", "DPO"),
        ("Free-form tagging", "DPO"),
    ]  # fmt: skip
    assert texts(sheet)["Iterative tagging", "DPO"] == ["100.0", "20.0", "5.5"]
    assert texts(sheet)["Baselines", "Best constant"][0] == "50.0"


# The paper beside


def test_the_papers_lines_stand_in_the_same_columns(run):
    found = sheets(read_run(run), draws=0, paper="llama")
    main = named(found, "main")
    assert [column.group for column in main.columns] == ["Bios"] * 3 + ["PopQA"] * 3 + ["WildHallu"] * 3
    theirs = [line for line in main.lines if line.paper]
    assert theirs[0].section == "LoVeC paper, Llama-3-8B-Instruct: Literature"
    assert [cell.text for cell in theirs[0].cells] == [
        "20.0", "29.5", "63.8", "16.7", "23.2", "62.5", "14.5", "21.5", "56.8",
    ]  # fmt: skip
    assert not any(cell.best for line in theirs for cell in line.cells)
    assert next(line for line in main.lines if not line.paper).cells[6:] == (None,) * 3
    assert not any(line.paper for sheet in sheets(read_run(run), draws=0) for line in sheet.lines)


def test_other_data_have_the_papers_table_behind_ours(tmp_path):
    run = write(tmp_path / "run", usual(domains=["in-domain"])("DPO"))
    names = [sheet.name for sheet in sheets(read_run(run), draws=0, paper="gemma")]
    assert names == ["main", "main-paper", "passage", "passage-paper", "risk-coverage", "diagnostics"]


def test_sft_regression_is_shown_where_it_was_measured(tmp_path):
    run = write(tmp_path / "run", usual(domains=["Bios"])("SFTRegression", SCORES["SFT"]))
    assert sheets(read_run(run), draws=0, paper="llama")[-1].name == "sft-regression-paper"


def test_an_unknown_model_is_refused_whatever_the_run_holds(tmp_path):
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(LovecError, match="no model 'gpt'"):
        sheets(read_run(tmp_path), paper="gpt")


# Intervals


def test_intervals_are_those_of_the_bootstrap(run):
    read = read_run(run)
    sheet = sheets(read, draws=50, level=0.8)[0]
    records = [record for record in read.tagged("SFT", "iterative") if record.meta["domain"] == "PopQA"]
    expected = intervals(resample([by_question(records, "stated")], 50), level=0.8)
    cells = sheet.lines[4].cells[3:]
    for cell, name in zip(cells, ("brier", "ece_m", "spearman"), strict=True):
        assert (cell.low, cell.high) == (expected[name].low, expected[name].high)
        assert cell.span == f"{100 * cell.low:.1f} to {100 * cell.high:.1f}"
    assert sheet.spans.startswith("Intervals: 80 % percentile bootstrap, 50 draws of the questions")
    assert not any(cell.span for line in sheets(read, draws=0)[0].lines for cell in line.cells if cell)


def test_passages_are_drawn_whole(run):
    read = read_run(run)
    cell = named(sheets(read, draws=50), "passage").lines[4].cells[0]
    records = [record for record in read.tagged("SFT", "iterative") if record.meta["domain"] == "Bios"]
    pairs = {record.id: passage_pairs([record], "stated")[:2] for record in records}
    expected = intervals(resample([pairs], 50))["brier"]
    assert (cell.value, cell.low, cell.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_records_that_do_not_give_the_figure_give_no_interval(run):
    path = run / "test" / "results.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps([{**row, "brier": row["brier"] + 0.01} for row in found]))
    cells = sheets(read_run(run), draws=20)[0].lines[4].cells
    assert cells[0].low is None and cells[2].low is not None


def test_without_tagged_records_there_are_figures_all_the_same(run):
    for path in (run / "test").glob("*.jsonl"):
        path.unlink()
    found = sheets(read_run(run), draws=20)
    assert texts(found[0])["Iterative tagging", "DPO"] == ["1.0", "5.0", "100.0"] * 2
    assert not any(cell.span for line in found[0].lines for cell in line.cells)
    assert "risk-coverage" not in [sheet.name for sheet in found]


@pytest.mark.parametrize("options", [{"draws": -1}, {"level": 1.0}, {"level": 0.0}])
def test_wrong_options_are_refused(run, options):
    with pytest.raises(LovecError, match="expected 0 or more"):
        Cells(read_run(run), **options)


# Seeds, folders and older runs


def test_seeds_are_averaged(tmp_path):
    made = usual(domains=["Bios"])
    for seed, scores in enumerate(([10, 1, 7, 3] * 3, [10, 3, 7, 3] * 3)):
        write(tmp_path / f"seed-{seed}" / "dpo", made("DPO", scores), made("Vanilla", kind="baseline"), seed=seed)
    read = read_run(tmp_path)
    assert read.seeds == (0, 1) and len(read.answers("DPO", "iterative")) == 2
    sheet = sheets(read, draws=30)[0]
    cell = dict(zip(order(sheet), sheet.lines, strict=True))["Iterative tagging", "DPO"].cells[0]
    assert cell.value == pytest.approx((0.01 + 0.09) / 4 / 2)
    expected = intervals(resample([by_question(records, "stated") for records in read.answers("DPO", "iterative")], 30))
    assert cell.low == expected["brier"].low
    assert any(note.startswith("Means over 2 training seeds") for note in sheet.notes)
    assert "training seeds are not drawn" in sheet.spans


def test_undefined_for_one_seed_is_undefined(tmp_path):
    made = usual(domains=["Bios"])
    write(tmp_path / "a", made("DPO"))
    write(tmp_path / "b", made("DPO", [5] * 12), seed=1)
    assert texts(sheets(read_run(tmp_path), draws=0)[0])["Iterative tagging", "DPO"][2] == "-"


def test_seeds_that_only_some_methods_have_are_told(tmp_path):
    made = usual(domains=["Bios"])
    write(tmp_path / "a", made("DPO"), made("SFT"))
    write(tmp_path / "b", made("DPO"), seed=1)
    notes = sheets(read_run(tmp_path), draws=0)[0].notes
    assert any("over 2 training seeds (SFT: 1)" in note for note in notes)


def test_what_runs_have_in_common_is_one_line(tmp_path):
    made = usual(domains=["Bios"])
    constant = made("Best constant", [7] * 12, "constant")
    write(tmp_path / "a", made("SFT"), constant)
    write(tmp_path / "b", made("DPO"), constant)
    (tmp_path / "results.json").write_text(json.dumps([*rows("DPO", tagged([1, 2])), *rows("SFT", tagged([1, 2]))]))
    read = read_run(tmp_path)
    assert [line.name for line in sheets(read, draws=0)[0].lines] == ["Best constant", "DPO", "SFT"]  # as in the file
    assert len(read.tagged("Best constant", "iterative")) == 6


def test_other_figures_of_the_same_seed_are_another_method(tmp_path):
    made = usual(domains=["Bios"])
    for folder, scores in (("a/x", [10, 1, 7, 3]), ("b/x", [9, 1, 7, 3]), ("c/x", [8, 1, 7, 3])):
        write(tmp_path / folder, made("DPO", scores * 3))
    read = read_run(tmp_path)
    assert list(dict.fromkeys(row["method"] for row in read.rows)) == ["DPO", "DPO (x)", "DPO (c/x)"]
    assert [read.tagged(name, "iterative")[0].sentences[0].score for name in ("DPO", "DPO (x)", "DPO (c/x)")] == [
        10,
        9,
        8,
    ]


def test_other_data_are_other_columns(tmp_path):
    for domain, scores in (("Bios", [10, 2, 7, 3] * 3), ("PopQA", [9, 5, 8, 6] * 3)):
        write(tmp_path / domain, usual(domains=[domain])("DPO", scores))
    read = read_run(tmp_path / "Bios", tmp_path / "PopQA")
    sheet = sheets(read, draws=20)[0]
    assert order(sheet) == [("Iterative tagging", "DPO")]
    assert [cell.text for cell in sheet.lines[0].cells][::3] == ["1.0", "9.0"]
    assert all(sheet.lines[0].cells[place].span for place in (0, 3))
    assert read.name == "Bios + PopQA"


def test_a_run_can_be_named_by_its_test_folder(run):
    assert read_run(run / "test").rows == read_run(run).rows
    assert read_run(run / "test").name == read_run(run).name == "comparison"


def test_older_runs_are_understood(tmp_path):
    made = usual(domains=["Bios"])
    methods = [made(name) for name in ("Vanilla", "SFT", "LUQ")]
    methods += [made("Best constant", [7] * 12), made("SFT + isotonic", [7, 5, 8, 6] * 3)]
    folder = write(tmp_path / "run", *methods, old=True)
    (folder / "test" / "best constant.iterative.jsonl").rename(folder / "test" / "best-constant.iterative.jsonl")
    read = read_run(folder)
    kinds = {row["method"]: row["kind"] for row in read.rows}
    assert kinds == {
        "Vanilla": "baseline", "LUQ": "baseline", "SFT": "method", "Best constant": "constant",
        "SFT + isotonic": "recalibrated",
    }  # fmt: skip
    assert all(read.tagged(method, "iterative") for method in kinds)


def test_older_runs_of_one_seed_keep_their_files(tmp_path):
    for folder, score in (("a", 10), ("b", 9)):
        write(tmp_path / folder, usual(domains=["Bios"])("DPO", [score, 2, 7, 3] * 3), old=True)
    read = read_run(tmp_path)
    assert [read.tagged(name, "iterative")[0].sentences[0].score for name in ("DPO", "DPO (b)")] == [10, 9]


@pytest.mark.parametrize("old", [True, False])
def test_a_recalibrated_mean_is_read_from_a_file_of_its_own(tmp_path, old):
    stated, mean = (tagged(scores * 3, "Bios") for scores in ([9, 2, 7, 3], [8, 2, 7, 3]))
    extra = {} if old else {"kind": "recalibrated"}
    found = []
    for records, readout, file in (
        (stated, "stated", "sft-isotonic.iterative.jsonl"), (mean, "mean", "sft-isotonic.iterative.mean.jsonl"),
    ):  # fmt: skip
        write_records(tmp_path / "test" / file, records)
        named_file = {} if old else {"file": file}
        for row in rows("SFT + isotonic", records, **extra, **named_file):
            found.append({**row, "readout": readout})
    (tmp_path / "test" / "results.json").write_text(json.dumps(found))
    read = read_run(tmp_path)
    assert read.tagged("SFT + isotonic", "iterative", "mean")[0].sentences[0].score == 8
    sheet = named(sheets(read, draws=20), "recalibrated")
    assert [line.cells[0].value for line in sheet.lines] == pytest.approx([0.05 / 4, 0.08 / 4])
    assert all(line.cells[0].span for line in sheet.lines)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (None, None, "there is no folder"),
        ("x.txt", "", "has no test/results.json"),
        ("test/results.json", "[1]", "holds no list of results"),
        ("test/results.json", '[{"method": "DPO"}]', "has no 'domain'"),
        ("test/times.json", "{}", "no list of entries with method, mode, seconds, records"),
        ("test/times.json", '[{"method": "DPO"}]', "no list of entries with method, mode, seconds, records"),
        ("test/tokens.json", "nonsense", "is not JSON"),
    ],
)
def test_broken_folders_are_named_in_one_line(tmp_path, file, content, said):
    folder = tmp_path / "run"
    if file:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(content)
        if file != "test/results.json" and "/" in file:
            (folder / "test" / "results.json").write_text("[]")
    with pytest.raises(LovecError, match=said) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_records_asked_for_and_missing_are_named(run):
    with pytest.raises(LovecError, match="no tagged records of 'GRPO', iterative"):
        read_run(run).tagged("GRPO", "iterative")
    with pytest.raises(LovecError, match="no run to read"):
        read_run()


# What was observed beside the calibration


def test_thresholds_tell_what_is_kept_and_how_true_it_is(tmp_path):
    run = write(tmp_path / "run", usual(domains=["Bios"])("DPO", [10, 5, 6, None] * 3))
    sheet = named(sheets(read_run(run), draws=0), "risk-coverage")
    (line,) = sheet.lines
    # kept of 10 (f 1), 5 (f 0) and 6 (f 0.7): risk 0, then 0.3 / 2, then 1.3 / 3, each over a third of the sentences
    said = dict(
        zip([f"{c.group} {c.heading}".strip() for c in sheet.columns], [c.text for c in line.cells], strict=True)
    )
    assert (said["score >= 5 kept"], said["score >= 5 mean f"]) == ("100.0", "56.7")
    assert (said["score >= 6 kept"], said["score >= 6 mean f"]) == ("66.7", "85.0")
    assert (said["score >= 10 kept"], said["score >= 10 mean f"]) == ("33.3", "100.0")
    nothing = write(tmp_path / "none", usual(domains=["Bios"])("DPO", [5, 4] * 6))
    sheet = named(sheets(read_run(nothing), draws=0), "risk-coverage")
    assert [cell.text for cell in sheet.lines[0].cells[-2:]] == ["0.0", "-"]


def test_thresholds_are_averaged_over_seeds(tmp_path):
    for seed, scores in enumerate(([10, 1, 7, 3] * 3, [10, 1, 2, 3] * 3)):
        write(tmp_path / f"{seed}", usual(domains=["Bios"])("DPO", scores), seed=seed)
    sheet = named(sheets(read_run(tmp_path), draws=0), "risk-coverage")
    assert sheet.lines[0].cells[1].text == "37.5"


def test_diagnostics_leave_out_what_was_not_measured(run):
    sheet = named(sheets(read_run(run), draws=0), "diagnostics")
    headings = [column.heading for column in sheet.columns]
    assert {"words", "mean f", "bad tags", "scores said", "entropy"} <= set(headings) and "diversity" not in headings
    assert {line.name for line in sheet.lines} == {"Vanilla", "LUQ", "p(true)", "SFT", "DPO"}
    said = texts(sheet)["Free-form tagging, Bios", "DPO"]
    assert said[headings.index("words")] == "6.0" and said[headings.index("scores said")] == "4.0"


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
    sheet = named(sheets(read_run(run), draws=0), "running-time")
    heads = [column.heading for column in sheet.columns]
    assert heads == [
        "writing", "sampling", "judging", "scoring", "needed", "with the answer", "times free-form", "context tokens",
        "answers",
    ]  # fmt: skip
    assert texts(sheet) == {
        ("Plain answers", "Answers"): ["0.700", None, None, None, "0.700", "0.700", "0.7", "30", "10"],
        ("Baselines", "LUQ"): [None, "6.00", "2.00", None, "8.00", "8.70", "8.7", "30", "10"],
        ("Iterative tagging", "DPO"): [None, None, None, "0.300", "0.300", "1.00", "1.0", "30", "10"],
        ("Free-form tagging", "DPO"): ["0.800", None, None, "10.00", "0.800", "0.800", "0.8", "30", "10"],
        ("Free-form tagging", "SFT"): ["1.20", None, None, None, "1.20", "1.20", "1.2", "30", "20"],
    }
    assert any("the mean of DPO, SFT" in note for note in sheet.notes)


def test_running_time_without_anything_to_hold_it_against(run):
    (run / "test" / "times.json").write_text(json.dumps(TIMES[:2]))
    sheet = named(sheets(read_run(run), draws=0), "running-time")
    heads = [column.heading for column in sheet.columns]
    assert heads == ["sampling", "judging", "scoring", "needed", "context tokens", "answers"]


def test_running_times_of_several_runs_are_medians(tmp_path):
    for seed, seconds in enumerate((10.0, 30.0, 900.0)):
        own = times("DPO", "iterative", "method", scoring=seconds)
        write(tmp_path / f"{seed}", usual()("DPO"), seed=seed, times=[own])
    (timing,) = timings(read_run(tmp_path))
    assert (timing.total, timing.runs, timing.records, timing.prefill_tokens) == (3.0, 3, 10, 30)


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
    sheet = named(sheets(read_run(run), draws=0), "checkpoints")
    assert texts(sheet) == {
        ("comparison, first mode", "step 0"): ["20.0", "30.0", "-", "-"],
        ("comparison, first mode", "step 10"): ["15.0", "20.0", "50.0", "3.250"],
        ("comparison, first mode", "step 20"): ["10.0", "10.0", "60.0", "4.500"],
        ("comparison, first mode", "step 30"): ["9.0", "10.0", "62.5", "5.500"],
    }
    (folder / "metrics.csv").write_text(LOG.replace("train/reward", "train/kl"))
    assert len(named(sheets(read_run(run), draws=0), "checkpoints").columns) == 3


def test_a_broken_log_spoils_no_other_table(run, caplog):
    folder = run / "logs" / "version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,train/loss\nx,y\n")
    assert "checkpoints" not in [sheet.name for sheet in sheets(read_run(run), draws=0)]
    assert "no table of checkpoints" in caplog.text


def swept(method, flags, seed, brier, mode="iterative"):
    return {
        "method": method, "flags": flags, "seed": seed, "domain": "in-domain", "mode": mode, "level": "sentence",
        "readout": "stated", "brier": brier, "ece_m": 0.1, "spearman": 0.5, "malformed": 0.0, "seconds": 12.0 + seed,
    }  # fmt: skip


def test_a_sweep_has_a_line_for_every_variation(tmp_path):
    seeds, modes = ((0, 0.1), (1, 0.2)), ("iterative", "free-form")
    found = [
        *(swept("base", "", seed, brier, mode) for mode in modes for seed, brier in seeds),
        *(swept("reward=LinearReward", "--model.reward=LinearReward", seed, 0.3) for seed in (0, 1)),
        swept("beta=2", "--model.beta=2", 0, None),
    ]  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps(found))
    (sheet,) = sheets(read_run(tmp_path))
    assert [column.group for column in sheet.columns] == ["Iterative tagging"] * 4 + ["Free-form tagging"] * 4 + [""]
    assert [cell.text for cell in sheet.lines[0].cells] == ["15.0", "10.0", "50.0", "0.0"] * 2 + ["12"]
    assert (sheet.lines[0].cells[0].low, sheet.lines[0].cells[0].high) == (0.1, 0.2)
    assert sheet.lines[0].cells[0].best and not sheet.lines[1].cells[0].best
    assert sheet.lines[2].cells[0].text == "-"
    (ours,) = [sheet for sheet in sheets(read_run(tmp_path), paper="llama")]
    assert "GRPO-linear" in [line.name for line in ours.lines]  # the paper's ablation of the reward, in the same table


def test_rows_of_one_record_may_miss_an_answer(tmp_path):
    records = [replace(record, sentences=()) if n else record for n, record in enumerate(tagged([10, 1, 7, 3], "Bios"))]
    run = write(tmp_path / "run", ("DPO", "method", "free-form", records, ("stated",)))
    assert sheets(read_run(run), draws=10)[0].lines[0].cells[0].text == "0.5"
