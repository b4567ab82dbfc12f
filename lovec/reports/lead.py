"""What a report says first: the best method, what it gains, what a threshold keeps, and where the numbers come from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from lovec.core.notices import counted
from lovec.core.plain import inside
from lovec.metrics.bootstrap import Interval
from lovec.metrics.records import sentence_pairs
from lovec.metrics.risk import thresholds
from lovec.reports.cells import CellMaker, in_domain, levels_of
from lovec.reports.runs import RunResults, stored_readout
from lovec.reports.texts import MAIN_READOUT, MODE_TITLES, READOUT_TITLES
from lovec.types import ELSEWHERE, MODES, ResultRow

_REFERENCES = (("constant", ""), ("baseline", "Vanilla"))  # kinds and names of what a method is compared with


@dataclass(frozen=True, slots=True)
class Gain:
    """How much lower the Brier score of a method is than that of another.

    Attributes:
        over: name of the other method.
        value: the other's Brier score less the method's, in [-1, 1].
        low: lower end of its paired bootstrap interval; None without one.
        high: upper end.
        compared: False where intervals were asked for and this one cannot be had: the two were tested on different
            questions, fewer than two were measured, or tagged answers are missing.
    """

    over: str
    value: float
    low: float | None = None
    high: float | None = None
    compared: bool = True

    @property
    def verdict(self) -> str:
        """What can be said: "better", "worse", "no clear difference" where the interval holds 0, or "not compared"."""
        if not self.compared:
            return "not compared"
        low, high = (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)
        return "better" if low > 0 else "worse" if high < 0 else "no clear difference"

    @property
    def text(self) -> str:
        """The difference in percentage points with its interval, such as "4.3 (3.2 to 5.4)"; what is worse, too."""
        numbers = [self.value, *(end for end in (self.low, self.high) if end is not None)]
        if self.verdict == "worse" or (self.verdict == "not compared" and self.value < 0):
            numbers = [-self.value, *(-end for end in (self.high, self.low) if end is not None)]
        value, *ends = [f"{100 * number:.1f}" for number in numbers]
        return f"{value} ({' to '.join(ends)})" if ends else value


@dataclass(frozen=True, slots=True)
class Kept:
    """What a threshold keeps.

    Attributes:
        threshold: lowest confidence that is kept, in [0, 1].
        share: share of the sentences that is kept.
        factuality: mean factuality of what is kept.
        of_all: mean factuality of all sentences.
    """

    threshold: float
    share: float
    factuality: float
    of_all: float


@dataclass(frozen=True, slots=True)
class LeadPlace:
    """The best method in one domain.

    Attributes:
        domain: the domain.
        n: number of its sentences.
        brier: the method's Brier score as printed.
        interval: its interval as printed; "" without one.
        gains: how much better the method is than the best constant and than Vanilla, as far as they were measured.
        kept: what the highest threshold keeps that keeps at least half of the sentences; None if that is all of them,
            or no record has labels.
        others: the method's Brier score by other readouts, as printed, each with the words of its readout.
    """

    domain: str
    n: int
    brier: str
    interval: str
    gains: tuple[Gain, ...]
    kept: Kept | None
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Lead:
    """What a report says first.

    Attributes:
        method: the trained method of the lowest Brier score in the first mode and domain; a baseline if nothing was
            trained.
        mode: the first mode.
        readout: the readout, the same as in the main table; another one only where no method has that.
        compared: number of trained methods (or else of baselines) that it was chosen from.
        trained: whether these were trained; False for baselines, and for scores made elsewhere.
        level_with: the other methods among them whose difference to it may be chance: the interval holds 0.
        places: one per domain, the first one first.
        not_compared: the other methods among them of whose difference to it nothing is known, though intervals were
            asked for, see ``Gain.compared``.
    """

    method: str
    mode: str
    readout: str
    compared: int
    trained: bool
    level_with: tuple[str, ...]
    places: tuple[LeadPlace, ...]
    not_compared: tuple[str, ...] = ()

    @property
    def readout_title(self) -> str:
        """The readout in words."""
        return READOUT_TITLES.get(self.readout, self.readout)

    @property
    def domain(self) -> str:
        """The first domain; "" for scores made elsewhere, which have none but their mode."""
        return "" if self.mode == ELSEWHERE else self.places[0].domain

    @property
    def compared_words(self) -> str:
        """What it was chosen from, in words."""
        return "trained methods" if self.trained else "methods" if self.mode == ELSEWHERE else "baselines"

    @property
    def mode_title(self) -> str:
        """The mode in words, in lower case."""
        return MODE_TITLES.get(self.mode, self.mode).lower()


def lead_of(cells: CellMaker) -> Lead | None:
    """Return what a report says first; None if no method was measured."""
    rows = [row for row in cells.run.rows if row.level == "sentence" and row.metrics.get("brier") is not None]
    for kind in ("method", "baseline"):
        candidates = [row for row in rows if row.kind == kind]
        first = next(((row.mode, row.domain) for row in candidates), None)
        candidates = [row for row in candidates if (row.mode, row.domain) == first]
        if candidates:
            main = [row for row in candidates if row.readout == MAIN_READOUT]
            candidates = main or [row for row in candidates if row.readout == candidates[0].readout]
            best = min(candidates, key=_brier)
            of_best = [r for r in rows if (r.method, r.mode, r.readout) == (best.method, best.mode, best.readout)]
            of_best.sort(key=lambda row: row.domain != best.domain)  # its own rows may start with another
            places = tuple(_lead_place(cells, row, rows) for row in of_best)
            others = [row for row in candidates if row.method != best.method] if cells.draws else []
            found = {row.method: cells.difference(best, row, "brier") for row in others}
            level = tuple(name for name, difference in found.items() if difference and not difference.excludes_zero)
            unknown = tuple(name for name, difference in found.items() if difference is None)
            trained = kind == "method" and best.mode in MODES
            return Lead(best.method, best.mode, best.readout, len(candidates), trained, level, places, unknown)
    return None


def provenance(run: RunResults) -> list[tuple[str, str]]:
    """Return where the numbers of a run come from: names and values, without what is not known."""
    sentences = {row.domain: row.n for row in reversed(run.rows) if row.level == "sentence" and row.kind != "constant"}
    answers = {row.domain: row.n for row in reversed(run.rows) if row.level == "passage" and row.kind != "constant"}
    domains = list(dict.fromkeys(row.domain for row in run.rows))
    sizes = [
        (f"{domain}: " if len(domains) > 1 else "")
        + counted(sentences[domain], "sentence")
        + (f" of {counted(answers[domain], 'answer')}" if domain in answers else "")
        for domain in domains
        if domain in sentences
    ]
    seeds = sorted({seed for recipe in run.recipes.values() if isinstance(seed := recipe.get("seed_everything"), int)})
    seeds = sorted({row.seed for row in run.rows if row.seed is not None and row.kind == "method"}) or seeds
    many = f"{run.most_seeds} training seeds" if run.most_seeds > 1 else ", ".join(map(str, seeds))
    found = {
        "commit": ", ".join(run.about.get("commit", ())),
        "lovec": ", ".join(run.about.get("version", ())),
        "seed": many,
        "model": ", ".join(dict.fromkeys(_models(run))),
        "data": ", ".join(dict.fromkeys(_data(run))),
        "n": "; ".join(sizes),
        "without a confidence": ", ".join(run.about.get("missing", ())),
    }
    return [(name, value) for name, value in found.items() if value]


def _lead_place(cells: CellMaker, row: ResultRow, rows: list[ResultRow]) -> LeadPlace:
    """Return what is said of the best method in one domain."""
    cell = cells.cell(row, "brier")
    gains = []
    for kind, name in _REFERENCES:
        others = [
            other
            for other in rows
            if other.kind == kind
            and (not name or other.method == name)
            and other.method != row.method
            and other.domain == row.domain
            and other.mode == row.mode  # answers of another mode are other answers
        ]
        same = [other for other in others if other.readout == row.readout]
        others = same or [other for other in others if other.readout == "stated"]
        if others:
            gains.append(_gain(cells, row, min(others, key=_brier)))
    interval = cell.interval if cell else ""
    place = row.method, row.mode, row.domain
    same = [other for other in rows if (other.method, other.mode, other.domain) == place and other is not row]
    info = cells.run.metrics["brier"]
    by_readout = tuple((READOUT_TITLES.get(o.readout, o.readout), info.text(o.metrics["brier"])) for o in same)
    brier = cell.text if cell else "-"
    return LeadPlace(row.domain, row.n, brier, interval, tuple(gains), _kept(cells.run, row), by_readout)


def _gain(cells: CellMaker, row: ResultRow, other: ResultRow) -> Gain:
    difference: Interval | None = cells.difference(other, row, "brier")
    value = _brier(other) - _brier(row)
    if difference is None:
        return Gain(other.method, value, compared=not cells.draws)
    return Gain(other.method, value, difference.low, difference.high)


def _kept(run: RunResults, row: ResultRow) -> Kept | None:
    """Return what the highest threshold keeps that keeps at least half of a row's sentences; None if that is all.

    Shares and factualities are means over the training seeds.
    """
    by_seed = [in_domain(seed, row.domain) for seed in run.records_by_seed(row.method, row.mode, row.readout)]
    pairs = [pair for seed in by_seed if (pair := sentence_pairs(seed, stored_readout(row))[:2])[0]]
    if not pairs:
        return None
    levels = levels_of(record for seed in by_seed for record in seed)
    kept = [[values.tolist() for values in thresholds(*pair, levels)] for pair in pairs]
    shares, means = ([mean(values) for values in zip(*seeds, strict=True)] for seeds in zip(*kept, strict=True))
    # where a seed keeps nothing, the mean of what is true of it is undefined
    score = max(s for s in range(levels) if s == 0 or (shares[s] >= 0.5 and not math.isnan(means[s])))
    if shares[score] == 1:
        return None
    return Kept(score / (levels - 1), shares[score], means[score], mean(mean(true) for _, true in pairs))


def _models(run: RunResults) -> Iterator[str]:
    for recipe in run.recipes.values():
        policy = inside(recipe, "model", "init_args", "policy") or inside(recipe, "model", "policy")
        if isinstance(name := policy.get("model"), str):
            yield name


def _data(run: RunResults) -> Iterator[str]:
    for recipe in run.recipes.values():
        data = inside(recipe, "data")
        options = inside(data, "init_args")
        name = str(data.get("class_path", "")).rpartition(".")[2]
        given = [str(options[key]) for key in ("variant", "name", "train", "test") if isinstance(options.get(key), str)]
        if name:
            yield f"{name} ({', '.join(given)})" if given else name


def _brier(row: ResultRow) -> float:
    value = row.metrics.get("brier")
    return float("inf") if value is None else value
