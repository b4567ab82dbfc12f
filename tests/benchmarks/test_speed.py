"""The benchmark of speed: what it counts, the model of costs, the sides that it compares, and its page."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lovec.policy import TokenSequence
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cost  # noqa: E402
import flops  # noqa: E402
import gpu_phases  # noqa: E402
import mix  # noqa: E402
import score_cost  # noqa: E402
import sides  # noqa: E402
import speed  # noqa: E402
import speed_page  # noqa: E402

SIZES = {"vocab_size": 2560, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2, "head_dim": 8}
SMALL = mix.CONFIG | SIZES
FEW = mix.Mix("few", prompt=170, completion=60, spread=12, tags=3)


# ---------------------------------------------------------------- counting


@pytest.mark.parametrize(("causal", "pairs"), [(True, 10 * 11 // 2), (False, 100)])
def test_attention_on_the_cpu_is_counted(causal, pairs):
    q, k, v = (torch.randn(2, 3, 10, 4, requires_grad=True) for _ in range(3))
    counted = flops.cost(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward(), [])
    forward = 2 * 3 * pairs * 4 * 2 * 2  # two products of four numbers per pair
    assert counted.flops == forward + forward * 5 // 2


def test_causal_pairs_are_those_at_or_before_a_query():
    for queries, keys in ((5, 5), (3, 7), (7, 3)):
        assert flops.attention_pairs(queries, keys, causal=True) == sum(min(i + 1, keys) for i in range(queries))


def test_in_place_products_are_counted():
    total = torch.zeros(3, 5)
    assert flops.cost(lambda: total.addmm_(torch.ones(3, 4), torch.ones(4, 5)), []).flops == 2 * 3 * 4 * 5


def test_saved_bytes_are_the_most_at_any_time():
    x = torch.ones(8, 16, requires_grad=True)
    weight = torch.ones(16, 16)

    def step():
        for _ in range(3):
            y = x.exp()  # 512 bytes, kept for its own gradient and for that of its square
            (y.square() @ weight).sum().backward()

    assert flops.cost(step, [weight]).saved_bytes == 8 * 16 * 4


# ---------------------------------------------------------------- the model of costs


def test_nothing_is_counted_twice():
    sequences = [TokenSequence((1, 2, 3), (4, 5, 6)), TokenSequence((1, 2, 3), (4, 7)), TokenSequence((1, 9), (4, 5))]
    # 1, 2, 3, 4 and 5 of the first; nothing of the second, whose 7 predicts nothing; 9 and 4 of the third
    assert cost.unique(sequences) == cost.Sizes(tokens=7, pairs=1 + 2 + 3 + 4 + 5 + 2 + 3, outputs=3 + 0 + 2)


def test_a_batch_is_padded_to_its_longest_sequence():
    sequences = [TokenSequence((1, 2), (3, 4, 5)), TokenSequence((1,), (2, 3))]
    assert cost.rectangle(sequences) == cost.Sizes(8, 2 * 16, 5)
    assert cost.rectangle(sequences[:1], last=True, all_outputs=True) == cost.Sizes(5, 15, 5)


@pytest.fixture(scope="module", autouse=True)
def model(tmp_path_factory):
    """A smaller model with fewer words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mix, "DRAWN", 1000)
        yield mix.write_model(tmp_path_factory.mktemp("model"), SMALL)


def side(objective, model, tmp_path, beta=0.04, **options):
    case = sides.Case(objective, FEW, rows=2, group=3 if objective == "GRPO" else 1, beta=beta)
    return case, sides.Lovec(case, model, tmp_path, **options)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("objective", "beta"), [("SFT", 0), ("DPO", 0), ("ORPO", 0), ("GRPO", 0.04), ("GRPO", 0.0)])
def test_the_model_of_costs_is_what_is_counted(objective, beta, checkpointing, model, tmp_path):
    """A step over shared prefixes, and a padded one of single examples and of all."""
    options = {"reference": objective == "DPO" or bool(beta), "checkpointing": checkpointing}
    _, ours = side(objective, model, tmp_path, beta, gradient_checkpointing=checkpointing)
    assert ours.reference == options["reference"]
    counted = flops.cost(partial(ours.step, sides.WHOLE), ours.parameters)
    assert counted.flops == pytest.approx(cost.least_flops(ours.config, ours.sequences, **options), rel=0.02)

    _, padded = side(objective, model, tmp_path, beta, gradient_checkpointing=checkpointing, share_prefixes=False)
    for budget, groups in (
        (sides.WHOLE, [padded.sequences]),
        (sides.SMALLEST, [example.sequences for example in padded.examples]),
    ):
        sizes = sum(map(cost.rectangle, groups), cost.Sizes(0, 0, 0))
        reference = sizes if options["reference"] else None
        expected = cost.step_flops(padded.config, sizes, reference, checkpointing=checkpointing)
        counted = flops.cost(partial(padded.step, budget), padded.parameters)
        assert counted.flops == pytest.approx(expected, rel=0.02)


