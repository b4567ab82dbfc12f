"""Results of other fact-checkers, read as records: VeriScore, SAFE and Factcheck-GPT.

VeriScore (Song et al. 2024, repository Yixiao-Song/VeriScore): ``verify_claims`` writes a line per answer with the
claims of it in ``claim_list``, one list per sentence that it does not name, and, in ``claim_verification_result``, a
list of ``{"claim", "search_results", "verification_result"}`` with the result "supported" or another word.

SAFE (Wei et al. 2024, repository google-deepmind/long-form-factuality): ``eval.run_eval`` writes one JSON document with
``per_prompt_data``, a list of prompts with the responses of two sides. The result of a side is in
``side1_posthoc_eval_data``, where ``all_atomic_facts`` has the sentences with their facts, and ``checked_statements``
the annotation of every fact: Supported, Not Supported or Irrelevant. LongFact, the prompts of the same repository, has
lines of ``{"prompt", "canary"}``.

Factcheck-GPT (Wang et al. 2023, repository yuxiaw/Factcheck-GPT): answers with people's labels. ``Factbench.jsonl`` has
``claims`` and ``claim_labels``, one each; the benchmark has ``sentences``, an object of ``{"text",
"sentence_factuality_label", ...}`` by "sentence1" and so on, with the passages retrieved for every claim of it in
``auto_evidence``, and their stances in ``stance_claim_autoEvid``. ``source`` says where an answer of
``Factbench.jsonl`` comes from, such as "felm-wk" (FELM, Chen et al. 2023).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from lovec.datasets.rows import Reading, Row, layout
from lovec.datasets.values import confidence_of, flag_of, label_of
from lovec.types import LovecError, Record, Sentence

_NO_CLAIM = "No verifiable claim."  # what VeriScore writes in place of a claim


@layout("VeriScore: claims and verdicts", "question response abstained prompt_source", short="veriscore")
def veriscore(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its claims: a supported one is true, any other verdict false, and without one unknown."""
    verdicts = {item["claim"]: item["verification_result"] for item in row.get("claim_verification_result") or ()}
    claims = [claim for claim in row.get("all_claims") or verdicts if claim and claim != _NO_CLAIM]
    question = (row["question"] or "").strip()
    name = question or f"answer {reading.number}"
    abstained = flag_of(row["abstained"], "abstained")
    reading.left_out["abstentions"] += abstained
    reading.left_out["claims without a verdict"] += sum(not verdicts.get(claim) for claim in claims)
    sentences = (Sentence(claim.strip(), _verdict(verdicts.get(claim))) for claim in claims)
    meta = {"abstained": abstained, "unit": "claim", "model": row.get("model"), "prompt_source": row["prompt_source"]}
    yield reading.record(question or f"({name})", row["response"], sentences, name[:60], **meta)


