"""What a host of repositories, a container and a citation manager read is whole, and agrees with the rest."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib

import pytest
import yaml
from forks import free_port
from pages import README, ROOT

FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions():
    """The instructions of the Dockerfile: word and rest, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def last(word):
    """The last instruction of a kind."""
    return [rest for kind, rest in instructions() if kind == word][-1]


# ---------------------------------------------------------------- contributing


def test_contributing_names_targets_and_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word for words in re.findall(r"(?:`|^)make ([a-z -]+?)(?:`|  )", text, re.MULTILINE) for word in words.split()
    }
    assert {"test", "lint", "types", "docs", "planted"} <= named <= targets
    paths = re.findall(r"`((?:lovec|cli|tests|configs|docs)/[\w./]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_ones(path):
    form = yaml.safe_load(path.read_text())
    assert set(form) <= {"name", "description", "labels", "title", "body"} and form["name"] and form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in asked} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in asked)
    names = [part["id"] for part in asked]
    assert len(set(names)) == len(names) and any(part.get("validations", {}).get("required") for part in asked)


def test_the_workflow_runs_the_checks_on_every_python():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    assert "bash .ci/run" in commands and any(command.startswith("make test") for command in commands)
    versions = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == versions
    setups = [step["with"] for job in jobs.values() for step in job["steps"] if "setup-python" in step.get("uses", "")]
    assert {(given["cache"], given["cache-dependency-path"]) for given in setups} == {("pip", "pyproject.toml")}
    assert all(job["timeout-minutes"] for job in jobs.values())


# ---------------------------------------------------------------- citation


def test_readme_cites_what_the_citation_file_has():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    (paper,) = citation["references"]
    text = README.read_text()
    entry = dict(re.findall(r"^  (\w+) += \{(.+)\},?$", text, re.MULTILINE))
    authors = " and ".join(f"{author['family-names']}, {author['given-names']}" for author in paper["authors"])
    assert (entry["author"], entry["year"], entry["url"]) == (authors, str(paper["year"]), paper["url"])
    assert entry["title"].replace("{", "").replace("}", "") == paper["title"]
    assert entry["pages"] == f"{paper['start']}--{paper['end']}" and entry["booktitle"] == paper["collection-title"]


# ---------------------------------------------------------------- the image


def test_the_image_runs_as_a_user_without_rights_and_is_asked_for_its_health():
    kinds = [kind for kind, _ in instructions()]
    stages = [at for at, kind in enumerate(kinds) if kind == "FROM"]
    final = instructions()[stages[-1] :]
    users = [rest for kind, rest in final if kind == "USER"]
    assert users and users[-1] not in ("root", "0")
    at = max(at for at, (kind, _) in enumerate(final) if kind == "USER")
    assert {"HEALTHCHECK", "ENTRYPOINT", "CMD"} <= {kind for kind, _ in final[at:]}
    assert all("slim" in rest for kind, rest in instructions() if kind == "FROM")
    assert "/health" in last("HEALTHCHECK")


def test_the_image_holds_no_secret():
    secret = re.compile(r"(key|token|secret|password|passwd)\w*[ =]", re.IGNORECASE)
    assert [rest for kind, rest in instructions() if kind in ("ENV", "ARG") and secret.search(rest)] == []
    assert not any(kind == "ADD" for kind, _ in instructions())


def test_what_is_copied_is_there_and_reaches_the_build():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert lines[1] == "*" and all((ROOT / name).exists() for name in kept)
    copied = [rest.split() for kind, rest in instructions() if kind == "COPY" and "--from" not in rest]
    sources = {source for words in copied for source in words[:-1]}
    assert sources == kept
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    packages = dict(line.split(" = ") for line in config["options"]["package_dir"].split("\n") if line)
    assert {"lovec", *packages.values(), "pyproject.toml", "setup.cfg", PROJECT["readme"]} <= sources


def test_the_image_installs_a_torch_that_lovec_takes():
    wanted = next(name for name in PROJECT["dependencies"] if name.startswith("torch>"))
    assert any(wanted in rest for kind, rest in instructions() if kind == "RUN")
    (python,) = {re.search(r"python:([\d.]+)", rest)[1] for kind, rest in instructions() if kind == "FROM"}
    assert any(c.endswith(f":: {python}") for c in PROJECT["classifiers"])


def test_its_command_serves_and_its_health_check_sees_it(tmp_path):
    """The command of the image and its check, on another port."""
    port = free_port()
    words = [*json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    assert words[:2] == ["lovec", "serve"] and f"EXPOSE {words[-1]}" in (ROOT / "Dockerfile").read_text()
    words = [word.replace("0.0.0.0", "127.0.0.1").replace("8080", str(port)) for word in words[1:]]
    check = json.loads(last("HEALTHCHECK").partition("CMD")[2].replace("8080", str(port)))
    check[0] = sys.executable
    assert subprocess.run(check, capture_output=True).returncode != 0
    server = subprocess.Popen([sys.executable, "-m", "lovec", *words], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while subprocess.run(check, capture_output=True).returncode != 0:
            assert time.monotonic() < end and server.poll() is None
            time.sleep(0.5)
    finally:
        server.terminate()
        server.wait()


def daemon():
    """Whether there is Docker, and its daemon answers."""
    return shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not daemon(), reason="Docker is not running")
def test_the_image_is_built():
    done = subprocess.run(shlex.split("docker build --quiet ."), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    image = done.stdout.strip()
    try:
        run = ["docker", "run", "--rm", image, "--version"]
        assert subprocess.run(run, capture_output=True, text=True).stdout == f"lovec {PROJECT['version']}\n"
    finally:
        subprocess.run(["docker", "image", "rm", image], capture_output=True)