def test_counting_without_the_arithmetic_counts_the_same(model, tmp_path, monkeypatch):
    """Operations and saved bytes of a step are those of one whose products are computed."""
    _, ours = side("ExpectedReward", model, tmp_path)
    counted = flops.cost(partial(ours.step, sides.WHOLE), ours.parameters)
    monkeypatch.setattr(
        flops.WithoutProducts, "__torch_dispatch__", lambda self, f, t, a=(), k=None: f(*a, **(k or {}))
    )
    assert flops.cost(partial(ours.step, sides.WHOLE), ours.parameters) == counted
    assert counted.flops > 1.3 * speed.bound(ours)  # every string up to its closing word


def test_first_tokens_are_the_bound_of_a_step_with_scores(model, tmp_path):
    for objective in speed.SCORED:
        _, ours = side(objective, model, tmp_path, scoring="prefix")
        counted = flops.cost(partial(ours.step, sides.WHOLE), ours.parameters).flops
        assert speed.bound(ours) <= counted < 1.1 * speed.bound(ours)


TAILS = [[1, word, 3, 4] for word in range(10, 20)] + [[1, 11, 10, 3, 4]]
"""Score strings of four tokens; "1" and "10" begin alike, and all with the same token."""


def test_a_score_costs_the_positions_that_tell_it_apart():
    found = {(row["use"], row["scoring"]): row for row in score_cost.count_costs(SMALL, [8, 9], TAILS)}
    for row in found.values():
        assert row["tokens"] == 25 + 2 + (5 * 4 + 5) / 6
    # The text has the first token of every score, and behind two of six the "1" that "10" begins with.
    for use in ("tagging", "training"):
        assert found[use, "first tokens"]["score_tokens"] == 4 / 6
    assert found["tagging", "first tokens"]["score_outputs"] == 3
    exact = found["tagging", "exact"]
    assert exact["score_outputs"] == 2 + 10 * 2 + 3 - 1 and exact["flops_ratio"] > 1.5
    assert 1 < found["tagging", "first tokens"]["flops_ratio"] < exact["flops_ratio"] / 1.3


@pytest.mark.parametrize("row", json.loads(score_cost.RESULTS.read_text())["counts"], ids=lambda row: row["model"])
def test_first_tokens_cost_little_beside_a_sentence(row):
    limit = {"tagging": 1.1, "training": 1.15}[row["use"]]
    assert (row["flops_ratio"] <= limit) == (row["scoring"] == "first tokens")


# ---------------------------------------------------------------- rows and sides


def test_rows_have_the_lengths_that_are_documented(model, tmp_path):
    _, ours = side("DPO", model, tmp_path)
    encoder = ours.module.encoder
    for n in (8, 16):
        rows = FEW.answers(n, 1, encoder)
        assert [len(encoder.prompt(row.question)) for row in rows] == [170] * n
        lengths = [len(encoder.completion([s.text for s in row.sentences], row.rejected)) for row in rows]
        assert sum(lengths) / n == pytest.approx(60, abs=0.5)
        assert torch.tensor(lengths).double().std(correction=0).item() == pytest.approx(12, abs=1.5)
        assert {len(row.sentences) for row in rows} == {3}
    assert len({row.question for row in FEW.answers(2, 4, encoder)}) == 2
    assert mix.tokens(mix.INSTRUCTION) == 139  # Llama 3 has 140
    assert len(encoder.tails[10]) == 5


def test_sides_that_differ_are_not_compared(model, tmp_path):
    case, ours = side("DPO", model, tmp_path)
    _, other = side("DPO", model, tmp_path, share_prefixes=False)
    found = speed.differences(case, {speed.OURS: ours, speed.PADDED: other})
    assert all(found[speed.PADDED][name] <= bound for name, bound in speed.LARGEST.items())
    other.module.beta *= 1.001
    with pytest.raises(LovecError, match=r"lovec padded differs from lovec by .*gradient"):
        speed.differences(case, {speed.OURS: ours, speed.PADDED: other})


