"""A model opened for use outside training: an engine that samples and scores with it, and its encoder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lovec.encoding import INSTRUCTION, Encoder
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import Engine, LovecError

SETTINGS = "lovec.json"
"""File beside an adapter or a model that says how it is asked: ``{"instruction": ..., "tag_words": [..., ...]}``."""

_ENGINES = "transformers, vllm, or the address of a vLLM server such as http://127.0.0.1:8000/v1"
_WORDS = re.compile(r"\w+")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@runtime_checkable
class Opener(Protocol):
    """An engine that loads, or finds on a server, a model by itself."""

    def open(self, model: str, adapter: str | None) -> None:
        """Sample and score with a model (folder or hub id), wearing a PEFT adapter (folder) if there is one."""


@dataclass(frozen=True)
class Session:
    """A model that is ready to tag.

    Attributes:
        engine: samples and scores with it.
        encoder: prompts of its tokenizer, with the instruction that the model knows.
        model: its name or folder, as it was given or as its adapter names it.
        adapter: folder of the PEFT adapter; None for the model as it is.
    """

    engine: Engine
    encoder: Encoder
    model: str
    adapter: str | None = None

    def unknown_words(self, texts: Iterable[str]) -> float:
        """Share of the words, in [0, 1], that the tokenizer has no pieces for and spells in bytes; 0 without words."""
        tokenizer: Any = self.encoder.tokenizer
        words = [word for text in texts for word in _WORDS.findall(text)]
        spelt = {word for word in set(words) if self._is_spelt(tokenizer, word)}
        return sum(word in spelt for word in words) / max(len(words), 1)

    def close(self) -> None:
        """Give back what the engine holds, where it can."""
        if (close := getattr(self.engine, "close", None)) is not None:
            close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_spelt(self, tokenizer: Any, word: str) -> bool:
        # Inside a text most words follow a space; one that has only a piece for its beginning is known all the same.
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
    chat_template: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    rows: int = 64,
    trust_remote_code: bool = False,
) -> Session:
    """Open a model. An engine that can load models by itself is told which; otherwise it runs a transformers copy.

    Args:
        model: ``world``, ``world-small``, ``tiny-llama``, a hub id or a folder; None takes the base that the adapter
            names.
        adapter: PEFT adapter folder, or the folder of the run that wrote it (``runs/dpo``).
        engine: an engine, or the name of one: "transformers", "vllm" (in this process), or the http address of a
            running vLLM server.
        instruction: system prompt that asks for tags; None takes the one beside adapter or model (``lovec.json``), the
            world's own for its models, or else the paper's.
        tag_words: the words around a score; None takes those beside adapter or model, or else the paper's.
        chat_template: Jinja file to use instead of the tokenizer's template.
        dtype: precision of the weights, "float32" or "bfloat16"; None is float32 for a transformers copy, and as the
            weights are stored for vLLM. A server has its own.
        device: where a transformers copy runs, such as "cpu" or "cuda:1"; None takes CUDA where there is some.
        rows: prompts that run together, for an engine given by name.
        trust_remote_code: run code from the model's repository.

    Raises:
        LovecError: neither model nor adapter is given, or one of them cannot be loaded.
    """
    from lovec.policy import Policy, PolicyConfig, load_tokenizer
    from lovec.taggers.models import resolve_model

    if adapter is not None:
        adapter = adapter_folder(adapter)
    name = model or (base_of(adapter) if adapter is not None else None)
    if name is None:
        raise LovecError(
            "no model is given; offline, `--model world --adapter runs/dpo/adapter` is one (`lovec fit --config "
            "sft.yaml` and `--config dpo.yaml` train it); `--model meta-llama/Meta-Llama-3-8B-Instruct --adapter "
            "FOLDER` is one of the hub's"
        )
    config = PolicyConfig(
        resolve_model(name),
        adapter=adapter,
        dtype=dtype or "float32",
        chat_template=chat_template,
        trust_remote_code=trust_remote_code,
    )
    asked = asked_how(config.model, adapter)
    asked = instruction or asked[0], TagFormat(*tag_words) if tag_words else asked[1]
    running = _engine_named(engine, rows, dtype) if isinstance(engine, str) else engine
    if isinstance(running, Opener):
        encoder = Encoder(load_tokenizer(config), *asked)
        running.open(config.model, adapter)
    else:
        policy = Policy(config, reference=False).eval()
        encoder = Encoder(policy.tokenizer, *asked)
        policy.to(device or _best_device())
        running.sync(policy)
    return Session(running, encoder, name, adapter)


def asked_how(model: str, adapter: str | None) -> tuple[str, TagFormat]:
    """The instruction that a model knows, and its tag words.

    Args:
        model: its folder or hub id, as `resolve_model` gives it.
        adapter: folder of the adapter it wears; what lies beside that counts first.

    Raises:
        LovecError: a ``lovec.json`` is broken.
    """
    held = {**_settings(Path(model)), **(_settings(Path(adapter)) if adapter is not None else {})}
    words = held.get("tag_words") or (DEFAULT_TAGS.open, DEFAULT_TAGS.close)
    return held.get("instruction") or INSTRUCTION, TagFormat(*words)


def settings_file(encoder: Encoder) -> dict[str, str]:
    """What to write beside an adapter or a model, by file name, so that `open_session` asks it as it is asked now."""
    held = {"instruction": encoder.instruction, "tag_words": [encoder.tags.open, encoder.tags.close]}
    return {SETTINGS: json.dumps(held, indent=1, ensure_ascii=False) + "\n"}


def _settings(folder: Path) -> dict[str, Any]:
    """What lies beside an adapter or model on how it is asked; a model of the world brings the world's instruction."""
    path = folder / SETTINGS
    if path.is_file():
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            instruction, (opening, closing) = str(held["instruction"]), held["tag_words"]
        except (ValueError, KeyError, TypeError):
            raise LovecError(f'{path} is broken, expected {{"instruction": text, "tag_words": [text, text]}}') from None
        return {"instruction": instruction, "tag_words": (str(opening), str(closing))}
    if _is_world(folder):
        from lovec.datasets.world import World

        return {"instruction": World.instruction}
    return {}


