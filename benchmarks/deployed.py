"""Measure the confidences that users get, calibrated on the validation things: by test, tag and serve.

    python benchmarks/deployed.py --runs FOLDER        # runs of benchmarks/world.py -> benchmarks/results/deployed.json
    python benchmarks/deployed.py --runs FOLDER --from-runs    # only collect what finished tests have written
    python benchmarks/deployed.py --page             # only write docs/results/deployed.md from that file

FOLDER has ``seed-N/METHOD/adapter`` for every seed and method. Each adapter is calibrated (`lovec calibrate`) and
tested (`lovec test`); on the first seed the same answers go through `lovec tag` and `lovec serve`, too.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import (
    LOVEC,
    ROOT,
    commits_of,
    lovec,
    offline,
    provenance,
    read_json,
    results_and_page,
    select,
    test_folder,
    write_json,
)
from page_parts import collect_options, interval_text, mean_text, world_text

from lovec.datasets.jsonl import read_records
from lovec.datasets.world import ensure_world
from lovec.evaluation.evaluator import tagged_file
from lovec.metrics.bootstrap import by_question, intervals, resample
from lovec.metrics.functional import brier_score, ece_m, spearman
from lovec.metrics.results import read_results
from lovec.oracles.world import WorldOracle
from lovec.types import MODES, Record, ResultRow, Sentence

RESULTS, PAGE = results_and_page("deployed")
METHODS = {"sft": "SFT", "dpo": "DPO", "expected": "ExpectedReward", "distil": "Distil"}
READOUTS = ("stated", "mean", "deployed")
NAMES = ("brier", "ece_m", "spearman")
PROBABILITIES = (0.8, 0.9, 0.95)
METRICS = (brier_score, ece_m, spearman)
NOTE = "deployed.note.json"


def measure(folder: Path, method: str, seed: int) -> None:
    """Calibrate and test an adapter, unless that is done."""
    run = folder / method
    if (run / NOTE).exists():
        return
    for file in (run / "adapter" / "calibration.json", test_folder(run) / "results.json"):
        file.unlink(missing_ok=True)
    print(f"seed {seed}: {method}", flush=True)
    lovec("calibrate", str(run), "--keep_factual", json.dumps(PROBABILITIES))
    settings = ["--trainer.default_root_dir", str(run), "--seed_everything", str(seed)]
    vanilla = ["--model.evaluation.vanilla", str(method == "sft").lower()]
    lovec("test", "--config", f"{method}.yaml", *settings, *vanilla, "--trainer.enable_model_summary", "false")
    write_json(run / NOTE, provenance())


def collect(runs: Path, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, Any]:
    """Return the rows of all tests, intervals over things, what the guarantees keep, and the other ways in."""
    folders = [runs / f"seed-{seed}" for seed in seeds]
    notes = [json.loads((folder / method / NOTE).read_text()) for folder in folders for method in methods]
    return notes[0] | {
        "commit": commits_of(notes),
        "calibrations": [_calibrations(f / m, s, m) for f, s in zip(folders, seeds, strict=True) for m in methods],
        "intervals": list(_intervals(folders, methods)),
        "ways": list(_ways(folders[0], methods)),
        "guarantees": list(_guarantees(folders, methods)),
        "rows": [row for folder in folders for method in methods for row in _rows(folder / method, method)],
    }


def _rows(run: Path, method: str) -> Iterator[ResultRow]:
    """Yield the sentence-level rows of a test, of the method itself and of the best constant."""
    for row in read_results(test_folder(run) / "results.json").rows:
        own = row.kind == "method" or (method == "sft" and row.method == "Best constant")
        if own and row.level == "sentence":
            yield replace(row, file=None)


def _calibrations(run: Path, seed: int, method: str) -> dict[str, Any]:
    """Return which map was chosen for each mode, and on how much."""
    made = json.loads((run / "adapter" / "calibration.json").read_text())["calibrations"]
    chosen = {
        item["mode"]: {"map": item["map"]["kind"], **{k: item["fitted"][k] for k in ("sentences", "passages")}}
        for item in made
    }
    return {"method": METHODS[method], "seed": seed, **chosen}


def _deployed(run: Path, method: str, mode: str) -> list[Record]:
    """Return the test records in domain with deployed confidences."""
    path = test_folder(run) / tagged_file(METHODS[method], mode, "deployed")
    return [record for record in read_records(path) if record.domain == "in-domain"]


def _intervals(folders: Sequence[Path], methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield, per method and mode, the metrics of the deployed confidence and their differences to the mean readout."""
    for method in methods:
        for mode in MODES:
            after = resample([by_question(_deployed(f / method, method, mode), "stated") for f in folders])
            plain = [read_records(test_folder(f / method) / tagged_file(METHODS[method], mode)) for f in folders]
            mean = resample([by_question([r for r in p if r.domain == "in-domain"], "mean") for p in plain])
            for against, ends in ((None, intervals(after)), ("mean", intervals(after, mean))):
                values = {n: (e := ends[n]) and [e.value, e.low, e.high] for n in NAMES}
                yield {"method": METHODS[method], "mode": mode, "against": against, **values}


