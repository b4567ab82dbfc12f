"""Plots: the numbers behind them by hand, files that are always the same, and names that break nothing."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from lovec.metrics.functional import group_of
from lovec.metrics.risk import aurc
from lovec.reports.curves import write_curves
from lovec.reports.histogram import confidence_histogram, histogram
from lovec.reports.inline import inline_svg
from lovec.reports.next_tokens import in_order, score_tokens
from lovec.reports.overlay import histogram_overlay, reliability_overlay, risk_overlay
from lovec.reports.panels import COLUMNS, PanelLayout, panel_axes
from lovec.reports.plots import write_plots
from lovec.reports.reliability import reliability, reliability_diagram
from lovec.reports.risk_coverage import risk_coverage_curves, risk_curve
from lovec.reports.runs import RunResults
from lovec.reports.style import short
from lovec.reports.surface import reward_surface
from lovec.reports.times import few_phases, running_times
from lovec.reports.training_log import TrainingLog
from lovec.rewards import LogReward
from lovec.types import LovecError, Record, Sentence

HOSTILE = "$x_1$<script>\"'&-->\u2028\x00\x1b]]>"


def record(*pairs, name="r"):
    """Return a record of sentences with these (confidence, factuality)."""
    return Record(name, "Q?", sentences=tuple(Sentence("S.", factuality=f, confidence=c) for c, f in pairs))


RECORDS = [record((1.0, 0.8), (0.9, 0.5), (0.3, 0.4)), record((0.3, 0.1), (0.0, 0.2), (None, 0.7), (0.55, None))]
TOKENS = [{"text": text, "p": p} for text, p in ((" the", 0.2), ("10", 0.1), ("9", 0.3), ("\n", 0.05), (" 3", 0.15))]


def words(path):
    """Return the texts of an SVG."""
    texts = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()) for text in texts]


def test_a_histogram_is_the_one_counted_by_hand():
    result = histogram(RECORDS)
    counts = [1, 0, 0, 2, 0, 0, 1, 0, 0, 1, 1]  # 0.55 is halfway and goes up
    assert result.shares == pytest.approx([count / 6 for count in counts])
    assert (result.n, result.missing) == (6, pytest.approx(1 / 7))
    assert result.confidence == pytest.approx((1 + 0.9 + 0.3 + 0.3 + 0 + 0.55) / 6)
    assert result.factuality == pytest.approx((0.8 + 0.5 + 0.4 + 0.1 + 0.2 + 0.7) / 6)


def test_a_histogram_of_unlabelled_sentences_has_no_factuality():
    assert histogram([record((0.2, None))]).factuality is None


def test_a_confidence_counts_as_the_nearest_score():
    assert histogram([record((0.07, None))]).shares[:2] == (0.0, 1.0)


def test_a_histogram_has_a_bar_per_level_of_the_scale(tmp_path):
    sentences = tuple(Sentence("S.", 0.5, score=score, levels=5) for score in (0, 4, 4, 3))
    records = [Record("r", "Q?", sentences=sentences)]
    assert histogram(records).shares == (0.25, 0.0, 0.0, 0.25, 0.5)
    assert {"0", "4"} <= set(words(confidence_histogram({"A": records}, tmp_path / "a.svg")))
    assert "10" not in words(tmp_path / "a.svg")


def test_a_risk_curve_is_the_mean_over_all_orders_of_ties():
    pairs = [(0.9, 1.0), (0.5, 0.2), (0.5, 0.6), (0.5, 0.9), (0.1, 0.0)]
    curve = risk_curve([record(*pairs)])
    orders = [
        order for order in itertools.permutations(pairs) if all(a[0] >= b[0] for a, b in itertools.pairwise(order))
    ]
    assert len(orders) == 6
    xs, ys = curve.points()
    for kept in range(1, 6):
        risks = [sum(1 - f for _, f in order[:kept]) / kept for order in orders]
        place = min(range(len(xs)), key=lambda i: abs(xs[i] - kept / 5))
        assert xs[place] == pytest.approx(kept / 5)
        assert ys[place] == pytest.approx(sum(risks) / 6)
    assert curve.coverage == pytest.approx((0.2, 0.8, 1.0))
    c, f = torch.tensor(pairs, dtype=torch.float64).T
    assert curve.aurc == pytest.approx(float(aurc(c, f)))


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=30))
def test_a_risk_curve_ends_at_the_mean_risk_and_never_leaves_its_range(pairs):
    curve = risk_curve([record(*((c / 10, f / 10) for c, f in pairs))])
    xs, ys = curve.points()
    assert xs == sorted(xs) and xs[0] == 0 and xs[-1] == pytest.approx(1)
    assert all(-1e-9 <= y <= 1 + 1e-9 for y in ys)
    assert ys[-1] == pytest.approx(1 - sum(f for _, f in pairs) / len(pairs) / 10)


def test_intervals_of_bins_are_those_of_a_plain_loop():
    torch.manual_seed(0)
    groups = [
        record(*((c / 10, float(f)) for c, f in zip([3, 3, 8], torch.rand(3), strict=True)), name=str(i))
        for i in range(9)
    ]
    groups.append(record((0.1, 0.4)))
    result = reliability(groups)
    generator = torch.Generator().manual_seed(0)
    draws = []
    for _ in range(1000):
        drawn = [groups[int(i)] for i in torch.randint(10, (10,), generator=generator)]
        sentences = [s for question in drawn for s in question.sentences]
        in_bin = [s.factuality for s in sentences if int(group_of(torch.tensor([s.confidence]), "bins", 10)) == 3]
        draws.append(sum(in_bin) / len(in_bin))
    low, high = torch.quantile(torch.tensor(draws, dtype=torch.float64), torch.tensor([0.025, 0.975]).double()).tolist()
    lonely, three, eight = result.bins
    assert (three.low, three.high) == pytest.approx((low, high))
    assert three.low < three.factuality < three.high and eight.low < eight.factuality < eight.high
    assert (lonely.low, lonely.high) == (None, None)  # one question does not tell how far others would lie


def test_more_questions_narrow_an_interval():
    def width(n):
        (only,) = reliability([record((0.5, (i % 4) / 3), name=str(i)) for i in range(n)]).bins
        return only.high - only.low

    assert width(400) < 0.5 * width(40)


def test_tokens_that_begin_scores_stand_in_order_and_the_rest_behind():
    tokens, scores = in_order([*TOKENS, *({"text": f"w{i}", "p": 1e-3 / (i + 1)} for i in range(20))])
    assert [text for text, _ in tokens[:5]] == [" 3", "9", "10", " the", "\n"]
    assert scores == 3 and len(tokens) == 15
    assert in_order([{"text": "11", "p": 0.5}, {"text": "²", "p": 0.1}, {"text": "٣", "p": 0.1}])[1] == 0


def test_tokens_of_another_scale_stand_in_its_order(tmp_path):
    tokens = [{"text": text, "p": p} for text, p in ((" hig", 0.1), ("low", 0.2), ("10", 0.3), (" ", 0.4))]
    assert in_order(tokens, ["low", "middle", "high"]) == ([("low", 0.2), (" hig", 0.1), (" ", 0.4), ("10", 0.3)], 2)
    entry = {"method": "SFT", "case": "correct", "tokens": tokens, "scale": ["low", "middle", "high"]}
    assert {"low", "hig", "␣"} <= set(words(score_tokens([entry], tmp_path / "a.svg")))


def test_bars_say_seconds_and_how_many_times_as_long(tmp_path):
    bars = {"DPO, free-form": {"writing": 0.2}, "LUQ, iterative": {"sampling": 1.8, "judging": 0.7}}
    texts = words(running_times(bars, tmp_path / "a.svg", base=0.2))
    assert {"DPO, free-form", "0.20 s, 1.0 times", "2.5 s, 12 times", "writing", "sampling", "judging"} <= set(texts)


def test_bars_without_a_base_say_seconds_only(tmp_path):
    texts = words(running_times({"LUQ, iterative": {"sampling": 1.8, "judging": 0.7}}, tmp_path / "b.svg"))
    assert "2.5 s" in texts and not any("times" in text for text in texts)


def test_a_name_becomes_one_line_whose_end_is_cut():
    assert short("  a\tb\u2028\x1b[31m\nc ") == "a b [31m c"
    assert short("x" * 50) == "x" * 27 + "…" and short("x" * 28) == "x" * 28


def test_panels_fill_rows():
    _, panels = panel_axes(COLUMNS + 1, PanelLayout("x", ("y", "z"), (1.0, 0.5)), "T")
    assert len(panels) == COLUMNS + 1 and all(len(parts) == 2 for parts in panels)
    boxes = [parts[0].get_position() for parts in panels]
    assert boxes[0].y0 == pytest.approx(boxes[COLUMNS - 1].y0) and boxes[COLUMNS].y1 < boxes[0].y0
    assert boxes[COLUMNS].x0 == pytest.approx(boxes[0].x0)
    lower = [parts[1].get_position() for parts in panels]
    assert all(below.y1 < above.y0 for below, above in zip(lower, boxes, strict=True))
    assert all(0 <= box.x0 and box.x1 <= 1 and 0 <= box.y0 and box.y1 <= 1 for box in boxes + lower)


PLOTS = {
    "reliability": lambda path, name: reliability_diagram({name: RECORDS, "other": RECORDS}, path),
    "histogram": lambda path, name: confidence_histogram({name: RECORDS, "other": RECORDS}, path),
    "risk": lambda path, name: risk_coverage_curves({name: RECORDS, "other": RECORDS}, path),
    "times": lambda path, name: running_times({name: {name: 1.0, "judging": 2.0}}, path),
    "tokens": lambda path, name: score_tokens(
        [{"method": name, "case": "correct", "tokens": [*TOKENS, {"text": name, "p": 0.01}], "ordinality": 0.87}], path
    ),
}


@pytest.mark.parametrize("kind", PLOTS)
def test_every_plot_is_sound_xml_and_always_the_same(kind, tmp_path):
    path = PLOTS[kind](tmp_path / "new" / "a.svg", HOSTILE)
    again = PLOTS[kind](tmp_path / "b.svg", HOSTILE)
    assert path.read_bytes() == again.read_bytes() and path.stat().st_size < 100_000
    assert any("$x_1$<script>\"'&-->" in word for word in words(path))
    assert "<script" not in path.read_text()
    assert [p.name for p in path.parent.iterdir()] == ["a.svg"]


def test_a_method_without_one_of_the_sentences_says_so(tmp_path):
    entry = {"method": "DPO", "case": "incorrect", "tokens": TOKENS, "ordinality": None}
    texts = words(score_tokens([entry, {**entry, "method": "SFT", "ordinality": 0.5}], tmp_path / "a.svg"))
    assert texts.count("there is no such sentence") == 2
    assert "DPO, incorrect sentence" in texts and "ordinality 0.50" in texts


WIDE = [f"{'W' * 26} ({'W' * number})" for number in (20, 30, 40)]


def wide_times(path):
    phases = dict.fromkeys([f"{'W' * 27}{number}" for number in range(6)], 1.23)
    spreads = dict.fromkeys(WIDE, (1.0, 9.0))
    return running_times(dict.fromkeys(WIDE, phases), path, base=0.2, spreads=spreads)


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: reliability_overlay(dict.fromkeys(WIDE, reliability(RECORDS)), path, "mean of the distribution"),
        lambda path: risk_overlay(dict.fromkeys(WIDE, risk_curve(RECORDS)), path, "mean of the distribution"),
        lambda path: histogram_overlay(dict.fromkeys(WIDE, histogram(RECORDS)), path),
        lambda path: write_curves([TrainingLog(f"{n}/{n}", {1: {"train/loss": 1.0}}) for n in WIDE], path),
        wide_times,
    ],
)
def test_no_text_leaves_a_plot_however_wide_the_names_are(draw, tmp_path, monkeypatch):
    drawn = []
    savefig = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **kw: [drawn.append(figure), savefig(figure, *args, **kw)]
    )
    draw(tmp_path / "a.png")
    (figure,) = drawn
    FigureCanvasAgg(figure).draw()  # at the resolution of the figure, in which extents are measured
    box = figure.get_tightbbox()
    assert min(box.x0, box.y0) >= 0 and box.x1 <= figure.get_figwidth() and box.y1 <= figure.get_figheight()
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert sum("WW…WW" in text for text in texts) >= len(WIDE)


def test_a_name_that_is_cut_keeps_both_ends_and_its_numbers(tmp_path):
    names = ["ExpectedReward (seed-1)", f"runs/experiment/ExpectedReward, free-form (seed-{'1' * 30}2)"]
    texts = words(reliability_overlay(dict.fromkeys(names, reliability(RECORDS)), tmp_path / "a.svg"))
    numbers = f": BS {100 * reliability(RECORDS).brier:.1f}, ECE-M {100 * reliability(RECORDS).ece_m:.1f}"
    legend = [text.removesuffix(numbers) for text in texts if text.endswith(numbers)]
    assert [name.partition("…")[0][:6] for name in legend] == ["Expect", "runs/e"]
    assert [name.endswith(end) for name, end in zip(legend, ("seed-1)", "12)"), strict=True)] == [True, True]


def test_phases_that_have_no_colour_are_added_up():
    times = {"A": dict(zip("abcdef", (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), strict=True)), "B": {"g": 7.0, "a": 0.5}}
    fewer = few_phases(times)
    assert fewer == {"A": {"c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0, "other": 3.0}, "B": {"g": 7.0, "other": 0.5}}
    assert few_phases({"A": times["A"]}) == {"A": times["A"]}  # six have colours


def test_more_phases_than_colours_cost_no_plot(tmp_path):
    seconds = {f"phase {number}": 1.0 + number for number in range(9)}
    entry = {"method": "A", "mode": "iterative", "kind": "method", "seconds": seconds, "records": 2}
    run = RunResults("run", tmp_path, times=({**entry, "prefill_tokens": 1, "data": ""},))
    (plot,), left_out = write_plots(run, tmp_path)
    assert plot.name == "times" and "other" in plot.svg and "phase 8" in plot.svg and not left_out


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: confidence_histogram({}, path), "no method"),
        (lambda path: confidence_histogram({"A": [record((None, 0.5))]}, path), "none of 1 records"),
        (lambda path: risk_coverage_curves({}, path), "no method"),
        (lambda path: risk_coverage_curves({"A": [record((0.5, None))]}, path), "none of 1 records"),
        (lambda path: running_times({}, path), "got 0 running times"),
        (lambda path: running_times({"A": dict.fromkeys("abcdefg", 1.0)}, path), "7 phases"),
        (lambda path: score_tokens([], path), "no tokens"),
    ],
)
def test_nothing_to_draw_is_an_error_in_one_line(draw, message, tmp_path):
    with pytest.raises(LovecError, match=message) as error:
        draw(tmp_path / "x.svg")
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_a_plot_inside_a_page_takes_its_colours_and_keeps_its_ids_apart(tmp_path):
    svg = reliability_diagram({"#0072b2": RECORDS}, tmp_path / "a.svg").read_text()
    first, width = inline_svg(svg, "f1", 'True "how"?')
    second, _ = inline_svg(svg, "f2", "")
    ids = [re.findall(r'\bid="([^"]*)"', text) for text in (first, second)]
    assert ids[0] and not set(ids[0]) & set(ids[1]) and len(set(ids[0])) == len(ids[0])
    used = {name for name in re.findall(r'(?:href="#|url\(#)([^")]+)', first)}
    assert used and used <= set(ids[0])
    assert 'aria-label="True &quot;how&quot;?"' in first and "<title" not in first and "<style" not in first
    assert "var(--plot-blue)" in first and not re.search(r'style="[^"]*#[0-9a-f]{6}', first)
    assert ">#0072b2<" in first  # a name is not a colour
    natural = float(re.search(r'width="([\d.]+)pt"', svg)[1])
    assert width == round(natural * 4 / 3)
    ElementTree.fromstring(first)


def test_a_plot_whose_colours_are_a_scale_keeps_them(tmp_path):
    svg = reward_surface({"log": LogReward()}, tmp_path / "a.svg").read_text()
    kept, _ = inline_svg(svg, "f1", "", themed=False)
    assert "var(--" not in kept and set(re.findall(r"#[0-9a-f]{6}", kept)) == set(re.findall(r"#[0-9a-f]{6}", svg))
    hatched = running_times({"A": {"a": 1.0, "b": 1.0}}, tmp_path / "b.svg").read_text()
    inside, _ = inline_svg(hatched, "f2", "")
    assert "url(#f2-" in inside and not re.search(r'="[^"]*#[0-9a-f]{6}', inside)


def test_a_mean_readout_is_drawn_from_the_distribution(tmp_path):
    halves = tuple(0.5 if score in (2, 4) else 0.0 for score in range(11))
    tagged = [Record("r", "Q?", sentences=(Sentence("S.", 1.0, 0.2, 2, halves),))]
    assert histogram(tagged, "mean").confidence == pytest.approx(0.3)
    assert histogram(tagged).confidence == pytest.approx(0.2)
    curve = risk_curve([replace(tagged[0]), record((0.25, 0.0))], "mean")
    assert curve.coverage == (1.0,) and curve.risk == (0.0,)  # a baseline has no distribution


def test_the_reward_of_a_run_is_drawn_on_the_scale_of_its_recipe(tmp_path):
    log = tmp_path / "grpo"
    (log / "logs" / "version_0").mkdir(parents=True)
    options = {"policy": {"scale": ["no", "yes"]}, "reward": {"class_path": "lovec.rewards.LinearReward"}}
    recipe = {"model": {"class_path": "GRPO", "init_args": options}}
    (log / "logs" / "version_0" / "config.yaml").write_text(yaml.safe_dump(recipe))
    run = RunResults("grpo", tmp_path, logs=(log,), recipes={log: recipe})
    plots, left_out = write_plots(run, tmp_path / "plots")
    assert [plot.name for plot in plots] == ["reward.no-to-yes"]
    texts = words(tmp_path / "plots" / "reward.no-to-yes.svg")
    assert "grpo" in texts and "5" not in texts  # the scores at the axes are 0 and 1
    assert len(left_out) == 1 and left_out[0].startswith("No training curves of grpo: ")
