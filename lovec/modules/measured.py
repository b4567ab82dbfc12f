"""A policy that is loaded, tagged with and measured: validation, test and prediction for every objective."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lovec.baselines import ConstantTagger, Isotonic, best_constant
from lovec.baselines.recalibrated import recalibrated
from lovec.datasets.jsonl import record_to_dict, write_records
from lovec.encoding import INSTRUCTION, Encoder
from lovec.engines import TransformersEngine
from lovec.metrics.records import READOUTS, sentence_pairs
from lovec.modules.checkpoints import KEY, AtomicCheckpointIO, check_adapters, keep_adapters, read_checkpoint
from lovec.modules.evaluation import EvaluationConfig, Evaluator, tagged_file
from lovec.modules.models import resolve_model
from lovec.policy import Policy, PolicyConfig, is_adapter
from lovec.tags import TagFormat
from lovec.types import Engine, LovecError, Oracle, Record

VANILLA = "Vanilla"
CONSTANT = "Best constant"
ISOTONIC = " + isotonic"


class MeasuredModule(LightningModule):
    """Holds a LoRA policy and measures its calibration; ``PolicyModule`` adds training.

    Args:
        policy: the model and its adapter.
        evaluation: validation and test settings.
        engine: samples and scores; null is the transformers engine.
        oracle: labels free-form answers; null takes the data's own, if it has one.
        seed: with the step and the rank, the only source of randomness in a training step (a fresh adapter starts
            from torch's own seed, which ``--seed_everything`` sets).
    """

    uses_dropout: ClassVar[bool] = False
    needs_reference: bool = False

    policy: Policy
    encoder: Encoder
    evaluator: Evaluator

    def __init__(
        self,
        policy: PolicyConfig,
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008 - the CLI reads the defaults from here
        engine: Engine | None = None,
        oracle: Oracle | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.strict_loading = False  # checkpoints hold adapters only; on_load_checkpoint checks their names
        self.policy_config = policy
        self.evaluation = evaluation
        self.engine: Engine = engine or TransformersEngine(max_rows=evaluation.rows)
        self.oracle = oracle
        self.seed = seed
        self.results: list[dict[str, Any]] = []
        self._tested: list[Record] = []
        self._tagged: dict[str, list[Record]] = {}

    @property
    def run_dir(self) -> Path:
        """Folder of the run: trainer.default_root_dir."""
        return Path(self.trainer.default_root_dir)

    # Loading

    def setup(self, stage: str) -> None:
        """Write checkpoints whole or not at all."""
        self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()

    def configure_model(self) -> None:
        """Load base and adapter, once. Outside ``fit`` the adapter is the one the run has written."""
        data = getattr(self.trainer, "datamodule", None)
        if "policy" not in self._modules:
            self._model = resolve_model(self.policy_config.model)
            config = replace(self.policy_config, model=self._model)
            if (path := self.trainer.ckpt_path) is not None:
                self.policy = Policy(config, self.uses_dropout, held=read_checkpoint(path)[KEY])
            else:
                fitting = self.trainer.state.fn == TrainerFn.FITTING
                if not fitting:
                    config.adapter = self.evaluation.adapter or str(self.run_dir / "adapter")
                self.policy = Policy(config, self.uses_dropout, reference=self.needs_reference and fitting)
            self.policy.train()  # from_pretrained leaves models in eval mode
            instruction = config.instruction or getattr(data, "instruction", None) or INSTRUCTION
            self.encoder = Encoder(self.policy.tokenizer, instruction, TagFormat(*config.tag_words))
        oracle = self.oracle or getattr(data, "oracle", None)
        domains = getattr(data, "domains", ("in-domain",))
        self.evaluator = Evaluator(self.engine, self.encoder, oracle, self.evaluation, domains)
        self._attach_oracle()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep adapters only, and what is needed to build them again."""
        keep_adapters(checkpoint)
        checkpoint[KEY] = self.policy.shape

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the adapters' shape from the checkpoint, and refuse weights that do not fit it."""
        held = checkpoint.get(KEY)
        if held is not None and held != self.policy.shape:  # the trainer told us of the checkpoint too late
            self.policy = Policy(replace(self.policy_config, model=self._model), self.uses_dropout, held=held)
            self.policy.train()
            self._attach_oracle()
        check_adapters(checkpoint, {name for name in self.state_dict() if is_adapter(name)})

    def _attach_oracle(self) -> None:
        """Give the policy to an oracle that judges with it."""
        if (attach := getattr(self.evaluator.oracle, "attach", None)) is not None:
            attach(self.policy, self.encoder)

    # Validation

    def on_validation_epoch_start(self) -> None:
        """Let the engine take the newest adapter."""
        self.engine.sync(self.policy)

    def validation_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure rows in every mode."""
        for mode in self.evaluator.modes:
            self.evaluator.update(mode, self.evaluator.tag(rows, mode))

    def on_validation_epoch_end(self) -> None:
        """Log ``val/...`` of the first mode and ``val/<mode>/...`` of the others, in domain."""
        prefixes = {("sentence", "argmax"): "", ("passage", "argmax"): "passage_", ("sentence", "mean"): "mean_"}
        for row in self.evaluator.rows():
            prefix = prefixes.get((row["level"], row["readout"]))
            if prefix is None or row["domain"] != self.evaluator.domains[0]:
                continue
            place = "val/" if row["mode"] == self.evaluator.modes[0] else f"val/{row['mode']}/"
            names = ("brier", "ece_m", "spearman", "malformed", "mean_confidence", "mean_factuality")
            for name in names if prefix else (*names, "entropy", "distinct", "words"):  # those are the same everywhere
                value = row[name]  # already reduced over processes by the metric itself
                self.log(f"{place}{prefix}{name}", float("nan") if value is None else value, rank_zero_only=False)

    # Test

    def on_test_epoch_start(self) -> None:
        """Let the engine take the newest adapter; choose the best constant while nothing can be lost."""
        self.engine.sync(self.policy)
        self._tested, self._tagged, self.results = [], {}, []
        data = getattr(self.trainer, "datamodule", None)
        self._validation = [] if data is None else data.load("validation")
        self._constant = best_constant(self._validation)
        if self._constant is None and "iterative" in self.evaluator.modes:
            rank_zero_info(f"the row {CONSTANT!r} is left out: no validation record has a label to choose it by")

    def test_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure rows in every mode."""
        self._tested += rows
        self._measure(rows)

    def on_test_epoch_end(self) -> None:
        """Fill ``results`` with this method and what it is held against; write them and every tagged record."""
        method, tagged = self.evaluation.name or type(self).__name__, self._tagged
        self._finish(method)
        if self.evaluation.recalibrated:
            self._run_recalibrated(method, tagged)
        if self.evaluation.vanilla:
            self._run_vanilla()
        self._run_constant()
        if self.trainer.is_global_zero:
            path = self.run_dir / "test" / "results.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            rank_zero_info(f"results and tagged records written to {path.parent}")

    def _measure(self, rows: Sequence[Record]) -> None:
        for mode in self.evaluator.modes:
            tagged = self.evaluator.tag(rows, mode)
            self._tagged.setdefault(mode, []).extend(tagged)
            self.evaluator.update(mode, tagged)

    def _run_recalibrated(self, method: str, tagged: dict[str, list[Record]]) -> None:
        """This method's confidences, mapped as validation records of the same mode and readout ask for.

        Every process tags its share of the validation records, and all fit the same map.
        """
        share = self._validation[self.global_rank :: self.trainer.world_size]
        held: dict[str, list[Record]] = {}
        with self.trainer.precision_plugin.test_step_context():
            for mode in self.evaluator.modes:
                own = [r for rows in _chunks(share, self.evaluation.rows) for r in self.evaluator.tag(rows, mode)]
                held[mode] = self._gather(own)
        for readout in READOUTS:
            fitted = []
            for mode in self.evaluator.modes:
                confidence, factuality, _ = sentence_pairs(held[mode], readout)
                try:
                    calibrator = Isotonic.fit(confidence, factuality)
                except LovecError as error:
                    rank_zero_warn(f"no row {method + ISOTONIC!r} for {mode} tagging, {readout} readout: {error}")
                    continue
                self._tagged[mode] = recalibrated(tagged.get(mode, []), calibrator, readout)
                self.evaluator.update(mode, self._tagged[mode])
                fitted.append(mode)
            # A mapped confidence is a sentence's only one, so it is read as a stated score, whatever it was made from.
            self._finish(method + ISOTONIC, fitted, ("argmax",), shown=readout)

    def _run_vanilla(self) -> None:
        with self.policy.bare(), self.trainer.precision_plugin.test_step_context():
            self.engine.sync(self.policy)
            for rows in _chunks(self._tested, self.evaluation.rows):
                self._measure(rows)
        self.engine.sync(self.policy)
        self._finish(VANILLA)

    def _run_constant(self) -> None:
        """The best single score of the validation labels, said of every test sentence."""
        if self._constant is None or "iterative" not in self.evaluator.modes:
            return
        tagged = ConstantTagger(self._constant).tag([record for record in self._tested if record.sentences])
        self._tagged["iterative"] = tagged
        self.evaluator.update("iterative", tagged)
        self._finish(CONSTANT, ("iterative",), ("argmax",))

    def _finish(
        self,
        method: str,
        modes: Sequence[str] | None = None,
        readouts: Sequence[str] = READOUTS,
        shown: str | None = None,
    ) -> None:
        """Move the suites' figures into ``results``, as readout ``shown`` if given, and the tagged records to disk."""
        modes = self.evaluator.modes if modes is None else modes
        for row in self.evaluator.rows(method=method, seed=self.seed):
            if row["mode"] in modes and row["readout"] in readouts:
                self.results.append({**row, "readout": shown or row["readout"]})
        for mode in modes:  # not only those with records here: every process must take part
            everything = self._gather(self._tagged.get(mode, []))
            if self.trainer.is_global_zero:
                write_records(self.run_dir / "test" / tagged_file(method, mode, shown or "argmax"), everything)
        self._tagged = {}

    # Prediction

    def on_predict_epoch_start(self) -> None:
        """Let the engine take the newest adapter."""
        self.engine.sync(self.policy)
        self._tagged = {}

    def predict_step(self, rows: Sequence[Record], batch_idx: int) -> list[dict[str, Any]]:
        """Tag stored answers where there are some, and let the model answer the other questions.

        Returns:
            The records as dictionaries (Lightning takes no frozen dataclasses).
        """
        tagged: dict[str, Record] = {}
        given = [record for record in rows if record.sentences]
        open_ = [record for record in rows if not record.sentences]
        for mode, own in (("iterative", given), ("free-form", open_)):
            tagged.update({record.id: record for record in self.evaluator.taggers[mode].tag(own)})
        ordered = [tagged[record.id] for record in rows]
        self._tagged.setdefault("predictions", []).extend(ordered)
        return [record_to_dict(record) for record in ordered]

    def on_predict_epoch_end(self) -> None:
        """Write ``predictions.jsonl`` in the run's folder."""
        everything = self._gather(self._tagged.get("predictions", []))
        if self.trainer.is_global_zero:
            path = self.run_dir / "predictions.jsonl"
            write_records(path, everything)
            rank_zero_info(f"{len(everything)} tagged records written to {path}")

    def _gather(self, records: list[Record]) -> list[Record]:
        """Records of all processes in the order of the data, on every process."""
        if self.trainer.world_size == 1:
            return records
        parts: list[list[Record]] = [[] for _ in range(self.trainer.world_size)]
        dist.all_gather_object(parts, records)
        # A process was served every world-th record, so turn by turn gives their order back.
        return [record for turn in zip_longest(*parts) for record in turn if record is not None]


def _chunks(rows: Sequence[Record], size: int) -> Iterator[Sequence[Record]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
