"""What ``lovec test`` measures, row by row, and the files that hold it: the same for every module."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lovec.baselines import Baseline, ConstantTagger, Isotonic, Platt, best_constant
from lovec.baselines.hybrid import hybrid
from lovec.baselines.recalibrated import recalibrated
from lovec.datasets.jsonl import write_records
from lovec.evaluation.evaluator import MODES, given, tagged_file
from lovec.evaluation.next_tokens import collect
from lovec.metrics.records import READOUTS, sentence_pairs
from lovec.stopwatch import Stopwatch
from lovec.taggers import IterativeTagger
from lovec.types import LovecError, Record, Sampling, Tagger

if TYPE_CHECKING:
    from lovec.evaluation.module import EvaluationModule

T = TypeVar("T")
VANILLA = "Vanilla"
CONSTANT = "Best constant"
ABLATED = ", no previous scores"
MAPS: dict[str, type[Isotonic] | type[Platt]] = {" + isotonic": Isotonic, " + Platt": Platt}
ANSWERS = "Answers"
ITERATIVE, FREE_FORM = MODES


class Measurement:
    """One test: every method tags the same records, is measured, and becomes rows, a file and times.

    A row of ``results`` holds ``method``, ``seed``, ``domain``, ``mode``, ``level``, ``readout``, the figures of
    ``CalibrationSuite``, ``kind`` ("method", "baseline", "constant", "recalibrated", "hybrid" or "ablation") and
    ``file``, where the tagged records are. One of ``times`` holds ``method``, ``mode``, ``kind``, ``seconds`` by phase
    (those of all processes together), ``records``, ``sentences`` and ``prefill_tokens``.

    Args:
        module: its policy, engine and evaluator measure.
        keep: methods whose iterative tagging is kept.

    Attributes:
        records: this process's share of the test records.
        results: rows so far.
        times: rows so far; what was not tagged here (means, maps), or by a tagger without a ``watch``, has none.
        kept: this process's share of the records that methods to keep have tagged iteratively.
    """

    def __init__(self, module: EvaluationModule, keep: Collection[str] = ()) -> None:
        self.module = module
        self.evaluator = module.evaluator
        self.records: list[Record] = []
        self.results: list[dict[str, Any]] = []
        self.times: list[dict[str, Any]] = []
        self.kept: dict[str, list[Record]] = {name: [] for name in keep}
        self._tagged: dict[str, list[Record]] = {}
        self._seconds: dict[str, Counter[str]] = {}
        self._prefilled: Counter[str] = Counter()
        data = getattr(module.trainer, "datamodule", None)
        self._validation: list[Record] = [] if data is None else data.load("validation")
        self._constant = best_constant(self._validation)
        if self._constant is None and ITERATIVE in self.evaluator.modes:
            rank_zero_info(f"the row {CONSTANT!r} is left out: no validation record has a label to choose it by")

    # What there is to measure

    def tag(self, rows: Sequence[Record]) -> None:
        """Tag and measure rows with the policy as it is, in every mode."""
        for mode in self.evaluator.modes:
            with self._timed(mode, _watch(self.evaluator.taggers[mode])):
                tagged = self.evaluator.tagged(rows, mode)
            self._add(mode, self.evaluator.labelled(tagged, mode))

    def all_modes(self) -> None:
        """Tag and measure all records with the policy as it is, in every mode."""
        for rows in self._chunks(self.records):
            self.tag(rows)

    def method(self, name: str) -> None:
        """Finish the method that has tagged all records, and measure what its settings ask for beside it."""
        settings, tagged = self.module.evaluation, self._tagged
        self._finish(name, "method")
        if settings.recalibrated:
            self._recalibrated(name, tagged)
        if settings.ablate_history and ITERATIVE in self.evaluator.modes:
            self._iteratively(IterativeTagger(self.module.engine, self.module.encoder, history="previous"))
            self._finish(name + ABLATED, "ablation", (ITERATIVE,))

    def vanilla(self) -> None:
        """The base model without an adapter, asked as the method is."""
        with self.using_adapter(None):
            self.all_modes()
            self._finish(VANILLA, "baseline")

    def constant(self) -> None:
        """The best single score of the validation labels, said of every test sentence."""
        if self._constant is None or ITERATIVE not in self.evaluator.modes:
            return
        self._add(ITERATIVE, ConstantTagger(self._constant).tag(given(self.records)))
        self._finish(CONSTANT, "constant", (ITERATIVE,), ("stated",))

    def baselines(self, baselines: Sequence[Baseline]) -> None:
        """Baselines, on stored answers; each with its own adapter, or with none."""
        if not baselines or ITERATIVE not in self.evaluator.modes:
            return
        if not self._gather(given(self.records)):
            rank_zero_info("the baselines are left out: they judge stored answers, and the data hold questions only")
            return
        for baseline in baselines:
            rank_zero_info(f"{baseline.name} judges the stored answers")
            baseline.attach(self.module.bench())
            with self.using_adapter(baseline.adapter):
                self._iteratively(baseline)
            said = self._gather(self._tagged.get(ITERATIVE, []))
            spread = any(s.distribution is not None for record in said for s in record.sentences)
            self._finish(baseline.name, "baseline", (ITERATIVE,), READOUTS if spread else ("stated",))

    def hybrid(self, first: str, second: str) -> None:
        """The mean of what two kept methods say of each sentence."""
        self._add(ITERATIVE, hybrid(self.kept[first], self.kept[second]))
        self._finish(f"{first} + {second}", "hybrid", (ITERATIVE,), ("stated",))

    def answers(self) -> None:
        """How long the bare base takes to write plain, greedy answers to the same questions; they are not kept."""
        module, watch = self.module, Stopwatch()
        with self.using_adapter(None), self._timed(FREE_FORM, watch):
            room = module.engine.context_length
            for rows in self._chunks(self.records):
                prompts = [module.encoder.prompt(record.question, instruct=False) for record in rows]
                fit = [prompt for prompt in prompts if room is None or len(prompt) < room]
                with watch.phase("writing"):
                    module.engine.generate(fit, Sampling(module.evaluation.max_new_tokens), module.encoder.stop_ids)
        self._time(ANSWERS, FREE_FORM, "answers", self._gather(self.records))

    def tokens(self, method: str) -> list[dict[str, Any]]:
        """What the policy as it is would say next after an opening tag, see ``lovec.evaluation.next_tokens``."""
        module = self.module
        with module.trainer.precision_plugin.test_step_context():
            return collect(method, module.policy, module.engine, module.encoder, given(self._gather(self.records)))

    @contextmanager
    def using_adapter(self, adapter: str | None) -> Iterator[None]:
        """Inside: the policy with the adapter of a folder, or with none."""
        module = self.module
        with module.policy.without_adapter() if adapter is None else module.policy.with_adapter(adapter):
            module.engine.sync(module.policy)
            yield
        module.engine.sync(module.policy)

    def write(self) -> list[dict[str, Any]]:
        """Write results and times beside the tagged records; the results."""
        self.save("times.json", self.times)
        self.save("results.json", self.results)
        rank_zero_info(f"results and tagged records written to {self.module.run_dir / 'test'}")
        return self.results

    def save(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write a JSON list into the test's folder, from one process."""
        if self.module.trainer.is_global_zero:
            path = self.module.run_dir / "test" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    # How

    def _chunks(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Records, as many at a time as go through the engine together."""
        size = self.module.evaluation.rows
        for start in range(0, len(records), size):
            yield records[start : start + size]

    def _iteratively(self, tagger: Tagger) -> None:
        for rows in self._chunks(given(self.records)):
            with self._timed(ITERATIVE, _watch(tagger)):
                tagged = tagger.tag(rows)
            self._add(ITERATIVE, tagged)

    def _add(self, mode: str, tagged: list[Record]) -> None:
        self._tagged.setdefault(mode, []).extend(tagged)
        self.evaluator.update(mode, tagged)

    def _recalibrated(self, method: str, tagged: dict[str, list[Record]]) -> None:
        """A method's confidences, mapped as validation records of the same mode and readout ask for.

        Every process tags its share of the validation records, and all fit the same map.
        """
        trainer = self.module.trainer
        share = self._validation[trainer.global_rank :: trainer.world_size]
        held: dict[str, list[Record]] = {}
        with trainer.precision_plugin.test_step_context():
            for mode in self.evaluator.modes:
                held[mode] = self._gather([r for rows in self._chunks(share) for r in self.evaluator.tag(rows, mode)])
        for (suffix, form), readout in product(MAPS.items(), READOUTS):
            fitted = []
            for mode in self.evaluator.modes:
                confidence, factuality, _ = sentence_pairs(held[mode], readout)
                try:
                    calibrator = form.fit(confidence, factuality)
                except LovecError as error:
                    rank_zero_warn(f"no row {method + suffix!r} for {mode} tagging, {readout} readout: {error}")
                    continue
                self._add(mode, recalibrated(tagged.get(mode, []), calibrator, readout))
                fitted.append(mode)
            # A mapped confidence is a sentence's only one, so it is read as a stated score, whatever it was made from.
            self._finish(method + suffix, "recalibrated", fitted, ("stated",), shown=readout)

    @contextmanager
    def _timed(self, mode: str, watch: Stopwatch) -> Iterator[None]:
        """Inside, with the precision of a test: what a watch counts, and tokens of context, go to a mode."""
        engine = self.module.engine
        before, prefilled = Counter(watch.seconds), engine.prefill_tokens
        with self.module.trainer.precision_plugin.test_step_context():
            yield
        now = Counter(watch.seconds)
        now.subtract(before)
        self._seconds.setdefault(mode, Counter()).update(now)
        self._prefilled[mode] += engine.prefill_tokens - prefilled

    def _finish(
        self,
        method: str,
        kind: str,
        modes: Sequence[str] | None = None,
        readouts: Sequence[str] = READOUTS,
        shown: str | None = None,
    ) -> None:
        """Move the suites' figures into ``results``, as readout ``shown`` if given, and the tagged records to disk."""
        modes = self.evaluator.modes if modes is None else modes
        held = {mode: self._gather(self._tagged.get(mode, [])) for mode in modes}  # every process must take part
        files = {mode: tagged_file(method, mode, shown or "stated") for mode in modes}
        for row in self.evaluator.rows(method=method, seed=self.module.seed):
            mode, readout = row["mode"], row["readout"]
            if mode in modes and readout in readouts:
                self.results.append({**row, "readout": shown or readout, "kind": kind, "file": files[mode]})
        for mode, everything in held.items():
            if self.module.trainer.is_global_zero:
                write_records(self.module.run_dir / "test" / files[mode], everything)
            self._time(method, mode, kind, everything)
        if method in self.kept:
            self.kept[method] = self._tagged.get(ITERATIVE, [])
        self._tagged, self._seconds, self._prefilled = {}, {}, Counter()

    def _time(self, method: str, mode: str, kind: str, tagged: Sequence[Record]) -> None:
        """Move what a mode took, in all processes, into ``times``."""
        parts = gather(self.module.trainer, (dict(self._seconds.get(mode, {})), self._prefilled[mode]))
        if not any(seconds for seconds, _ in parts):
            return
        seconds: Counter[str] = sum((Counter(part) for part, _ in parts), Counter())
        self.times.append(
            {
                "method": method,
                "mode": mode,
                "kind": kind,
                "seconds": dict(seconds),
                "records": len(tagged),
                "sentences": sum(len(record.sentences) for record in tagged),
                "prefill_tokens": sum(tokens for _, tokens in parts),
            }
        )

    def _gather(self, records: list[Record]) -> list[Record]:
        return in_turn(self.module.trainer, records)


def _watch(tagger: Tagger) -> Stopwatch:
    """A tagger's own watch; one that stands still where it has none."""
    watch: Stopwatch = getattr(tagger, "watch", None) or Stopwatch()
    return watch


def check_rows(names: Iterable[str]) -> None:
    """Refuse methods that tables or files could not tell apart.

    Raises:
        LovecError: two have the same name, or names that differ in what a file's name leaves out only.
    """
    files: dict[str, str] = {}
    for name in (CONSTANT, VANILLA, *names):
        file = tagged_file(name, ITERATIVE)
        if file in files:
            raise LovecError(
                f"two rows of the test would be called {files[file]!r} and {name!r}, expected names that differ in "
                "letters or digits; give one another name (name of a baseline, evaluation.name, or key in adapters)"
            )
        files[file] = name


def gather(trainer: Any, part: T) -> list[T]:
    """What every process has, by rank, on every process."""
    if trainer.world_size == 1:
        return [part]
    parts: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(parts, part)
    return parts


def in_turn(trainer: Any, records: list[Record]) -> list[Record]:
    """Records of all processes in the order of the data, on every process."""
    # A process was served every world-th record, so turn by turn gives their order back.
    turns = zip_longest(*gather(trainer, records))
    return [record for turn in turns for record in turn if record is not None]
