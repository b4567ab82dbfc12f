"""The wheel, installed outside the checkout: commands run, recipes are found, and it holds the package only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("lovec", "cli", "configs", "pyproject.toml", "setup.cfg", "README.md", "LICENSE")

pytestmark = pytest.mark.wheel


def run(*words, **kwargs):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing an older build left in the checkout gets in."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, copy)
    (built,) = out.glob("lovec-*.whl")
    return built


@pytest.fixture(scope="module")
def lovec(wheel, tmp_path_factory):
    """Run the installed command in an empty folder, without the checkout on the path."""
    site, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel)
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def command(*words):
        return run(sys.executable, "-P", "-m", "lovec.cli", *words, cwd=empty, env=env)

    where = run(sys.executable, "-P", "-c", "import lovec.cli; print(lovec.cli.__file__)", cwd=empty, env=env)
    assert Path(where.strip()).is_relative_to(site)
    return command


def test_it_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"lovec", next(n for n in names if "dist-info" in n).split("/")[0]}
    # whatever lies in the package, templates and data among it
    files = [path for path in (ROOT / "lovec").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ours = {f"lovec/{path.relative_to(ROOT / 'lovec')}" for path in files}
    ours |= {f"lovec/cli/{path.name}" for path in (ROOT / "cli").glob("*.py")}
    recipes = {f"lovec/configs/{path.name}" for path in (ROOT / "configs").glob("*.yaml")}
    inside = {name for name in names if name.startswith("lovec/")}
    assert inside == ours | recipes
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_runs(lovec):
    assert "demo" in lovec("--help")
    assert lovec("--version").startswith("lovec 0.")


def test_packaged_recipes_are_found(lovec):
    printed = lovec("fit", "--config", "dpo.yaml", "--config", "world-small.yaml", "--print_config")
    assert "class_path: lovec.modules.DPO" in printed
    assert "variant: world-small" in printed
    assert "micro_batch_tokens: null" in printed  # of base.yaml
