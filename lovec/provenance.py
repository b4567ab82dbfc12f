"""What decides a score: the base model, the adapter with its options, how the model is prompted, and what is scored.

Whatever depends on scores (a calibration, a file of tags, a shard) keeps a `Provenance` and compares it with that of
the model at hand, so that nothing fitted to one model is applied to another in silence. It is read from files, before
any model is loaded. Weights and templates are in it as digests; names of models stand beside them for messages.

The precision of the weights is no part of it, since it only rounds: a file of tags remembers ``dtype`` by itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lovec.plain import checked_object, checked_text, parse_json, wrong
from lovec.tags import TagFormat
from lovec.types import LovecError

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

_ADAPTER, _OPTIONS = "adapter_model.safetensors", "adapter_config.json"
_ONLY_IN_TRAINING = frozenset("lora_dropout init_lora_weights peft_type task_type bias".split())
_PASSING = ("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt")
_PIECE = 1 << 20  # bytes at the beginning and at the end of a model's file that its digest depends on
_LONGEST = 1 << 16  # characters of a value, as JSON
_SHOWN = 48  # characters of a value in a message
_SAID = {
    "base.name": "the base model",
    "base.config": "the configuration of the base model",
    "base.weights": "the weights of the base model",
    "base.tokenizer": "the tokenizer",
    "adapter.weights": "the weights of the adapter",
    "prompt.tag_words": "tag words",
    "prompt.chat_template": "the chat template",
    "computing.scoring": "what is scored at a tag",
}
_DIGESTS = ("base.config", "base.weights", "base.tokenizer", "adapter.weights", "prompt.chat_template")


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
                if len(_json(value)) > _LONGEST:
                    raise wrong(f"{name} of a provenance", value, f"at most {_LONGEST} characters")
        return cls({part: dict(found[part]) for part in PARTS})

    def without_tags(self) -> Provenance:
        """Return what decides an answer that is asked for without confidences: no instruction, tags or scoring."""
        kept = {"prompt": ("chat_template",), "computing": ("quantization",)}
        parts = {
            part: {name: value for name, value in values.items() if name in kept.get(part, (name,))}
            for part, values in self.parts.items()
        }
        return Provenance(parts)

    def differences(self, other: Provenance, places: tuple[str, str] = ("there", "here")) -> list[str]:
        """Return how another provenance differs from this one, in words; what one of them does not know is passed over.

        Args:
            other: what it is compared with.
            places: words that say where this one and the other one are from.
        """
        unlike = {key: (one, two) for key, one, two in self._pairs(other) if _json(one) != _json(two)}
        known = all("weights" in provenance.parts.get("base", {}) for provenance in (self, other))
        files = [key for key in unlike if key.startswith("base.") and key != "base.name"]
        if "base.name" in unlike and _last(unlike["base.name"][0]) != _last(unlike["base.name"][1]):
            unneeded = files if files or not known else ["base.name"]  # one model may lie in folders of several names
        else:
            unneeded = ["base.name"]
        for key in unneeded:
            unlike.pop(key, None)
        found = []
        for key, values in unlike.items():
            one, two = _shown(key, *values)
            found.append(f"{_SAID.get(key, key.partition('.')[2] or key)}: {one} {places[0]}, {two} {places[1]}")
        return found

    def unchecked(self, other: Provenance) -> list[str]:
        """Return what is known of another provenance or of this one, but not of both, in words."""
        keys = [{f"{part}.{name}" for part, values in p.parts.items() for name in values} for p in (self, other)]
        return [_SAID.get(key, key.partition(".")[2]) for key in sorted(keys[0] ^ keys[1]) if key[:8] != "adapter."]

    def _pairs(self, other: Provenance) -> Iterator[tuple[str, Any, Any]]:
        """Yield what both know, by its name; what an adapter's options do not name is off."""
        for part in PARTS:
            one, two = self.parts.get(part), other.parts.get(part)
            if one is None or two is None:
                continue
            if part == "adapter" and bool(one) != bool(two):
                yield part, "one" if one else None, "one" if two else None
                continue
            names = {*one, *two} if part == "adapter" else one.keys() & two.keys()
            for name in sorted(names):
                yield f"{part}.{name}", one.get(name), two.get(name)