def _is_world(folder: Path) -> bool:
    """Whether this is the model in the folder of a built world, which has a manifest of its own."""
    manifest = folder.parent / "manifest.json"
    if folder.name != "model" or not manifest.is_file():
        return False
    try:
        return bool({"spec", "figures", "files"} <= json.loads(manifest.read_text(encoding="utf-8")).keys())
    except (ValueError, AttributeError):
        return False


def adapter_folder(path: str) -> str:
    """The adapter of a run, where the folder of the run is given."""
    inner = Path(path) / "adapter"
    outer = Path(path) / "adapter_config.json"
    return str(inner) if not outer.is_file() and (inner / "adapter_config.json").is_file() else path


def base_of(adapter: str) -> str | None:
    """The base model that an adapter was trained on, as its configuration names it."""
    from lovec.policy import check_adapter

    check_adapter(adapter)
    held = json.loads((Path(adapter) / "adapter_config.json").read_text(encoding="utf-8"))
    return held.get("base_model_name_or_path") or None


def _engine_named(name: str, rows: int, dtype: str | None) -> Engine:
    """A new engine by its name.

    Raises:
        LovecError: there is no such engine.
    """
    if name == "transformers":
        from lovec.engines import TransformersEngine

        return TransformersEngine(max_rows=rows)
    if name == "vllm":
        from lovec.engines.vllm import VllmEngine

        return VllmEngine(max_rows=rows, dtype=dtype)
    if name.startswith(("http://", "https://")):
        from lovec.engines.server import VllmServer

        return VllmServer(name, max_rows=rows)
    raise LovecError(f"the engine is {name!r}, expected one of {_ENGINES}")


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
