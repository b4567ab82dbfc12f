"""Free-form tagging: the model writes the answer and its scores in one go."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from lovec.encoding import Encoder
from lovec.settings import checked
from lovec.stopwatch import Stopwatch
from lovec.taggers.scoring import OnSentence, Passage, Step, score_passages, with_score
from lovec.tags import TaggedSentence, TaggedText, parse
from lovec.types import (
    Completion,
    Engine,
    LovecError,
    OnToken,
    Readout,
    Record,
    Sampling,
    Scale,
    Sentence,
    token_scorer,
)

log = logging.getLogger(__name__)


@checked()
class FreeFormTagger:
    """Samples a tagged answer for every question and reads the tags.

    Args:
        engine: samples from the policy.
        encoder: encodes prompts; the prompt contains the instruction.
        sampling: how to sample; greedy, as in the paper, by default. Random streams are keyed by record id.
        readout: what ``confidence`` is: "stated" is the written score / top of the scale; "mean" is the expected
            score / top under the distribution over all scores, renormalised (and implies ``distributions``).
        distributions: whether to fill in the distribution over all scores at every valid tag, given the text and the
            scores that the model itself wrote before it (encoded as in iterative tagging; malformed parts verbatim).
        likelihoods: whether to fill in the log-probabilities of the tokens of every sentence, as the model wrote them.
            They are known from writing where ``sampling.keeps_logps``; otherwise the answer is scored once more.

    Attributes:
        watch: seconds spent, in the phases "writing" and, for the distributions, "scoring".

    Raises:
        LovecError: the readout is unknown, or more than one completion per prompt is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        encoder: Encoder,
        sampling: Sampling | None = None,
        readout: Readout = "stated",
        distributions: bool = False,
        likelihoods: bool = False,
    ) -> None:
        self.engine = engine
        self.encoder = encoder
        self.sampling = sampling or Sampling()
        self.readout: Readout = readout
        self.distributions = distributions or readout == "mean"
        self.likelihoods = likelihoods
        self.watch = Stopwatch()
        if self.sampling.n != 1:
            raise LovecError(f"free-form tagging got sampling.n={self.sampling.n}, expected 1 (one answer per record)")

    def tag(self, records: Sequence[Record], on_sentence: OnSentence | None = None) -> list[Record]:
        """Return the records with a new answer and its sentences, in the order given; factuality is None.

        A sentence with a malformed tag, and text after the last tag, have neither score nor confidence.
        ``meta["problems"]`` lists what is wrong, sentence by sentence; ``meta["finished"]`` is False where the answer
        was cut by the token limit. A prompt longer than the model's context leaves an empty answer and a problem.

        Args:
            records: questions.
            on_sentence: called with every sentence once its tag is complete, with the score as written and without
                distribution; the sentences of a record come in their order. Not called with text after the last tag.
        """
        prompts = [self.encoder.prompt(record.question) for record in records]
        room = self.engine.context_length
        fitting = [number for number, prompt in enumerate(prompts) if room is None or len(prompt) < room]
        asked = [prompts[number] for number in fitting]
        with self.watch.phase("writing"):
            groups = self.engine.generate(
                asked,
                replace(self.sampling, watched=self.encoder.watched if self.distributions else ()),
                self.encoder.stop_ids,
                keys=[records[number].id for number in fitting],
                on_token=None if on_sentence is None else _token_callback(self.encoder, fitting, on_sentence),
            )
        answers = [
            read_answer(records[number], completion, self.encoder)
            for number, [completion] in zip(fitting, groups, strict=True)
        ]
        tagged = [record for record, _ in answers]
        if self.distributions:
            tagged = self._with_distributions(answers, asked, [completion for [completion] in groups])
        if self.likelihoods:
            texts = [text for _, text in answers]
            tagged = self._with_likelihoods(tagged, texts, asked, [completion for [completion] in groups])
        tagged_by_number = dict(zip(fitting, tagged, strict=True))
        return [
            tagged_by_number.get(number) or _unanswered(record, len(prompts[number]), room)
            for number, record in enumerate(records)
        ]

    def _with_distributions(
        self,
        answers: Sequence[tuple[Record, TaggedText]],
        prompts: Sequence[list[int]],
        completions: Sequence[Completion],
    ) -> list[Record]:
        """Return the records of parsed answers with the distribution at every valid tag."""
        passages = [
            Passage(record.id, prompt, _steps(text), ids=completion.ids, watched=completion.watched)
            for (record, text), prompt, completion in zip(answers, prompts, completions, strict=True)
        ]
        with self.watch.phase("scoring"):
            score_passages(self.engine, self.encoder, [passage for passage in passages if passage.steps])
        return [self._filled(record, passage) for (record, _), passage in zip(answers, passages, strict=True)]

    def _with_likelihoods(
        self,
        records: Sequence[Record],
        texts: Sequence[TaggedText],
        prompts: Sequence[list[int]],
        completions: Sequence[Completion],
    ) -> list[Record]:
        """Return the records of parsed answers with the log-probabilities of the tokens of every sentence."""
        logps = [completion.logps for completion in completions]
        if not self.sampling.keeps_logps:  # the completions' own are of the distribution drawn from
            contexts = [[*prompt, *completion.ids] for prompt, completion in zip(prompts, completions, strict=True)]
            with self.watch.phase("scoring"):
                scores = token_scorer(self.engine).token_logps(contexts, [len(prompt) for prompt in prompts])
            logps = [found.logps for found in scores]
        filled = []
        for record, text, completion, values in zip(records, texts, completions, logps, strict=True):
            spans = sentence_spans(text, completion.ids, self.encoder)
            pairs = zip(record.sentences, spans, strict=True)
            sentences = (replace(s, token_logps=None if span is None else values[span]) for s, span in pairs)
            filled.append(replace(record, sentences=tuple(sentences)))
        return filled

    def _filled(self, record: Record, passage: Passage) -> Record:
        sentences = list(record.sentences)  # one longer than the passage where there is an untagged tail
        for at, logps in enumerate(passage.logps):
            score = sentences[at].score
            if logps is not None and score is not None:
                sentences[at] = with_score(sentences[at], score, logps, self.encoder.scale, self.readout)
            elif self.readout == "mean":
                sentences[at] = replace(sentences[at], confidence=None)
        meta = {**record.meta, "problems": [*record.meta["problems"], *passage.problems]}
        return replace(record, sentences=tuple(sentences), meta=meta)


