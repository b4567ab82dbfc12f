"""The table of results shows what was measured, on a terminal and in Markdown."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from lovec.metrics.table import METRICS, MetricInfo
from lovec.reports import markdown_results, print_results
from lovec.types import ResultRow

VALUES = {
    "brier": 0.1234, "ece_m": 1.0, "spearman": None, "malformed": 0.0005, "mean_confidence": 0.99,
    "mean_factuality": 0.7,
}  # fmt: skip


def row(metrics=(), **changes):
    plain = ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 15680, {})
    return replace(plain, metrics=VALUES | dict(metrics), **changes)


def printed(rows, width=100, **options):
    console = Console(file=io.StringIO(), width=width)
    print_results(rows, "Title", console, **options)
    return console.file.getvalue()


def test_metrics_are_in_percent_with_a_dash_where_undefined():
    text = printed([row(), row({"spearman": -0.256, "brier": float("nan")}, method="Vanilla", domain="other")])
    lines = [line.split() for line in text.splitlines()]
    assert ["DPO", "in-domain", "iterative", "12.3", "100.0", "-", "0.1", "99.0", "70.0", "15680"] in lines
    assert ["Vanilla", "other", "iterative", "-", "100.0", "-25.6", "0.1", "99.0", "70.0", "15680"] in lines


def test_a_domain_that_all_share_stands_in_the_title():
    text = printed([row(), row(method="SFT + isotonic", mode="free-form")], width=80)
    assert "sentence level, stated score, in-domain\n" in text and text.count("in-domain") == 1
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text


def test_every_level_and_readout_has_a_block():
    text = printed([row(), row(readout="mean"), row(level="passage"), row(method="SFT")])
    titles = ("sentence level, stated score", "sentence level, mean of the distribution", "passage level, stated score")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert text.index("SFT") < places[1]  # with the others of its block


def test_the_legend_names_units_and_directions():
    legend = " ".join(printed([row()]).split())
    assert "In %; lower is better: BS, ECE-M, bad tags; higher: SC, mean f; c: confidence, f: factuality" in legend


def test_the_words_of_the_table_are_explained_below_it():
    text = " ".join(printed([row(), row(mode="free-form"), row(readout="mean")]).split())
    assert "BS: Brier score, the mean squared error of c; ECE-M: how far" in text
    assert "iterative: given texts are tagged; free-form: the model writes answers and tags them; " in text
    assert "stated score: the confidence is the number in the tag; mean of the distribution: the confidence is" in text
    assert "free-form" not in printed([row()]) and "mean of" not in printed([row()])


def test_a_hundred_columns_hold_it_uncut():
    text = printed([row({"spearman": -1.0, "malformed": 1.0}, method="Best constant", domain="out-of-domain",
                        mode="free-form")])  # fmt: skip
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_no_digit_is_cut_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_results([row()])
    text = capsys.readouterr().out
    assert "15680" in text
    assert "…" not in text
    assert "\x1b" not in text  # plain text where there is no terminal


def test_markdown_leaves_out_what_is_the_same_everywhere():
    table = markdown_results([row(), row(method="SFT", mode="free-form")])
    head, rule, first, second = table.splitlines()
    assert head == "| method | mode | BS | ECE-M | SC | bad tags | mean c | mean f | n |"
    assert rule.count("|") == head.count("|") == first.count("|")
    assert first == "| DPO | iterative | 12.3 | 100.0 | - | 0.1 | 99.0 | 70.0 | 15680 |"
    assert second.startswith("| SFT | free-form |")


def test_auroc_has_a_column_where_labels_are_hard():
    rows = [
        row({"auroc": 0.75}),
        row({"auroc": None}, method="Best constant", domain="out-of-domain", mode="free-form"),
    ]
    assert "AUROC" not in printed([row({"auroc": None}), row()])
    assert "AUROC" not in printed([row({"auroc": 0.75, "graded": 0.4})])  # which says little of graded labels
    assert "AUROC" in printed([row({"auroc": 0.75, "graded": 0.0})])
    lines = [line.split() for line in printed(rows, width=108).splitlines()]
    assert ["DPO", "in-domain", "iterative", "12.3", "100.0", "-", "0.1", "99.0", "70.0", "75.0", "15680"] in lines
    head, _, first, second = markdown_results(rows).splitlines()
    assert head.endswith("| AUROC | n |") and first.endswith("| 75.0 | 15680 |") and second.endswith("| - | 15680 |")


def test_metrics_of_users_have_columns_of_their_own():
    mine = MetricInfo("tail_risk", "tail risk", "lower", unit="number", digits=3)
    rows, metrics = [row({"tail_risk": 0.12345, "auroc": 0.5}), row(method="SFT")], METRICS | {"tail_risk": mine}
    head, _, first, second = markdown_results(rows, metrics).splitlines()
    assert head.endswith("| AUROC | tail risk | n |")
    assert first.endswith("| 50.0 | 0.123 | 15680 |") and second.endswith("| - | - | 15680 |")
    text = printed(rows, width=200, metrics=metrics)
    assert "tail risk" in text and "In % except tail risk; lower is better: BS, ECE-M, bad tags, tail risk" in text
    assert "tail risk" not in markdown_results(rows[1:], metrics)
