"""The house keeps its order: imports go down only, rooms of one floor ignore each other, files stay small."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 300


@dataclass(frozen=True)
class Floor:
    """A floor: its name, what its rooms have in common, and a phrase for every room."""

    name: str
    phrase: str
    rooms: dict[str, str]


LAYERS = (
    Floor("cellar", "meets every floor", {"types": "records; the protocols Engine, Oracle, Tagger"}),
    Floor(
        "ground floor",
        "pure functions, no I/O",
        {
            "tags": "read and write tags",
            "sentences": "split answers, spot refusals",
            "losses": "one function an equation",
            "rewards": "what a score is worth",
            "metrics": "Brier, ECE-M, Spearman",
            "stopwatch": "wall time by phase",
        },
    ),
    Floor(
        "mezzanine",
        "what talks to models",
        {
            "encoding": "prompts and tagged answers as token ids",
            "choices": "scores as branches of a tree",
            "calls": "retries and time-outs of HTTP calls",
        },
    ),
    Floor(
        "first floor",
        "weights, devices, files",
        {
            "policy": "model, LoRA, reference",
            "engines": "sample and score",
            "embedding": "sentences as vectors",
            "datasets": "JSONL, pairs, public sets, the world",
            "tiny": "random tiny models",
        },
    ),
    Floor(
        "second floor",
        "asks a model about text",
        {
            "oracles": "say how true sentences are",
            "taggers": "give sentences a confidence",
            "baselines": "what to beat",
        },
    ),
    Floor(
        "third floor",
        "Lightning, and labelling",
        {
            "datamodules": "what is served",
            "modules": "what is optimised",
            "labelling": "questions to pairs",
            "tagging": "tag any text",
            "serving": "an endpoint",
            "exporting": "adapter or merged model",
        },
    ),
    Floor("chimney", "what comes out", {"reports": "tables, figures, the page"}),
    Floor("roof", "nobody imports it", {"cli": "commands", "configs": "recipes"}),
)
"""Floors from the bottom up; a room is a file or folder of lovec."""

LEVEL = {room: level for level, floor in enumerate(LAYERS) for room in floor.rooms}


def sources() -> list[Path]:
    return sorted([*(ROOT / "lovec").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def room_of(path: Path) -> str | None:
    """The room a file belongs to; None for the front door lovec/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    room = parts[0] if parts[0] == "cli" else parts[1]
    return None if room == "__init__" else room


def imported_rooms(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and room of every import from lovec, those inside functions included."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("lovec."):
                yield node.lineno, name.split(".")[1]


def upward(room: str | None, tree: ast.AST) -> list[str]:
    """What a file of ``room`` imports that it may not."""
    own = -1 if room is None else LEVEL[room]
    return [
        f"line {line}: {room or '__init__'} imports {other}"
        for line, other in imported_rooms(tree)
        if other != room and LEVEL[other] >= own
    ]


def code_lines(text: str) -> int:
    """Lines that hold code: no comments, docstrings, blank lines."""
    skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down(path):
    room = room_of(path)
    assert room is None or room in LEVEL, f"{room} has no floor: give it one in LAYERS"
    assert upward(room, ast.parse(path.read_text())) == []


def test_the_walk_sees_what_is_wrong():
    assert upward("tags", ast.parse("def f():\n    from lovec.policy import Policy"))  # up
    assert upward("tags", ast.parse("import lovec.losses"))  # next door
    assert upward("modules", ast.parse("from lovec import cli"))
    assert upward(None, ast.parse("from lovec.types import Record"))  # the front door stays shut
    assert not upward("modules", ast.parse("from lovec.policy import Policy\nimport lovec.modules.dpo\nimport torch"))


@pytest.mark.parametrize("room", LEVEL)
def test_every_room_is_there(room):
    home = ROOT if room in ("cli", "configs") else ROOT / "lovec"
    assert (home / room).is_dir() or (home / f"{room}.py").is_file()


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_are_small(path):
    assert code_lines(path.read_text()) <= LONGEST


def test_code_lines_leave_out_words():
    assert code_lines('"""Doc\nstring."""\n\n# comment\nx = [\n    1,\n]\n') == 3


def test_setup_cfg_lists_the_tree():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    there = {".".join(init.parent.relative_to(ROOT).parts) for init in (ROOT / "lovec").rglob("__init__.py")}
    assert listed == there | {"lovec.cli", "lovec.configs"}
    assert (ROOT / "lovec/py.typed").exists()


@pytest.mark.parametrize("words", [None, ["--help"], ["--version"], ["fti"], ["demo", "--help"]])
def test_no_torch_before_it_is_needed(words):
    code = f"import lovec.cli; lovec.cli.main({words})" if words else "import lovec; lovec.__version__; dir(lovec)"
    heavy = "{'torch', 'lightning', 'transformers', 'peft', 'jsonargparse', 'vllm', 'bitsandbytes'}"
    check = f"import sys; {code}; found = {heavy} & set(sys.modules); assert not found, found"
    run = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_parts_come_in_on_first_use():
    import lovec

    assert lovec.tags.parse("A. <confidence> 3 </confidence>").sentences[0].score == 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = lovec.nothing


def test_the_drawing_is_of_this_house():
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs/house.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert (ROOT / "docs/house.svg").read_text() == house.svg(LAYERS), "run `make house`"
    assert all(room in house.text(LAYERS) for room in LEVEL)
