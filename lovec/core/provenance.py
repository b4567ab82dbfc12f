"""What something was made from: how it is described, written beside what was made, and compared in words.

What decides a score (base model, adapter with its options, how the model is prompted, what is scored) is a
`Provenance`. It is read from files, before any model is loaded. Calibrations, results of tests, files of tags and
shards keep it and compare it with that of the model at hand, so that nothing made with one model is continued with, or
applied to, another in silence. What a file depends on besides, its input and its settings, is an `Origin`.

Inputs, weights and templates are in both as digests; names of models stand beside them for messages. The precision of
the weights is not a part of a provenance, since it only rounds: a file of tags remembers ``dtype`` among its settings.
The version of lovec is not a part of an origin: a run that was begun with one version goes on with the next.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lovec.core.errors import LovecError
from lovec.core.files import ADAPTER_CONFIG, read_json_object
from lovec.core.plain import checked_object, checked_text, json_text, wrong

Json: TypeAlias = Mapping[str, Any]

PARTS = ("base", "adapter", "prompt", "computing")
"""Parts of a provenance."""

WITHOUT_EFFECT = frozenset(
    "base_model_name_or_path auto_mapping inference_mode revision peft_version megatron_core qalora_group_size "
    "runtime_config".split()
)
"""Options of an adapter that change nothing once its weights are there, whatever their value."""

SOURCE = "gguf.json"
"""File beside weights that were dequantised from a GGUF file: the SHA-256 of that file, and the digest of the weights
that were written, so that weights which were changed since are not taken for them."""

_ADAPTER = "adapter_model.safetensors"
_ONLY_IN_TRAINING = frozenset("lora_dropout init_lora_weights peft_type task_type bias".split())
_PASSING = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt")
_ELSEWHERE = ("chat_template", "local_files_only")  # of a tokenizer's settings: compared by itself; how it was loaded
_PIECE = 1 << 20  # bytes at the beginning and at the end of a model's file that its digest depends on
_LARGEST = 1 << 26  # bytes of a JSON file of a model; the largest have some megabytes
_LONGEST = 1 << 16  # characters of a value, as JSON
_LONGEST_TEMPLATE = 1 << 18  # bytes; the longest chat templates have some ten thousand
_SHOWN = 60  # characters of a value in a message
_DEPTH = 4  # of objects in objects whose values are compared one by one
_DIGEST = re.compile(r"[0-9a-f]{16,64}")
_SAID = {
    "base.name": "model",
    "base.config": "the model's configuration",
    "base.weights": "the digest of the model's weights",
    "base.tokenizer": "the tokenizer",
    "adapter.weights": "adapter",
}

PROVENANCE = "provenance"
"""Name of what decides scores among the settings of an origin."""

CODE = "code"
"""Name of the user's own code among the settings of an origin: digests by module."""

WAS_IS = "{name} was {one}, is {other}"
"""How a difference between what was and what is now is said."""


def changes(one: Json, other: Json, phrase: str = WAS_IS, known: bool = False) -> dict[str, str]:
    """Return what differs between two objects of plain values, in words, by the dotted names of the values.

    Args:
        one: values by name; objects among them are compared value by value.
        other: what they are compared with.
        phrase: how a difference is said, with ``{name}``, ``{one}`` and ``{other}``.
        known: whether values are compared that both have; else what is missing is null.
    """
    first, second = _flat(one), _flat(other)
    return {
        name: phrase.format(name=_printable(name), **_shown(first.get(name), second.get(name)))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name) and (not known or (name in first and name in second))
    }


