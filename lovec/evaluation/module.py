"""A policy that is loaded, tagged with and measured: validation, test and prediction for every objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from lovec.baselines import Baseline, Bench, Samples, Wording
from lovec.datasets.jsonl import record_to_dict, write_records
from lovec.encoding import INSTRUCTION, Encoder
from lovec.engines import TransformersEngine
from lovec.evaluation.evaluator import EvaluationConfig, Evaluator, given
from lovec.evaluation.measurement import Measurement, check_rows, in_turn
from lovec.policy import Policy, PolicyConfig, check_adapter, is_adapter
from lovec.policy.checkpoints import KEY, AtomicCheckpointIO, check_adapters, keep_adapters, read_checkpoint
from lovec.taggers import FreeFormTagger, IterativeTagger
from lovec.taggers.models import resolve_model
from lovec.tags import TagFormat
from lovec.types import Engine, LovecError, Oracle, Record, Sampling, Tagger


class EvaluationModule(LightningModule):
    """Holds a LoRA policy and measures its calibration; ``PolicyModule`` adds training.

    Args:
        policy: the model and its adapter.
        evaluation: validation and test settings.
        engine: samples and scores; null is the transformers engine.
        oracle: labels free-form answers; null takes the data's own, if it has one.
        seed: with the step and the rank, the only source of randomness in a training step (a fresh adapter starts
            from torch's own seed, which ``--seed_everything`` sets).
        baselines: other ways to get confidences, which ``test`` also measures, on stored answers; null is none.
    """

    uses_dropout: ClassVar[bool] = False
    needs_reference: bool = False

    policy: Policy
    encoder: Encoder
    _bench: Bench
    evaluator: Evaluator
    measurement: Measurement

    def __init__(
        self,
        policy: PolicyConfig,
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008 - the CLI reads the defaults from here
        engine: Engine | None = None,
        oracle: Oracle | None = None,
        seed: int = 0,
        baselines: list[Baseline] | None = None,
    ) -> None:
        super().__init__()
        self.strict_loading = False  # checkpoints hold adapters only; on_load_checkpoint checks their names
        self.policy_config = policy
        self.evaluation = evaluation
        self.engine: Engine = engine or TransformersEngine(max_rows=evaluation.rows)
        self.oracle = oracle
        self.seed = seed
        self.baselines = baselines or []
        self.results: list[dict[str, Any]] = []
        self._predicted: list[Record] = []

    @property
    def methods(self) -> dict[str, str | None]:
        """What a test measures: names for tables and files, and adapters to put on; None is what is worn already."""
        return {self.evaluation.name or type(self).__name__: None}

    @property
    def run_dir(self) -> Path:
        """Folder of the run: trainer.default_root_dir."""
        return Path(self.trainer.default_root_dir)

    # Loading

    def setup(self, stage: str) -> None:
        """Write checkpoints whole or not at all; refuse what cannot be measured before anything is loaded."""
        self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if stage == "test":
            check_rows([*self.methods, *(baseline.name for baseline in self.baselines)])
            for adapter in [*self.methods.values(), *(baseline.adapter for baseline in self.baselines)]:
                if adapter is not None:
                    check_adapter(adapter)

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
                    config.adapter = self.tested_adapter()
                self.policy = Policy(config, self.uses_dropout, reference=self.needs_reference and fitting)
            self.policy.train()  # from_pretrained leaves models in eval mode
            instruction = config.instruction or getattr(data, "instruction", None) or INSTRUCTION
            self.encoder = Encoder(self.policy.tokenizer, instruction, TagFormat(*config.tag_words))
        samples = Samples(max_new_tokens=self.evaluation.max_new_tokens, seed=self.seed)
        wording = getattr(data, "wording", None) or Wording()
        self._bench = Bench(self.engine, self.encoder, wording, samples, getattr(data, "judge", None))
        oracle = self.oracle or getattr(data, "oracle", None)
        domains = getattr(data, "domains", ("in-domain",))
        self.evaluator = Evaluator(self.taggers(), oracle, self.evaluation, domains)
        self._attach_oracle()

    def tested_adapter(self) -> str | None:
        """The adapter that is measured outside ``fit``; None takes a fresh one, which changes nothing."""
        return self.evaluation.adapter or str(self.run_dir / "adapter")

    def bench(self) -> Bench:
        """What baselines work with, the data's own words and judge among it; one for all of a test."""
        return self._bench

    def taggers(self) -> dict[str, Tagger]:
        """What tags in each mode, with the engine and the encoder as they are; a mode may be left out."""
        sampling = Sampling(max_new_tokens=self.evaluation.max_new_tokens)
        return {
            "iterative": IterativeTagger(self.engine, self.encoder, history=self.evaluation.history),
            "free-form": FreeFormTagger(self.engine, self.encoder, sampling, distributions=True),
        }

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
            lent = {} if self.engine.shares_model else {"engine": self.engine}
            attach(self.policy, self.encoder, **lent)

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
        prefixes = {("sentence", "stated"): "", ("passage", "stated"): "passage_", ("sentence", "mean"): "mean_"}
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
        self.measurement = Measurement(self)

    def test_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure rows in every mode."""
        self.measurement.records += rows
        self.measurement.tag(rows)

    def on_test_epoch_end(self) -> None:
        """Fill ``results`` with this method and what it is held against; write them and every tagged record."""
        measured = self.measurement
        (name,) = self.methods
        measured.method(name)
        if self.evaluation.vanilla:
            measured.vanilla()
        measured.constant()
        measured.baselines(self.baselines)
        self.results = measured.write()

    # Prediction

    def on_predict_epoch_start(self) -> None:
        """Let the engine take the newest adapter."""
        self.engine.sync(self.policy)
        self._predicted = []

    def predict_step(self, rows: Sequence[Record], batch_idx: int) -> list[dict[str, Any]]:
        """Tag stored answers where there are some, and let the model answer the other questions.

        Returns:
            The records as dictionaries (Lightning takes no frozen dataclasses).
        """
        tagged: dict[str, Record] = {}
        for mode, own in (("iterative", given(rows)), ("free-form", [r for r in rows if not r.sentences])):
            if own and mode not in self.evaluator.taggers:
                raise LovecError(f"record {own[0].id!r} needs {mode} tagging, which {type(self).__name__} cannot do")
            if own:
                tagged.update({record.id: record for record in self.evaluator.taggers[mode].tag(own)})
        ordered = [tagged[record.id] for record in rows]
        self._predicted += ordered
        return [record_to_dict(record) for record in ordered]

    def on_predict_epoch_end(self) -> None:
        """Write ``predictions.jsonl`` in the run's folder."""
        everything = in_turn(self.trainer, self._predicted)
        if self.trainer.is_global_zero:
            path = self.run_dir / "predictions.jsonl"
            write_records(path, everything)
            rank_zero_info(f"{len(everything)} tagged records written to {path}")
