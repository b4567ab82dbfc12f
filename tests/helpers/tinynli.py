"""A tiny random classifier of sentence pairs with a byte-level tokenizer, in place of an NLI model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

LABELS = ("entailment", "neutral", "contradiction")


def tiny_nli(
    folder: Path, arch: str = "bert", labels: Sequence[str] = LABELS, pad: bool = True, positions: int = 128
) -> str:
    """Return the path of a model in ``folder``, built once; its weights are large, so that pairs get different results.

    Args:
        folder: where to build it.
        arch: "bert", "roberta" or "llama".
        labels: names of its labels.
        pad: whether its tokenizer has a padding token.
        positions: the most tokens of a pair.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    path = folder / f"{arch}-{'-'.join(labels)}"
    if path.exists():
        return str(path)
    special = ["[CLS]", "[PAD]", "[SEP]"]  # RoBERTa counts positions from behind the padding id
    vocab = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    second = 1 if arch == "bert" else 0
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 0), ("[SEP]", 2)],
    )
    padding: dict[str, Any] = {"pad_token": "[PAD]"} if pad else {}
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", *(["token_type_ids"] if second else []), "attention_mask"],
        clean_up_tokenization_spaces=False,
        **padding,
    ).save_pretrained(path)
    config = AutoConfig.for_model(
        arch,
        vocab_size=len(vocab),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=positions + 2 if arch == "roberta" else positions,
        type_vocab_size=1 + second,
        pad_token_id=1 if pad else None,
        initializer_range=0.3,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(path)
    return str(path)
