"""The public test sets: questions for a model to answer, or answers that were labelled before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar

from lovec.datamodules.base import RecordsDataModule
from lovec.datasets import bios, popqa, triviaqa, wikibio, wildhallu
from lovec.datasets.evidence import open_evidence, with_evidence
from lovec.datasets.layouts import read_any
from lovec.oracles.triviaqa import TriviaQAOracle
from lovec.text.untag import bare_statements
from lovec.types import LovecError, NoTrainingLabels, Record


class QuestionSet(RecordsDataModule):
    """A set of questions to test on; a subclass sets ``domain`` and overrides :meth:`questions`.

    With ``labels``, the answers of that file are tagged and compared with its labels, so that no oracle has to rate
    them again. Without, the model answers the questions and an oracle (``--model.oracle``) rates the answers. The same
    class can be given to ``lovec label --data`` to answer and label its questions.

    Args:
        labels: labelled answers to these questions, as ``lovec label`` writes them or in another layout that
            ``lovec.datasets.layouts`` recognises.
        path: a copy of the questions on this machine.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for records without evidence.
        val_labels: labelled answers on which the best constant confidence is chosen; without them there is no such row.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.

    Attributes:
        domain: group of the result table for records that name no other in ``meta["domain"]``.
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

    def load(self, split: str) -> list[Record]:
        """Return the labelled answers of a split if there are any, otherwise its questions.

        Raises:
            LovecError: a file is missing, broken or without labels.
            NoTrainingLabels: ``split`` is "train".
        """
        if split == "train":
            raise NoTrainingLabels(
                f"{type(self).__name__} is for testing only; train on labelled answers with --data Preferences or "
                "Demonstrations, on questions with --data Prompts"
            )
        if split == "validation":
            return self.read_labels(self.val_labels) if self.val_labels else []
        return self.read_labels(self.labels) if self.labels else self.open_questions(split)

    def read_labels(self, path: str | os.PathLike[str]) -> list[Record]:
        """Return the records of a file with labels, with evidence if a source of it is given.

        Those without a domain get that of the class.

        Raises:
            LovecError: a file is missing or broken, or none of the sentences has a label.
        """
        tags = self.tags
        records = [self._with_own_domain(bare_statements(record, tags)) for record in read_any(path)]
        if not any(record.has_labels for record in records):
            raise LovecError(
                f"{path} has no labelled sentence; label it with `lovec label`, or leave the option out to let the "
                "model answer and an oracle rate the answers"
            )
        return self._with_evidence(records)

    def open_questions(self, split: str) -> list[Record]:
        """Return the questions of a split, with evidence if a source of it is given."""
        return self._with_evidence(map(self._with_own_domain, self.questions(split)))

    def _with_evidence(self, records: Iterable[Record]) -> list[Record]:
        return list(with_evidence(records, open_evidence(self.evidence)) if self.evidence else records)

    def _with_own_domain(self, record: Record) -> Record:
        return record.in_domain(self.domain)


class WildHallu(QuestionSet):
    """WildHallucinations, the paper's training and in-domain test set, split 8:1:1 as its authors split it.

    Labelled answers belong to the split in their ``meta["split"]`` (``lovec.datasets.wildhallu`` writes it), or to the
    test split without one; so one labelled file serves training, validation and test. Training takes its fully labelled
    answers, and draws wrong scores for those that have none. Without labels, all three splits are questions with the
    web pages of the data set as evidence.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set on this machine; default: the Hugging Face hub.
        evidence: another source of evidence, for entities without a web page in the data set.
        val_labels: labelled answers for validation, instead of those of ``labels``.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` (also of the wrong scores) of the datamodule.
    """

    domain = wildhallu.DOMAIN
    splits = ("all", *wildhallu.SPLITS)

    def questions(self, split: str) -> Iterable[Record]:
        """Return a question about every entity of a split, with its web pages as evidence."""
        return wildhallu.read_wildhallu(self.path, None if split == "all" else split)

    def load(self, split: str) -> list[Record]:
        """Return the labelled answers of a split, or its questions."""
        if split == "validation" and self.val_labels:
            return self.read_labels(self.val_labels)
        if not self.labels:
            return self.open_questions(split)
        records = [record for record in self.read_labels(self.labels) if record.meta.get("split", "test") == split]
        return self.training_pairs(records) if split == "train" else records


class Bios(QuestionSet):
    """The 183 people of FActScore.

    Args:
        labels: labelled answers to these questions, such as FActScore's own labelled files.
        path: the names, one per line: FActScore's ``prompt_entities.txt``.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for records without evidence.
        val_labels: labelled answers on which the best constant confidence is chosen; without them there is no such row.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = bios.DOMAIN

    def questions(self, split: str) -> Iterable[Record]:
        """Return a question about every person."""
        return bios.read_bios(self.path)


class PopQA(QuestionSet):
    """PopQA, long form: a paragraph about the subject of each question.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set or of a subset (TSV of its columns); default: the Hugging Face hub.
        evidence: Wikipedia (FActScore's sqlite file) or JSONL with title and text, for records without evidence.
        val_labels: labelled answers on which the best constant confidence is chosen; without them there is no such row.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = popqa.DOMAIN

    def questions(self, split: str) -> Iterable[Record]:
        """Return a question about every subject."""
        return popqa.read_popqa(self.path)


class TriviaQA(QuestionSet):
    """TriviaQA, short form: answers of a few words, which are right or wrong by the aliases of the data set.

    It brings its own oracle, so free-form tagging needs no other. Its metrics are ECE (the column ECE-M) and AUROC.

    Args:
        labels: labelled answers to these questions.
        path: a copy of the data set on this machine; default: the Hugging Face hub.
        val_labels: labelled answers on which the best constant confidence is chosen; without them there is no such row.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = triviaqa.DOMAIN

    def __init__(
        self, labels: str | None = None, path: str | None = None, val_labels: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(labels, path, None, val_labels, **kwargs)

    @property
    def oracle(self) -> TriviaQAOracle:
        """The exact oracle, which compares answers with the aliases."""
        return TriviaQAOracle()

    def questions(self, split: str) -> Iterable[Record]:
        """Return the questions of TriviaQA's validation split, whose answers are public."""
        return triviaqa.read_triviaqa(self.path, self.scale)


class WikiBio(QuestionSet):
    """Passages about people that GPT-3 wrote, with a human label for every sentence (SelfCheckGPT's data set).

    Args:
        labels: other labels of these passages, instead of the human ones.
        path: a copy of the data set or of its replication on this machine; default: the Hugging Face hub.
        evidence: another source of evidence, for passages without one.
        val_labels: labelled answers on which the best constant confidence is chosen; without them there is no such row.
        **kwargs: ``batch_size``, ``eval_batch_size`` and ``seed`` of the datamodule.
    """

    domain = wikibio.DOMAIN
    answered = True

    def questions(self, split: str) -> Iterable[Record]:
        """Return the passages with their labels, and the text of Wikipedia as evidence."""
        return wikibio.read_wikibio(self.path)
