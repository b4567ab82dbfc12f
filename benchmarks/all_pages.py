"""Write all pages, tables and plots of results anew, from the files in benchmarks/results.

    python benchmarks/all_pages.py    # or: make results

Runs every benchmark that has a page with the option ``--page``, so that nothing is measured. Pictures that show single
runs, such as the reliability diagrams, are drawn where these runs are made, and stay as they are.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def scripts() -> list[Path]:
    """Return the benchmarks that have a page."""
    no_pages = {Path(__file__).name, "page_parts.py"}
    signs = ('"--page"', "page_options(", "collect_options(", "run_or_try(")  # ways to have the option
    others = sorted(path for path in HERE.glob("*.py") if path.name not in no_pages)
    texts = {path: path.read_text(encoding="utf-8") for path in others}
    return [path for path, text in texts.items() if any(sign in text for sign in signs)]


def main() -> None:
    """Write all pages."""
    sys.path.insert(0, str(HERE))
    for path in scripts():
        print(path.name, flush=True)
        sys.argv = [str(path), "--page"]
        runpy.run_path(str(path), run_name="__main__")


if __name__ == "__main__":
    main()
