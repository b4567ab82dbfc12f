"""What a report says first, the results of every place, and the plots that lay methods over each other."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from lovec.datasets.jsonl import write_records
from lovec.metrics.results import read_results, write_results, written_by
from lovec.reports.breakdown import places_of, slug
from lovec.reports.cells import CellMaker
from lovec.reports.histogram import histogram
from lovec.reports.lead import Gain, lead_of, provenance
from lovec.reports.overlay import histogram_overlay, reliability_overlay, risk_overlay
from lovec.reports.page import method_answers, page
from lovec.reports.paper_tables import report_tables
from lovec.reports.reliability import reliability
from lovec.reports.risk_coverage import risk_curve
from lovec.reports.runs import read_run
from lovec.reports.shown import Place
from lovec.types import LovecError, Record, ResultRow, Sentence

QUESTIONS = 24


def tagged(scores, domain="people", mean=None):
    """Records of two sentences; the first is true and the second false, and ``scores`` has a score for each."""
    records = []
    for number in range(QUESTIONS):
        sentences = []
        for truth, score in zip((1.0, 0.0), scores, strict=True):
            score = (score + number % 2) if 0 < score < 9 else score
            spread = None if mean is None else tuple(float(level == (score + number) % 11) for level in range(11))
            sentences.append(Sentence("It is so.", truth, score / 10, score, spread))
        records.append(Record(f"{domain}-{number}", "Q?", sentences=tuple(sentences), meta={"domain": domain}))
    return records


def brier(records, readout="stated"):
    """The Brier score, by hand."""
    pairs = [(s.confidence, s.factuality) for record in records for s in record.sentences]
    if readout == "mean":
        pairs = [(s.distribution.index(1.0) / 10, s.factuality) for record in records for s in record.sentences]
    return sum((c - f) ** 2 for c, f in pairs) / len(pairs)


METHODS = (  # name, kind, scores of a true and of a false sentence, whether there is a distribution
    ("DPO", "method", (9, 2), True),
    ("SFT", "method", (9, 2), False),  # exactly as good
    ("GRPO", "method", (8, 6), False),
    ("Vanilla", "baseline", (10, 10), False),
    ("Own", "baseline", (7, 7), False),
    ("Best constant", "constant", (5, 5), False),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with six methods and two domains; in the second one, the best method of the first is worse than all."""
    test = tmp_path_factory.mktemp("runs") / "demo" / "test"
    test.mkdir(parents=True)
    rows = []
    for name, kind, scores, has_mean in METHODS:
        own = kind != "constant"
        records = [*tagged(scores, "people", has_mean or None), *tagged(scores[::-1] if own else scores, "A & <b>")]
        write_records(test / f"{slug(name)}.jsonl", records)
        for domain in ("people", "A & <b>"):
            here = [record for record in records if record.domain == domain]
            for readout in ("stated", "mean") if has_mean and domain == "people" else ("stated",):
                values = {"brier": brier(here, readout), "ece_m": 0.1, "spearman": None}
                place = domain, "iterative", "sentence", readout, 3, 2 * QUESTIONS, values
                rows.append(ResultRow(name, kind, *place, file=f"{slug(name)}.jsonl"))
    write_results(test / "results.json", rows, about={"version": "1.2", "commit": "abc1234"})
    config = test.parent / "logs" / "version_0" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("model:\n  init_args:\n    policy: {model: some/model}\ndata: {class_path: a.b.Bios}\n")
    return test.parent


@pytest.fixture(scope="module")
def cells(run):
    return CellMaker(read_run(run), draws=60)


def test_methods_have_one_order_everywhere(cells):
    order = ["Best constant", "Vanilla", "Own", "DPO", "SFT", "GRPO"]  # whatever the order of the file
    assert list(dict.fromkeys(row.method for row in cells.run.rows)) == order


