"""Measure methods on the same test records, and write the results, the tagged records and the running times."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lovec.baselines import (
    Baseline,
    BaselineResources,
    ConstantTagger,
    average_confidences,
    best_constant,
    recalibrate,
)
from lovec.baselines.base import with_confidences
from lovec.calibration import Isotonic, Platt
from lovec.core import stopwatch
from lovec.core.files import write_text
from lovec.core.progress import doing
from lovec.core.stopwatch import Stopwatch
from lovec.datasets.jsonl import write_records
from lovec.encoding import Author
from lovec.evaluation.evaluator import EvaluationConfig, Evaluator, answered, tagged_file
from lovec.evaluation.next_tokens import next_tokens
from lovec.evaluation.processes import barrier, gather, in_order_of, own_share
from lovec.evaluation.resuming import Keeping
from lovec.evaluation.run_folders import RESULTS, TestFolder
from lovec.metrics.records import READOUTS, sentence_pairs
from lovec.metrics.results import COUNTED_MISSING, write_results, written_by
from lovec.policy import Policy
from lovec.taggers import IterativeTagger
from lovec.taggers.scoring_check import scoring_difference
from lovec.taggers.served_confidence import DEPLOYED, ServedConfidence
from lovec.types import (
    FREE_FORM,
    ITERATIVE,
    Kind,
    LovecError,
    NoTrainingLabels,
    Readout,
    Record,
    ResultRow,
    Sampling,
    Tagger,
)

VANILLA = "Vanilla"
CONSTANT = "Best constant"
CALIBRATORS: dict[str, type[Isotonic] | type[Platt]] = {"isotonic": Isotonic, "Platt": Platt}
NO_SCORES = "no previous scores"
AUTHORS: dict[Author, str] = {"model": "as its own", "user": "as the user's"}
PREFILL = "prefill_tokens"
CPU = "cpu "  # before the name of a phase


@dataclass
class Measurement:
    """One test: every method tags the same records, is measured, and becomes rows, files and times.

    Every process measures its share of the records and must call the same methods in the same order.

    Attributes:
        policy: the policy whose adapters are measured.
        resources: engine and encoder of the policy, and what else baselines work with.
        evaluator: tags, labels and computes metrics.
        config: the settings of the evaluation.
        trainer: the Lightning trainer, for its processes and its precision.
        place: the folder in which files are written.
        seed: training seed of the methods, for the rows.
        validation: labelled records to choose the best constant and to fit calibrators on.
        training: labelled records for the baselines that learn from labels, or why there are none.
        keep: names of methods whose iterative tagging ``measure_hybrid`` needs.
        records: this process's share of the test records.
        results: rows so far.
        times: running times so far: ``method``, ``mode``, ``kind``, ``seconds`` and ``cpu_seconds`` by phase and
            ``prefill_tokens`` (of all processes together), ``records``, ``sentences``, and ``processes``, how many of
            the same command shared the machine. Only taggers with a ``watch`` have times.
    """

    policy: Policy
    resources: BaselineResources
    evaluator: Evaluator
    config: EvaluationConfig
    trainer: Any
    place: TestFolder
    seed: int
    validation: Sequence[Record]
    training: Sequence[Record] | NoTrainingLabels = ()
    keep: set[str] = field(default_factory=set, init=False)
    records: list[Record] = field(default_factory=list, init=False)
    results: list[ResultRow] = field(default_factory=list, init=False)
    times: list[dict[str, Any]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._kept: dict[str, list[Record]] = {}
        self._tagged: dict[str, list[Record]] = {}
        self._spent: dict[str, Counter[str]] = {}  # seconds by phase, wall and processor, and prefill tokens
        if self.trainer.is_global_zero:
            self.place.begin()
        self._failure: str | None = None  # why a file could not be written
        self._constant = best_constant(self.validation, self.resources.encoder.scale)
        if self._constant is None and ITERATIVE in self.evaluator.modes:
            rank_zero_info(f"the row {CONSTANT!r} is left out: no validation record has a label to choose it by")

    # Methods

    def tag(self, records: Sequence[Record]) -> None:
        """Tag and measure records with the active adapter, in every mode."""
        for mode in self.evaluator.modes:
            with self._timed(mode, _watch(self.evaluator.taggers[mode])):
                tagged = self.evaluator.tag(records, mode)
            with self.trainer.precision_plugin.test_step_context():  # an oracle may judge with the policy
                labelled = self.evaluator.add_labels(tagged, mode)
            self._add(mode, labelled)

    def tag_all(self) -> None:
        """Tag and measure all test records with the active adapter, in every mode."""
        for records in self._batches(self.records, "tagging all records"):
            self.tag(records)

    def finish_method(self, name: str, served: ServedConfidence | None = None) -> None:
        """Add the rows of a method that has tagged all records, and its variants that the settings ask for.

        Args:
            name: its name in tables.
            served: what users of its adapter get as confidences; None where there is no calibration.
        """
        tagged = self._tagged
        self._finish(name, "method")
        self._compare_scoring(name)
        if served is not None and served.calibrations:
            self._measure_deployed(name, tagged, served)
        if self.config.recalibrated:
            self._measure_recalibrated(name, tagged, self.evaluator.tag_and_label, self.evaluator.modes)
        if ITERATIVE not in self.evaluator.modes:
            return
        if self.config.ablate_history:
            self._ablate(name, NO_SCORES, history="previous")
        for author, variant in AUTHORS.items() if self.config.ablate_author else ():
            self._ablate(name, variant, history=self.config.history, author=author)

    def _ablate(self, name: str, variant: str, **options: Any) -> None:
        """Add the rows of a method whose iterative tagging has other options."""
        self._tag_iteratively(IterativeTagger(self.resources.engine, self.resources.encoder, **options))
        self._finish(f"{name}, {variant}", "ablation", [ITERATIVE], bases=(name,), variant=variant)

    def _compare_scoring(self, name: str) -> None:
        """Say how much the confidences of a method change by scoring first tokens only."""
        if not isinstance(self.evaluator.taggers.get(ITERATIVE), IterativeTagger):
            return
        with self.trainer.precision_plugin.test_step_context():
            found = scoring_difference(
                self.resources.engine, self.resources.encoder, answered(self.records), self.config.scoring_check
            )
        if found is not None:
            rank_zero_info(f"{name}: {found.describe()}")
            if found.is_large:
                rank_zero_warn(f"{name}: {found.advice('--model.policy.scoring')}")

    def measure_vanilla(self) -> None:
        """Measure the base model without an adapter, prompted like a method."""
        with self.using_adapter(None), doing(VANILLA):
            self.tag_all()
            self._finish(VANILLA, "baseline")

    def measure_constant(self) -> None:
        """Measure the best single score of the validation labels, given to every test sentence."""
        if self._constant is None or ITERATIVE not in self.evaluator.modes:
            return
        tagger = ConstantTagger(self._constant, self.resources.encoder.scale)
        self._add(ITERATIVE, tagger.tag(answered(self.records)))
        self._finish(CONSTANT, "constant", [ITERATIVE], ["stated"])

    def measure_baselines(self, baselines: Sequence[Baseline]) -> None:
        """Measure baselines on the stored answers, each with its own adapter or with none.

        Those that learn from labels are left out where there are none to learn from.
        """
        if not baselines or ITERATIVE not in self.evaluator.modes:
            return
        if not self._all(answered(self.records)):
            rank_zero_info("the baselines are left out: they judge stored answers, and the records have none")
            return
        keeping = Keeping(self.place.judged, self.policy, self.resources, self.trainer.precision)
        for baseline, tagger in [(baseline, keeping.tagger(baseline)) for baseline in baselines]:
            rank_zero_info(f"{baseline.name} judges the stored answers")
            baseline.attach(self.resources)
            with self.using_adapter(baseline.adapter), doing(baseline.name):
                try:
                    self._fit(baseline)
                except NoTrainingLabels as error:
                    rank_zero_warn(f"the row {baseline.name!r} is left out: {error}")
                    continue
                self._tag_iteratively(tagger)
                tagged = self._tagged
                own = self._all(tagged.get(ITERATIVE, []))
                has_distribution = any(s.distribution is not None for record in own for s in record.sentences)
                readouts = READOUTS if has_distribution else READOUTS[:1]
                self._finish(baseline.name, "baseline", [ITERATIVE], readouts)
                if self.config.recalibrated_baselines:
                    tag = partial(_tag_answered, tagger)
                    self._measure_recalibrated(baseline.name, tagged, tag, [ITERATIVE], readouts)

    def _fit(self, baseline: Baseline) -> None:
        """Let a baseline that learns from labels learn from the training records.

        Raises:
            NoTrainingLabels: there are none, or too few.
        """
        if not baseline.needs_labels:
            return
        if isinstance(self.training, NoTrainingLabels):
            raise self.training
        if not any(record.has_labels for record in self.training):
            raise NoTrainingLabels(f"it learns from labels, and none of {len(self.training)} training records has one")
        with self.trainer.precision_plugin.test_step_context():
            baseline.fit(self.training)

    def measure_hybrid(self, first: str, second: str) -> None:
        """Measure the mean of the confidences of two methods, where both were kept."""
        if ITERATIVE not in self.evaluator.modes or not {first, second} <= self._kept.keys():
            rank_zero_info(f"{first} + {second} is left out: not both of them were measured on stored answers")
            return
        self._add(ITERATIVE, average_confidences(self._kept[first], self._kept[second]))
        self._finish(f"{first} + {second}", "hybrid", [ITERATIVE], ["stated"], bases=(first, second))

    def time_answers(self) -> None:
        """Measure how long the base model takes to write plain, greedy answers; the answers are not kept."""
        engine, encoder, watch = self.resources.engine, self.resources.encoder, Stopwatch()
        with self.using_adapter(None), self._timed(FREE_FORM, watch):
            longest = engine.context_length
            for records in self._batches(self.records, "answers without tags"):
                prompts = [encoder.prompt(record.question, instruct=False) for record in records]
                prompts = [prompt for prompt in prompts if longest is None or len(prompt) < longest]
                with watch.phase("writing"):
                    engine.generate(prompts, Sampling(self.config.max_new_tokens), encoder.stop_ids)
        self._time("Answers", FREE_FORM, "answers", self._all(self.records))
        self._spent = {}

    def next_tokens(self, method: str) -> list[dict[str, Any]]:
        """Return the most probable tokens after an opening tag word, see ``lovec.evaluation.next_tokens``."""
        records = answered(self._all(self.records))
        with self.trainer.precision_plugin.test_step_context():
            return next_tokens(method, self.policy, self.resources.engine, self.resources.encoder, records)

    def using_adapter(self, adapter: str | None) -> AbstractContextManager[None]:
        """Use the adapter of a folder inside the block, or none, in policy and engine."""
        return self.policy.using_adapter(adapter, self.resources.engine)

    # Files

    def write(self) -> None:
        """Write results and times beside the tagged records.

        Raises:
            LovecError: a file could not be written, now or before; what was measured stays in ``results``.
        """
        self.write_json("times.json", self.times)
        infos = self.evaluator.metric_infos.values()
        about = written_by() | (COUNTED_MISSING if self.config.count_missing else {})
        self._write(RESULTS, lambda path: write_results(path, self.results, infos, about))
        for failure in filter(None, gather(self.trainer, self._failure)):
            raise LovecError(
                f"{failure}; make room there, or choose another --trainer.default_root_dir, and test again"
            )
        records = len(self._all(self.records))
        kept = self.place.finish(records) if self.trainer.is_global_zero else []
        rank_zero_info(f"results and tagged records written to {self.place.path}")
        for folder in kept:
            rank_zero_info(f"what was there, of another test, is kept in {folder}")

    def write_json(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write a JSON list into the folder, from one process."""
        self._write(name, lambda path: write_text(path, json.dumps(rows, indent=1, allow_nan=False) + "\n"))

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file into the folder, from one process; a full disk is reported at the end, with the results."""
        if not self.trainer.is_global_zero:
            return
        try:
            write(self.place.working / name)
        except OSError as error:
            self._failure = self._failure or f"cannot write {self.place.path / name} ({error.strerror})"

    # Steps

    def _batches(self, records: Sequence[Record], what: str) -> Iterator[Sequence[Record]]:
        """Yield as many records at a time as go through the engine together; lines of progress say for what."""
        with doing(what, len(records), "records") as activity:
            for start in range(0, len(records), self.config.rows):
                yield (batch := records[start : start + self.config.rows])
                activity.advance(len(batch))

    def _tag_iteratively(self, tagger: Tagger) -> None:
        for records in self._batches(answered(self.records), "stored answers"):
            with self._timed(ITERATIVE, _watch(tagger)):
                tagged = tagger.tag(records)
            self._add(ITERATIVE, tagged)

    def _add(self, mode: str, tagged: list[Record], readout: str = "stated") -> None:
        self._tagged.setdefault(mode, []).extend(tagged)
        self.evaluator.update(mode, tagged, readout)

    def _measure_deployed(self, method: str, tagged: Mapping[str, list[Record]], served: ServedConfidence) -> None:
        """Measure the confidences that users of an adapter get, after the calibration that lies beside it."""
        for mode in self.evaluator.modes:
            deployed = [served.record(record, mode) for record in tagged.get(mode, [])]
            self._add(mode, [with_confidences(r, (s.confidence for s in r.sentences)) for r in deployed], DEPLOYED)
        self._finish(method, "method", None, ["stated"], readout=DEPLOYED)

    def _measure_recalibrated(
        self,
        method: str,
        tagged: dict[str, list[Record]],
        tag: Callable[[Sequence[Record], str], list[Record]],
        modes: Sequence[str],
        readouts: Sequence[Readout] = READOUTS,
    ) -> None:
        """Measure a method's confidences after maps that are fitted on validation records, per mode and readout.

        Every process tags its share of the validation records, and all fit the same map.

        Args:
            method: its name in tables.
            tagged: the test records that it has tagged, by mode.
            tag: tags and labels records in a mode.
            modes: the modes in which it is measured.
            readouts: the readouts that it has.
        """
        fitting: dict[str, list[Record]] = {}
        share = own_share(self.trainer, self.validation)
        with self.trainer.precision_plugin.test_step_context():
            for mode in modes:
                batches = self._batches(share, f"{method} on validation records")
                fitting[mode] = self._all([r for rows in batches for r in tag(rows, mode)], share)
        for (label, calibrator), readout in product(CALIBRATORS.items(), readouts):
            name = f"{method} + {label}"
            fitted_modes: list[str] = []
            for mode in modes:
                confidence, factuality, _ = sentence_pairs(fitting[mode], readout)
                try:
                    fitted = calibrator.fit(confidence, factuality)
                except LovecError as error:
                    rank_zero_warn(f"no row {name!r} for {mode} tagging, {readout} readout: {error}")
                    continue
                self._add(mode, recalibrate(tagged.get(mode, []), fitted, readout), readout)
                fitted_modes.append(mode)
            # The mapped confidence has no distribution, so it is measured as stated, whatever it was mapped from.
            fields = {"readout": readout, "bases": (method,), "variant": label.lower()}
            self._finish(name, "recalibrated", fitted_modes, ["stated"], **fields)

    @contextmanager
    def _timed(self, mode: str, watch: Stopwatch) -> Iterator[None]:
        """Count the seconds of a watch, and the context tokens of the engine, for a mode; use the test's precision."""
        engine, spent = self.resources.engine, self._spent.setdefault(mode, Counter())
        spent.subtract({**_clocks(watch), PREFILL: engine.prefill_tokens})
        with self.trainer.precision_plugin.test_step_context():
            yield
        spent.update({**_clocks(watch), PREFILL: engine.prefill_tokens})

    def _finish(
        self,
        method: str,
        kind: Kind,
        modes: Sequence[str] | None = None,
        readouts: Sequence[str] = READOUTS,
        **fields: Any,
    ) -> None:
        """Turn what was tagged since the last call into rows, files and times.

        Args:
            method: name in tables.
            kind: what the rows measure.
            modes: the modes in which it was measured; None is all.
            readouts: the readouts to make rows of.
            fields: other fields of the rows. Of recalibrated confidences, ``readout`` is what they were mapped from.
        """
        modes = self.evaluator.modes if modes is None else modes
        files = {mode: tagged_file(method, mode, fields.get("readout", "stated")) for mode in modes}
        barrier(self.trainer)
        for row in self.evaluator.rows(method, kind, self.seed, modes):
            if row.readout in readouts:
                self.results.append(replace(row, file=files[row.mode], **fields))
        for mode in modes:
            records = self._all(self._tagged.get(mode, []))
            self._write(files[mode], lambda path, records=records: write_records(path, records))  # type: ignore[misc]
            self._time(method, mode, kind, records)
        if method in self.keep and "readout" not in fields:
            self._kept[method] = self._tagged.get(ITERATIVE, [])
        self._tagged, self._spent = {}, {}

    def _time(self, method: str, mode: str, kind: str, records: Sequence[Record]) -> None:
        """Add what a mode took, in all processes, to ``times``."""
        spent = sum(gather(self.trainer, self._spent.get(mode, Counter())), Counter())
        prefilled = spent.pop(PREFILL, 0)
        seconds = {name: value for name, value in spent.items() if not name.startswith(CPU)}
        if not seconds:
            return
        self.times.append(
            {
                "method": method,
                "mode": mode,
                "kind": kind,
                "seconds": seconds,
                "cpu_seconds": {name: spent[CPU + name] for name in seconds},
                "records": len(records),
                "sentences": sum(len(record.sentences) for record in records),
                PREFILL: prefilled,
                "processes": stopwatch.processes_at_a_time,
            }
        )

    def _all(self, records: list[Record], share: Sequence[Record] | None = None) -> list[Record]:
        """Return the records of all processes, made of a share of the data: None is that of the test records."""
        return in_order_of(self.trainer, self.records if share is None else share, records)


