"""The house keeps its order: imports go down only, rooms of one floor ignore each other."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from code_lines import code_lines

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Floor:
    """A floor: its name, what its rooms have in common, and a phrase for every room."""

    name: str
    phrase: str
    rooms: dict[str, str]


LAYERS = (
    Floor("bedrock", "below all", {"errors": "what a user can fix"}),
    Floor(
        "foundation",
        "carries every floor",
        {"settings": "options, each declared once", "plugins": "what packages bring"},
    ),
    Floor(
        "cellar", "meets every floor", {"types": "records, results, the protocols", "thoughts": "kept out of answers"}
    ),
    Floor(
        "ground floor",
        "pure functions, no I/O",
        {
            "tags": "read and write tags",
            "chats": "render chat templates",
            "sentences": "split into sentences",
            "losses": "the equations",
            "rewards": "what a score is worth",
            "metrics": "Brier, ECE-M, Spearman",
            "stopwatch": "wall time by phase",
            "tries": "shared beginnings, once",
            "prompts": "what models are asked",
            "plain": "values of JSON, checked",
        },
    ),
    Floor(
        "mezzanine",
        "small tools",
        {
            "abstentions": "answers that decline",
            "documents": "statements and the rest",
            "encoding": "texts as token ids",
            "choices": "scores as a tree",
            "written": "scores known from writing",
            "calls": "retries of HTTP calls",
            "devices": "where a model runs",
            "files": "atomic writes",
            "hub": "adapters by name",
            "imports": "users' functions",
            "notices": "bundled warnings",
            "progress": "what is being done",
            "provenance": "what decides a score",
            "randomness": "random streams",
            "signals": "ends in order",
            "templates": "text from templates",
        },
    ),
    Floor(
        "first floor",
        "weights, devices, files",
        {
            "policy": "model, LoRA, reference",
            "engines": "sample and score",
            "embedding": "sentences as vectors",
            "questions": "whole replies scored",
            "answers": "answers into sentences",
            "datasets": "files, public sets, world",
            "passages": "tagged text to look at",
            "results": "result rows as JSON",
            "tiny": "random tiny models",
            "gguf": "bases in GGUF",
            "calibration": "readout to confidence",
        },
    ),
    Floor("landing", "between names and folders", {"models": "models by name"}),
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
        "data, measuring, applications",
        {
            "datamodules": "training and test data",
            "teachers": "targets to distil",
            "evaluation": "validation and test",
            "tagging": "tag any text",
            "exporting": "adapter or merged model",
            "uploading": "to a hub",
        },
    ),
    Floor(
        "fourth floor",
        "watches training, makes data, serves",
        {"callbacks": "probes and warnings", "labelling": "questions to pairs", "serving": "an endpoint"},
    ),
    Floor("fifth floor", "what is optimised", {"modules": "objectives and their families"}),
    Floor("chimney", "what comes out", {"reports": "tables, plots, the page"}),
    Floor("roof", "nobody imports it", {"cli": "commands", "configs": "recipes"}),
)
"""Floors from the bottom up; a room is a file or folder of lovec."""

LEVEL = {room: level for level, floor in enumerate(LAYERS) for room in floor.rooms}


def sources() -> list[Path]:
    return sorted([*(ROOT / "lovec").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def room_of(path: Path) -> str | None:
    """The room a file belongs to; None for the front door lovec/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    room = "cli" if parts[0] == "cli" or parts[1] == "__main__" else parts[1]
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


def internal_imports(path: Path, tree: ast.AST) -> set[str]:
    """Modules of lovec that a file imports anywhere, those for type checking and those inside functions included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                package = package if path.name == "__init__.py" else package[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def module_name(path: Path) -> str:
    """Dotted name of a source file: ``lovec.modules.dpo``, ``cli.label``; a package's own file has the package's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph(trees: dict[Path, ast.AST]) -> dict[str, set[str]]:
    """Modules that each module imports. What a room exports at its door is an import of the file behind it only."""
    modules = {module_name(path) for path in trees}
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        name = module_name(path)
        graph[name] = {other for other in internal_imports(path, tree) & modules if other != name}
    return graph


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


def test_no_file_takes_part_in_an_import_circle():
    graph = import_graph({path: ast.parse(path.read_text()) for path in sources()})
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_circles_are_seen_behind_type_checking_and_inside_functions():
    first = ast.parse("if TYPE_CHECKING:\n    from lovec.modules.b import B")
    second = ast.parse("def f():\n    from lovec.modules import a")
    graph = import_graph({ROOT / "lovec/modules/a.py": first, ROOT / "lovec/modules/b.py": second})
    with pytest.raises(CycleError):
        list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("room", LEVEL)
def test_every_room_is_there(room):
    home = ROOT if room in ("cli", "configs") else ROOT / "lovec"
    assert (home / room).is_dir() or (home / f"{room}.py").is_file()


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
