"""The models behind a server: each says what it reads of a request, and which jobs of its worker answer it."""

from __future__ import annotations

import copy
import sys
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lovec.encoding.grounding import UNGROUNDED, GroundedEncoder, encoder_of
from lovec.serving.history import History
from lovec.serving.inline import Inline
from lovec.serving.jobs import AnswerJob, Job, StepsJob
from lovec.serving.pending import Pending
from lovec.serving.responses import AnswerResponse, TextResponse
from lovec.serving.wire import AnswerRequest, RequestRefused
from lovec.taggers import IterativeTagger, Session
from lovec.taggers.by_source import requests_by_both
from lovec.taggers.freeform import GrowingAnswer, WithoutSource
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging import with_unknown_words
from lovec.tags import TagFormat
from lovec.types import BY_SOURCE, FREE_FORM, ITERATIVE, MODES, Mode, Record, error_in

if TYPE_CHECKING:
    from lovec.serving.tasks import TaskWorker
    from lovec.serving.worker import EngineWorker


class ServedModel(ABC):
    """A model that a server answers with.

    Args:
        tags: the tag words and the scale.
        served: what becomes of the confidences.
        worker: does the jobs.

    Attributes:
        tags: as given, like the others.
        text_tags: the tag words and the scale of the scores of given texts.
    """

    most_characters = sys.maxsize
    """The most characters of a text that the model can read."""

    def __init__(self, tags: TagFormat, served: ServedConfidence, worker: EngineWorker | TaskWorker) -> None:
        self.tags, self.served, self.worker = tags, served, worker
        self.text_tags = tags

    @property
    def is_grounded(self) -> bool:
        """Whether it was trained with evidence in its prompts, so that requests may bring some."""
        return False

    def notes(self) -> dict[str, str]:
        """Return what is said of confidences, by the mode of tagging, and by source where there are such."""
        notes: dict[str, str] = {mode: self.note(mode) for mode in MODES}
        if self.is_grounded:
            notes |= {BY_SOURCE[mode]: self.served.source_note(mode) for mode in MODES}
        return notes

    def check_evidence(self, evidence: Sequence[str] | None) -> None:
        """Check that a request brings evidence only where the model can use it.

        Raises:
            RequestRefused: it cannot.
        """
        if evidence and not self.is_grounded:
            message = f"evidence is given, and the model of this server {UNGROUNDED}"
            raise RequestRefused(message, "evidence", code="unsupported_parameter")

    @abstractmethod
    def note(self, mode: Mode) -> str:
        """Return one sentence that says what the confidences of a mode of tagging are."""

    @abstractmethod
    def read(self, request: AnswerRequest, inline: Inline) -> tuple[History, Sequence[Any], list[str]]:
        """Return the conversation of a request, what the model reads of it, and what is wrong with the question.

        Args:
            request: the request.
            inline: how confidences stand in the text of earlier answers.

        Raises:
            RequestRefused: the model cannot read it.
        """

    @abstractmethod
    def check_question(self, question: str) -> None:
        """Check that the model can tag a text that answers a question.

        Raises:
            RequestRefused: it cannot.
        """

    def with_source(self, record: Record) -> tuple[Record, list[str]]:
        """Return a given text with its evidence as the prompt has it, and what there is to say about that.

        Args:
            record: the text; it has evidence only where ``is_grounded``.

        Raises:
            RequestRefused: there is no room for it.
        """
        return record, []

    @abstractmethod
    def answer_jobs(self, response: AnswerResponse, pending: Pending) -> Sequence[Job]:
        """Return the jobs for answers; what they find goes to ``pending``, with the number of the answer."""

    @abstractmethod
    def text_jobs(self, response: TextResponse, pending: Pending) -> Sequence[Job]:
        """Return the jobs for a given text; what they find goes to ``pending``."""

    @abstractmethod
    def close(self) -> None:
        """Release what the model holds."""


