"""What every datamodule of records shares: one optimiser batch an item, an order that a killed run takes up again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info

from lovec.baselines import Judge, Wording
from lovec.datasets.pairs import usable
from lovec.types import LovecError, Oracle, Record

_SPLITS = {"fit": ("train", "validation"), "validate": ("validation",), "test": ("test",), "predict": ("test",)}


class Batch:
    """The records of one optimiser batch on this process: iterate it, index it, take its length.

    It is not a list on purpose: Lightning walks through lists to move and cast tensors, and refuses the frozen
    dataclasses it meets there.
    """

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Record, ...]: ...
    def __getitem__(self, index: int | slice) -> Record | tuple[Record, ...]:
        return self._records[index]


class RecordsDataModule(LightningDataModule):
    """Serves records; a subclass says in :meth:`load` where they come from.

    A training item is a whole optimiser batch: splitting it to fit the memory is the training module's business. The
    order of an epoch is a function of (seed, epoch), so the only state is :attr:`served`, the number of optimiser
    batches trained on. The training module counts it with :meth:`batch_done`; an iterator cannot, as Lightning may
    fetch a batch ahead of the one it trains on.

    Args:
        batch_size: records in an optimiser batch, over all processes; a multiple of their number.
        eval_batch_size: records a process tags at a time in validation and test.
        seed: of the order of the training records, and of everything that is drawn.
        first_epoch: epochs that the starting adapter was trained on with these records and this seed; orders go on
            behind theirs.

    Attributes:
        served: optimiser batches trained on so far, over all epochs.
        domains: the values of ``meta["domain"]`` among the validation and test records that are set up, in their order
            there; a record without one counts as "in-domain".
        summary: how many records each split that is set up has ("records"), and why others were left out.
    """

    domains: tuple[str, ...] = ("in-domain",)

    def __init__(self, batch_size: int = 8, eval_batch_size: int = 64, seed: int = 0, first_epoch: int = 0) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if value < 1:
                raise LovecError(f"--data.{name} is {value}, expected a positive number")
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.seed = seed
        self.first_epoch = first_epoch
        self.served = 0
        self.summary: dict[str, dict[str, int]] = {}
        self._rows: dict[str, list[Record]] = {}

    @property
    def instruction(self) -> str | None:
        """The instruction these records are to be asked with; None leaves it to the model's own."""
        return None

    @property
    def oracle(self) -> Oracle | None:
        """An oracle that can judge any answer to these questions, where the data come with one."""
        return None

    @property
    def wording(self) -> Wording:
        """What baselines ask a model about these records; to be overridden where it does not know the words."""
        return Wording()

    @property
    def judge(self) -> Judge | None:
        """What can tell baselines whether a text supports a sentence, where the data come with it."""
        return None

    def load(self, split: str) -> list[Record]:
        """The records of "train", "validation" or "test". To be overridden; every call gives the same.

        Whatever takes long belongs in ``prepare_data``, which runs on one process only.
        """
        raise LovecError(f"{type(self).__name__} has no {split} records; override load(split)")

    def setup(self, stage: str) -> None:
        """Load the splits a stage needs."""
        for split in _SPLITS[stage]:
            if split in self._rows:
                continue
            self._rows[split] = rows = self.load(split)
            counts = self.summary.setdefault(split, {})
            counts["records"] = len(rows)
            left_out = "".join(f", {n} left out: {why}" for why, n in counts.items() if n and why != "records")
            rank_zero_info(f"{type(self).__name__}: {len(rows)} {split} records{left_out}")
        measured = [row for split in ("validation", "test") for row in self._rows.get(split, [])]
        if measured:
            self.domains = tuple(dict.fromkeys(str(row.meta.get("domain", "in-domain")) for row in measured))

    def loaded(self, split: str) -> Sequence[Record]:
        """The records of a split that is set up; nothing is read, and there are none where it is not."""
        return tuple(self._rows.get(split, ()))

    def keep_labelled(self, records: Sequence[Record], split: str) -> list[Record]:
        """The records that are fully labelled; the number of the others goes into :attr:`summary`."""
        kept, dropped = usable(records)
        self.summary.setdefault(split, {})["a sentence without a label, or no sentence"] = dropped
        return kept

    def batch_done(self) -> None:
        """Count an optimiser batch as trained on."""
        self.served += 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the number of optimiser batches trained on."""
        return {"served": self.served}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind the last optimiser batch of a checkpoint."""
        self.served = int(state_dict["served"])

    def train_dataloader(self) -> TrainLoader:
        """Optimiser batches; every process gets its share of each.

        Raises:
            LovecError: ``batch_size`` cannot be shared out evenly, or there are too few records for one batch.
        """
        world, _ = self._place()
        if self.batch_size % world:
            raise LovecError(
                f"--data.batch_size {self.batch_size} cannot be shared by {world} processes; "
                f"give a multiple of {world}, such as {-(-self.batch_size // world) * world}"
            )
        loader = TrainLoader(self)
        if len(loader) == 0:
            raise LovecError(
                f"{type(self).__name__} has {len(self._rows['train'])} usable training records for {world} "
                "process(es), expected at least one each; check the data and its labels"
            )
        return loader

    def val_dataloader(self) -> list[EvalLoader]:
        """Batches of validation records, this process's share; no loader where there are none."""
        return self._eval_loaders("validation")

    def test_dataloader(self) -> list[EvalLoader]:
        """Batches of test records, this process's share; no loader where there are none."""
        return self._eval_loaders("test")

    def predict_dataloader(self) -> list[EvalLoader]:
        """Batches of test records, to tag rather than to measure."""
        return self._eval_loaders("test")

    def train_batches(self) -> int:
        """Optimiser batches an epoch has.

        A ragged last batch counts, unless it has fewer records than there are processes: then it is left out.
        """
        world, _ = self._place()
        whole, rest = divmod(len(self._rows["train"]), self.batch_size)
        return whole + (rest >= world)

    def train_batch(self, number: int) -> Batch:
        """This process's share of an optimiser batch, numbered from 0 over all epochs."""
        world, rank = self._place()
        epoch, index = divmod(number, self.train_batches())
        rows = self._rows["train"]
        generator = torch.Generator().manual_seed(_mix(self.seed, self.first_epoch + epoch))
        order = torch.randperm(len(rows), generator=generator).tolist()
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        return Batch([rows[i] for i in chosen[rank::world]])

    def _eval_loaders(self, split: str) -> list[EvalLoader]:
        world, rank = self._place()
        rows, step = self._rows[split], self.eval_batch_size * world
        # Every process gets the same number of batches, so that none waits for another; its last one may be empty.
        shares = [Batch(rows[i : i + step][rank::world]) for i in range(0, len(rows), step)]
        return [EvalLoader(shares)] if shares else []

    def _place(self) -> tuple[int, int]:
        """Number of processes and which of them this is."""
        return (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)


class TrainLoader:
    """An epoch's worth of optimiser batches, from the first one that was not trained on.

    Lightning ends its epochs by counting batches, so a loader that goes on across the end of an epoch is right after
    a resume in the middle of one, and under ``limit_train_batches`` as well.
    """

    def __init__(self, data: RecordsDataModule) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.train_batches()

    def __iter__(self) -> Iterator[Batch]:
        begin = self._data.served
        for number in range(begin, begin + len(self)):
            yield self._data.train_batch(number)

    def state_dict(self) -> dict[str, Any]:
        """Empty: the datamodule keeps the state. That the method exists tells Lightning that a resume is safe."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to load; see :meth:`state_dict`."""


class EvalLoader:
    """Batches in the order of the records."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)


def _mix(seed: int, epoch: int) -> int:
    """A seed for torch from two numbers, the same in every Python version; (0, 1) and (1, 0) differ."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:8], "big")