def _guarantees(folders: Sequence[Path], methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield, per method, mode and promise, how often it held on the test things, and how much was kept."""
    from lovec.calibration import read_calibrations

    for method in methods:
        for mode in MODES:
            for probability in PROBABILITIES:
                held = kept = total = answers = 0
                for folder in folders:
                    made = read_calibrations(folder / method / "adapter")[mode]
                    found = made.threshold(probability)
                    for record in _tagged(folder / method, method, mode):
                        labelled = [s for s in record.sentences if s.factuality is not None]
                        stay = [s for s in labelled if made.keeps(s, found)]
                        held += all((s.factuality or 0.0) >= found.true_from for s in stay)
                        answers, total, kept = answers + 1, total + len(labelled), kept + len(stay)
                row = {"method": METHODS[method], "mode": mode, "keep_factual": probability}
                yield row | {"held": held / answers, "answers": answers, "kept": kept / total}


def _tagged(run: Path, method: str, mode: str) -> list[Record]:
    """Return the test records in domain as the method tagged them, with scores and distributions."""
    path = test_folder(run) / tagged_file(METHODS[method], mode)
    return [record for record in read_records(path) if record.domain == "in-domain"]


def _ways(folder: Path, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of the same answers by `lovec test`, `lovec tag` and `lovec serve`, on one seed."""
    oracle = WorldOracle(ensure_world("world"))
    for method in methods:
        run = folder / method
        for mode in MODES:
            tested = _deployed(run, method, mode)
            expected: dict[str, float] = {}
            ways = {"test": tested, "tag": _by_tag(run, tested, mode), "serve": _by_server(run, tested, mode)}
            for way, records in ways.items():
                rated = oracle.rate(records)
                pairs = [
                    (s.confidence, f)
                    for record, row in zip(records, rated, strict=True)
                    for s, f in zip(record.sentences, row, strict=True)
                    if s.confidence is not None and f is not None
                ]
                c, f = (list(values) for values in zip(*pairs, strict=True))
                found = {name: float(function(c, f)) for name, function in zip(NAMES, METRICS, strict=True)}
                expected = found if way == "test" else expected
                gap = max(abs(found[name] - expected[name]) for name in NAMES)
                row = {"method": METHODS[method], "mode": mode, "way": way, "sentences": len(pairs)}
                yield row | found | {"gap": f"{gap:.1e}"}  # text, since files have six decimals


def _by_tag(run: Path, records: Sequence[Record], mode: str) -> list[Record]:
    """Return the records as `lovec tag` tags them; in free-form mode it answers their questions."""
    fields = ("id", "question", "sentences") if mode == "iterative" else ("id", "question")
    rows = ({"id": r.id, "question": r.question, "sentences": [{"text": s.text} for s in r.sentences]} for r in records)
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "given.jsonl"), Path(folder, "tagged.jsonl")
        given.write_text("".join(json.dumps({name: row[name] for name in fields}) + "\n" for row in rows))
        source = [str(given)] if mode == "iterative" else ["--ask_file", str(given)]
        lovec("tag", *source, "--adapter", str(run), "--out", str(out))
        tagged = {record.id: record for record in read_records(out)}
    return [replace(record, sentences=tagged[record.id].sentences) for record in records]


