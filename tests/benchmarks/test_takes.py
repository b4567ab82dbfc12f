"""What training takes: the models of memory and operations against real steps, and the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import common
import hours
import memory
import takes
import takes_page
from cost import LLAMA_3_8B, LLAMA_3_70B, Sizes

BILLIONS = {"Llama-3-8B": (LLAMA_3_8B, 8_030_261_248), "Llama-3-70B": (LLAMA_3_70B, 70_553_706_496)}


@pytest.mark.parametrize("name", BILLIONS)
def test_weights_are_those_of_the_published_models(name: str) -> None:
    config, published = BILLIONS[name]
    assert memory.base_weights(config) == published
    found = takes.counted(name, config)
    assert found["base"] == found["base_said"] == published and found["adapter"] == found["adapter_said"]


def test_a_weight_in_4_bits_takes_what_its_paper_says() -> None:
    """0.127 bits for the scales of a weight with double quantisation (QLoRA, section 3)."""
    packed, decoding = memory.nf4_bytes(1 << 24)
    assert packed == 1 << 23 and 8 * decoding / (1 << 24) == pytest.approx(8 / 64 + 32 / (64 * 256), abs=1e-3)


@pytest.mark.parametrize("base", ["float32", "bfloat16"])
def test_a_real_step_takes_what_the_model_says(base: str, tmp_path: Path) -> None:
    check = takes.Check("DPO", base, takes.shape(128, 2), products=True, rows=(1,))
    for row in takes.measure(check, tmp_path):
        assert row["stored_said"] == pytest.approx(row["stored"], rel=0.01)
        assert row["peak_said"] == pytest.approx(row["peak"], rel=0.05)
        assert row["flops_said"] == pytest.approx(row["flops"], rel=0.02)
        assert row["peak"] == row["peak_with_products"]


def test_more_gpus_and_fewer_bits_need_less_memory() -> None:
    sizes = Sizes(4096, 10**6, 4000)

    def total(gpus: int, base: str) -> float:
        return hours.memory(LLAMA_3_70B, hours.Step("SFT", gpus, 4096, sizes, sizes, 1, 500), base)["total"]

    assert total(1, "bfloat16") > 141e9 > total(2, "bfloat16") > total(4, "bfloat16") > total(8, "bfloat16")
    assert total(1, "nf4") < total(1, "bfloat16") / 2


def test_the_largest_micro_batches_that_fit_are_chosen() -> None:
    rows = [
        {"objective": "SFT", "base": "nf4", "gpus": gpus, "budget": budget, "fits": budget <= most}
        for gpus, most in ((1, 0), (2, 4096), (4, 8192))
        for budget in (8192, 4096, 2048)
    ]
    assert [(row["gpus"], row["budget"]) for row in takes_page.choose(rows)] == [(1, 2048), (2, 4096), (4, 8192)]


def test_the_page_is_written_from_the_results() -> None:
    results = common.read_json(takes.RESULTS)
    assert takes.PAGE.read_text(encoding="utf-8") == takes_page.page(results), "run benchmarks/takes.py --page"
    assert len(results["checks"]) > 60