def read_answer(record: Record, completion: Completion, encoder: Encoder) -> tuple[Record, TaggedText]:
    """Return a record with the answer in a completion: its sentences and their scores, an untagged tail as the last.

    Args:
        record: the question.
        completion: what the model wrote.
        encoder: the encoder of the model that wrote it.

    Returns:
        The record, and the parsed text. ``meta["problems"]`` and ``meta["finished"]`` are as in `FreeFormTagger.tag`.
    """
    text = encoder.written(completion.ids, completion.finished)
    parsed = parse(text, encoder.tags)
    sentences, problems = [], []
    for number, span in enumerate(parsed.sentences, start=1):
        sentences.append(read_sentence(span, encoder.scale))
        if span.problem is not None:
            problems.append(f"sentence {number}: {span.problem}")
    if parsed.thought and not (sentences or parsed.tail.strip()):
        problems.append("the answer ends inside a thought; give more tokens with max_new_tokens")
    if tail := parsed.tail.strip():
        sentences.append(Sentence(tail, levels=encoder.scale.size))
        problems.append(f"sentence {len(sentences)}: untagged tail")
    meta = {**record.meta, "problems": problems, "finished": completion.finished}
    return replace(record, answer=text, sentences=tuple(sentences), meta=meta, rejected=None), parsed


