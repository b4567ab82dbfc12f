"""The results of benchmarks/real.py as Markdown, for README and docs/results/real.md, and a picture by population."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from common import CALIBRATION, ROOT
from page_parts import VERDICTS, interval_cell, interval_text, replace_between, verdict
from real_data import FOLDS, SETS, is_folded
from real_results import CLAIMS, METRICS, VARIANT
from world_tables import MODES

from lovec.metrics.table import METRICS as INFO

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_LINK = "docs/results/real.md"
PAGE = ROOT / PAGE_LINK
PICTURE = ROOT / "docs" / "real-population.svg"
README = ROOT / "README.md"
BEGIN, END = "<!-- real table: written by benchmarks/real.py -->", "<!-- end of the real table -->"
ORDER = (
    "Best constant",
    "Words",
    "Vanilla",
    "p(true)",
    "Verb-Conf",
    "Self-Cons",
    "LUQ",
    "Likelihood",
    "CCP",
    "Probe",
    "p(true)-ft",
    "SFT",
    "SFT-2",
    "SFT-regression",
    "ORPO",
    "DPO",
    "GRPO",
    "ExpectedReward",
    "ExpectedReward, own scores",
    "Distil",
)
"""Methods in the order of tables: what needs no training first."""
TITLES = {
    "atlas-larger": "Atlas, trained on 1,005 answers",
    "atlas": "Atlas, trained on 405 answers",
} | {name: chosen.title for name, chosen in SETS.items()}
ABOUT = (
    "Atlas asks about real cities; what the model answers is compared with the tables of GeoNames. No answer that "
    "training saw is about a test city. **Order** among equal claims is the share of pairs of sentences of the same "
    "kind whose answers name the same country, one true and one false, in which the true one has the higher "
    "confidence: both claim the same, so that their words tell little, and 50 is chance. *Words* is a ridge regression "
    "on the words of the sentence, its place and the thing that the answer names, without any model: what another "
    "method adds to it is what the model knows."
)
_SHORT_ATLAS = (
    "SmolLM2-135M-Instruct on Atlas, questions about real cities, trained on {answers} answers. *Words* uses no model, "
    "only the words of the sentence; *order* compares sentences that claim the same of different cities, where words "
    "tell little:"
)
SHORT = {
    "atlas-larger": _SHORT_ATLAS.format(answers="1,005"),
    "atlas": _SHORT_ATLAS.format(answers=405),
    "bios": "SmolLM2-135M-Instruct on FActScore's biographies, which three other systems wrote and people judged. "
    "*Words* uses no model, only the words of the sentence:",
}
"""What stands above README's table."""
FREE_TEXT = "The answers are other models': the tagger reads them and writes none."
CONSTANT = "Best constant"
LUQ = "LUQ"
"""The method that seconds are compared with: ten sampled answers, as in the paper."""

Row = Mapping[str, Any]


def write_pages(results: Mapping[str, Any]) -> None:
    """Write README's table, docs/results/real.md, and the picture if there is something to draw."""
    PAGE.write_text(page(results), encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    README.write_text(replace_between(text, BEGIN, END, readme_table(results)), encoding="utf-8")
    if drawn := _drawn(results):
        draw(drawn, PICTURE)


def readme_table(results: Mapping[str, Any]) -> str:
    """Return README's table: stated scores per sentence, in domain, of Atlas, or of Bios where Atlas was not run."""
    data = next((name for name in SHORT if _entries(results, name)), None)
    if data is None:
        return "Nothing has been run yet."
    metrics = _metrics(results, data)
    lines = [SHORT[data], "", f"| Method | {' | '.join(INFO[name].heading for name in metrics)} |"]
    lines.append("|---" * (len(metrics) + 1) + "|")
    for mode, heading in MODES.items():
        domain = domain_of(results, data)
        rows = _table(results, data, domain, mode, "stated", variants=False)
        if rows:
            lines.append(f"| **{heading}** |" + " |" * len(metrics))
            for name, group in rows:
                place = {"data": data, "method": name, "domain": domain, "mode": mode, "readout": "stated"}
                ends = _interval(results, **place, against=None)
                cells = [
                    "-" if _is_undefined(metric, name) else _value(group, ends, metric).partition(" ")[0]
                    for metric in metrics
                ]
                if set(cells) != {"-"}:
                    lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _short_caption(results, data)])


