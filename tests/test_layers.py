"""Imports go down only, and modules of one layer do not import each other."""

from __future__ import annotations

import ast
import configparser
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from code_lines import code_lines
from scripts import load_file

ROOT = Path(__file__).resolve().parents[1]


LAYERS: dict[str, str] = {
    "core": "core",
    "records": "types",
    "functions": "tags losses rewards metrics tries",
    "text": "text",
    "prompts and tokens": "encoding",
    "models and files": "policy engines datasets display calibration",
    "names of models": "models",
    "confidences and labels": "oracles taggers baselines",
    "data and tests": "datamodules teachers evaluation tagging export",
    "training and serving": "callbacks labelling serving",
    "objectives": "modules",
    "reports": "reports",
    "commands": "cli configs",
}
"""Layers from the bottom up, and the files and folders of lovec in each."""

LEVEL = {part: level for level, parts in enumerate(LAYERS.values()) for part in parts.split()}
"""Number of the layer of each part, from 0."""


def sources() -> list[Path]:
    return sorted([*(ROOT / "lovec").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def part_of(path: Path) -> str | None:
    """The part of lovec that a file belongs to; None for lovec/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    part = "cli" if parts[0] == "cli" or parts[1] == "__main__" else parts[1]
    return None if part == "__init__" else part


def imported_parts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and part of every import from lovec, those inside functions included."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("lovec."):
                yield node.lineno, name.split(".")[1]


def upward(part: str | None, tree: ast.AST) -> list[str]:
    """What a file of ``part`` imports that it may not."""
    own = 1 if part is None else LEVEL[part]  # lovec/__init__.py imports the base only, and the rest on first use
    return [
        f"line {line}: {part or '__init__'} imports {other}"
        for line, other in imported_parts(tree)
        if other != part and LEVEL[other] >= own
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
    """Modules that each module imports. What a package exports is an import of the file that defines it only."""
    modules = {module_name(path) for path in trees}
    graph: dict[str, set[str]] = {}
    for path, tree in trees.items():
        name = module_name(path)
        graph[name] = {other for other in internal_imports(path, tree) & modules if other != name}
    return graph


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down(path):
    part = part_of(path)
    assert part is None or part in LEVEL, f"{part} has no layer: give it one in LAYERS"
    assert upward(part, ast.parse(path.read_text())) == []


def test_the_walk_sees_what_is_wrong():
    assert upward("tags", ast.parse("def f():\n    from lovec.policy import Policy"))  # up
    assert upward("tags", ast.parse("import lovec.losses"))  # next door
    assert upward("modules", ast.parse("from lovec import cli"))
    assert upward(None, ast.parse("from lovec.types import Record"))  # lovec/__init__.py imports on first use
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


@pytest.mark.parametrize("part", LEVEL)
def test_every_room_is_there(part):
    home = ROOT if part in ("cli", "configs") else ROOT / "lovec"
    assert (home / part).is_dir() or (home / f"{part}.py").is_file()


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


def test_the_drawing_is_of_these_layers():
    layers = load_file(ROOT / "docs/layers.py", "layers")
    assert (ROOT / "docs/layers.svg").read_text() == layers.svg(LAYERS), "run `make layers`"
    printed = layers.text(LAYERS)
    assert all(f"    {part}" in printed for part in LEVEL)
