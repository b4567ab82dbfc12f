"""Export a trained policy: a PEFT adapter or a merged model, in a folder with a model card."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import statistics
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from lovec.calibration import Calibration, read_calibrations, weights_digest, write_calibrations
from lovec.core.files import atomic_folder, check_output, check_unused, read_adapter_config
from lovec.core.hub import ADAPTER_FILES, CALIBRATION_FILE, TEMPLATE, HubName, trained_recipe
from lovec.core.imports import without_progress_bars
from lovec.core.provenance import Provenance, adapter_options
from lovec.core.templates import load_template
from lovec.encoding import Encoder
from lovec.encoding.grounding import encoder_of
from lovec.engines.adapters import AdapterFolders, differs_by_layer
from lovec.engines.vllm_local import RANKS
from lovec.models import absolute_name, resolve_model
from lovec.models.gguf import is_gguf
from lovec.models.names import is_built_offline
from lovec.policy import ADAPTER, Policy, PolicyConfig, check_adapter, load_config, load_tokenizer
from lovec.policy.quantization import stored_quantization
from lovec.taggers import IterativeTagger
from lovec.taggers.session import (
    PromptFormat,
    adapter_folder,
    base_model,
    open_session,
    policy_provenance,
    prompt_format,
    settings_file,
    shared_gguf,
    trained_quantization,
    trained_template,
    trained_unit,
)
from lovec.types import LovecError, Record, Sentence, Unit

MergedDtype: TypeAlias = Literal["float32", "bfloat16"]
COMPARED_QUESTION = "In a paragraph, could you tell me what you know about the planets?"
COMPARED = (
    "Jupiter is the largest planet of the Solar System.",
    "Mercury has two moons, which Galileo discovered in 1610.",
    "A day on Venus is longer than its year.",
    "Mars was named after the Roman god of the sea.",
    "Saturn's rings consist mostly of ice.",
    "Neptune was found in 1846 near where calculations had put it.",
)
"""Sentences, true and false ones, whose confidences tell how much merging has changed."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A trained adapter to export.

    Attributes:
        adapter: PEFT adapter folder.
        run: folder of the run that wrote it; None where only the adapter is known.
        base: hub id of the base model, or its folder or GGUF file by the absolute path.
        any_base: whether the adapter may name another base model.
    """

    adapter: Path
    run: Path | None
    base: str
    any_base: bool = False

    @classmethod
    def find(cls, path: str, base: str | None = None, any_base: bool = False) -> ExportSource:
        """Return the adapter in a folder, or the adapter of the run in a folder.

        Args:
            path: folder of an adapter or a run.
            base: base model; None takes the one that the adapter names.
            any_base: whether the adapter may name another base model than ``base``.

        Raises:
            LovecError: there is no adapter, or it names no base model, or another one.
        """
        adapter = Path(adapter_folder(path))
        base = base or base_model(str(adapter))
        if base is None:
            raise LovecError(f"{adapter} does not name its base model; give it with --model")
        check_adapter(str(adapter), resolve_model(base), any_base)
        run = adapter.parent if adapter.name == "adapter" else None
        return cls(adapter, run, absolute_name(base), any_base)

    @property
    def base_for_others(self) -> str:
        """Name of the base model that means the same on other machines, where it has one; else ``base``."""
        return shared_gguf(str(self.adapter)) or self.base

    @property
    def chat_template(self) -> str | None:
        """The file with the chat template that the adapter was trained with; None where it is the tokenizer's own."""
        return trained_template(str(self.adapter))

    def recipe(self) -> Path | None:
        """Return the recipe, with all settings, that the adapter was trained by; None without one."""
        return None if self.run is None else trained_recipe(self.run)


def export_adapter(source: ExportSource, out: Path, metrics: str, redo: bool = False) -> None:
    """Copy the adapter into a folder with a model card; plain peft and vLLM can load it.

    Where its layers have ranks or scalings of their own, which vLLM ignores, the copy has one of each and the same
    effect.

    Args:
        source: the adapter to export.
        out: the folder to write.
        metrics: text of the card's section "Metrics", in Markdown.
        redo: whether to replace a folder that is not empty.

    Raises:
        LovecError: ``out`` is not empty and ``redo`` is False, or it is, holds or lies in what is exported.
    """
    _check_target(source, out, redo)
    tokenizer = load_tokenizer(PolicyConfig(resolve_model(source.base), chat_template=source.chat_template))
    with atomic_folder(out) as folder:
        with closing(AdapterFolders(folder)) as folders:
            readable = folders.readable(source.adapter)
            for name in ADAPTER_FILES:
                shutil.copyfile(readable / name, folder / name)
        _describe(source, folder, out, tokenizer, metrics, merged=False)


