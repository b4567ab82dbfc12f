"""Sentences that are clearly true or false by their evidence, to validate a judge with."""

from __future__ import annotations

from pathlib import Path

from lovec.datasets.jsonl import read_records

GOLD = tuple(read_records(Path(__file__).with_suffix(".jsonl")))
"""Two records. The lighthouse is invented, so that only the evidence says what is true of it."""
