"""A policy that is loaded, tagged with and measured: validation, test and prediction for every objective."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from inspect import get_annotations, signature
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from lightning.pytorch import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_info

from lovec.baselines import Baseline, BaselineResources, Samples, Wording
from lovec.core.files import check_writable, same_content
from lovec.core.notices import counted
from lovec.core.plain import nested
from lovec.core.progress import doing
from lovec.core.provenance import Provenance, weights_of
from lovec.core.settings import NO_EFFECT, CheckedSettings, Seed
from lovec.datasets.jsonl import record_to_dict, write_records
from lovec.encoding import Encoder, Grounding, Scoring
from lovec.encoding.grounding import encoder_of
from lovec.engines import TransformersEngine
from lovec.evaluation.evaluator import EvaluationConfig, Evaluator
from lovec.evaluation.measurement import Measurement, check_method_names
from lovec.evaluation.processes import barrier, gather, in_data_order, load_policy, raise_on_all_ranks
from lovec.evaluation.prompting import (
    grounding_in,
    grounding_of,
    instruction_of,
    scoring_of,
    template_of,
    trained_grounding,
)
from lovec.evaluation.run_folders import UNFINISHED, TestFolder, predictions_file, set_aside
from lovec.evaluation.stopping import SignalConnector
from lovec.models import absolute_name, resolve_model
from lovec.policy import Policy, PolicyConfig, check_adapter, load_stops
from lovec.policy.checkpoints import (
    KEY,
    AtomicCheckpointIO,
    adapter_shape,
    check_state,
    keep_trained,
    read_checkpoint,
)
from lovec.policy.fingerprint import (
    FINGERPRINT,
    MEASURED,
    PARTS,
    SCORING,
    START,
    Part,
    base_part,
    differences,
    prompt_part,
    scoring_in,
    start_of,
)
from lovec.taggers import FreeFormTagger, IterativeTagger
from lovec.taggers.served_confidence import ServedConfidence, with_mean_readout
from lovec.taggers.session import adapter_folder, policy_provenance
from lovec.tags import TagFormat
from lovec.types import (
    DEFAULT_SCALE,
    FREE_FORM,
    ITERATIVE,
    MODES,
    Engine,
    LovecError,
    NoTrainingLabels,
    Oracle,
    Record,
    ResultRow,
    Sampling,
    Scale,
    Tagger,
    check_ready,
)


class Weights(NamedTuple):
    """Weights of a file, as they were when it was looked at.

    Attributes:
        path: folder of an adapter, or file of a checkpoint; None for the base alone.
        digest: see ``weights_of``; None where there are none.
    """

    path: str | None
    digest: str | None

    @classmethod
    def of(cls, path: str | None) -> Weights:
        """Return those that are there now."""
        return cls(path, weights_of(path))


class EvaluationModule(LightningModule, CheckedSettings):
    """Holds a LoRA policy and measures its calibration; ``PolicyModule`` adds training.

    Args:
        policy: the model and its adapter.
        evaluation: validation and test settings.
        engine: samples and scores; null is the transformers engine.
        oracle: labels free-form answers; null takes the data's own, if it has one.
        seed: with the step and the rank, the only source of randomness in a training step (a fresh adapter starts
            from torch's own seed, which ``--seed_everything`` sets).
        baselines: other ways to get confidences, which ``test`` also measures, on stored answers; null is none.

    Attributes:
        results: the rows of the last test.
        scale: the levels of confidence that the policy's tags can state.
        recipe_settings: settings that decide what is learned, see ``lovec.policy.fingerprint.settings_part``. The
            command line fills them in; a run from Python has none, and they are not compared.
        ckpt_despite: parts of a checkpoint's fingerprint that may differ from this run.

    Raises:
        LovecError: the words of the scale cannot be told apart, see ``lovec.types.Scale``, or the seed is out of range.
    """

    uses_dropout: ClassVar[bool] = False
    takes_partly_labelled: ClassVar[bool] = False
    needs_reference: bool = False

    policy: Policy
    encoder: Encoder
    baseline_resources: BaselineResources
    evaluator: Evaluator
    measurement: Measurement

    def __init__(
        self,
        policy: PolicyConfig,
        evaluation: Annotated[EvaluationConfig, NO_EFFECT] = EvaluationConfig(),  # noqa: B008 - read by the CLI
        engine: Annotated[Engine | None, NO_EFFECT] = None,
        oracle: Oracle | None = None,
        seed: Seed = 0,
        baselines: Annotated[list[Baseline] | None, NO_EFFECT] = None,
    ) -> None:
        super().__init__()
        self.strict_loading = False  # checkpoints leave out the base; on_load_checkpoint checks their names
        self.policy_config = policy
        self.scale = DEFAULT_SCALE if policy.scale is None else Scale(tuple(policy.scale))
        self.evaluation = evaluation
        self.engine: Engine = engine or TransformersEngine(max_rows=evaluation.rows)
        self.oracle = oracle
        self.seed = seed
        self.baselines = baselines or []
        self.recipe_settings: Part = {}
        self.ckpt_despite: frozenset[str] = frozenset()
        self._run = self._started = time.time()
        self._checkpoint: str | None = None  # that the weights come from, or will come from
        self._held: Weights | None = None  # None: of no file, as while they are trained
        self._trainable = False
        self.results: list[ResultRow] = []
        self.validation_results: list[ResultRow] = []
        self._predicted: list[Record] = []

    @property
    def tags(self) -> TagFormat:
        """The tag words and the scale that the policy writes."""
        return TagFormat(*self.policy_config.tag_words, self.scale)

    @property
    def methods(self) -> dict[str, str | None]:
        """What a test measures: the adapter, by its name in tables and files; None is the one that is loaded."""
        return {self.evaluation.name or type(self).__name__: None}

    @property
    def run_dir(self) -> Path:
        """Folder of the run: trainer.default_root_dir."""
        return Path(self.trainer.default_root_dir)

    # Loading

    def setup(self, stage: str) -> None:
        """Make checkpoints atomic, and refuse what cannot be measured or written before anything is loaded."""
        self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        SignalConnector.of(self.trainer)
        if stage != "validate" and self.trainer.is_global_zero:
            check_writable(self.run_dir / "test" if stage == "test" else self.run_dir)
        if self.asks_oracle(stage):
            check_ready(self._oracle)
        if stage == "test":
            self._check_answers()
            for baseline in self.baselines if ITERATIVE in self.evaluation.modes else ():
                baseline.check_ready()
            check_method_names([*self.methods, *(baseline.name for baseline in self.baselines)])
            for adapter in [*self.methods.values(), *(baseline.adapter for baseline in self.baselines)]:
                if adapter is not None:
                    model = resolve_model(self.policy_config.model, self.policy_config.dtype)
                    check_adapter(adapter, model, self.policy_config.any_base)

    def _check_answers(self) -> None:
        """Refuse test records of which none has an answer, where no oracle rates those that the model writes."""
        modes, data = self.evaluation.modes, getattr(self.trainer, "datamodule", None)
        if data is None or ITERATIVE not in modes or (FREE_FORM in modes and self._oracle is not None):
            return
        records: Sequence[Record] = data.loaded("test")
        if records and not any(record.sentences for record in records):
            reason = "have no oracle" if FREE_FORM in modes else "are not in evaluation.modes"
            raise LovecError(
                f"there is nothing to measure: none of {counted(len(records), 'test record')} of {data.title} has an "
                f"answer, and free-form answers {reason}; give labelled answers (--data.labels, --data.test_path), or "
                "let the model answer and an oracle rate the answers (--model.oracle)"
            )

    def configure_model(self) -> None:
        """Load base and adapter, where the module does not hold them. Outside ``fit`` it is the one of the run."""
        connector: Any = self.trainer._checkpoint_connector
        # A path that was given to a method is known only when it is read; until then an earlier one may be there.
        self._checkpoint = str(self.trainer.ckpt_path) if connector._user_managed else None
        self._load()
        self._prepare()

    def _load(self) -> None:
        """Load the policy, unless it is the one that is trained, or holds the weights that are measured.

        A policy that was loaded to be measured is not trained, since it has no reference.
        """
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        measured = None if fitting or self._checkpoint is not None else Weights.of(self._measured_file)
        if "policy" in self._modules:
            kept = self._checkpoint is not None or (self._trainable if fitting else measured == self._held)
            # Where there is no adapter, a checkpoint that is read next may take its place.
            if gather(self.trainer, kept or (measured is not None and measured.digest is None))[0]:
                if fitting:
                    self._held = None
                return
        self._held, self._trainable = None, fitting
        model = resolve_model(self.policy_config.model, self.policy_config.dtype)
        self._config = config = replace(self.policy_config, model=model, chat_template=self._template())
        if self._checkpoint is not None:
            self._load_policy(config, checkpoint_shape=adapter_shape(read_checkpoint(self._checkpoint)))
        else:
            if not fitting:
                config = replace(config, adapter=self.tested_adapter())
            self._load_policy(config, reference=self.needs_reference and fitting, trained=fitting)
            self._held = measured
        if fitting and self.policy.adapted_note is not None:
            rank_zero_info(self.policy.adapted_note)
        if fitting and self.policy.packing_disabled_reason is not None:
            rank_zero_info(
                f"rows are padded, and shared prefixes are not reused: {self.policy.packing_disabled_reason}"
            )

    def _prepare(self) -> None:
        """Make ready what prompts, tags and measures, for the policy and the data at hand."""
        data = getattr(self.trainer, "datamodule", None)
        # The instruction of the data speaks of 0 to 10.
        instruction = self._instruction(getattr(data, "instruction", None) if self.scale == DEFAULT_SCALE else None)
        grounding = self._grounding(getattr(data, "grounding", None) if self.scale == DEFAULT_SCALE else None)
        prompting = instruction, self.tags, self._scoring(), grounding
        encoder = encoder_of(self.policy.tokenizer, *prompting, load_stops(self._config))
        self.encoder = encoder.within(self.policy.max_length)
        self.__dict__.pop("_prompt", None)  # it was that of another encoder
        self._served = self._served_confidence()
        self.baseline_resources = BaselineResources(
            self.engine,
            self.encoder,
            wording=getattr(data, "wording", None) or Wording(),
            samples=Samples(max_new_tokens=self.evaluation.max_new_tokens, seed=self.seed),
            judge=getattr(data, "judge", None),
        )
        domains = getattr(data, "domains", ()) or ("in-domain",)
        self.evaluator = Evaluator(self.taggers(), self._oracle, self.evaluation, domains, self.scale.size)
        self._attach_oracle()

    def note_written(self, adapter: str) -> None:
        """Remember that the weights of the policy are those that were just written into the folder of an adapter."""
        self._held = Weights.of(adapter)

    def _instruction(self, of_data: str | None) -> str | None:
        """Return the instruction that asks for tags; None for the paper's. A checkpoint's fingerprint tells its own."""
        own = self.policy_config.instruction
        if self._checkpoint is not None:
            return own or of_data
        training = self.trainer.state.fn == TrainerFn.FITTING
        return instruction_of(self._known_adapters(), self.tags, own, of_data, training)

    def _template(self) -> str | None:
        """Return the file with the chat template, as configured or as adapters say; None for the tokenizer's own.

        Of a checkpoint's run the adapter that it started from tells it, and the fingerprint whether it is the same.
        """
        adapters, start = self._known_adapters(), self.policy_config.adapter
        if self._checkpoint is not None:
            adapters = [] if start is None else [start]
        return template_of(adapters, self.policy_config.chat_template)

    def _scoring(self) -> Scoring:
        """Return what is scored at a tag: as configured, as in the run of the checkpoint, or as the adapters say."""
        if self.policy_config.scoring is not None:
            return self.policy_config.scoring
        if self._checkpoint is not None:
            return scoring_in(read_checkpoint(self._checkpoint).get(FINGERPRINT))
        return scoring_of(self._known_adapters())

    def _grounding(self, of_data: str | None) -> Grounding | None:
        """Return how evidence stands in prompts: as configured, as in the run of the checkpoint, or as adapters say."""
        if self._checkpoint is not None:
            saved = grounding_in(read_checkpoint(self._checkpoint).get(FINGERPRINT))
        else:
            saved = trained_grounding(self._known_adapters(), self.policy_config)
        return grounding_of(saved, self.policy_config, self.tags, of_data)

    def _known_adapters(self) -> list[str]:
        """Return the adapters that training starts from, or that are measured."""
        training = self.trainer.state.fn == TrainerFn.FITTING
        adapter = self.policy_config.adapter if training else self.tested_adapter()
        adapters = [adapter] if training or adapter is not None else [*self.methods.values()]
        return [path for path in adapters if path is not None]

    def _load_policy(self, config: PolicyConfig, **options: Any) -> None:
        """Load the policy in train mode."""
        with doing("loading the model"):
            self.policy = load_policy(self.trainer, lambda: Policy(config, self.uses_dropout, **options))
        self.policy.train()  # from_pretrained leaves models in eval mode

    def tested_adapter(self) -> str | None:
        """Return the adapter that is measured outside ``fit``; None takes a fresh one, which changes nothing."""
        return self.evaluation.adapter or str(self.run_dir / "adapter")

    @property
    def _measured_file(self) -> str | None:
        """The adapter or checkpoint that is measured."""
        if self._checkpoint is not None:
            return self._checkpoint
        adapter = self.tested_adapter()
        return None if adapter is None else adapter_folder(adapter)

    def taggers(self) -> dict[str, Tagger]:
        """Return a tagger per mode, with the current engine and encoder; a mode may be left out."""
        sampling = Sampling(max_new_tokens=self.evaluation.max_new_tokens)
        needs = {mode: self._served.needs_likelihoods(mode) for mode in MODES}
        history = self.evaluation.history
        return {
            ITERATIVE: IterativeTagger(self.engine, self.encoder, history=history, likelihoods=needs[ITERATIVE]),
            FREE_FORM: FreeFormTagger(
                self.engine, self.encoder, sampling, distributions=True, likelihoods=needs[FREE_FORM]
            ),
        }

    def _served_confidence(self) -> ServedConfidence:
        """Return what users of the adapter get as confidences, where a stage measures or uses that of a folder."""
        adapter = self.tested_adapter()
        measures = self.trainer.state.fn in (TrainerFn.TESTING, TrainerFn.PREDICTING) and self._checkpoint is None
        return self.served_confidence_of(adapter) if measures and adapter is not None else ServedConfidence()

    def served_confidence_of(self, adapter: str) -> ServedConfidence:
        """Return what users of an adapter get as confidences.

        Args:
            adapter: its folder, the folder of its run, or its name on the hub.

        Raises:
            LovecError: the calibration beside it was fitted to other scores than this run measures.
        """
        folder = adapter_folder(adapter)
        return ServedConfidence.beside(folder, lambda: self._provenance(folder))

    def _provenance(self, adapter: str) -> Provenance:
        """Return what decides the scores of the adapter in a folder."""
        encoder = self.encoder
        prompting = encoder.instruction, encoder.tags, encoder.scoring, encoder.grounding
        return policy_provenance(self._config, adapter, *prompting)

    @cached_property
    def base_fingerprint(self) -> Part:
        """The part of the fingerprint that tells the base model from others."""
        return base_part(absolute_name(self.policy_config.model), self.policy.model)

    @cached_property
    def _prompt(self) -> Part:
        return prompt_part(self.encoder)

    def fingerprint(self, parts: Sequence[str] = tuple(PARTS)) -> dict[str, Part]:
        """Return what a checkpoint of this run is written with, by part, see ``lovec.policy.fingerprint``.

        Args:
            parts: the parts to return; "data" needs training records that are set up.
        """
        cls = type(self)
        described = getattr(getattr(self.trainer, "datamodule", None), "fingerprint", dict)
        known: Mapping[str, Any] = {
            "base": lambda: self.base_fingerprint,
            "prompt": lambda: self._prompt,
            "objective": lambda: {"class": f"{cls.__module__}.{cls.__qualname__}", "reference": self.needs_reference},
            "data": described,
            "seed": lambda: {"seed": self.seed},
            "settings": lambda: self.recipe_settings | {SCORING: self.encoder.scoring},
        }
        return {part: known[part]() for part in parts}

    def own_names(self) -> set[str]:
        """Return the names of what a subclass has of its own: parameters that require gradients, and buffers.

        They are what it makes itself, as it is or in modules. What lovec's classes declare or are given is not: the
        policy, an oracle.
        """
        named = [name for name, parameter in self.named_parameters() if parameter.requires_grad]
        named += [name for name, _ in self.named_buffers()]
        return {name for name in named if "." not in name or name.partition(".")[0] not in self._of_lovec}

    @cached_property
    def _of_lovec(self) -> set[str]:
        """The names of the attributes that lovec's classes among the bases declare, and of their arguments."""
        bases = [base for base in type(self).__mro__ if base.__module__.partition(".")[0] == "lovec"]
        return {name for base in bases for name in (*get_annotations(base), *signature(base).parameters)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the adapters and what a subclass has of its own, the adapters' shapes, and the fingerprint."""
        keep_trained(checkpoint, self.own_names())
        checkpoint[KEY] = self.policy.shape
        checkpoint[FINGERPRINT] = {"run": self._run, "started": self._started, **self.fingerprint()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another run; build adapters of its shape, and refuse weights that do not fit them."""
        fitting, path = self.trainer.state.fn == TrainerFn.FITTING, str(self.trainer.ckpt_path)
        if not fitting and self._checkpoint != path:  # it was not known when the model was built
            self._checkpoint = path
            self._prepare()
        self._held = None
        start = nested(checkpoint, FINGERPRINT, "settings", START)
        if isinstance(start, str) and self.recipe_settings.get(START, "") is None:
            self.recipe_settings = {**self.recipe_settings, START: start}
        raise_on_all_ranks(self.trainer, self._misfit(checkpoint))
        self._run = start_of(checkpoint, "run") or self._run
        shape = adapter_shape(checkpoint) if KEY in checkpoint else None
        if shape is not None and shape != self.policy.shape:
            self._load_policy(self._config, checkpoint_shape=shape)
            self._attach_oracle()
        check_state(checkpoint, self.state_dict(), self.own_names(), fitting)
        self._held = None if fitting else Weights.of(path)

    def _misfit(self, checkpoint: Mapping[str, Any]) -> str | None:
        """Say why this run cannot use a checkpoint; None if it can."""
        fitting = self.trainer.state.fn == TrainerFn.FITTING
        saved = checkpoint.get(FINGERPRINT)
        found = differences(saved, self.fingerprint(tuple(PARTS) if fitting else MEASURED))
        path, name = self.trainer.ckpt_path, type(self).__name__
        if fitting and "optimizer_states" not in checkpoint:
            return (
                f"{path} holds weights only; it can be tested, but not trained on: use one of save_weights_only false"
            )
        if fitting and "objective" in found and self.needs_reference and not nested(saved, "objective", "reference"):
            return (
                f"{path} was not written by {name} ({found['objective']}), and has not kept the reference that {name} "
                f"needs; to start {name} from what was learned, give --model.policy.adapter FOLDER of that run's "
                "adapter instead of --ckpt_path"
            )
        if not (refused := {part: why for part, why in found.items() if part not in self.ckpt_despite}):
            return None
        return (
            f"{path} does not fit this run: {'; '.join(f'{part}: {why}' for part, why in refused.items())}. The "
            "checkpoint holds its recipe, so leave out what changes it; to use the checkpoint all the same, give "
            f"--ckpt_despite {','.join(sorted({*refused, *self.ckpt_despite}))}"
        )

    @property
    def _oracle(self) -> Oracle | None:
        """The oracle that is given, or that of the data."""
        return self.oracle or getattr(getattr(self.trainer, "datamodule", None), "oracle", None)

    def asks_oracle(self, stage: str) -> bool:
        """Return whether a stage asks the oracle, which then must not lack anything; measuring free-form answers does.

        Args:
            stage: "fit", "validate", "test" or "predict".
        """
        return stage != "predict" and FREE_FORM in self.evaluation.modes

    def _attach_oracle(self) -> None:
        """Give the policy to an oracle that judges with it."""
        if (attach := getattr(self.evaluator.oracle, "attach", None)) is not None:
            attach(self.policy, self.encoder, **({} if self.engine.shares_model else {"engine": self.engine}))

    # Validation

    def on_validation_epoch_start(self) -> None:
        """Update the engine to the current adapter."""
        self._begin()

    def _begin(self) -> None:
        """Update the engine to the current adapter, which outside of training must be the one that is measured."""
        missing = self._held is None or self._held.path != self._measured_file
        if missing and self.trainer.state.fn != TrainerFn.FITTING and (adapter := self.tested_adapter()) is not None:
            check_adapter(adapter, self._config.model, self._config.any_base)
        self.engine.sync(self.policy)

    def validation_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure records in every mode."""
        with self.policy.without_casts():
            for mode in self.evaluator.modes:
                self.evaluator.update(mode, self.evaluator.tag_and_label(rows, mode))

    def on_validation_epoch_end(self) -> None:
        """Log ``val/...`` of the first mode and ``val/<mode>/...`` of the others, in domain."""
        prefixes = {("sentence", "stated"): "", ("passage", "stated"): "passage_", ("sentence", "mean"): "mean_"}
        barrier(self.trainer)
        rows = self.evaluator.rows(method=type(self).__name__, seed=self.seed)
        self.validation_results = [row for row in rows if row.domain == self.evaluator.domains[0]]
        for row in self.validation_results:
            prefix = prefixes.get((row.level, row.readout))
            if prefix is None:
                continue
            place = "val/" if row.mode == self.evaluator.modes[0] else f"val/{row.mode}/"
            for name, value in row.metrics.items():
                logged = self.evaluator.metric_infos[name].logged
                if logged == "always" or (logged == "once" and not prefix):
                    # The metrics are reduced over processes already.
                    self.log(f"{place}{prefix}{name}", float("nan") if value is None else value, rank_zero_only=False)

    # Test

    def on_test_epoch_start(self) -> None:
        """Update the engine to the current adapter, and load what is needed beside the test records."""
        self._begin()
        data = getattr(self.trainer, "datamodule", None)
        validation = [] if data is None else data.load("validation")
        files = {name: adapter_folder(path) if path else self._measured_file for name, path in self.methods.items()}
        held = None if self._held is None else self._held.digest
        weights = {name: weights_of(files[name]) if path else held for name, path in self.methods.items()}
        folders = {name: path for name, path in files.items() if path and weights[name] and Path(path).is_dir()}
        made = {name: self._provenance(path).of_weights() for name, path in folders.items()}
        place = TestFolder(self.run_dir, data, weights, made)
        self.measurement = Measurement(
            self.policy,
            self.baseline_resources,
            self.evaluator,
            self.evaluation,
            self.trainer,
            place,
            self.seed,
            validation,
            self._training(data),
        )

    def _training(self, data: Any) -> Sequence[Record] | NoTrainingLabels:
        """Return the records that baselines learn from, or why there are none; nothing is read where none learns."""
        if data is None or not any(baseline.needs_labels for baseline in self.baselines):
            return []
        try:
            return data.load("train")  # type: ignore[no-any-return]
        except NoTrainingLabels as error:
            return error

    def test_step(self, rows: Sequence[Record], batch_idx: int) -> None:
        """Tag and measure records in every mode."""
        self.measurement.records += rows
        self.measurement.tag(rows)

    def on_test_epoch_end(self) -> None:
        """Measure what the method is compared with, set ``results``, and write them and every tagged record."""
        (name,) = self.methods
        self.measurement.finish_method(name, self._served)
        if self.evaluation.vanilla:
            self.measurement.measure_vanilla()
        self.measurement.measure_constant()
        self.measurement.measure_baselines(self.baselines)
        self.results = self.measurement.results
        self.measurement.write()

    # Prediction

    def on_predict_epoch_start(self) -> None:
        """Update the engine to the current adapter."""
        self._begin()
        self._predicted = []

    def predict_step(self, rows: Sequence[Record], batch_idx: int) -> list[dict[str, Any]]:
        """Tag the stored answers, and let the model answer the questions without one.

        Returns:
            The records as dictionaries (Lightning takes no frozen dataclasses).

        Raises:
            LovecError: the method cannot tag one of the records.
        """
        tagged: dict[int, Record] = {}  # by place, since records may share an id
        for mode, has_answer in ((ITERATIVE, True), (FREE_FORM, False)):
            places = [place for place, record in enumerate(rows) if bool(record.sentences) == has_answer]
            records = [rows[place] for place in places]
            if records and mode not in self.evaluator.taggers:
                raise LovecError(
                    f"record {records[0].id!r} needs {mode} tagging, which {type(self).__name__} cannot do; "
                    f"give records {'without' if mode == ITERATIVE else 'with'} an answer"
                )
            if records:
                answers = with_mean_readout(self.evaluator.taggers[mode].tag(records))
                served = [self._served.record(record, mode) for record in answers]
                tagged.update(zip(places, served, strict=True))
        ordered = [tagged[place] for place in range(len(rows))]
        self._predicted += ordered
        return [record_to_dict(record) for record in ordered]

    def on_predict_epoch_end(self) -> None:
        """Write ``predictions/DATA.jsonl`` into the folder of the run; another file that is there is kept aside."""
        records = in_data_order(self.trainer, self._predicted)
        if self.trainer.is_global_zero:
            path = predictions_file(self.run_dir, getattr(self.trainer, "datamodule", None))
            fresh = path.with_name(path.name + UNFINISHED)
            write_records(fresh, records)
            if path.exists() and not same_content(path, fresh):
                rank_zero_info(f"what was there, of another prediction, is kept in {set_aside(self.run_dir, path)}")
            os.replace(fresh, path)
            rank_zero_info(f"{counted(len(records), 'tagged record')} written to {path}")
            for note in dict.fromkeys(map(self._served.note, MODES)):
                rank_zero_info(note)
