"""Answers whose sentences are scored while they are written, in pauses after each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lovec.taggers.freeform import (
    FreeFormTagger,
    GrowingAnswer,
    PausingCompletion,
    WithoutSource,
    read_answer,
    score_growing,
    unanswered,
    write_on,
)
from lovec.taggers.scoring import Tagged, WrittenSentence
from lovec.types import Completion, Record, Sentence

if TYPE_CHECKING:
    from lovec.calibration import Calibration


@dataclass(eq=False)
class _Answer(PausingCompletion):
    """An answer that is written.

    Attributes:
        growing: reads and scores its sentences.
        sentences: those that are scored; the first ones may be part of a thought, see ``GrowingAnswer.withdrawn``.
        finished: whether the model has ended it; None while it is written.
    """

    growing: GrowingAnswer
    sentences: list[Sentence] = field(default_factory=list)
    finished: bool | None = None

    @property
    def stopped(self) -> bool:
        """Whether a text has ended it, which none does here."""
        return self.growing.stopped


def stream_growing(
    tagger: FreeFormTagger, records: Sequence[Record], by_knowledge: Calibration | None
) -> Iterator[Tagged]:
    """Yield what ``FreeFormTagger.stream`` yields for greedy answers, each sentence when it is written and scored.

    Distributions and log-probabilities are there where a confidence needs them. An answer that is written with a source
    gets both confidences: ``by_source`` is what the model says as it writes, and by knowledge the answer so far is a
    given text. The price is that every sentence has the prompt and the answer so far computed again, unless the engine
    keeps them.

    Args:
        tagger: writes the answers; its readout and calibrations are used.
        records: questions.
        by_knowledge: makes the confidence by knowledge of answers with a source; None leaves the readout.
    """
    engine, encoder = tagger.engine, tagger.encoder
    room, choices = engine.context_length, encoder.choices
    prompts = [encoder.record_prompt(record, answered=False) for record in records]
    answers = {
        number: _answer(tagger, record, prompts[number], by_knowledge)
        for number, record in enumerate(records)
        if room is None or len(prompts[number]) < room
    }
    ended = 0  # records that were yielded

    def ends() -> Iterator[Record]:
        nonlocal ended
        while ended < len(records) and (ended not in answers or answers[ended].finished is not None):
            record, answer = records[ended], answers.get(ended)
            tokens = len(prompts[ended])
            yield unanswered(record, tokens, room) if answer is None else _record(tagger, record, answer)
            ended += 1

    try:
        yield from ends()
        while going := [number for number, answer in answers.items() if answer.finished is None][: engine.max_rows]:
            batch = [answers[number] for number in going]
            with tagger.watch.phase("writing"):
                pauses = write_on(engine, encoder.stop_ids, batch, lambda answer, token: answer.growing.on_token(token))
            for answer, pause in zip(batch, pauses, strict=True):
                if not pause.goes_on:
                    answer.growing.finish(pause.finished)
                    answer.finished = pause.finished
            with tagger.watch.phase("scoring"):
                score_growing(engine, [(answer.growing, answer.ids, answer.watched) for answer in batch])
            for number, answer in zip(going, batch, strict=True):
                for scored in answer.growing.release(answer.logps):
                    answer.sentences.append(scored.sentence)
                    yield WrittenSentence.of(number, len(answer.sentences) - 1, scored.sentence, scored.span.raw)
            yield from ends()
    finally:
        engine.score([], choices)  # frees what the engine kept


def _answer(tagger: FreeFormTagger, record: Record, prompt: Sequence[int], by_knowledge: Calibration | None) -> _Answer:
    """Return the answer to a question before its first token."""
    encoder, calibration, without_source = tagger.encoder, tagger.calibration, None
    if encoder.has_source(record):
        bare = replace(record, evidence=())
        without_source = WithoutSource(partial(encoder.record_prompt, bare), by_knowledge, tagger.readout)
        calibration = tagger.by_source
    keeps = tagger.sampling.keeps_logps
    growing = GrowingAnswer(encoder, prompt, calibration, keeps, (), without_source, tagger.readout)
    sampling = replace(tagger.sampling, watched=encoder.watched if growing.distributions else ())
    return _Answer(prompt, sampling, record.id, growing)


def _record(tagger: FreeFormTagger, record: Record, answer: _Answer) -> Record:
    """Return the record of an answer that was written to its end."""
    completion = Completion(tuple(answer.ids), tuple(answer.logps), bool(answer.finished))
    read, _ = read_answer(record, completion, tagger.encoder)
    growing = answer.growing
    problems = [*read.meta["problems"], *growing.withdrawal, *growing.own_problems, *growing.problems]
    sentences = tuple(answer.sentences[growing.withdrawn :])
    return replace(read, sentences=sentences, meta={**read.meta, "problems": problems})