@pytest.mark.parity
@pytest.mark.parametrize("objective", ["SFT", "DPO", "ORPO", "GRPO"])
def test_trl_computes_the_same(objective, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pytest.importorskip("trl", reason="the extra parity is not installed")
    monkeypatch.setattr(mix, "write_model", lambda folder: model)
    case, _ = side(objective, model, tmp_path)
    built = speed.sides_of(case, tmp_path)
    assert list(built)[2:] == ([speed.TRL, speed.PRECOMPUTED] if objective == "DPO" else [speed.TRL])
    speed.differences(case, built)
    trl = built[speed.TRL]
    reference = built[speed.OURS].reference
    counted = flops.cost(partial(trl.step, sides.SMALLEST), trl.parameters).flops
    assert counted == pytest.approx(cost.trl_flops(SMALL, objective, trl.examples, reference), rel=0.02)


def test_a_row_holds_ratios_of_lovec_to_its_peers(model, tmp_path, monkeypatch):
    monkeypatch.setattr(mix, "write_model", lambda folder: model)
    monkeypatch.setattr(speed.importlib.util, "find_spec", lambda name: None)
    case = sides.Case("GRPO", FEW, rows=1, group=4, timed=True)
    (row,) = speed.measure(case, 2, tmp_path)["rows"]
    assert (row["objective"], row["setting"], row["peer"]) == ("GRPO", "few, 1 x 4, KL 0.04", "lovec padded")
    assert row["flops_ratio"] < 0.8 and row["saved_bytes_ratio"] < 1.0
    assert 1.0 <= row["bound_ratio"] < 1.1
    low, high = row["interval"]
    assert low <= row["cpu_seconds_ratio"] <= high and row["pairs"] == 2


def test_utilisation_counts_sequences_one_by_one(model, tmp_path):
    _, ours = side("SFT", model, tmp_path)
    whole = gpu_phases.model_flops(ours.config, ours.examples, False, 16)
    parts = [gpu_phases.model_flops(ours.config, [example], False, 16) for example in ours.examples]
    assert whole == sum(parts) > cost.least_flops(ours.config, ours.sequences, reference=False)


# ---------------------------------------------------------------- the page


def row(objective, peer, setting="mix", **values):
    numbers = dict.fromkeys(("saved_bytes_ratio", "saved_bytes_smallest_ratio", "peak_rss_ratio"), 0.5)
    rest = {"flops_ratio": 0.6, "bound_ratio": 1.034, "cpu_seconds_ratio": None, "interval": None, "pairs": 0}
    return {"objective": objective, "setting": setting, "peer": peer, **numbers, **rest, **values}


RESULTS = {
    "date": "2026-01-01", "commit": "abc", "versions": {"lovec": "0", "torch": "2"}, "machine": "a PC",
    "tokens": {"prompt": 190, "instruction": 139, "llama_3": None},
    "curve": [{"length": 256, "tags": 2, "lovec": 1.1, "lovec padded": 2.0}],
    "at_8b": [{"objective": "DPO", "setting": "mix", "peer": "TRL", "flops_ratio": 0.634}],
    "rows": [
        row("DPO", "lovec padded", cpu_seconds_ratio=0.5, interval=[0.4, 0.61], pairs=7),
        row("DPO", "TRL"),
    ],
}  # fmt: skip


def test_tables_show_the_ratios():
    parts = speed_page.parts(RESULTS)
    assert "| DPO | mix | TRL | 0.600 | 3.4 % | 0.50 | 0.50 | 0.50 |" in parts["trl"].splitlines()
    assert "| DPO | mix | 0.600 | 3.4 % | 0.50 | 0.50 | 0.50 | 0.50 (0.40 to 0.61) |" in parts["padded"].splitlines()
    assert "| 256 | 2 | 1.10 | 2.00 |" in parts["expected"].splitlines()
    assert "| DPO | mix | TRL | 0.63 |" in parts["8b"].splitlines()
    assert "medians of 7 pairs" in parts["setting"] and "own tokenizer" not in parts["setting"]


def test_an_objective_that_is_measured_again_replaces_its_rows_and_says_when():
    new = {"rows": [row("ORPO", "TRL", flops_ratio=0.7)], "at_8b": [], "curve": []}
    origin = {"date": "2026-02-01", "commit": "later"}
    results = speed.updated(RESULTS, {**new, "rows": [*new["rows"], row("SFT", "TRL")]}, origin)
    assert [(found["objective"], found.get("commit")) for found in results["rows"]] == [
        ("SFT", "later"), ("DPO", None), ("DPO", None), ("ORPO", "later"),
    ]  # fmt: skip
    assert results["curve"] == RESULTS["curve"] and results["at_8b"] == RESULTS["at_8b"]
    assert results["commit"] == RESULTS["commit"]
    assert speed_page.parts(results)["setting"].endswith(". SFT and ORPO: 2026-02-01, commit later.")
    again = speed.updated(results, {**new, "rows": [row("DPO", "TRL", flops_ratio=0.5)]}, origin)
    assert [found["objective"] for found in again["rows"]] == ["SFT", "DPO", "ORPO"]


def test_a_plot_is_drawn_from_few_results(tmp_path):
    speed_page.write_plot(lambda: speed_page.draw(RESULTS), tmp_path / "speed.svg", "Cost")
    assert "lovec padded" in (tmp_path / "speed.svg").read_text()


def test_the_page_is_that_of_the_results():
    results = json.loads(speed.RESULTS.read_text())
    text = speed_page.PAGE.read_text()
    assert speed_page.page(text, results) == text, "run benchmarks/speed.py --page"
    for name, bound in speed.LARGEST.items():
        assert all(found[f"{name}_difference"] <= bound for found in results["rows"] if f"{name}_difference" in found)
