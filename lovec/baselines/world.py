"""What baselines ask a model of the embedded world, which knows few words."""

from __future__ import annotations

from lovec.baselines.base import Wording
from lovec.datasets.world.text import INSTRUCTION

WORLD_WORDING = Wording(
    p_true=f"{INSTRUCTION} {{question}} {{context}} {{sentence}}",
    true=" 10",
    false=" 0",
    verbal=f"{INSTRUCTION} {{question}} {{context}} {{sentence}}",
    score=" {score}",
    support=f"{INSTRUCTION} {{context}} {{sentence}}",
    yes=" 10",
    no=" 0",
)
"""Prompts of the baselines in the words of the world's model, which does not know "True" or "Yes", but scores."""