class SessionModel(ServedModel):
    """A model that lovec runs, in this process or on a vLLM server.

    Args:
        session: the model.
        worker: runs its engine.
    """

    def __init__(self, session: Session, worker: EngineWorker | TaskWorker) -> None:
        # A tokenizer has settings that a call may change: the engine's thread and those of requests each have one.
        encoder = session.encoder
        super().__init__(encoder.tags, session.served, worker)
        self.session = session
        prompting = encoder.instruction, encoder.tags, encoder.scoring, encoder.grounding
        own = encoder_of(copy.deepcopy(encoder.tokenizer), *prompting, encoder.stop_ids)
        self.encoder = own.within(encoder.context) if isinstance(encoder, GroundedEncoder) else own
        self._encoding = threading.Lock()
        self._longest_token = max(map(len, encoder.tokenizer.get_vocab()))
        self._room = session.engine.context_length
        if self._room is not None:
            self.most_characters = self._room * self._longest_token

    @property
    def is_grounded(self) -> bool:
        """Whether it was trained with evidence in its prompts."""
        return isinstance(self.encoder, GroundedEncoder)

    def note(self, mode: Mode) -> str:
        """Return one sentence that says what the confidences of a mode of tagging are."""
        return self.served.note(mode)

    def read(self, request: AnswerRequest, inline: Inline) -> tuple[History, Sequence[Any], list[str]]:
        """Return the conversation, its token ids, and that the model knows too few words, see ``ServedModel.read``."""
        turns = request.turns
        history: History

        def encode() -> list[int]:
            nonlocal history
            history = History(turns, self.tags, inline)
            return history.prompt(self.encoder)

        prompt = self._encode(request.PLACE, sum(len(turn.text) for turn in turns), encode)
        asked = [turn.text for turn in turns if turn.role == "user"]
        with self._encoding:
            unknown = replace(self.session, encoder=self.encoder).unknown_words_problem(asked)
        problems = [] if unknown is None else [unknown]
        if request.evidence:
            history.source, notices = self._source(history.texts, request.evidence)
            with self._encoding:
                prompt = history.written_prompt(self.encoder)
            problems += notices
        return history, prompt, problems

    def check_question(self, question: str) -> None:
        """Check that a question fits the model's context."""
        self._encode("question", len(question), lambda: self.encoder.prompt(question))

    def with_source(self, record: Record) -> tuple[Record, list[str]]:
        """Return a given text with its evidence as the prompt has it, see ``ServedModel.with_source``."""
        if not record.evidence:
            return record, []
        statements = [part.text for part in record.sentences if part.is_statement]
        source, notices = self._source([("user", record.question)], record.evidence, statements)
        return replace(record, evidence=(source,)), notices

    def answer_jobs(self, response: AnswerResponse, pending: Pending) -> Sequence[Job]:
        """Return the jobs for answers, which have to wait for the scores of earlier ones."""
        if response.history.is_known:
            return self._answer_jobs(response, pending)

        def go_on(history: History | Exception) -> None:
            if isinstance(history, Exception):
                pending.put(0, history)
                return
            response.history = history
            response.prompt = history.written_prompt(self.session.encoder)
            jobs = self._answer_jobs(response, pending)
            self.worker.submit(*jobs, accepted=True)
            pending.add(jobs)

        return [StepsJob(go_on, response.history.requests(self.session.encoder, self._room))]

    def text_jobs(self, response: TextResponse, pending: Pending) -> Sequence[Job]:
        """Return the job for a given text."""
        session = self.session

        def put(item: Any) -> None:
            pending.put(0, with_unknown_words(item, session, ITERATIVE) if isinstance(item, Record) else item)

        return [StepsJob(put, requests_by_both(self._iterative(), [response.record]))]

    def close(self) -> None:
        """Release what the engine holds."""
        self.session.close()

    def _answer_jobs(self, response: AnswerResponse, pending: Pending) -> list[AnswerJob]:
        """Return the jobs for the answers to a prompt."""
        return [self._answer_job(response, part, partial(pending.put, part)) for part in range(response.parts)]

    def _iterative(self) -> IterativeTagger:
        """Return what scores given texts."""
        by_knowledge, by_source = map(self.served.calibration, (ITERATIVE, BY_SOURCE[ITERATIVE]))
        engine, encoder = self.session.engine, self.session.encoder
        return IterativeTagger(engine, encoder, "mean", calibration=by_knowledge, by_source=by_source)

    def _source(
        self, turns: Sequence[tuple[str, str]], evidence: Sequence[str], sentences: Sequence[str] = ()
    ) -> tuple[str, list[str]]:
        """Return what a prompt has of evidence, and what there is to say about it, see ``GroundedEncoder.cut_source``.

        Raises:
            RequestRefused: there is no room for it.
        """
        encoder = self.encoder
        assert isinstance(encoder, GroundedEncoder)
        refused = partial(RequestRefused, parameter="evidence", code="context_length_exceeded")
        with error_in(kind=refused), self._encoding:
            source, was_cut = encoder.cut_source(turns, evidence, sentences)
        said = f"the evidence has more than {encoder.grounding.tokens} tokens, or half of what is left of the context"
        return source, [f"{said}; it is cut to what resembles the question and the sentences most"] if was_cut else []

    def _answer_job(self, response: AnswerResponse, part: int, put: Callable[[Any], None]) -> AnswerJob:
        """Return the job for one answer."""
        request, encoder = response.request, self.session.encoder
        calibration = self.served.calibration(BY_SOURCE[FREE_FORM] if request.evidence else FREE_FORM)
        without_source = None
        if request.evidence:
            by_knowledge = self.served.calibration(ITERATIVE)
            without_source = WithoutSource(partial(response.history.prompt, encoder), by_knowledge)
        reading = calibration, request.sampling.keeps_logps, request.stop, without_source
        growing = GrowingAnswer(encoder, response.prompt, *reading)
        sampling = replace(request.sampling, watched=encoder.watched if growing.distributions else ())
        job = put, response.prompt, sampling, stream_key(request, part), growing.on_token
        return AnswerJob(*job, growing=growing, streams=request.stream)

    def _encode(self, parameter: str, characters: int, encode: Callable[[], list[int]]) -> list[int]:
        """Return the token ids of a prompt. It is not encoded if it is too long even where all tokens are the longest.

        Args:
            parameter: the parameter that it comes from.
            characters: number of its characters.
            encode: returns its token ids.

        Raises:
            RequestRefused: it does not fit the model's context, or is none that the model has.
        """
        room = self._room
        if characters > self.most_characters:
            length = f"{characters} characters, at least {characters // self._longest_token} tokens"
        else:
            with error_in(kind=partial(RequestRefused, parameter=parameter)), self._encoding:
                prompt = encode()
            if room is None or len(prompt) < room:
                return prompt
            length = f"{len(prompt)} tokens with the instruction"
        message = f"the {parameter} {'have' if parameter == 'messages' else 'has'} {length}, "
        message += f"the model's context holds {room}"
        raise RequestRefused(message, parameter, code="context_length_exceeded")


def stream_key(request: AnswerRequest, part: int) -> str:
    """Return what names the random stream of an answer, together with the seed of its request."""
    return uuid.uuid4().hex if request.seed is None else f"\x1e{part}" if part else ""
