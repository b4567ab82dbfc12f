"""A model behind chat completions as a tagger: no token ids, no log-probabilities of a prompt, one reply a call.

It answers questions with tags, by the instruction; and it gives the sentences of given texts a confidence by p(true),
Verb-Conf, Self-Consistency and LUQ, whose questions it answers in words. Where the server gives log-probabilities of
the first tokens, they make the distribution over the possible words; elsewhere the word that was replied counts.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from lovec.baselines import LUQ, BaselineResources, Claim, Judge, Samples, SelfConsistency, Wording, YesNoJudge
from lovec.baselines.base import with_confidences
from lovec.baselines.samples import brought_samples
from lovec.core.notices import SingleWarning, counted
from lovec.core.progress import doing, rounded_time
from lovec.core.provenance import Provenance
from lovec.core.settings import Count, checked
from lovec.encoding import default_instruction, prompt_settings
from lovec.oracles.answers import longest_reply, read_answer, sampling_parameters
from lovec.oracles.asking import Asker, Prompt
from lovec.oracles.cache import ChatReply, ReplyCache, ReplyToken
from lovec.oracles.chat import read_tokens
from lovec.oracles.costs import Estimate
from lovec.taggers.freeform import OnWritten, read_sentence, read_tagged
from lovec.taggers.scoring import Tagged, items_of, read_out
from lovec.taggers.served_confidence import ServedConfidence
from lovec.tagging.base import DocumentTagger, with_cut_off, with_problem
from lovec.tagging.methods import SAMPLED, Method, check_method, method_note, tags_of_method, with_parts
from lovec.tagging.selection import KEEP_ALL, Selection
from lovec.tags import DEFAULT_TAGS, TagFormat, TaggedSentence, parse, strip, without_thoughts
from lovec.types import (
    DEFAULT_SCALE,
    FREE_FORM,
    ITERATIVE,
    LovecError,
    Readout,
    Record,
    Sampling,
    Scale,
    Sentence,
    Unit,
)

T = TypeVar("T")

OPENAI = "openai"
"""Name of the engine that is a model behind chat completions."""

P_TRUE_SCALE = Scale(("False", "True"))
"""The words of p(true), whose probabilities are the distribution of a sentence."""

_LOGPROBS: Sequence[Mapping[str, Any]] = (
    {"logprobs": True, "top_logprobs": 20},
    {"logprobs": True, "top_logprobs": 5},  # the most that some servers give
    {},
)
_SHORT = Sampling(16)  # of a reply that is a word
_TRUTH_REPLY = re.compile(r"\W*(true|false)\b", re.IGNORECASE)
_NUMBER_REPLY = re.compile(r"\W*(?:confidence(?:\s+score)?\W*)?(\d{1,2})(?:\s*(?:/|out of)\s*10)?\W*", re.IGNORECASE)
_SUPPORT_REPLY = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_SENTENCE_TOKENS = 25  # of a sentence of a sample that does not exist yet

log = logging.getLogger(__name__)


class ApiModel(Asker):
    """A model on an OpenAI-compatible server (`--engine openai`): its address and limits.

    The API key is read from $OPENAI_API_KEY. Replies are stored in the cache as they come, so nothing is paid for
    twice.

    Args:
        parameters: sent with every call, in place of temperature, max_tokens and seed, such as
            ``{"max_completion_tokens": 2048}`` for models that think first; null leaves one out, also one that asks
            for log-probabilities.
        max_cost: the most US dollars to spend.
        ask_again: ask again where the cache holds only unusable replies.
    """

    def answers(self, names: Sequence[str], prompts: Sequence[Callable[[], Prompt[T]]]) -> list[T | None]:
        """Return what the reply to every prompt says; None for those that ``failures`` names.

        Args:
            names: names the prompts, for ``failures``.
            prompts: functions that return what is asked; each is called where there is a free call, since many prompts
                with the same long text would not fit into memory together.

        Raises:
            LovecError: the money is spent, the server refuses every call, 20 in a row failed, or a reply could not be
                stored; all replies so far are in the cache.
        """
        with doing(self.model, text=lambda: f"{self.model}: {self.status}"):
            asked = self._ask(names, prompts)
        if asked.missing or asked.gave_up:
            rest = f"{len(asked.missing)} of {len(names)} calls are not made, " if asked.missing else ""
            raise LovecError(f"{asked.stop_reason}; {rest}all replies so far are in the cache")
        return list(asked.values)

    def estimated(self, prompts: Iterable[Prompt[Any]]) -> Estimate:
        """Estimate what it takes to ask, without any call."""
        return replace(self._estimate((partial(_same, prompt) for prompt in prompts), False), unit="question")

    def sent(self, sampling: Sampling, key: str = "") -> dict[str, Any]:
        """Return the parameters of a call, see ``sampling_parameters``."""
        return sampling_parameters(sampling, key, self.parameters)

    def wished(self, wishes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return wishes, see ``Prompt.wishes``, without what ``parameters`` names, which is sent as it is given there.

        A wish with a part that ``parameters`` switches off, by null or false, is left out.
        """
        off = {name for name, value in self.parameters.items() if value is None or value is False}
        own = [
            {name: value for name, value in wish.items() if name not in self.parameters}
            for wish in wishes
            if not off & wish.keys()
        ]
        return [wish for at, wish in enumerate(own) if wish not in own[:at]]


