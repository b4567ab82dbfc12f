"""Every row of the paper's main table in one test: baselines and trained adapters on one base, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from lovec.evaluation.measurement import VANILLA, Measurement
from lovec.evaluation.module import EvaluationModule
from lovec.types import LovecError, Record


class Comparison(EvaluationModule):
    """Loads a base model once and measures it bare, with every adapter, and with every baseline.

    Beside ``results.json``, ``times.json`` and the tagged records it writes ``tokens.json``: what the model and each
    adapter would say next after an opening tag. ``times.json`` also says how long plain answers take to write, since
    whoever judges an answer afterwards waits for it first.

    Args:
        adapters: what tables call a method, and the folder of its PEFT adapter; "" leaves a method out.
        hybrids: pairs of baselines, adapters or "Vanilla", whose mean confidences are measured as well.
        kwargs: arguments of ``PolicyModule``: policy, evaluation, engine, oracle, seed, baselines. Those of training
            are taken, so that the overlay of a model fits this recipe, too; nothing is trained.

    Raises:
        LovecError: a hybrid is not of two methods that are measured, or the adapters are given elsewhere.
    """

    def __init__(
        self, adapters: dict[str, str] | None = None, hybrids: list[list[str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.adapters = {name: path for name, path in (adapters or {}).items() if path}
        self.hybrids = hybrids or []
        if self.policy_config.adapter or self.evaluation.adapter:
            raise LovecError("Comparison takes its adapters by name: --model.adapters.NAME FOLDER, and no other")
        known = [VANILLA] if self.evaluation.vanilla else []
        known += [*(baseline.name for baseline in self.baselines), *self.adapters]
        for pair in self.hybrids:
            if len(set(pair)) != 2 or not set(pair) <= set(known):
                raise LovecError(f"hybrids holds {pair}, expected two of the methods measured: {', '.join(known)}")

    def configure_callbacks(self) -> list[Any]:
        """None; anything but a test is refused here, before anything is loaded."""
        if self.trainer.state.fn != TrainerFn.TESTING or self.trainer.ckpt_path is not None:
            raise LovecError(
                "Comparison measures adapters that are trained already: run `lovec test --config comparison.yaml` "
                "without a checkpoint; train them with recipes of their own, such as dpo.yaml"
            )
        return []

    @property
    def methods(self) -> dict[str, str | None]:
        """Every method and its adapter."""
        return dict(self.adapters)

    def tested_adapter(self) -> str | None:
        """None: adapters are put on one by one."""
        return None

    def on_test_epoch_start(self) -> None:
        """Keep what the hybrids are made of."""
        self.measurement = Measurement(self, {name for pair in self.hybrids for name in pair})

    def test_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Take the records; every method tags all of them before the next one is put on."""
        self.measurement.records += rows

    def on_test_epoch_end(self) -> None:
        """Fill ``results`` and write all files."""
        measured = self.measurement
        tokens = []
        if self.evaluation.vanilla:
            measured.vanilla()
            with measured.using_adapter(None):
                tokens += measured.tokens(VANILLA)
        measured.constant()
        measured.answers()
        measured.baselines(self.baselines)
        for name, path in self.adapters.items():
            rank_zero_info(f"{name} tags")
            with measured.using_adapter(path):
                measured.all_modes()
                measured.method(name)
                tokens += measured.tokens(name)
        for first, second in self.hybrids:
            measured.hybrid(first, second)
        measured.save("tokens.json", tokens)
        self.results = measured.write()
