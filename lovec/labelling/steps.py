"""What the stages do: answer, split, rate, pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

from lovec.datasets.pairs import with_rejected
from lovec.encoding import Encoder
from lovec.labelling.stage import Outcome
from lovec.types import Engine, LovecError, Oracle, Record, Sampling, Sentence

_ENDS = (*".!?…\"'”)]*。", "\u2019", "\uff01", "\uff1f")


def imported(records: Sequence[Record]) -> list[Outcome]:
    """Records as they are: the first stage only copies what a data set or a user's file holds."""
    return [Outcome([record]) for record in records]


class Answers:
    """Lets a model answer questions plainly, without the instruction that asks for confidence.

    Args:
        engine: samples, with the weights it was last synced with.
        encoder: prompts of its tokenizer.
        sampling: how to sample. Random streams are keyed by record id, so that an answer does not depend on what it
            was sampled together with. Several samples become several records, ``<id>/sample-1`` and so on.
    """

    def __init__(self, engine: Engine, encoder: Encoder, sampling: Sampling) -> None:
        self.engine = engine
        self.encoder = encoder
        self.sampling = sampling

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Answered records; sentences and labels that came with a question are dropped.

        A question that leaves no room in the model's context keeps an empty answer and says why in ``meta["problem"]``;
        ``meta["finished"]`` is False where the token limit cut an answer off.
        """
        prompts = [self.encoder.prompt(record.question, instruct=False) for record in records]
        room = self.engine.context_length
        fits = [room is None or len(prompt) < room for prompt in prompts]
        groups = iter(
            self.engine.generate(
                [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit],
                self.sampling,
                self.encoder.stop_ids,
                keys=[record.id for record, fit in zip(records, fits, strict=True) if fit],
            )
        )
        outcomes = []
        for record, prompt, fit in zip(records, prompts, fits, strict=True):
            bare = replace(record, answer="", sentences=(), rejected=None)
            if not fit:
                problem = f"the prompt has {len(prompt)} tokens, the model's context holds {room}; shorten the question"
                outcomes.append(Outcome([replace(bare, meta={**record.meta, "problem": problem})], failed=problem))
                continue
            answered = []
            for number, completion in enumerate(next(groups), 1):
                name = record.id if self.sampling.n == 1 else f"{record.id}/sample-{number}"
                cut = {} if completion.finished else {"finished": False}
                text = self.encoder.decode(completion.ids).strip()
                answered.append(replace(bare, id=name, answer=text, meta={**record.meta, **cut}))
            outcomes.append(Outcome(answered, {"unfinished": sum("finished" in r.meta for r in answered)}))
        return outcomes


class Sentences:
    """Splits answers, and finds those that decline to answer.

    Args:
        split: from an answer to its sentences.
        is_abstention: whether an answer declines to answer.
    """

    def __init__(self, split: Callable[[str], list[str]], is_abstention: Callable[[str], bool]) -> None:
        self.split = split
        self.is_abstention = is_abstention

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Records with sentences; those that have some keep them.

        An abstention keeps its answer, gets no sentences, and says so in ``meta["abstained"]``. Of an answer that was
        cut off, an unfinished last sentence is left out: nobody can say how true it is.
        """
        return [self._outcome(record) for record in records]

    def _outcome(self, record: Record) -> Outcome:
        if record.sentences:
            return Outcome([record], {"sentences": len(record.sentences)})
        if not record.answer.strip():
            return Outcome([record], {"without an answer": 1})
        if record.meta.get("abstained") or self.is_abstention(record.answer):
            return Outcome([replace(record, meta={**record.meta, "abstained": True})], {"abstained": 1})
        texts = self.split(record.answer)
        if record.meta.get("finished") is False and len(texts) > 1 and not texts[-1].endswith(_ENDS):
            texts = texts[:-1]
        return Outcome([replace(record, sentences=tuple(map(Sentence, texts)))], {"sentences": len(texts)})


class Labels:
    """Has an oracle rate sentences.

    Args:
        oracle: says how true they are. Where it has ``failures`` (record id -> why), these records are named as failed.
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Records with the oracle's labels; labels they came with are dropped, also where it cannot say.

        Raises:
            LovecError: the oracle's ratings are not in [0, 1] or None, one a sentence.
        """
        asked = [record for record in records if record.sentences]
        ratings = self.oracle.rate(asked) if asked else []
        if len(ratings) != len(asked):
            raise LovecError(f"{self._name} gave ratings of {len(ratings)} records, expected {len(asked)}")
        rated = dict(zip((record.id for record in asked), ratings, strict=True))
        return [self._outcome(record, rated.get(record.id, [])) for record in records]

    @property
    def _name(self) -> str:
        return type(self.oracle).__name__

    def _outcome(self, record: Record, ratings: Sequence[float | None]) -> Outcome:
        if not record.sentences:
            if record.meta.get("abstained"):
                return Outcome([record], {"abstained": 1})
            return Outcome([record], failed=str(record.meta.get("problem") or "the answer is empty"))
        given = [rating for rating in ratings if rating is not None]
        if len(ratings) != len(record.sentences) or not all(0.0 <= rating <= 1.0 for rating in given):
            raise LovecError(
                f"{self._name} rates {record.id!r} {list(ratings)}, expected {len(record.sentences)} numbers in [0, 1] "
                "or None, one a sentence"
            )
        pairs = zip(record.sentences, ratings, strict=True)
        labelled = replace(record, sentences=tuple(replace(s, factuality=f) for s, f in pairs), rejected=None)
        why = getattr(self.oracle, "failures", {}).get(record.id)
        kind = "labelled" if labelled.labelled else "not labelled" if not given else "labelled in part"
        counts = {
            "sentences": len(ratings),
            "sentences without a label": len(ratings) - len(given),
            "factuality": math.fsum(given),
        }
        return Outcome([labelled], counts | ({} if why else {kind: 1}), failed=why)


class Pairs:
    """Draws wrong scores (the paper's Algorithm 1); a record that comes with some keeps them.

    Args:
        seed: of the draws.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, records: Sequence[Record]) -> list[Outcome]:
        """Pairs of the fully labelled records; the others are left out and counted."""
        return [
            Outcome([with_rejected(record, self.seed) if record.rejected is None else record])
            if record.labelled
            else Outcome([], {"left out": 1} if record.sentences else {"without sentences": 1})
            for record in records
        ]


def function_at(path: str) -> Callable[[str], list[str]]:
    """A function by its import path, such as ``lovec.sentences.split_sentences``.

    Raises:
        LovecError: there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise LovecError(f"cannot import {path} ({error}); give module.function of a file here or a package") from None
    if not callable(found):
        raise LovecError(f"{path} is no function, expected one from a text to its sentences")
    return found  # type: ignore[no-any-return]
