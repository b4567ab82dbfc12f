"""What the site has beside the pages of docs/: README as its first page, a reference of the code, and files of it.

Pages link to files outside docs/, as GitHub shows them. Here each of these files becomes a page of the site, too, and
the links lead there. MkDocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

FRONT = {"README.md": "index.md"}
"""Pages of the checkout that have another name on the site."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_BEFORE_LIST = re.compile(r"^(?![-#\s])(.+\n)(?=- )", re.MULTILINE)
_NAMED = re.compile(r"\blovec((?:\.[a-z_]\w*)+)")


def on_config(config: Any) -> Any:
    """Add the pages of the reference to the navigation."""
    pages = [{name: f"api/{name}.md"} for name in reference()]
    config.nav.append({"Reference": [{"lovec": "api/index.md"}, *pages]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the checkout, those of the reference, and those of the files that pages link to."""
    pages = [path for path in sorted(ROOT.glob("*.md"))]
    for path in pages:
        files.append(File.generated(config, FRONT.get(path.name, path.name), content=path.read_text(encoding="utf-8")))
    for name, content in reference_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    for target in sorted({target for page in [*pages, *DOCS.glob("**/*.md")] for target in _outside(page)}):
        files.append(File.generated(config, f"source/{target}.md", content=_source_page(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let the links of a page lead to pages of the site, and a list begin right below a line, as on GitHub."""
    uri: str = page.file.src_uri
    place = next((ROOT / name for name, other in FRONT.items() if other == uri), None)
    place = place or (ROOT / uri if (ROOT / uri).exists() else DOCS / uri)
    if not place.exists():  # a page that is made here
        return markdown

    def moved(match: re.Match[str]) -> str:
        path, hash_, anchor = match[2].partition("#")
        if not path or ":" in path:
            return match[0]
        target = posixpath.relpath(_site_uri((place.parent / path).resolve()), posixpath.dirname(uri) or ".")
        return f"{match[1]}{target}{hash_}{anchor}{match[3]}"

    parts = _FENCE.split(markdown)  # every other part is a block of code
    return "".join(
        part if at % 2 else _LINK.sub(moved, _BEFORE_LIST.sub(r"\1\n", part)) for at, part in enumerate(parts)
    )


def reference() -> dict[str, list[str]]:
    """Return the modules that users import, by the page that documents them: those that ``lovec`` has or pages name."""
    names = {f"lovec.{part}" for part in import_module("lovec")._PARTS}
    for page in [ROOT / "README.md", *DOCS.glob("**/*.md")]:
        for match in _NAMED.finditer(page.read_text(encoding="utf-8")):
            names |= set(_modules(match[1].strip(".").split(".")))
    pages: dict[str, list[str]] = {}
    for name in sorted(names):
        pages.setdefault(name.split(".")[1], []).append(name)
    return pages


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference, by name."""
    pages = {"index": "# lovec\n\n::: lovec.tagging.tag\n\n## Modules\n\n"}
    for name, modules in reference().items():
        first = import_module(modules[0]).__doc__ or ""
        pages["index"] += f"- [`{modules[0]}`]({name}.md): {first.strip().splitlines()[0]}\n"
        pages[name] = f"# {modules[0]}\n\n" + "\n".join(map(_documented, modules))
    return pages


def _documented(module: str) -> str:
    """Return what has mkdocstrings document a module: the names that it exports, or else all that it defines."""
    exported = getattr(import_module(module), "__all__", None)
    options = {} if exported is None else {"members": list(exported)}
    if module.count(".") == 1:  # the title of the page is its heading
        options |= {"show_root_heading": False, "show_root_toc_entry": False}
    lines = "".join(f"      {name}: {json.dumps(value)}\n" for name, value in options.items())
    return f"::: {module}\n    options:\n{lines}" if lines else f"::: {module}\n"


def _modules(parts: list[str]) -> Iterator[str]:
    """Yield the longest beginning of a dotted name that is a module of lovec, and the one that it is part of."""
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath("lovec", *parts[:end])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            yield from {f"lovec.{parts[0]}", ".".join(["lovec", *parts[:end]])}
            return


def _outside(page: Path) -> Iterator[str]:
    """Yield the paths in the checkout of what a page links to that is not a page by itself."""
    for at, part in enumerate(_FENCE.split(page.read_text(encoding="utf-8"))):
        for match in () if at % 2 else _LINK.finditer(part):
            path = match[2].partition("#")[0]
            target = (page.parent / path).resolve()
            if path and ":" not in path and target.exists() and _site_uri(target).startswith("source/"):
                yield target.relative_to(ROOT).as_posix()


def _site_uri(path: Path) -> str:
    """Return where the site has a file of the checkout."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(DOCS):
        return name.removeprefix("docs/")
    if path.parent == ROOT and path.suffix == ".md":
        return FRONT.get(name, name)
    return f"source/{name}.md"


def _source_page(path: Path) -> str:
    """Return a page that shows a file, or names the files of a folder; the search leaves it out."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return head + "".join(f"- `{inner.name}`\n" for inner in sorted(path.glob("*.py")))
    text = path.read_text(encoding="utf-8")
    fence = "`" * (3 + max(map(len, re.findall(r"`+", text)), default=0))
    language = {".py": "python", ".md": "markdown", ".json": "json", ".yaml": "yaml"}.get(path.suffix, "text")
    return f"{head}{fence}{language}\n{text}\n{fence}\n"
