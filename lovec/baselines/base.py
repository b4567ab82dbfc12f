"""What every baseline shares: its bench, how it tags, and the clock that says what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

from lovec.baselines.samples import Samples
from lovec.encoding import Encoder
from lovec.stopwatch import Stopwatch
from lovec.types import Engine, LovecError, Record

P_TRUE = """\
You are required to determine whether a sentence is factually correct based on real-world knowledge.\x20
A context is provided for reference, but your judgment should not be limited to it.

Respond with 'True' or 'False' only. Do not include any explanations.

Context (for reference): {context}
Sentence: {sentence}

True or False:"""
"""The paper's prompt for p(true), word for word."""

VERBAL = """\
You are required to determine whether a sentence is factually correct based on real-world knowledge.\x20
A context is provided for reference, but your judgment should not be limited to it.

For each sentence:
- Assign a confidence score from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.
- The score indicates how certain you are that the sentence is factually correct:
    - 0 = very low confidence (likely incorrect)
    - 10 = very high confidence (very likely correct)

Context (for reference): {context}
Sentence: {sentence}

Confidence:"""
"""The paper's prompt for verbalized confidence, word for word."""

SUPPORT = """\
Here is a text and a sentence. Does the text support the sentence? Go by the text alone, and reply with Yes or No only.

Text: {context}
Sentence: {sentence}

Yes or No:"""
"""What a model is asked where it judges itself whether one of its samples supports a sentence; ours."""


@dataclass(frozen=True, slots=True)
class Wording:
    """What a model is asked, as user turns, and the replies it may give.

    Prompts may hold ``{question}``, ``{context}`` and ``{sentence}``, each at most once.

    Attributes:
        p_true: asks whether a sentence of the answer ``{context}`` is true.
        true: the reply that it is.
        false: the reply that it is not.
        verbal: asks for the confidence in a sentence of the answer ``{context}``.
        score: the reply that gives it, ``{score}`` being 0..10.
        support: asks whether the text ``{context}`` supports a sentence.
        yes: the reply that it does.
        no: the reply that it does not.

    Raises:
        LovecError: a prompt holds another field, or one twice, or does not hold the sentence.
    """

    p_true: str = P_TRUE
    true: str = "True"
    false: str = "False"
    verbal: str = VERBAL
    score: str = "{score}"
    support: str = SUPPORT
    yes: str = "Yes"
    no: str = "No"

    def __post_init__(self) -> None:
        for name in ("p_true", "verbal", "support"):
            prompt = getattr(self, name)
            held = [prompt.count(f"{{{field}}}") for field in ("sentence", "context", "question")]
            try:
                prompt.format(question="", context="", sentence="")
            except (KeyError, IndexError, ValueError, AttributeError):
                held = []
            if not held or held[0] != 1 or max(held) > 1:
                raise LovecError(
                    f"the prompt {name} is {prompt!r}, expected {{sentence}} once and {{context}} and {{question}} at "
                    "most once; write braces that are meant as such twice"
                )
        for field in fields(self):
            if not getattr(self, field.name).strip():
                raise LovecError(f"the wording has an empty {field.name}, expected text")


@dataclass(frozen=True, slots=True)
class Claim:
    """Does a text support a sentence?

    Attributes:
        record: the answer that the sentence stands in.
        premise: the text; never blank.
        hypothesis: the sentence.
    """

    record: Record
    premise: str
    hypothesis: str


class Judge(Protocol):
    """Says how well texts support sentences."""

    def attach(self, bench: Bench) -> None:
        """Work with this bench from now on."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """How well each claim's text supports its sentence, in [0, 1]; all claims come together, to be batched."""


@dataclass(frozen=True)
class Bench:
    """What baselines work with; all of one test share it.

    Attributes:
        engine: runs the model; whoever calls a baseline has it wear the adapter that the baseline names.
        encoder: prompts of the model's tokenizer.
        wording: what the model is asked.
        samples: other answers to the questions, drawn once for all who want them.
        judge: what the data themselves have that can tell whether a text supports a sentence.
    """

    engine: Engine
    encoder: Encoder
    wording: Wording
    samples: Samples
    judge: Judge | None = None


class Baseline:
    """A tagger that judges given answers, without training or with an adapter of its own.

    A subclass overrides :meth:`confidences`.

    Args:
        name: what tables call it; null is the name of the class.
        adapter: PEFT adapter that it works with; null is the bare base model.

    Attributes:
        name: see above.
        adapter: as given.
        watch: seconds spent since it was attached, by phase: "sampling", "judging", "scoring".
    """

    def __init__(self, name: str | None = None, adapter: str | None = None) -> None:
        self.name = name or type(self).__name__
        self.adapter = adapter
        self.watch = Stopwatch()
        self._bench: Bench | None = None

    @property
    def bench(self) -> Bench:
        """What it works with.

        Raises:
            LovecError: nothing is attached.
        """
        if self._bench is None:
            raise LovecError(f"the baseline {self.name!r} has no model to work with; call attach(bench) first")
        return self._bench

    def attach(self, bench: Bench) -> None:
        """Work with this bench from now on; the clock starts anew."""
        self._bench = bench
        self.watch = Stopwatch()

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with a confidence for every sentence, in the order given; neither score nor distribution.

        Raises:
            LovecError: there is not one confidence in [0, 1] or None for every sentence.
        """
        rows = self.confidences(records)
        sizes = [len(record.sentences) for record in records]
        if [len(row) for row in rows] != sizes:
            raise LovecError(
                f"the baseline {self.name!r} gave {[len(row) for row in rows]} confidences for records of {sizes} "
                "sentences; confidences() must give one for every sentence, or None"
            )
        if wrong := [c for row in rows for c in row if c is not None and not 0.0 <= c <= 1.0]:
            raise LovecError(f"the baseline {self.name!r} gave a confidence of {wrong[0]:g}, expected one in [0, 1]")
        return [
            replace(
                record,
                sentences=tuple(
                    replace(sentence, confidence=c, score=None, distribution=None)
                    for sentence, c in zip(record.sentences, row, strict=True)
                ),
            )
            for record, row in zip(records, rows, strict=True)
        ]

    def confidences(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Confidence in [0, 1] for every sentence of every record, None where there is none. To be overridden."""
        raise LovecError(f"the baseline {self.name!r} gives no confidences; override confidences(records)")
