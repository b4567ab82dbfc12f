"""Run what README and docs print as a new user would, in order, in empty folders, and time the first hour.

    python tests/first_hour/run.py                    # all blocks, then the milestones; writes first_hour.json
    python tests/first_hour/run.py --pages tag label  # the blocks of some pages
    python tests/first_hour/run.py --milestones       # the milestones alone
    python tests/first_hour/run.py --quick            # as the tests do: a tiny model, each kind of training once

README runs first; every page of docs begins with what README has left in ``runs`` and with the files that readers have.
What is not on this machine is replaced or left out as ``tables.py`` says, and so are blocks under a comment
``<!-- not run: REASON -->``. The output names all of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "helpers"), str(ROOT)]

from endpoint import endpoint  # noqa: E402
from forks import free_port  # noqa: E402
from pages import README, Block, blocks_of, in_reading_order, lines_of  # noqa: E402
from readershell import Ran, Shell  # noqa: E402
from tables import (  # noqa: E402
    MILESTONES,
    REPLACED,
    WRITES,
    full_script,
    option,
    quick_words,
    replaced,
    why_left_out,
    write_files,
    write_tests,
)
from tinynli import tiny_nli  # noqa: E402
from tinyrun import sft_adapter, tiny  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "first_hour.json"
SHELLS = ("bash", "sh")
OFFLINE = {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
FULL_ONLY = "needs a server, which runs in the full form only"


@dataclass
class Findings:
    """What became of the blocks.

    Attributes:
        commands: how many commands of lovec and python have run.
        failures: place and reason.
        left_out: place, line and reason of what was not run.
        replaced: reasons of the replacements that were made.
    """

    commands: int = 0
    failures: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)


class Reader:
    """Runs the blocks of pages in folders below one folder."""

    def __init__(self, home: Path, values: dict[str, str], quick: bool) -> None:
        """Prepare.

        Args:
            home: an empty folder.
            values: what stands for MODEL, NLI and ENDPOINT.
            quick: whether commands are forks of this process, and training is tiny.
        """
        self.home, self.values, self.quick = home, values, quick
        self.findings = Findings()
        self._seen: set[tuple[str, ...]] = set()

    def read(self, page: Path, beginning: Path | None = None) -> Path:
        """Run the blocks of a page and return the folder in which they ran.

        Args:
            page: the page.
            beginning: a folder whose ``runs`` the page begins with.
        """
        folder = self.home / page.stem
        folder.mkdir(parents=True)
        write_files(folder)
        if beginning is not None:
            shutil.copytree(beginning / "runs", folder / "runs", dirs_exist_ok=True)
        if self.quick:
            write_tests(folder)
        blocks = list(blocks_of(page))
        for block in blocks:
            if block.file:
                (folder / block.file).write_text(block.text)
        with Shell(folder, warm=self.quick, rewrite=self._rewrite if self.quick else None) as shell:
            values = {**self.values, "PORT": str(free_port())}
            for block in blocks:
                self._block(shell, block, folder, values)
        return folder

    def _rewrite(self, words: list[str]) -> list[str] | None:
        return quick_words(words, self.values["MODEL"], self._seen)

    def _block(self, shell: Shell, block: Block, folder: Path, values: dict[str, str]) -> None:
        if block.language not in (*SHELLS, "python") or block.file:
            return
        found = self.findings
        if block.not_run:
            found.left_out.append(f"{block.place}: the block: {block.not_run}")
            return
        if self.quick and block.language == "python" and "OpenAI(" in block.text:
            found.left_out.append(f"{block.place}: the block: {FULL_ONLY}")
            return
        if block.language == "python":
            (folder / "block.py").write_text(replaced(block.text, values))
            script = "python block.py\n"
        else:
            script = self._script(block, values)
        begin = time.time()
        code, ran = shell.run(script)
        failures = len(self.findings.failures)
        self._check(block, folder, begin, code, ran, shell.printed)
        result = "failed" if len(self.findings.failures) > failures else "ok"
        print(f"{result:7}{time.time() - begin:7.1f} s  {block.place}", flush=True)
        print("".join(f"  {text}\n" for text in self.findings.failures[failures:]), end="", flush=True)

    def _script(self, block: Block, values: dict[str, str]) -> str:
        """Return what a block of shell runs, without the lines that are left out."""
        kept = []
        for line in lines_of(block.text):
            why = why_left_out(line) or (FULL_ONLY if self.quick and re.match(r"lovec serve|curl ", line) else "")
            if why:
                self.findings.left_out.append(f"{block.place}: {line.strip()[:70]}: {why}")
            else:
                kept.append(line)
        text = "\n".join(kept) + "\n"
        self.findings.replaced |= {why for pattern, _, why in REPLACED if re.search(pattern, text)}
        text = replaced(text, values)
        # In the quick form the commands themselves are changed, when they run.
        return text if self.quick else full_script(text)

    def _check(self, block: Block, folder: Path, begin: float, code: int, ran: list[Ran], printed: str) -> None:
        """Note what is wrong with a block that has run."""
        found = self.findings
        found.commands += len(ran)
        wrong = [
            f"`{command.name} {' '.join(command.words)}` ended with {command.code}" for command in ran if command.code
        ]
        if code and not wrong:
            wrong.append(f"the shell ended with {code}")
        if "Traceback (most recent call last)" in printed:
            wrong.append("a traceback")
        for command in ran:
            if command.name == "lovec" and not command.code and not wrong:
                wrong += self._missing(command, folder, begin, printed)
        for problem in wrong:
            end = "\n      ".join(telling_lines(printed))
            found.failures.append(f"{block.place}: {problem}\n      {end}")

    def _missing(self, command: Ran, folder: Path, begin: float, printed: str) -> list[str]:
        """Return what a command that succeeded has not written."""
        words = command.words
        if "--help" in words or "--print_config" in words or not words:
            return [] if printed.strip() else [f"`lovec {' '.join(words)}` printed nothing"]
        if self.quick and quick_words(words, "", {*self._seen}) is None:
            return []
        if words[0] == "tag" and (out := option(words, "--out")):
            shard = "*" if "--shard" in words else ""
            stem, _, ending = out.rpartition(".")
            pattern = f"{stem}{shard}.{ending}"
        else:
            pattern = WRITES.get(words[0], "")
        if not pattern:
            return [] if printed.strip() else [f"`lovec {' '.join(words)}` printed nothing"]
        if any(path.stat().st_mtime >= begin - 1 for path in folder.glob(pattern)):
            return []
        finished = words[0] in ("tag", "label", "join")  # a finished file is not written twice
        if finished and any(folder.glob(pattern)):
            return []
        return [f"`lovec {' '.join(words)}` wrote no {pattern}"]


def telling_lines(printed: str) -> list[str]:
    """Return the first traceback in what a block printed, up to its error, and the last lines of it all."""
    lines = printed.splitlines()
    begin = next((at for at, line in enumerate(lines) if line.startswith("Traceback")), None)
    if begin is None:
        return lines[-8:]
    end = next((at + 1 for at in range(begin + 1, len(lines)) if not lines[at].startswith(" ")), len(lines))
    return [*lines[begin:end], *lines[max(end, len(lines) - 8) :]]


def prepared(home: Path, url: str, quick: bool) -> dict[str, str]:
    """Make the small models; return what stands for the names in the tables."""
    model = tiny(home, max_position_embeddings=2048) if quick else "world"
    return {"MODEL": model, "NLI": tiny_nli(home), "ENDPOINT": url}


def quick_runs(home: Path, model: str) -> Path:
    """Return a folder with the runs that README's commands leave behind, made of one tiny adapter."""
    made = Path(sft_adapter(home / "made", model)).parent
    for name in ("sft", "sft2", "dpo", "orpo", "expected", "grpo", "distil", "demo-world/distil"):
        (home / "runs" / name).mkdir(parents=True)
        shutil.copytree(made / "adapter", home / "runs" / name / "adapter")
    return home