def _tag_answered(tagger: Tagger, records: Sequence[Record], mode: str) -> list[Record]:
    """Tag the records that have an answer; their labels are those of the data."""
    return tagger.tag(answered(records))


def _clocks(watch: Stopwatch) -> dict[str, float]:
    """Return the seconds of a watch by phase, those of the processor under ``CPU`` and the name."""
    return {**watch.seconds, **{CPU + name: spent for name, spent in watch.cpu_seconds.items()}}


def _watch(tagger: Tagger) -> Stopwatch:
    """Return a tagger's own watch, or one that stands still where it has none."""
    watch: Stopwatch = getattr(tagger, "watch", None) or Stopwatch()
    return watch


def check_method_names(names: Iterable[str]) -> None:
    """Refuse methods that tables or files could not tell apart.

    Raises:
        LovecError: two have the same name, or names that differ only in what is left out of file names.
    """
    by_file: dict[str, str] = {}
    for name in (CONSTANT, VANILLA, *names):
        file = tagged_file(name, ITERATIVE)
        if file in by_file:
            raise LovecError(
                f"two rows of the test would be called {by_file[file]!r} and {name!r}, expected names that differ in "
                "letters or digits; give one another name (name of a baseline, evaluation.name, or key in adapters)"
            )
        by_file[file] = name