def provenance_of(
    name: str,
    base: Path | None,
    adapter: Path | None,
    instruction: str,
    tags: TagFormat,
    scoring: str,
    chat_template: str | None = None,
    quantization: str | None = None,
) -> Provenance:
    """Return what decides the scores of a model, from its files.

    Args:
        name: name of the base model; of a path only the last part is kept.
        base: folder with the files of the base model; None where they are not on this machine.
        adapter: folder of the adapter; None without one.
        instruction: system prompt in effect.
        tags: tag words and scale in effect.
        scoring: what is scored at a tag, see ``lovec.encoding.Encoder``.
        chat_template: Jinja file in place of the tokenizer's template.
        quantization: how the base model is quantised when it is loaded.

    Raises:
        LovecError: a file is broken, or there is no such template.
    """
    known = {"name": _last(name) if os.path.isabs(name) else name}
    prompt: dict[str, Any] = {
        "instruction": instruction,
        "tag_words": [tags.open, tags.close],
        "scale": list(tags.scale.words),
    }
    config = None if base is None else _object(base / "config.json")
    if base is not None and config is not None:
        settings = _object(base / "tokenizer_config.json") or {}
        files = {file: _bytes_digest(base / file) for file in _TOKENIZERS if (base / file).is_file()}
        known["config"] = digest(lasting(config))
        known["tokenizer"] = digest([files, {key: value for key, value in settings.items() if key != "chat_template"}])
        if any(base.glob("*.safetensors")):
            known["weights"] = weights_digest(base)
        stored = base / "chat_template.jinja"
        template = _text(stored) if stored.is_file() else settings.get("chat_template")
        prompt["chat_template"] = None if template is None else digest(template)
        quantization = None if config.get("quantization_config") else quantization
    if chat_template is not None:
        if not Path(chat_template).is_file():
            raise LovecError(f"the chat template {chat_template} is not a file; give a Jinja file")
        prompt["chat_template"] = digest(_text(Path(chat_template)))
    options = {} if adapter is None else {"weights": weights_digest(adapter), **adapter_options(adapter)}
    computing = {"quantization": quantization, "scoring": scoring}
    return Provenance({"base": known, "adapter": options, "prompt": prompt, "computing": computing})


def adapter_options(adapter: Path) -> dict[str, Any]:
    """Return the options of an adapter that decide what its weights do, without those that are off.

    Args:
        adapter: folder of a PEFT adapter.

    Raises:
        LovecError: they cannot be read.
    """
    options = _object(adapter / _OPTIONS) or {}
    unused = WITHOUT_EFFECT | _ONLY_IN_TRAINING
    kept = {name: value for name, value in options.items() if name not in unused and value not in (None, False, [], {})}
    return {name: sorted(value, key=str) if isinstance(value, list) else value for name, value in kept.items()}


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """Return what tells the weights in a folder from others: a SHA-256 in hexadecimal digits.

    Of an adapter it is that of the whole file. Of a model, whose files may have gigabytes, it depends on the name, the
    size, the first and the last MiB of every file with weights; where these were dequantised from a GGUF file, in
    whatever precision, it is that of the GGUF file.

    Args:
        folder: folder of a PEFT adapter, or of a model.

    Raises:
        LovecError: there are no weights in the folder, or they cannot be read.
    """
    place = Path(folder)
    try:
        if (place / _ADAPTER).is_file():
            return _bytes_digest(place / _ADAPTER)
        written = _written_digest(place)
    except OSError as error:
        raise LovecError(f"cannot read the weights in {place} ({error.strerror})") from None
    if written is None:
        raise LovecError(f"there are no weights in {place}, expected {_ADAPTER} or another .safetensors file")
    source = _object(place / SOURCE) or {}
    return str(source["sha256"]) if source.get("weights") == written and "sha256" in source else written


def source_note(folder: Path, sha256: str) -> str:
    """Return what ``SOURCE`` holds for weights that were just dequantised from a GGUF file.

    Args:
        folder: folder with the weights.
        sha256: digest of the GGUF file.
    """
    return json.dumps({"sha256": sha256, "weights": _written_digest(folder)}) + "\n"


def _written_digest(folder: Path) -> str | None:
    """Return what tells the files with weights in a folder from others; None where there are none."""
    result, found = hashlib.sha256(), sorted(folder.glob("*.safetensors"))
    for path in found:
        size = path.stat().st_size
        result.update(f"{path.name} {size} ".encode())
        with open(path, "rb") as file:
            result.update(file.read(_PIECE))
            file.seek(max(0, size - _PIECE))
            result.update(file.read(_PIECE))
    return result.hexdigest() if found else None


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits that tell plain values from others."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


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


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _object(path: Path) -> dict[str, Any] | None:
    """Return a JSON object of the files of a model; None where there is no such file.

    Raises:
        LovecError: the file holds something else.
    """
    if not path.is_file():
        return None
    try:
        found = parse_json(path.read_bytes())
    except OSError as error:
        raise LovecError(f"cannot read {path} ({error.strerror})") from None
    except LovecError as error:
        raise LovecError(f"{path} is broken: {error}; copy it again") from None
    if not isinstance(found, dict):
        raise LovecError(f"{path} is broken: it holds a {type(found).__name__}, expected a JSON object; copy it again")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise LovecError(f"cannot read the chat template {path} ({error}); give a Jinja file in UTF-8") from None


def _bytes_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(key: str, one: Any, two: Any) -> tuple[str, str]:
    """Return two values for a message: short, printable, and from where they begin to differ."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in (one, two)]
    begin = 0
    if max(map(len, texts)) > _SHOWN:
        differ = (at for at, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
        begin = max(0, next(differ, min(map(len, texts))) - _SHOWN // 3)
    most = 12 if key in _DIGESTS else _SHOWN
    shown = []
    for value, text in zip((one, two), texts, strict=True):
        part = "".join(c if c.isprintable() else " " for c in text[begin : begin + most])
        part = f"{'...' * (begin > 0)}{part}{'...' * (begin + most < len(text) and key not in _DIGESTS)}"
        quoted = isinstance(value, str) and key.startswith("prompt.") and key not in _DIGESTS
        shown.append("none" if value is None else f'"{part}"' if quoted else part)
    return shown[0], shown[1]
