"""The report: which files are written, what the page shows, and that no answer can break it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser

from lovec.cli import main
from lovec.datasets.jsonl import write_records
from lovec.metrics.results import write_results
from lovec.reports.page import LONGEST_ANSWER, LONGEST_QUESTION, method_answers, page
from lovec.reports.plots import write_plots
from lovec.reports.runs import read_run
from lovec.reports.table import Cell, Column, Line, Table
from lovec.types import Kind, Record, ResultRow, Sentence

HOSTILE = (
    "</script><script>hacked = 1</script><img src=x onerror='hacked = 1'>"
    '"\' onmouseover="hacked=1" \u2028 \u202e <!-- ]]> &amp; {{ 7 * 7 }} {% raw %} javascript:hacked=1'
)
LONG = "w" * 1_000_000


def sentences(score: int | None, *truths: float | None, text: str = "Ada wrote this.") -> tuple[Sentence, ...]:
    return tuple(
        Sentence(text, factuality=f, confidence=None if score is None else score / 10, score=score) for f in truths
    )


def records(*scores: int | None, text: str = "Ada wrote this.") -> list[Record]:
    """An answer per score: two sentences of it, one true and one half true, and one of score 10 without a label."""
    records = []
    for number, score in enumerate(scores):
        both = (*sentences(score, 1.0, 0.5, text=text), *sentences(10, None))
        meta = {"domain": "in-domain"}
        answer = " ".join(s.text for s in both)
        records.append(Record(f"r{number}{text[100:]}", f"Who is {number}?", answer=answer, sentences=both, meta=meta))
    return records


METRICS = {
    "brier": 0.1, "ece_m": 0.2, "spearman": 0.5, "malformed": 0.0, "mean_confidence": 0.7, "mean_factuality": 0.75,
    "words": 9.0, "entropy": 1.0, "distinct": 3.0,
}  # fmt: skip


def row(method: str, mode: str, kind: Kind, file: str) -> ResultRow:
    return ResultRow(method, kind, "in-domain", mode, "sentence", "stated", 0, 12, METRICS, file=file)


def write_run(folder: Path, name: str = "DPO", text: str = "Ada wrote this.") -> Path:
    """A run as ``lovec test`` leaves it: a trained method in both modes, two baselines, times and tokens."""
    test = folder / "test"
    test.mkdir(parents=True)
    rows: list[ResultRow] = []
    measured: tuple[tuple[str, str, Kind, tuple[int | None, ...]], ...] = (
        ("Vanilla", "iterative", "baseline", (10, 10, 10, 10, 10, 10)),
        ("LUQ", "iterative", "baseline", (4, 5, 6, 7, 8, 9)),
        (name, "iterative", "method", (0, 3, 5, 7, 9, None)),
        (name, "free-form", "method", (1, 3, 5, 7, 9, 10)),
    )
    for method, mode, kind, scores in measured:
        file = f"{len(rows)}.jsonl"
        rows.append(row(method, mode, kind, file))
        write_records(test / file, records(*scores, text=text))
    write_results(test / "results.json", rows)
    times = [
        (name, "free-form", "method", {"writing": 2.0}),
        ("LUQ", "iterative", "baseline", {"sampling": 9.0, "judging": 1.0}),
    ]
    (test / "times.json").write_text(json.dumps([
        {"method": m, "mode": mode, "kind": kind, "seconds": s, "records": 6, "sentences": 18, "prefill_tokens": 60}
        for m, mode, kind, s in times]))  # fmt: skip
    likely = [{"text": "7", "p": 0.6}, {"text": text[:9], "p": 0.2}]
    cases = ("correct", "incorrect")
    tokens = [{"method": name, "case": c, "sentence": text[:99], "ordinality": 0.9, "tokens": likely} for c in cases]
    (test / "tokens.json").write_text(json.dumps(tokens))
    return folder


class Tags(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a plain run."""
    run = write_run(tmp_path_factory.mktemp("runs") / "demo")
    assert main(["report", str(run), "--answers", "4"]) == 0
    return run / "report" / "index.html"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which every name and text is hostile, and every answer a megabyte long."""
    run = write_run(tmp_path_factory.mktemp("runs") / "x", name=HOSTILE, text=HOSTILE + LONG)
    assert main(["report", str(run), "--title", HOSTILE, "--no-intervals"]) == 0
    return run / "report" / "index.html"


def test_a_report_has_tables_plots_and_the_page(made):
    folder = made.parent
    assert {p.suffix for p in (folder / "tables").glob("main.*")} == {".csv", ".json", ".md", ".tex"}
    drawn = {p.name.split(".")[0] for p in (folder / "plots").iterdir()}
    assert drawn == {"reliability", "histogram", "risk-coverage", "times", "tokens"}
    svgs, pdfs = ({p.stem for p in (folder / "plots").glob(f"*.{end}")} for end in ("svg", "pdf"))
    assert svgs == pdfs and all(p.read_bytes().startswith(b"%PDF") for p in (folder / "plots").glob("*.pdf"))
    assert not [p for p in folder.rglob("*.part")]
    tags = Tags(made.read_text())
    names = [name for name, _ in tags.elements]
    assert names.count("h1") == 1 and names.count("svg") == len(svgs)
    assert names.count("table") == len(list((folder / "tables").glob("*.csv")))
    assert names.count("article") == 4 * 4 and "4 of 6 answers shown" in tags.text
    sets = [a for name, a in tags.elements if name == "details" and a.get("class") == "answers"]
    order = [("LUQ", "iterative"), ("Vanilla", "iterative"), ("DPO", "iterative"), ("DPO", "free-form")]
    assert [(a["data-method"], a["data-mode"]) for a in sets] == order
    assert [(a["data-method"], a["data-mode"]) for a in sets if "data-opened" in a] == [("DPO", "iterative")]
    ids = [a["id"] for _, a in tags.elements if "id" in a]
    assert len(ids) == len(set(ids))


def test_the_page_loads_nothing_and_its_links_lead_to_files(made):
    links = set()
    for name, attributes in Tags(made.read_text()).elements:
        if name == "a" and "download" in attributes:
            links.add(attributes.pop("href"))
        for key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert attributes.get(key, "#").startswith("#"), (name, attributes)
    files = {p.relative_to(made.parent).as_posix() for p in made.parent.rglob("*") if p.is_file()}
    assert links == files - {"index.html"}
    assert "@import" not in made.read_text() and "http://" not in made.read_text().replace("http://www.w3.org/", "")


def test_the_command_prints_the_main_table_and_where_all_is(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    assert main(["report", str(run / "test"), "--paper", "--title", "Mine & yours", "--no-intervals"]) == 0
    output = capsys.readouterr().out
    assert "Main results" in output and "LUQ" in output and "LoVeC paper, Llama" in output and "GRPO" in output
    assert str(run / "report" / "index.html") in output
    html = (run / "report" / "index.html").read_text()
    assert "<h1>Mine &amp; yours</h1>" in html and "LoVeC paper" in html and 'class="interval"' not in html
    before = {p: p.read_bytes() for p in (run / "report").rglob("*") if p.is_file()}
    assert main(["report", str(run), "--paper", "llama", "--title", "Mine & yours", "--no-intervals"]) == 0
    after = {p: p.read_bytes() for p in (run / "report").rglob("*") if p.is_file()}
    changed = [p.name for p in before if before[p] != after[p]]
    assert after.keys() == before.keys() and changed == ["index.html"]  # which names its sources as they were given
    assert main(["report", str(run), str(write_run(tmp_path / "other", "SFT")), "--answers", "0"]) == 0
    both = (tmp_path / "report" / "index.html").read_text()
    assert "SFT" in both and "DPO" in both and 'id="answers"' not in both


def test_a_report_leaves_nothing_of_the_one_before_it_and_all_that_is_not_of_a_report(tmp_path):
    run = write_run(tmp_path / "run")
    log(run, "epoch,step,train/loss\n0,9,1.0\n0,19,0.5\n")
    report = run / "report"

    def written(*words):
        assert main(["report", str(run), "--answers", "0", "--no-intervals", *words]) == 0
        return {path.relative_to(report).as_posix() for path in report.rglob("*") if path.is_file()}

    before = written("--paper")
    assert {"tables/main-paper.csv", "plots/training.run.svg", "plots/training.run.pdf"} <= before
    own = {"tables/mine.csv", "tables/main.csv.bak", "tables/notes/a.txt", "plots/training.mine.svg", "notes.md"}
    for name in own:
        (report / name).parent.mkdir(exist_ok=True)
        (report / name).write_text("mine")
    (report / "plots" / "broken").symlink_to("nowhere")
    (run / "logs" / "version_0" / "metrics.csv").unlink()
    after = written()
    gone = {name for name in before if "-paper." in name or name.startswith("plots/training.")}
    assert after == (before - gone) | own and all((report / name).read_text() == "mine" for name in own)
    assert (report / "plots" / "broken").is_symlink()
    page = Tags((report / "index.html").read_text())
    links = {a["href"] for name, a in page.elements if name == "a" and "download" in a}
    assert links == after - own - {"index.html"}


def test_a_report_that_fails_leaves_the_one_before_it(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run")
    words = ["report", str(run), "--answers", "0", "--no-intervals"]
    assert main(words) == 0
    before = {path: path.read_bytes() for path in (run / "report").rglob("*") if path.is_file()}

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("lovec.reports.page.page", fails)
        assert main([*words, "--paper"]) == 1
    assert "cannot write the report to" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (run / "report").rglob("*") if path.is_file()} == before
    (run / "other").mkdir()
    (run / "other" / "tables").write_text("")
    assert main([*words, "--out", str(run / "other")]) == 1  # a file cannot be replaced by a folder
    assert "Not a directory; give another --out" in capsys.readouterr().err
    assert [path.name for path in (run / "other").iterdir()] == ["tables"]


def test_files_that_no_page_of_a_report_links_to_stay(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "report" / "tables").mkdir(parents=True)
    (run / "report" / "tables" / "main-paper.csv").write_text("mine")
    (run / "report" / "index.html").write_text('<a href="tables/main-paper.csv" download>Not written by a command</a>')
    assert main(["report", str(run), "--answers", "0", "--no-intervals"]) == 0
    assert (run / "report" / "tables" / "main-paper.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no folder"),
        (["empty"], "has no test/results.json"),
        (["run", "--answers", "-1"], "--answers is -1"),
        (["run", "--answers", "some"], "--answers"),
        (["run", "--paper", "gpt"], "the paper has no model 'gpt'"),
        (["run", "--out", "file"], "cannot write the report to file"),
        (["run", "--out", "out.pdf"], "--out out.pdf is named like a file, expected a folder, such as out"),
        (["run", "--no-interval"], "did you mean --no_intervals"),
        (["broken"], "1.jsonl"),
        ([], "RUN"),
    ],
)
def test_errors_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "run")
    (write_run(tmp_path / "broken") / "test" / "1.jsonl").write_text("{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert main(["report", *words]) in (1, 2)
    error = capsys.readouterr().err
    assert (
        not (tmp_path / "nowhere").exists()
        and not (tmp_path / "out.pdf").exists()
        and not list((tmp_path / "empty").iterdir())
    )
    assert message in error and error.count("\n") == 1 and error.startswith("lovec: error: ")


def test_records_without_labels_are_shown_but_not_drawn(tmp_path):
    run = write_run(tmp_path / "run")
    for path in (run / "test").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            for sentence in line["sentences"]:
                sentence["factuality"] = None
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["report", str(run), "--no-intervals"]) == 0
    drawn = {p.name.split(".")[0] for p in (run / "report" / "plots").iterdir()}
    assert drawn == {"times", "tokens"}  # there is nothing to lay over each other
    tags = Tags((run / "report" / "index.html").read_text())
    kept = [json.loads(a["data-kept"]) for _, a in tags.elements if "data-kept" in a]
    assert all(truth is None for set_ in kept for _, truth in set_)


def test_what_a_threshold_keeps_is_counted_by_hand():
    records = [Record("a", "Q?", sentences=(*sentences(7, 1.0, 0.5), *sentences(3, 0.0), *sentences(None, 0.4)))]
    records += [Record("b", "Q?", sentences=(Sentence("S.", 0.8, 0.65), Sentence("S.", None, 1.0)))]
    answers = method_answers("A", "iterative", records, 9)
    assert (answers.total, answers.sentences) == (2, 6)
    assert answers.kept[0] == (1.0, pytest.approx(2.7 / 5))  # everything, sentences without a score included
    assert answers.kept[1] == (pytest.approx(5 / 6, abs=1e-4), pytest.approx(2.3 / 4))
    assert answers.kept[6] == (pytest.approx(4 / 6, abs=1e-4), pytest.approx(2.3 / 3, abs=1e-4))
    assert answers.kept[7] == (0.5, pytest.approx(0.75))  # 0.65 does not pass 7
    assert answers.kept[8] == (pytest.approx(1 / 6, abs=1e-4), None)  # what is left has no label
    unscored = [Record("a", "Q?", sentences=sentences(None, 0.5))]
    assert method_answers("A", "iterative", unscored, 9).kept[5] == (0.0, None)


def test_thresholds_are_the_scores_of_the_scale():
    scored = [Sentence("S.", factuality, score / 4, score, levels=5) for score, factuality in ((4, 1.0), (3, 0.5))]
    answers = method_answers("A", "iterative", [Record("a", "Q?", sentences=tuple(scored))], 1)
    assert answers.kept == ((1.0, 0.75), (1.0, 0.75), (1.0, 0.75), (1.0, 0.75), (0.5, 1.0))
    assert answers.readout == "stated"
    html = page("P", [], [], [], [answers])
    assert 'type="range" min="0" max="4"' in html and "stated score 3 of 4" in html


def test_shown_answers_are_spread_over_the_file():
    many = [Record(f"r{n}", "Q?", sentences=sentences(5, 0.5)) for n in range(10)]
    assert [r.id for r in method_answers("A", "iterative", many, 4).records] == ["r0", "r2", "r5", "r7"]
    assert len(method_answers("A", "iterative", many, 99).records) == 10
    assert method_answers("A", "iterative", many, 0).records == ()
    assert method_answers("A", "iterative", [], 5).total == 0


def test_methods_are_shown_by_their_answers_to_the_same_questions():
    many = [Record(f"r{n}", "Q?", sentences=sentences(5, 0.5)) for n in range(10)]
    shown = method_answers("B", "iterative", many, 4, wanted=("r9", "gone", "r3"))
    assert [r.id for r in shown.records] == ["r9", "r3", "r0", "r2"]
    assert [r.id for r in method_answers("B", "iterative", many, 2, wanted=("r9", "r3", "r1")).records] == ["r9", "r3"]


def test_the_first_answer_is_mixed_and_its_confidences_are_those_of_the_readout():
    even = (0.0,) * 4 + (0.5, 0.5) + (0.0,) * 5  # a distribution with the mean 0.45
    plain = [Record(f"r{n}", "Q?", sentences=sentences(5, 0.5, 0.5)) for n in range(9)]
    spread = (Sentence("S.", 1.0, 0.9, 9, even), Sentence("S.", 0.0, 0.2, 2, even))
    unsure = Record("unsure", "Q?", sentences=(Sentence("S.", 1.0, 0.9, 9), Sentence("S.", 1.0, 0.1, 1)))
    mixed = Record("mixed", "Q?", sentences=spread)
    many = [*plain, unsure, mixed]
    assert [r.id for r in method_answers("A", "iterative", many, 3).records] == ["mixed", "r0", "r3"]
    means = method_answers("A", "iterative", [mixed], 3, "mean")
    assert [s.confidence for s in means.records[0].sentences] == [pytest.approx(0.45)] * 2
    assert [s.score for s in means.records[0].sentences] == [9, 2] and means.readout == "mean"
    assert means.kept[4] == (1.0, 0.5) and means.kept[5] == (0.0, None)


def test_a_table_shows_sections_intervals_and_the_best():
    columns = (Column("BS", "people", "lower"), Column("SC", "people", "higher"), Column("note", left=True))
    lines = (
        Line("A", (Cell("5.0", 0.05, 0.04, 0.06, "4.0 to 6.0", best=True), Cell("-"), None), "Ours"),
        Line("B", (Cell("6.0", 0.06), Cell("50", 0.5), Cell("x<y")), "The paper's", paper=True),
    )
    table = Table("main", "T & T", columns, lines, ("In %.",))
    html = page("P", ["here"], [table], [], [], ["Left out."], "Foot.")
    tags = Tags(html)
    assert "<strong>5.0</strong>" in html and '<span class="interval">4.0 to 6.0</span>' in html
    assert '<tr class="paper"><th scope="row">B</th>' in html and "<td>x&lt;y</td>" in html and "T &amp; T" in html
    assert {"Ours", "The paper's", "In %.", "Left out.", "↓", "↑"} <= set(tags.texts)
    assert [a["colspan"] for name, a in tags.elements if name == "th" and "colspan" in a] == ["2", "1", "4", "4"]
    assert 'id="plots"' not in html and 'id="answers"' not in html
    assert html == page("P", ["here"], [table], [], [], ["Left out."], "Foot.")


def test_no_text_becomes_an_element_or_an_attribute(hostile):
    html = hostile.read_text()
    tags = Tags(html)
    names = [name for name, _ in tags.elements]
    assert names.count("script") == 1 and "img" not in names
    known = (
        "class id title name content lang charset http-equiv href aria-label tabindex aria-labelledby role open hidden "
        "aria-hidden scope colspan type min max step value for style viewbox version xmlns xmlns:xlink d x y transform "
        "xlink:href clip-path width height patternunits fill data-method data-name data-mode data-sentences data-kept "
        "data-id data-confidence data-factuality data-opened data-keys data-dimension data-value data-copies "
        "aria-selected download"
    )
    assert {key for _, attributes in tags.elements for key in attributes} <= set(known.split())
    assert not any(
        "hacked" in (attributes.get(key) or "") for _, attributes in tags.elements for key in ("style", "href")
    )
    assert "{{ 7 * 7 }}" in tags.text and "49" not in [word.strip() for word in tags.texts]
    assert "\u202e" not in "".join(word for word in tags.texts if "wwww" in word)


def test_a_long_answer_is_cut_and_the_page_says_by_how_much(hostile):
    html = hostile.read_text()
    total = 2 * len(HOSTILE + LONG) + len("Ada wrote this.")
    assert f"(cut: {total - LONGEST_ANSWER} more characters)" in html
    assert len(html) < 600_000 and "w" * (LONGEST_ANSWER + 1) not in html
    question = Record("q", "Q" * 1000, sentences=sentences(5, 0.5))
    assert f"(cut: {1000 - LONGEST_QUESTION} more characters)" in page(
        "P", [], [], [], [method_answers("A", "iterative", [question], 1)]
    )


CONTRAST = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (v) => (v / 255 <= .04045 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4);
  const light = (c) => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
  };
  const contrasts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), e = walker.currentNode.parentElement;
    if (!text || !e.getClientRects().length || e.closest("option, script")) continue;
    const style = getComputedStyle(e), color = rgb(e.ownerSVGElement ? style.fill : style.color);
    const [a, b] = [light(color), light(ground(e))].sort((x, y) => y - x);
    contrasts.push([(a + .05) / (b + .05), e.tagName, e.getAttribute("class"), text.slice(0, 30)]);
  }
  return contrasts.sort((x, y) => x[0] - y[0]);
})()"""
"""Contrast of every text that is seen with what is behind it (WCAG 2), the worst first."""