def _by_server(run: Path, records: Sequence[Record], mode: str) -> list[Record]:
    """Return the records as `lovec serve` tags or answers them, one request each."""
    words = [*LOVEC, "serve", "--adapter", str(run), "--port", "0"]
    server = subprocess.Popen(
        words, cwd=ROOT, env=offline(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        url = re.search(r"http://[\d.:]+", server.stdout.readline())
        assert url is not None, "the server did not start"

        def post(path: str, body: Mapping[str, Any]) -> Any:
            with urllib.request.urlopen(f"{url[0]}/v1/{path}", json.dumps(body).encode(), timeout=300) as reply:
                return json.load(reply)

        answered = []
        for record in records:
            if mode == "iterative":
                text = " ".join(s.text for s in record.sentences)
                entries = post("tag", {"question": record.question, "text": text})["confidence"]
            else:
                turns = [{"role": "user", "content": record.question}]
                entries = post("chat/completions", {"messages": turns})["choices"][0]["message"]["confidence"]
            sentences = tuple(Sentence(entry["text"], confidence=entry["confidence"]) for entry in entries)
            answered.append(replace(record, sentences=sentences))
        return answered
    finally:
        server.terminate()
        server.wait(60)


def table(results: Mapping[str, Any]) -> str:
    """Return the main table: stated, mean and deployed confidence of every method, test things, means over seeds."""
    lines = ["| Method | Confidence | BS | ECE-M | SC | BS | ECE-M | SC |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    constant = select(results["rows"], method="Best constant", mode="iterative")
    lines.append(f"| Best constant | | {mean_text(constant, 'brier')} | {mean_text(constant, 'ece_m')} | - | | | |")
    for method in METHODS.values():
        for readout in READOUTS:
            cells = [
                mean_text(select(results["rows"], method=method, mode=mode, readout=readout), name)
                for mode in MODES
                for name in NAMES
            ]
            lines.append(f"| {method} | {readout} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(results: Mapping[str, Any]) -> str:
    """Return docs/results/deployed.md."""
    seeds = sorted({row.seed for row in results["rows"] if row.seed is not None})
    lines = [
        "# Deployed confidences",
        "",
        "Written by `benchmarks/deployed.py`; the numbers are in `benchmarks/results/deployed.json`. Percent, means "
        f"over {len(seeds)} seeds, sentences about the test things, whose answers neither training nor calibration "
        "saw. `lovec calibrate` has fitted each map to the validation things. *stated*: the score in the tag; *mean*: "
        "the mean of the distribution over scores; *deployed*: what `lovec tag`, `serve`, `predict` and `lovec.tag` "
        "give, the mean after the map. The first three columns are of given texts (iterative tagging), the others of "
        "answers that the model writes (free-form tagging). Stated scores differ a little from those of [the main "
        "results](world.md), which are means over two more seeds and were made on another processor; the order of the "
        f"methods does not. {world_text(results)}.",
        "",
        table(results),
        "",
        "## Intervals",
        "",
        "95 % intervals over things: of the deployed confidence, and of its difference to the mean readout.",
        "",
        "| Method | Mode | | BS | ECE-M | SC |",
        "|---|---|---|---|---|---|",
    ]
    for entry in results["intervals"]:
        against = entry["against"] is not None
        cells = [interval_text(entry[name], against) for name in NAMES]
        what = "minus the mean readout" if against else "deployed"
        lines.append(f"| {entry['method']} | {entry['mode']} | {what} | {' | '.join(cells)} |")
    lines += [
        "",
        "## What a guarantee keeps",
        "",
        "Thresholds from the validation things, applied to the test things: how often all kept sentences of an answer "
        "are true (factuality of at least one half), and the share of sentences that are kept. The promise holds "
        "on average over random choices of validation and test things; for one such choice, as here, the share can be "
        "below it.",
        "",
        "| Method | Mode | Promised | Held | Kept | Answers |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in results["guarantees"]:
        shares = (f"{100 * row[name]:.1f}" for name in ("keep_factual", "held", "kept"))
        lines.append(f"| {row['method']} | {row['mode']} | {' | '.join(shares)} | {row['answers']} |")
    lines += [
        "",
        "## The same figures whichever way",
        "",
        "Seed 0: the largest difference of a metric from that of `lovec test`, over BS, ECE-M and SC as fractions. "
        "`tag` gets all answers in one file; `serve` one request per answer, so its matrix products have other shapes.",
        "",
        "| Method | Mode | tag | serve |",
        "|---|---|--:|--:|",
    ]
    for method in METHODS.values():
        for mode in MODES:
            by = {row["way"]: row for row in results["ways"] if (row["method"], row["mode"]) == (method, mode)}
            if by:
                lines.append(f"| {method} | {mode} | {by['tag']['gap']} | {by['serve']['gap']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the benchmark as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark", help="folder of the runs")
    collect_options(parser, RESULTS, "tests")
    flags = parser.parse_args()
    runs = flags.runs.resolve()
    if not flags.page:
        for seed in flags.seeds if not flags.from_runs else ():
            for method in flags.methods:
                measure(runs / f"seed-{seed}", method, seed)
        write_json(flags.results, collect(runs, flags.seeds, flags.methods))
    if flags.results == RESULTS:
        results = read_json(RESULTS)
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
