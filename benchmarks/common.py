"""What every benchmark says of itself: when, at which commit, with which versions, on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lovec", "torch", "lightning", "transformers", "peft", "torchmetrics")
KEYS = (
    "method",
    "domain",
    "mode",
    "level",
    "readout",
    "seed",
    "brier",
    "ece_m",
    "spearman",
    "malformed",
    "mean_confidence",
    "mean_factuality",
    "entropy",
    "distinct",
    "words",
    "n",
)
"""Columns of a result row."""


def provenance() -> dict[str, Any]:
    """Date, commit (with a + where code or recipes were changed since), versions and machine.

    A copy of the files without git's own takes the commit from the environment variable LOVEC_COMMIT.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_gpu()}",
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results for people to read and diff: a line for every key and every row of a list, six decimals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for key, value in _rounded(results).items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in value) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _commit() -> str:
    code = ("lovec", "cli", "configs", "benchmarks/*.py", "pyproject.toml", "setup.cfg")
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "-uno", "--", *code) else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LOVEC_COMMIT", "unknown")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # lovec itself, where it is run from a checkout
        return None


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "no GPU"
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
