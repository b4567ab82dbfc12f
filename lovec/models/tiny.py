"""Tiny models of real architectures, with random weights and a byte-level tokenizer, for tests and dry runs.

The tokenizer reproduces every text without special tokens exactly, with one token per byte. So "10" is two tokens and a
closing tag many: the hard case for scoring whole strings.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from lovec.core.files import atomic_folder, cache_folder, ensure_folder
from lovec.core.imports import without_progress_bars
from lovec.core.provenance import text_digest
from lovec.types import LovecError

_Arch: TypeAlias = dict[str, Any]

_CONFIG = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_ARCHS: dict[str, _Arch] = _CONFIG["architectures"]
_SIZES: dict[str, Any] = _CONFIG["sizes"]


def build_tiny(arch: str, path: str | os.PathLike[str], seed: int = 0, pad_is_eos: bool = False, **sizes: Any) -> Path:
    """Write a model folder: random fp32 weights of a real architecture, byte-level tokenizer, chat template.

    Args:
        arch: "llama" (supports system turns), "gemma2" (refuses system turns, ends a turn with a token other than EOS,
            has sliding-window layers), "qwen2" (no BOS, biases; transformers loads it with Qwen's own tokenizer class,
            which composes decomposed accents), "qwen3" (no BOS, normalised queries and keys), "phi3" (no BOS, fused
            layers qkv_proj and gate_up_proj), or another one of ``tiny.yaml``.
        path: folder to write, which must not exist or must be empty. It is written whole or not at all.
        seed: seed of the weights.
        pad_is_eos: whether the padding token is the end token, as in many published tokenizers.
        **sizes: values of the transformers config that replace the defaults, e.g. ``hidden_size=128``.

    Returns:
        ``path``.

    Raises:
        LovecError: the architecture is unknown, or the folder is not empty.
    """
    if arch not in _ARCHS:
        raise LovecError(f"tiny architecture {arch!r} is unknown, expected one of {', '.join(_ARCHS)}")
    target = Path(path)
    if target.exists() and any(target.iterdir()):
        raise LovecError(f"{target} is not empty; give a new folder for the tiny model")
    with atomic_folder(target) as folder:
        _write(_ARCHS[arch], folder, seed, pad_is_eos, sizes)
    return target


def tiny_names() -> list[str]:
    """Return the names of the tiny models that ``ensure_tiny`` builds."""
    return [f"tiny-{arch}" for arch in _ARCHS]


def ensure_tiny(name: str, cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a tiny model, which is built at the first call and cached.

    Args:
        name: "tiny-" and an architecture of ``build_tiny``, such as "tiny-llama".
        cache_dir: root of the cache (default: the environment variable LOVEC_CACHE, or the user's cache folder).

    Returns:
        The folder. Its name contains a hash of the settings, so that changed settings never meet an old model.

    Raises:
        LovecError: the name is unknown.
    """
    arch = name.removeprefix("tiny-")
    if name not in tiny_names():
        raise LovecError(f"tiny model {name!r} is unknown, expected one of {', '.join(tiny_names())}")
    settings = json.dumps([_ARCHS[arch], _SIZES])
    target = cache_folder(cache_dir) / "tiny" / f"{name}-{text_digest([settings])[:12]}"
    return ensure_folder(target, lambda: build_tiny(arch, target))


def _write(arch: _Arch, folder: Path, seed: int, pad_is_eos: bool, sizes: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    tokenizer = _tokenizer(arch, pad_is_eos)
    stops = tokenizer.convert_tokens_to_ids(arch["stops"])
    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = AutoConfig.for_model(arch["model_type"], **{**_SIZES, **arch["config"], **sizes, **ids})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        bos_token_id=ids["bos_token_id"], eos_token_id=stops, pad_token_id=ids["pad_token_id"]
    )
    with without_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(arch: _Arch, pad_is_eos: bool) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = dict.fromkeys([*([arch["bos"]] if arch["bos"] else []), arch["eos"], arch["pad"], *arch["others"]])
    words = arch.get("words", [])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *special, *words])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    if arch["bos"]:  # like the real tokenizers, this one writes a BOS, which may come in addition to the template's
        backend.post_processor = processors.TemplateProcessing(
            single=f"{arch['bos']} $A", special_tokens=[(arch["bos"], vocab[arch["bos"]])]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=arch["bos"],
        eos_token=arch["eos"],
        pad_token=arch["eos"] if pad_is_eos else arch["pad"],
        additional_special_tokens=arch["others"],
        chat_template=arch["template"],
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