def _same(prompt: Prompt[T]) -> Prompt[T]:
    return prompt


def api_provenance(model: str, instruction: str, tags: TagFormat) -> Provenance:
    """Return what decides the scores of a model behind an API, as far as anybody can know."""
    parts = {"base": {"name": model}, "adapter": {}, "prompt": prompt_settings(instruction, tags), "computing": {}}
    return Provenance(parts)


def check_api(method: Method | None, readout: Readout | None, asking: bool) -> None:
    """Refuse what a model behind chat completions cannot do.

    Args:
        method: the method of given texts; None where the model states confidences in its own answers.
        readout: how confidences are read.
        asking: whether questions are to be answered.

    Raises:
        LovecError: there is no such method here, or texts are given without one, or questions with one.
    """
    if method is None and not asking:
        raise LovecError(
            "a model behind chat completions tags given texts by a method: p_true, verbal, self_consistency or luq; "
            "without one it answers questions"
        )
    if method is not None:
        check_method(method, readout)
        if asking:
            raise LovecError(f"the method {method} tags given texts; leave it out to have questions answered with tags")
    if method == "likelihood":
        raise LovecError(
            "the method likelihood needs log-probabilities of given tokens, which chat completions do not give; use "
            "p_true or verbal"
        )


# Reading replies


def level_logps(reply: ChatReply, place: int, words: Sequence[str]) -> list[float] | None:
    """Return the log-probability of every word, where one of them begins at a place of a reply.

    The words are told by their first tokens, whatever capitals they have. A token that begins several words, as "1" may
    begin "10", counts for none, unless it is the one that was written: then the token after it decides, or the text
    where that token is not known.

    Args:
        reply: the reply.
        place: number of characters before the word.
        words: the words that may be there.

    Returns:
        A log-probability for each, -inf for a word that is not among the most probable; None where none is known.
    """
    at = reply.token_at(place)
    if at is None:
        return None
    mass = _word_masses(reply, at, reply.text[reply.tokens[at].begin : place], "", [word.lower() for word in words])
    return [math.log(p) if p > 0 else -math.inf for p in mass] if any(mass) else None


def _word_masses(reply: ChatReply, at: int, before: str, begun: str, words: Sequence[str]) -> list[float]:
    """Return the probability of every word.

    Args:
        reply: the reply.
        at: index of a token.
        before: what the token has before the word.
        begun: the part of the word before the token.
        words: the words, in lower case.
    """
    token, mass = reply.tokens[at], [0.0] * len(words)
    texts = {name: (begun + name.removeprefix(before).lower()).lstrip() for name in token.logps}
    for name, logp in token.logps.items():
        text = texts[name].rstrip()
        ended = [word for word in words if _begins_with(text, word)]
        longer = [word for word in words if word.startswith(text) and word != text] if text else []
        longer = [word for word in longer if word not in texts.values()]  # that is a token of its own
        found = ended + longer
        if len(found) == 1:
            mass[words.index(found[0])] += math.exp(logp)
        elif len(found) > 1 and name == token.text:
            if _follows(reply, at):
                rest = _word_masses(reply, at + 1, "", texts[name], words)
            else:
                stands = _word_at(texts[name] + reply.text[token.begin + len(token.text) :].lower(), found)
                rest = [float(word == stands) for word in words]
            total = sum(rest)
            mass = [m + math.exp(logp) * r / total if total else m for m, r in zip(mass, rest, strict=True)]
    return mass