def export_merged(
    source: ExportSource, out: Path, metrics: str, dtype: MergedDtype = "float32", redo: bool = False
) -> str | None:
    """Write base and adapter as one model, in safetensors, with tokenizer, chat template and a model card.

    Base and adapter are added in float32 and the sum is rounded to ``dtype`` once: in bfloat16 log-probabilities change
    by about the rounding of bfloat16 itself; in float32 they stay the same to 1e-4. So the whole model is in memory in
    float32, whatever ``dtype`` is. An adapter that was trained on the base in 4 bits is added to the base as it is
    stored, which is not what it was trained on; how much that changes is measured.

    Args:
        source: the adapter to export.
        out: the folder to write.
        metrics: text of the card's section "Metrics", in Markdown.
        dtype: precision of the merged weights.
        redo: whether to replace a folder that is not empty.

    Returns:
        For an adapter that was trained on the base in 4 bits, what merging has changed, as a sentence; else None.

    Raises:
        LovecError: ``out`` is not empty and ``redo`` is False, or it is, holds or lies in what is exported; the
            weights of the base are stored in 4 bits; or the model cannot be loaded or merged.
    """
    _check_target(source, out, redo)  # before a model is loaded
    config = PolicyConfig(
        resolve_model(source.base),
        adapter=str(source.adapter),
        chat_template=source.chat_template,
        any_base=source.any_base,
    )
    if stored_quantization(load_config(config), source.base) is not None:
        raise LovecError(
            f"the weights of {source.base} are stored in 4 bits; an adapter merged into them would be rounded to 4 "
            "bits as well: give the model that they were made from, with --model ID --any_base, or export the adapter "
            "alone"
        )
    policy = Policy(config, reference=False)
    try:
        model = policy.peft.merge_and_unload(safe_merge=True)
    except ValueError as error:  # peft found NaN in the sum
        raise LovecError(f"{source.adapter} cannot be merged into {source.base}: {error}") from error
    model.to(getattr(torch, dtype))
    with atomic_folder(out) as folder:
        with without_progress_bars():
            model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        _describe(source, folder, out, policy.tokenizer, metrics, merged=True)
    del policy, model  # the next ones need their memory
    return None if trained_quantization(str(source.adapter)) is None else _what_merging_changed(source, out)


def _what_merging_changed(source: ExportSource, merged: Path) -> str:
    """Return how far confidences of the merged model are from those on the base in 4 bits, as a sentence."""
    found = []
    for model, adapter in ((source.base, str(source.adapter)), (str(merged), None)):
        with open_session(model, adapter, any_base=source.any_base, raw=True) as session:
            tagger = IterativeTagger(session.engine, session.encoder, "mean")
            sentences = tuple(Sentence(text) for text in COMPARED)
            (tagged,) = tagger.tag([Record("compared", COMPARED_QUESTION, sentences=sentences)])
            found.append([s.confidence for s in tagged.sentences])
    pairs = [(a, b) for a, b in zip(*found, strict=True) if a is not None and b is not None]
    changes = [abs(a - b) for a, b in pairs]
    trained = f"The adapter was trained on {source.base} in 4 bits."
    if not changes:
        return f"{trained} How much merging changes was not measured: no sentence fits the context of the model."
    return (
        f"{trained} Merged, its confidences of {len(changes)} sentences about the planets differ from those by "
        f"{statistics.mean(changes):.3f} on average and {max(changes):.3f} at most."
    )