def test_the_lead_is_the_lowest_brier_score_with_what_it_gains(cells):
    lead = lead_of(cells)
    people, other = lead.places
    assert (lead.method, lead.mode, lead.readout, lead.compared) == ("DPO", "iterative", "stated", 3)
    assert lead.level_with == ("SFT",)  # GRPO is clearly worse; DPO's own mean readout is no other method
    assert (people.domain, people.n) == ("people", 2 * QUESTIONS)
    own = brier(tagged((9, 2)))
    gains = {gain.over: gain for gain in people.gains}
    assert list(gains) == ["Best constant", "Vanilla"]
    assert gains["Vanilla"].value == pytest.approx(0.5 - own) and gains["Vanilla"].verdict == "better"
    assert gains["Vanilla"].low <= gains["Vanilla"].value <= gains["Vanilla"].high
    assert {gain.verdict for gain in other.gains} == {"worse"}
    # 9 and more keeps exactly the true half
    assert (people.kept.threshold, people.kept.share, people.kept.factuality) == (0.9, 0.5, 1.0)
    assert people.kept.of_all == 0.5 and other.kept.factuality == 0.0


def test_no_table_marks_a_method_as_better_than_one_that_the_lead_calls_level(tmp_path):
    def confidences(wrong):
        return [0.0 if number < wrong else 1.0 for number in range(QUESTIONS)]

    test, rows = tmp_path / "run" / "test", []
    stated = {"DPO": [0.8] * QUESTIONS, "SFT": [0.7] * QUESTIONS, "GRPO": confidences(3)}
    for name, values in stated.items():
        single = [Record(f"{n}", "Q?", sentences=(Sentence("S.", 1.0, value),)) for n, value in enumerate(values)]
        measured = {"brier": brier(single), "ece_m": None, "spearman": None}
        place = "people", "iterative", "sentence", "stated", 3, QUESTIONS, measured
        write_records(test / f"{name}.jsonl", [replace(record, meta={"domain": "people"}) for record in single])
        rows.append(ResultRow(name, "method", *place, file=f"{name}.jsonl"))

    def marked(rows):
        write_results(test / "results.json", rows)
        maker = CellMaker(read_run(tmp_path / "run"), draws=100)
        (place,), lead = places_of(maker, lead_of(maker), tmp_path / "plots"), lead_of(maker)
        tables = place.table, report_tables(maker)[0]
        assert lead.method == "DPO" and all("of its difference to each" in table.notes[1] for table in tables)
        return lead.level_with, [line.cells[0].best for table in tables for line in table.lines]

    assert marked(rows[:2]) == ((), [True, False] * 2)
    assert marked(rows) == (("GRPO",), [False] * 6)  # on average the worst of all, but of some draws the best


def test_a_claim_to_be_the_best_says_of_how_many_and_of_which_domain(tmp_path):
    def claim(*tests):
        """The heading of a report of tests: method, kind, scores and domain, in the order of their folders."""
        home = tmp_path / str(len(tests))
        for number, (name, kind, scores, domain) in enumerate(tests):
            values = {"brier": brier(tagged(scores))}
            row = ResultRow(name, kind, domain, "iterative", "sentence", "stated", 3, 2 * QUESTIONS, values)
            write_results(home / str(number) / "test" / "results.json", [row])
        lead = lead_of(CellMaker(read_run(home), draws=0))
        (words,) = re.findall('<h2 id="lead-heading" class="claim">(.*?)</h2>', page("T", ["a"], [], [], [], lead=lead))
        return words, [place.domain for place in lead.places]

    alone = [("SFT", "method", (10, 10), "people"), ("Vanilla", "baseline", (7, 7), "people")]
    words = "<b>SFT</b>: Brier score 50.0 % in iterative tagging"
    assert claim(*alone) == (words, ["people"])  # Vanilla has a lower one
    words = "<b>DPO</b> has the lowest Brier score of 2 trained methods in iterative tagging"
    more = [("DPO", "method", (10, 10), "cities"), ("DPO", "method", (9, 2), "people")]
    assert claim(*alone, *more) == (words, ["people", "cities"])


def test_a_gain_says_what_the_interval_allows():
    better, worse = Gain("x", 0.043, 0.032, 0.054), Gain("x", -0.02, -0.04, -0.01)
    assert (better.text, better.verdict) == ("4.3 (3.2 to 5.4)", "better")
    assert (worse.text, worse.verdict) == ("2.0 (1.0 to 4.0)", "worse")
    assert Gain("x", 0.01, -0.01, 0.03).verdict == "no clear difference"
    assert Gain("x", 0.01, -0.01, 0.03).text == "1.0 (-1.0 to 3.0)"
    assert (Gain("x", -0.02).text, Gain("x", -0.02).verdict) == ("2.0", "worse")


