"""The tables of docs/speed.md and the plot docs/speed.svg, from benchmarks/results/speed.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import ROOT
from page_parts import replace_between, versions_text

from lovec.reports.style import BLUE, FAINT, INK, write_plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = ROOT / "docs" / "speed.md"
PLOT = ROOT / "docs" / "speed.svg"
PLOTTED = ("SFT", "DPO", "ORPO", "GRPO")


def marks(name: str) -> tuple[str, str]:
    """Return the marks around a part of the page."""
    return f"<!-- {name}: written by benchmarks/speed.py -->", f"<!-- end of {name} -->"


def parts(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of the page by name."""
    rows: list[dict[str, Any]] = results["rows"]
    ours = [row for row in rows if row["peer"] == "lovec padded"]
    theirs = [row for row in rows if row["peer"] != "lovec padded"]
    heads = ("Objective", "Setting", "operations", "over the bound", "saved", "saved, smallest", "resident")
    curve = [(p["length"], p["tags"], f"{p['lovec']:.2f}", f"{p['lovec padded']:.2f}") for p in results["curve"]]
    return {
        "setting": setting(results),
        "trl": table(
            (*heads[:2], "Peer", *heads[2:]),
            [
                (row["objective"], row["setting"], row["peer"], *counted(row))
                for row in theirs
            ],
        ),
        "padded": table(
            (*heads, "CPU time"),
            [(row["objective"], row["setting"], *counted(row), timed(row)) for row in ours],
        ),
        "expected": table(
            ("Tokens", "Tags", "lovec", "lovec padded"),
            curve,
        ),
        "8b": table(
            ("Objective", "Setting", "Compared with", "operations"),
            [(row["objective"], row["setting"], row["peer"], f"{row['flops_ratio']:.2f}") for row in results["at_8b"]],
        ),
    }  # fmt: skip


def setting(results: Mapping[str, Any]) -> str:
    """Return what the rows are like, and where they were measured."""
    tokens = results["tokens"]
    llama = "" if tokens["llama_3"] is None else f" ({tokens['llama_3']} under Llama 3's own tokenizer)"
    pairs = max(row["pairs"] for row in results["rows"])
    return (
        f"Prompts have {tokens['prompt']} tokens, of which all rows share the paper's instruction of "
        f"{tokens['instruction']} tokens{llama}. CPU times are medians of {pairs} pairs of steps, with their range. "
        f"{versions_text(results)}.{measured_later(results)}"
    )


def measured_later(results: Mapping[str, Any]) -> str:
    """Return which objectives were measured at another commit than the rest, as sentences."""
    later: dict[tuple[str, str], dict[str, None]] = {}
    for row in results["rows"]:
        if "commit" in row:
            later.setdefault((row["date"], row["commit"]), {})[row["objective"]] = None
    return "".join(f" {' and '.join(names)}: {date}, commit {commit}." for (date, commit), names in later.items())


def counted(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells that hold ratios of counts."""
    names = ("saved_bytes_ratio", "saved_bytes_smallest_ratio", "peak_rss_ratio")
    return f"{row['flops_ratio']:.3f}", f"{100 * (row['bound_ratio'] - 1):.1f} %", *(f"{row[n]:.2f}" for n in names)


def timed(row: Mapping[str, Any]) -> str:
    """Return the cell of the CPU time."""
    if row["interval"] is None:
        return "-"
    low, high = row["interval"]
    return f"{row['cpu_seconds_ratio']:.2f} ({low:.2f} to {high:.2f})"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def page(text: str, results: Mapping[str, Any]) -> str:
    """Return the page with its parts as the results have them."""
    for name, content in parts(results).items():
        text = replace_between(text, *marks(name), content)
    return text


def draw(results: Mapping[str, Any]) -> Figure:
    """Draw operations over TRL's, with and without shared prefixes, and those of expected reward over SFT's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    by_peer: dict[str, dict[str, float]] = {"TRL": {}, "lovec padded": {}}
    for row in results["rows"]:
        if row["peer"] in by_peer and row["setting"] in ("mix", "mix, 2 x 8, KL 0.04"):
            by_peer[row["peer"]][row["objective"]] = row["flops_ratio"]
    shared = [by_peer["TRL"].get(name, 0.0) for name in PLOTTED]
    padded = [ours / by_peer["lovec padded"].get(name, 1.0) for ours, name in zip(shared, PLOTTED, strict=True)]
    for shift, values, label, colour in ((-0.2, padded, "lovec padded", FAINT), (0.2, shared, "lovec", BLUE)):
        bars = left.bar([i + shift for i in range(len(PLOTTED))], values, width=0.38, color=colour, label=label)
        left.bar_label(bars, fmt="%.2f", fontsize=7)
    left.axhline(1.0, color=INK, linewidth=1, linestyle=(0, (4, 2)))
    left.set(xticks=range(len(PLOTTED)), xticklabels=PLOTTED, ylim=(0, 1.6), ylabel="operations / TRL's")
    left.legend(loc="upper right", ncols=2)
    lengths = [point["length"] for point in results["curve"]]
    for name, colour in (("lovec padded", FAINT), ("lovec", BLUE)):
        right.plot(lengths, [point[name] for point in results["curve"]], marker="o", color=colour, label=name)
    right.set(xscale="log", xticks=lengths, xticklabels=map(str, lengths), ylim=(0, None))
    right.minorticks_off()
    right.set(xlabel="tokens", ylabel="expected reward / SFT")
    return figure


def write_page(path: Path) -> None:
    """Write the page and the plot from a file of results."""
    results = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    write_plot(lambda: draw(results), PLOT, "Cost of a training step")
    print(f"written: {PAGE.relative_to(ROOT)}, {PLOT.relative_to(ROOT)}")