def _begins_with(text: str, word: str) -> bool:
    """Return whether a text begins with a word that ends there."""
    return text.startswith(word) and not text[len(word) : len(word) + 1].isalnum()


def _word_at(text: str, words: Sequence[str]) -> str | None:
    """Return the longest of some words that a text begins with; None if it begins with none of them."""
    return max((word for word in words if _begins_with(text, word)), key=len, default=None)


def _follows(reply: ChatReply, at: int) -> bool:
    """Return whether the token after another one is known."""
    token = reply.tokens[at]
    return at + 1 < len(reply.tokens) and reply.tokens[at + 1].begin == token.begin + len(token.text)


def _tokens_in(spans: Callable[[str], Sequence[tuple[int, int]]], reply: ChatReply) -> tuple[ReplyToken, ...]:
    """Return the tokens of a reply that have a character in one of the spans of its text."""
    ranges = spans(reply.text)
    return tuple(
        token
        for token in reply.tokens
        if any(token.begin < end and token.begin + len(token.text) > begin for begin, end in ranges)
    )


def _tag_insides(tags: TagFormat, text: str) -> list[tuple[int, int]]:
    """Return where the scores of an answer stand: behind the opening word and white space, up to the closing word.

    The first character of the closing word belongs to it: what may stand in its place tells "1" from "10".
    """
    parsed = parse(text, tags)
    begin, places = len(parsed.thought), []
    for span in parsed.sentences:
        place = begin + _score_place(tags, span.raw), begin + span.raw.rfind(tags.close) + 1
        places.append(place if span.score is not None else (0, 0))
        begin += len(span.raw)
    return places


def _score_place(tags: TagFormat, raw: str) -> int:
    """Return where the score of a span stands: behind the opening word and white space."""
    begin = raw.find(tags.open) + len(tags.open)
    return len(raw) - len(raw[begin:].lstrip())


@dataclass(frozen=True, slots=True)
class Word:
    """A word that a model has replied with.

    Attributes:
        level: its level in the scale of possible words.
        logps: log-probability of each of them; None where they are not known.
    """

    level: int
    logps: list[float] | None = None


def _word_match(pattern: re.Pattern[str], whole: bool, text: str) -> re.Match[str] | None:
    """Return where a reply has its word, behind a thought."""
    begin = len(text) - len(without_thoughts(text) or "")
    return pattern.fullmatch(text, begin) if whole else pattern.match(text, begin)


def _word_place(pattern: re.Pattern[str], whole: bool, text: str) -> list[tuple[int, int]]:
    """Return where a reply has its word, and the character behind it, which tells "1" from "10"."""
    match = _word_match(pattern, whole, text)
    return [] if match is None else [(match.start(1), match.end(1) + 1)]


def _read_word(pattern: re.Pattern[str], whole: bool, words: Sequence[str], reply: ChatReply) -> Word | str:
    """Return the word that a reply consists of, or begins with, or why it has none."""
    read = read_answer(reply)
    if isinstance(read, str):
        return read
    match = _word_match(pattern, whole, reply.text)
    known = [word.lower() for word in words]
    if match is None or match[1].lower() not in known:
        return f"the reply is {read[0][:60]!r}, expected {' or '.join(words)}"
    return Word(known.index(match[1].lower()), level_logps(reply, match.start(1), words))


def _read_tags(tags: TagFormat, strict: bool, reply: ChatReply) -> ChatReply | str:
    """Return a reply with an answer, or why it cannot be used: where ``strict``, malformed tags are a reason."""
    read = read_answer(reply)
    if isinstance(read, str):
        return read
    parsed = parse(reply.text, tags)
    problems = [span.problem for span in parsed.sentences if span.problem is not None]
    if read[1] and parsed.tail.strip():
        problems.append("text without a tag")
    return f"malformed tags: {problems[0]}" if strict and problems else reply


