"""A model opened for tagging outside training: an engine that runs it, and the encoder for its prompts."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

from lovec.core.devices import check_engine_name, device_of
from lovec.core.hub import SETTINGS, TEMPLATE, stored_model
from lovec.core.hub import adapter_folder as adapter_folder
from lovec.core.imports import gc_paused
from lovec.core.plain import nested
from lovec.core.plugins import plugins
from lovec.core.provenance import Provenance, digest, provenance_of, template_text
from lovec.core.settings import ELSEWHERE, NO_EFFECT, Count, PlainWord, TrustRemoteCode
from lovec.encoding import DEFAULT_SCORING, EVIDENCE, Encoder, Grounding, Scoring, default_instruction, prompt_settings
from lovec.encoding.grounding import encoder_of
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import DEFAULT_SCALE, Engine, LovecError, Scale, Unit

if TYPE_CHECKING:
    from lovec.policy import Policy, PolicyConfig
    from lovec.policy.quantization import Quantization

_LONGEST_SETTINGS = 1 << 16  # bytes of such a file
_LONGEST_WORD = 64  # characters of a tag word, or of a word of the scale
_MOST_LEVELS = 1001
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
)  # control characters, which terminals obey, and no characters

_OTHER_UNIT: Mapping[Unit, str] = {
    "sentence": "was trained on sentences, and is now asked to score clauses: it can tell which texts to doubt, but "
    "not which clause of a sentence; train one on clauses with --data.unit clause",
    "clause": "was trained on clauses, and is now asked to score whole sentences; --unit clause (in Python: unit) asks "
    "as in training, and gives sentences a confidence that follows from their clauses",
}
"""What is said of a model that is asked at other units than it was trained on, by the latter."""

_MAX_UNKNOWN = 0.2  # share of words that the model may not know before its scores come with a warning
_WORDS = re.compile(r"\w+")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@runtime_checkable
class Opener(Protocol):
    """An engine that loads a model by itself, or finds it on a server."""

    def open(self, model: str, adapter: str | None) -> None:
        """Sample and score with a model (folder or hub id) and, if one is given, a PEFT adapter (folder)."""


@dataclass(frozen=True)
class Session:
    """A model that is ready to tag; a context manager that closes it.

    Attributes:
        engine: samples and scores with the model.
        encoder: encodes prompts for its tokenizer, with the instruction that the model knows.
        model: name or folder of the model, as it was given or as its adapter names it.
        adapter: folder of the PEFT adapter; None runs the model without one.
        policy: the model with its adapter, for an engine that runs it; None where the engine loads the model itself.
        served: what becomes of the confidences that taggers read, by the calibration beside the weights.
        provenance: what decides the scores; None where that is not known.
        of_world: whether the model is one of the embedded world, which knows few words.
        unit: what the model was trained to give confidences to; None where nothing says that it was trained.
    """

    engine: Engine
    encoder: Encoder
    model: str
    adapter: str | None = None
    policy: Policy | None = None
    served: ServedConfidence = field(default_factory=ServedConfidence)
    provenance: Provenance | None = None
    of_world: bool = False
    unit: Unit | None = None

    def unit_problem(self, unit: Unit) -> str | None:
        """Return in one line that the model was trained on other units, and what follows; None if it was not.

        Args:
            unit: what is to get a confidence.
        """
        if self.unit is None or self.unit == unit:
            return None
        name = f"the model {self.model}" if self.adapter is None else f"the adapter in {self.adapter}"
        return f"{name} {_OTHER_UNIT[self.unit]}"

    def unknown_words(self, texts: Iterable[str]) -> float:
        """Return the share of words, in [0, 1], that the tokenizer has no tokens for and spells in bytes.

        Args:
            texts: texts to take the words from; without any word the share is 0.
        """
        words = [word for text in texts for word in _WORDS.findall(text)]
        unknown = {word for word in set(words) if self._is_spelt_in_bytes(word)}
        return sum(word in unknown for word in words) / max(len(words), 1)

    def unknown_words_problem(self, texts: Iterable[str]) -> str | None:
        """Return in one line that the model knows too few words of texts; None if it knows enough."""
        unknown = self.unknown_words(texts)
        if unknown <= _MAX_UNKNOWN:
            return None
        words = f"{100 * unknown:.0f} % of these words (it reads them byte by byte)"
        return f"the model does not know {words}; its scores mean little here"

    def close(self) -> None:
        """Release what the engine holds, if it can be closed."""
        if (close := getattr(self.engine, "close", None)) is not None:
            close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_spelt_in_bytes(self, word: str) -> bool:
        tokenizer: Any = self.encoder.tokenizer
        # Inside a text most words follow a space; one that is known only at the beginning of a text is known as well.
        return all(
            any(
                i == tokenizer.unk_token_id or _BYTE.fullmatch(token)
                for i, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)
            )
            for ids in (self.encoder.pieces(f" {word}"), self.encoder.pieces(word))
        )


def open_session(
    model: str | None = None,
    adapter: str | None = None,
    engine: Engine | str = "transformers",
    *,
    instruction: str | None = None,
    tag_words: tuple[str, str] | None = None,
    scale: Sequence[str] | None = None,
    chat_template: str | None = None,
    dtype: PlainWord | None = None,
    quantization: Annotated[Literal["nf4", "none"] | None, ELSEWHERE] = None,
    device: Annotated[PlainWord | None, NO_EFFECT] = None,
    rows: Annotated[Count, NO_EFFECT] = 64,
    trust_remote_code: TrustRemoteCode = False,
    any_base: Annotated[bool, NO_EFFECT] = False,
    raw: bool = False,
    scoring: Annotated[Scoring | None, ELSEWHERE] = None,
) -> Session:
    """Open a model for tagging.

    An engine with a method ``open`` loads the model itself; for any other engine the model is loaded with transformers.
    Confidences are calibrated where ``lovec calibrate`` has written a map beside the adapter, or beside a merged model.

    Args:
        model: ``world``, ``world-small``, ``tiny-llama``, ``smollm2``, a hub id, a folder or a GGUF file; None takes
            the base model that the adapter names.
        adapter: PEFT adapter folder, the folder of the run that wrote it (``runs/dpo``), a hub id with an adapter
            (``org/name`` or ``org/name@revision``), or one that comes with lovec: ``atlas``, ``atlas-grounded`` or
            ``world``.
        engine: an engine, or the name of one: "transformers", "vllm" (in this process), or the http address of a
            running vLLM server. ``lovec tag``, ``lovec.tag`` and ``lovec serve`` also take "openai", chat completions
            of any server.
        instruction: system prompt that asks for tags; None is that of the adapter's training.
        tag_words: the two words around a score; None is those of the adapter's training.
        scale: the words of the confidence scale, lowest first; None is those of the adapter's training.
        chat_template: Jinja file to use instead of the tokenizer's template; None is that of the adapter's training.
        dtype: precision of the weights, "float32" or "bfloat16"; None is float32 with transformers, and the precision
            of the stored weights with vLLM. A server has its own.
        quantization: "nf4" loads the model in 4 bits (extra ``quant``), "none" as it is stored; None as it was when the
            adapter was trained. vLLM and servers load models as they are stored.
        device: where a transformers model runs, such as "cpu" or "cuda:1"; None takes CUDA if there is a device.
        rows: the most prompts that run together, for an engine given by name.
        trust_remote_code: run code from the model's repository.
        any_base: use the adapter with ``model`` even if it names another base model.
        raw: leave confidences as they are, although there is a calibration for them.
        scoring: what is scored at a tag: "exact" every score up to the closing tag word, "prefix" the first tokens that
            tell the scores apart. That is faster, and takes for granted that the model closes a tag after a score.
            None is as in the adapter's training.

    Raises:
        LovecError: neither model nor adapter is given, one of them cannot be loaded, the adapter names another base
            model, or a folder that only ``model`` may name; the calibration was fitted to other weights, or to the
            scores of another base model, prompt or adapter; or there is no such device.
    """
    with gc_paused():
        from lovec.policy import Policy, load_stops, load_tokenizer

    chosen = _Chosen.of(
        model,
        adapter,
        instruction=instruction,
        tag_words=tag_words,
        scale=scale,
        chat_template=chat_template,
        dtype=dtype,
        quantization=quantization,
        trust_remote_code=trust_remote_code,
        any_base=any_base,
        scoring=scoring,
    )
    config, prompting = chosen.config, chosen.prompting
    early = None if stored_model(config.model) is None else chosen.deployed(raw)  # before time is spent on loading
    of_world = _is_world_model(Path(config.model))
    running = _engine_by_name(engine, rows, dtype) if isinstance(engine, str) else engine
    if isinstance(running, Opener):
        if quantization == "nf4":
            raise LovecError("quantization works only with the transformers engine; others load models as they are")
        # First, because it may refuse the tokenizer.
        encoder = encoder_of(load_tokenizer(config), *prompting, load_stops(config))
        running.open(config.model, config.adapter)
        encoder = encoder.within(running.context_length)
        served, provenance = early or chosen.deployed(raw)
        return Session(running, encoder, chosen.name, config.adapter, None, served, provenance, of_world, chosen.unit)
    place = device_of(device)
    policy = Policy(config, reference=False, trained=False).eval()
    encoder = encoder_of(policy.tokenizer, *prompting, load_stops(config)).within(policy.max_length)
    policy.to(place)
    running.sync(policy)
    served, provenance = early or chosen.deployed(raw)
    return Session(running, encoder, chosen.name, config.adapter, policy, served, provenance, of_world, chosen.unit)


def session_provenance(options: Mapping[str, Any]) -> Provenance:
    """Return what decides the scores of a session that is not opened, and whose model is not loaded.

    Args:
        options: arguments of ``open_session`` by name; those that decide no score may be among them.

    Raises:
        LovecError: no such session can be opened.
    """
    decisive = signature(_Chosen.of).parameters
    return _Chosen.of(**{name: value for name, value in options.items() if name in decisive}).provenance


@dataclass(frozen=True)
class _Chosen:
    """What the options of a session come to.

    Attributes:
        name: name of the model, as it was given or as its adapter names it.
        config: what is loaded.
        prompting: how it is prompted, and what is scored at a tag.
    """

    name: str
    config: PolicyConfig
    prompting: PromptFormat

    @classmethod
    def of(
        cls,
        model: str | os.PathLike[str] | None = None,
        adapter: str | os.PathLike[str] | None = None,
        *,
        instruction: str | None = None,
        tag_words: tuple[str, str] | None = None,
        scale: Sequence[str] | None = None,
        chat_template: str | None = None,
        dtype: str | None = None,
        quantization: Literal["nf4", "none"] | None = None,
        trust_remote_code: bool = False,
        any_base: bool = False,
        scoring: Scoring | None = None,
    ) -> _Chosen:
        """Return it, see ``open_session`` for the arguments and the errors."""
        from lovec.models import NO_MODEL, resolve_model
        from lovec.policy import PolicyConfig, check_adapter

        adapter = None if adapter is None else adapter_folder(adapter)
        name = os.fspath(model) if model else (base_model(adapter) if adapter is not None else None)
        if name is None:
            raise LovecError(NO_MODEL)
        trained = None if adapter is None else trained_quantization(adapter)
        if chat_template is None and adapter is not None:
            chat_template = trained_template(adapter)
        config = PolicyConfig(
            resolve_model(name, dtype or "float32"),
            adapter=adapter,
            any_base=any_base,
            dtype=dtype or "float32",
            quantization=None if quantization == "none" else quantization or trained,
            chat_template=chat_template,
            trust_remote_code=trust_remote_code,
        )
        if adapter is not None:
            check_adapter(adapter, config.model, any_base)  # an engine may load it by itself
        return cls(name, config, prompt_format(config.model, adapter, instruction, tag_words, scale, scoring))

    @property
    def provenance(self) -> Provenance:
        """What decides the scores, as far as the files are on this machine."""
        return policy_provenance(self.config, self.config.adapter, *self.prompting, self.name)

    @property
    def unit(self) -> Unit | None:
        """What the model was trained to give confidences to; None where nothing says that it was trained."""
        return trained_unit(self.config.adapter or self.config.model)

    def deployed(self, raw: bool) -> tuple[ServedConfidence, Provenance]:
        """Return what becomes of confidences, and what decides the scores; with ``raw`` confidences stay."""
        provenance, weights = self.provenance, self.config.adapter or self.config.model
        return ServedConfidence() if raw else ServedConfidence.beside(weights, lambda: provenance), provenance


def policy_provenance(
    config: PolicyConfig,
    adapter: str | None,
    instruction: str,
    tags: TagFormat,
    scoring: Scoring,
    grounding: Grounding | None = None,
    name: str | None = None,
) -> Provenance:
    """Return what decides the scores of a policy, as far as its files are on this machine.

    Args:
        config: what is loaded; ``model`` is a hub id or a folder, as ``resolve_model`` returns it.
        adapter: folder of the adapter, whatever the config says; None without one.
        instruction: system prompt in effect.
        tags: tag words and scale in effect.
        scoring: what is scored at a tag.
        grounding: how evidence is put into prompts; None where it is not.
        name: name of the base model in messages; None takes that of the config.
    """
    return provenance_of(
        name or config.model,
        stored_model(config.model),
        None if adapter is None else Path(adapter),
        prompt_settings(instruction, tags, None if grounding is None else asdict(grounding)),
        scoring,
        config.chat_template,
        config.quantization,
    )


class PromptFormat(NamedTuple):
    """How a model is prompted for confidences, in the order of the arguments of ``encoder_of``.

    Attributes:
        instruction: system prompt that asks for tags.
        tags: the tag words and the scale.
        scoring: what is scored at a tag.
        grounding: how evidence is put into prompts; None where it is not.
    """

    instruction: str
    tags: TagFormat
    scoring: Scoring
    grounding: Grounding | None = None


def prompt_format(
    model: str,
    adapter: str | None = None,
    instruction: str | None = None,
    tag_words: Sequence[str] | None = None,
    scale: Sequence[str] | None = None,
    scoring: Scoring | None = None,
) -> PromptFormat:
    """Return how a model is prompted, and what is scored at a tag.

    What is None is read from the ``lovec.json`` beside the adapter, or else beside the model; models of the embedded
    world have an instruction of their own. Where nothing is saved the paper's tag words and scale are used,
    ``default_instruction``, and the first tokens of scores. A saved instruction is not used with a scale other than the
    saved one. A file that does not say what is scored was written when that was the whole tag ("exact"). Evidence is
    put into prompts only where the saved format says how.

    Args:
        model: folder or hub id, as ``resolve_model`` returns it.
        adapter: folder of the adapter, if there is one.
        instruction: system prompt that asks for tags.
        tag_words: the words before and after a score.
        scale: the words of the confidence scale, lowest first.
        scoring: what is scored at a tag: "exact" every score up to the closing tag word, "prefix" the first tokens.

    Raises:
        LovecError: a ``lovec.json`` is broken, or tag words and scale do not go together.
    """
    saved = None if adapter is None else _saved_format(Path(adapter))
    saved_instruction, saved_tags, saved_scoring, grounding = (
        saved or _saved_format(Path(model)) or (None, DEFAULT_TAGS, DEFAULT_SCORING, None)
    )
    levels = saved_tags.scale if scale is None else Scale(tuple(scale))
    opening, closing = tag_words or (saved_tags.open, saved_tags.close)
    tags = TagFormat(opening, closing, levels)
    if instruction is None and levels == saved_tags.scale:
        instruction = saved_instruction
    return PromptFormat(instruction or default_instruction(tags), tags, scoring or saved_scoring, grounding)


def trained_format(adapter: str) -> PromptFormat | None:
    """Return how an adapter was prompted in training; None where no file beside it says so.

    Args:
        adapter: folder of the adapter.

    Raises:
        LovecError: the ``lovec.json`` is broken.
    """
    return _saved_format(Path(adapter)) if Path(adapter, SETTINGS).is_file() else None


def trained_unit(folder: str) -> Unit | None:
    """Return what an adapter, or a merged model, was trained to give confidences to, as its ``lovec.json`` says.

    Args:
        folder: folder of the adapter or of the model.

    Returns:
        "sentence" where the file names nothing else; None where there is no such file.

    Raises:
        LovecError: the ``lovec.json`` is broken.
    """
    if trained_format(folder) is None:
        return None
    unit: Unit = _settings(Path(folder)).get("unit", "sentence")
    return unit


def trained_quantization(adapter: str) -> Quantization | None:
    """Return how the base model was quantised when an adapter was trained, as the ``lovec.json`` beside it says.

    Args:
        adapter: folder of the adapter.

    Returns:
        "nf4", or None where it was not quantised, or where nothing is said.

    Raises:
        LovecError: the ``lovec.json`` is broken.
    """
    return "nf4" if _trained_base(adapter).get("quantization") == "nf4" else None


def trained_template(adapter: str) -> str | None:
    """Return the file with the chat template that an adapter was trained with, which its ``lovec.json`` tells of.

    Args:
        adapter: folder of the adapter.

    Returns:
        The file beside the adapter; None where the template was the tokenizer's own, or where nothing is said.

    Raises:
        LovecError: the ``lovec.json`` is broken, or the file is not the one that it tells of.
    """
    if trained_format(adapter) is None or (told := _settings(Path(adapter)).get("chat_template")) is None:
        return None
    file = Path(adapter, TEMPLATE)
    if not file.is_file() or digest(template_text(file)) != told:
        raise LovecError(
            f"{Path(adapter, SETTINGS)} tells of a chat template that is not in {file}; copy that file from where the "
            "adapter was trained"
        )
    return str(file)


def shared_gguf(adapter: str) -> str | None:
    """Return the name by which everybody has the GGUF file that an adapter was trained on, as its ``lovec.json`` says.

    Args:
        adapter: folder of the adapter.

    Returns:
        ``smollm2`` or ``org/name:file.gguf``; None for other bases.

    Raises:
        LovecError: the ``lovec.json`` is broken.
    """
    from lovec.models.gguf import SMOLLM2, is_of_hub

    name = _trained_base(adapter).get("name")
    return name if isinstance(name, str) and (name == SMOLLM2 or is_of_hub(name)) else None


def _trained_base(adapter: str) -> dict[str, Any]:
    """Return what the ``lovec.json`` beside an adapter says of its base model; nothing where there is none."""
    if trained_format(adapter) is None:
        return {}
    base = _settings(Path(adapter)).get("base")
    return base if isinstance(base, dict) else {}


def _settings(folder: Path) -> dict[str, Any]:
    """Return what the ``lovec.json`` of a folder says."""
    settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    return settings


def settings_file(
    encoder: Encoder, base: Mapping[str, Any] | None = None, unit: Unit = "sentence", template: bool = False
) -> dict[str, str]:
    """Return the files, {name: content}, from which `open_session` learns how a model is prompted.

    ``lovec.json`` holds ``{"instruction": text, "tag_words": [open, close], "scale": [words], "base": {"name": ...,
    "weights": digest, "quantization": "nf4"}, "scoring": "prefix", "grounding": {"text": ..., "tokens": 512}, "unit":
    "clause", "chat_template": digest}``; without ``scale`` it is 0 to 10, without ``quantization`` the base model was
    not in 4 bits, without ``scoring`` whole tags are scored, without ``grounding`` no evidence is put into prompts,
    without ``unit`` the model was trained on sentences, and without ``chat_template`` it has the tokenizer's own. Else
    the template is the content of ``chat_template.jinja``.

    Args:
        encoder: how it is prompted.
        base: the base model of an adapter: its name, and digests of its configuration and its weights.
        unit: what it was trained to give confidences to.
        template: whether the chat template is not the one that comes with the base model.
    """
    tags = encoder.tags
    settings: dict[str, Any] = {"instruction": encoder.instruction, "tag_words": [tags.open, tags.close]}
    if tags.scale != DEFAULT_SCALE:
        settings["scale"] = list(tags.scale.words)
    if encoder.scoring != "exact":
        settings["scoring"] = encoder.scoring
    if encoder.grounding is not None:
        settings["grounding"] = asdict(encoder.grounding)
    if unit != "sentence":
        settings["unit"] = unit
    if base is not None:
        settings["base"] = dict(base)
    files = {}
    if template:
        files[TEMPLATE] = encoder.tokenizer.chat_template
        settings["chat_template"] = digest(files[TEMPLATE])
    return {SETTINGS: json.dumps(settings, indent=1, ensure_ascii=False) + "\n"} | files


def _saved_format(folder: Path) -> PromptFormat | None:
    """Return the format saved beside an adapter or a model, the world's for its models, or None."""
    path = folder / SETTINGS
    if path.is_file():
        try:
            if path.stat().st_size > _LONGEST_SETTINGS:
                raise ValueError
            settings = _settings(folder)
            opening, closing = settings["tag_words"]
            words = tuple(settings.get("scale", DEFAULT_SCALE.words))
            instruction, scoring = settings["instruction"], settings.get("scoring", "exact")
            plain = all(len(word) <= _LONGEST_WORD and not _HIDDEN.search(word) for word in (opening, closing, *words))
            if not plain or len(words) > _MOST_LEVELS or _HIDDEN.search(re.sub(r"[\t\r\n]", "", instruction)):
                raise ValueError
            if scoring not in get_args(Scoring) or settings.get("unit", "sentence") not in get_args(Unit):
                raise ValueError
            grounding = saved_grounding(settings.get("grounding"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise LovecError(
                f'{path} is broken, expected {{"instruction": text, "tag_words": [text, text]}}, and "scale": [text, '
                f'...] where it is not 0 to 10, "scoring": "prefix" where first tokens are scored, and "unit": '
                f'"clause" where it was trained on clauses, with at most '
                f"{_LONGEST_SETTINGS} bytes, {_LONGEST_WORD} characters per word and {_MOST_LEVELS} levels, and "
                "without control characters; write it anew, or delete it"
            ) from None
        return PromptFormat(instruction, TagFormat(opening, closing, Scale(words)), scoring, grounding)
    if _is_world_model(folder):
        from lovec.datasets.world import EmbeddedWorld

        return PromptFormat(EmbeddedWorld.instruction, DEFAULT_TAGS, DEFAULT_SCORING)
    return None


def saved_grounding(saved: Any) -> Grounding | None:
    """Return what a settings file or a checkpoint says of evidence in prompts.

    Raises:
        ValueError: it is something else.
    """
    if saved is None:
        return None
    text, tokens = nested(saved, "text"), nested(saved, "tokens")
    if type(text) is not str or type(tokens) is not int or tokens < 1 or text.count(EVIDENCE) != 1:
        raise ValueError
    if _HIDDEN.search(re.sub(r"[\t\r\n]", "", text)):
        raise ValueError
    return Grounding(text, tokens)


def _is_world_model(folder: Path) -> bool:
    """Return whether a folder is the model of a built world, which has a manifest beside it."""
    manifest = folder.parent / "manifest.json"
    try:
        keys = json.loads(manifest.read_text(encoding="utf-8")).keys() if folder.name == "model" else ()
        return {"spec", "files"} <= set(keys)
    except (OSError, ValueError, AttributeError):
        return False


def base_model(adapter: str) -> str | None:
    """Return the base model that the configuration of an adapter names.

    It is a hub id, the name of an offline model, a folder of this machine by its absolute path, or a GGUF file that the
    ``lovec.json`` beside the adapter names, of the hub or by its absolute path. A relative path would be looked for in
    the working directory, where a stranger's folder may lie beside a stranger's adapter. Whatever is named is loaded
    without running code of it.

    Returns:
        The name; None where the adapter names none.

    Raises:
        LovecError: there is no adapter in the folder, or it names something else as its base model.
    """
    from lovec.models import offline_model
    from lovec.models.gguf import cached_folder
    from lovec.models.names import is_built_offline
    from lovec.policy import is_hub_id, read_adapter

    named = read_adapter(adapter).base
    if named is None or is_built_offline(named) or is_hub_id(named):
        return named
    if os.path.isabs(named) and not named.startswith("//") and os.path.isdir(named):
        return named
    if (offline := offline_model(named)) is not None:
        return offline
    if (folder := cached_folder(named)) is not None:
        return str(folder)
    if (shared := shared_gguf(adapter)) is not None:
        return shared
    given = _trained_base(adapter).get("name")
    if isinstance(given, str) and os.path.isabs(given) and os.path.isfile(given):
        return given
    raise LovecError(
        f"the adapter in {adapter} names {named[:200]} as its base model, which is neither a hub id nor a folder by "
        f"its absolute path; add --model {shlex.quote(named[:200])} if you know that model"
    )


def _engine_by_name(name: str, rows: int, dtype: str | None) -> Engine:
    """Return a new engine, given its name or the address of a server.

    Raises:
        LovecError: there is no such engine, or the package that brings it is broken.
    """
    if name == "transformers":
        with gc_paused():
            from lovec.engines import TransformersEngine

        return TransformersEngine(max_rows=rows)
    if name == "vllm":
        from lovec.engines.vllm import VllmEngine

        return VllmEngine(max_rows=rows, dtype=dtype)
    check_engine_name(name)
    if (brought := plugins("lovec.engines").get(name)) is not None:
        engine: Engine = brought.load(type)(max_rows=rows)
        return engine
    from lovec.engines.server import RemoteVllm

    return RemoteVllm(name, max_rows=rows)
