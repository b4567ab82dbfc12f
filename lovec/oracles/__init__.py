"""Oracles: say how true sentences are, in [0, 1], or None where they cannot."""

from lovec.oracles.judge import SelfJudge
from lovec.oracles.world import WorldOracle

__all__ = ["SelfJudge", "WorldOracle"]