def put(name: str, value: object) -> str:
    """A script that gives one of the controls a value, as a user would."""
    kind = "input" if name == "least" else "change"
    element = f"document.getElementById('{name}')"
    return f"(() => {{ {element}.value = '{value}'; {element}.dispatchEvent(new Event('{kind}')); }})()"


chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        yield window


@chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("which", ["made", "hostile"])
def test_a_browser_shows_the_page_and_nothing_hostile_runs(which, width, scheme, window, request, tmp_path):
    path = request.getfixturevalue(which)
    window.open(path, width, 844, scheme)
    assert window.value("typeof hacked") == "undefined"
    assert window.value("document.documentElement.scrollWidth") == width
    assert window.value("document.querySelectorAll('details').forEach((d) => d.open = true)") is None
    assert window.value("document.documentElement.scrollWidth") == width
    assert window.value("document.querySelectorAll('svg text').length") > 50
    assert window.value("document.querySelectorAll('.panel').forEach((e) => e.hidden = false)") is None
    assert window.value("document.documentElement.scrollWidth") == width
    assert window.problems() == []
    assert window.requests() == [path.as_uri()]
    first = window.screenshot(tmp_path / "top.png")
    window.value("document.getElementById('answers').scrollIntoView()")
    assert len(first) > 5_000 and window.screenshot(tmp_path / "answers.png") != first
    for least in (0, 9):  # greyed text must be readable, too
        window.value(put("least", least))
        window.value("document.getElementById('truth').click()")
        worst, *rest = window.value(CONTRAST)
        assert worst[0] >= 4.5, [worst, *rest[:5]]
    window.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"hacked = 1\">')")
    window.wait("Log.entryAdded")  # the policy would stop what had got through
    assert window.value("typeof hacked") == "undefined" and "Content Security Policy" in window.problems()[0]


