"""Which instruction asks for tags, and what is scored: an adapter is measured as it was trained."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import shorten
from typing import Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lovec.core.plain import nested
from lovec.core.provenance import template_text
from lovec.encoding import DEFAULT_SCORING, Grounding, Scoring, default_grounding, default_instruction
from lovec.encoding.grounding import DEFAULT_SOURCE_TOKENS
from lovec.policy import PolicyConfig
from lovec.taggers.session import PromptFormat, adapter_folder, saved_grounding, trained_format, trained_template
from lovec.tags import TagFormat
from lovec.types import LovecError

_SHOWN = 80  # characters of an instruction in a message


def instruction_of(
    adapters: Sequence[str], tags: TagFormat, own: str | None, of_data: str | None, training: bool
) -> str | None:
    """Return the instruction: the configured one, that of the adapters, or else the data's.

    Training may go on with another prompt than an adapter was trained with, and an instruction may be given for what is
    measured; both are said.

    Args:
        adapters: adapters that are trained on or measured, folders or names on the hub.
        tags: the tag words and the scale that are configured.
        own: the instruction that is configured; None for none.
        of_data: that of the data; None for none.
        training: whether the adapters are trained on.

    Returns:
        The instruction; None for the paper's.

    Raises:
        LovecError: an adapter to measure was trained with other tags, or several with different instructions.
    """
    formats = _formats(adapters)
    for path, (instruction, its_tags, *_) in formats.items():
        if its_tags != tags:
            _refuse_tags(path, its_tags, training)
        asked = own or (of_data if training else instruction) or default_instruction(tags)
        if asked != instruction:
            rank_zero_warn(
                f"{path} was trained with the instruction {shorten(instruction, _SHOWN)!r}, and is asked with "
                f"{shorten(asked, _SHOWN)!r} now; --model.policy.instruction sets it, and lovec.json has the whole text"
            )
    if own is not None or training or not formats:
        return own or of_data
    instructions = dict.fromkeys(saved.instruction for saved in formats.values())
    if len(instructions) > 1:
        raise LovecError(
            f"the adapters were trained with different instructions: {'; '.join(map(repr, instructions))}; measure "
            "them one by one, or give one for all with --model.policy.instruction"
        )
    (instruction,) = instructions
    if of_data is not None and of_data != instruction:
        rank_zero_info(f"asked with the instruction that {next(iter(formats))} was trained with, not the data's")
    return instruction


def scoring_of(adapters: Sequence[str]) -> Scoring:
    """Return what is scored at a tag, as the adapters were trained with; the first tokens without an adapter.

    Args:
        adapters: adapters that are trained on or measured, folders or names on the hub.

    Raises:
        LovecError: the adapters were trained with different ones.
    """
    found = {path: saved.scoring for path, saved in _formats(adapters).items()}
    if len(set(found.values())) > 1:
        trained = ", ".join(f"{path} with {scoring}" for path, scoring in found.items())
        raise LovecError(
            f"the adapters were trained with different scoring: {trained}; measure them one by one, or give one for "
            "all with --model.policy.scoring"
        )
    return next(iter(found.values()), DEFAULT_SCORING)


def template_of(adapters: Sequence[str], own: str | None) -> str | None:
    """Return the file with the chat template: the configured one, or else that of the adapters.

    Args:
        adapters: adapters that are trained on or measured, folders or names on the hub.
        own: the file that is configured; None for none.

    Returns:
        The file; None for the tokenizer's own template.

    Raises:
        LovecError: several adapters were trained with different ones, or a file cannot be read.
    """
    files = {path: trained_template(adapter_folder(path)) for path in adapters}
    texts = {path: None if file is None else template_text(file) for path, file in files.items()}
    if own is not None:
        given = template_text(own)
        for path, text in texts.items():
            if text not in (None, given):
                rank_zero_warn(
                    f"{path} was trained with the chat template in {files[path]}, and is asked with that in {own} now; "
                    "without --model.policy.chat_template it is asked as in training"
                )
        return own
    if len(set(texts.values())) > 1:
        raise LovecError(
            f"the adapters were trained with different chat templates: {', '.join(texts)}; measure them one by one, or "
            "give one for all with --model.policy.chat_template FILE.jinja"
        )
    return next(iter(files.values()), None)


def grounding_in(fingerprint: Any) -> Grounding | None:
    """Return how the run of a checkpoint put evidence into prompts; None where its fingerprint names no such way."""
    try:
        return saved_grounding(nested(fingerprint, "prompt", "grounding"))
    except ValueError:
        return None


def grounding_of(
    saved: Grounding | None, config: PolicyConfig, tags: TagFormat, of_data: str | None
) -> Grounding | None:
    """Return how evidence is put into prompts: as configured, or else as a checkpoint or adapters were trained with.

    Args:
        saved: that of the checkpoint or the adapters, see ``grounding_in`` and ``trained_grounding``; None for none.
        config: the settings of the policy.
        tags: the tag words and the scale.
        of_data: the data's own text around evidence; None for none.

    Returns:
        None where there is no evidence in prompts.
    """
    if not (config.grounded or (config.grounded is None and saved)):
        return None
    text = config.grounding or (saved.text if saved else of_data or default_grounding(tags))
    return Grounding(text, config.evidence_tokens or (saved.tokens if saved else DEFAULT_SOURCE_TOKENS))


def trained_grounding(adapters: Sequence[str], config: PolicyConfig) -> Grounding | None:
    """Return how evidence was put into prompts when adapters were trained; None where it was not.

    Args:
        adapters: adapters that are trained on or measured, folders or names on the hub.
        config: the settings of the policy.

    Raises:
        LovecError: the adapters were trained with different ones, and the settings do not say which is meant.
    """
    found = {path: saved.grounding for path, saved in _formats(adapters).items()}
    if config.grounded is None and len(set(found.values())) > 1:
        grounded = ", ".join(path for path, grounding in found.items() if grounding is not None)
        raise LovecError(
            f"the adapters were trained with different prompts for evidence, with some: {grounded}; measure them one "
            "by one, or say which is meant for all with --model.policy.grounded"
        )
    return next(filter(None, found.values()), None)


def _formats(adapters: Sequence[str]) -> dict[str, PromptFormat]:
    """Return how adapters were prompted in their training, without those that do not say."""
    found = {path: trained_format(adapter_folder(path)) for path in adapters}
    return {path: saved for path, saved in found.items() if saved is not None}


def _refuse_tags(adapter: str, tags: TagFormat, training: bool) -> None:
    """Refuse other tags than an adapter was trained with; where it is trained on, say so."""
    text = (
        f"{adapter} was trained with the tags {tags.open} {tags.close} and the scale {' '.join(tags.scale.words)}, and "
        "policy.tag_words and policy.scale say otherwise"
    )
    if not training:
        raise LovecError(f"{text}; give --model.policy.tag_words and --model.policy.scale as in its lovec.json")
    rank_zero_warn(f"{text}; it has to learn the new ones")
