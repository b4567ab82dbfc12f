"""Run the tests with the newest releases of everything, and print what breaks by package.

    python tests/newest/run.py                              # all packages of pyproject.toml
    python tests/newest/run.py --only transformers peft     # the others stay in their ranges
    python tests/newest/run.py --tests tests/policy -k lora

Made to be run weekly. A fresh environment gets every package without the upper bound of its range. Where tests fail
there, each package that lies above its range is put back into it, alone, and the tests that failed are run again: those
that pass then broke because of it. Exits with 0 if nothing breaks, with 1 if something does, and with 2 where there is
nothing to say: the releases cannot be installed together, or the tests fail with all packages in their ranges too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
UPPER = ("<", "<=", "==", "~=", "===")
EXTRAS = ("dev", "quant")  # vllm pins its torch exactly, parity pins TRL for its equations


class Failed(Exception):
    """Nothing can be said about the newest releases."""


@dataclass
class Package:
    """A package that the project needs.

    Attributes:
        name: its normalised name.
        extras: its extras, as ``[signatures]``, or "".
        range: versions that the project allows.
        version: the newest release that could be installed.
        broken: tests that pass when this package alone is back in its range.
    """

    name: str
    extras: str
    range: SpecifierSet
    version: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def allowed(self) -> str:
        """The requirement with its range."""
        return f"{self.name}{self.extras}{self.range}"

    @property
    def lifted(self) -> str:
        """The requirement without an upper bound; a pinned version is the lowest one."""
        kept = [str(bound) for bound in self.range if bound.operator not in UPPER]
        kept += [f">={bound.version.removesuffix('.*')}" for bound in self.range if bound.operator in ("==", "~=")]
        return f"{self.name}{self.extras}{','.join(sorted(kept))}"

    @property
    def is_outside(self) -> bool:
        """Whether the newest release is one that the project does not allow yet."""
        return bool(self.version) and not self.range.contains(self.version, prereleases=True)


def packages(project: Mapping[str, object], extras: Iterable[str]) -> list[Package]:
    """Return the packages that a project needs, each once.

    Args:
        project: the table ``[project]`` of its pyproject.toml.
        extras: names of extras; extras of the project itself inside them are followed.
    """
    optional = project.get("optional-dependencies", {})
    own = canonicalize_name(str(project["name"]))
    found: dict[str, Package] = {}
    lines = [*project.get("dependencies", []), *(line for name in extras for line in optional.get(name, []))]
    while lines:
        requirement = Requirement(lines.pop(0))
        name = canonicalize_name(requirement.name)
        if name == own:
            lines += [line for extra in sorted(requirement.extras) for line in optional[extra]]
            continue
        marks = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        package = found.setdefault(name, Package(name, marks, SpecifierSet()))
        package.range &= requirement.specifier
        package.extras = package.extras or marks
    return list(found.values())


class Environment:
    """A virtual environment with the project in it, installed from its folder.

    Args:
        folder: where it is made; what is there is replaced.
        project: folder of the project.
    """

    def __init__(self, folder: Path, project: Path) -> None:
        self.project = project
        self.python = folder / "bin" / "python"
        venv.create(folder, clear=True, with_pip=True)
        self._cache = folder / "pytest-cache"
        self._arguments = folder / "tests.txt"

    def install(self, requirements: Sequence[str]) -> None:
        """Install packages and what they need."""
        pip = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--upgrade"]
        if requirements and subprocess.run([*pip, *requirements], cwd=self.project).returncode:
            raise Failed(f"pip could not install {', '.join(requirements)} together, see above")

    def versions(self) -> dict[str, str]:
        """Return the version of every package."""
        command = [self.python, "-m", "pip", "list", "--disable-pip-version-check", "--format", "json"]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {canonicalize_name(entry["name"]): entry["version"] for entry in listed}

    def failing(self, tests: Sequence[str], options: Sequence[str]) -> list[str]:
        """Run tests and return those that fail; files where they cannot be collected, ``tests`` if none starts."""
        record = self._cache / "v" / "cache" / "lastfailed"
        record.unlink(missing_ok=True)
        self._arguments.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
        command = [self.python, "-m", "pytest", "-q", "-o", f"cache_dir={self._cache}", *options, f"@{self._arguments}"]
        offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if subprocess.run(command, cwd=self.project, env=os.environ | offline).returncode in (0, 5):  # 5: none selected
            return []
        return list(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else list(tests)


def attribute(
    environment: Environment, needed: Sequence[Package], broken: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Find the package that breaks each test, and return the tests that no package alone breaks.

    Args:
        environment: has the newest releases; it has them again afterwards.
        needed: all packages; the tests are written into ``broken`` of those that break them.
        broken: tests that fail.
        options: arguments for pytest.
    """
    newest = [f"{name}=={version}" for name, version in environment.versions().items() if name in _names(needed)]
    left = list(broken)
    for package in (package for package in needed if package.is_outside):
        print(f"\n{package.name} back in its range, {package.range}", flush=True)
        environment.install([package.allowed])
        still = set(environment.failing(broken, options))
        package.broken = [test for test in broken if test not in still]
        left = [test for test in left if test in still]
        environment.install(newest)
    return left


