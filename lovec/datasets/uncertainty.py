"""Results of tools that measure uncertainty, read as records: uqlm, LM-Polygraph, RLCR, conformal factuality.

- uqlm (repository cvs-health/uqlm): ``UQResult.to_dict()`` has a column per key under "data" (``prompts``,
  ``responses``, scores); ``to_df()`` has the names without their last s. ``claims_data`` of its long-text scorers holds
  for every answer a list of ``{"claim" or "sentence", "original_response", "removed", scores}``; the graph scorers of
  uqlm 0.6 also list claims of the sampled answers, whose ``original_response`` is false. Scores are confidences in
  [0, 1].
- LM-Polygraph (repository IINemo/lm-polygraph): ``UncertaintyOutput`` of ``estimate_uncertainty``, as JSON. What its
  managers save are files of Python objects, which are not read; their ``estimations`` and ``gen_metrics`` are, as JSON.
- RLCR (Damani et al. 2025, repository damanimehul/RLCR): rows of ``eval_outputs``, with ``<model>-output_0``,
  ``<model>-evals`` and ``<model>-confidence_levels``; or their numbers alone.
- Conformal factuality (Mohri and Hashimoto 2024, repository tatsu-lab/conformal-factual-lm): prompts with ``claims``,
  annotated Y, S (true, by the authors' rule), N or another letter (false); or their numbers alone. Cherian et al. 2024
  (repository jjcherian/conformal-safety) have a ``message`` with T or F in place of the ``subclaim``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lovec.datasets.jsonl import short_json
from lovec.datasets.rows import Reading, Row, layout
from lovec.datasets.values import confidence_of, flag_of, is_number, label_column, label_of, says_opposite, share_of
from lovec.types import ROUNDING, LovecError, Record, ScoreKind, Sentence

_SCORERS = frozenset(
    "ensemble_score ensemble_scores confidence_score confidence_scores avg semantic_negentropy semantic_density "
    "semantic_density_value semantic_density_values semantic_sets_confidence discrete_confidence_score "
    "discrete_confidence_scores tokenprob_confidence_score tokenprob_confidence_scores semantic_negentropy_whitebox "
    "noncontradiction entailment contrasted_entailment exact_match cosine_sim bert_score bleurt normalized_probability "
    "min_probability sequence_probability mean_token_negentropy min_token_negentropy max_token_negentropy "
    "probability_margin consistency_and_confidence p_true monte_carlo_probability verbalized_confidence codebleu "
    "equivalence_rate degree_centrality betweenness_centrality closeness_centrality page_rank laplacian_centrality "
    "harmonic_centrality".split()
)
_JUDGE = re.compile(r"judge_\d+")
_OF_JUDGES = frozenset("avg max min median".split())  # in the table of a panel
_TEXTS = frozenset("prompt prompts response responses claim sentence".split())

_LIKELIHOODS = ("PTrue", "PTrueClaim", "MaximumSequenceProbability", "MaximumClaimProbability")
_STATED = ("Verbalized1S", "Verbalized2S")
_ERRORS = ("OpenAIFactCheck",)  # metrics of LM-Polygraph that are 1 where the claim is false
_LEVEL = re.compile(r"\W*(sequence|claim|token)['\"\s,_/|:]+(.*?)[\s'\")]*")
_PLACEHOLDERS = "sentences without their text, which the file does not have (a name stands in)"

_FINAL = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TRUE = ("Y", "S", "T")


def scorers(names: Collection[str]) -> list[str]:
    """Return which of some names of columns or keys are scores of uqlm in [0, 1].

    Args:
        names: the names of a row. What "max" and "median" are is clear only beside the scores of judges.
    """
    has_judges = any(map(_JUDGE.fullmatch, names))
    return [name for name in names if name in _SCORERS or _JUDGE.fullmatch(name) or (has_judges and name in _OF_JUDGES)]


def is_uqlm(row: Row) -> bool:
    """Return whether a row with a prompt and a response has what only uqlm adds: claims, scores, sampled responses."""
    return row.get("claims_data") is not None or "sampled_responses" in row or bool(scorers(row))


@layout("uqlm: results", "prompt|prompts response|responses", fits=is_uqlm, short="uqlm")
def uqlm(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the confidence in each of its claims, or in all of it where it was scored as a whole.

    Claims of sampled answers are left out. ``response_correct``, which users add, labels a whole answer. Claims are
    labelled by the list ``claim_grades``, as uqlm's own examples name what its ``FactScoreGrader`` returns, or each by
    a key such as ``correct`` of its own. ``meta["scores"]`` has the scores by all scorers. The first of them is the
    confidence. Without any score the record has no sentences.

    Raises:
        LovecError: there are not as many grades as claims, or a score or a label is not a number in [0, 1].
    """
    prompt, response = (row[key] if key in row else row[f"{key}s"] for key in ("prompt", "response"))
    claims = row.get("claims_data")
    units, grades = ([{**row, "claim": response or ""}], [found_label(row)]) if claims is None else _claims(row, claims)
    names = list(dict.fromkeys(name for unit in units for name in scorers(unit)))
    no_scores = {*_TEXTS, *names, *(label_column([unit]) for unit in units)}
    for name in (name for unit in units for name in unit if name not in no_scores and _is_score(unit[name])):
        reading.left_out[f"values of {name}, which is not a known score of uqlm"] += 1
    texts = [(unit["claim"] if "claim" in unit else unit["sentence"]).strip() for unit in units]
    places = [place for place, text in enumerate(texts) if text]
    scores = {name: [share_of(units[place].get(name), name) for place in places] for name in names}
    unscored = [None] * len(places) if any(grade is not None for grade in grades) else []
    confidences = next(iter(scores.values()), unscored)
    kept = [
        Sentence(texts[place], grades[place], confidence)
        for place, confidence in zip(places, confidences, strict=False)
    ]
    reading.left_out["claims of sampled answers"] += 0 if claims is None else len(claims) - len(units)
    answered = bool((response or "").strip())
    reading.left_out["prompts without a response"] += not answered
    reading.left_out["answers without a score"] += answered and not names
    meta: dict[str, Any] = {"scores": scores} if scores else {}
    if row.get("sampled_responses"):
        meta["samples"] = list(row["sampled_responses"])
    if claims is not None:
        meta["unit"] = "claim"
    yield reading.record(prompt, response, kept, **meta)


