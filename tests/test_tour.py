"""The example notebook: a valid notebook without outputs, whose cells run in their order, offline."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOUR = Path(__file__).resolve().parents[1] / "docs" / "tour.ipynb"

# Runs every code cell as a notebook does: statements in one namespace, and the value of a last expression is shown.
RUNNER = """
import ast, json, sys
notebook = json.load(open(sys.argv[1], encoding="utf-8"))
namespace, shown = {"__name__": "__main__"}, {}
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), cell["id"], "eval"), namespace)
            html = getattr(value, "_repr_html_", lambda: None)()
            shown[cell["id"]] = {"type": type(value).__name__, "text": repr(value), "html": html}
json.dump(shown, open("shown.json", "w", encoding="utf-8"))
"""


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(TOUR.read_text(encoding="utf-8"))
    return data


def test_it_is_a_small_notebook_without_outputs(notebook: dict[str, Any]) -> None:
    assert TOUR.stat().st_size < 100_000
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    common = {"cell_type", "id", "metadata", "source"}
    for cell in notebook["cells"]:
        assert set(cell) == common | ({"execution_count", "outputs"} if cell["cell_type"] == "code" else set())
        assert cell["cell_type"] in ("code", "markdown") and cell["metadata"] == {}
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        lines = cell["source"]
        assert lines and all(line.endswith("\n") for line in lines[:-1]) and not lines[-1].endswith("\n")
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_its_links_lead_somewhere(notebook: dict[str, Any]) -> None:
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links and all((TOUR.parent / link).is_file() for link in links)


def test_its_cells_run(tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                   "TMPDIR": str(tmp_path)}  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", RUNNER, str(TOUR)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    shown = json.loads((tmp_path / "shown.json").read_text(encoding="utf-8"))
    assert shown["tag"]["type"] == "TaggedText" and "received its charter in 1913" in shown["tag"]["html"]
    assert "not calibrated" in shown["tag"]["html"] and "## Trade" in shown["tag"]["html"]
    assert "does not know" not in shown["tag"]["html"] and "taken to" not in run.stderr
    assert 0 <= float(shown["dict"]["text"]) <= 1 and "confidence  score  sentence" in run.stdout
    assert shown["frame"]["type"] == "DataFrame" and "received its charter" in shown["frame"]["html"]
    figures = re.search(r"Brier score 0\.\d+, ECE-M 0\.\d+, (\d+) sentences", run.stdout)
    assert figures and int(figures[1]) > 100
    after = shown["calibrated"]["html"]
    assert "not calibrated" not in after and f"{figures[1]} sentences of 60 answers" in after


def test_nothing_untrained_is_shown(notebook: dict[str, Any]) -> None:
    code = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert "build_tiny" not in code and 'adapter_folder("world")' in code