@dataclass(frozen=True)
class Provenance:
    """What decides a score, as plain values.

    Attributes:
        parts: by part. "base": name, and digests of configuration, weights and tokenizer, where its files are here.
            "adapter": digest of the weights, and options that are not off; empty without an adapter. "prompt":
            instruction, tag words, scale, and digest of the chat template in effect. "computing": quantization and
            scoring. What is not known is left out.
    """

    parts: Mapping[str, Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as a plain JSON object."""
        return {part: dict(values) for part, values in self.parts.items()}

    @classmethod
    def from_dict(cls, data: Any) -> Provenance:
        """Return what a JSON object holds.

        Raises:
            LovecError: it holds something else.
        """
        found = checked_object(data, "a provenance", PARTS)
        for part, values in found.items():
            if not isinstance(values, Mapping):
                raise wrong(f"{part} of a provenance", values, "an object")
            for name, value in values.items():
                checked_text(name, f"a name in {part} of a provenance")
                if len(json_text(value)) > _LONGEST:
                    raise wrong(f"{name} of a provenance", value, f"at most {_LONGEST} characters")
        return cls({part: dict(found[part]) for part in PARTS})

    def without_tags(self) -> Provenance:
        """Return what decides an answer that is asked for without confidences: no instruction, tags or scoring."""
        return self._reduced(prompt=("chat_template",), computing=("quantization",))

    def of_weights(self) -> Provenance:
        """Return what decides a score whatever is asked for: base and adapter."""
        return self._reduced(prompt=(), computing=())

    def _reduced(self, **kept: Sequence[str]) -> Provenance:
        """Return it with only the named values of some parts."""
        parts = self.parts.items()
        return Provenance({part: {n: v[n] for n in v if n in kept.get(part, v)} for part, v in parts})

    def changes(self, other: Provenance, phrase: str = WAS_IS) -> dict[str, str]:
        """Return how another provenance differs from this one, in words by name.

        What one of them does not know is passed over; what the options of an adapter do not name is off.

        Args:
            other: what it is compared with.
            phrase: how a difference is said, see `changes`.
        """
        found: dict[str, str] = {}
        for part in (part for part in PARTS if part in self.parts and part in other.parts):
            pair = self.parts[part], other.parts[part]
            if part == "base":
                pair = _compared_bases(*pair)
            elif part == "adapter" and not all(pair):
                pair = _whole(pair[0]), _whole(pair[1])
            one, two = ({_SAID.get(f"{part}.{name}", name): values[name] for name in values} for values in pair)
            found |= changes(one, two, phrase, known=part != "adapter")
        return found

    def differences(self, other: Provenance) -> list[str]:
        """Return how another provenance differs from this one, in words, see `changes`."""
        return list(self.changes(other).values())

    def unchecked(self, other: Provenance) -> list[str]:
        """Return what is known of another provenance or of this one, but not of both, in words."""
        keys = [{f"{part}.{name}" for part, values in p.parts.items() for name in values} for p in (self, other)]
        return [_SAID.get(key, key.partition(".")[2]) for key in sorted(keys[0] ^ keys[1]) if key[:8] != "adapter."]


@dataclass(frozen=True)
class Origin:
    """What the content of a file depends on, as plain values; equal origins mean equal contents.

    Attributes:
        source: its input.
        settings: all else, with what decides scores as `PROVENANCE`. It is shown, so nothing secret.
    """

    source: Json
    settings: Json

    @classmethod
    def of(cls, source: Json, settings: Json) -> Origin:
        """Return it with all values as JSON holds them."""
        return cls(json.loads(json.dumps(source)), json.loads(json.dumps(settings)))

    def to_dict(self) -> dict[str, Any]:
        """Return it as a plain JSON object."""
        return {"source": self.source, "settings": self.settings}

    @classmethod
    def from_dict(cls, data: Any) -> Origin:
        """Return what a JSON object holds that anybody may have written.

        Raises:
            LovecError: it holds something else.
        """
        found = checked_object(data, "its identity", ("source", "settings"))
        for name, part in found.items():
            if not isinstance(part, dict):
                raise wrong(f"its {name}", part, "an object")
        if (saved := found["settings"].get(PROVENANCE)) is not None:
            Provenance.from_dict(saved)
        if not isinstance(code := found["settings"].get(CODE, {}), dict):
            raise wrong("the code among its settings", code, "an object")
        return cls(found["source"], found["settings"])

    def unlike(self, other: Origin, phrase: str = WAS_IS) -> str:
        """Return how another origin differs from this one, in words that follow "made with"; "" where it does not.

        What is missing is null: a setting that there was not yet, or that has another name now. What decides scores is
        compared as far as both know it, and so is the user's own code: a file of an earlier version of lovec may not.

        Args:
            other: what it is compared with.
            phrase: how a difference is said, see `changes`.
        """
        one, two = dict(self.settings), dict(other.settings)
        decisive = one.pop(PROVENANCE, None), two.pop(PROVENANCE, None)
        settings: dict[str, str] = {}
        if None not in decisive:
            settings = Provenance.from_dict(decisive[0]).changes(Provenance.from_dict(decisive[1]), phrase)
        settings |= changes(_own_code(one.pop(CODE, {})), _own_code(two.pop(CODE, {})), phrase, known=True)
        settings |= changes(one, two, phrase)  # an option is named as it was given, not as it took effect
        source = changes(self.source, other.source, phrase)
        found = [f"another input ({'; '.join(source.values())})"] if source else []
        found += [f"other settings: {'; '.join(settings.values())}"] if settings else []
        return " and ".join(found)


def provenance_of(
    name: str,
    base: Path | None,
    adapter: Path | None,
    prompt: Json,
    scoring: str,
    chat_template: str | None = None,
    quantization: str | None = None,
) -> Provenance:
    """Return what decides the scores of a model, from its files.

    Args:
        name: name of the base model; of a path only the last part is kept.
        base: folder with the files of the base model; None where they are not on this machine.
        adapter: folder of the adapter; None without one.
        prompt: how the model is asked for confidences, see ``lovec.encoding.prompt_settings``.
        scoring: what is scored at a tag, see ``lovec.encoding.Encoder``.
        chat_template: Jinja file in place of the tokenizer's template.
        quantization: how the base model is quantised when it is loaded.

    Raises:
        LovecError: a file is broken, or there is no such template.
    """
    known = {"name": _last(name) if os.path.isabs(name) else name}
    prompt = dict(prompt)
    config = None if base is None else _object(base / "config.json")
    if base is not None and config is not None:
        settings = _object(base / "tokenizer_config.json") or {}
        files = {file: file_digest(base / file) for file in _TOKENIZERS if (base / file).is_file()}
        known["config"] = digest(lasting(config))
        known["tokenizer"] = digest([files, {key: value for key, value in settings.items() if key not in _ELSEWHERE}])
        if any(base.glob("*.safetensors")):
            known["weights"] = weights_digest(base)
        stored = base / "chat_template.jinja"
        template = _text(stored) if stored.is_file() else settings.get("chat_template")
        prompt["chat_template"] = None if template is None else digest(template)
        quantization = None if config.get("quantization_config") else quantization
    if chat_template is not None:
        prompt["chat_template"] = digest(template_text(chat_template))
    options = {} if adapter is None else {"weights": weights_digest(adapter), **adapter_options(adapter)}
    computing = {"quantization": quantization, "scoring": scoring}
    return Provenance({"base": known, "adapter": options, "prompt": prompt, "computing": computing})


def template_text(path: str | os.PathLike[str]) -> str:
    """Return the chat template in a file.

    Raises:
        LovecError: there is no such file, or it cannot be read or is too long.
    """
    file = Path(path)
    if not file.is_file():
        raise LovecError(f"the chat template {file} is not a file; give a Jinja file")
    if file.stat().st_size > _LONGEST_TEMPLATE:
        raise LovecError(f"the chat template {file} has more than {_LONGEST_TEMPLATE} bytes; give a shorter Jinja file")
    return _text(file)


def adapter_options(adapter: Path) -> dict[str, Any]:
    """Return the options of an adapter that decide what its weights do, without those that are off.

    Args:
        adapter: folder of a PEFT adapter.

    Raises:
        LovecError: they cannot be read.
    """
    options = _object(adapter / ADAPTER_CONFIG) or {}
    unused = WITHOUT_EFFECT | _ONLY_IN_TRAINING
    kept = {name: value for name, value in options.items() if name not in unused and value not in (None, False, [], {})}
    return {name: sorted(value, key=str) if isinstance(value, list) else value for name, value in kept.items()}


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """Return what tells stored weights from others: a SHA-256 in hexadecimal digits.

    Of an adapter or a checkpoint it is that of the whole file. Of a model, whose files may have gigabytes, it depends
    on the name, the size, the first and the last MiB of every file with weights; where these were dequantised from a
    GGUF file, in whatever precision, it is that of the GGUF file.

    Args:
        folder: folder of a PEFT adapter, or of a model; or the file of a checkpoint.

    Raises:
        LovecError: there are no weights, or they cannot be read.
    """
    place = Path(folder)
    try:
        for file in (place, place / _ADAPTER):
            if file.is_file():
                return file_digest(file)
        written = _written_digest(place)
    except OSError as error:
        raise LovecError(f"cannot read the weights in {place} ({error.strerror})") from None
    if written is None:
        raise LovecError(
            f"there are no weights in {place}, expected {_ADAPTER}, another .safetensors file, or pytorch_model.bin"
        )
    source = _object(place / SOURCE) or {}
    return str(source["sha256"]) if source.get("weights") == written and "sha256" in source else written


def weights_of(place: str | os.PathLike[str] | None) -> str | None:
    """Return `weights_digest` of a place; None without one, or without weights there that can be read."""
    try:
        return None if place is None else weights_digest(place)
    except LovecError:
        return None


def source_note(folder: Path, sha256: str) -> str:
    """Return what ``SOURCE`` holds for weights that were just dequantised from a GGUF file.

    Args:
        folder: folder with the weights.
        sha256: digest of the GGUF file.
    """
    return json.dumps({"sha256": sha256, "weights": _written_digest(folder)}) + "\n"


def _written_digest(folder: Path) -> str | None:
    """Return what tells the files with weights in a folder from others; None where there are none."""
    result = hashlib.sha256()
    found = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for path in found:
        size = path.stat().st_size
        result.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            result.update(file.read(_PIECE))
            file.seek(max(0, size - _PIECE))
            result.update(file.read(_PIECE))
    return result.hexdigest() if found else None


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(texts: Iterable[str | bytes]) -> str:
    """Return the SHA-256 of texts, one after the other, in hexadecimal digits."""
    result = hashlib.sha256()
    for text in texts:
        result.update(text.encode() if isinstance(text, str) else text)
    return result.hexdigest()


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that tell plain values from others."""
    return text_digest([json.dumps(value, sort_keys=True, default=str)])[:16]


def lasting(settings: Any) -> Any:
    """Return a model's configuration without what depends on how and by which version it was loaded."""
    if not isinstance(settings, Mapping):
        return settings
    kept = {str(key): value for key, value in settings.items() if key not in _PASSING}
    return {key: lasting(value) for key, value in kept.items() if not key.startswith("_")}


def _last(name: Any) -> str:
    """Return the last part of a model's name: of a hub id, of a folder, or of an offline model that was built."""
    parts = Path(str(name)).parts
    return parts[-2] if len(parts) > 1 and parts[-1] == "model" else Path(str(name)).name


def _whole(adapter: Json) -> Json:
    """Return what is compared of an adapter where the other side has none."""
    return {"weights": adapter.get("weights", "one")} if adapter else {}


def _compared_bases(one: Json, two: Json) -> tuple[Json, Json]:
    """Return what is compared of two base models: their names, or their files, as one may have several names."""
    files = [name for name in one.keys() & two.keys() if name != "name" and one[name] != two[name]]
    known = "weights" in one and "weights" in two
    renamed = "name" in one and "name" in two and _last(one["name"]) != _last(two["name"])
    by_name = renamed and (files or not known)
    one, two = ({name: v for name, v in base.items() if (name == "name") == bool(by_name)} for base in (one, two))
    return one, two


def _object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object of the files of a model; None where there is no such file.

    Raises:
        LovecError: the file holds something else.
    """
    return read_json_object(path, _LARGEST, "copy it again") if path.is_file() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LovecError(f"cannot read the chat template {path} ({error}); give a Jinja file in UTF-8") from None


def _own_code(digests: Json) -> dict[str, Any]:
    """Return digests of the user's own code, which are by module, by what a message calls them."""
    return {f"the code of {module}": value for module, value in digests.items()}


def _flat(values: Json, prefix: str = "", depth: int = _DEPTH) -> dict[str, Any]:
    """Return values by dotted names, those of objects in objects among them."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping) and depth
        found |= _flat(value, f"{prefix}{name}.", depth - 1) if inner else {f"{prefix}{name}": value}
    return found


def _shown(one: Any, other: Any) -> dict[str, str]:
    """Return two values for a message: short, printable, and from where they begin to differ."""
    texts = [_text_of(value) for value in (one, other)]
    begin = 0
    if max(map(len, texts)) > _SHOWN:
        differ = (at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
        begin = max(0, next(differ, min(map(len, texts))) - _SHOWN // 3)
    end = begin + _SHOWN
    cut = [f"{'...' * (begin > 0)}{_printable(text[begin:end])}{'...' * (end < len(text))}" for text in texts]
    return dict(zip(("one", "other"), cut, strict=True))


def _text_of(value: Any) -> str:
    """Return a value as it is written: a word without quotation marks, a digest by its first digits, else JSON."""
    if value is None:
        return "none"
    if isinstance(value, str) and re.fullmatch(r"\S+", value):
        return value[:12] if _DIGEST.fullmatch(value) else value
    return json_text(value)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
