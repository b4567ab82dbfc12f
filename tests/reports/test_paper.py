"""The paper's numbers are as printed there, and marked as its own wherever they stand."""

from __future__ import annotations

import re

import pytest

from lovec.reports.paper import model_named, models, paper_table, with_paper
from lovec.reports.table import Cell, Column, Line, Table
from lovec.types import LovecError

LLAMA, GEMMA = "Llama-3-8B-Instruct", "Gemma-2-9B-It"
KEYS = (
    "main", "passage", "no-previous-scores", "hybrid", "sweep-reward", "sweep-oracle", "sft-regression", "checkpoints",
    "short-form", "diagnostics", "running-time",
)  # fmt: skip

PRINTED = [  # read off the paper's source by hand
    ("main", LLAMA, "Literature", "LUQ", "WildHallu", "BS", 0.145),
    ("main", LLAMA, "Baselines", "Vanilla", "Bios", "SC", 0.012),
    ("main", LLAMA, "Baselines", "p(true)-ft", "PopQA", "ECE-M", 0.12),
    ("main", LLAMA, "Iterative tagging", "GRPO", "WildHallu", "ECE-M", 0.025),
    ("main", LLAMA, "Iterative tagging", "DPO", "PopQA", "ECE-M", 0.017),
    ("main", LLAMA, "Free-form tagging", "GRPO", "Bios", "SC", 0.687),
    ("main", LLAMA, "Free-form tagging", "SFT", "PopQA", "BS", 0.194),
    ("main", GEMMA, "Iterative tagging", "DPO", "WildHallu", "ECE-M", 0.013),
    ("main", GEMMA, "Free-form tagging", "SFT", "Bios", "SC", 0.706),
    ("passage", LLAMA, "Literature", "LUQ", "WildHallu", "BS", 0.08),
    ("passage", LLAMA, "Free-form tagging", "LUQ", "WildHallu", "BS", 0.145),
    ("passage", GEMMA, "Free-form tagging", "DPO", "PopQA", "SC", 0.774),
    ("no-previous-scores", LLAMA, "GRPO", "no previous scores", "WildHallu", "SC", 0.43),
    ("hybrid", LLAMA, "LUQ + DPO", "LUQ + DPO", "PopQA", "SC", 0.703),
    ("hybrid", GEMMA, "LUQ + DPO", "LUQ + DPO", "PopQA", "ECE-M", 0.033),
    ("sweep-reward", LLAMA, "", "GRPO-linear", "Free-form tagging", "ECE-M", 0.104),
    ("sweep-oracle", LLAMA, "Fact-Checking with Llama3-8B + Evidence", "DPO", "Iterative tagging", "BS", 0.072),
    ("sft-regression", LLAMA, "", "LoVeC-SFT-regression", "WildHallu", "ECE-M", 0.198),
    ("checkpoints", LLAMA, "GRPO, WildHallu", "step 3000", "", "BS", 0.066),
    ("checkpoints", LLAMA, "GRPO, WildHallu", "step 5667 (Epoch 1)", "", "mean reward", 29.831),
    ("short-form", LLAMA, "Literature", "Rewarding Doubt*", "TriviaQA", "AUROC", 0.859),
    ("short-form", LLAMA, "Our Methods", "SFT", "TriviaQA", "ECE", 0.02),
    ("diagnostics", LLAMA, "Free-form tagging, WildHallu", "GRPO", "", "diversity", 0.5691),
    ("diagnostics", LLAMA, "Free-form tagging, WildHallu", "DPO", "", "mean f", 0.74),
    ("running-time", GEMMA, "WildHallu test set, one A100 80GB", "LUQ", "", "seconds in all", 1525.0),
    ("running-time", GEMMA, "WildHallu test set, one A100 80GB", "Free-form", "", "seconds in all", 64.0),
]


@pytest.mark.parametrize(("key", "model", "section", "name", "group", "heading", "value"), PRINTED)
def test_values_are_the_printed_ones(key, model, section, name, group, heading, value):
    table = paper_table(key, model)
    place = [(column.group, column.heading) for column in table.columns].index((group, heading))
    (line,) = [line for line in table.lines if (line.section, line.name) == (section, name)]
    assert line.cells[place].value == value


@pytest.mark.parametrize("model", [LLAMA, GEMMA])
@pytest.mark.parametrize("key", KEYS)
def test_every_line_is_whole_and_marked(key, model):
    table = paper_table(key, model)
    if table is None:
        assert model == GEMMA or key == "running-time"
        return
    assert table.title.startswith(f"LoVeC paper, {model}: ") and table.name == f"{key}-paper"
    for line in table.lines:
        assert line.paper and len(line.cells) == len(table.columns)
        assert all(re.fullmatch(r"\d+(\.\d+)?", cell.text) for cell in line.cells)
    names = [(line.section, line.name) for line in table.lines]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("key", ["main", "passage", "hybrid"])
@pytest.mark.parametrize("model", [LLAMA, GEMMA])
def test_text_and_value_are_the_same_number(key, model):
    for cell in (cell for line in paper_table(key, model).lines for cell in line.cells):
        assert float(cell.text) == pytest.approx(100 * cell.value)


def test_a_share_is_shown_in_percent_as_ours_are():
    cell = paper_table("diagnostics", LLAMA).lines[0].cells[1]
    assert (cell.text, cell.value) == ("72", 0.72)


def test_models_are_found_by_how_they_begin():
    assert models() == (LLAMA, GEMMA)
    assert [model_named(text) for text in ("llama", "Gemma-2", LLAMA)] == [LLAMA, GEMMA, LLAMA]
    for text in ("", "mistral"):
        with pytest.raises(LovecError, match=r"expected one of Llama-3-8B-Instruct, Gemma-2-9B-It"):
            model_named(text)


def ours(*groups, heading="BS"):
    columns = tuple(Column(heading, group, "lower") for group in groups)
    return Table("main", "Main", columns, (Line("DPO", (Cell("9.9", 0.099),) * len(groups), "Ours"),), ("Ours.",))


def test_a_shared_column_makes_one_table():
    (both,) = with_paper(ours("bios", "WikiBio"), "main", LLAMA)
    heads = [(column.group, column.heading) for column in both.columns]
    assert heads[:4] == [("bios", "BS"), ("WikiBio", "BS"), ("WildHallu", "BS"), ("WildHallu", "ECE-M")]
    assert len(heads) == 2 + 8
    own, first = both.lines[0], both.lines[1]
    assert [cell and cell.text for cell in own.cells] == ["9.9", "9.9", *[None] * 8] and not own.paper
    assert (first.section, first.name, first.paper) == (f"LoVeC paper, {LLAMA}: Literature", "LUQ", True)
    assert [cell and cell.text for cell in first.cells[:3]] == ["20.0", None, "14.5"]
    assert both.notes[0] == "Ours." and "tab:freeform+iterative_sentence_llama" in both.notes[1]


@pytest.mark.parametrize("table", [ours("in-domain", "out-of-domain"), ours("Bios", heading="AUROC")])
def test_nothing_in_common_makes_two(table):
    first, second = with_paper(table, "main", LLAMA)
    assert first is table
    assert second == paper_table("main", LLAMA)


def test_what_the_paper_has_not_is_left_alone():
    table = ours("Bios")
    assert with_paper(table, "main-of-another", LLAMA) == [table]
    assert with_paper(table, "running-time", LLAMA) == [table]
