"""What a checkpoint was written with, and how that differs from the run that is to go on from it.

A fingerprint is a dictionary of plain values by part. Weights, texts and records are in it as digests, so that it stays
small; names beside them are for messages and are not compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias, get_args

import torch

from lovec.core.plain import inside, nested
from lovec.core.provenance import changes, digest, lasting
from lovec.core.settings import decisive
from lovec.encoding import Encoder, Scoring, prompt_settings

Part: TypeAlias = dict[str, Any]

FINGERPRINT = "lovec_fingerprint"
"""Entry of a checkpoint with its fingerprint."""

PARTS = {
    "base": "the base model: its configuration and its weights",
    "prompt": "tokenizer, chat template, instruction, tag words and scale",
    "objective": "the class that is trained",
    "data": "the training records, their order and the batch size",
    "seed": "the seed of a training step",
    "settings": "what else decides what is learned, such as the learning rate",
}
"""Parts of a fingerprint; all of them must agree to continue training."""

MEASURED = ("base", "prompt", "objective")
"""Parts that must agree to measure or to predict with the weights of a checkpoint."""

SCORING = "model.policy.scoring"
"""Setting of a fingerprint that a run fills in by its effect: what is scored at a tag."""

START = "model.policy.adapter"
"""Setting of a fingerprint with the adapter that a run started from. A checkpoint holds the weights that came from it,
so a run that goes on need not name it."""

WHOLE = "lovec_weights_digest"
"""Attribute of a model with the digest that its weights had before they were split over processes."""

_ELSEWHERE = (
    "model.policy.model",
    "model.policy.instruction",
    "model.policy.tag_words",
    "model.policy.scale",
    "model.policy.grounded",
    "model.policy.evidence_tokens",
    "model.policy.grounding",
    "model.policy.chat_template",
)  # settings that another part describes by their effect
_TRAINER = ("trainer.precision",)  # how long, on how many devices and with which logs a run trains may change
_SAMPLE = 1 << 16  # values of each weight that are hashed; all of them in models as small as those of the world
_NOTES = ("name", "reference")  # entries that stand beside what is compared


def loaded_digest(model: Any) -> str:
    """Return 16 hexadecimal digits that tell the weights of a loaded base model from others of the same shape.

    Up to 65,536 values of every weight, evenly spaced, are rounded to bfloat16 and hashed, so that the precision in
    which a model is loaded makes no difference. Adapters are not counted. This takes 0.1 s for the models of the
    embedded world and seconds for 8 billion parameters.

    Args:
        model: a transformers model, with or without adapters in its layers; of a sharded one, the digest that it had
            while it was whole.
    """
    if (made := getattr(model, WHOLE, None)) is not None:
        return str(made)
    result = hashlib.sha256()
    for name, weight in sorted(model.named_parameters()):
        if ".lora_" in name:
            continue
        values = weight.detach().reshape(-1)
        if hasattr(weight, "quant_state"):  # bits packed into a tensor of any type, which hold no numbers of that type
            values = values.view(torch.int16) if values.element_size() > 1 else values
            values = values[:: max(1, values.numel() // _SAMPLE)].to("cpu", torch.int16)
        else:
            values = values[:: max(1, values.numel() // _SAMPLE)].to("cpu", torch.bfloat16)
        result.update(f"{name.replace('.base_layer.', '.')} {tuple(weight.shape)}".encode())
        result.update(values.view(torch.int16).numpy().tobytes())
    return result.hexdigest()[:16]


def base_part(name: str, model: Any) -> Part:
    """Return the part of a fingerprint that describes a base model.

    Args:
        name: its name, a path by its absolute one.
        model: the transformers model.
    """
    part = {"name": name, "config": digest(lasting(model.config.to_dict())), "weights": loaded_digest(model)}
    if getattr(model, "is_loaded_in_4bit", False):
        part["quantization"] = "nf4"
    return part


def prompt_part(encoder: Encoder) -> Part:
    """Return the part of a fingerprint that describes how a model is prompted."""
    grounding = None if encoder.grounding is None else asdict(encoder.grounding)
    return prompt_settings(encoder.instruction, encoder.tags, grounding) | {
        "chat_template": digest(encoder.tokenizer.chat_template),
        "tokenizer": digest(encoder.tokenizer.get_vocab()),
    }


def settings_part(recipe: Mapping[str, Any]) -> Part:
    """Return the settings of a recipe that decide what is learned, by the names of their options.

    Those of the data are among them, to be named where the records differ.

    Args:
        recipe: every setting of a run, defaults included, with the keys ``trainer``, ``model`` and ``data``.
    """
    options = _options({key: decisive(recipe[key]) for key in ("trainer", "model", "data")})
    ignored = ("model", *_ELSEWHERE)
    return {
        name: value
        for name, value in options.items()
        if (name in _TRAINER if name.startswith("trainer.") else name not in ignored)
    }


def differences(saved: Any, present: Mapping[str, Part]) -> dict[str, str]:
    """Return how a checkpoint differs from a run, in words, by part.

    Args:
        saved: the fingerprint of the checkpoint, as it was read.
        present: the parts of the run's fingerprint that must agree.
    """
    settings = changes(inside(saved, "settings"), present.get("settings") or {}, known=True)
    found = {}
    for part, now in present.items():
        if not isinstance(was := nested(saved, part), Mapping):
            found[part] = "the checkpoint does not say"
            continue
        # Where only one of them has a setting, a class differs, or lovec's version.
        said = settings if part == "settings" else changes(was, now)
        said = {name: words for name, words in said.items() if name not in _NOTES and not _is_of_data(name)}
        if part == "base" and said:
            found[part] = f"it was {was.get('name')}, is {now.get('name')} with other {' and '.join(said)}"
        elif said:
            options = [words for name, words in settings.items() if part == "data" and _is_of_data(name)]
            found[part] = ", ".join([*options, *said.values()])
    return found


def scoring_in(saved: Any) -> Scoring:
    """Return what the run of a checkpoint scored at a tag: whole tags where its fingerprint does not say."""
    found = nested(saved, "settings", SCORING)
    return next((scoring for scoring in get_args(Scoring) if scoring == found), "exact")


def start_of(checkpoint: Mapping[str, Any], name: str) -> float:
    """Return when the run of a checkpoint was started, in seconds since 1970; 0 where the checkpoint does not say.

    Args:
        checkpoint: the checkpoint, as it was read.
        name: "run" is the start at step 0, "started" the last time that it went on.
    """
    start = nested(checkpoint, FINGERPRINT, name)
    return start if isinstance(start, float) else 0.0


def _is_of_data(name: str) -> bool:
    return name.partition(".")[0] == "data"


def _options(settings: Any, name: str = "") -> dict[str, Any]:
    """Return nested settings by the names of their options; a class is the value of the option that takes it."""
    if not isinstance(settings, Mapping) or not settings:
        return {name: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        inner = name if key in ("class_path", "init_args") else f"{name}.{key}".removeprefix(".")
        found |= _options(value, inner)
    return found