def test_methods_tested_on_other_questions_are_named_as_not_compared(tmp_path):
    tests = (("DPO", "method", (9, 2), slice(16)), ("SFT", "method", (7, 4), slice(16, None)))
    tests += (("Vanilla", "baseline", (10, 10), slice(16, None)),)
    for name, kind, scores, part in tests:
        records = tagged(scores)[part]
        place = "people", "iterative", "sentence", "stated", 3, 2 * len(records), {"brier": brier(records)}
        folder = tmp_path / name / "test"
        write_results(folder / "results.json", [ResultRow(name, kind, *place, file="own.jsonl")])
        write_records(folder / "own.jsonl", records)
    run = read_run(tmp_path)
    lead = lead_of(CellMaker(run, draws=60))
    assert (lead.method, lead.level_with, lead.not_compared) == ("DPO", (), ("SFT",))
    (gain,) = lead.places[0].gains
    assert gain.verdict == "not compared" and gain.text == f"{100 * gain.value:.1f}"
    html = page("T", ["a"], [], [], [], lead=lead)
    reasons = "other questions, fewer than two that were measured, or no tagged answers"
    assert f"Not compared with SFT: {reasons}." in html
    assert f"</b> lower than Vanilla, not compared: {reasons}</li>" in html
    assert "No clear difference" not in html and "better" not in html.partition("<h1>")[2].partition("<script>")[0]
    unasked = lead_of(CellMaker(run, draws=0))
    assert unasked.not_compared == () and unasked.places[0].gains[0].verdict == "better"


@pytest.mark.parametrize("part", [slice(1), slice(2)])
def test_methods_are_not_compared_by_one_question(tmp_path, part):
    tests = (("DPO", "method", (9, 2)), ("SFT", "method", (7, 4)), ("Vanilla", "baseline", (10, 10)))
    results = []
    for name, kind, scores in tests:
        first, *others = tagged(scores)[part]
        untagged = [replace(record, sentences=(Sentence("It is so.", 1.0),)) for record in others]
        write_records(tmp_path / "test" / f"{name}.jsonl", [first, *untagged])
        values = {"brier": brier([first])}
        place = "people", "iterative", "sentence", "stated", 3, 2, values
        results.append(ResultRow(name, kind, *place, file=f"{name}.jsonl"))
    write_results(tmp_path / "test" / "results.json", results)
    lead = lead_of(CellMaker(read_run(tmp_path), draws=60))
    (gain,) = lead.places[0].gains
    assert (lead.level_with, lead.not_compared, gain.verdict) == ((), ("SFT",), "not compared")
    html = page("T", ["a"], [], [], [], lead=lead)
    assert "fewer than two that were measured" in html and "nan" not in html.partition("</header>")[0].split("<h1>")[1]


def test_what_a_threshold_keeps_is_a_mean_over_seeds_like_the_score(tmp_path):
    def measured(*seeds):
        home = tmp_path / str(seeds[0][0])
        for seed, scores in enumerate(seeds):
            records, file = tagged(scores), "own.jsonl"
            place = "people", "iterative", "sentence", "stated", seed, 2 * QUESTIONS, {"brier": brier(records)}
            folder = home / str(seed) / "test"
            write_records(folder / file, records)
            write_results(folder / "results.json", [ResultRow("DPO", "method", *place, file=file)])
        return CellMaker(read_run(home), draws=0)

    cells = measured((9, 0), (10, 9))  # from 9, a half is kept, or all; all of it is true, or a half
    kept = lead_of(cells).places[0].kept
    assert (kept.threshold, kept.share, kept.factuality, kept.of_all) == (0.9, 0.75, 0.75, 0.5)
    (line,) = next(table for table in report_tables(cells) if table.name == "risk-coverage").lines
    assert [cell.value for cell in line.cells][9:11] == [0.75, 0.75]  # from 9
    assert lead_of(measured((10, 10), (0, 0))).places[0].kept is None  # one of the seeds keeps nothing, from 1 on


