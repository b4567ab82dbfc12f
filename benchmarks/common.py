"""What every benchmark says of itself: when, at which commit, with which versions, on which machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
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
    "n",
)
"""Columns of a result row."""


def provenance() -> dict[str, Any]:
    """Date, commit (with a + where code or recipes were changed since), versions and machine."""
    code = ("lovec", "cli", "configs", "benchmarks/*.py", "pyproject.toml", "setup.cfg")
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short", "HEAD")
        + ("+" if _git("status", "--porcelain", "-uno", "--", *code) else ""),
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": f"{_processor()}, {os.cpu_count()} cores, no GPU",
    }


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results for people to read and diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