def read_pages(home: Path, quick: bool, names: Sequence[str] = ()) -> Findings:
    """Run the blocks of pages.

    Args:
        home: an empty folder.
        quick: as the tests do.
        names: names of pages without the ending; none are all.
    """
    with ExitStack() as stack:
        stack.enter_context(environment(**OFFLINE))
        url = stack.enter_context(endpoint())
        reader = Reader(home / "pages", prepared(home, url, quick), quick)
        beginning = quick_runs(home, reader.values["MODEL"]) if quick else None
        for page in in_reading_order():
            if names and page.stem not in names and (quick or page != README):
                continue
            folder = reader.read(page, beginning)
            if page == README and not quick:
                beginning = folder
    return reader.findings


class environment(ExitStack):
    """Environment variables inside a block."""

    def __init__(self, **values: str) -> None:
        super().__init__()
        self.values = values

    def __enter__(self) -> environment:
        before = {name: os.environ.get(name) for name in self.values}
        os.environ.update(self.values)
        for name, value in before.items():
            self.callback(lambda n=name, v=value: os.environ.pop(n, None) if v is None else os.environ.update({n: v}))
        return self


def milestones(home: Path) -> Iterator[dict[str, object]]:
    """Run the commands of the milestones in an empty folder, and yield a row for each.

    The commands are processes of their own, at their full size, with an empty cache; the installation is not timed,
    since it depends on the network.
    """
    from lovec.datasets.jsonl import write_records
    from lovec.datasets.world import EmbeddedWorld

    home.mkdir(parents=True, exist_ok=True)
    write_files(home)
    shutil.rmtree(home / "runs")  # readers of pages have runs, but nobody has at the beginning
    write_records(home / "questions.jsonl", EmbeddedWorld("world").questions("train")[:100])
    offline = environment(OPENAI_API_KEY="none", HF_HUB_OFFLINE="1", LOVEC_CACHE=str(home / "cache"))
    with offline, endpoint() as url, Shell(home, warm=False) as shell:
        total = 0.0
        for milestone in MILESTONES:
            begin = time.monotonic()
            code, ran = shell.run(milestone.script.replace("ENDPOINT", url), limit=3600)
            seconds = time.monotonic() - begin
            total += seconds
            if code:
                raise SystemExit(f"{milestone.name}: the commands failed:\n{shell.printed[-3000:]}")
            row = {"name": milestone.name, "has": milestone.has, "limit_minutes": milestone.minutes,
                   "seconds": seconds, "minutes_since_the_beginning": total / 60,
                   "commands": [{"command": f"lovec {r.words[0]}", "seconds": r.seconds} for r in ran]}  # fmt: skip
            print(f"{total / 60:6.1f} of {milestone.minutes} minutes: {milestone.has}", flush=True)
            yield row


