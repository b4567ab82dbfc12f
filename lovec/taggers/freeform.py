"""Free-form tagging: the model writes the answer and its scores in one go."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from lovec.encoding import Encoder
from lovec.stopwatch import Stopwatch
from lovec.taggers.scoring import (
    OnSentence,
    Passage,
    Readout,
    Step,
    checked_readout,
    distribution,
    expected_confidence,
    score_passages,
)
from lovec.tags import TaggedSentence, TaggedText, parse
from lovec.types import Completion, Engine, LovecError, OnToken, Record, Sampling, Sentence

log = logging.getLogger(__name__)


class FreeFormTagger:
    """Samples a tagged answer for every question and reads the tags.

    Args:
        engine: samples from the policy.
        encoder: prompts of its tokenizer; the question comes with the instruction.
        sampling: how to sample; greedy, as in the paper, by default. Random streams are keyed by record id.
        readout: what ``confidence`` is: "stated" is the written score / 10; "mean" is the expected score / 10 under
            the distribution over the 11 scores, renormalised (and asks for distributions).
        distributions: also fill in the distribution over the 11 scores at every valid tag, given the model's own
            text and scores before it (encoded as in iterative tagging; malformed parts as they stand).

    Attributes:
        watch: seconds spent, in the phases "writing" and, for the distributions, "scoring".

    Raises:
        LovecError: the readout is unknown, or more than one completion a prompt is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        sampling: Sampling | None = None,
        readout: Readout = "stated",
        distributions: bool = False,
    ) -> None:
        self.engine = engine
        self.encoder = encoder
        self.sampling = sampling or Sampling()
        self.readout = checked_readout(readout)
        self.distributions = distributions or self.readout == "mean"
        self.watch = Stopwatch()
        if self.sampling.n != 1:
            raise LovecError(f"free-form tagging got sampling.n={self.sampling.n}, expected 1 (one answer a record)")

    def tag(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Records with a new answer and its sentences, in the order given; factuality is None until an oracle rates it.

        A sentence with a malformed tag, and text after the last tag, have neither score nor confidence.
        ``meta["problems"]`` lists what is wrong, sentence by sentence; ``meta["finished"]`` is False where the answer
        was cut by the token limit. A prompt longer than the model's context leaves an empty answer and a problem.

        Args:
            records: questions.
            on_sentence: is on_scores every sentence as soon as its tag is written, with the score as written and without
                distribution, those of one record in their order; not what stands behind the last tag.
        """
        prompts = [self.encoder.prompt(record.question) for record in records]
        room = self.engine.context_length
        fits = [room is None or len(prompt) < room for prompt in prompts]
        asked = [number for number, fit in enumerate(fits) if fit]
        listening = {} if on_sentence is None else {"on_token": _listener(self.encoder, asked, on_sentence)}
        with self.watch.phase("writing"):
            written = self.engine.generate(
                [prompts[number] for number in asked],
                self.sampling,
                self.encoder.stop_ids,
                keys=[records[number].id for number in asked],
                **listening,
            )
        completions = iter(written)
        tagged = []
        for record, prompt, fit in zip(records, prompts, fits, strict=True):
            if fit:
                tagged.append(read_answer(record, next(completions)[0], self.encoder))
                continue
            problem = f"the prompt has {len(prompt)} tokens, the model's context holds {room}; shorten the question"
            log.warning("record %s: %s", record.id, problem)
            meta = {**record.meta, "problems": [problem], "finished": False}
            tagged.append(replace(record, answer="", sentences=(), meta=meta, rejected=None))
        return self._with_distributions(tagged, prompts) if self.distributions else tagged

    def _with_distributions(self, records: list[Record], prompts: list[list[int]]) -> list[Record]:
        """The records with the distribution at every valid tag."""
        parsed = [parse(record.answer, self.encoder.tags) for record in records]
        passages = [
            Passage(name=record.id, prompt=prompt, steps=_steps(text))
            for record, prompt, text in zip(records, prompts, parsed, strict=True)
        ]
        with self.watch.phase("scoring"):
            score_passages(self.engine, self.encoder, [passage for passage in passages if passage.steps])
        return [self._filled(record, passage) for record, passage in zip(records, passages, strict=True)]

    def _filled(self, record: Record, passage: Passage) -> Record:
        sentences = list(record.sentences)  # one longer than the passage where there is an untagged tail
        for at, logps in enumerate(passage.logps):
            if logps is None:
                if self.readout == "mean":
                    sentences[at] = replace(sentences[at], confidence=None)
                continue
            confidence = expected_confidence(logps) if self.readout == "mean" else sentences[at].confidence
            sentences[at] = replace(sentences[at], distribution=distribution(logps), confidence=confidence)
        meta = {**record.meta, "problems": [*record.meta["problems"], *passage.problems]}
        return replace(record, sentences=tuple(sentences), meta=meta)


def read_answer(record: Record, completion: Completion, encoder: Encoder) -> Record:
    """The record with what a completion says: its sentences and their scores, an untagged tail as the last one.

    ``meta["problems"]`` and ``meta["finished"]`` are as in `FreeFormTagger.tag`.
    """
    text = encoder.decode(completion.ids)
    parsed = parse(text, encoder.tags)
    sentences, problems = [], []
    for number, found in enumerate(parsed.sentences, start=1):
        sentences.append(_sentence(found))
        if found.problem is not None:
            problems.append(f"sentence {number}: {found.problem}")
    if tail := parsed.tail.strip():
        sentences.append(Sentence(tail))
        problems.append(f"sentence {len(sentences)}: untagged tail")
    meta = {**record.meta, "problems": problems, "finished": completion.finished}
    return replace(record, answer=text, sentences=tuple(sentences), meta=meta, rejected=None)


class AnswerReader:
    """Reads the sentences of one answer while its tokens come.

    Args:
        encoder: of the model that writes it.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._ids: list[int] = []
        self._given = 0

    def on_token(self, token: int) -> list[TaggedSentence]:
        """The sentences whose closing tag word is complete with this token: mostly none, hardly ever several.

        They are the first of the whole answer; behind them it has an unclosed tag or an untagged tail at most.
        """
        self._ids.append(token)
        close = self._encoder.tags.close
        if not {close[-1], "\ufffd"} & set(self._encoder.decode([token])):  # half a letter may be the tag word's last
            return []
        whole = [found for found in self._parsed().sentences if found.raw.endswith(close)]
        new, self._given = whole[self._given :], len(whole)
        return new

    def rest(self) -> TaggedText:
        """What the answer holds beyond the sentences that were given: the end of it, once no token comes any more."""
        parsed = self._parsed()
        return TaggedText(parsed.sentences[self._given :], parsed.tail)

    def _parsed(self) -> TaggedText:
        return parse(self._encoder.decode(self._ids), self._encoder.tags)


def _listener(encoder: Encoder, numbers: Sequence[int], on_sentence: OnSentence) -> OnToken:
    """What an engine tells of tokens, as sentences of the records with these numbers."""
    readers = {number: AnswerReader(encoder) for number in numbers}
    given = dict.fromkeys(numbers, 0)

    def on_token(prompt: int, sample: int, token: int) -> bool:
        number = numbers[prompt]
        for found in readers[number].on_token(token):
            on_sentence(number, given[number], _sentence(found))
            given[number] += 1
        return True

    return on_token


def _sentence(found: TaggedSentence) -> Sentence:
    """A parsed span as a sentence; a tag without text is kept as it stands, so that files hold it."""
    confidence = None if found.score is None else found.score / 10
    return Sentence(found.text or found.raw.strip(), confidence=confidence, score=found.score)


def _steps(text: TaggedText) -> list[Step]:
    """What a model wrote as history: well-formed sentences with their scores, the rest as it stands."""
    return [
        Step(found.raw, literal=True) if found.score is None else Step(found.text, score=found.score)
        for found in text.sentences
    ]
