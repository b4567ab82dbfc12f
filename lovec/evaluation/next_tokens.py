"""The most probable tokens of a policy after the opening tag word, for a true and for a false sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lovec.encoding import Encoder
from lovec.metrics.functional import ordinality
from lovec.policy import Policy
from lovec.taggers.scoring import History, Passage, Step
from lovec.types import DEFAULT_SCALE, Engine, Record

TOP_TOKENS = 15
"""Number of tokens kept per case (paper, "numerical consistency")."""


def next_tokens(
    method: str,
    policy: Policy,
    engine: Engine,
    encoder: Encoder,
    records: Sequence[Record],
    history: History = "scores",
) -> list[dict[str, Any]]:
    """Return the next tokens of one correct and one incorrect sentence, the same sentences for every policy.

    Args:
        method: name of the policy in tables.
        policy: gives the logits, with the adapter that is active.
        engine: in sync with the policy; gives the earlier scores, which are the policy's own, as in iterative tagging.
        encoder: the policy's.
        records: labelled records; tags in them are ignored.
        history: what the context shows of earlier sentences.

    Returns:
        One dictionary per case that there is ("correct": the first of the truest sentences, if its factuality is above
        0.5; "incorrect": the first of the least true ones, if it is below): ``method``, ``case``, ``sentence``;
        ``tokens``, the ``TOP_TOKENS`` most probable next tokens with their ``text`` and probability ``p``;
        ``ordinality`` of the distribution over whole scores, None where it is undefined; and the words of the scale as
        ``scale``, unless it is 0 to 10. A sentence that does not fit the model is left out.
    """
    results = []
    for case, record, index in _cases(records):
        steps = [Step(sentence.text) for sentence in record.sentences[: index + 1]]
        passage = Passage(record.id, encoder.record_prompt(record), steps)
        context: list[int] = []
        while (ids := passage.next_context(encoder, history, engine.context_length)) is not None:
            context = ids
            passage.advance(encoder, history, engine.score([ids], encoder.choices)[0])
        engine.score([], encoder.choices)  # frees what the engine kept
        logps = passage.logps[-1]
        if logps is None:
            continue
        order = float(ordinality(torch.tensor([logps], dtype=torch.float64).exp()))
        results.append(
            {
                "method": method,
                "case": case,
                "sentence": steps[-1].text,
                "tokens": _most_probable(policy, encoder, context),
                "ordinality": None if order != order else order,
                **({} if encoder.scale == DEFAULT_SCALE else {"scale": list(encoder.scale.words)}),
            }
        )
    return results


def _cases(records: Sequence[Record]) -> Iterator[tuple[str, Record, int]]:
    """Yield name, record and index of the sentence of each case."""
    labelled = [
        (sentence.factuality, record, index)
        for record in records
        for index, sentence in enumerate(record.sentences)
        if sentence.factuality is not None
    ]
    if not labelled:
        return
    for case, side, pick in (("correct", 1, max), ("incorrect", -1, min)):
        factuality, record, index = pick(labelled, key=lambda entry: entry[0])
        if side * (factuality - 0.5) > 0:
            yield case, record, index


def _most_probable(policy: Policy, encoder: Encoder, context: Sequence[int]) -> list[dict[str, Any]]:
    """Return text and probability of the most probable tokens after a context."""
    training = policy.training
    policy.eval()
    try:
        with torch.no_grad():
            ids = torch.tensor([context], device=policy.device)
            logits = policy.model(input_ids=ids, use_cache=False).logits[0, -1]
    finally:
        policy.train(training)
    top = logits.double().softmax(-1).topk(min(TOP_TOKENS, logits.numel()))
    return [
        {"text": str(encoder.tokenizer.decode([token], clean_up_tokenization_spaces=False)), "p": p}
        for p, token in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]
