"""Every packaged recipe starts with every data set, oracle and overlay, and so does every command of the pages.

Nothing is listed here: recipes and overlays are the files of ``configs``, data and oracles the classes that lovec
exports, commands those of README, docs and the recipes' own comments. Each is checked as a command line and built by
the parser, as far as the model that would be loaded.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from commandline import CPU, build
from recipes import OBJECTIVES, OVERLAYS, QUANTIZED, WHOLE, command_of
from tinyrun import records

import lovec.datamodules
import lovec.oracles
from lovec.cli import main
from lovec.cli.arguments import RECIPES
from lovec.cli.preflight import check_words
from lovec.core.settings import declared
from lovec.datamodules import RecordsDataModule
from lovec.datasets.jsonl import write_records
from lovec.types import LovecError

ROOT = Path(__file__).resolve().parents[2]
PLAIN_OVERLAYS = [name for name in OVERLAYS if name not in QUANTIZED]


def exported(module: Any, *methods: str) -> list[type]:
    """The concrete classes that a package exports and that have some methods."""
    found = [getattr(module, name) for name in module.__all__]
    kinds = [kind for kind in found if inspect.isclass(kind) and all(hasattr(kind, method) for method in methods)]
    return [kind for kind in kinds if not inspect.isabstract(kind)]


DATA = [kind for kind in exported(lovec.datamodules, "load") if kind is not RecordsDataModule]
ORACLES = exported(lovec.oracles, "rate")


def words_of(option: str, kind: type) -> list[str]:
    """The class as an option, with every parameter that it needs: a file for a text, else what its type says."""
    words = [option, f"{kind.__module__}.{kind.__qualname__}"]
    options = declared(kind)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            assert str in options[name].types, (kind, name)
            words += [f"{option}.{name}", "file.jsonl"]
    return words


PARTS = 4


@pytest.fixture
def adapters(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the adapters and files that recipes and pages name, all of them empty."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for name in WHOLE:
        adapter = Path("runs", name.removesuffix(".yaml"), "adapter")
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
    write_records(here / "file.jsonl", records(2))
    return here


def test_there_are_recipes_data_and_oracles() -> None:
    assert len(OBJECTIVES) > 9 and len(PLAIN_OVERLAYS) > 6 and len(DATA) > 7 and len(ORACLES) > 3


@pytest.mark.parametrize("recipe", OBJECTIVES)
def test_a_recipe_is_let_through_with_all_data_oracles_and_overlays(adapters: Path, recipe: str) -> None:
    for name in ("ChatGPT", "train", "dev"):
        Path(f"{name}.jsonl").touch()
    for number, (data, overlay) in enumerate(product(DATA, (None, *PLAIN_OVERLAYS))):
        over = ["--config", overlay] if overlay else []
        words = ["--config", recipe, *over, *words_of("--data", data)]
        words += words_of("--model.oracle", ORACLES[number % len(ORACLES)])
        check_words(command_of(recipe), [*words, "--model.policy.model", "world"])


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
@pytest.mark.parametrize("recipe", OBJECTIVES)
def test_a_recipe_builds_with_all_data_oracles_and_overlays(adapters: Path, recipe: str, part: int) -> None:
    """A part of the data sets, another one per recipe; oracles and overlays take turns."""
    shift = OBJECTIVES.index(recipe)
    for number, data in enumerate(DATA):
        if (number + shift) % PARTS != part:
            continue
        oracle = ORACLES[(number // PARTS + shift) % len(ORACLES)]
        overlay = (None, *PLAIN_OVERLAYS)[(number + shift) % (len(PLAIN_OVERLAYS) + 1)]
        over = ["--config", overlay] if overlay else []
        words = ["--config", recipe, *over, *words_of("--data", data), *words_of("--model.oracle", oracle)]
        cli = build(command_of(recipe), *words, "--model.policy.model", "world", *CPU)
        assert (type(cli.datamodule), type(cli.model.oracle)) == (data, oracle)


def test_grpo_trains_on_questions_of_ones_own(here: Path, model: str, adapter: str) -> None:
    Path("q.jsonl").write_text("".join(f'{{"question": "Who is number {n}?"}}\n' for n in range(4)))
    words = ["--config", "grpo.yaml", "--data", "Prompts", "--data.path", "q.jsonl", "--data.batch_size", "1"]
    words += ["--model.oracle", "SelfJudge", "--model.max_new_tokens", "8", "--model.group_size", "2"]
    words += ["--model.policy.model", model, "--model.policy.adapter", adapter, "--trainer.max_steps", "1"]
    assert main(["fit", *words, "--trainer.limit_val_batches", "0", *CPU]) == 0
    assert Path("runs/grpo/adapter/adapter_model.safetensors").is_file()


def pages() -> Iterator[tuple[str, str]]:
    """Every command that starts the trainer, in blocks of the pages and in comments of recipes, and where it stands."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(RECIPES.glob("*.yaml"))):
        text = page.read_text()
        if page.suffix == ".yaml":
            text = "\n".join(line.removeprefix("#") for line in text.splitlines() if line.startswith("#"))
        for line in text.replace("\\\n", " ").splitlines():
            if re.match(r" *lovec (fit|validate|test|predict) ", line) and not re.search(r"\.\.\.|help", line):
                yield page.name, line.strip()


def test_every_command_of_the_pages_and_recipes_builds(adapters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, own = 0, 0
    seen = set()
    for page, line in pages():
        _, command, *words = shlex.split(line, comments=True)
        if (key := (command, *words)) in seen or any("bitsandbytes" in word or word == "qlora.yaml" for word in words):
            continue
        seen.add(key)
        words = ["tiny-llama" if word == "MODEL" else word for word in words if word != "--print_config"]
        for word in words:  # files that a reader has
            if re.fullmatch(r"[\w./-]+\.(jsonl|txt|db)", word):
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).touch()
        if re.search(
            r"\bmy_\w+\.|--ckpt_path|wandb|runs/(labels|clauses)|/models/", line
        ):  # needs a file that is made elsewhere
            own += 1
            continue
        try:
            check_words(command, words)
        except LovecError as error:
            if "and the hub cannot be reached" not in str(error):  # which has the model, where there is a network
                pytest.fail(f"{page}: {line}: {error}")
        try:
            build(command, *words, *CPU, "--trainer.strategy", "auto", "--trainer.devices", "1")
        except LovecError as error:
            pytest.fail(f"{page}: {line}: {error}")
        built += 1
    assert built > 25 and own < built