def test_no_text_of_a_page_changes_its_direction(cells):
    turned = "name \u202e eman\x1b"
    place = replace(report_tables(cells.run, draws=0)[0], title=turned, notes=(turned,), interval_note=turned)
    place = replace(place, lines=tuple(replace(line, name=turned, section=turned) for line in place.lines))
    answers = method_answers(turned + "x" * 80, turned, tagged((9, 2), turned)[:1], 1)
    places = [Place(turned, turned, "stated", replace(place, name="place"), ())]
    sources = [(turned, turned)]
    html = page(turned, [turned], [place], [], [answers], [turned], turned, provenance=sources, places=places)
    assert "\u202e" not in html and "\x1b" not in html and "name \ufffd eman\ufffd" in html
    assert "\\u202e" not in html  # in the keys that the script compares
    (name,) = re.findall('data-name="(.*?)"', html)
    assert len(name) == 60 and name.endswith("x…")  # what the script lists


def test_without_draws_or_records_nothing_is_said_of_chance(run, tmp_path):
    plain = lead_of(CellMaker(read_run(run), draws=0))
    assert plain.level_with == () and all(gain.low is None for gain in plain.places[0].gains)
    rows = [replace(row, file=None) for row in read_results(run / "test" / "results.json").rows]
    write_results(tmp_path / "test" / "results.json", rows)
    bare = CellMaker(read_run(tmp_path), draws=60)
    assert lead_of(bare).places[0].kept is None
    assert all(place.pictures == () for place in places_of(bare, lead_of(bare), tmp_path / "plots"))
    baselines = [row for row in rows if row.kind == "baseline"]
    write_results(tmp_path / "test" / "results.json", baselines)
    assert lead_of(CellMaker(read_run(tmp_path), draws=0)).method == "Own"  # nothing was trained
    write_results(tmp_path / "test" / "results.json", [row for row in rows if row.kind == "constant"])
    only = CellMaker(read_run(tmp_path), draws=0)
    assert lead_of(only) is None and list(places_of(only, None, tmp_path / "plots")) == []


def test_provenance_is_what_the_run_has_saved(cells, tmp_path):
    found = dict(provenance(cells.run))
    assert found["commit"] == "abc1234" and found["lovec"] == "1.2" and found["seed"] == "3"
    assert found["model"] == "some/model" and found["data"] == "Bios"
    assert found["n"] == "people: 48 sentences; A & <b>: 48 sentences"
    rows = [replace(row, seed=None) for row in cells.run.rows if row.domain == "people"]
    write_results(tmp_path / "test" / "results.json", rows)
    assert dict(provenance(read_run(tmp_path))) == {"n": "48 sentences"}


def test_a_checkout_knows_its_commit():
    about = written_by()
    assert about["version"] and set(about) <= {"version", "commit"}


def test_places_have_a_table_and_methods_laid_over_each_other(cells, tmp_path):
    asked = []
    places = {place.keys: place for place in places_of(cells, lead_of(cells), tmp_path, asked.append)}
    assert [keys[1:] for keys in places] == [("people", "stated"), ("people", "mean"), ("A & <b>", "stated")]
    stated, mean, _ = places.values()
    assert [line.name for line in stated.table.lines] == ["Best constant", "Vanilla", "Own", "DPO", "SFT", "GRPO"]
    assert [line.name for line in mean.table.lines] == [
        "Best constant", "Vanilla (stated score)", "Own (stated score)", "DPO",
    ]  # fmt: skip
    assert not any(line.cells[0].best for line in stated.table.lines)  # DPO and SFT are equal
    assert {place.table.name for place in places.values()} == {
        "place-iterative-people-stated", "place-iterative-people-mean", "place-iterative-a-b-stated",
    }  # fmt: skip
    names = [picture.name for place in places.values() for picture in place.pictures]
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"{name}.{suffix}" for name in names for suffix in ("svg", "pdf")} and len(asked) >= len(places)
    kinds = [[picture.name.partition(".")[0] for picture in place.pictures] for place in (stated, mean)]
    assert kinds == [["reliability", "risk-coverage", "histogram"], ["reliability", "risk-coverage"]]
    left_out = "Not drawn: Best constant, Own, GRPO (at most 3 are laid over each other)."
    for (
        picture
    ) in stated.pictures:  # all of them draw the stated scores of the same methods, and say whom they leave out
        assert all(name in picture.svg for name in ("Vanilla: ", "DPO: ", "SFT: ")) and "GRPO" not in picture.svg
        assert picture.title.endswith(": stated score") and "stated score" in picture.svg
        assert picture.note == f"3 of 6 methods are drawn. {left_out}"
    for picture in mean.pictures:
        assert picture.title.endswith(": mean of the distribution") and "mean of the distribution" in picture.svg
        assert "Vanilla (stated score): " in picture.svg and "2 of 4 methods are drawn" in picture.note