def sentence_spans(text: TaggedText, ids: Sequence[int], encoder: Encoder) -> list[slice | None]:
    """Return which tokens of an answer each sentence has, without its tag; white space before it belongs to it.

    A token that a sentence and the tag after it share belongs to the sentence.

    Args:
        text: the answer, parsed.
        ids: its token ids.
        encoder: the encoder of the model that wrote it.

    Returns:
        A slice of ``ids`` for every tagged sentence and for an untagged tail; None for a tag without a sentence.
    """
    spans: list[slice | None] = []
    begin = len(text.thought)  # characters before the sentence
    for raw, sentence in [(span.raw, span.text) for span in text.sentences] + [(text.tail, text.tail.strip())]:
        end = begin + len(raw) - len(raw.lstrip()) + len(sentence)
        span = slice(encoder.tokens_until(ids, begin), encoder.tokens_until(ids, end))
        spans.append(span if sentence else None)
        begin += len(raw)
    return spans if text.tail.strip() else spans[:-1]


class AnswerReader:
    """Reads the sentences of one answer while its tokens arrive.

    Args:
        encoder: the encoder of the model that writes the answer.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._ids: list[int] = []
        self._returned = 0  # sentences that `on_token` has returned

    def on_token(self, token: int) -> list[TaggedSentence]:
        """Add a token, and return the sentences whose closing tag word it completes: usually none, rarely several.

        Sentences are returned in the order of the answer. What follows them is at most an unclosed tag or an untagged
        tail.
        """
        self._ids.append(token)
        close = self._encoder.tags.close
        # A token may also end in the middle of a character (U+FFFD), which may be the tag word's last.
        if not {close[-1], "\ufffd"} & set(self._encoder.token_text(token)):
            return []
        complete = [span for span in self._parsed().sentences if span.raw.endswith(close)]
        new, self._returned = complete[self._returned :], len(complete)
        return new

    def rest(self) -> TaggedText:
        """Return what follows the sentences returned by ``on_token``; for the end of the answer."""
        parsed = self._parsed()
        return TaggedText(parsed.sentences[self._returned :], parsed.tail)

    def _parsed(self) -> TaggedText:
        return parse(self._encoder.written(self._ids), self._encoder.tags)


def _token_callback(encoder: Encoder, numbers: Sequence[int], on_sentence: OnSentence) -> OnToken:
    """Return a callback for ``Engine.generate`` that calls ``on_sentence``; ``numbers`` are the records' indices."""
    readers = [AnswerReader(encoder) for _ in numbers]
    reported = [0] * len(numbers)

    def on_token(prompt: int, sample: int, token: int) -> bool:
        for span in readers[prompt].on_token(token):
            on_sentence(numbers[prompt], reported[prompt], read_sentence(span, encoder.scale))
            reported[prompt] += 1
        return True

    return on_token


def _unanswered(record: Record, tokens: int, room: int | None) -> Record:
    """Return a record with an empty answer, whose prompt does not fit the model's context, and log a warning."""
    problem = f"the prompt has {tokens} tokens, the model's context holds {room}; shorten the question"
    log.warning("record %s: %s", record.id, problem)
    meta = {**record.meta, "problems": [problem], "finished": False}
    return replace(record, answer="", sentences=(), meta=meta, rejected=None)


def read_sentence(span: TaggedSentence, scale: Scale) -> Sentence:
    """Return a parsed span as a sentence; a tag without text keeps its raw span, so that no sentence is empty."""
    confidence = None if span.score is None else scale.confidence(span.score)
    return Sentence(span.text or span.raw.strip(), confidence=confidence, score=span.score, levels=scale.size)


def _steps(text: TaggedText) -> list[Step]:
    """Return an answer as steps of a passage: well-formed sentences with their scores, everything else verbatim."""
    return [
        Step(span.raw, literal=True) if span.score is None else Step(span.text, score=span.score)
        for span in text.sentences
    ]
