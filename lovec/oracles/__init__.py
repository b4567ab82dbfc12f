"""Oracles: rate how true sentences are, in [0, 1], or None where they cannot tell."""

from lovec.oracles.atlas import AtlasOracle
from lovec.oracles.judge import SelfJudge
from lovec.oracles.labels import LabelFile
from lovec.oracles.openai import OpenAIOracle, OracleStopped
from lovec.oracles.triviaqa import TriviaQAOracle
from lovec.oracles.world import WorldOracle

__all__ = ["AtlasOracle", "LabelFile", "OpenAIOracle", "OracleStopped", "SelfJudge", "TriviaQAOracle", "WorldOracle"]
