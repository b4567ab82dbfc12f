"""The code blocks of README and docs, in the order in which a reader meets them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.glob("**/*.md"))]
COMMENT = re.compile(r"<!-- not run: (.+?) -->")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`(my_\w+)\.py`[^`]*:$")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: the page it stands on.
        line: number of the line behind its fence.
        language: the word at its fence, such as ``bash``.
        text: what stands between the fences.
        not_run: the reason of a comment ``<!-- not run: REASON -->`` right above it; "" without one.
        file: name of the file that the block is, from a line above it that ends with the name; "" for all others.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    file: str = ""

    @property
    def place(self) -> str:
        """Page and line, as in ``docs/tag.md:7``."""
        name = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name
        return f"{name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        above = text[: match.start()].rstrip().rpartition("\n")[2]
        comment = COMMENT.fullmatch(above)
        name = _FILE.search(above) if match[1] == "python" else None
        line = text.count("\n", 0, match.start()) + 2
        yield Block(page, line, match[1], match[2], comment[1] if comment else "", f"{name[1]}.py" if name else "")


def blocks(page: Path, language: str) -> list[str]:
    """Return the texts of a page's blocks of a language."""
    return [block.text for block in blocks_of(page) if block.language == language]


def lines_of(script: str) -> list[str]:
    """Return the commands of a shell script, one per line, continued lines joined, without empty lines."""
    return [line for line in script.replace("\\\n", " ").splitlines() if line.strip()]


def commands_of(script: str) -> Iterator[list[str]]:
    """Yield the words behind ``lovec`` of every line that begins so."""
    for line in lines_of(script):
        words = shlex.split(line, comments=True)
        if words[:1] == ["lovec"]:
            yield words[1:]


def printed_files() -> dict[str, str]:
    """Return the files that pages print, by their names without the ending."""
    return {block.file.removesuffix(".py"): block.text for page in PAGES for block in blocks_of(page) if block.file}


def in_reading_order() -> list[Path]:
    """Return README, the pages in the order in which it links them, and then all others."""
    linked = [ROOT / name for name in re.findall(r"\]\((docs/[\w/-]+\.md)[)#]", README.read_text(encoding="utf-8"))]
    return [page for page in dict.fromkeys([README, *linked, *PAGES]) if page in PAGES]
