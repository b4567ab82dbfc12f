"""All rows of the paper's main table in one test: baselines and trained adapters on one base model, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info

from lovec.core.settings import NO_EFFECT, PlainWord
from lovec.evaluation.measurement import VANILLA
from lovec.evaluation.module import EvaluationModule
from lovec.taggers import FreeFormTagger, IterativeTagger
from lovec.types import FREE_FORM, LovecError, Record


class Comparison(EvaluationModule):
    """Loads a base model once and measures it bare, with every adapter, and with every baseline.

    Beside ``results.json``, ``times.json`` and the tagged records it writes ``tokens.json``: the most probable tokens
    of the base model and of each adapter after an opening tag word. Where free-form answers are measured,
    ``times.json`` also says how long plain answers take to write, since a baseline that judges answers has to wait for
    them first. It can be tested, not trained; validation and prediction use the base model.

    Args:
        adapters: folder of a PEFT adapter by the name of its method in tables; "" leaves a method out.
        hybrids: pairs of baselines, adapters or "Vanilla" whose mean confidences are measured as well.
        optimizer: ignored, as are the next three: the overlay of a model sets them for training, and fits this, too.
        lr_scheduler: ignored.
        micro_batch_tokens: ignored.
        grad_norm: ignored.
        kwargs: arguments of ``EvaluationModule``: policy, evaluation, engine, oracle, seed, baselines.

    Raises:
        LovecError: a hybrid is not made of two methods that are measured, or the adapters are given elsewhere.
    """

    def __init__(
        self,
        adapters: dict[str, str] | None = None,
        hybrids: list[list[PlainWord]] | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler: LRSchedulerCallable | None = None,
        micro_batch_tokens: Annotated[int | None, NO_EFFECT] = None,
        grad_norm: Annotated[float | None, NO_EFFECT] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.adapters = {name: os.fspath(path) for name, path in (adapters or {}).items() if path}
        self.hybrids = hybrids or []
        if self.policy_config.adapter or self.evaluation.adapter:
            raise LovecError("Comparison takes its adapters by name: --model.adapters.NAME FOLDER, and no other")
        methods = [VANILLA] if self.evaluation.vanilla else []
        methods += [*(baseline.name for baseline in self.baselines), *self.adapters]
        for pair in self.hybrids:
            if len(set(pair)) != 2 or not set(pair) <= set(methods):
                raise LovecError(f"hybrids contains {pair}, expected two of the methods measured: {', '.join(methods)}")

    @property
    def methods(self) -> dict[str, str | None]:
        """Every method and its adapter."""
        return dict(self.adapters)

    def tested_adapter(self) -> str | None:
        """Return None: adapters are loaded one by one."""
        return None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint, since its adapter would not be measured."""
        raise LovecError("Comparison measures the adapters in --model.adapters, no checkpoint: omit --ckpt_path")

    def on_test_epoch_start(self) -> None:
        """Read the calibrations of all adapters, and start a measurement that keeps the methods of the hybrids."""
        self._calibrated = {name: self.served_confidence_of(path) for name, path in self.adapters.items()}
        super().on_test_epoch_start()
        self.measurement.keep = {name for pair in self.hybrids for name in pair}

    def test_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Collect the records; each method tags all of them before the next one is loaded."""
        self.measurement.records += rows

    def on_test_epoch_end(self) -> None:
        """Measure everything, set ``results`` and write all files."""
        measurement = self.measurement
        tokens = []
        if self.evaluation.vanilla:
            measurement.measure_vanilla()
            with measurement.using_adapter(None):
                tokens += measurement.next_tokens(VANILLA)
        measurement.measure_constant()
        if FREE_FORM in measurement.evaluator.modes:
            measurement.time_answers()
        measurement.measure_baselines(self.baselines)
        for name, path in self.adapters.items():
            rank_zero_info(f"{name} tags")
            served = self._calibrated[name]
            for mode, tagger in measurement.evaluator.taggers.items():
                if isinstance(tagger, IterativeTagger | FreeFormTagger):
                    tagger.likelihoods = served.needs_likelihoods(mode)
            with measurement.using_adapter(path):
                measurement.tag_all()
                measurement.finish_method(name, served)
                tokens += measurement.next_tokens(name)
        for first, second in self.hybrids:
            measurement.measure_hybrid(first, second)
        measurement.write_json("tokens.json", tokens)
        self.results = measurement.results
        measurement.write()
