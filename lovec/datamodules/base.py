"""The base of all datamodules: it serves one optimiser batch per item, in an order that a resumed run continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lovec.baselines import Judge, Wording
from lovec.core.notices import counted
from lovec.core.provenance import text_digest
from lovec.core.settings import CheckedSettings, Count, CountFromZero, Seed
from lovec.datasets.jsonl import record_to_dict
from lovec.datasets.pairs import WrongScores, with_rejected
from lovec.datasets.stored import StoredRecords, check_own_ids, domains_of, selected
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, LovecError, Oracle, Record, Scale, Unit

UNLABELLED = "a sentence without a label, or no sentence"
"""Why a record is left out of training, in :attr:`RecordsDataModule.summary`."""

_UNFIT = "cannot be learned from"
"""Why a module leaves a record out, likewise."""

_SPLITS = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",), "predict": ("test",)}


class RecordBatch:
    """The records of one batch on this process. It can be iterated and indexed and has a length.

    It is deliberately not a list: Lightning walks through lists to move and cast tensors, and fails on the frozen
    dataclasses inside.
    """

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]


Unfit: TypeAlias = Literal["refuse", "leave_out"]
"""What becomes of training records that cannot be learned from."""


class RecordsDataModule(LightningDataModule, CheckedSettings):
    """Serves records for training, validation and test; a subclass overrides :meth:`load` to return them.

    A training item is a whole optimiser batch; splitting it to fit into memory is the training module's business. The
    order of an epoch is a function of (seed, epoch), so the only state is :attr:`served`, the number of optimiser
    batches trained on. The training module counts it by calling :meth:`batch_done`; an iterator could not, because
    Lightning may fetch a batch ahead of the one it trains on.

    A subclass that also overrides :meth:`questions` is a data set that ``lovec label --data`` can start from.

    Args:
        batch_size: number of records in an optimiser batch, over all processes; a multiple of the number of processes.
        eval_batch_size: number of records that a process tags at a time in validation and test.
        seed: seed of the order of the training records, and of all random draws.
        first_epoch: number of epochs that the starting adapter was trained for with these records and this seed; the
            orders continue after theirs.
        unfit: what becomes of training records that cannot be learned from, since they are too long or hold tag words:
            "refuse" ends the run before the first step, "leave_out" trains on the others.
        wrong_scores: how wrong scores are drawn for preference pairs that have none: "uniform" from all scores but the
            true one (the paper), or "near" from those up to a fifth of the scale away from it.

    Attributes:
        splits: splits that :meth:`questions` accepts; the first one is the default of ``lovec label``.
        answered: whether the records of :meth:`questions` come with answers.
        served: number of optimiser batches trained on so far, over all epochs.
        title: name of the data set, which names the folder of its results, and is the domain of records without one.
        domains: domains of the validation and test records that are set up, in the order of first appearance.
        summary: number of records ("records"), and of records left out by reason, of each split that is set up.
    """

    setting_names: ClassVar[str] = "--data.{}"
    splits: ClassVar[tuple[str, ...]] = ("test",)
    answered: ClassVar[bool] = False
    domains: tuple[str, ...] = ()

    def __init__(
        self,
        batch_size: Count = 8,
        eval_batch_size: Count = 64,
        seed: Seed = 0,
        first_epoch: CountFromZero = 0,
        unfit: Unfit = "refuse",
        wrong_scores: WrongScores = "uniform",
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.seed = seed
        self.first_epoch = first_epoch
        self.unfit = unfit
        self.wrong_scores = wrong_scores
        self.served = 0
        self.summary: dict[str, dict[str, int]] = {}
        self._records: dict[str, Sequence[Record]] = {}
        self._sampled: Sequence[int] | None = None
        self._read_with: tuple[Scale, TagFormat, bool] | None = None

    @property
    def title(self) -> str:
        """Name of the data set: that of the class, unless a subclass has another."""
        return type(self).__name__

    @property
    def instruction(self) -> str | None:
        """The instruction to prompt the model with; None leaves the choice to the module."""
        return None

    @property
    def grounding(self) -> str | None:
        """The text that puts evidence into prompts, with ``{evidence}``; None leaves the choice to the module."""
        return None

    @property
    def oracle(self) -> Oracle | None:
        """An oracle that can rate any answer to these questions; None if the data have none."""
        return None

    @property
    def wording(self) -> Wording:
        """Prompts of the baselines; to be overridden where the model does not know their words."""
        return Wording()

    @property
    def judge(self) -> Judge | None:
        """What tells baselines whether a text supports a sentence; None if the data have nothing exact."""
        return None

    @property
    def scale(self) -> Scale:
        """The confidence scale of the module that these records are served to; 0 to 10 without one."""
        scale: Scale = getattr(getattr(self.trainer, "lightning_module", None), "scale", DEFAULT_SCALE)
        return scale

    @property
    def tags(self) -> TagFormat:
        """The tags of the module that these records are served to; the paper's without one."""
        tags: TagFormat = getattr(getattr(self.trainer, "lightning_module", None), "tags", DEFAULT_TAGS)
        return tags

    def load(self, split: str) -> Sequence[Record]:
        """Return the records of "train", "validation" or "test", the same at every call. To be overridden.

        Slow preparations belong in ``prepare_data``, which runs on one process only.
        """
        raise LovecError(f"{type(self).__name__} has no {split} records; override load(split)")

    def questions(self, split: str) -> Iterable[Record]:
        """Return the records that a data set consists of, before a model has answered. To be overridden.

        Args:
            split: one of :attr:`splits`.
        """
        raise LovecError(f"{type(self).__name__} has no questions; override questions(split)")

    def setup(self, stage: str) -> None:
        """Load the splits that a stage ("fit", "validate", "test" or "predict") needs; a new training starts anew."""
        if stage == "fit" and not getattr(self.trainer, "global_step", 0):  # a checkpoint is read after this
            self.served, self._sampled = 0, None
            if _UNFIT in self.summary.get("train", ()):  # by an earlier module
                self._forget("train")
        if self._read_with != (read_with := (self.scale, self.tags, self._takes_partly_labelled)):
            for split in [*self._records]:
                self._forget(split)
            self._read_with = read_with
        for split in _SPLITS[stage]:
            if split in self._records:
                continue
            records = self.load(split)
            if split != "train" and not isinstance(records, StoredRecords):
                records = list(map(self.with_domain, records))
            self._records[split] = records
            counts = self.summary.setdefault(split, {})
            counts["records"] = len(records)
            left_out = "".join(f", {n} left out: {why}" for why, n in counts.items() if n and why != "records")
            rank_zero_info(f"{type(self).__name__}: {counted(len(records), f'{split} record')}{left_out}")
        for split in _SPLITS[stage] if stage != "predict" else ():  # what is only written may share ids
            if split != "train" and not isinstance(records := self.loaded(split), StoredRecords):
                check_own_ids(records, split, f"{type(self).__name__}.load")
        measured = (domain for split in ("validation", "test") for domain in domains_of(self.loaded(split)))
        self.domains = tuple(dict.fromkeys(measured)) or self.domains or (self.title,)

    def _forget(self, split: str) -> None:
        """Let a split be loaded again."""
        self._records.pop(split, None)
        self.summary.pop(split, None)
        if split == "train":
            self.__dict__.pop("_training_digest", None)  # it was that of other records

    def loaded(self, split: str) -> Sequence[Record]:
        """Return the records of a split that is set up, and none for a split that is not; nothing is read."""
        return self._records.get(split, ())

    def sample_validation(self, places: Sequence[int] | None) -> None:
        """Let validations within training measure a sample of the records.

        Args:
            places: indices of the records in the sample; None is all.
        """
        self._sampled = places

    def validated(self) -> Sequence[Record]:
        """Return the records that a validation within training measures."""
        records = self.loaded("validation")
        return records if self._sampled is None else selected(records, self._sampled)

    def with_domain(self, record: Record) -> Record:
        """Return a record with the name of the data set as its domain, where it has none."""
        return record.in_domain(self.title)

    def leave_out(self, ids: Collection[str]) -> None:
        """Leave out training records that are set up, before the first batch; their number goes into `summary`."""
        records = self._records["train"]
        kept = [number for number, record in enumerate(records) if record.id not in ids]
        self._records["train"] = selected(records, kept)
        self.summary.setdefault("train", {})[_UNFIT] = len(ids)
        self.__dict__.pop("_training_digest", None)  # it was that of all records

    @property
    def _takes_partly_labelled(self) -> bool:
        """Whether the module that these records are served to learns from single sentences, not from whole answers."""
        return bool(getattr(getattr(self.trainer, "lightning_module", None), "takes_partly_labelled", False))

    def is_usable(self, record: Record) -> bool:
        """Return whether a record has the labels that training needs: of all sentences, or of some for some modules."""
        return record.has_labels if self._takes_partly_labelled else record.labelled

    def keep_labelled(self, records: Sequence[Record], split: str) -> list[Record]:
        """Return the records with enough labels; the number of the others goes into :attr:`summary`."""
        kept = [record for record in records if self.is_usable(record)]
        self.summary.setdefault(split, {})[UNLABELLED] = len(records) - len(kept)
        return kept

    def training_pairs(self, records: Sequence[Record]) -> list[Record]:
        """Return the training records with enough labels, with wrong scores, drawn for those that have none."""
        return [self.with_wrong_scores(record) for record in self.keep_labelled(records, "train")]

    def with_wrong_scores(self, record: Record) -> Record:
        """Return a record with one wrong score per sentence, its own or drawn ones; none where a label is missing."""
        return with_rejected(record, self.seed, self.scale, self.wrong_scores) if record.labelled else record

    def keep_unlabelled(self, records: Sequence[Record]) -> list[Record]:
        """Return records to train on without labels, whatever labels they have.

        Raises:
            LovecError: a record has no sentence.
        """
        if empty := [record.id for record in records if not record.sentences]:
            raise LovecError(
                f"{counted(len(empty), 'unlabelled record has', 'unlabelled records have')} no sentences "
                f"({empty[0]!r} is the first), expected answers; let "
                "a model answer with `lovec label`, and give sentences.jsonl"
            )
        if records:
            rank_zero_info(f"{type(self).__name__}: {counted(len(records), 'training record')} without labels")
        return [replace(r.with_factuality([None] * len(r.sentences)), rejected=None) for r in records]

    def batch_done(self) -> None:
        """Count one more optimiser batch as trained on."""
        self.served += 1

    def trained_unit(self) -> Unit:
        """Return what has labels in training: clauses if a training record that is set up has some, or sentences."""
        clauses = any(s.part_of is not None for record in self.loaded("train") for s in record.sentences)
        return "clause" if clauses else "sentence"

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides which records every optimiser batch has, for the fingerprint of a checkpoint.

        The number of batches of an epoch is among it: with more processes than an incomplete last batch has records,
        an epoch is shorter, and the count of batches in a checkpoint would mean other records.
        """
        return {
            "class": type(self).__qualname__,
            "records": len(self._records["train"]),
            "content": self._training_digest,
            "batch_size": self.batch_size,
            "batches of an epoch": self.train_batches(),
            "first_epoch": self.first_epoch,
            "seed": self.seed,
        }

    @cached_property
    def _training_digest(self) -> str:
        """A digest of all training records in their order, texts and labels included."""
        lines = (json.dumps(record_to_dict(record), default=str) for record in self._records["train"])
        return text_digest(lines)[:16]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the number of optimiser batches trained on."""
        return {"served": self.served}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue after the last optimiser batch of a checkpoint."""
        self.served = int(state_dict["served"])

    def train_dataloader(self) -> TrainLoader:
        """Return a loader of optimiser batches; every process gets its share of each.

        Raises:
            LovecError: ``batch_size`` is not a multiple of the number of processes, or there are too few records.
        """
        world_size, _ = self._process()
        if self.batch_size % world_size:
            raise LovecError(
                f"--data.batch_size {self.batch_size} cannot be shared by {world_size} processes; give a multiple of "
                f"{world_size}, such as {-(-self.batch_size // world_size) * world_size}"
            )
        loader = TrainLoader(self)
        if len(loader) == 0:
            left_out = self.summary.get("train", {}).get(UNLABELLED, 0)
            advice = "check the data and its labels"
            if left_out:
                advice = (
                    f"{left_out} records have a sentence without a label, or no sentence; "
                    "`lovec label --answers FILE --oracle NAME` labels them"
                )
            raise LovecError(
                f"{type(self).__name__} has {len(self._records['train'])} usable training records for {world_size} "
                f"process(es), expected at least one each; {advice}"
            )
        return loader

    def val_dataloader(self) -> list[EvalLoader]:
        """Return a loader of this process's validation records, or no loader if there are none."""
        fitting = self.trainer is not None and self.trainer.state.fn == "fit"
        return self._eval_loaders(self.validated() if fitting else self.loaded("validation"))

    def test_dataloader(self) -> list[EvalLoader]:
        """Return a loader of this process's test records, or no loader if there are none."""
        return self._eval_loaders(self.loaded("test"))

    def predict_dataloader(self) -> list[EvalLoader]:
        """Return the same loader as for test: its records are tagged, but not measured."""
        return self._eval_loaders(self.loaded("test"))

    def train_batches(self) -> int:
        """Return the number of optimiser batches per epoch.

        An incomplete last batch counts, unless it has fewer records than there are processes; then it is left out.
        """
        world_size, _ = self._process()
        complete, rest = divmod(len(self._records["train"]), self.batch_size)
        return complete + (rest >= world_size)

    def train_batch(self, number: int) -> RecordBatch:
        """Return this process's share of an optimiser batch, numbered from 0 over all epochs."""
        world_size, rank = self._process()
        epoch, index = divmod(number, self.train_batches())
        records = self._records["train"]
        order = _order(self.seed, self.first_epoch + epoch, len(records))
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        return RecordBatch([records[i] for i in chosen[rank::world_size].tolist()])

    def _eval_loaders(self, records: Sequence[Record]) -> list[EvalLoader]:
        return [EvalLoader(records, self.eval_batch_size, *self._process())] if records else []

    def _process(self) -> tuple[int, int]:
        """Return the number of processes and the rank of this one."""
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)


