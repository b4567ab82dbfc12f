"""What README and docs print runs; ``make first-hour`` runs it at its full size and takes the time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pages import README, blocks_of, commands_of, in_reading_order
from scripts import load_file

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def run():
    before = list(sys.path)
    yield load_file(HERE / "run.py", "run")
    sys.path[:] = before


@pytest.fixture(scope="module")
def values(run, tmp_path_factory):
    """What stands for the names in the tables; nothing here asks a model of the hub or an endpoint."""
    model = run.tiny(tmp_path_factory.mktemp("models"))
    return {"MODEL": model, "NLI": "nli", "ENDPOINT": "http://127.0.0.1:9/v1"}


@pytest.fixture
def found(run, values, tmp_path):
    """What is found in a page with a text."""

    def read(text):
        page = tmp_path / "page.md"
        page.write_text(text)
        reader = run.Reader(tmp_path / "home", values, quick=True)
        reader.read(page)
        return reader.findings

    return read


@pytest.fixture(scope="module")
def quick(run, tmp_path_factory):
    """A reader in a hurry, and a folder with the runs that README leaves."""
    home = tmp_path_factory.mktemp("first-hour")
    with run.environment(**run.OFFLINE), run.endpoint() as url:
        reader = run.Reader(home / "pages", run.prepared(home, url, quick=True), quick=True)
        yield reader, run.quick_runs(home, reader.values["MODEL"])


WITH_COMMANDS = [p for p in in_reading_order() if {"bash", "sh", "python"} & {b.language for b in blocks_of(p)}]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_what_a_page_prints_runs(run, quick, page):
    reader, beginning = quick
    reader.findings = run.Findings()
    reader.read(page, beginning)
    assert reader.findings.failures == [], "\n".join(reader.findings.failures)


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("lovec tag nothing.txt --model tiny-llama", "`lovec tag nothing.txt --model tiny-llama` ended with 1"),
        ("lovec tga page.txt", "`lovec tga page.txt` ended with 2"),
        ("lovec score nothing.csv &\nwait", "`lovec score nothing.csv` ended with"),
        ("for i in 1 2; do lovec score nothing.csv & done\nwait", "`lovec score nothing.csv` ended with"),
        ("cat nothing.txt", "the shell ended with 1"),
        ("echo 'Traceback (most recent call last)'", "a traceback"),
    ],
)
def test_what_fails_is_found(found, block, why):
    failures = found(f"# Page\n\n```bash\n{block}\n```\n").failures
    assert failures and why in failures[0] and failures[0].startswith("page.md:4: ")


def test_python_that_fails_is_found(found):
    failures = found("```python\nimport lovec\nlovec.nothing\n```\n").failures
    assert len(failures) >= 1 and "`python block.py` ended with 1" in failures[0]


def test_what_is_not_run_is_named(found):
    text = "<!-- not run: needs a GPU -->\n```bash\nlovec tga\n```\n\n```sh\npip install .\nlovec --version\n```\n"
    findings = found(text)
    assert findings.left_out == ["page.md:3: the block: needs a GPU", "page.md:7: pip install .: needs a package index"]
    assert findings.commands == 1 and not findings.failures


def test_files_of_readers_and_printed_ones_are_there(found):
    text = "`my_words.py`:\n\n```python\nWORD = 'here'\n```\n\n```python\nimport my_words\n"
    text += "print(my_words.WORD, open('page.txt').read())\n```\n\n```bash\nlovec score results.csv --draws 0\n```\n"
    findings = found(text)
    assert findings.commands == 2 and not findings.failures


def test_a_command_that_writes_nothing_is_found(run, values, tmp_path):
    reader = run.Reader(tmp_path, values, quick=True)
    words = ["report", "runs/comparison"]
    missing = reader._missing(run.Ran("lovec", words, 0, 1.0), tmp_path, 0.0, "a table")
    assert missing == ["`lovec report runs/comparison` wrote no **/index.html"]
    (tmp_path / "report").mkdir()
    (tmp_path / "report/index.html").touch()
    assert not reader._missing(run.Ran("lovec", words, 0, 1.0), tmp_path, 0.0, "a table")


def test_readme_comes_first_and_no_page_is_left_out():
    pages = in_reading_order()
    assert pages[0] == README and {"tag.md", "label.md", "serve.md"} <= {page.name for page in pages}
    assert len(pages) == len(set(pages))


def test_replacements(run):
    def after(script):
        return run.replaced(script, {"MODEL": "world", "ENDPOINT": "http://e/v1", "PORT": "9"})

    paid = "lovec label --questions q --model meta-llama/Meta-Llama-3-8B-Instruct --oracle OpenAIOracle \\\n"
    paid += "    --oracle.model gpt-4o"
    assert list(commands_of(after(paid))) == [
        ["label", "--questions", "q", "--model", "world", "--oracle", "OpenAIOracle", "--oracle.model", "judge",
         "--oracle.base_url", "http://e/v1", "--yes"]
    ]  # fmt: skip
    assert after("lovec serve --adapter runs/dpo --port 8080   # an endpoint\n").startswith(
        "lovec serve --adapter runs/dpo --port 9 &\nuntil curl -sf http://127.0.0.1:9/health"
    )
    assert after("curl http://127.0.0.1:8080/v1/tag") == "curl http://127.0.0.1:9/v1/tag"
    assert after("lovec fit --config sft.yaml --config llama3-8b.yaml") == "lovec fit --config sft.yaml"


def test_every_milestone_comes_after_the_one_before(run):
    minutes = [milestone.minutes for milestone in run.MILESTONES]
    assert minutes == sorted(minutes) and minutes[:2] == [1, 5]
    assert [m.name for m in run.MILESTONES] == ["answer", "picture", "labels", "adapter", "report"]


def test_blocks_have_the_lines_of_their_page(tmp_path):
    page = tmp_path / "a.md"
    page.write_text("One.\n\n```bash\nls\n```\n\n<!-- not run: so -->\n\n```sh\nls\n\nls\n```\n")
    first, second = blocks_of(page)
    assert (first.place, first.language, first.text, first.not_run) == ("a.md:4", "bash", "ls\n", "")
    assert (second.place, second.not_run, second.text) == ("a.md:10", "so", "ls\n\nls\n")


@pytest.mark.parametrize("warm", [True, False], ids=["forks", "processes"])
def test_the_shell_is_the_same_with_forks_and_with_processes(run, tmp_path, warm):
    with run.Shell(tmp_path, warm=warm) as shell:
        (tmp_path / "a.py").write_text("import sys\nprint(sys.stdin.read(), sys.argv[1:])\nsys.exit(3)\n")
        code, ran = shell.run("lovec --version | cat > version\nfor i in 1 2; do lovec --version & done\nwait")
        assert code == 0 and [(c.name, c.words, c.code) for c in ran] == [("lovec", ["--version"], 0)] * 3
        assert (tmp_path / "version").read_text().startswith("lovec ") and shell.printed.count("lovec ") == 2
        code, ran = shell.run("echo in | python a.py x\necho after")
        assert code == 3 and [(c.name, c.code) for c in ran] == [("python", 3)] and "after" in shell.printed
        assert "in\n ['x']" in shell.printed
        code, ran = shell.run("sleep 60", limit=0.2)
        assert code == -9 and ran == []
