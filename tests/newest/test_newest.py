"""``make newest``: upper bounds are lifted, and every test that breaks is put down to the package that breaks it."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest
from scripts import load_file

HERE = Path(__file__).parent


RUN = load_file(HERE / "run.py", "newest_run")
PYPROJECT = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# A project whose tests name the releases that they pass with. Its build backend needs nothing but Python.
FILES = {
    "pyproject.toml": """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "shop"
version = "1.0"
dependencies = ["apple>=1,<2", "pear<2", "plum>=1", "lime==1.*"]
""",
    "backend.py": """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f"{folder}/shop-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\\nName: shop\\nVersion: 1.0\\n",
            "WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"shop-1.0.dist-info/{name}", text)
    return "shop-1.0-py3-none-any.whl"
""",
    "tests/test_shop.py": """
import apple, lime, pear, plum
def test_newest_are_here(): assert plum.VERSION == 2
def test_apple(): assert apple.VERSION == 1
def test_two(): assert apple.VERSION == 1
def test_both(): assert (pear.VERSION, lime.VERSION) == (1, 1)
def test_broken(): assert apple.VERSION == 3
""",
}


def write_wheel(folder: Path, name: str, version: int) -> None:
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"VERSION = {version}\n")
        info = f"{name}-{version}.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with four packages, of which an index on the disk has two releases each."""
    (tmp_path / "wheels").mkdir()
    for name in ("apple", "pear", "plum", "lime"):
        for version in (1, 2):
            write_wheel(tmp_path / "wheels", name, version)
    for name, text in FILES.items():
        file = tmp_path / "shop" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PYTHONPATH", str(Path(pytest.__file__).parents[1]))  # pytest is not in the index
    return tmp_path / "shop"


def run(shop: Path, *words: str) -> int:
    return RUN.main(["--project", str(shop), "--extras", "--tests", "tests/test_shop.py", *words])


@pytest.mark.slow
def test_what_breaks_is_printed_by_package(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(shop) == 2
    table = capfd.readouterr().out.rpartition("package  range")[2].splitlines()
    assert table[1:4] == [
        "apple    <2,>=1  2       2",
        "pear     <2      2       none",
        "lime     ==1.*   2       none",
    ]
    test = "  tests/test_shop.py::test"
    assert table[4:] == [
        "", "apple 2", f"{test}_apple", f"{test}_two",
        "", "several packages together", f"{test}_both",
        "", "fails with all packages in their ranges too", f"{test}_broken",
    ]  # fmt: skip


@pytest.mark.slow
def test_one_package_may_be_tried_alone(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(shop, "--only", "Pear", "-k", "apple or two") == 0
    assert "pear     <2     2       none" in capfd.readouterr().out
    (shop / "tests/conftest.py").write_text("import apple\nassert apple.VERSION == 1, 'no apples'\n", encoding="utf-8")
    assert run(shop, "--only", "apple", "-k", "apple") == 1  # no test starts
    assert capfd.readouterr().out.endswith("apple 2\n  tests/test_shop.py\n")


@pytest.mark.slow
def test_releases_that_do_not_fit_together_are_an_error(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for wheel in shop.parent.glob("wheels/plum-*"):
        wheel.unlink()
    assert run(shop) == 2
    assert "pip could not install apple>=1, pear, plum>=1, lime>=1 together" in capfd.readouterr().err


def test_upper_bounds_are_lifted_and_ranges_kept() -> None:
    needed = {package.name: package for package in RUN.packages(PYPROJECT, RUN.EXTRAS)}
    assert {"torch", "transformers", "starlette", "bitsandbytes", "pytest"} <= set(needed)
    assert "lovec" not in needed and "vllm" not in needed
    assert needed["torch"].lifted == "torch>=2.11" and "<" in needed["torch"].allowed
    assert needed["jsonargparse"].lifted == "jsonargparse[signatures]>=4.49"
    versions = {"name": "x", "dependencies": ["a==2.*", "a!=2.3", "B_c~=1.2", "d"]}
    assert [p.lifted for p in RUN.packages(versions, ())] == ["a!=2.3,>=2", "b-c>=1.2", "d"]


def test_a_release_beyond_its_range_is_told() -> None:
    (package,) = RUN.packages({"name": "x", "dependencies": ["torch>=2.11,<2.14"]}, ())
    for version, outside in (("2.13.0+cpu", False), ("2.14.1", True), ("2.15.0rc1", True), ("", False)):
        package.version = version
        assert package.is_outside is outside
    assert RUN.report([package], [], []) == "the newest releases of all packages are in their ranges"


def test_a_package_that_the_project_does_not_need_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        RUN.main(["--only", "torhc"])
    assert "--only torhc: the project needs " in capsys.readouterr().err
