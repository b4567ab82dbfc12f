"""The table of results says what was measured, in every form."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from lovec.reports import markdown_table, print_results, read_results, write_results
from lovec.types import LovecError


def row(**changes):
    return dict(
        method="DPO", domain="in-domain", mode="iterative", level="sentence", readout="stated", seed=0, brier=0.1234,
        ece_m=1.0, spearman=None, malformed=0.0005, mean_confidence=0.99, mean_factuality=0.7, n=15680,
    ) | changes  # fmt: skip


def printed(rows, width=100):
    console = Console(file=io.StringIO(), width=width)
    print_results(rows, "Title", console)
    return console.file.getvalue()


def test_figures_are_percent_with_a_dash_where_undefined():
    said = printed([row(), row(method="Vanilla", spearman=-0.256, brier=float("nan"))])
    lines = [line.split() for line in said.splitlines()]
    assert ["DPO", "in-domain", "iterative", "12.3", "100.0", "-", "0.1", "99.0", "70.0", "15680"] in lines
    assert ["Vanilla", "in-domain", "iterative", "-", "100.0", "-25.6", "0.1", "99.0", "70.0", "15680"] in lines


def test_every_level_and_readout_has_a_block():
    rows = [row(), row(readout="mean"), row(level="passage"), row(method="SFT")]
    said = printed(rows)
    places = [
        said.index(block) for block in ("sentence level, argmax", "sentence level, mean", "passage level, argmax")
    ]
    assert places == sorted(places)
    assert said.index("SFT") < places[1]  # with the others of its block


def test_a_hundred_columns_hold_it_uncut():
    rows = [row(method="Best constant", domain="out-of-domain", mode="free-form", spearman=-1.0, malformed=1.0)]
    said = printed(rows)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 100


def test_no_digit_is_cut_on_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_results([row()])
    said = capsys.readouterr().out
    assert "15680" in said
    assert "…" not in said
    assert "\x1b" not in said  # plain text where there is no terminal


def test_markdown_leaves_out_what_is_the_same_everywhere():
    table = markdown_table([row(), row(method="SFT", mode="free-form")])
    head, rule, first, second = table.splitlines()
    assert head.startswith("| method | mode | BS | ECE-M | SC |")
    assert rule.count("|") == head.count("|") == first.count("|")
    assert first == "| DPO | iterative | 12.3 | 100.0 | - | 0.1 | 99.0 | 70.0 | 15680 |"
    assert second.startswith("| SFT | free-form |")


def test_hard_labels_have_a_column_of_their_own():
    rows = [row(auroc=0.75), row(method="Best constant", domain="out-of-domain", mode="free-form", auroc=None)]
    assert "AUROC" not in printed([row(auroc=None), row()])
    lines = [line.split() for line in printed(rows, width=108).splitlines()]
    assert ["DPO", "in-domain", "iterative", "12.3", "100.0", "-", "0.1", "99.0", "70.0", "75.0", "15680"] in lines
    head, _, first, second = markdown_table(rows).splitlines()
    assert head.endswith("| AUROC | n |") and first.endswith("| 75.0 | 15680 |") and second.endswith("| - | 15680 |")


def test_files_hold_null_for_what_is_undefined(tmp_path):
    path = write_results([row(spearman=float("nan"), brier=float("inf"))], tmp_path / "deep" / "results.json")
    assert "NaN" not in path.read_text()
    (held,) = json.loads(path.read_text())
    assert (held["spearman"], held["brier"], held["ece_m"], held["n"]) == (None, None, 1.0, 15680)
    assert read_results(path) == [row(spearman=None, brier=None)]
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("content", "said"), [("{", "is not JSON"), ("[1]", "no list of results"), (None, "no results")]
)
def test_broken_files_are_named(tmp_path, content, said):
    path = tmp_path / "results.json"
    if content:
        path.write_text(content)
    with pytest.raises(LovecError, match=said):
        read_results(path)
