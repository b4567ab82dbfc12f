"""Export a trained policy: a PEFT adapter or a merged model, in a folder with a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from lovec.calibration import Calibration, read_calibrations, weights_digest, write_calibrations
from lovec.encoding import Encoder
from lovec.files import atomic_folder, check_output, check_unused
from lovec.hub import ADAPTER_FILES, SETTINGS, HubName, hub_errors
from lovec.policy import ADAPTER, Policy, PolicyConfig, check_adapter, load_tokenizer
from lovec.taggers.models import resolve_model
from lovec.taggers.session import adapter_folder, base_model, prompt_format, settings_file
from lovec.templates import load_template
from lovec.types import CALIBRATION_FILE, LovecError

_TOKENIZER_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files of a merged model that not every model has."""

MergedDtype: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ExportSource:
    """A trained adapter to export.

    Attributes:
        adapter: PEFT adapter folder.
        run: folder of the run that wrote it; None where only the adapter is known.
        base: hub id or folder of the base model.
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
        return cls(adapter, adapter.parent if adapter.name == "adapter" else None, base, any_base)

    def recipe(self) -> Path | None:
        """Return the newest recipe, with all settings, that the run has logged; None without one."""
        if self.run is None:
            return None
        recipes = self.run.glob("logs/version_*/config.yaml")
        return max(recipes, key=lambda path: int(path.parent.name.rpartition("_")[2]), default=None)


def export_adapter(source: ExportSource, out: Path, metrics: str, force: bool = False) -> None:
    """Copy the adapter into a folder with a model card; plain peft and vLLM can load it.

    Args:
        source: the adapter to export.
        out: the folder to write.
        metrics: text of the card's section "Metrics", in Markdown.
        force: whether to replace a folder that is not empty.

    Raises:
        LovecError: ``out`` is not empty and ``force`` is False, or it is, holds or lies in what is exported.
    """
    _check_target(source, out, force)
    tokenizer = load_tokenizer(PolicyConfig(resolve_model(source.base)))
    with atomic_folder(out) as folder:
        for name in ADAPTER_FILES:
            shutil.copyfile(source.adapter / name, folder / name)
        _describe(source, folder, out, tokenizer, metrics, merged=False)


def export_merged(
    source: ExportSource, out: Path, metrics: str, dtype: MergedDtype = "float32", force: bool = False
) -> None:
    """Write base and adapter as one model, in safetensors, with tokenizer, chat template and a model card.

    Base and adapter are added in float32 and the sum is rounded to ``dtype`` once: in bfloat16 log-probabilities change
    by about the rounding of bfloat16 itself; in float32 they stay the same to 1e-4. So the whole model is in memory in
    float32, whatever ``dtype`` is.

    Args:
        source: the adapter to export.
        out: the folder to write.
        metrics: text of the card's section "Metrics", in Markdown.
        dtype: precision of the merged weights.
        force: whether to replace a folder that is not empty.

    Raises:
        LovecError: ``out`` is not empty and ``force`` is False, or it is, holds or lies in what is exported; or the
            model cannot be loaded or merged.
    """
    _check_target(source, out, force)  # before a model is loaded
    config = PolicyConfig(resolve_model(source.base), adapter=str(source.adapter), any_base=source.any_base)
    policy = Policy(config, reference=False)
    try:
        model = policy.peft.merge_and_unload(safe_merge=True)
    except ValueError as error:  # peft found NaN in the sum
        raise LovecError(f"{source.adapter} cannot be merged into {source.base}: {error}") from error
    model.to(getattr(torch, dtype))
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        _describe(source, folder, out, policy.tokenizer, metrics, merged=True)


def _describe(source: ExportSource, folder: Path, out: Path, tokenizer: Any, metrics: str, merged: bool) -> None:
    """Write the card, the settings of prompts and tags, the calibrations and the recipe beside the weights."""
    encoder = Encoder(tokenizer, *prompt_format(resolve_model(source.base), str(source.adapter)))
    for name, text in settings_file(encoder).items():
        (folder / name).write_text(text, encoding="utf-8")
    training = "No recipe was found beside the adapter."
    calibrations = read_calibrations(source.adapter)
    if calibrations:  # they belong to the weights: those of a merged model are others, and its scores the same
        digest = weights_digest(folder)
        write_calibrations(folder, {mode: replace(made, adapter=digest) for mode, made in calibrations.items()})
    if (recipe := source.recipe()) is not None:
        shutil.copyfile(recipe, folder / "recipe.yaml")
        training = _training_summary(recipe)
    card = model_card(
        encoder,
        source.base,
        (source.run or source.adapter).resolve().name,
        out.resolve().name,
        training,
        metrics,
        None if merged else json.loads((source.adapter / ADAPTER_FILES[0]).read_text(encoding="utf-8")).get("r"),
        calibrations,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


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
    card = trained_card(module.encoder, config, module.run_dir, objective, source, module.seed)
    return settings_file(module.encoder, base) | {"README.md": card}


def trained_card(encoder: Encoder, peft: Any, run: Path, objective: str, data: str, seed: int) -> str:
    """Return the card of the adapter that a training writes, before anything was measured.

    Args:
        encoder: how the model is prompted.
        peft: PEFT's configuration of the adapter.
        run: folder of the run.
        objective: class of the objective.
        data: class of the data.
        seed: seed of the run.
    """
    training = f"Objective: `{objective}`. Data: `{data}`. Seed: {seed}. Every setting is in `../logs`."
    metrics = (
        "Not measured when this was written; `lovec test` does, and `lovec export` writes a card with the results."
    )
    base = str(peft.base_model_name_or_path)
    return model_card(encoder, base, run.resolve().name, "adapter", training, metrics, peft.r, trained=True)


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
) -> str:
    """Return a model card in Markdown, with the metadata that model hubs read.

    Args:
        encoder: how the model is prompted.
        base: hub id or folder of the base model.
        title: heading.
        folder: name of the folder that the card lies in.
        training: text of the section "Training".
        metrics: text of the section "Metrics".
        rank: rank of the adapter; None for a merged model.
        calibrations: the maps that lie beside the card, by mode.
        trained: whether the card is that of a training, which comes before its calibration.
    """
    import lovec  # for its version only

    scale = encoder.scale
    score = scale.nearest(0.7)
    filters = {"tojson": json.dumps}  # a JSON string is a YAML one, whatever it holds
    return load_template(Path(__file__).with_name("model_card.md.j2"), filters).render(
        base=base,
        python_base=repr(base),
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
    )


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


def check_upload(text: str) -> HubName:
    """Return the repository that a model is to be uploaded to, after checking that there is a token for it.

    Args:
        text: its name, ``org/name`` or ``org/name@branch``.

    Raises:
        LovecError: it is no name of a repository, or there is no token.
    """
    from huggingface_hub import get_token

    name = HubName.parse(text)
    if name is None:
        raise LovecError(
            f"--push is {text!r}, expected a repository of the hub such as org/name, and no file or folder"
        )
    if get_token() is None:
        raise LovecError(
            "there is no token for the hub; log in with `hf auth login`, or set HF_TOKEN to one that may write"
        )
    return name


def upload(folder: Path, name: HubName, public: bool = False) -> str:
    """Upload what was exported to a repository of the hub, in one commit; it is made if it is not there.

    Nothing but the files of an export is uploaded, whatever else lies in the folder.

    Args:
        folder: folder of an exported adapter or model.
        name: the repository, and the branch if it is not the main one.
        public: whether everybody may read it; otherwise a new repository is private, and a public one is refused.

    Returns:
        Address of the repository.

    Raises:
        LovecError: the folder is not complete, or the hub refuses; what was there stays as it was.
    """
    from huggingface_hub import HfApi

    files = _exported_files(folder)
    api = HfApi()
    with hub_errors(name):
        address = api.create_repo(name.repo, private=not public, exist_ok=True)
        if not public and api.repo_info(name.repo).private is False:
            raise LovecError(f"{name.repo} is there and public; give --public if everybody may read this model, too")
        if name.revision is not None:
            api.create_branch(name.repo, branch=name.revision, exist_ok=True)
        api.upload_folder(
            repo_id=name.repo,
            folder_path=folder,
            allow_patterns=files,
            revision=name.revision,
            commit_message="Upload with lovec",
        )
    return str(address)


def _exported_files(folder: Path) -> list[str]:
    """Return the names of the files of an export.

    Raises:
        LovecError: one that it needs is not there, or the calibration is of other weights.
    """
    is_adapter = (folder / ADAPTER_FILES[0]).exists()
    needed = list(ADAPTER_FILES) if is_adapter else ["config.json", "tokenizer_config.json"]
    needed += ["README.md", SETTINGS]
    if not is_adapter:
        index = folder / "model.safetensors.index.json"
        weights = ["model.safetensors"]
        if index.is_file():
            weights = [index.name, *json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()]
        needed += dict.fromkeys(weights)
    for file in needed:
        if not (folder / file).is_file() or not (folder / file).stat().st_size:
            raise LovecError(
                f"{folder} has no {file}, without which it is not complete; nothing was uploaded; export it again"
            )
    read_calibrations(folder)  # raises an error if it is broken, or of other weights
    others = () if is_adapter else _TOKENIZER_FILES
    optional = (CALIBRATION_FILE, "recipe.yaml", *others)
    return [*needed, *(file for file in optional if (folder / file).is_file())]


def _check_target(source: ExportSource, out: Path, force: bool) -> None:
    """Refuse a folder that holds something, and one whose replacement would damage the run."""
    parts = [] if source.run is None else [source.run / "logs", source.run / "test"]
    check_output(out, (source.adapter, source.base, *parts), "choose another folder")
    if out.exists() and not out.is_dir():
        raise LovecError(f"{out} is a file, expected a folder to write; choose another name")
    if not force:
        check_unused(out, "choose another folder, or replace it with --force")
