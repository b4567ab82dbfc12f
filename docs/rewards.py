"""Draws docs/rewards.svg: the three rewards of the paper. Run it with ``make figures``."""

from __future__ import annotations

from pathlib import Path

from lovec.reports import reward_surface
from lovec.rewards import LinearReward, LogReward, QuadraticReward

REWARDS = {"log": LogReward(), "quadratic": QuadraticReward(), "linear": LinearReward()}

FIGURE = Path(__file__).with_suffix(".svg")


def main(path: Path = FIGURE) -> None:
    """Writes the figure."""
    print(reward_surface(REWARDS, path))


if __name__ == "__main__":
    main()
