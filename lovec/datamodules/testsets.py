"""The public test sets: questions that a model answers, or answers that were labelled before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets import bios, popqa, triviaqa, wildhallu
from lovec.datasets.evidence import open_evidence, with_evidence
from lovec.datasets.layouts import read_any
from lovec.datasets.pairs import with_rejected
from lovec.oracles.triviaqa import TriviaQAOracle
from lovec.types import LovecError, Record


class QuestionSet(RecordsDataModule):
    """A public set of questions to test on; a subclass says in :meth:`questions` which.

    With ``labels`` the answers of that file are tagged, and measured against its labels, so that no oracle is asked
    twice. Without them there are questions only: the model answers, and an oracle (``--model.oracle``) judges.

    Args:
        labels: labelled answers to these questions, as `lovec label` writes them (any layout that
            ``lovec.datasets.layouts`` knows).
        path: the questions, where the hub is not to be asked.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for the oracle that judges.
        val_labels: labelled answers to choose the best constant by; without them that row is left out.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain: ClassVar[str]

    def __init__(
        self,
        labels: str | None = None,
        path: str | None = None,
        evidence: str | None = None,
        val_labels: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.labels = labels
        self.path = path
        self.evidence = evidence
        self.val_labels = val_labels

    def questions(self, split: str) -> Iterable[Record]:
        """The questions of a split, without answers. To be overridden."""
        raise LovecError(f"{type(self).__name__} has no questions; override questions(split)")

    def load(self, split: str) -> list[Record]:
        """Labelled answers where there are some, else questions.

        Raises:
            LovecError: a file is missing or broken or holds no label, or training was asked for.
        """
        if split == "train":
            raise LovecError(
                f"{type(self).__name__} is for testing only; train on labelled answers with --data Preferences or "
                "Demonstrations, on questions with --data Prompts"
            )
        if split == "validation":
            return self.labelled(self.val_labels) if self.val_labels else []
        return self.labelled(self.labels) if self.labels else self.asked(split)

    def labelled(self, path: str | os.PathLike[str]) -> list[Record]:
        """The records of a file that holds labels; those that name no domain are of this one."""
        records = [self._placed(record) for record in read_any(path)]
        if not any(s.factuality is not None for record in records for s in record.sentences):
            raise LovecError(
                f"{path} holds no labelled sentence; label it with `lovec label`, or leave the option out to let the "
                "model answer and an oracle judge"
            )
        return records

    def asked(self, split: str) -> list[Record]:
        """The questions of a split, with evidence where a source of it is given."""
        records = self.questions(split)
        return list(with_evidence(records, open_evidence(self.evidence)) if self.evidence else records)

    def _placed(self, record: Record) -> Record:
        return replace(record, meta={"domain": self.domain, **record.meta})


class WildHallu(QuestionSet):
    """WildHallucinations, the paper's training and in-domain test set, split 8:1:1 as the authors split it.

    Labelled answers go to the split that their ``meta["split"]`` names (``lovec.datasets.wildhallu`` writes it); one
    without it is tested on. So one labelled file trains, validates and tests; training takes its fully labelled
    answers, with wrong scores drawn where it has none. Without labels all three splits are questions, with the web
    pages as evidence.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set, where the hub is not to be asked.
        evidence: another source of evidence than the pages that come with the data set; it is asked about entities
            without a page only.
        val_labels: labelled answers for validation, instead of those of ``labels``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (of the wrong scores, too) of the datamodule.
    """

    domain = wildhallu.DOMAIN

    def questions(self, split: str) -> Iterable[Record]:
        """The entities of a split."""
        return wildhallu.read_wildhallu(self.path, split)

    def load(self, split: str) -> list[Record]:
        """The labelled answers of a split, or its questions."""
        if split == "validation" and self.val_labels:
            return self.labelled(self.val_labels)
        if not self.labels:
            return self.asked(split)
        own = [r for r in self.labelled(self.labels) if r.meta.get("split", "test") == split]
        if split != "train":
            return own
        rows = self.keep_labelled(own, split)
        return [row if row.rejected is not None else with_rejected(row, self.seed) for row in rows]


class Bios(QuestionSet):
    """The 183 people of FActScore.

    Args:
        labels: labelled answers to these questions; FActScore's own labelled files will do.
        path: their names, one a line: FActScore's ``prompt_entities.txt``.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for the oracle that judges.
        val_labels: labelled answers to choose the best constant by; without them that row is left out.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = bios.DOMAIN

    def questions(self, split: str) -> Iterable[Record]:
        """A question about every name."""
        return bios.read_bios(self.path)


class PopQA(QuestionSet):
    """The subjects of PopQA, long form.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set or of a subset (TSV of its columns), where the hub is not to be asked.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for the oracle that judges.
        val_labels: labelled answers to choose the best constant by; without them that row is left out.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = popqa.DOMAIN

    def questions(self, split: str) -> Iterable[Record]:
        """A question about every subject."""
        return popqa.read_popqa(self.path)


class TriviaQA(QuestionSet):
    """TriviaQA, short form: the model answers in a few words, which are right or wrong by the aliases.

    Its own oracle judges, so free-form tagging needs nothing else; figures are ECE (column ECE-M) and AUROC.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set, where the hub is not to be asked.
        val_labels: labelled answers to choose the best constant by; without them that row is left out.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = triviaqa.DOMAIN

    def __init__(
        self, labels: str | None = None, path: str | None = None, val_labels: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(labels, path, None, val_labels, **kwargs)

    @property
    def oracle(self) -> TriviaQAOracle:
        """Exact: an answer is compared with the aliases."""
        return TriviaQAOracle()

    def questions(self, split: str) -> Iterable[Record]:
        """The questions of the validation split, whose answers are known."""
        return triviaqa.read_triviaqa(self.path)