@chromium
def test_the_threshold_greys_out_what_does_not_pass_and_says_what_is_kept(made, window):
    window.open(made)
    kept = "document.getElementById('kept').textContent"
    chosen = "document.querySelector('details.answers:not([hidden])')"
    assert window.value(f"[{chosen}.dataset.method, {chosen}.dataset.mode]") == ["DPO", "iterative"]
    assert (
        window.value(kept)
        == "Of all 18 sentences of DPO, iterative: 100.0 % kept; mean factuality of what is kept 75.0 %."
    )
    assert window.value("document.querySelectorAll('.out').length") == 0

    window.value(put("record", ""))
    window.value(put("least", 6))
    # Scores 7 and 9 keep two sentences each, and each answer one that has a 10 and no label.
    assert "55.6 % kept; mean factuality of what is kept 75.0 % (of all: 75.0 %)" in window.value(kept)
    lines = window.value(f"[...{chosen}.querySelectorAll('.kept')].map((e) => e.textContent)")
    assert lines == ["1 of 3 sentences kept", "1 of 3 sentences kept", "3 of 3 sentences kept, mean factuality 75.0 %",
                     "3 of 3 sentences kept, mean factuality 75.0 %"]  # fmt: skip
    out = f"[...{chosen}.querySelectorAll('.lv-s')].filter((e) => e.classList.contains('out'))"
    assert window.value(f"{out}.map((e) => e.dataset.confidence)") == ["0", "0", "0.3", "0.3"]
    window.value(put("least", 7))  # a 7 passes 7
    assert window.value(f"{out}.map((e) => e.dataset.confidence)") == ["0", "0", "0.3", "0.3"]
    window.value(put("least", 8))
    assert window.value(f"{out}.length") == 6
    assert window.value(f"getComputedStyle({out}[0]).textDecorationLine") == "none"
    window.value("document.getElementById('hide').click()")
    assert window.value(f"{out}.every((e) => e.getClientRects().length === 0)")
    window.value("document.getElementById('truth').click()")
    assert window.value(f"getComputedStyle({chosen}.querySelector('.lv-n'), '::after').content").startswith('" true ')
    window.value(put("mode", "free-form"))
    assert "DPO, free-form: " in window.value(kept) and window.value(f"{chosen}.dataset.mode") == "free-form"
    window.value(put("record", "r3"))
    assert (
        window.value("[...document.querySelectorAll('article')].filter((e) => e.getClientRects().length).length") == 1
    )
    window.value(put("method", "LUQ"))  # which was not measured in free-form tagging; the answer chosen stays
    assert "LUQ, iterative: " in window.value(kept)
    assert window.value(f"[...{chosen}.querySelectorAll('article:not([hidden])')].map((e) => e.dataset.id)") == ["r3"]


