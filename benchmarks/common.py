"""What all benchmarks share: where they ran, their commands of lovec, and their files and rows of results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lovec.metrics.bootstrap import Resampled, intervals
from lovec.metrics.results import row_from_dict, row_to_dict
from lovec.metrics.table import METRICS
from lovec.types import LovecError, ResultRow

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("lovec", "torch", "lightning", "transformers", "peft", "torchmetrics")
CALIBRATION = tuple(name for name, info in METRICS.items() if info.bootstrapped and info.main)
"""Metrics that pages give with intervals: Brier score, ECE-M and Spearman's correlation."""
LOVEC = (sys.executable, "-m", "lovec.cli")
"""Words that begin a command of lovec."""
QUIET = ("--trainer.enable_model_summary", "false", "--trainer.enable_progress_bar", "false")
"""Words after which training says less."""
_SILENT = 8.0  # seconds after which a running command is reported


def results_file(name: str) -> Path:
    """Return the file of the results with this name."""
    return ROOT / "benchmarks" / "results" / f"{name}.json"


def results_and_page(name: str, page: str = "") -> tuple[Path, Path]:
    """Return the file of the results with this name, and the page that shows them.

    Args:
        name: name of the results.
        page: path of the page in this repository; "" is the page of this name in docs/results.
    """
    return results_file(name), ROOT / (page or f"docs/results/{name}.md")


def provenance() -> dict[str, Any]:
    """Return date, commit (with a + where code or recipes have changed since), versions, machine and embedded world.

    A copy of the files without git's history takes the commit from the environment variable LOVEC_COMMIT.
    """
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit_of(ROOT),
        "versions": {name: _version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_gpu()}",
        "world": world_digest(),
    }


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout of lovec, with a + where code or recipes have changed since."""
    code = ("lovec", "cli", "configs", "benchmarks/*.py", "pyproject.toml", "setup.cfg")
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "-uno", "--", *code) else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LOVEC_COMMIT", "unknown")


def commits_of(notes: Iterable[Mapping[str, Any]]) -> str:
    """Return the commits of several notes that ``provenance`` made, each once."""
    return ", ".join(sorted({note["commit"] for note in notes}))


def world_digest() -> str | None:
    """Return the digest of the weights of the embedded world's model; None where the package has none."""
    from lovec.datasets.world.cache import shipped
    from lovec.datasets.world.variants import spec_of

    path = shipped("world", spec_of("world"))
    return None if path is None else path.name.rpartition("-")[2]


def test_folder(run: Path) -> Path:
    """Return the folder with the results of a run that was tested on one data set.

    Runs of earlier versions have them in ``RUN/test``, later ones in ``RUN/test/DATA``.
    """
    home = run / "test"
    folders = [path for path in home.iterdir() if path.is_dir() and not path.suffix] if home.is_dir() else []
    if len(folders) > 1:
        raise LovecError(f"{home} holds results on {len(folders)} data sets, expected one; move the others away")
    return folders[0] if folders else home


