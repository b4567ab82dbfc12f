"""What a policy would say behind the opening tag word: its most probable tokens for a true and for a false sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lovec.encoding import Encoder
from lovec.metrics.functional import ordinality
from lovec.policy import Policy
from lovec.taggers.scoring import History, Passage, Step, score_passages
from lovec.types import Engine, Record

SHOWN = 15
"""Tokens kept of a case (paper, "numerical consistency")."""


def collect(
    method: str,
    policy: Policy,
    engine: Engine,
    encoder: Encoder,
    records: Sequence[Record],
    history: History = "scores",
) -> list[dict[str, Any]]:
    """The next tokens of one correct and one incorrect sentence, the same ones for every policy.

    Args:
        method: what tables call the policy.
        policy: gives the logits, wearing whatever it wears.
        engine: in step with it; gives the earlier scores, which are the policy's own, as in iterative tagging.
        encoder: the policy's.
        records: labelled; tags they carry are ignored.
        history: what the context holds of earlier sentences.

    Returns:
        One for each case that there is ("correct": the first of the truest sentences, if its factuality is above 0.5;
        "incorrect": the first of the least true, if below): ``method``, ``case``, ``sentence``; ``tokens``, the
        ``SHOWN`` most probable next tokens with their text and probability ``p``; ``ordinality`` of the eleven whole
        scores, None where it is undefined. A sentence whose context does not fit the model is left out.
    """
    found = []
    for case, record, at in _cases(records):
        steps = [Step(sentence.text) for sentence in record.sentences[: at + 1]]
        asked = Passage(record.id, encoder.prompt(record.question), steps)
        score_passages(engine, encoder, [asked], history)
        *past, logps = asked.logps
        if logps is None:
            continue
        again = Passage(record.id, asked.prompt, steps)
        for earlier in past:
            again.advance(encoder, history, earlier)
        context = again.next_context(encoder, history, None)
        assert context is not None
        order = float(ordinality(torch.tensor([logps], dtype=torch.float64).exp()))
        found.append(
            {
                "method": method,
                "case": case,
                "sentence": steps[-1].text,
                "tokens": _tokens(policy, encoder, context),
                "ordinality": None if order != order else order,
            }
        )
    return found


def _cases(records: Sequence[Record]) -> Iterator[tuple[str, Record, int]]:
    """Name, record and index of the sentence of each case."""
    labelled = [
        (sentence.factuality, record, at)
        for record in records
        for at, sentence in enumerate(record.sentences)
        if sentence.factuality is not None
    ]
    if not labelled:
        return
    for case, side, pick in (("correct", 1, max), ("incorrect", -1, min)):
        truth, record, at = pick(labelled, key=lambda found: found[0])
        if side * (truth - 0.5) > 0:
            yield case, record, at


def _tokens(policy: Policy, encoder: Encoder, context: Sequence[int]) -> list[dict[str, Any]]:
    """Text and probability of the most probable tokens behind a context."""
    training = policy.training
    policy.eval()
    try:
        with torch.no_grad():
            ids = torch.tensor([context], device=policy.device)
            logits = policy.model(input_ids=ids, use_cache=False).logits[0, -1]
    finally:
        policy.train(training)
    top = logits.double().softmax(-1).topk(min(SHOWN, logits.numel()))
    return [
        {"text": str(encoder.tokenizer.decode([token], clean_up_tokenization_spaces=False)), "p": p}
        for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]