@chromium
def test_another_method_answers_the_question_that_is_shown(tmp_path, window):
    run = write_run(tmp_path / "run")
    order = [*range(5, -1, -1)]  # the answers that differ most are others in each file
    for name in ("0", "1"):
        path = run / "test" / f"{name}.jsonl"
        lines = path.read_text().splitlines()
        path.write_text("".join(f"{lines[at]}\n" for at in (order if name == "0" else order[:3])))
    assert main(["report", str(run), "--answers", "3", "--no_intervals"]) == 0
    window.open(run / "report" / "index.html")
    shown = (
        "[...document.querySelectorAll('details.answers:not([hidden]) article:not([hidden])')].map((e) => e.dataset.id)"
    )
    missing = "(() => { const e = document.getElementById('missing'); return e.hidden ? '' : e.textContent; })()"
    (first,) = window.value(shown)
    for method in ("Vanilla", "DPO"):
        window.value(put("method", method))
        assert window.value(shown) == [first] and window.value(missing) == ""
    window.value("document.getElementById('next').click()")
    (second,) = window.value(shown)
    assert second != first
    window.value(put("mode", "free-form"))
    assert window.value(shown) == [second]
    window.value(put("mode", "iterative"))
    asked = [record for record in ("r0", "r1", "r2") if record in window.value(ids("DPO"))]
    window.value(put("record", asked[0]))
    window.value(put("method", "LUQ"))  # which was measured on r5, r4 and r3 only
    assert window.value(shown) != asked[:1]
    question = f"Who is {asked[0][1]}?"
    assert (
        window.value(missing)
        == f"Of LUQ, iterative, no answer to \u201c{question}\u201d is shown; this is another one."
    )
    window.value(put("method", "DPO"))
    assert window.value(shown) == asked[:1] and window.value(missing) == ""