def test_a_place_whose_records_have_no_labels_says_what_is_not_drawn(run, tmp_path):
    rows = read_results(run / "test" / "results.json").rows
    bare = [record for record in tagged((9, 2), "people")]
    bare = [replace(r, sentences=tuple(replace(s, factuality=None) for s in r.sentences)) for r in bare]
    for name in ("DPO", "Vanilla"):
        write_records(tmp_path / "test" / f"{slug(name)}.jsonl", bare if name == "DPO" else tagged((10, 10)))
    kept = [row for row in rows if row.method in ("DPO", "Vanilla") and row.domain == "people"]
    write_results(tmp_path / "test" / "results.json", [row for row in kept if row.readout == "stated"])
    cells = CellMaker(read_run(tmp_path), draws=0)
    (place,) = places_of(cells, lead_of(cells), tmp_path / "plots")
    notes = {picture.note for picture in place.pictures}
    assert notes == {"1 of 2 methods are drawn. Not drawn: DPO (no tagged sentences with labels)."}


def test_the_lead_has_the_readout_of_the_main_table_also_where_another_is_better(run, tmp_path):
    rows = [row for row in read_results(run / "test" / "results.json").rows if row.domain == "people"]
    rows = [replace(row, file=None) for row in rows]
    better = [replace(row, metrics={**row.metrics, "brier": 0.0123}) if row.readout == "mean" else row for row in rows]
    write_results(tmp_path / "test" / "results.json", better)
    cells = CellMaker(read_run(tmp_path), draws=0)
    lead = lead_of(cells)
    main = report_tables(cells)[0]
    assert lead.readout == "stated" and main.title == "Main results, sentence level, stated score"
    (line,) = [line for line in main.lines if line.name == lead.method]
    assert lead.places[0].brier == line.cells[0].text
    assert lead.places[0].others == (("mean of the distribution", "1.2"),)
    only = [row for row in better if row.readout == "mean"]
    write_results(tmp_path / "test" / "results.json", only)
    assert lead_of(CellMaker(read_run(tmp_path), draws=0)).readout == "mean"


def test_an_overlay_keeps_its_colours_and_is_as_wide_as_a_column(tmp_path):
    records = tagged((9, 2), mean=True)
    curve, bars, diagram = risk_curve(records), histogram(records), reliability(records, "mean", corp=True, band=False)
    draw = {"risk": (risk_overlay, curve), "bars": (histogram_overlay, bars), "dots": (reliability_overlay, diagram)}
    for name, (overlay, data) in draw.items():
        both = overlay({"A": data, "B": data}, tmp_path / f"{name}.svg").read_text()
        second = overlay({"A": None, "B": data}, tmp_path / f"{name}-b.svg").read_text()
        assert "#d55e00" in both.lower() and "#0072b2" in both.lower()
        assert "#d55e00" not in second.lower() and "#0072b2" in second.lower()
        assert 'width="237.6pt"' in both  # 3.3 inches
        first = overlay({"A": data}, tmp_path / f"{name}.pdf").read_bytes()
        assert first == overlay({"A": data}, tmp_path / f"{name}.pdf").read_bytes() and first[:4] == b"%PDF"
        for given in ({}, {"A": None}, dict.fromkeys("ABCD", data)):
            with pytest.raises(LovecError, match="expected 1 to 3"):
                overlay(given, tmp_path / "x.svg")
