"""Rows of any data set of the hub, by its name: ``org/name``, ``org/name@revision``, ``org/name:split`` and so on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lovec.core.hub import HubName, hub_errors
from lovec.types import LovecError

STREAMED = 2**30
"""Bytes of a data set's files from which on it is streamed instead of downloaded."""

_FORMATS = ("parquet", "json", "csv")
"""Formats that are read. Others, such as WebDataset, may hold pickles, which run code when they are opened."""

_PART = re.compile(r"((?P<config>[\w.-]+)/)?(?P<split>[\w.-]+)", re.ASCII)
_FILES = frozenset(".jsonl .ndjson .json .csv .tsv .parquet .gz .txt .text .md .markdown .html .htm .db .yaml".split())


@dataclass(frozen=True, slots=True)
class HubRows:
    """A split of a data set of the hub.

    Attributes:
        name: its repository.
        config: its configuration; None is the only or default one.
        split: its split; None is the only one.
    """

    name: HubName
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubRows | None:
        """Return the data set that ``org/name[@revision][:[config/]split]`` names; None for the path of a file."""
        repository, colon, part = text.partition(":")
        name, match = HubName.parse(repository), _PART.fullmatch(part)
        if name is None or (colon and match is None) or Path(repository).suffix.lower() in _FILES:
            return None
        return cls(name) if match is None else cls(name, match["config"], match["split"])

    @property
    def identity(self) -> str:
        """What the rows depend on: the repository at its commit, configuration and split."""
        opened = _opened(self)
        return f"{self.name.repo}@{opened.commit}:{opened.builder.config.name}/{opened.split}"

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield number (from 1) and columns of every row.

        All rows that a process reads are of one commit, whatever becomes of the branch meanwhile.

        Raises:
            LovecError: the data set or the split is not there, it is of another format, or it cannot be read.
        """
        opened = _opened(self)
        with hub_errors(self.name, "data set"):
            try:
                if opened.size > STREAMED:
                    table = opened.builder.as_streaming_dataset(split=opened.split)
                else:
                    opened.builder.download_and_prepare()
                    table = opened.builder.as_dataset(split=opened.split)
            except ValueError as error:  # datasets raises its own errors and pyarrow's as such
                raise LovecError(f"cannot read the data set {self.name} ({error})") from error
            yield from enumerate(table, 1)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A data set whose files are known: the commit, their bytes, the reader of ``datasets``, the split."""

    commit: str
    size: int
    builder: Any
    split: str


@cache
def _opened(rows: HubRows) -> _Opened:
    """Find out of what files a data set is made.

    Raises:
        LovecError: it is not there, or of a format that is not read; or it has several splits, and none is named.
    """
    from datasets import disable_progress_bars, load_dataset_builder
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi

    disable_progress_bars()
    name = rows.name
    with hub_errors(name, "data set"):
        info = HfApi().dataset_info(name.repo, revision=name.revision, files_metadata=True)
        try:
            builder = load_dataset_builder(name.repo, rows.config, revision=info.sha)
        except (ValueError, DatasetsError) as error:
            raise LovecError(f"cannot read the data set {name} ({' '.join(str(error).split())[:300]})") from error
    kind = type(builder).__module__.rpartition(".")[2]
    if kind not in _FORMATS:
        raise LovecError(
            f"the data set {name} is of the format {kind}, expected {', '.join(_FORMATS)}; convert it first"
        )
    splits = [str(split) for split in builder.config.data_files or ()]
    split = rows.split or (splits[0] if len(splits) == 1 else None)
    if split not in splits:
        what = "several splits" if split is None else f"no split {split}"
        raise LovecError(f"the data set {name} has {what}; name one as {name}:SPLIT, of {', '.join(splits)}")
    return _Opened(str(info.sha), sum(file.size or 0 for file in info.siblings or ()), builder, split)
