"""A table holds the same in every format: values stay as computed, and no text breaks out of its cell."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lovec.metrics.table import METRICS, MetricInfo
from lovec.reports.table import (
    Cell,
    Column,
    Line,
    Table,
    csv_text,
    json_text,
    latex,
    latex_escaped,
    legend,
    mark_best,
    markdown,
    metric_cell,
    metric_column,
    print_table,
    real_minus,
    transposed,
)

HOSTILE = 'a|b & 50% of_#1 $x$ {y} ~z^ \\end{tabular} <b>[bold]*\n"new" line'


def percent(value, low=None, high=None):
    interval = "" if low is None else f"{100 * low:.1f} to {100 * high:.1f}"
    return Cell(f"{100 * value:.1f}", value, low, high, interval)


def example(name="DPO", **changes):
    columns = (
        Column("BS", "Bios", "lower"), Column("SC", "Bios", "higher"), Column("BS", "PopQA", "lower"), Column("n"),
    )  # fmt: skip
    lines = (
        Line("SFT", (percent(0.091), percent(0.5), percent(0.2), Cell("5", 5)), "Iterative"),
        Line(name, (percent(0.06, 0.05, 0.075), Cell("-"), None, Cell("7", 7)), "Iterative"),
        Line("DPO", (percent(0.01), percent(0.9), percent(0.01), None), "LoVeC paper", paper=True),
    )
    return mark_best(Table("main", "Main results", columns, lines, ("A note.",)), **{"clear": always, **changes})


def always(first, second, place):
    return True


def printed(table, width=200, encoding="utf-8", **options):
    raw = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_table(table, Console(file=raw, width=width), **options)
    raw.flush()
    return raw.buffer.getvalue().decode(encoding)


def marks(table):
    return [[bool(cell and cell.best) for cell in line.cells] for line in table.lines]


# From metrics


def test_columns_and_cells_come_from_the_table_of_metrics():
    assert metric_column(METRICS["brier"], "Bios") == Column("BS", "Bios", "lower")
    assert metric_cell(0.1234, METRICS["brier"]) == Cell("12.3", 0.1234)
    assert metric_cell(12.34, METRICS["words"]) == Cell("12.3", 12.34)
    for undefined in (None, float("nan"), float("inf")):
        assert metric_cell(undefined, METRICS["brier"]) == Cell("-")


def test_the_legend_says_units_and_directions():
    names = ("brier", "ece_m", "spearman", "mean_confidence")
    assert legend(METRICS[name] for name in names) == "In %; lower is better: BS, ECE-M; higher: SC"
    assert legend([METRICS["words"], METRICS["ttr"]]) == "In % except words, TTR; higher: TTR"
    assert legend([MetricInfo("mine", "mine")]) == "In %"


# The best


def test_the_best_of_our_lines_is_marked():
    assert marks(example()) == [
        [False, False, False, False],
        [True, False, False, False],
        [False, False, False, False],
    ]  # a single value is not marked, n has no better direction, the paper's line is not compared although it is better


def test_values_that_print_the_same_are_not_told_apart():
    lines = tuple(Line(str(n), (percent(value),)) for n, value in enumerate((0.1001, 0.0999, 0.2)))
    table = Table("x", "", (Column("BS", better="lower"),), lines)
    assert marks(mark_best(table, clear=always)) == [[False], [False], [False]]
    assert marks(mark_best(replace(table, lines=lines[1:]), clear=always)) == [[True], [False]]


def test_the_best_is_marked_only_beyond_chance():
    column = (Column("BS", better="lower"),)

    def marked(*cells, **options):
        return marks(mark_best(Table("x", "", column, tuple(Line("m", (cell,)) for cell in cells)), **options))

    apart = percent(0.1, 0.05, 0.15), percent(0.3, 0.2, 0.4), percent(0.5, 0.4, 0.6)
    assert marked(*apart) == [[True], [False], [False]]
    assert marked(percent(0.1, 0.05, 0.21), *apart[1:]) == [[False], [False], [False]]  # they overlap
    assert marked(percent(0.1), *apart[1:]) == [[False], [False], [False]]  # nothing is known of the first
    asked = []
    assert marked(*apart, clear=lambda *places: bool(asked.append(places))) == [[False], [False], [False]]
    assert asked == [(0, 1, 0)]  # the best and the next, in the only column; no other can help any more


def test_the_best_is_compared_with_all_others_and_not_the_next_alone():
    column = (Column("BS", better="lower"),)
    cells = percent(0.1, 0.09, 0.11), percent(0.3, 0.05, 0.5), percent(0.2, 0.19, 0.21)
    table = Table("x", "", column, tuple(Line("m", (cell,)) for cell in cells))
    assert marks(mark_best(table)) == [[False], [False], [False]]  # the last but one on average varies more
    narrow = replace(table, lines=(table.lines[0], Line("m", (percent(0.3, 0.29, 0.31),)), table.lines[2]))
    assert marks(mark_best(narrow)) == [[True], [False], [False]]
    asked = []
    mark_best(table, clear=lambda *places: not asked.append(places))
    assert asked == [(0, 2, 0), (0, 1, 0)]


def test_only_lines_of_a_group_are_compared():
    lines = tuple(Line(str(n), (percent(value),)) for n, value in enumerate((0.1, 0.2, 0.7, 0.3)))
    table = Table("x", "", (Column("SC", better="higher"),), lines)
    assert marks(mark_best(table, ["a", "a", "b", "b"], always)) == [[False], [True], [True], [False]]


# Terminal


def test_a_terminal_gets_groups_over_their_columns_and_sections():
    lines = printed(example()).splitlines()
    assert lines[0] == "Main results"
    above, heads = lines[1], lines[2]
    assert above.split() == ["Bios", "PopQA"]
    assert heads.split() == ["method", "BS↓", "SC↑", "BS↓", "n"]
    assert above.index("Bios") >= heads.index("BS↓") - 2 and above.index("PopQA") > heads.index("SC↑")
    body = [line.split() for line in lines]
    assert ["Iterative"] in body and ["LoVeC", "paper"] in body
    assert ["DPO", "6.0", "-", "7"] in body  # a value that does not apply is empty
    assert body[-1] == ["A", "note."]
    assert len({len(line) for line in lines[3:] if set(line) == {"─"}}) == 1


def test_columns_stand_under_each_other():
    lines = printed(example("a much longer name of a method")).splitlines()
    ends = [line.index(word) + len(word) for line, word in ((lines[2], "BS↓"), (lines[5], "9.1"), (lines[6], "6.0"))]
    assert len(set(ends)) == 1
    assert lines[5].index("50.0") + 4 == lines[6].index(" - ") + 2 == lines[2].index("SC↑") + 3


def test_intervals_are_shown_on_request():
    assert "(5.0 to 7.5)" not in printed(example())
    assert "6.0 (5.0 to 7.5)" in printed(example(), intervals=True)


@pytest.mark.parametrize("width", [10, 40])
def test_a_narrow_terminal_loses_nothing(width):
    text = printed(example("x" * 70), width)
    assert "x" * 70 in text and "…" not in text


def test_an_ascii_terminal_is_enough():
    text = printed(example(), encoding="ascii")
    assert "BS" in text and "↓" not in text and "----" in text


def test_names_neither_steer_a_terminal_nor_break_their_row():
    hostile = "A\x1b[31mred\x1b]0;owned\x07\nsecond\u202e row"
    table = Table(
        hostile, hostile, (Column(hostile, hostile),), (Line(hostile, (Cell(hostile),), hostile),), (hostile,)
    )
    text = printed(replace(table, corner=hostile, interval_note=hostile), intervals=True)
    assert not set(text) & set("\x1b\x07\u202e") and "A\ufffd[31mred" in text
    assert len({len(line) for line in text.splitlines() if line.count("second") > 1}) == 1
    assert not any(line.startswith("second") for line in text.splitlines())


def test_names_are_no_markup():
    assert "[bold]" in printed(example("[bold]red[/bold]"))


# Markdown


def test_markdown_has_as_many_cells_in_every_line():
    text = markdown(example(HOSTILE))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert rows[0] == "| method | Bios: BS↓ | Bios: SC↑ | PopQA: BS↓ | n |"
    assert "| SFT | 9.1 | 50.0 | 20.0 | 5 |" in rows
    assert "| *DPO* | *1.0* | *90.0* | *1.0* |  |" in rows
    assert r"a\|b & 50% of\_#1" in text and r"\<b\>\[bold\]\*" in text
    assert "**6.0**" in text and "**6.0 (5.0 to 7.5)**" in markdown(example(), intervals=True)
    assert text.startswith("**Main results**") and text.endswith("A note.\n")
    assert markdown(example(), title=False).startswith("| method")


# CSV and JSON


def test_csv_holds_values_as_computed_with_intervals_in_columns_of_their_own():
    rows = list(csv.DictReader(io.StringIO(csv_text(example(HOSTILE)))))
    assert list(rows[0]) == [
        "section", "method", "source", "Bios BS", "Bios BS low", "Bios BS high", "Bios SC", "PopQA BS", "n",
    ]  # fmt: skip
    assert rows[1]["method"] == HOSTILE and rows[1]["section"] == "Iterative"
    assert [rows[1][name] for name in list(rows[0])[3:]] == ["0.06", "0.05", "0.075", "", "", "7"]
    assert [row["source"] for row in rows] == ["ours", "ours", "paper"]
    words = Table("x", "", (Column("mode", left=True),), (Line("DPO", (Cell("iterative"),)),))
    assert csv_text(words).splitlines()[1] == ",DPO,ours,iterative"


def test_json_holds_everything_and_no_nan():
    table = Table("x", "T", (Column("BS"),), (Line("DPO", (Cell("-", float("nan"), low=float("inf")),)),))
    content = json.loads(json_text(table))
    assert content["lines"][0]["cells"][0] == {
        "text": "-", "value": None, "low": None, "high": None, "interval": "", "best": False,
    }  # fmt: skip
    content = json.loads(json_text(example(HOSTILE)))
    assert content["lines"][1]["name"] == HOSTILE
    assert content["lines"][1]["cells"][1]["text"] == "-"
    assert content["lines"][1]["cells"][2] is None
    assert content["columns"][0] == {"heading": "BS", "group": "Bios", "better": "lower", "left": False}
    assert (content["name"], content["title"], content["notes"]) == ("main", "Main results", ["A note."])


# LaTeX


def rows_of(text):
    """Lines of the tabular that end a row."""
    inner = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    return [line for line in inner.splitlines() if line.endswith(r"\\")]


def width_of(row):
    """Columns that a row fills."""
    spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
    return len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) - len(spans)


def test_latex_has_sections_groups_and_bold_as_in_the_paper():
    text = latex(example())
    assert r"\begin{tabular}{lrrrr}" in text
    assert r" & \multicolumn{2}{c}{\textbf{Bios}} & \multicolumn{1}{c}{\textbf{PopQA}} & " in text
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-4}" in text
    assert r"\textbf{method} & \textbf{BS}$\downarrow$ & \textbf{SC}$\uparrow$" in text
    assert r"\multicolumn{5}{c}{\textbf{Iterative}} \\" in text
    assert r"DPO & \textbf{6.0} & - &  & 7 \\" in text
    assert r"\textit{DPO} & \textit{1.0}" in text
    assert r"\shortstack{\textbf{6.0}\\{\tiny 5.0 to 7.5}} &" in latex(example(), intervals=True)
    assert r"\caption{Main results. A note.}" in text and r"\label{tab:main}" in text


@pytest.mark.parametrize("name", ["DPO", HOSTILE])
def test_every_row_of_latex_fills_the_table(name):
    rows = rows_of(latex(example(name), intervals=True))
    assert len(rows) == 2 + 3 + 2  # heads, lines, sections
    assert {width_of(row) for row in rows} == {5}


def test_special_characters_of_latex_are_escaped():
    assert latex_escaped("50% of a_b & #1 ${x}") == r"50\% of a\_b \& \#1 \$\{x\}"
    assert latex_escaped("\\~^<>|") == (
        r"\textbackslash{}\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
    )
    assert latex_escaped("two\nlines [h]*") == "two lines {[}h{]}{*}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    page = tmp_path / "page.tex"
    both = latex(example(HOSTILE)) + latex(example(), intervals=True)
    page.write_text(rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{both}\end{{document}}")
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", page.name]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]


@given(st.text())
def test_no_text_can_break_out_of_its_cell(text):
    written = latex_escaped(text)
    known = r"\\(text(backslash|asciitilde|asciicircum|less|greater|bar)\{\}|[%_&#${}])|\{[][*]\}|\{''\}"
    rest = re.sub(known, "", written)
    assert rest.isprintable()
    assert not set(rest) & set('\\%_&#${}~^<>|"[]*\n\r')


def test_lines_and_columns_are_exchanged():
    cells = (Cell("1.0", 1.0, best=True), Cell("2.0", 2.0), None)
    columns = (Column("BS", "a", "lower"), Column("SC", "a"), Column("n", "b"))
    table = Table("t", "Title", columns, (Line("x", cells, "rows"), Line("y", cells[::-1], "groups")), ("Note.",))
    turned = transposed(table, "metric")
    assert [(line.section, line.name, line.cells) for line in turned.lines] == [
        ("a", "BS", (cells[0], None)), ("a", "SC", (cells[1], cells[1])), ("b", "n", (None, cells[0]))
    ]  # fmt: skip
    assert [(column.group, column.heading) for column in turned.columns] == [("rows", "x"), ("groups", "y")]
    assert (turned.corner, turned.notes, turned.title) == ("metric", ("Note.",), "Title")
    assert [line.cells for line in transposed(turned).lines] == [line.cells for line in table.lines]


def test_negative_numbers_have_a_minus_sign_and_names_their_hyphens():
    assert real_minus("-1.5 to -0.5") == "\u22121.5 to \u22120.5" and real_minus("a-1 -x 2024-05-06 - p-3") == (
        "a-1 -x 2024-05-06 - p-3"
    )
    table = Table("x", "T", (Column("SC"),), (Line("GPT-4", (Cell("-4.8", -0.048, -0.1, 0.1, "-10.0 to 10.0"),)),))
    text = latex(table, intervals=True)
    assert "GPT-4" in text and "$-$4.8" in text and "$-$10.0 to 10.0" in text and ",-0.048," in csv_text(table)
