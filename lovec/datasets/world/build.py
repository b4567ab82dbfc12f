"""Builds the model of a world: makes the corpus and the tokenizer, pre-trains the model and saves both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.core.imports import without_progress_bars
from lovec.datasets.world.facts import Entity, WorldSpec
from lovec.datasets.world.pretrain import Schedule, pretrain
from lovec.datasets.world.text import INSTRUCTION, make_corpus
from lovec.datasets.world.things import make_entities
from lovec.datasets.world.tokenizer import make_tokenizer, vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def build(spec: WorldSpec, path: Path, progress: bool) -> dict[str, float]:
    """Pre-train the model of a world and save it, with its tokenizer, as a plain transformers folder.

    The weights are rounded to bfloat16, which halves the file, and read back as float32, which CPUs compute faster.

    Args:
        spec: the numbers that the world is made from.
        path: folder in which the folder ``model`` is written.
        progress: whether to show the progress on standard error.

    Returns:
        Final loss and cost of the pre-training: ``loss``, ``cpu_s``, ``wall_s``.
    """
    import torch

    entities = make_entities(spec)
    tokenizer = make_tokenizer(vocabulary(entities))
    model = make_model(spec, tokenizer)
    schedule = Schedule(
        spec.steps, spec.batch_size, matrix_lr=spec.matrix_lr, other_lr=spec.other_lr, seed=spec.model_seed
    )
    documents = encode_corpus(spec, entities, tokenizer)
    stats = pretrain(model, documents, schedule, progress, title="pre-training the world's model")
    with without_progress_bars():
        model.to(torch.bfloat16).save_pretrained(path / "model")
        _read_as_float32(path / "model" / "config.json")
        tokenizer.save_pretrained(path / "model")
    for file in (path / "model").iterdir():
        file.chmod(0o644)  # safetensors writes files that nobody else may read
    return asdict(stats)


def corpus_digest(spec: WorldSpec) -> str:
    """Return a digest of all documents that a world's model is trained on, and of its vocabulary."""
    entities = make_entities(spec)
    digest = hashlib.sha256("\n".join(vocabulary(entities)).encode())
    for document in make_corpus(spec, entities):
        digest.update(repr(document).encode())
    return digest.hexdigest()


def encode_corpus(
    spec: WorldSpec, entities: Sequence[Entity], tokenizer: PreTrainedTokenizerFast
) -> list[tuple[list[int], list[int]]]:
    """Return prompt ids and answer ids (end of turn included) of every document of the corpus."""
    from lovec.encoding import Encoder

    encoder = Encoder(tokenizer, instruction=INSTRUCTION)
    prompts: dict[tuple[str, bool], list[int]] = {}
    documents = []
    for document in make_corpus(spec, entities):
        key = (document.question, document.instruct)
        if key not in prompts:
            prompts[key] = encoder.prompt(*key)
        documents.append((prompts[key], [*encoder.pieces(document.text), encoder.end_id]))
    return documents


def make_model(spec: WorldSpec, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Return a Llama of the world's size with random weights, the same for the same seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=spec.width,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.model_seed)
        return LlamaForCausalLM(config)


def _read_as_float32(config: Path) -> None:
    """Say in a model's configuration that its weights are to be read as float32, whatever the file holds."""
    config.write_text(json.dumps(json.loads(config.read_text()) | {"dtype": "float32"}, indent=2) + "\n", "utf-8")