def ids(method: str) -> str:
    """A script that returns the ids of all answers of a method."""
    return f"[...document.querySelectorAll('details[data-method={method}] article')].map((e) => e.dataset.id)"


@chromium
def test_the_page_is_used_by_keyboard_alone(made, window):
    window.open(made)
    window.value("document.getElementById('least').focus()")
    for _ in range(3):
        for kind in ("keyDown", "keyUp"):
            window.call(
                "Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39
            )
    assert window.value("document.getElementById('value').textContent") == "0.30"
    assert window.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    boxes = "[...document.querySelectorAll('.scroll')]"
    assert window.value(f"{boxes}.every((e) => e.tabIndex === 0 && e.getAttribute('aria-label'))")


@chromium
def test_tabs_are_moved_by_arrow_keys_and_named_for_screen_readers(made, window):
    window.open(made)
    chosen = "[...document.querySelectorAll('#results [role=tab][aria-selected=true]')].map((e) => e.textContent)"
    shown = "[...document.querySelectorAll('#results > .panel')].filter((e) => !e.hidden).map((e) => e.dataset.keys)"
    assert window.value(chosen)[0] == "Iterative tagging"
    assert window.value(shown) == ['["iterative", "in-domain", "stated"]']
    visible = "[...document.querySelectorAll('.tabs')].filter((e) => e.getClientRects().length).length"
    assert window.value(visible) == 3  # there is one domain and one readout: mode, tables and plots are chosen
    window.value("document.querySelector('#results [role=tab][aria-selected=true]').focus()")
    window.press("ArrowRight")
    assert window.value(chosen)[0] == "Free-form tagging" == window.value("document.activeElement.textContent")
    assert window.value(shown) == ['["free-form", "in-domain", "stated"]']
    controls = "document.getElementById(document.activeElement.getAttribute('aria-controls'))"
    assert window.value(f"[{controls}.hidden, {controls}.getAttribute('role')]") == [False, "tabpanel"]
    assert window.value(f"{controls}.getAttribute('aria-labelledby')") == window.value("document.activeElement.id")
    assert window.value("document.querySelectorAll('#results [role=tab][tabindex=\"0\"]').length") == 3
    window.press("ArrowRight")  # round and round
    assert window.value(chosen)[0] == "Iterative tagging"
    window.press("End")
    assert window.value(chosen)[0] == "Free-form tagging"
    window.press("Home")
    assert window.value(chosen)[0] == "Iterative tagging"