def page(results: Mapping[str, Any]) -> str:
    """Return docs/results/real.md: claims, tables of every data set, and what everything takes."""
    lines = [
        "# A real language model",
        "",
        "Written by `benchmarks/real.py`; the numbers are in `benchmarks/results/real.json`, the settings, and how "
        "they were chosen, in `benchmarks/real.yaml`. The model is SmolLM2-135M-Instruct (`smollm2`) unless a heading "
        "names another one, on CPUs. What has not been run is not in the tables. Percent; in brackets 95 % intervals: "
        "questions (of people's labels: the people asked about) are drawn again with all their sentences, and training "
        "seeds, 2000 times, the same ones for all methods. Other values are means over seeds or folds.",
    ]
    for data in _data(results):
        lines += ["", f"## {_title(data)}", "", *_about(data), "", _caption(results, data)]
        lines += _claims(results, data)
        for domain in _domains(results, data):
            for readout in ("stated", "mean", "deployed"):
                lines += _sentences(results, data, domain, readout)
            lines += _passages(results, data, domain)
        lines += _population_section(results, data)
        lines += _seconds(results, data)
        lines += _trainings(results, data)
    return "\n".join(lines) + "\n"


def domain_of(results: Mapping[str, Any], data: str) -> str:
    """Return the first domain of a data set: in domain, or the only one."""
    return _domains(results, data)[0]


def _data(results: Mapping[str, Any]) -> list[str]:
    names = list(dict.fromkeys(entry["data"] for entry in results["entries"]))
    return sorted(names, key=lambda name: (list(TITLES).index(name.partition(":")[0]), ":" in name, name))


def _title(data: str) -> str:
    train, _, test = data.partition(":")
    return f"Trained on {TITLES[train]}, tested on {TITLES[test]}" if test else TITLES[train]


def _about(data: str) -> list[str]:
    train, _, test = data.partition(":")
    if train not in SETS:
        return [ABOUT]
    return [f"{SETS[test or train].about[0].upper()}{SETS[test or train].about[1:]}. {FREE_TEXT}"]


def _entries(results: Mapping[str, Any], data: str) -> list[Mapping[str, Any]]:
    return [entry for entry in results["entries"] if entry["data"] == data]


