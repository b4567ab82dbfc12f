"""Results of tools that measure uncertainty, read as records: uqlm, LM-Polygraph, RLCR, conformal factuality.

- uqlm (repository cvs-health/uqlm): ``UQResult.to_dict()`` has a column per key under "data" (``prompts``,
  ``responses``, scores); ``to_df()`` has the names without their last s. ``claims_data`` of its long-text scorers holds
  for every answer a list of ``{"claim" or "sentence", "removed", scores}``. Scores are confidences in [0, 1].
- LM-Polygraph (repository IINemo/lm-polygraph): ``UncertaintyOutput`` of ``estimate_uncertainty``, as JSON. What its
  managers save are files of Python objects, which are not read.
- RLCR (Damani et al. 2025, repository damanimehul/RLCR): rows of ``eval_outputs``, with ``<model>-output_0``,
  ``<model>-evals`` and ``<model>-confidence_levels``; or their numbers alone.
- Conformal factuality (Mohri and Hashimoto 2024, repository tatsu-lab/conformal-factual-lm): prompts with ``claims``,
  annotated Y, S (true, by the authors' rule), N or another letter (false); or their numbers alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lovec.datasets.rows import Reading, Row
from lovec.types import LovecError, Record, Sentence

_SCORERS = frozenset(
    "ensemble_score ensemble_scores confidence_score confidence_scores avg semantic_negentropy semantic_density "
    "semantic_sets_confidence noncontradiction entailment contrasted_entailment exact_match cosine_sim bert_score "
    "bleurt normalized_probability min_probability sequence_probability mean_token_negentropy p_true "
    "monte_carlo_probability verbalized_confidence judge_1".split()
)
"""Scores of uqlm in [0, 1]."""

_FINAL = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TRUE = ("Y", "S")


def uqlm(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the confidence in each of its claims, or in all of it where it was scored as a whole.

    ``response_correct``, which users add, labels a whole answer. ``meta["scores"]`` has the scores by all scorers.
    The first of them is the confidence. Without any score the record has no sentences.
    """
    prompt, response = (row[key] if key in row else row[f"{key}s"] for key in ("prompt", "response"))
    claims = row.get("claims_data")
    units = [{**row, "claim": response}] if claims is None else claims
    names = [name for name in units[0] if name in _SCORERS] if units else []
    texts = [(unit["claim"] if "claim" in unit else unit["sentence"]).strip() for unit in units]
    scores = {name: [_share(unit.get(name), name) for unit in units] for name in names}
    label = row.get("response_correct") if claims is None else None
    confidences = next(iter(scores.values()), [])
    kept = [
        Sentence(text, None if label is None else float(label), confidence)
        for text, confidence in zip(texts, confidences, strict=False)
        if text
    ]
    reading.left_out["answers without a score"] += not names
    meta: dict[str, Any] = {"scores": scores} if scores else {}
    if row.get("sampled_responses"):
        meta["samples"] = list(row["sampled_responses"])
    if claims is not None:
        meta["unit"] = "claim"
    yield Record(reading.ids.of(prompt[:60]), prompt, answer=response, sentences=tuple(kept), meta=meta)


def polygraph(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its uncertainty in ``meta``; it is no confidence, since it has no scale in common."""
    meta: dict[str, Any] = {key: row[key] for key in ("uncertainty", "estimator", "model_path") if key in row}
    question, answer = row["input_text"], row["generation_text"]
    reading.left_out["answers with an uncertainty that is no confidence in [0, 1] (kept in meta)"] += 1
    sentences = (Sentence(answer.strip()),) if answer.strip() else ()
    yield Record(reading.ids.of(question[:60]), question, answer=answer, sentences=sentences, meta=meta)


def rlcr(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the answers of several models to one problem, each with its confidence and whether it is right.

    What stands in ``<answer>`` is the sentence. The ids are ``<id>/<model>``, with ``/2`` and so on for more samples.
    """
    name = reading.ids.of(str(row.get("id") or row["problem"][:60]))
    for model in [key.removesuffix("-confidence_levels") for key in row if key.endswith("-confidence_levels")]:
        evals = row.get(f"{model}-evals") or ()
        for at, confidence in enumerate(row[f"{model}-confidence_levels"]):
            output = row.get(f"{model}-output_{at}") or ""
            match = _FINAL.search(output)
            text = ((match[1] if match else "").strip() or output.strip()) or f"({model})"
            sentence = Sentence(text, float(evals[at]) if at < len(evals) else None, _share(confidence, "confidence"))
            record_id = f"{name}/{model}" + (f"/{at + 1}" if at else "")
            meta = {"model": model, "correct_answer": row["answer"]}
            yield Record(record_id, row["problem"], answer=output, sentences=(sentence,), meta=meta)


def is_rlcr_numbers(row: Row) -> bool:
    """Return whether a row has nothing but an id, and confidence and correctness by model."""
    models = [value for key, value in row.items() if key != "id"]
    return bool(models) and all(isinstance(m, Mapping) and m.keys() >= {"confidence", "correct"} for m in models)


def rlcr_numbers(row: Row, reading: Reading) -> Iterator[Record]:
    """Read confidences and correctness by model; names stand in for the texts, which the file does not have."""
    name = reading.ids.of(str(row["id"]))
    for model, values in row.items():
        if model != "id":
            sentence = Sentence(
                f"(answer of {model})", float(values["correct"]), _share(values["confidence"], "confidence")
            )
            yield Record(f"{name}/{model}", f"(question {name})", sentences=(sentence,), meta={"model": model})
            reading.left_out["sentences without their text, which the file does not have (a name stands in)"] += 1


def subclaims(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a prompt with its claims; the confidence is the one that the model states (``gpt-score``).

    ``meta["scores"]`` has the other scores of the claims by name.
    """
    claims = row["claims"]
    sentences = tuple(
        Sentence(
            claim["subclaim"].strip(),
            float(claim["annotation"] in _TRUE) if claim.get("annotation") else None,
            _share(claim.get("gpt-score"), "gpt-score"),
        )
        for claim in claims
    )
    names = [name for name in (claims[0] if claims else ()) if name.endswith("-score") and name != "gpt-score"]
    meta = {"unit": "claim", "scores": {name: [claim.get(name) for claim in claims] for name in names}}
    yield Record(reading.ids.of(row["prompt"][:60]), row["prompt"], sentences=sentences, meta=meta)


def subclaim_numbers(row: Row, reading: Reading) -> Iterator[Record]:
    """Read labels of claims; their scores, which lie outside [0, 1], are in ``meta``, and names stand in for texts."""
    scores, labels = row["scores"], row["true"]
    if len(scores) != len(labels):
        raise LovecError(f"there are {len(scores)} scores and {len(labels)} labels, expected one each per claim")
    name = reading.ids.of(f"prompt {reading.number}")
    sentences = tuple(Sentence(f"(claim {at})", float(label)) for at, label in enumerate(labels, 1))
    reading.left_out["sentences without their text, which the file does not have (a name stands in)"] += len(labels)
    meta = {"unit": "claim", "scores": list(scores)}
    yield Record(name, f"(prompt {reading.number})", sentences=sentences, meta=meta)


def _share(value: Any, name: str) -> float | None:
    """Return a confidence in [0, 1]; None where there is none.

    Raises:
        LovecError: the value is another number.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not 0.0 <= float(value) <= 1.0:
        raise LovecError(f"{name} is {value}, expected a confidence in [0, 1]")
    return float(value)