@chromium
def test_what_is_copied_is_the_file(made, window):
    window.open(made)
    window.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    for suffix, kind in (("csv", "csv"), ("tex", "tex")):
        window.value(f"document.querySelector('[data-copies={kind}-main]').click()")
        window.wait_for("window.copied !== undefined")
        assert window.value("window.copied") == (made.parent / "tables" / f"main.{suffix}").read_text()
        window.wait_for(f"document.querySelector('[data-copies={kind}-main]').textContent === 'Copied'")
        window.value("window.copied = undefined")
    assert window.value("document.getElementById('said').textContent").endswith(": done")
    window.value(
        "navigator.clipboard.writeText = async () => { throw new Error(); }; document.execCommand = () => false"
    )
    window.value("document.querySelector('[data-copies=csv-passage], [data-copies^=csv-place]').click()")
    window.wait_for("document.getElementById('said').textContent.startsWith('The browser did not')")


@chromium
def test_without_a_script_everything_can_be_read(made, window):
    window.open(made, script=False)
    assert window.value("document.getElementById('controls').getClientRects().length") == 0
    assert window.value("document.querySelectorAll('details.answers[hidden]').length") == 0
    assert window.value("document.querySelectorAll('article .lv-s').length") == 4 * 4 * 3
    assert window.value("document.querySelector('details.answers > summary').textContent.trim()") == "LUQ, iterative"
    assert window.value("document.querySelectorAll('.panel[hidden], .tabs:not([hidden])').length") == 0
    window.open(made)  # leaves the window as it was