def report(needed: Sequence[Package], left: Sequence[str], older: Sequence[str]) -> str:
    """Return what breaks by package.

    Args:
        needed: all packages.
        left: tests that several packages break together.
        older: tests that fail with all packages in their ranges too.
    """
    outside = [package for package in needed if package.is_outside]
    rows = [("package", "range", "newest", "tests that break")]
    rows += [(p.name, str(p.range), p.version, str(len(p.broken)) if p.broken else "none") for p in outside]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if not outside:
        lines = ["the newest releases of all packages are in their ranges"]
    for title, tests in (
        *((f"{p.name} {p.version}", p.broken) for p in outside),
        ("several packages together", left),
        ("fails with all packages in their ranges too", older),
    ):
        lines += ["", title, *(f"  {test}" for test in tests)] if tests else []
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Try the newest releases and return the exit code."""
    parser = argparse.ArgumentParser(
        description="run the tests with the newest releases, print what breaks by package; other options are pytest's",
        allow_abbrev=False,
    )
    parser.add_argument("--project", type=Path, default=ROOT, help="folder with pyproject.toml")
    parser.add_argument("--venv", type=Path, default=None, help="environment to make (default: PROJECT/.venv-newest)")
    parser.add_argument("--extras", nargs="*", default=list(EXTRAS), help=f"extras (default: {' '.join(EXTRAS)})")
    parser.add_argument("--only", nargs="+", default=[], metavar="PACKAGE", help="the others stay in their ranges")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files, folders or names of tests")
    options, pytest_options = parser.parse_known_args(words)
    project = tomllib.loads((options.project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = packages(project, options.extras)
    only = {canonicalize_name(name) for name in options.only}
    if unknown := only - _names(needed):
        parser.error(f"--only {sorted(unknown)[0]}: the project needs {', '.join(sorted(_names(needed)))}")
    try:
        environment = Environment(options.venv or options.project / ".venv-newest", options.project)
        environment.install([p.allowed if only and p.name not in only else p.lifted for p in needed])
        environment.install(["--no-deps", "--editable", "."])
        versions = environment.versions()
        for package in needed:
            package.version = versions[package.name]
        broken = left = older = environment.failing(options.tests, pytest_options)
        if broken:
            left = attribute(environment, needed, broken, pytest_options)
            if left:
                print("\nall packages back in their ranges", flush=True)
                environment.install([package.allowed for package in needed])
            older = environment.failing(left, pytest_options) if left else []
    except Failed as error:
        print(error, file=sys.stderr)
        return 2
    print("\n" + report(needed, [test for test in left if test not in set(older)], older))
    if older:
        return 2
    return int(bool(broken))


def _names(needed: Iterable[Package]) -> set[str]:
    return {package.name for package in needed}


if __name__ == "__main__":
    sys.exit(main())
