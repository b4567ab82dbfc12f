"""Draw docs/rewards.svg: the three rewards of the paper. ``make plots`` runs it."""

from __future__ import annotations

from pathlib import Path

from lovec.reports import reward_surface
from lovec.rewards import LinearReward, LogReward, QuadraticReward

REWARDS = {"log": LogReward(), "quadratic": QuadraticReward(), "linear": LinearReward()}
PLOT = Path(__file__).with_suffix(".svg")


def main(path: Path = PLOT) -> None:
    """Write the plot and print its path."""
    print(reward_surface(REWARDS, path))


if __name__ == "__main__":
    main()