class _ApiJudge(Judge):
    """Asks the model whether a text supports a sentence; a reply that cannot be used counts as No."""

    def __init__(self, tagger: ApiTagger) -> None:
        self._tagger = tagger

    def attach(self, resources: BaselineResources) -> None:
        """Do nothing: the judge has its model."""

    def support(self, claims: Sequence[Claim]) -> list[float]:
        """Return 1 for every claim to which the model says Yes, else 0."""
        names = [f"{claim.record.id}/comparison-{at}" for at, claim in enumerate(claims, 1)]
        replies = self._tagger.asker.answers(names, [partial(self._tagger.judge_prompt, claim) for claim in claims])
        return [0.0 if reply is None else float(reply.level) for reply in replies]


class _NoTokens:
    """Stands for the engine of a judge that asks for one, which a model behind chat completions is not."""

    def __getattr__(self, name: str) -> Any:
        raise LovecError("this judge needs token ids, which chat completions do not give; use NLIJudge, or none")


@checked()
class ApiTagger(DocumentTagger):
    """Tags with a model behind chat completions: its own answers by tags, given texts by a method.

    Args:
        asker: the model.
        method: "p_true", "verbal", "self_consistency" or "luq" for given texts; None for questions.
        samples: other answers per question, for the last two.
        judge: tells them whether a text supports a sentence; None asks the model itself.
        readout: "stated" asks for no log-probabilities; "mean", and None where a score is stated, takes the mean of the
            distribution that they make, where the server gives them. For "verbal" None is "stated".
        max_new_tokens: longest answer, in tokens.
        selection: which sentences are kept, and what becomes of the others.
        instruction: system turn that asks for tags; None is the paper's.
        tags: the tag words and the scale.
        served: what becomes of the confidences: of its own answers, and of given texts where it has a calibration
            that was fitted to such.
        unit: what gets a confidence in given texts: sentences, or the clauses inside them.

    Attributes:
        asker: as passed.
        method: as passed.
        instruction: in effect.
        expected_calls: number of calls that ``cost`` has announced.

    Raises:
        LovecError: the method is not one of these.
    """

    def __init__(
        self,
        asker: ApiModel,
        method: Method | None = None,
        samples: Count = 10,
        judge: Judge | None = None,
        readout: Readout | None = None,
        max_new_tokens: Count = 512,
        selection: Selection = KEEP_ALL,
        instruction: str | None = None,
        tags: TagFormat = DEFAULT_TAGS,
        served: ServedConfidence | None = None,
        unit: Unit = "sentence",
    ) -> None:
        super().__init__(asker.model, tags, served or ServedConfidence(falls_back=False), selection, unit)
        check_api(method, readout, asking=method is None)
        self.asker = asker
        self.method = method
        self.text_tags = tags_of_method(method, self.tags)
        self.samples = samples
        self.readout = readout
        self.instruction = default_instruction(tags) if instruction is None else instruction
        self.expected_calls = 0
        self._sampling = Sampling(max_new_tokens)
        self._wording = Wording()
        self._seconds = 0.0
        self._asks_itself = judge is None or isinstance(judge, YesNoJudge)
        self._judge: Judge = _ApiJudge(self)
        if judge is not None and not self._asks_itself:
            nothing: Any = _NoTokens()
            judge.attach(BaselineResources(nothing, nothing, self._wording, Samples()))
            self._judge = judge
        self._unknown = SingleWarning(
            log, "the server gives no log-probabilities: the confidence of %d records so far is what was stated: %s"
        )

    def close(self) -> None:
        """Do nothing: calls end by themselves."""

    @property
    def provenance(self) -> Provenance:
        """What decides the scores, as far as anybody can know."""
        return api_provenance(self.model, self.instruction, self.tags)

    def note(self, mode: str) -> str:
        """Return one sentence that says what the confidences are."""
        if mode == ITERATIVE:
            if self.method is None:
                return "Given texts get no confidences: there is no method for them."
            texts = self.served.note(mode) if mode in self.served.calibrations else None
            return self._noted(texts or method_note(self.method, self.samples, self.readout))
        if mode in self.served.calibrations:
            return self.served.note(mode)
        if self.readout == "stated":
            return "Confidence: the stated score, as a share of the highest score; not calibrated."
        return (
            "Confidence: the mean of the stated scores by the probabilities of their first tokens, where the server "
            "gives them, else the stated score; not calibrated."
        )

    def cost(self, records: Iterable[Record], mode: str) -> str:
        """Return in words what it takes: calls, tokens and, where prices are given, US dollars."""
        comparisons = [0, 0]  # calls to make, and tokens of their prompts
        estimate = self.asker.estimated(self._announced(records, comparisons))
        calls, tokens = comparisons
        if calls:
            tokens_in, tokens_out = estimate.tokens_in + tokens, estimate.tokens_out + calls
            estimate = replace(
                estimate,
                records=estimate.records + calls,
                calls=estimate.calls + calls,
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                cost=self.asker.prices.cost(tokens_in, tokens_out),
            )
        self.expected_calls = estimate.calls
        return f"{self.model}: {estimate}"

    def account(self) -> str:
        """Return in words what tagging has taken: calls, replies from the cache, money or tokens, time."""
        unusable = self.asker.unusable
        again = f", {counted(unusable, 'reply', 'replies')} could not be used" if unusable else ""
        return f"{self.model}: {self.asker.status}{again}; took {rounded_time(self._seconds)}"

    def stream(self, records: Sequence[Record], mode: str, on_written: OnWritten | None = None) -> Iterator[Tagged]:
        """Yield the sentences of records, and the records as they are in the end; all calls are made before.

        Args:
            records: the texts, or the questions.
            mode: "iterative" with a method, "free-form" without.
            on_written: not used: a reply comes whole.

        Raises:
            LovecError: the mode is the other one, or asking has stopped, see `ApiModel.answers`.
        """
        check_api(self.method, self.readout, asking=mode == FREE_FORM)
        start = time.monotonic()
        tagged = self._answered(records) if self.method is None else self._scored(records)
        self._unknown.flush()
        self._seconds += time.monotonic() - start
        for number, record in enumerate(tagged):
            yield from items_of(self._filtered(record, mode), number)

    # What is asked

    def _announced(self, records: Iterable[Record], comparisons: list[int]) -> Iterator[Prompt[Any]]:
        """Yield what is asked about records, as far as it is known; what is not is added to ``comparisons``."""
        for record in records:
            if self.method is None:
                yield self._question_prompt(record)
                continue
            statements = self._split(record).statements()
            if self.method not in SAMPLED:
                yield from (prompt() for prompt in self.sentence_prompts(statements))
            elif statements.sentences:
                yield from self._comparison_prompts(statements, comparisons)

    def _comparison_prompts(self, record: Record, comparisons: list[int]) -> Iterator[Prompt[Any]]:
        """Yield the samples of a text, and the comparisons with those that the cache has."""
        prompts = [] if brought_samples(record) else self._sample_prompts(record)
        yield from prompts
        if not self._asks_itself:
            return
        with ReplyCache(self.asker.cache) as cache:
            values = [self.asker.stored_value(prompt, cache) for prompt in prompts]
        texts = brought_samples(record)[: self.samples] or [value[0] for value in values if value is not None]
        pieces = [piece for text in texts for piece in self._baseline().pieces(strip(text, self.tags))]
        for sentence in record.sentences:
            yield from (self.judge_prompt(Claim(record, piece, sentence.text)) for piece in pieces)
        unknown = sum(value is None for value in values)
        each, length = 1, self._sampling.max_new_tokens
        if self.method == "self_consistency":  # as many sentences as the text has
            each, length = len(record.sentences), _SENTENCE_TOKENS
        for sentence in record.sentences:
            empty = self.judge_prompt(Claim(record, "", sentence.text))
            comparisons[0] += unknown * each
            comparisons[1] += unknown * each * (empty.tokens + length)

    @property
    def needs_logps(self) -> bool:
        """Whether the confidences of its own answers are made of log-probabilities."""
        calibration = self.served.calibrations.get(FREE_FORM)
        return self.readout != "stated" and (calibration is None or calibration.needs_distribution)

    @property
    def wishes(self) -> Sequence[Mapping[str, Any]]:
        """Parameters of a call for an answer that a server may refuse, see ``Prompt.wishes``."""
        return self.asker.wished(_LOGPROBS) if self.needs_logps else ({},)

    def _question_prompt(self, record: Record) -> Prompt[ChatReply]:
        """Return the question of a record, with the instruction; malformed tags are asked for once more."""
        sent = self.asker.sent(self._sampling)
        return Prompt(
            record.question,
            longest_reply(sent, self._sampling),
            sent,
            partial(_read_tags, self.tags, True),
            instruction=self.instruction,
            attempts=2,
            settle=partial(_read_tags, self.tags, False),
            wishes=self.wishes,
            kept=partial(_tokens_in, partial(_tag_insides, self.tags)),
        )

    def sentence_prompts(self, record: Record) -> list[Callable[[], Prompt[Word]]]:
        """Return for every sentence of a text what makes the question of the method, "p_true" or "verbal", about it.

        Each question has the whole text in it.
        """
        context = " ".join(sentence.text for sentence in record.sentences)
        wording, pattern, words = self._wording.verbal, _NUMBER_REPLY, DEFAULT_SCALE.words
        wishes: Sequence[Mapping[str, Any]] = _LOGPROBS if self.readout == "mean" else ({},)
        if self.method == "p_true":
            wording, pattern, words, wishes = self._wording.p_true, _TRUTH_REPLY, P_TRUE_SCALE.words, _LOGPROBS
        wishes = self.asker.wished(wishes)
        fill = {"question": record.question.strip(), "context": context}

        def prompt(sentence: Sentence) -> Prompt[Word]:
            return self._word_prompt(wording.format(**fill, sentence=sentence.text), pattern, words, wishes)

        return [partial(prompt, sentence) for sentence in record.sentences]

    def judge_prompt(self, claim: Claim) -> Prompt[Word]:
        """Return the question whether a text supports a sentence."""
        text = self._wording.support.format(
            question=claim.record.question, context=claim.premise, sentence=claim.hypothesis
        )
        return self._word_prompt(text, _SUPPORT_REPLY, ("No", "Yes"), ({},))

    def _word_prompt(
        self, text: str, pattern: re.Pattern[str], words: Sequence[str], wishes: Sequence[Mapping[str, Any]]
    ) -> Prompt[Word]:
        """Return a question that is answered by a word."""
        whole = pattern is _NUMBER_REPLY  # which may be the beginning of something else
        read, kept = partial(_read_word, pattern, whole, words), partial(_word_place, pattern, whole)
        sent = self.asker.sent(_SHORT)
        return Prompt(text, longest_reply(sent, Sampling(1)), sent, read, wishes=wishes, kept=partial(_tokens_in, kept))

    def _sample_prompts(self, record: Record) -> list[Prompt[tuple[str, bool]]]:
        """Return the question of a record, once for each sample."""
        how = Sampling(self._sampling.max_new_tokens, temperature=1.0)
        sent = [self.asker.sent(how, f"{how.seed}/{record.id}/{number}") for number in range(1, self.samples + 1)]
        return [Prompt(record.question, longest_reply(one, how), one, read_answer) for one in sent]

    # What becomes of replies

    def _answered(self, records: Sequence[Record]) -> list[Record]:
        """Have questions answered with tags."""
        prompts = [partial(self._question_prompt, record) for record in records]
        replies = self.asker.answers([record.id for record in records], prompts)
        return [with_cut_off(self._read(*pair)) for pair in zip(records, replies, strict=True)]

    def _read(self, record: Record, reply: ChatReply | None) -> Record:
        """Return a record with the tagged answer in a reply."""
        if reply is None:
            failed = replace(record, answer="", sentences=(), rejected=None)
            return with_problem(failed, f"no answer: {self.asker.failures.get(record.id, 'the call failed')}")
        answer, parsed = read_tagged(record, reply.text, reply.finish != "length", self.tags)
        sentences = list(answer.sentences)
        for at, (place, _) in enumerate(_tag_insides(self.tags, reply.text)):
            if (score := parsed.sentences[at].score) is not None and self.readout != "stated":
                logps = level_logps(reply, place, self.tags.scale.words)
                if logps is None:
                    self._unknown.add(record.id)
                else:
                    sentences[at] = read_out(sentences[at], score, logps, None, self.tags.scale, "mean")
        return replace(answer, sentences=tuple(sentences))

    def _scored(self, records: Sequence[Record]) -> list[Record]:
        """Give the sentences of given texts confidences."""
        split = [self._split(record) for record in records]
        statements = [record.statements() for record in split]
        rows = self._compared(statements) if self.method in SAMPLED else self._questioned(statements)
        return [self._finished(*each) for each in zip(split, statements, rows, strict=True)]

    def _questioned(self, records: Sequence[Record]) -> list[list[Sentence]]:
        """Return the sentences of texts with what the method's question about each has given."""
        prompts = [self.sentence_prompts(record) for record in records]
        names = [f"{record.id}/sentence-{at}" for record in records for at, _ in enumerate(record.sentences, 1)]
        found = self.asker.answers(names, [prompt for row in prompts for prompt in row])
        replies = iter(found)
        return [[self._worded(record.id, s, next(replies)) for s in record.sentences] for record in records]

    def _worded(self, name: str, sentence: Sentence, word: Word | None) -> Sentence:
        if word is not None and word.logps is None and (self.method == "p_true" or self.readout == "mean"):
            self._unknown.add(name)
        return self.read_word(sentence, word)

    def read_word(self, sentence: Sentence, word: Word | None) -> Sentence:
        """Return a sentence of a given text with what the method's question about it has given."""
        plain = Sentence(sentence.text, sentence.factuality, claim=sentence.claim, part_of=sentence.part_of)
        if word is None:
            return plain
        calibration = self.served.calibrations.get(ITERATIVE)
        if self.method == "verbal":
            mean = self.readout == "mean" and word.logps is not None
            readout: Readout = "mean" if mean else "stated"
            return read_out(plain, word.level, word.logps, None, DEFAULT_SCALE, readout, calibration)
        sentence = replace(plain, confidence=float(word.level))
        if word.logps is not None:
            false, true = map(math.exp, word.logps)
            sentence = replace(
                plain, confidence=true / (false + true), distribution=(false, true), levels=P_TRUE_SCALE.size
            )
        return sentence if calibration is None else replace(sentence, confidence=calibration.confidence(sentence))

    def read_span(self, span: TaggedSentence, items: Sequence[Any] = ()) -> Sentence:
        """Return a tagged span of an answer as a sentence with its confidence.

        Args:
            span: the span.
            items: what the server says of its tokens, and maybe of others around, see ``read_tokens``.
        """
        logps = None
        if span.score is not None and self.readout != "stated":
            reply = ChatReply(span.raw, tokens=read_tokens(items, span.raw))
            logps = level_logps(reply, _score_place(self.tags, span.raw), self.tags.scale.words)
        sentence, calibration = read_sentence(span, self.tags.scale), self.served.calibrations.get(FREE_FORM)
        readout: Readout = "stated" if logps is None else "mean"
        return read_out(sentence, span.score, logps, None, self.tags.scale, readout, calibration)

    def _compared(self, records: Sequence[Record]) -> list[list[Sentence]]:
        """Return the sentences of texts with how well other answers support them."""
        asked = [record for record in records if record.sentences and not brought_samples(record)]
        prompts = [self._sample_prompts(record) for record in asked]
        names = [f"{record.id}/sample-{at}" for record in asked for at in range(1, self.samples + 1)]
        found = self.asker.answers(names, [partial(_same, prompt) for row in prompts for prompt in row])
        replies = iter(found)
        drawn = {
            record.id: [reply[0] for _ in row if (reply := next(replies)) is not None]
            for record, row in zip(asked, prompts, strict=True)
        }
        texts = [drawn.get(record.id) or brought_samples(record)[: self.samples] for record in records]
        baseline = self._baseline()
        baseline.judge_by(self._judge)
        rows = baseline.compare(records, [[strip(text, self.tags) for text in each] for each in texts])
        return [list(with_confidences(*pair).sentences) for pair in zip(records, rows, strict=True)]

    def _baseline(self) -> LUQ | SelfConsistency:
        return LUQ(self.samples) if self.method == "luq" else SelfConsistency(self.samples)

    def _finished(self, record: Record, statements: Record, sentences: Sequence[Sentence]) -> Record:
        """Return a text with its tagged statements in their places, and why some have no confidence."""
        tagged = with_parts(record, replace(statements, sentences=tuple(sentences)))
        if none := sum(sentence.confidence is None for sentence in sentences):
            prefix = f"{record.id}/"
            reasons = (reason for name, reason in self.asker.failures.items() if name.startswith(prefix))
            why = next(reasons, "there is no other answer to compare with")
            tagged = with_problem(tagged, f"{counted(none, 'sentence has', 'sentences have')} no confidence: {why}")
        return tagged