def offline() -> dict[str, str]:
    """Return the environment of a command of lovec that downloads nothing and has one thread."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def lovec(*words: str, folder: Path = ROOT) -> None:
    """Run a lovec command offline with one thread in a process of its own, whose output is shown only if it fails.

    Args:
        words: the command without its first word.
        folder: where it runs.

    Raises:
        SystemExit: the command failed; the message has what it wrote to standard error.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**offline(), "PYTHONPATH": path}
    done = subprocess.run([*LOVEC, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"lovec {' '.join(words)} failed:\n{done.stderr}")


def run_lovec(words: Sequence[str], log: Path, say: str | None = None) -> dict[str, float]:
    """Run a lovec command offline with one thread in a process of its own, and wait for its end.

    Args:
        words: the command without its first word, such as ["fit", "--config", "sft.yaml"].
        log: file to which its output goes.
        say: what to call the command in the lines that are printed: its own ones, and every few seconds without one how
            long it has been running. None prints nothing.

    Returns:
        ``seconds`` of the clock, and ``cpu_seconds`` of the processor, of all threads and of processes it waited for.

    Raises:
        SystemExit: the command failed; the message names the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**offline(), "PYTHONUNBUFFERED": "1"}
    begin, ended = time.monotonic(), threading.Event()
    with log.open("w", encoding="utf-8") as lines:
        process = subprocess.Popen(
            [*LOVEC, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        spoken = [begin]

        def remind() -> None:
            while not ended.wait(min(_SILENT, 1.0)):
                now = time.monotonic()
                if now - spoken[0] >= _SILENT:
                    spoken[0] = now
                    print(f"{say}: {now - begin:.0f} s", flush=True)

        if say is not None:
            threading.Thread(target=remind, daemon=True).start()
        try:
            for line in process.stdout or ():
                lines.write(line)
                lines.flush()
                if say is not None and line.strip():
                    spoken[0] = time.monotonic()
                    print(f"{say}: {line.rstrip()}", flush=True)
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # such as Ctrl-C: the command may keep what it has so far
            process.terminate()
            process.wait()
            raise
        finally:
            ended.set()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"lovec {words[0]} failed with status {process.returncode}; see {log}")
    return {"seconds": time.monotonic() - begin, "cpu_seconds": usage.ru_utime + usage.ru_stime}


def interval_values(
    first: Resampled, second: Resampled | None = None, names: Sequence[str] | None = None
) -> dict[str, list[float] | None]:
    """Return [value, low, high] of every metric, or of its difference to another method; None where it is undefined.

    Args:
        first: draws of a method.
        second: draws of the method that is subtracted; None subtracts nothing.
        names: the metrics to return; None is all that were drawn.
    """
    ends = intervals(first, second)
    return {
        name: None if (i := ends[name]) is None else [i.value, i.low, i.high]
        for name in (ends if names is None else names)
    }


def base_recipe() -> dict[str, Any]:
    """Return the settings that all recipes share."""
    import yaml

    from lovec.cli.arguments import BASE

    settings: dict[str, Any] = yaml.safe_load(BASE.read_text(encoding="utf-8"))
    return settings


def training_samples() -> int:
    """Return the number of sampled answers per training question in the recipes."""
    return int(base_recipe()["data"]["init_args"]["samples"])


def most_tokens() -> int:
    """Return the number of tokens after which the recipes cut an answer off."""
    return int(base_recipe()["model"]["init_args"]["evaluation"]["max_new_tokens"])


def write_json(path: Path, results: Mapping[str, Any]) -> None:
    """Write results so that people can read and diff them: a line per key and per row of a list, six decimals."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for key, value in _json_values(results).items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in value) + "\n ]"
        parts.append(f" {json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def publish(path: Path, results: Mapping[str, Any], only_print: bool) -> None:
    """Write results with their provenance, or print them without it."""
    if only_print:
        print(json.dumps(results))
    else:
        write_json(path, provenance() | dict(results))


def read_json(path: Path) -> dict[str, Any]:
    """Read results that ``write_json`` wrote; the items of ``rows`` become ``ResultRow``."""
    results = json.loads(path.read_text(encoding="utf-8"))
    return results | {"rows": [row_from_dict(row) for row in results.get("rows", [])]}


def select(rows: Iterable[ResultRow], **fields: Any) -> list[ResultRow]:
    """Return the rows with these fields; in domain, per sentence and by stated score unless ``fields`` differ."""
    fields = {"domain": "in-domain", "level": "sentence", "readout": "stated", **fields}
    return [row for row in rows if all(getattr(row, name) == value for name, value in fields.items())]


def seeds_of(rows: Iterable[ResultRow]) -> list[int]:
    """Return the training seeds of rows, in ascending order."""
    return sorted({row.seed for row in rows if row.seed is not None})


def _json_values(value: Any) -> Any:
    """Return values for a JSON file: rows as mappings, floats with six decimals."""
    if isinstance(value, ResultRow):
        value = row_to_dict(value)
    if isinstance(value, Mapping):
        return {key: _json_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(inner) for inner in value]
    return round(value, 6) if isinstance(value, float) else value


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


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