def safe_facts(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the responses to a prompt fact by fact: supported 1, not supported 0, irrelevant without a label.

    ``meta["scores"]`` has the confidences that users have added to the facts under the key ``confidence``.
    """
    for record in safe(row, reading):
        facts = (row.get(f"side{record.meta['side']}_posthoc_eval_data") or {}).get("checked_statements") or ()
        texts = [fact.get("self_contained_atomic_fact") or fact["atomic_fact"] for fact in facts]
        labels = [label_of(fact.get("annotation")) for fact in facts]
        confidences = [confidence_of(fact.get("confidence")) for fact in facts]
        given = any(confidence is not None for confidence in confidences)
        meta = {**record.meta, "unit": "claim", **({"scores": confidences} if given else {})}
        yield replace(record, sentences=tuple(map(Sentence, texts, labels)), meta=meta)


@layout(
    "SAFE: results",
    "prompt side1_response",
    short="safe",
    units=safe_facts,
    series=lambda record: f"side {record.meta.get('side', 1)}",
)
def safe(row: Row, reading: Reading) -> Iterator[Record]:
    """Read the responses to a prompt: the factuality of a sentence is the supported share of its relevant facts.

    The two sides get the ids ``<prompt>/side-1`` and ``<prompt>/side-2``.
    """
    prompt = row["prompt"]
    name = reading.ids.of(prompt[:60])
    for side in (1, 2):
        response, result = row.get(f"side{side}_response"), row.get(f"side{side}_posthoc_eval_data")
        if not response or (side == 2 and result is None):  # the second side is often a placeholder
            continue
        reading.left_out["responses without a result"] += result is None
        sentences = tuple(_checked_sentences(result or {}))
        yield Record(f"{name}/side-{side}", prompt, answer=response, sentences=sentences, meta={"side": side})


@layout("Factcheck-GPT: claims", "prompt response claims claim_labels", short="factcheck-gpt")
def factbench(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with its claims and their labels; an unknown label is none.

    Raises:
        LovecError: there are not as many labels as claims, or one is not a label.
    """
    claims, labels = row["claims"] or (), row["claim_labels"] or ()
    if len(claims) != len(labels):
        raise LovecError(f"there are {len(claims)} claims and {len(labels)} claim_labels, expected one label per claim")
    source = {"source": row["source"]} if row.get("source") else {}
    yield _answer(row, reading, map(Sentence, claims, map(label_of, labels)), unit="claim", **source)


def is_factcheck_gpt(row: Row) -> bool:
    """Return whether the sentences of a row are an object of objects, as in the benchmark of Factcheck-GPT."""
    sentences = row["sentences"]
    return isinstance(sentences, dict) and all(isinstance(sentence, dict) for sentence in sentences.values())


@layout("Factcheck-GPT: sentences", "prompt response sentences", fits=is_factcheck_gpt, short="factcheck-gpt")
def factcheck_gpt(row: Row, reading: Reading) -> Iterator[Record]:
    """Read an answer with the labels of its sentences; the passages retrieved for its claims are its evidence.

    A label says whether a sentence is true; sentences that need no check have none. ``meta["supported"]`` has for every
    sentence what the passages alone say of it, by people's stances, see `_supported`; there is none in a file without
    passages. What annotators wrote or looked up themselves is no evidence: they wrote it for the verdict.
    """
    sentences = row["sentences"].values()
    labels = [label_of(sentence.get("sentence_factuality_label")) for sentence in sentences]
    passages = [text for s in sentences for found in s.get("auto_evidence") or () for text in found or ()]
    record = _answer(row, reading, (Sentence(s["text"].strip(), f) for s, f in zip(sentences, labels, strict=True)))
    if evidence := tuple(dict.fromkeys(text for text in passages if text.strip())):
        supported = [_supported(sentence.get("stance_claim_autoEvid") or ()) for sentence in sentences]
        record = replace(record, evidence=evidence, meta={**record.meta, "supported": supported})
    yield record


_SUPPORT = {"completely-support": 1.0, "partially-support": 0.5, "refute": 0.0, "irrelevant": 0.0}


def _supported(stances: Collection[Collection[str]]) -> float | None:
    """Return how well passages support the claims of a sentence: the mean over claims of the best stance of a passage.

    Args:
        stances: of every claim, the stance of each of its passages: 1 supports it completely, 0.5 partially, 0 neither.

    Returns:
        None where no stance is known.

    Raises:
        LovecError: a stance is unknown.
    """
    if unknown := [stance for claim in stances for stance in claim if stance not in _SUPPORT]:
        raise LovecError(f"a stance is {unknown[0]!r}, expected one of {', '.join(_SUPPORT)}")
    best = [max(_SUPPORT[stance] for stance in claim) for claim in stances if claim]
    return sum(best) / len(best) if best else None


def _answer(row: Row, reading: Reading, sentences: Iterable[Sentence], **meta: str) -> Record:
    reading.left_out["prompts without a response"] += not row["response"]
    return reading.record(row["prompt"], row["response"], sentences, **meta)


@layout("LongFact: prompts", "prompt canary")
def longfact(row: Row, reading: Reading) -> Iterator[Record]:
    """Read a prompt of LongFact as a question; ``meta`` keeps the canary that marks benchmark data."""
    yield reading.record(row["prompt"], canary=row["canary"])


def _verdict(result: str | None) -> float | None:
    return float(result.strip(" .").lower() == "supported") if result else None


def _checked_sentences(result: dict[str, Any]) -> Iterator[Sentence]:
    """Yield the sentences of a response; equal sentences share their facts."""
    facts: dict[str, Counter[str]] = {}
    statements = result.get("checked_statements") or ()
    for statement in statements:
        facts.setdefault(statement["sentence"], Counter())[(statement.get("annotation") or "").lower()] += 1
    split = result.get("all_atomic_facts")
    for text in facts if split is None else [item["sentence"] for item in split]:
        labels = facts.get(text, Counter())
        judged = labels["supported"] + labels["not supported"]
        if text.strip():
            yield Sentence(text.strip(), labels["supported"] / judged if judged else None)
