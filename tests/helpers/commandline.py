"""What the tests of the command line share."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import yaml

from lovec.cli import main
from lovec.cli.saved_recipe import RECIPE_KEY

CPU = ["--trainer.accelerator", "cpu"]


def build(command: str, *words: str) -> Any:
    """The trainer's objects of a command, without running it."""
    from lovec.cli.training import TrainingCLI

    return TrainingCLI(command, words)


def error_of(capsys: Any, *words: str) -> tuple[int, str]:
    """Exit code and message of a command that prints one line on standard error."""
    capsys.readouterr()
    code = main(list(words))
    beside = re.compile(r"Seed set|lovec: (?!error: ).*\d:\d\d")  # lines of progress, which a slow machine prints
    lines = [line for line in capsys.readouterr().err.splitlines() if not beside.match(line)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("lovec: error: ")
    return code, lines[0].removeprefix("lovec: error: ")


def write_rows(path: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows as CSV where the name ends in that, else as JSON Lines; return the path."""
    with open(path, "w", newline="") as file:
        if path.endswith(".csv"):
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def write_checkpoint(path: Any, recipe: dict[str, Any]) -> str:
    """A checkpoint that holds a recipe and nothing else."""
    torch.save({RECIPE_KEY: yaml.safe_dump(recipe), "state_dict": {}}, path)
    return str(path)