class TrainLoader:
    """One epoch's number of optimiser batches, starting with the first one that was not trained on.

    Lightning ends an epoch by counting batches, so a loader that continues across the end of an epoch is also correct
    after a resume in the middle of one, and under ``limit_train_batches``.
    """

    def __init__(self, data: RecordsDataModule) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.train_batches()

    def __iter__(self) -> Iterator[RecordBatch]:
        first = self._data.served
        for number in range(first, first + len(self)):
            yield self._data.train_batch(number)

    def state_dict(self) -> dict[str, Any]:
        """Return no state, as the datamodule keeps it; this method tells Lightning that resuming is safe."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing; see :meth:`state_dict`."""


class EvalLoader:
    """A process's share of batches in the order of the records.

    All processes get the same number of batches, so that none waits for another; the last one may be empty.
    """

    def __init__(self, records: Sequence[Record], size: int, processes: int, rank: int) -> None:
        self._records = records
        starts = range(rank, rank + len(records), size * processes)
        self._shares = [range(start, len(records), processes)[:size] for start in starts]

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[RecordBatch]:
        return (RecordBatch([self._records[i] for i in share]) for share in self._shares)


@lru_cache(maxsize=2)  # of the present epoch, and of the next one where a batch is fetched ahead
def _order(seed: int, epoch: int, count: int) -> Tensor:
    """Return the order of an epoch's records: their indices, [count]."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(_epoch_seed(seed, epoch)))


def _epoch_seed(seed: int, epoch: int) -> int:
    """Return a seed for torch, the same in every Python version and different for (0, 1) and (1, 0)."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:8], "big")
