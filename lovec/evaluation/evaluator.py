"""Tag records, label them and measure them: the same in validation and test, for every objective."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torchmetrics import Metric

from lovec.core.imports import import_function
from lovec.core.settings import Count, CountFromZero, PlainWord, Setting, check_range, checked
from lovec.metrics.records import (
    READOUTS,
    answer_statistics,
    claim_numbers,
    count_missing,
    passage_pairs,
    sentence_claims,
    sentence_pairs,
)
from lovec.metrics.suite import CalibrationSuite, user_metric_infos
from lovec.metrics.table import METRICS
from lovec.taggers.scoring import History
from lovec.taggers.scoring_check import SENTENCES
from lovec.text.abstentions import is_abstention
from lovec.types import (
    ITERATIVE,
    MODES,
    N_SCORES,
    ClaimReader,
    Embedder,
    Kind,
    LovecError,
    Oracle,
    Record,
    ResultRow,
    Tagger,
    checked_ratings,
)

LEVELS = {"sentence": sentence_pairs, "passage": passage_pairs}


@checked("evaluation.{}")
@dataclass
class EvaluationConfig:
    """How validation and test are run.

    Attributes:
        modes: iterative (tag the stored answers), free-form (the model writes answer and tags), or both.
        history: what iterative tagging shows of earlier sentences: `scores`, `hidden` or `previous`.
        max_new_tokens: longest free-form answer, in tokens.
        rows: number of sequences the engine runs at once.
        validation_records: number of validation records that are measured while a model is trained, drawn with the
            seed from those of the first domain; 0 is all records. Null is as many as cost about a tenth of an
            epoch, and at least 32; of a model with fewer than 50 million weights it is all. `validate` always measures
            all.
        name: what tables and files of a test call the method; null takes the name of the class.
        vanilla: whether `test` also measures the base model without the adapter.
        recalibrated: whether `test` also measures the method's confidences after recalibration on the validation
            records, by isotonic regression and by Platt scaling.
        recalibrated_baselines: whether baselines get such rows as well. For that they judge the validation records too,
            which costs as much per record as judging the test records.
        ablate_history: whether `test` also measures iterative tagging that sees only the previous sentence, without its
            score (the paper's no-previous-scores variant).
        scoring_check: number of sentences that `test` scores by whole tags as well, to tell how much first tokens of
            scores change; 0 leaves that out.
        ablate_author: whether `test` also measures iterative tagging of texts that the prompt already has, once as the
            model's earlier answer and once as the user's text.
        adapter: PEFT adapter that `test` measures; null takes the run's own.
        embedder: makes vectors of sentences, for the semantic diversity of answers; null leaves that metric out.
        abstentions: import path of a function that tells whether an answer declines, or of a class without arguments
            that makes one; null takes `lovec.text.abstentions.is_abstention`.
        metrics: torchmetrics of your own, each with update(confidence, factuality); they become columns of every table.
        count_missing: whether a sentence without a valid confidence is measured as one that states 0, instead of being
            left out; "mean" and "deployed" readouts leave it out all the same.

    Raises:
        LovecError: a mode is unknown, a number is out of range, or a metric cannot be used (see
            ``lovec.metrics.suite.user_metric_infos``).
    """

    modes: list[PlainWord] = field(default_factory=lambda: list(MODES))
    history: History = "scores"
    max_new_tokens: Count = 512
    rows: Count = 64
    validation_records: CountFromZero | None = None
    name: PlainWord | None = None
    vanilla: bool = True
    recalibrated: bool = False
    recalibrated_baselines: bool = False
    ablate_history: bool = False
    scoring_check: CountFromZero = SENTENCES
    ablate_author: bool = False
    adapter: Annotated[str | None, Setting(taken="unread")] = None
    embedder: Embedder | None = None
    abstentions: str | None = None
    metrics: list[Metric] | None = None
    count_missing: bool = False

    def __post_init__(self) -> None:
        if unknown := set(self.modes) - set(MODES):
            raise LovecError(f"evaluation.modes contains {sorted(unknown)}; expected some of {list(MODES)}")
        user_metric_infos(self.metrics or [])


class Evaluator(nn.Module):
    """Tags and labels records, and keeps one calibration suite per row of the result table.

    Args:
        taggers: one per mode; modes without one are left out.
        oracle: labels free-form answers; without one, free-form tagging is left out.
        config: the settings.
        domains: the domains that records may have.
        levels: number of levels of the scale that the taggers' scores belong to.

    Attributes:
        modes: the modes that are measured.
        metric_infos: how to show each metric of a row, by name.

    Raises:
        LovecError: no mode is left to measure.
    """

    def __init__(
        self,
        taggers: Mapping[str, Tagger],
        oracle: Oracle | None,
        config: EvaluationConfig,
        domains: Sequence[str],
        levels: int = N_SCORES,
    ) -> None:
        super().__init__()
        self.oracle = oracle
        self.embedder = config.embedder
        self._count_missing = config.count_missing
        self._declines: Callable[[str], bool] = is_abstention
        if config.abstentions is not None:
            self._declines = import_function(config.abstentions, "a function that tells whether an answer declines")
        self.taggers = dict(taggers)
        tagged_modes = [mode for mode in config.modes if mode in taggers]
        self.modes = [mode for mode in tagged_modes if mode == ITERATIVE or oracle is not None]
        self.domains = tuple(domains)
        if not tagged_modes:
            raise LovecError(f"evaluation.modes is {config.modes}; this method is measured in {list(taggers)} tagging")
        if not self.modes:
            raise LovecError(
                "free-form answers need an oracle to be measured, and the data has none: "
                "add iterative to evaluation.modes, or give model.oracle"
            )
        if len(self.modes) < len(tagged_modes):
            rank_zero_info("free-form tagging is left out: the data has no oracle to label new answers")
        metrics = config.metrics or []
        self.metric_infos = METRICS | user_metric_infos(metrics)
        self._keys = list(product(self.domains, self.modes, LEVELS, READOUTS))
        self.suites = nn.ModuleList([CalibrationSuite(metrics, levels) for _ in self._keys])

    def tag_and_label(self, records: Sequence[Record], mode: str) -> list[Record]:
        """Tag records in one mode; free-form answers are labelled by the oracle, given ones keep their labels."""
        return self.add_labels(self.tag(records, mode), mode)

    def tag(self, records: Sequence[Record], mode: str) -> list[Record]:
        """Tag records in one mode, see ``checked_answers``; iterative tagging leaves out records without an answer."""
        return checked_answers(self.taggers[mode], answered(records) if mode == ITERATIVE else records)

    def add_labels(self, records: list[Record], mode: str) -> list[Record]:
        """Return the records, with the oracle's labels where the model wrote the answers itself."""
        if mode == ITERATIVE:
            return records
        assert self.oracle is not None
        return label(records, self.oracle)

    def update(self, mode: str, records: Sequence[Record], readout: str = "stated") -> None:
        """Add tagged and labelled records to the metrics of a mode.

        Args:
            mode: how they were tagged.
            records: the records.
            readout: what their stated confidences were computed from, where that is something else than the tag.
        """
        counts = self._count_missing and readout == "stated"
        for domain in self.domains:
            in_domain = [record for record in records if record.domain == domain]
            measured = count_missing(in_domain) if counts else in_domain
            answers = answer_statistics(in_domain, self._declines, self.embedder, written=mode != ITERATIVE)
            # of what is said of answers, F1 alone depends on which sentences are measured
            counted = replace(answers, f1_at_k=answer_statistics(measured).f1_at_k) if counts else answers
            for (level, pairs), read in product(LEVELS.items(), READOUTS):
                found = valid, _, malformed = pairs(in_domain, read)
                confidence, factuality, _ = pairs(measured, read) if counts else found
                claims = sentence_claims(measured, read) if level == "sentence" else []
                suite: Any = self.suites[self._keys.index((domain, mode, level, read))]
                suite.update(
                    torch.tensor(confidence, dtype=torch.float64),
                    torch.tensor(factuality, dtype=torch.float64),
                    malformed,
                    counted if read == "stated" else answers,
                    claim_numbers(claims) if any(claims) else None,
                    len(confidence) - len(valid),
                )

    def rows(
        self,
        method: str,
        kind: Kind = "method",
        seed: int | None = None,
        modes: Sequence[str] | None = None,
    ) -> list[ResultRow]:
        """Compute one row per domain, mode, level and readout, and reset the metrics. Every process must call it.

        Args:
            method: name of the method that has tagged the records.
            kind: what it is.
            seed: its training seed.
            modes: the modes to make rows of; None is all.
        """
        rows = []
        suites: list[Any] = list(self.suites)
        for key, suite in zip(self._keys, suites, strict=True):
            if modes is not None and key[1] not in modes:
                continue
            values = {name: float(value) for name, value in suite.compute().items()}
            suite.reset()
            defined = {name: None if math.isnan(value) else value for name, value in values.items()}
            metrics = {name: defined[name] for name in self.metric_infos if name in defined}
            rows.append(ResultRow(method, kind, *key, seed=seed, n=int(values["n"]), metrics=metrics))
        return rows


def checked_answers(tagger: Tagger, records: Sequence[Record]) -> list[Record]:
    """Return what a tagger makes of records.

    Raises:
        LovecError: it did not return the records, or gave a confidence outside [0, 1].
    """
    tagged = tagger.tag(records)
    if [record.id for record in tagged] != [record.id for record in records]:
        raise LovecError(
            f"{type(tagger).__name__} returned {len(tagged)} records for {len(records)}, expected the same ones in "
            "the same order"
        )
    for record in tagged:
        for value in (sentence.stated for sentence in record.sentences):
            check_range(f"a confidence that {type(tagger).__name__} gave {record.id}", value, at_least=0, at_most=1)
    return tagged


def tagged_file(method: str, mode: str, readout: str = "stated") -> str:
    """Return the name of the file with a method's tagged test records.

    Args:
        method: its name in tables.
        mode: "iterative" or "free-form".
        readout: of recalibrated records, the readout that was mapped: each has a file of its own.
    """
    words = re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")
    return ".".join([words, mode, *([] if readout == "stated" else [readout]), "jsonl"])


def answered(records: Iterable[Record]) -> list[Record]:
    """Return the records that have an answer to tag."""
    return [record for record in records if record.sentences]


def label(records: Sequence[Record], oracle: Oracle) -> list[Record]:
    """Return the records with an oracle's factuality, or None, on every sentence, and what it claims where it can say.

    Raises:
        LovecError: the oracle did not return one number in [0, 1], or None, per sentence.
    """
    ratings = checked_ratings(oracle, records)
    labelled = [record.with_factuality(row) for record, row in zip(records, ratings, strict=True)]
    if not isinstance(oracle, ClaimReader):
        return labelled
    return [record.with_claims(row) for record, row in zip(labelled, oracle.claims(labelled), strict=True)]