def _claims(row: Row, claims: Any) -> tuple[list[Row], list[float | None]]:
    """Return the claims of the answer itself, without those of sampled ones, and their labels.

    The labels are those of the list of grades, or those that the claims hold. The grades may be of all claims.

    Raises:
        LovecError: the claims are no list of objects, or there are not as many grades as claims.
    """
    if not isinstance(claims, list) or not all(isinstance(claim, Mapping) for claim in claims):
        raise LovecError(f"claims_data is {short_json(claims)}, expected a list of objects, one per claim")
    is_own = [flag_of(claim.get("original_response", True), "original_response") for claim in claims]
    own = [dict(claim) for claim, kept in zip(claims, is_own, strict=True) if kept]
    grades = row.get("claim_grades")
    if grades is None:
        return own, [found_label(claim) for claim in own]
    if not isinstance(grades, list) or len(grades) not in (len(claims), len(own)):
        counted = len(grades) if isinstance(grades, list) else short_json(grades)
        raise LovecError(f"there are {counted} claim_grades and {len(claims)} claims, expected one grade per claim")
    if len(grades) != len(own):
        grades = [grade for grade, kept in zip(grades, is_own, strict=True) if kept]
    return own, [label_of(grade) for grade in grades]


def _is_score(value: Any) -> bool:
    """Return whether a value is a fraction, as scores are and numbers that count something are not."""
    return is_number(value) and 0 < (confidence_of(value) or 0) < 1


def found_label(row: Row) -> float | None:
    """Return the label that a row has under one of the usual names, None without one.

    Raises:
        LovecError: it is not a label, see ``lovec.datasets.values.label_of``.
    """
    name = label_column([row])
    return None if name is None else label_of(row[name], opposite=says_opposite(name))


