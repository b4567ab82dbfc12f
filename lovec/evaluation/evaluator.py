"""Validation and test, the same for every objective: tag, label, measure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lovec.metrics import CalibrationSuite
from lovec.metrics.records import READOUTS, passage_pairs, sentence_pairs, statements
from lovec.sentences import is_abstention
from lovec.taggers.scoring import History
from lovec.types import Embedder, LovecError, Oracle, Record, Tagger

MODES = ("iterative", "free-form")
LEVELS = {"sentence": sentence_pairs, "passage": passage_pairs}


@dataclass
class EvaluationConfig:
    """How validation and test are run.

    Attributes:
        modes: iterative (tag the stored answers), free-form (the model writes answer and tags), or both.
        history: what iterative tagging shows of earlier sentences: `scores`, `hidden` or `previous`.
        max_new_tokens: longest free-form answer, in tokens.
        rows: sequences the engine runs at once.
        probe_every: optimiser batches between two probes in training (see ``lovec.callbacks.probe``); 0 makes none.
        probe_rows: validation questions a probe asks.
        name: what tables and files of a test call the method; null takes the name of the class.
        vanilla: whether `test` also measures the base model without the adapter.
        recalibrated: whether `test` also measures this method's confidences mapped by what validation makes of them,
            by isotonic regression and by Platt's curve.
        ablate_history: whether `test` also measures iterative tagging that sees the sentence before only, without its
            score (the paper's no-previous-scores variant).
        adapter: PEFT adapter that `test` measures; null takes the run's own.
        embedder: makes vectors of sentences, for the semantic diversity of answers; null leaves that figure out.
    """

    modes: list[str] = field(default_factory=lambda: list(MODES))
    history: History = "scores"
    max_new_tokens: int = 512
    rows: int = 64
    probe_every: int = 50
    probe_rows: int = 8
    name: str | None = None
    vanilla: bool = True
    recalibrated: bool = False
    ablate_history: bool = False
    adapter: str | None = None
    embedder: Embedder | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.modes) - set(MODES):
            raise LovecError(f"evaluation.modes holds {sorted(unknown)}; expected some of {list(MODES)}")
        if self.probe_every < 0 or self.probe_rows < 1:
            raise LovecError(
                f"evaluation.probe_every is {self.probe_every} and probe_rows {self.probe_rows}, "
                "expected at least 0 (no probes) and 1"
            )


class Evaluator(nn.Module):
    """Tags records in each mode and keeps a calibration suite for every row of the result table.

    Args:
        taggers: one for every mode; modes without one are left out.
        oracle: labels free-form answers; without one, free-form tagging is left out.
        config: settings.
        domains: values of ``meta["domain"]`` that records may have.
    """

    def __init__(
        self,
        taggers: Mapping[str, Tagger],
        oracle: Oracle | None,
        config: EvaluationConfig,
        domains: Sequence[str],
    ) -> None:
        super().__init__()
        self.oracle = oracle
        self.embedder = config.embedder
        self.taggers = dict(taggers)
        asked = [mode for mode in config.modes if mode in taggers]
        self.modes = [mode for mode in asked if mode == "iterative" or oracle is not None]
        self.domains = tuple(domains)
        if not asked:
            raise LovecError(f"evaluation.modes is {config.modes}; this method is measured in {list(taggers)} tagging")
        if not self.modes:
            raise LovecError(
                "free-form answers need an oracle to be measured, and the data has none: "
                "add iterative to evaluation.modes, or give model.oracle"
            )
        if len(self.modes) < len(asked):
            rank_zero_info("free-form tagging is left out: the data has no oracle to label new answers")
        self._keys = list(product(self.domains, self.modes, LEVELS, READOUTS))
        self.suites = nn.ModuleList([CalibrationSuite() for _ in self._keys])

    def tag(self, records: Sequence[Record], mode: str) -> list[Record]:
        """Tag records in one mode; free-form answers are labelled by the oracle, given ones keep their labels."""
        return self.labelled(self.tagged(records, mode), mode)

    def tagged(self, records: Sequence[Record], mode: str) -> list[Record]:
        """Tag records in one mode: iterative tagging those that have an answer, free-form all of them."""
        own = given(records) if mode == "iterative" else records
        return self.taggers[mode].tag(own)

    def labelled(self, records: list[Record], mode: str) -> list[Record]:
        """Tagged records; what the model wrote itself gets the oracle's labels."""
        if mode == "iterative":
            return records
        assert self.oracle is not None
        return [label(record, rates) for record, rates in zip(records, self.oracle.rate(records), strict=True)]

    def update(self, mode: str, records: Sequence[Record]) -> None:
        """Add tagged and labelled records to the suites of ``mode``."""
        for domain in self.domains:
            inside = [record for record in records if str(record.meta.get("domain", "in-domain")) == domain]
            stated = statements(inside, is_abstention, self.embedder)
            for (level, pairs), readout in product(LEVELS.items(), READOUTS):
                confidence, factuality, malformed = pairs(inside, readout)
                suite: Any = self.suites[self._keys.index((domain, mode, level, readout))]
                device = suite.device
                suite.update(
                    torch.tensor(confidence, dtype=torch.float64, device=device),
                    torch.tensor(factuality, dtype=torch.float64, device=device),
                    malformed,
                    stated,
                )

    def rows(self, **extra: Any) -> list[dict[str, Any]]:
        """One row for every domain, mode, level and readout, with the suite's figures (None where undefined).

        Resets the suites.
        """
        rows = []
        suites: list[Any] = list(self.suites)
        for key, suite in zip(self._keys, suites, strict=True):
            figures = {name: None if value != value else float(value) for name, value in suite.compute().items()}
            suite.reset()
            names = dict(zip(("domain", "mode", "level", "readout"), key, strict=True))
            rows.append({**extra, **names, **figures, "n": int(figures["n"] or 0)})
        return rows


def tagged_file(method: str, mode: str, readout: str = "stated") -> str:
    """Name of the file that holds a method's tagged test records; recalibrated ones have a file for each readout."""
    words = re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")
    return ".".join([words, mode, *([] if readout == "stated" else [readout]), "jsonl"])


def given(records: Iterable[Record]) -> list[Record]:
    """The records that hold an answer to tag."""
    return [record for record in records if record.sentences]


def label(record: Record, rates: Sequence[float | None]) -> Record:
    """The record with one factuality a sentence."""
    sentences = tuple(replace(s, factuality=f) for s, f in zip(record.sentences, rates, strict=True))
    return replace(record, sentences=sentences)
