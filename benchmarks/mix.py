"""The model and the rows that speed is measured on: random weights and made-up words, with the lengths of real rows.

The tokenizer splits text by Llama 3's own rule, and every piece is one token. Llama 3 has all pieces of the paper's
instruction and of the tags as single tokens, but for "factually", which are two.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

from common import most_tokens
from tokenizers import Tokenizer

from lovec.datamodules import World
from lovec.datasets.pairs import with_rejected
from lovec.encoding import INSTRUCTION, Encoder
from lovec.engines import TransformersEngine
from lovec.models.tiny import build_tiny
from lovec.policy import PolicyConfig, load_tokenizer
from lovec.tags import DEFAULT_TAGS
from lovec.types import Record, Sampling, Sentence

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Llama 3's rule for splitting text before merges, as published with its tokenizer."""
CONFIG = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1792,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
"""Width 512, 6 layers, 32,000 words; otherwise the proportions of Llama-3-8B."""
WORDS = ["".join(letters) for letters in itertools.product(ascii_lowercase, repeat=3)]
DRAWN = 15_000
"""Words of questions and sentences; each is one token, at the beginning of a sentence too."""


@dataclass(frozen=True)
class Mix:
    """Rows with made-up words.

    Attributes:
        name: what tables call it.
        prompt: tokens of every prompt, template included.
        completion: mean tokens of a completion, tags and end of turn included.
        spread: standard deviation of that number.
        tags: tagged sentences per completion.
        instruction: system prompt, which all rows share.
    """

    name: str
    prompt: int = 190
    completion: int = 294
    spread: int = 70
    tags: int = 8
    instruction: str = INSTRUCTION

    @property
    def shorter(self) -> Mix:
        """Rows whose completions are an eighth as long."""
        return replace(self, completion=self.completion // 8, spread=self.spread // 8, tags=2)

    def model(self, folder: Path) -> str:
        """Write the model's configuration and tokenizer to a folder; return its name."""
        return write_model(folder)

    def answers(self, questions: int, group: int, encoder: Encoder) -> list[Record]:
        """Return labelled pairs, ``group`` to every question; words, lengths and scores are always the same.

        Args:
            questions: number of questions.
            group: answers per question.
            encoder: encodes them; it has ``instruction``.
        """
        draw, n = random.Random(self.name), questions * group
        around = len(encoder.prompt(WORDS[0])) - 1
        tag = len(encoder.head(f"{WORDS[0]}.", first=True)) - 2 + len(encoder.tails[0])
        # Spaced like a normal distribution, so that a few rows are as long and as ragged as many.
        lengths = [NormalDist().inv_cdf((i + 0.5) / n) * self.spread + self.completion for i in range(n)]
        asked = [" ".join(draw.choices(WORDS[:DRAWN], k=self.prompt - around)) for _ in range(questions)]
        records = []
        for number, length in enumerate(draw.sample(lengths, n)):
            text = max(2 * self.tags, round(length) - 1 - self.tags * tag)  # words and full stops
            cuts = sorted(draw.sample(range(1, text - self.tags), self.tags - 1))
            words = [end - start for start, end in itertools.pairwise([0, *cuts, text - self.tags])]
            sentences = tuple(
                Sentence(" ".join(draw.choices(WORDS[:DRAWN], k=k)) + ".", factuality=draw.randint(0, 10) / 10)
                for k in words
            )
            row = Record(f"r{number}", asked[number // group], sentences=sentences)
            records.append(with_rejected(row, seed=0))
        return records


@dataclass(frozen=True)
class WorldRows:
    """Answers that the model of the embedded world wrote, with that model and its tokenizer."""

    name: str = "world's records"
    variant: str = "world-small"

    @property
    def shorter(self) -> WorldRows:
        """The same rows, which are short."""
        return self

    def model(self, folder: Path) -> str:
        """Return the name of the world's model, which is built unless it is cached."""
        return self.variant

    @property
    def instruction(self) -> str:
        """The short instruction that the world's model knows."""
        return World(self.variant).instruction

    def answers(self, questions: int, group: int, encoder: Encoder) -> list[Record]:
        """Return labelled pairs: ``group`` answers to every question, sampled and rated as the recipes do it."""
        from transformers import AutoModelForCausalLM

        data, engine = World(self.variant), TransformersEngine()
        engine.sync(SimpleNamespace(model=AutoModelForCausalLM.from_pretrained(data.world.model_path)))
        asked = data.questions("train")[:questions]
        prompts = [encoder.prompt(row.question, instruct=False) for row in asked]
        sampling = Sampling(max_new_tokens=most_tokens(), temperature=data.temperature, n=group)
        groups = engine.generate(prompts, sampling, encoder.stop_ids, keys=[row.id for row in asked])
        rows = []
        for row, answers in zip(asked, groups, strict=True):
            for number, answer in enumerate(answers):
                sentences = data.world.split_sentences(encoder.decode(answer.ids).strip())
                rows.append(replace(row, id=f"{row.id}/{number}", sentences=tuple(map(Sentence, sentences))))
        rated = zip(rows, data.oracle.rate(rows), strict=True)
        return [with_rejected(row.with_factuality(values), seed=0) for row, values in rated]


MIX = Mix("mix")
SHORT = Mix("short prompts", prompt=20, instruction="")


def write_model(folder: Path, config: dict[str, Any] = CONFIG) -> str:
    """Write configuration and tokenizer to a folder; return the model's name, whose weights are drawn at random."""
    build_tiny("llama", folder)
    (folder / "model.safetensors").unlink()
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, tokenizer["pre_tokenizer"]]}
    tokenizer["model"]["ignore_merges"] = True  # a piece that is in the vocabulary is one token
    pieces = Tokenizer.from_str(json.dumps(tokenizer)).pre_tokenizer.pre_tokenize_str
    tags = "".join(f" {DEFAULT_TAGS.open} {word} {DEFAULT_TAGS.close}" for word in DEFAULT_TAGS.scale.words)
    known = f"{INSTRUCTION}\n\nuser\n\nassistant\n\nsystem {' '.join(WORDS[:DRAWN])}.{tags}"
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    for piece, _ in [*pieces(known), *((word, None) for word in WORDS)]:
        if len(vocabulary) < config["vocab_size"]:
            vocabulary.setdefault(piece, len(vocabulary))
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8")) | config
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    return f"random:{folder}"


def tokens(text: str) -> int:
    """Count a text's tokens under this tokenizer, special tokens left out."""
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        return len(load_tokenizer(PolicyConfig(model=folder))(text, add_special_tokens=False)["input_ids"])


def llama_tokens(text: str) -> int | None:
    """Count a text's tokens under Llama 3's own tokenizer; None where the packages that hold it are not installed."""
    if not all(map(importlib.util.find_spec, ("llama_models", "tiktoken"))):
        return None
    import tiktoken

    [package] = importlib.util.find_spec("llama_models").submodule_search_locations
    lines = (Path(package) / "llama3" / "tokenizer.model").read_bytes().split(b"\n")
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    encoding = tiktoken.Encoding("llama3", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    return len(encoding.encode_ordinary(text))
