"""A tokenizer in the manner of SentencePiece, without a download."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

INST = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + eos_token }}"
    "{% else %}{{ raise_exception('no system turn') }}{% endif %}{% endfor %}"
)  # fmt: skip


def sentencepiece() -> Any:
    """A tokenizer in the manner of Gemma and Mistral: a space is a character of tokens, unknown ones become bytes."""
    letters = ["▁", *map(chr, range(33, 127)), *(f"<0x{byte:02X}>" for byte in range(256))]
    merges = [("▁", "W"), ("h", "o"), ("▁W", "ho"), ("▁", "[")]
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *letters, *("".join(m) for m in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    backend.add_tokens([AddedToken(t, normalized=False, special=False) for t in ("[INST]", "[/INST]")])  # not marked
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>",
        chat_template=INST, clean_up_tokenization_spaces=False,
    )  # fmt: skip
