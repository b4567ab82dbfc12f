"""Public data sets through the library ``datasets``: from the Hugging Face hub, its cache, or a local copy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.types import LovecError

_BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".tsv": "csv", ".csv": "csv"}
_LONGEST = 200  # characters of an error


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set of the hub.

    Attributes:
        name: its name on the hub.
        split: the split to read.
        columns: the columns that are needed.
        config: its configuration, if it has several.
        files: kinds of files that a copy may be, for error messages.
    """

    name: str
    split: str
    columns: tuple[str, ...]
    config: str | None = None
    files: str = ".parquet or .jsonl"

    def table(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return the rows as a ``datasets.Dataset``, which is memory-mapped and so may be larger than the memory.

        Args:
            path: a copy to read instead of the hub: a folder as ``hf download`` writes it, or one file with the same
                columns (.parquet, .jsonl, .json, .tsv, .csv). None reads from the hub, or without a network from the
                cache of ``datasets``.

        Raises:
            LovecError: the data set is not available, or columns are missing; the message says how to provide it.
        """
        from datasets import load_dataset  # imported here because it takes seconds
        from datasets.exceptions import DatasetsError

        try:
            if path is None:
                table = load_dataset(self.name, self.config, split=self.split)
            else:
                table = self._copy(Path(path))
        except (OSError, ValueError, DatasetsError) as error:
            cause = error.__cause__ or error
            text = " ".join(str(cause).split())
            reason = f"{type(cause).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}"
            failure = (
                f"{self.name} is neither in the cache of datasets nor can it be downloaded"
                if path is None
                else f"cannot read {path} as {self.name}"
            )
            raise LovecError(f"{failure} ({reason}); {self._remedy()}") from None
        if missing := [column for column in self.columns if column not in table.column_names]:
            raise LovecError(
                f"{path or self.name} has no column {', '.join(missing)}, only {', '.join(table.column_names)}; "
                f"expected the columns of {self.name}"
            )
        return table

    def _copy(self, path: Path) -> Any:
        from datasets import Features, Value, get_dataset_split_names, load_dataset

        if path.is_dir():
            folder = str(path.resolve())
            names = get_dataset_split_names(folder, self.config)
            # The only split of a bare folder of files may be called "train".
            return load_dataset(folder, self.config, split=names[0] if len(names) == 1 else self.split)
        if path.suffix not in _BUILDERS:
            raise ValueError(f"the name ends in {path.suffix or 'nothing'}, expected one of {', '.join(_BUILDERS)}")
        if path.exists() and not path.is_file():
            raise ValueError("it is a pipe or a device, expected a file")
        if path.is_file() and not path.stat().st_size:
            raise ValueError("the file is empty")
        options: dict[str, Any] = {}
        if (builder := _BUILDERS[path.suffix]) == "csv":
            # Read everything as text: a film called "1984" or "None" is neither a number nor a missing value.
            separator = "\t" if path.suffix == ".tsv" else ","
            names = path.open(encoding="utf-8-sig", newline="").readline().rstrip("\r\n").split(separator)
            features = Features({name.strip('"'): Value("string") for name in names})
            options = {"sep": separator, "features": features, "keep_default_na": False}
        return load_dataset(builder, data_files=str(path.resolve()), split="train", **options)

    def _remedy(self) -> str:
        folder = self.name.rpartition("/")[2]
        return (
            f"on a machine with a network, run `hf download {self.name} --repo-type dataset --local-dir {folder}`, "
            f"copy that folder here and give it as path (--data.path {folder}); one {self.files} file with the columns "
            f"{', '.join(self.columns)} works as well"
        )
