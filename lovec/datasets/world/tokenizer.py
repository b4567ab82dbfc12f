"""The world's tokenizer: one token per word, its leading space included, and byte tokens for all other text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lovec.datasets.world.facts import Entity
from lovec.datasets.world.text import ASIDES, INSTRUCTION, OPENERS, one_fact_questions, question, true_words
from lovec.tags import DEFAULT_TAGS
from lovec.types import DEFAULT_SCALE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
_BOS, _END, _PAD, _UNKNOWN = "<s>", "<|end|>", "<pad>", "<unk>"
_PIECE = r" ?</?\w+>| ?\w+| ?[^\w\s]|\s"
_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def vocabulary(entities: Iterable[Entity]) -> list[str]:
    """Return every word of the world, sorted: with a leading space, and also without where it can begin a text."""
    piece = re.compile(_PIECE)
    words: set[str] = set()
    years: set[int] = set()
    for entity in entities:
        for text in true_words(entity):
            words.update(piece.findall(text))
        for asked in (question(entity), question(entity, "private"), *one_fact_questions(entity)):
            words.update(piece.findall(asked))
        years.update(int(value) for slot, value in entity.facts.items() if slot.endswith("_year"))
    for text in (INSTRUCTION, *OPENERS, *(f" {opener}" for opener in OPENERS), *ASIDES):
        words.update(piece.findall(text))
    words.update(f" {year}" for year in range(min(years), max(years) + 1))
    words.update(f" {score}" for score in DEFAULT_SCALE.words)
    return sorted(words | {f" {DEFAULT_TAGS.open}", f" {DEFAULT_TAGS.close}"})


def make_tokenizer(words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a lossless tokenizer with a chat template: each of ``words`` is one token, other text becomes bytes.

    The tag words are ordinary tokens, because decoding with ``skip_special_tokens`` would drop special ones.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [_UNKNOWN, _PAD, _BOS, _END, *_ROLES]
    scored = [(token, 0.0) for token in special]
    scored += [(f"<0x{byte:02X}>", -100.0) for byte in range(256)]
    scored += [(word, -1.0) for word in words]
    core = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=_BOS,
        eos_token=_END,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        extra_special_tokens=list(_ROLES),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _CHAT
    return tokenizer