def polygraph_scores(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its uncertainty as ``meta["scores"]``, higher for surer, and a label that users have added.

    The probability that an estimator gives the logarithm of is computed; of other estimators only the order counts.
    ``meta["kinds"]`` says what the number in the row is. ``lovec.datasets.values.LABELS`` has the names of the label.
    """
    estimator = str(row.get("estimator") or "uncertainty")
    scores = _surer(estimator, [row["uncertainty"]])
    for record in polygraph(row, reading):
        whole = record.sentences or (Sentence("(empty answer)"),)
        sentences = (replace(sentence, factuality=found_label(row)) for sentence in whole)
        meta = {**record.meta, "scores": {estimator: scores}, "kinds": {estimator: _kind(estimator)}}
        yield replace(record, sentences=tuple(sentences), meta=meta)


@layout(
    "LM-Polygraph: uncertainty",
    "input_text generation_text uncertainty",
    short="lm-polygraph",
    units=polygraph_scores,
    series=lambda record: str(record.meta.get("estimator", "")),
)
def polygraph(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its uncertainty in ``meta``; it is not a confidence, since it has no scale in common."""
    meta: dict[str, Any] = {key: row[key] for key in ("uncertainty", "estimator", "model_path") if key in row}
    meta["uncertainty"] = confidence_of(row["uncertainty"])
    question, answer = row["input_text"], row["generation_text"]
    reading.left_out["answers with an uncertainty that is not a confidence in [0, 1] (kept in meta)"] += 1
    yield reading.record(question, answer, [Sentence(answer.strip())] if answer.strip() else (), **meta)


@layout(
    "LM-Polygraph: manager",
    "estimations",
    short="lm-polygraph",
    series=lambda record: str(record.meta.get("unit", "")),
)
def polygraph_manager(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the estimations of a manager of LM-Polygraph, written as JSON: a record per answer, and its claims.

    A manager has ``estimations`` by (level, estimator) and ``gen_metrics`` by (level, metric), of which the first one
    of a level is the label; a text is expected in place of the pair, such as "claim PTrueClaim". ``OpenAIFactCheck`` is
    1 where a claim is false, so the label is 1 less it. Estimations of tokens have no labels and are left out, as are
    those of other levels without labels where another level has some.

    Raises:
        LovecError: a key names no level, or there are not as many numbers as labels.
    """
    labels: dict[str, list[Any]] = {}
    for key, values in (row.get("gen_metrics") or {}).items():
        level, metric = _level(key)
        wrong = metric in _ERRORS or says_opposite(metric)
        if level not in labels:
            labels[level] = [[label_of(value, opposite=wrong) for value in answer] for answer in _by_answer(values)]
    for level in dict.fromkeys(_level(key)[0] for key in row["estimations"]):
        if level == "token" or (labels and level not in labels):
            reading.left_out[f"levels without labels ({level})"] += 1
            continue
        scores: dict[str, list[list[float | None]]] = {}
        for key, values in row["estimations"].items():
            if _level(key)[0] == level:
                name = _level(key)[1]
                scores[name] = [_surer(name, answer) for answer in _by_answer(values)]
        unlabelled = [[None] * len(answer) for answer in next(iter(scores.values()))]
        yield from _answers(level, labels.get(level, unlabelled), scores, reading)


def _answers(
    level: str,
    labels: Sequence[Sequence[float | None]],
    scores: Mapping[str, Sequence[Sequence[float | None]]],
    reading: Reading,
) -> Iterator[Record]:
    """Yield a record per answer of a manager; names stand in for the texts.

    Raises:
        LovecError: an estimator has not as many numbers as there are labels.
    """
    for name, numbers in scores.items():
        if [len(answer) for answer in numbers] != [len(answer) for answer in labels]:
            raise LovecError(
                f"{name} has {sum(map(len, numbers))} numbers for {len(numbers)} answers, expected as many as labels, "
                f"{sum(map(len, labels))} for {len(labels)}"
            )
    kinds = {name: _kind(name) for name in scores}
    for at, answer in enumerate(labels):
        sentences = [Sentence(f"({level} {place})", label) for place, label in enumerate(answer, 1)]
        meta = {"kinds": kinds, "scores": {name: list(numbers[at]) for name, numbers in scores.items()}}
        reading.left_out[_PLACEHOLDERS] += len(sentences)
        yield reading.record(f"({level} {at + 1})", "", sentences, f"{level} {at + 1}", unit=level, **meta)


def _level(key: str) -> tuple[str, str]:
    """Return level and name in a key of a manager, such as "claim PTrueClaim" or "('claim', 'PTrueClaim')"."""
    if not (match := _LEVEL.fullmatch(key)):
        raise LovecError(f"the key {key!r} names no level, expected one such as 'sequence PTrue' or 'claim PTrueClaim'")
    return match[1], match[2]


def _by_answer(values: Sequence[Any]) -> list[list[Any]]:
    """Return numbers answer by answer, one each where they are not grouped."""
    return [value if isinstance(value, list) else [value] for value in values]


def _kind(estimator: str) -> ScoreKind:
    """Return what the numbers of an estimator of LM-Polygraph are."""
    if estimator in _LIKELIHOODS:
        return "surprisal"
    return "complement" if estimator.startswith(_STATED) else "uncertainty"


def _surer(estimator: str, values: Sequence[Any]) -> list[float | None]:
    """Return uncertainties of LM-Polygraph as numbers that are higher for surer.

    The estimators that are minus the logarithm of a probability give that probability, exp(-u), and those that are one
    minus a stated confidence give this confidence, 1 - u. The numbers of all others have no scale: they are negated.

    Raises:
        LovecError: minus the logarithm of a probability is negative, or a value is not a number.
    """
    numbers, kind = [confidence_of(value) for value in values], _kind(estimator)
    if kind == "surprisal":
        if wrong := [u for u in numbers if u is not None and u < -ROUNDING]:
            raise LovecError(f"{estimator} is {wrong[0]:g}, expected minus the logarithm of a probability, 0 or more")
        return [None if u is None else math.exp(-u) for u in numbers]
    return [None if u is None else 1.0 - u if kind == "complement" else -u for u in numbers]


def _model(record: Record) -> str:
    return str(record.meta.get("model", ""))


@layout("RLCR: outputs", "problem *-confidence_levels", short="rlcr", series=_model)
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
            sentence = Sentence(
                text, label_of(evals[at]) if at < len(evals) else None, share_of(confidence, "confidence")
            )
            record_id = f"{name}/{model}" + (f"/{at + 1}" if at else "")
            meta = {"model": model, "correct_answer": row.get("answer")}
            yield Record(record_id, row["problem"], answer=output, sentences=(sentence,), meta=meta)


def is_rlcr_numbers(row: Row) -> bool:
    """Return whether a row has nothing but an id, and confidence by model, where known with correctness."""
    models = [value for key, value in row.items() if key != "id"]
    return bool(models) and all(isinstance(m, Mapping) and "confidence" in m for m in models)


@layout("RLCR: numbers", "id", fits=is_rlcr_numbers, short="rlcr", series=_model)
def rlcr_numbers(row: Row, reading: Reading) -> Iterator[Record]:
    """Read confidences and correctness by model; names stand in for the texts, which the file does not have."""
    name = reading.ids.of(str(row["id"]))
    for model, values in row.items():
        if model != "id":
            sentence = Sentence(
                f"(answer of {model})", label_of(values.get("correct")), share_of(values["confidence"], "confidence")
            )
            yield Record(f"{name}/{model}", f"(question {name})", sentences=(sentence,), meta={"model": model})
            reading.left_out[_PLACEHOLDERS] += 1


def is_subclaims(row: Row) -> bool:
    """Return whether the claims of a row are a list of objects, and not those of uqlm."""
    claims = row["claims"]
    return "claims_data" not in row and isinstance(claims, list) and all(isinstance(c, Mapping) for c in claims)


@layout("conformal factuality: claims", "prompt claims", fits=is_subclaims, short="conformal")
def subclaims(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a prompt with its claims; the confidence is the one that the model states (``gpt-score``).

    ``meta["scores"]`` has all scores of the claims by name, and ``meta`` topic, rarity and region where a row has them.
    """
    claims = row["claims"]
    sentences = [
        Sentence(
            (claim["message"] if "message" in claim else claim["subclaim"]).strip(),
            float(claim["annotation"] in _TRUE) if claim.get("annotation") else None,
            share_of(claim.get("gpt-score"), "gpt-score"),
        )
        for claim in claims
    ]
    names = dict.fromkeys(name for claim in claims for name in claim if name.endswith("-score"))
    scores = {name: [confidence_of(claim.get(name)) for claim in claims] for name in names}
    about = {"topic": row["topic"]} if "topic" in row else {}
    if isinstance(row.get("metadata"), list) and len(row["metadata"]) == 2:
        about |= dict(zip(("rarity", "region"), row["metadata"], strict=True))
    yield reading.record(row["prompt"], row.get("response"), sentences, unit="claim", scores=scores, **about)


def is_subclaim_numbers(row: Row) -> bool:
    """Return whether a row has scores of claims, and their labels or nothing else."""
    return "true" in row or (len(row) == 1 and isinstance(row["scores"], list))


@layout("conformal factuality: numbers", "scores", fits=is_subclaim_numbers, short="conformal")
def subclaim_numbers(row: Row, reading: Reading) -> Iterator[Record]:
    """Read labels of claims, where a row has them; names stand in for texts.

    Their scores, which lie outside [0, 1], are in ``meta``.

    Raises:
        LovecError: there are not as many labels as scores.
    """
    scores, labels = row["scores"], row.get("true")
    if labels is None:
        labels = [None] * len(scores)
    if len(scores) != len(labels):
        raise LovecError(f"there are {len(scores)} scores and {len(labels)} labels, expected one each per claim")
    name = f"prompt {reading.number}"
    sentences = [Sentence(f"(claim {at})", label_of(label)) for at, label in enumerate(labels, 1)]
    reading.left_out[_PLACEHOLDERS] += len(labels)
    yield reading.record(f"({name})", "", sentences, name, unit="claim", scores=[confidence_of(s) for s in scores])
