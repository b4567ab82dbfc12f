"""Write and read result rows as JSON files.

A file contains ``{"metrics": [...], "about": {...}, "rows": [...]}``: the rows, how to show those of their metrics that
``lovec.metrics.table`` does not know (a user's own), and what wrote them. Undefined values are null, never NaN.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from lovec.core.files import write_text
from lovec.metrics.table import METRICS, MetricInfo, finite
from lovec.types import ELSEWHERE, LovecError, ResultRow

COUNTED_MISSING = {"missing": "confidence 0"}
"""What ``Results.about`` says where sentences without a confidence are measured as ones that state 0."""

_REQUIRED = ("method", "kind", "domain", "mode", "level", "readout", "seed", "n", "metrics")


@dataclass(frozen=True, slots=True)
class Results:
    """The content of a results file.

    Attributes:
        rows: in the order of the file.
        metrics: how to show every metric, by name: the built-in ones and those that the file adds.
        about: what wrote the file, see ``written_by``, and ``COUNTED_MISSING`` where that holds; empty in files of old
            versions.
    """

    rows: tuple[ResultRow, ...]
    metrics: Mapping[str, MetricInfo]
    about: Mapping[str, str] = field(default_factory=dict)


def written_by() -> dict[str, str]:
    """Return the version of lovec ("version") and, in a checkout, its commit ("commit").

    The commit has a + where files that git tracks have changed since.
    """
    about = {"version": str(import_module("lovec").__version__)}
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / ".git").exists():
        try:
            commit = _git(checkout, "rev-parse", "--short", "HEAD")
            about["commit"] = commit + ("+" if _git(checkout, "status", "--porcelain", "--untracked-files=no") else "")
        except (OSError, subprocess.SubprocessError):  # git is not installed, or does not trust the folder
            pass
    return about


def write_results(
    path: str | os.PathLike[str],
    rows: Sequence[ResultRow],
    metrics: Iterable[MetricInfo] = (),
    about: Mapping[str, str] | None = None,
) -> Path:
    """Write rows as JSON, whole or not at all; NaN and infinite values become null.

    Args:
        path: file to write.
        rows: to be written in this order.
        metrics: how to show metrics that are not in ``lovec.metrics.table``; those that are there are not written.
        about: what wrote them, see ``written_by``; None does not say.

    Returns:
        The path written to.
    """
    user_defined = [asdict(info) for info in metrics if METRICS.get(info.name) != info]
    said = {"about": dict(about)} if about else {}
    content = {"metrics": user_defined, **said, "rows": [row_to_dict(row) for row in rows]}
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return Path(path)


def read_results(path: str | os.PathLike[str]) -> Results:
    """Read a file that ``write_results`` wrote.

    Raises:
        LovecError: there is no such file, or it is not a results file.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LovecError(f"there are no results at {path}; `lovec test` writes them") from None
    except ValueError as error:
        raise LovecError(f"{path} is not JSON: {error}") from error
    try:
        user_defined = {entry["name"]: MetricInfo(**entry) for entry in content["metrics"]}
        rows = tuple(_named_mode(row_from_dict(row)) for row in content["rows"])
        about = {str(name): str(value) for name, value in content.get("about", {}).items()}
    except (KeyError, TypeError, AttributeError, LovecError) as error:
        raise LovecError(
            f"{path} is not a results file ({error}); expected what `lovec test` writes, run it again"
        ) from None
    return Results(rows, METRICS | user_defined, about)


def row_to_dict(row: ResultRow) -> dict[str, Any]:
    """Return a row as JSON values; optional fields that are empty are left out."""
    values = asdict(row)
    values["metrics"] = {name: finite(value) for name, value in row.metrics.items()}
    return {name: value for name, value in values.items() if name in _REQUIRED or value not in (None, (), [])}


def row_from_dict(data: Mapping[str, Any]) -> ResultRow:
    """Return the row that ``row_to_dict`` has made these values from.

    Raises:
        LovecError: a field is missing or unknown.
    """
    known = [field.name for field in fields(ResultRow)]
    if missing := [name for name in _REQUIRED if name not in data]:
        raise LovecError(f"a row of {data.get('method')!r} has no {missing[0]!r}")
    if unknown := [name for name in data if name not in known]:
        raise LovecError(f"a row of {data['method']!r} has an unknown field {unknown[0]!r}")
    tuples = {name: tuple(data[name]) for name in ("bases", "options") if name in data}
    return ResultRow(**{**data, **tuples})


def _named_mode(row: ResultRow) -> ResultRow:
    """Return a row of ``lovec score`` with the mode that it has now; earlier versions wrote another."""
    earlier = (row.domain, row.mode, row.seed, row.file) == ("scored", "iterative", None, None)
    return replace(row, mode=ELSEWHERE) if earlier else row


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