def log(run: Path, text: str, recipe: str = "") -> None:
    folder = run / "logs" / "version_0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text(text)
    (folder / "config.yaml").write_text(recipe)


@pytest.mark.parametrize(
    ("reward", "drawn"),
    [
        ("{class_path: lovec.rewards.LogReward, init_args: {gamma: 1.0}}", True),
        ("{class_path: lovec.rewards.LogReward, init_args: {gone: 1.0}}", False),  # another version's
        ("{class_path: lovec.rewards.LogReward, init_args: {gamma: -1.0}}", False),
        ("{class_path: subprocess.Popen, init_args: {args: [touch, hacked]}}", False),  # other classes are not imported
        ("{class_path: lovec.rewards.os.system}", False),
        ("{class_path: mine.LogReward}", False),  # of that name, but not ours
        ("null", False),
    ],
)
def test_logs_give_training_curves_and_the_reward_that_was_paid(reward, drawn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run")
    recipe = f"model:\n  class_path: lovec.modules.GRPO\n  init_args:\n    reward: {reward}\n"
    log(run, "epoch,step,train/loss\n0,9,1.0\n0,19,0.5\n", recipe)
    plots, left_out = write_plots(read_run(run), tmp_path / "plots")
    names = {plot.name for plot in plots}
    assert "training.run" in names and ("reward" in names) is drawn
    given = "null" if drawn or reward == "null" else reward.partition(": ")[2].partition(",")[0].rstrip("}")
    said = f"No plot of the reward of run: {given} with its options is not of this lovec."
    assert left_out == ([] if given == "null" else [said])
    assert not (tmp_path / "hacked").exists()
    assert {plot.themed for plot in plots if plot.name == "reward"} <= {False}


def test_a_log_without_training_is_named_and_the_rest_is_drawn(tmp_path):
    run = write_run(tmp_path / "run")
    log(run, "epoch,step,val/brier\n0,9,0.1\n")
    plots, left_out = write_plots(read_run(run), tmp_path / "plots")
    assert (
        [plot.name for plot in plots] == ["times", "tokens"]
        and len(left_out) == 1
        and left_out[0].startswith("No training curves of run: ")
    )
    assert main(["report", str(run), "--no-intervals"]) == 0
    assert "No training curves of run: " in (run / "report" / "index.html").read_text()