def _describe(source: ExportSource, folder: Path, out: Path, tokenizer: Any, metrics: str, merged: bool) -> None:
    """Write the card, the settings of prompts and tags, the calibrations and the recipe beside the weights."""
    encoder = encoder_of(tokenizer, *_prompting(source))
    quantization = None if merged else trained_quantization(str(source.adapter))
    base: dict[str, str] = {"quantization": quantization} if quantization else {}
    if not merged and (quantization or is_gguf(source.base_for_others)):
        base["name"] = source.base_for_others
    unit = trained_unit(str(source.adapter)) or "sentence"
    template = not merged and source.chat_template is not None  # a merged model has a tokenizer of its own
    for name, text in settings_file(encoder, base or None, unit, template).items():
        (folder / name).write_text(text, encoding="utf-8")
    training = "No recipe was found beside the adapter."
    calibrations = _calibrations(source)
    if calibrations:
        model = out.resolve().name if merged else None
        write_calibrations(folder, {mode: _moved(made, source, folder, model) for mode, made in calibrations.items()})
    if (recipe := source.recipe()) is not None:
        shutil.copyfile(recipe, folder / "recipe.yaml")
        training = _training_summary(recipe)
    card = model_card(
        encoder,
        source.base_for_others,
        (source.run or source.adapter).resolve().name,
        out.resolve().name,
        training,
        metrics,
        None if merged else read_adapter_config(folder).get("r"),
        calibrations,
        template=template,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _calibrations(source: ExportSource) -> Mapping[str, Calibration]:
    """Return the calibrations beside an adapter.

    Raises:
        LovecError: one was fitted to the scores of another base model, or of an adapter with other options.
    """
    found = read_calibrations(source.adapter)
    base = PolicyConfig(resolve_model(source.base))
    for made in found.values():
        exported = policy_provenance(base, str(source.adapter), *_prompting(source)).of_weights()
        if unlike := [] if made.provenance is None else made.provenance.differences(exported):
            raise LovecError(
                f"{source.adapter / CALIBRATION_FILE} was fitted to other scores ({'; '.join(unlike)}); calibrate "
                "again, or remove it"
            )
    return found


def _prompting(source: ExportSource) -> PromptFormat:
    return prompt_format(resolve_model(source.base), str(source.adapter))


def _moved(made: Calibration, source: ExportSource, folder: Path, name: str | None) -> Calibration:
    """Return the calibration of an adapter for what was exported from it.

    It belongs to the weights, and those of what was exported may be others, and its scores the same.

    Args:
        made: the calibration.
        source: what was exported.
        folder: where the exported weights lie.
        name: name of the merged model; None for an adapter.
    """
    digest = weights_digest(folder)
    if made.provenance is None:
        return replace(made, adapter=digest)
    if name is None:
        adapter = {"weights": digest, **adapter_options(folder)}
        return replace(made, adapter=digest, provenance=Provenance({**made.provenance.parts, "adapter": adapter}))
    base = policy_provenance(PolicyConfig(str(folder)), None, *_prompting(source), name=name).parts["base"]
    computing = {**made.provenance.parts["computing"], "quantization": None}
    parts = {**made.provenance.parts, "base": base, "adapter": {}, "computing": computing}
    return replace(made, adapter=digest, provenance=Provenance(parts))


def trained_files(module: Any, base: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts beside the adapter that a training writes: what `open_session` reads, and a model card.

    Args:
        module: the ``PolicyModule`` that was trained.
        base: the part of its fingerprint that tells the base model.
    """
    data = getattr(module.trainer, "datamodule", None)
    objective, source = (f"{type(part).__module__}.{type(part).__qualname__}" for part in (module, data))
    source = "loaders of the user's own" if data is None else source
    config = module.policy.peft.peft_config[ADAPTER]
    named = base["name"] if is_gguf(base["name"]) else str(config.base_model_name_or_path)
    template = module.policy.has_own_template
    by_layer = differs_by_layer(config.to_dict())
    card = trained_card(
        module.encoder, named, config.r, module.run_dir, objective, source, module.seed, template, by_layer
    )
    trained = getattr(data, "trained_unit", None)  # data of the user's own may say nothing
    unit: Unit = "sentence" if trained is None else trained()
    return settings_file(module.encoder, base, unit, template) | {"README.md": card}


def trained_card(
    encoder: Encoder,
    base: str,
    rank: int,
    run: Path,
    objective: str,
    data: str,
    seed: int,
    template: bool = False,
    by_layer: bool = False,
) -> str:
    """Return the card of the adapter that a training writes, before anything was measured.

    Args:
        encoder: how the model is prompted.
        base: name or folder of the base model.
        rank: rank of the adapter.
        run: folder of the run.
        objective: class of the objective.
        data: class of the data.
        seed: seed of the run.
        template: whether the chat template lies beside the card.
        by_layer: whether layers of the adapter have ranks or scalings of their own.
    """
    training = f"Objective: `{objective}`. Data: `{data}`. Seed: {seed}. Every setting is in `../logs`."
    metrics = (
        "Not measured when this was written; `lovec test` does, and `lovec export` writes a card with the results."
    )
    title = run.resolve().name
    return model_card(encoder, base, title, "adapter", training, metrics, rank, None, True, template, by_layer)


def vllm_command(folder: str, base: str, rank: int | None, template: bool = False) -> str:
    """Return the command by which vLLM serves an adapter or a merged model.

    Args:
        folder: the folder with the adapter or the model.
        base: hub id or folder of the base model, or what stands for it.
        rank: rank of the adapter; None for a merged model, which needs no base.
        template: whether the chat template lies in the folder.
    """
    if rank is None:
        return f"vllm serve {shlex.quote(folder)}"
    most = next((known for known in RANKS if known >= rank), rank)
    words = f"vllm serve {shlex.quote(base)} --enable-lora --max-lora-rank {most} --lora-modules"
    own = f" --chat-template {shlex.quote(f'{folder}/{TEMPLATE}')}" if template else ""
    return f"{words} lovec={shlex.quote(folder)}{own}"


def model_card(
    encoder: Encoder,
    base: str,
    title: str,
    folder: str,
    training: str,
    metrics: str,
    rank: int | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
    trained: bool = False,
    template: bool = False,
    by_layer: bool = False,
) -> str:
    """Return a model card in Markdown, with the metadata that model hubs read.

    Args:
        encoder: how the model is prompted.
        base: hub id or folder of the base model, or name of its GGUF file.
        title: heading.
        folder: name of the folder that the card lies in.
        training: text of the section "Training".
        metrics: text of the section "Metrics".
        rank: rank of the adapter; None for a merged model.
        calibrations: the maps that lie beside the card, by mode.
        trained: whether the card is that of a training, which comes before its calibration.
        template: whether the chat template lies beside the card.
        by_layer: whether layers of the adapter have ranks or scalings of their own, which vLLM ignores.
    """
    import lovec  # for its version only

    scale = encoder.scale
    score = scale.nearest(0.7)
    of_hub = HubName.parse(base.partition(":")[0])  # hubs refuse a card whose base model is a folder
    built = is_gguf(base) or is_built_offline(base)
    filters = {"tojson": json.dumps, "code": _code}  # a JSON string is a YAML one, whatever it holds
    return load_template(Path(__file__).with_name("model_card.md.j2"), filters).render(
        base=base,
        base_id=None if of_hub is None else of_hub.repo,
        python_base=repr(base),
        python_folder=json.dumps(f"./{folder}", ensure_ascii=False),
        shell_folder=shlex.quote(f"./{folder}"),
        gguf=is_gguf(base),
        built=built,
        vllm=vllm_command(f"./{folder}", "BASE" if built else base, rank, template),
        merged=rank is None,
        rank=rank,
        title=title,
        folder=folder,
        tag=f"{encoder.tags.open} X {encoder.tags.close}",
        levels=f"{scale.words[0]} (surely wrong) to {scale.words[-1]} (surely right)",
        score=scale.words[score],
        percent=round(100 * scale.confidence(score)),
        version=lovec.__version__,
        instruction=encoder.instruction,
        training=training,
        metrics=metrics,
        calibrations=calibrations or {},
        trained=trained,
        template=template,
        by_layer=by_layer,
    )


def _code(text: str) -> str:
    """Return a text as code within a line of Markdown, whatever backticks it holds."""
    if "`" not in text:
        return f"`{text}`"
    mark = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{mark} {text} {mark}"


def _training_summary(recipe: Path) -> str:
    """Return objective, data and seed of a recipe as text for the card."""
    import yaml

    settings: dict[str, Any] = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    model, data = settings["model"], settings["data"]
    start = model["init_args"]["policy"].get("adapter")
    return (
        f"Objective: `{model['class_path']}`, {'continued from another adapter' if start else 'from a fresh adapter'}. "
        f"Data: `{data['class_path']}`. Seed: {settings['seed_everything']}.\n\n"
        "Every setting is in [recipe.yaml](recipe.yaml)."
    )


def _check_target(source: ExportSource, out: Path, redo: bool) -> None:
    """Refuse a folder that holds something, one whose replacement would damage the run, and a map of other scores."""
    parts = [] if source.run is None else [source.run / "logs", source.run / "test"]
    check_output(out, (source.adapter, source.base, *parts), "choose another folder")
    if out.exists() and not out.is_dir():
        raise LovecError(f"{out} is a file, expected a folder to write; choose another name")
    if not redo:
        check_unused(out, "choose another folder, or replace it with --redo")
    _calibrations(source)
