"""Results of lm-evaluation-harness, read as records: multiple-choice questions, with the likelihood of every choice.

With ``--log_samples`` the harness (repository EleutherAI/lm-evaluation-harness) writes a file per task,
``samples_TASK_DATE.jsonl``, with a row per question. A row of a multiple-choice task has the requests in ``arguments``
(``arg_0`` a prompt and ``arg_1`` a choice), their log-likelihoods in ``filtered_resps`` as ``[log-likelihood, whether
greedy decoding gives it]``, and in ``acc`` whether the most probable choice is the right one. Where a task measures
``acc_mutual_info``, the choices follow once more without the prompt. Older releases of 0.4 write requests as lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lovec.datasets.rows import Reading, Row, layout
from lovec.datasets.values import confidence_of, label_of
from lovec.types import LovecError, Record, Sentence


def is_multiple_choice(row: Row) -> bool:
    """Return whether a row has the log-likelihoods of at least two choices."""
    results = row["filtered_resps"]
    return isinstance(results, list) and len(results) > 1 and all(isinstance(r, list) and len(r) == 2 for r in results)


@layout("lm-evaluation-harness: choices", "doc_id arguments filtered_resps", fits=is_multiple_choice, short="lm-eval")
def choices(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a question with the choice that the model gives, the most probable one.

    Its confidence is its probability among the choices, the softmax of their log-likelihoods, and its label ``acc``,
    where a row has it. ``meta["choices"]`` has all of them, ``meta["probabilities"]`` their probabilities.

    Raises:
        LovecError: there are not as many log-likelihoods as requests, or one is not a finite number.
    """
    asked = [_request(request) for request in _values(row["arguments"])]
    found = [confidence_of(result[0]) for result in row["filtered_resps"]]
    logps = [logp for logp in found if logp is not None]
    if len(logps) != len(found) or len(found) != len(asked):
        raise LovecError(
            f"there are {len(logps)} log-likelihoods for {len(asked)} choices in arguments, expected one each"
        )
    half = len(asked) // 2
    if "acc_mutual_info" in row or (asked[0][0] and not any(prompt for prompt, _ in asked[half:])):
        asked, logps = asked[:half], logps[:half]  # the second half is without the prompt
    highest = max(logps)
    weights = [math.exp(logp - highest) for logp in logps]
    probabilities = [weight / sum(weights) for weight in weights]
    prompt, choice = asked[best := logps.index(highest)]
    sentence = Sentence(choice.strip() or f"(choice {best + 1})", label_of(row.get("acc")), probabilities[best])
    meta = {"unit": "answer", "choices": [text.strip() for _, text in asked], "probabilities": probabilities}
    yield reading.record(prompt, choice.strip(), [sentence], f"doc {row['doc_id']}", **meta)


def _values(items: Any) -> Sequence[Any]:
    """Return the values of an object in their order, or a list as it is."""
    return list(items.values()) if isinstance(items, Mapping) else items


def _request(request: Any) -> tuple[str, str]:
    """Return prompt and choice of a request."""
    prompt, choice = _values(request)
    return prompt, choice