def show(findings: Findings) -> None:
    """Print what was found."""
    for title, items in (("replaced", sorted(findings.replaced)), ("not run", findings.left_out),
                         ("failed", findings.failures)):  # fmt: skip
        print(f"\n{title}:" if items else f"\nnothing {title}")
        for item in items:
            print(f"  {item}")
    print(f"\n{findings.commands} commands, {len(findings.failures)} failures")


def main(words: Sequence[str] | None = None) -> int:
    """Run pages and milestones; return 0 if all is well and no milestone took too long."""
    parser = argparse.ArgumentParser(description="run what README and docs print, and time the first hour")
    parser.add_argument("--pages", nargs="+", default=(), help="names without .md; the full form begins with README")
    parser.add_argument("--quick", action="store_true", help="a tiny model, each kind of training once, no milestones")
    parser.add_argument("--milestones", action="store_true", help="the milestones alone")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="lovec-first-hour-") as folder:
        home = Path(folder)
        failed = False
        if not options.milestones:
            findings = read_pages(home, options.quick, options.pages)
            show(findings)
            failed = bool(findings.failures)
        if options.quick or options.pages:
            return int(failed)
        rows = list(milestones(home / "milestones"))
        late = [row["name"] for row in rows if row["minutes_since_the_beginning"] > row["limit_minutes"]]  # type: ignore[operator]
        print(f"too late: {', '.join(map(str, late))}" if late else "every milestone was in time")
        from benchmarks.common import publish

        publish(RESULTS, {"milestones": rows}, only_print=failed)
    return int(failed or bool(late))


if __name__ == "__main__":
    sys.exit(main())
