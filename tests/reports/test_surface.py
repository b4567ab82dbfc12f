"""Reward surfaces: the spans by hand, and a file that is always the same."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from scripts import load_file

from lovec.reports import reward_surface
from lovec.reports.surface import best_spans, draw
from lovec.rewards import LinearReward, LogReward, QuadraticReward, reward_table
from lovec.types import LovecError, Scale

ROOT = Path(__file__).resolve().parents[2]
REWARDS = {"log": LogReward(), "a & <b>": QuadraticReward(contrast=2)}


def words(path):
    """Return the texts of an SVG."""
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_the_linear_rule_pays_for_two_scores_only():
    assert list(best_spans(LinearReward())) == [(0, 0.0, 0.5), (10, 0.501, 1.0)]


def test_spans_of_the_brier_rule_are_the_nearest_scores():
    spans = list(best_spans(QuadraticReward()))
    assert [score for score, _, _ in spans] == list(range(11))
    for score, low, high in spans:
        assert low == pytest.approx(max(0, score / 10 - 0.05), abs=1.01e-3)
        assert high == pytest.approx(min(1, score / 10 + 0.05), abs=1.01e-3)


def test_another_scale_has_its_own_scores():
    scale = Scale(("no", "perhaps", "yes"))
    assert [score for score, _, _ in best_spans(QuadraticReward(), scale)] == [0, 1, 2]
    _, upper, lower, *_ = draw({"": QuadraticReward()}, "", scale).axes
    assert [ax.get_xlim() for ax in (upper, lower)] == [(-0.5, 2.5)] * 2
    assert upper.get_xticks().tolist() == upper.get_yticks().tolist() == [0, 1, 2]


def test_the_map_shows_the_rewards_by_rating_and_score():
    figure = draw(REWARDS, "")
    bars, maps = figure.axes[:2], figure.axes[2:4]
    for ax, reward in zip(maps, REWARDS.values(), strict=True):
        (mesh,) = (shape for shape in ax.collections if hasattr(shape, "get_coordinates"))
        assert mesh.get_array().T.tolist() == reward_table(reward)
        assert mesh.norm.vmin == -mesh.norm.vmax  # so that white is 0
        dots = next(shape for shape in ax.collections if shape is not mesh).get_offsets()
        assert dots.tolist() == [[rating, rating] for rating in range(11)]
    assert bars[0].get_xlim() == pytest.approx((-31.6228, 33.1228), abs=1e-4)
    assert bars[1].get_xlim() == pytest.approx((-10, 10))


@pytest.mark.parametrize(
    ("reward", "ends"),
    [(lambda score, rating: 0.0, (0, 1)), (lambda score, rating: -2.0, (-2, 0)), (LinearReward(), (0, 10))],
    ids=["nothing", "one loss", "gains"],
)
def test_colour_bars_reach_from_0_to_the_extremes(reward, ends):
    assert draw({"": reward}, "").axes[0].get_xlim() == ends


def test_the_file_is_small_xml_and_always_the_same(tmp_path):
    path = reward_surface(REWARDS, tmp_path / "new" / "a.svg", title="Two")
    again = reward_surface(REWARDS, tmp_path / "b.svg", title="Two")
    assert path.read_bytes() == again.read_bytes()
    assert path.stat().st_size < 60_000 * len(REWARDS)
    assert [p.name for p in path.parent.iterdir()] == ["a.svg"]
    assert {"Two", "log", "a & <b>", "rating", "score that pays best"} <= set(words(path))
    other = reward_surface({**REWARDS, "log": LogReward(gamma=1)}, tmp_path / "c.svg", title="Two")
    assert other.read_bytes() != path.read_bytes()


def test_a_png_is_a_png(tmp_path):
    path = reward_surface({"linear": LinearReward()}, tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.read_bytes() == reward_surface({"linear": LinearReward()}, tmp_path / "b.png").read_bytes()


def test_what_cannot_be_drawn_is_an_error_in_one_line(tmp_path):
    with pytest.raises(LovecError, match="no reward to draw"):
        reward_surface({}, tmp_path / "a.svg")
    with pytest.raises(LovecError, match=r"a\.jpg, expected a name that ends in \.svg, \.pdf or \.png"):
        reward_surface(REWARDS, tmp_path / "a.jpg")
    with pytest.raises(LovecError, match=r"gives nan for the score 0"):
        reward_surface({"nan": lambda score, rating: float("nan")}, tmp_path / "new" / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_the_drawing_in_the_docs_is_of_these_rewards(tmp_path):
    script = load_file(ROOT / "docs/rewards.py", "draw_rewards")
    script.main(tmp_path / "rewards.svg")
    committed = ROOT / "docs/rewards.svg"
    # Texts and colours, not bytes: matplotlib places shapes differently in every version.
    assert words(committed) == words(tmp_path / "rewards.svg"), "run `make plots`"
    assert colours(committed) == colours(tmp_path / "rewards.svg"), "run `make plots`"


def colours(path):
    """Return the styles of the filled shapes of an SVG."""
    paths = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}path")
    return [shape.get("style") for shape in paths if "fill" in (shape.get("style") or "")]
