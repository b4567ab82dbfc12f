"""Public data sets through the real loaders of ``datasets``: from the hub, from its cache, or from a file at hand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.types import LovecError

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".tsv": "csv", ".csv": "csv"}
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set of the hub.

    Attributes:
        name: its name there.
        split: the split to read.
        columns: the columns that are needed.
        config: its configuration, where it has several.
        files: what a copy in one file may be.
    """

    name: str
    split: str
    columns: tuple[str, ...]
    config: str | None = None
    files: str = ".parquet or .jsonl"

    def table(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The rows as a ``datasets.Dataset``: memory-mapped, so they may be larger than the memory.

        Args:
            path: a copy to read instead of the hub: a folder as ``hf download`` makes it, or one file of the same
                columns (.parquet, .jsonl, .json, .tsv, .csv). None asks the hub, or its cache where there is no
                network.

        Raises:
            LovecError: there is no such data set here, or columns are missing; the message says what to put where.
        """
        from datasets.exceptions import DatasetsError  # here, as it takes seconds to import

        try:
            table = self._loaded() if path is None else self._copy(Path(path))
        except (OSError, ValueError, DatasetsError) as error:
            said = _shortly(error.__cause__ or error)
            if path is not None:
                raise LovecError(f"cannot read {path} as {self.name} ({said}); {self._remedy()}") from None
            raise LovecError(
                f"{self.name} is neither in the cache of datasets nor to be fetched ({said}); {self._remedy()}"
            ) from None
        if missing := [column for column in self.columns if column not in table.column_names]:
            raise LovecError(
                f"{path or self.name} has no column {', '.join(missing)}, only {', '.join(table.column_names)}; "
                f"expected the columns of {self.name}"
            )
        return table

    def _loaded(self) -> Any:
        from datasets import load_dataset

        return load_dataset(self.name, self.config, split=self.split)

    def _copy(self, path: Path) -> Any:
        from datasets import Features, Value, get_dataset_split_names, load_dataset

        if path.is_dir():
            folder = str(path.resolve())
            names = get_dataset_split_names(
                folder, self.config
            )  # a bare folder of files may call its only split "train"
            return load_dataset(folder, self.config, split=names[0] if len(names) == 1 else self.split)
        if path.suffix not in _BUILDERS:
            raise ValueError(f"the name ends in {path.suffix or 'nothing'}, expected one of {', '.join(_BUILDERS)}")
        options: dict[str, Any] = {}
        if (builder := _BUILDERS[path.suffix]) == "csv":
            # Everything as text: a film called "1984" or "None" is neither a number nor a gap.
            mark = "\t" if path.suffix == ".tsv" else ","
            names = path.open(encoding="utf-8-sig", newline="").readline().rstrip("\r\n").split(mark)
            features = Features({name.strip('"'): Value("string") for name in names})
            options = {"sep": mark, "features": features, "keep_default_na": False}
        return load_dataset(builder, data_files=str(path.resolve()), split="train", **options)

    def _remedy(self) -> str:
        folder = self.name.rpartition("/")[2]
        return (
            f"where there is a network, run `hf download {self.name} --repo-type dataset --local-dir {folder}`, bring "
            f"that folder here and give it as path (--data.path {folder}); one {self.files} file with the columns "
            f"{', '.join(self.columns)} will do as well"
        )


def _shortly(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}"