def _rows(results: Mapping[str, Any], data: str, **fields: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a data set with these fields, each with the seed of its entry."""
    for entry in _entries(results, data):
        for values in entry["rows"]:
            row = {**dict(zip(results["columns"], values, strict=True)), "seed": entry["seed"]}
            if all(row[name] == value for name, value in fields.items()):
                yield row


def _domains(results: Mapping[str, Any], data: str) -> list[str]:
    names = dict.fromkeys(row["domain"] for row in _rows(results, data))
    return sorted(names, key=lambda name: (name != "in-domain", name))


def _table(
    results: Mapping[str, Any], data: str, domain: str, mode: str, readout: str, variants: bool, level: str = "sentence"
) -> list[tuple[str, list[Row]]]:
    """Return the rows of every method that has some, in the order of tables; recalibrated ones behind their method.

    Without variants these are left out, and methods with another setting, which is named behind a comma.
    """
    groups: dict[str, dict[int, Row]] = {}
    for row in _rows(results, data, domain=domain, mode=mode, readout=readout, level=level):
        groups.setdefault(row["method"], {})[row["seed"]] = row  # every test measures the best constant again
    names = [
        name
        for method in ORDER
        for name in (method, f"{method} + {VARIANT}")
        if variants or (name == method and "," not in name)
    ]
    return [(name, list(groups[name].values())) for name in names if name in groups]


def _mean(rows: Iterable[Row], name: str) -> str:
    values = [row[name] for row in rows if row[name] is not None]
    return INFO[name].text(mean(values)) if values and name in INFO else "-"


def _value(rows: Sequence[Row], ends: Mapping[str, Any], name: str) -> str:
    """Return a metric of a method with its interval, where there is one, as "5.2 (4.1 to 6.3)".

    The value is that which the interval was drawn around; where that was of other seeds, the mean over those of rows.

    Args:
        rows: one per seed.
        ends: the interval entry of the method, or an empty one.
        name: name of the metric.
    """
    text = interval_text(ends.get(name), signed=False)
    if text and _seeds(ends["seeds"]) == _seeds(row["seed"] for row in rows):
        return text
    return f"{_mean(rows, name)} {text[text.index('(') :]}" if text else _mean(rows, name)


def _interval(results: Mapping[str, Any], **place: Any) -> Mapping[str, Any]:
    """Return the interval entry of a place; an empty one where there is none."""
    return next((entry for entry in results["intervals"] if place.items() <= entry.items()), {})


def _caption(results: Mapping[str, Any], data: str) -> str:
    """Return in one line what was run: seeds, sentences, dates, commits, versions and machines."""
    entries = _entries(results, data)
    texts = [", ".join(sorted({str(entry[name]) for entry in entries})) for name in ("date", "commit", "machine")]
    versions = ", ".join(f"{name} {number}" for name, number in entries[-1]["versions"].items() if name != "lovec")
    runs, sentences = _runs(entries, data), _test_sentences(results, data)
    return f"Percent; {runs}, {sentences} test sentences. {texts[0]}, commit {texts[1]}, {versions}; {texts[2]}."


def _short_caption(results: Mapping[str, Any], data: str) -> str:
    """Return in one line how much was run, and when; the page has the rest."""
    entries = _entries(results, data)
    part = "fold" if is_folded(data) else "seed"
    number = _range(map(len, _seeds_by_method(entries).values()))
    runs = f"{number} {part}{'s' * (number != '1')}"
    dates, sentences = _range(entry["date"] for entry in entries), _test_sentences(results, data)
    links = f"[seeds, intervals, commits, versions]({PAGE_LINK})"
    return f"Percent; {runs}, {sentences} test sentences. {dates}, on CPUs ({links})."


def _range(values: Iterable[Any]) -> str:
    """Return the lowest and the highest value, such as "1 to 3", or the only one."""
    ordered = sorted(values)
    return " to ".join(map(str, dict.fromkeys([ordered[0], ordered[-1]])))


def _test_sentences(results: Mapping[str, Any], data: str) -> int:
    """Return the number of test sentences of the first domain, of all folds together."""
    domain = domain_of(results, data)
    counts = {row["seed"]: row["n"] for row in _rows(results, data, domain=domain, level="sentence", readout="stated")}
    return sum(counts.values()) if is_folded(data) else max(counts.values(), default=0)


def _runs(entries: Sequence[Mapping[str, Any]], data: str) -> str:
    """Return how many seeds, or folds, there are, and which methods have fewer."""
    seeds = sorted({entry["seed"] for entry in entries})
    part = "folds by person" if is_folded(data) else "seeds"
    of = f" of {FOLDS}" if is_folded(data) else ""
    runs = f"{len(seeds)}{of} {part}"
    if runs == "1 seeds":
        return "one seed (what differs from seed to seed is in no interval)"
    if fewer := _with_fewer_seeds(entries, len(seeds)):
        note = "their intervals show less variation between seeds"
        if is_folded(data):
            note = "compare them with others on the same folds"
        return f"{runs} ({fewer}; {note})"
    return runs


def _with_fewer_seeds(entries: Sequence[Mapping[str, Any]], most: int) -> str:
    """Return in words which methods have how many seeds, where these are fewer than others have; "" where none is."""
    by_number: dict[int, list[str]] = {}
    for method, found in _seeds_by_method(entries).items():
        by_number.setdefault(len(found), []).append(method)
    return "; ".join(f"{n} for {_listed(by_number[n])}" for n in sorted(by_number) if n < most)


def _listed(names: Iterable[str]) -> str:
    """Return names one after the other; those with a comma in quotation marks."""
    return ", ".join(f'"{name}"' if "," in name else name for name in names)


def _seeds_by_method(entries: Sequence[Mapping[str, Any]]) -> dict[str, set[int]]:
    """Return the seeds, or folds, of every method that has rows."""
    seeds: dict[str, set[int]] = {}
    for entry in entries:
        if entry["rows"]:
            seeds.setdefault(entry["method"], set()).add(entry["seed"])
    return seeds


def _sentences(results: Mapping[str, Any], data: str, domain: str, readout: str) -> list[str]:
    """Return the section of a domain and readout at sentence level, with intervals."""
    lines: list[str] = []
    metrics = _metrics(results, data)
    seeds = "folds" if is_folded(data) else "seeds"
    for mode, heading in MODES.items():
        if rows := _table(results, data, domain, mode, readout, variants=True):
            lines += [
                "",
                f"**{heading}**",
                "",
                f"| Method | {' | '.join(INFO[name].heading for name in metrics)} | malformed | c | f | {seeds} |",
            ]
            lines.append("|---" * (len(metrics) + 5) + "|")
            for name, group in rows:
                place = {"data": data, "method": name, "domain": domain, "mode": mode, "readout": readout}
                ends = _interval(results, **place, against=None)
                drawn, seeds_of_all = _seeds(ends.get("seeds", ())), _seeds(row["seed"] for row in group)
                cells = ["-" if _is_undefined(metric, name) else _value(group, ends, metric) for metric in metrics]
                cells += [_mean(group, metric) for metric in ("malformed", "mean_confidence", "mean_factuality")]
                intervals = f"; intervals: {drawn}" if drawn and drawn != seeds_of_all else ""
                lines.append(f"| {' | '.join([name, *cells, seeds_of_all + intervals])} |")
    where = f"{domain}, " if domain != TITLES.get(data.rpartition(":")[2]) else ""
    title = f"{where}{readout} readout"
    return ["", f"### {title[:1].upper()}{title[1:]}", *lines] if lines else []


def _passages(results: Mapping[str, Any], data: str, domain: str) -> list[str]:
    """Return the section at passage level: means over the sentences of each answer."""
    lines = []
    for mode, heading in MODES.items():
        stated, by_mean = (
            dict(_table(results, data, domain, mode, readout, variants=False, level="passage"))
            for readout in ("stated", "mean")
        )
        for name, group in stated.items():
            cells = [_mean(rows, metric) for rows in (group, by_mean.get(name, [])) for metric in ("brier", "spearman")]
            lines.append(f"| {' | '.join([name, heading, *cells])} |")
    if not lines:
        return []
    head = ["| Method | Mode | BS, stated | SC, stated | BS, mean | SC, mean |", "|---|---|---|---|---|---|"]
    return ["", f"### Passages, {domain}", "", *head, *lines]


def _claims(results: Mapping[str, Any], data: str) -> list[str]:
    """Return the section on which method is better than which, by stated scores in the first domain."""
    domain, lines = domain_of(results, data), []
    every, part = _seeds({entry["seed"] for entry in _entries(results, data)}), "fold" if is_folded(data) else "seed"
    for method, other in CLAIMS:
        for mode, heading in MODES.items():
            place = {"data": data, "method": method, "against": other, "domain": domain, "mode": mode}
            if entry := _interval(results, **place, readout="stated"):
                cells = [
                    "-" if _is_undefined(name, method, other) else interval_cell(entry[name], difference=True)
                    for name in CALIBRATION
                ]
                own, plural = _seeds(entry["seeds"]), "s" * (len(entry["seeds"]) > 1)
                seeds = "" if own == every else f" ({part}{plural} {own})"
                lines.append(
                    f"| {' | '.join([f'{_listed((method, other))}{seeds}', heading, *cells, verdict(entry)])} |"
                )
    if not lines:
        return []
    return [
        "",
        "### What holds here",
        "",
        f"Differences by stated scores, over the {part}s that both methods have ({every}; others are named). A claim "
        f"holds where the intervals of BS and ECE-M both lie below 0. {VERDICTS}",
        "",
        f"| Better than | Mode | {' | '.join(INFO[name].heading for name in CALIBRATION)} | |",
        "|---|---|---|---|---|---|",
        *lines,
    ]


def _is_undefined(metric: str, *methods: str) -> bool:
    """Return whether a metric of these methods, or of their difference, says nothing.

    The best constant has no rank correlation. Over folds it is another number in each, and would get one by that.
    """
    return metric == "spearman" and CONSTANT in methods


def _population_section(results: Mapping[str, Any], data: str) -> list[str]:
    """Return the picture by population and its numbers."""
    entries = [entry for entry in results["population"] if entry["data"] == data]
    if not entries:
        return []
    lines = ["", "### By population", "", "Test cities in ten equal parts by their inhabitants, smallest first.", ""]
    if any(entry in entries for entry in _drawn(results)):
        lines += [f"![Mean truth and mean stated confidence by population, in tenths](../{PICTURE.name})", ""]
    lines += ["| Method | Mode | | " + " | ".join(str(part) for part in range(1, 11)) + " |", "|---" * 13 + "|"]
    for entry in entries:
        for name in ("truth", "stated", "mean"):
            cells = [f"{100 * tenth[name]:.0f}" if name in tenth else "-" for tenth in entry["tenths"]]
            lines.append(f"| {' | '.join([entry['method'], MODES[entry['mode']], name, *cells])} |")
    return lines


def _drawn(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what the picture shows: text given, of the first data set that has it."""
    given = [entry for entry in results["population"] if entry["mode"] == "iterative"]
    data = next((name for name in SHORT if any(entry["data"] == name for entry in given)), None)
    return [entry for entry in given if entry["data"] == data]


def _seconds(results: Mapping[str, Any], data: str) -> list[str]:
    """Return the section on seconds per answer, beside those of LUQ on the same machine."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in _entries(results, data):
        for timed in entry["times"]:
            found.setdefault((entry["method"], timed["mode"]), []).append({**timed, "machine": entry["machine"]})
    if not found:
        return []
    reference = found.get((LUQ, "iterative"))
    machines = {timed["machine"] for timed in reference or ()}
    compared = " *LUQ takes*: how many times as much processor time LUQ takes, with ten samples, " if reference else ""
    compared += "where both ran on the same kind of machine." if reference else ""
    headings = ["Method", "Mode", "s", "CPU-s", *["LUQ takes"] * bool(reference)]
    lines = [
        "",
        "### Seconds per answer",
        "",
        "One thread; of the clock, and of the processor, which other programs on the machine change less. Free-form "
        "times hold the writing of the answer; methods on given texts wait for that of others (*Answers*: plain ones "
        f"of the bare model).{compared}",
        "",
        f"| {' | '.join(headings)} |",
        "|---" * len(headings) + "|",
    ]
    for method in (*ORDER, "Answers"):
        for mode, heading in MODES.items():
            if timed := found.get((method, mode)):
                wall, cpu = (mean(entry[clock] for entry in timed) for clock in ("seconds", "cpu_seconds"))
                cells = [method, heading, f"{wall:.2f}", f"{cpu:.2f}"]
                if reference:
                    same = [entry["cpu_seconds"] for entry in timed if entry["machine"] in machines]
                    taken = mean(entry["cpu_seconds"] for entry in reference)
                    cells.append(f"{taken / mean(same):.1f}" if same and round(mean(same), 2) > 0 else "-")
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def _trainings(results: Mapping[str, Any], data: str) -> list[str]:
    """Return the section on what training took, and with which settings."""
    lines = []
    for method in ORDER:
        entries = [entry for entry in _entries(results, data) if entry["method"] == method and "fit" in entry]
        if entries:
            minutes = [mean(entry["fit"][clock] for entry in entries) / 60 for clock in ("seconds", "cpu_seconds")]
            settings = "; ".join(f"`{name} {value}`" for name, value in entries[-1].get("settings", {}).items())
            resumed = ", stopped and continued: too low" if any(e["fit"].get("resumed") for e in entries) else ""
            lines.append(f"| {method} | {minutes[0]:.1f} | {minutes[1]:.1f}{resumed} | {settings or '-'} |")
    if not lines:
        return []
    head = ["| Method | minutes | CPU-minutes | settings beside those of the recipe |", "|---|---|---|---|"]
    return ["", "### Training", "", "Without the training that a method starts from.", "", *head, *lines]


def _metrics(results: Mapping[str, Any], data: str) -> list[str]:
    """Return the metrics that a data set has; only some know which claims are equal."""
    rows = list(_rows(results, data))
    return [name for name in METRICS if name in CALIBRATION or any(row[name] is not None for row in rows)]


def _seeds(seeds: Iterable[int]) -> str:
    return ", ".join(str(seed) for seed in sorted({*seeds}))


def draw(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw truth and stated confidence by population: a panel per method."""
    from lovec.reports.style import write_plot

    write_plot(lambda: _figure(entries), path, "Atlas: truth and stated confidence by population")


def _figure(entries: Sequence[Mapping[str, Any]]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    from lovec.reports.style import BLUE, HALVES, INK, SIDE

    figure = Figure(figsize=(SIDE * len(entries), SIDE), layout="constrained")
    for at, entry in enumerate(entries):
        ax = figure.add_subplot(1, len(entries), at + 1)
        places = [tenth["population"] for tenth in entry["tenths"]]
        ax.plot(places, [tenth["truth"] for tenth in entry["tenths"]], color=INK, marker="o", label="true")
        stated = [(tenth["population"], tenth["stated"]) for tenth in entry["tenths"] if "stated" in tenth]
        ax.plot(*zip(*stated, strict=True), color=BLUE, marker="o", label="stated")
        ax.set(title=entry["method"], xscale="log", ylim=(0, 1), xlabel="inhabitants", **HALVES)
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure
