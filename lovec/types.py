"""Records of questions, answers and results, and the protocols of engines, oracles, taggers and others.

Nothing here touches a file, a model or a device. Units, everywhere: ``confidence`` and ``factuality`` lie in
[0, 1]; ``score`` and ``rating`` are integers 0..10; a distribution holds 11 raw probabilities (not renormalised).
An unknown value is ``None``, never NaN.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

from lovec.core.errors import LovecError as LovecError
from lovec.core.errors import NoTrainingLabels as NoTrainingLabels
from lovec.core.errors import error_in as error_in
from lovec.core.settings import Count, Finite, NonNegative, PositiveShare, Setting, check_count, check_range, checked

if TYPE_CHECKING:
    from torch import Tensor

N_SCORES = 11
"""Number of scores of the default scale: the integers 0..10."""

ROUNDING = 1e-6
"""How far outside [0, 1] a number may lie through rounding, as means and softmaxes of float32 do."""

_SAMPLE = re.compile(r"(?<=.)(/sample-[0-9]+)+\Z", re.DOTALL)  # the end of the ids of several answers


def without_rounding(value: float) -> float:
    """Return a number that rounding has carried past an end of [0, 1] as this end; any other as it is."""
    return min(max(value, 0.0), 1.0) if -ROUNDING <= value <= 1.0 + ROUNDING else value


def is_text(text: str) -> bool:
    """Return whether UTF-8 can encode a text; it cannot where half a surrogate pair stands alone."""
    return text == text.encode(errors="replace").decode()


def question_id(record_id: str) -> str:
    """Return what answers to one question share in their ids: "q7" of "q7/sample-3", and any other id as it is."""
    return _SAMPLE.sub("", record_id)


@dataclass(frozen=True, slots=True)
class Scale:
    """The levels of confidence that a tag can state, and the words they are written with.

    A *score* is the index of a level, from 0 (surely wrong) to ``top`` (surely right); the confidence it stands for is
    ``score / top``. The default scale is the paper's, "0" to "10". ``Scale(("no", "perhaps", "yes"))`` is another.

    Attributes:
        words: how each level is written in a tag, lowest first.

    Raises:
        LovecError: there are fewer than two words, two are equal, or one is empty or has white space at an edge.
    """

    words: tuple[str, ...] = tuple(str(score) for score in range(11))

    def __post_init__(self) -> None:
        wrong = [word for word in self.words if not word or word != word.strip()]
        if len(self.words) < 2 or len(set(self.words)) < len(self.words) or wrong:
            raise LovecError(
                f"the words of the scale are {list(self.words)}, expected at least two different ones, none empty or "
                "with white space at an edge"
            )

    @property
    def size(self) -> int:
        """Number of levels (11 for the default scale)."""
        return len(self.words)

    @property
    def top(self) -> int:
        """The highest score (10 for the default scale)."""
        return len(self.words) - 1

    @property
    def is_numeric(self) -> bool:
        """Whether the words are the integers "0", "1", ..., as those of the default scale are."""
        return self.words == tuple(map(str, range(self.size)))

    def confidence(self, score: int) -> float:
        """Confidence in [0, 1] that a score 0..top stands for."""
        return score / self.top

    def nearest(self, value: float) -> int:
        """Score nearest to a confidence or factuality in [0, 1]; halves go up: floor(top * value + 0.5).

        Raises:
            LovecError: ``value`` lies outside [0, 1] or is NaN.
        """
        if not 0.0 <= value <= 1.0:
            raise LovecError(f"factuality is {value}, expected a number in [0, 1] (a rating of 7 is 0.7)")
        return math.floor(self.top * value + 0.5)


DEFAULT_SCALE = Scale()
"""The paper's scale, "0" to "10". Oracles rate on it, whatever the scale of the tags."""


def check_confidence(name: str, value: Any) -> None:
    """Refuse a threshold that is not a confidence in [0, 1]; say of one that looks like a score what it stands for.

    Args:
        name: name of the setting, for the message.
        value: its value; None, where the setting has none, is always allowed.

    Raises:
        LovecError: ``value`` is not a number from 0 to 1.
    """
    try:
        check_range(name, value, at_least=0, at_most=1)
    except LovecError as error:
        is_score = isinstance(value, (int, float)) and 1 < value <= DEFAULT_SCALE.top
        hint = f"; {value:g} of {DEFAULT_SCALE.top} is {value / DEFAULT_SCALE.top:g}" if is_score else ""
        raise LovecError(f"{error}{hint}") from None


def to_rating(factuality: float) -> int:
    """Nearest integer rating 0..10 of a factuality in [0, 1]: floor(10 f + 0.5).

    Raises:
        LovecError: if ``factuality`` lies outside [0, 1] or is NaN.
    """
    return DEFAULT_SCALE.nearest(factuality)


_CITATION = re.compile(r"\s*(?:\[\^?\d{1,3}\^?(?:\s*[,;\u2013-]\s*\^?\d{1,3}\^?)*\]|[⁰¹²³⁴-⁹]+)")
_QUOTES = dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'")
_QUOTES |= dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"')
_PLAIN = str.maketrans({**_QUOTES, **dict.fromkeys("\u200b\u2060\ufeff", "")})


def comparable(text: str) -> str:
    """Return a sentence as sentences are compared: two files write the same one in different ways.

    Citation marks (``[1]``, ``[1][2]``, ``[1, 2]``, ``[1-3]``, ``[^1]``, superscripts), the style of quotation marks,
    characters without width and the kind and amount of white space do not count; capitals do.
    """
    plain = text.translate(_PLAIN)
    return " ".join(_CITATION.sub("", plain).split()) or " ".join(plain.split())


PartKind: TypeAlias = Literal["statement", "question", "heading", "label", "code", "table", "reference", "mark", "data"]
"""What a part of a text is. Only a statement is scored and labelled; the others are kept as they are: a question, a
title or heading, a line that names what follows ("Early life:"), a block of code, a table, an address or a footnote, a
rule or a list marker without words, the data at the head of a file (front matter)."""

STATEMENT: PartKind = "statement"

Unit: TypeAlias = Literal["sentence", "clause"]
"""What a text is split into, of which each has a confidence: sentences, or the clauses inside them."""

Action: TypeAlias = Literal["kept", "dropped", "hedged"]
"""What became of a part of a text that was revised: it stayed as it was, was left out, or is worded as uncertain."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of an answer, or another part of its text, with what is known about it.

    Attributes:
        text: the sentence without tags and surrounding white space.
        factuality: how true it is, in [0, 1]; None where no oracle could say.
        confidence: what the model says of it, in [0, 1]; None where it said nothing valid.
        score: the score that the model states, an index into its scale (0..10 by default); None where there is none.
        distribution: raw probabilities of the whole score strings at the tag, one per level of the scale.
        levels: number of levels of the scale that ``score`` and ``distribution`` refer to.
        token_logps: log-probability of each token of the sentence, without its tag, under the model that tagged it;
            None where it is not known.
        kind: what it is; only statements are scored and labelled.
        claim: name of what it claims, the same for sentences that claim the same of different things, such as
            "capital: FR" of cities that answers place in France; None where it is not known.
        part_of: where it is a clause, the place of its sentence among the sentences of the answer, from 0; None where
            it is a whole sentence.
        by_source: what the model says of how well the evidence of the record supports it, in [0, 1], where
            ``confidence`` is what it says without the evidence; None where it was not asked for both.
        source_rank: what a guarantee's threshold by source is compared with, see ``Calibration.rank``; None where there
            is no calibration by source.
        revision: what became of it in the revised text, ``meta["revised"]`` of the record; None without one.
    """

    text: str
    factuality: float | None = None
    confidence: float | None = None
    score: int | None = None
    distribution: tuple[float, ...] | None = None
    levels: int = DEFAULT_SCALE.size
    token_logps: tuple[float, ...] | None = None
    kind: PartKind = STATEMENT
    claim: str | None = None
    part_of: int | None = None
    by_source: float | None = None
    source_rank: float | None = None
    revision: Action | None = None

    @property
    def is_statement(self) -> bool:
        """Whether it is scored and labelled."""
        return self.kind == STATEMENT

    def confidence_by(self, what: ThresholdBy) -> float | None:
        """Return its confidence by knowledge or by source; None where it has none."""
        return self.confidence if what == "knowledge" else self.by_source

    @property
    def stated(self) -> float | None:
        """The stated confidence: score / (levels - 1), or ``confidence`` where there is no score (baselines)."""
        return self.confidence if self.score is None else self.score / (self.levels - 1)


@dataclass(frozen=True, slots=True)
class Record:
    """A question with one answer: the one record schema of every stage.

    Attributes:
        id: names the record; unique within a file.
        question: the user turn, without the instruction.
        evidence: texts an oracle may judge by, and that stand in the prompt of a model with ``policy.grounded``.
        answer: the raw text the model wrote ("" before there is one).
        sentences: the answer, sentence by sentence.
        meta: anything else; ``meta["domain"]`` groups rows of the result table.
        rejected: one wrong score per sentence (preference pairs only), an index into the scale (0..10 by default).
    """

    id: str
    question: str
    evidence: tuple[str, ...] = ()
    answer: str = ""
    sentences: tuple[Sentence, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    rejected: tuple[int, ...] | None = None

    @property
    def domain(self) -> str:
        """Group of the result table that the record belongs to: ``meta["domain"]``, or "in-domain" without one."""
        named = self.meta.get("domain")
        return "in-domain" if named is None else str(named)

    @property
    def labelled(self) -> bool:
        """Whether there is a sentence and every sentence has a factuality."""
        return bool(self.sentences) and all(s.factuality is not None for s in self.sentences)

    @property
    def has_labels(self) -> bool:
        """Whether a sentence has a factuality."""
        return any(s.factuality is not None for s in self.sentences)

    @property
    def finished(self) -> bool:
        """Whether the answer ends by itself; ``meta["finished"]``, in tables a word, is false if a limit cut it."""
        return str(self.meta.get("finished", True)).casefold() not in ("false", "no", "0")

    @property
    def given(self) -> bool:
        """Whether the answer is a text that somebody gave, in which a mere ``</think>`` ends no thought."""
        return self.meta.get("given") is True

    def in_domain(self, name: str) -> Record:
        """Return a copy with a domain of this name, or the record itself where it names one."""
        named = self.meta.get("domain") is not None
        return self if named else replace(self, meta={**self.meta, "domain": name})

    def with_factuality(self, values: Sequence[float | None]) -> Record:
        """Return a copy whose sentences have these factualities.

        Args:
            values: factuality in [0, 1] or None, one per sentence.

        Raises:
            ValueError: there are more or fewer values than sentences.
        """
        pairs = zip(self.sentences, values, strict=True)
        return replace(self, sentences=tuple(replace(sentence, factuality=value) for sentence, value in pairs))

    def with_claims(self, names: Sequence[str | None]) -> Record:
        """Return a copy whose sentences have these names of what they claim.

        Raises:
            ValueError: there are more or fewer names than sentences.
        """
        pairs = zip(self.sentences, names, strict=True)
        return replace(self, sentences=tuple(replace(sentence, claim=name) for sentence, name in pairs))

    def statements(self) -> Record:
        """Return the record without the parts of its answer that state nothing; the answer itself stays whole."""
        if all(sentence.is_statement for sentence in self.sentences):
            return self
        kept = [at for at, sentence in enumerate(self.sentences) if sentence.is_statement]
        rejected = None if self.rejected is None else tuple(self.rejected[at] for at in kept)
        return replace(self, sentences=tuple(self.sentences[at] for at in kept), rejected=rejected)

    def labels_by_text(self) -> dict[str, list[float | None]]:
        """Return the factualities of the sentences by `comparable` text; of equal ones in their order."""
        labels: dict[str, list[float | None]] = {}
        for sentence in self.sentences:
            labels.setdefault(comparable(sentence.text), []).append(sentence.factuality)
        return labels


@checked()
@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Attributes:
        max_new_tokens: longest completion, in tokens, the end token included.
        temperature: 0 is greedy; otherwise logits are divided by it.
        n: completions a prompt.
        seed: every completion's random stream is a function of (seed, key of the prompt, index of the sample) only,
            so it does not depend on the batch it was sampled in; 0..2**63 - 1.
        top_p: tokens are drawn from the smallest set of the most probable ones whose probabilities sum up to at least
            this, in (0, 1], as in nucleus sampling (Holtzman et al., 2020). 1 takes all; greedy choices are the same.
        watched: distinct token ids whose log-probabilities completions should hold at every token, at most
            ``MOST_WATCHED``.

    Raises:
        LovecError: a setting is out of range.
    """

    max_new_tokens: Count = 512
    temperature: NonNegative = 0.0
    n: Count = 1
    seed: Annotated[int, Setting(at_least=0, at_most=2**63 - 1)] = 0
    top_p: PositiveShare = 1.0
    watched: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_count("number of watched ids", len(self.watched), at_least=0, at_most=MOST_WATCHED)

    @property
    def keeps_logps(self) -> bool:
        """Whether the log-probabilities of completions are the model's own: greedy, or temperature and top_p are 1."""
        return self.temperature == 0 or (self.temperature == 1 and self.top_p == 1)


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion.

    Attributes:
        ids: sampled token ids; the end token, if it came, is the last one.
        logps: log-probability of each id under the distribution it was drawn from (temperature and top_p applied).
        finished: whether the end token came before ``max_new_tokens``.
        watched: in the place of each id, log-probabilities of ``Sampling.watched`` under the model itself (temperature
            1), by token id, perhaps of other ids too; empty where the engine does not give them.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finished: bool
    watched: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Log-probabilities of the tokens of one text, and of choices after it, under the model itself (temperature 1).

    Attributes:
        logps: log-probability of every token that was asked for, given all tokens before it.
        top: the most probable tokens in the place of each of them, by id with their log-probabilities, the most
            probable one first; empty where they were not asked for.
        choices: log-probability of every whole choice after the text.
    """

    logps: tuple[float, ...]
    top: tuple[dict[int, float], ...] = ()
    choices: tuple[float, ...] = ()


OnToken: TypeAlias = Callable[[int, int, int], bool]
"""Called with each sampled token, as (index of the prompt, index of the sample, token id); returns False to stop that
completion."""


class Engine(Protocol):
    """Samples and scores with the newest policy: token ids in, token ids out (made for vLLM as well)."""

    prefill_tokens: int
    """Tokens run through the model as context so far (reused cache entries are not counted)."""

    max_rows: int
    """Contexts whose computed state ``score`` keeps for the next call."""

    shares_model: bool
    """Whether it runs the policy's own model, so that its log-probs are those of training; False where it runs a copy
    with arithmetic of its own."""

    @property
    def context_length(self) -> int | None:
        """Most tokens that a context and what follows it may have; None where the model names no limit."""

    def sync(self, policy: Any) -> None:
        """Take the policy's current weights; whatever was cached for older ones is dropped."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        """Sample ``sampling.n`` completions per prompt; each ends at a stop id, or where ``on_token`` returns False.

        ``keys`` name the prompts for their random streams (default: position in ``prompts``).
        """

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        """Exact log-probability of every whole choice after every context: ``[contexts][choices]``.

        A context that extends one of the previous call is not computed again, as long as there are no more than
        ``max_rows`` of them. A call without contexts frees what was kept.
        """


class TokenScorer(Protocol):
    """What an engine may also be able to do: give the log-probabilities of given tokens."""

    def token_logps(
        self,
        contexts: Sequence[Sequence[int]],
        starts: Sequence[int],
        choices: Sequence[Sequence[int]] = (),
        top: int = 0,
    ) -> list[TokenScores]:
        """Return the log-probabilities of the tokens of every context from an index on, and what ``score`` returns.

        Args:
            contexts: token ids of each context.
            starts: index of the first token of each context whose log-probability is asked for, from 1 to its length.
            choices: token ids of each choice, scored after every context as by ``score``; none scores no choice.
            top: number of the most probable tokens to return for every place, at most ``MOST_TOP``.
        """


MOST_WATCHED = 128
"""The most tokens whose log-probabilities vLLM returns at every token that it samples."""

MOST_TOP = 20
"""The most tokens for one place that every engine returns: a vLLM server returns no more by default."""


def token_scorer(engine: Engine) -> TokenScorer:
    """Return an engine as one that gives the log-probabilities of given tokens.

    Raises:
        LovecError: it cannot.
    """
    if not callable(getattr(engine, "token_logps", None)):
        raise LovecError(
            f"{type(engine).__name__} has no token_logps(contexts, starts, choices, top), expected an engine that "
            "gives log-probabilities of given tokens; add the method, or use an engine of lovec.engines"
        )
    scorer: Any = engine
    return scorer  # type: ignore[no-any-return]


class Oracle(Protocol):
    """Says how true sentences are.

    One whose class has a true ``reads_evidence`` says how well the evidence supports them, where a record has some. One
    that needs something that may be missing says so in ``check_ready``.
    """

    def rate(self, records: Sequence[Record]) -> list[list[float | None]]:
        """Factuality in [0, 1] or None for every sentence of every record, aligned with ``record.sentences``."""


@runtime_checkable
class ClaimReader(Protocol):
    """What an oracle may also be able to do: name what sentences claim."""

    def claims(self, records: Sequence[Record]) -> list[list[str | None]]:
        """Name of what every sentence of every record claims, see ``Sentence.claim``; None where it is not known."""


def check_ready(part: Any) -> None:
    """Refuse an oracle or another part that already lacks what it needs, before anything is loaded for it.

    Args:
        part: has a method ``check_ready()`` if there is something that it may lack, such as an API key; or None.

    Raises:
        LovecError: it cannot be used.
    """
    if (check := getattr(part, "check_ready", None)) is not None:
        check()


def checked_ratings(oracle: Oracle, records: Sequence[Record]) -> list[list[float | None]]:
    """Ask an oracle, which may be the user's own, and check what it returns.

    Args:
        oracle: rates the sentences.
        records: what it rates.

    Returns:
        A factuality in [0, 1] or None for every sentence of every record.

    Raises:
        LovecError: it returned something else.
    """
    name, rated = type(oracle).__name__, oracle.rate(records)
    try:
        rows = [list(row) for row in rated]
    except TypeError:
        raise LovecError(f"{name} returned {str(rated)[:60]}, expected a list of ratings for every record") from None
    if len(rows) != len(records):
        raise LovecError(f"{name} rated {len(rows)} records, expected ratings of {len(records)}")
    for record, row in zip(records, rows, strict=True):
        if len(row) != len(record.sentences) or not all(
            value is None or (isinstance(value, Real) and 0.0 <= float(value) <= 1.0) for value in row
        ):
            raise LovecError(
                f"{name} rated {record.id!r} {str(row)[:60]}, expected {len(record.sentences)} numbers in [0, 1] or "
                "None, one per sentence"
            )
    return plain_numbers(rows)


def plain_numbers(rows: Iterable[Iterable[float | None]]) -> list[list[float | None]]:
    """Return rows of numbers, which may be NumPy's, as Python's own; None stays."""
    return [[None if value is None else float(value) for value in row] for row in rows]


class Tagger(Protocol):
    """Gives sentences a confidence."""

    def tag(self, records: Sequence[Record]) -> list[Record]:
        """Records with ``confidence``, ``score`` and ``distribution`` filled in, in the order given."""


class Embedder(Protocol):
    """Makes vectors of sentences that lie near each other where the sentences mean alike."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """One vector a text, in their order: [N, D] float32."""


@checked("{} of a term")
@dataclass(frozen=True, slots=True)
class Term:
    """One named term of a loss, item by item; the training loop takes the mean, not the objective.

    Attributes:
        values: any shape.
        mask: same shape, 1 where a value counts.
        per: the unit that is counted ("token", "row", "pair", "sentence"): the term is divided by the number of
            these in the whole optimiser batch, over all micro-batches and processes.
        weight: factor of the term in the loss.

    Raises:
        LovecError: ``weight`` is not a finite number.
    """

    values: Tensor
    mask: Tensor
    per: str
    weight: Finite = 1.0


LOGGED = ("loss", "grad_norm")
"""What is logged of every step under ``train/``, beside what an objective names."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What an objective returns for a micro-batch.

    Attributes:
        terms: named terms; their weighted means over the optimiser batch sum to the loss.
        metrics: named per-item values to log, each with the same shape rules as a term (no gradient).
        peaks: named values, 0 or more, whose largest over the optimiser batch is logged (no gradient).

    Raises:
        LovecError: values and mask differ in shape, or a name is that of the loss, of its gradient, or given twice.
    """

    terms: Mapping[str, Term]
    metrics: Mapping[str, Term] = field(default_factory=dict)
    peaks: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, term in (*self.terms.items(), *self.metrics.items()):
            if term.values.shape != term.mask.shape:
                raise LovecError(
                    f"the values of the term {name!r} have the shape {list(term.values.shape)}, its mask "
                    f"{list(term.mask.shape)}; expected the same shape, one value for each place of the mask"
                )
        names = [*LOGGED, *self.terms, *self.metrics, *self.peaks]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise LovecError(
                f"{', '.join(map(repr, twice))} is the name of several values that are logged; give each term, metric "
                f"and peak a name of its own, other than {' and '.join(LOGGED)}"
            )


Keeps: TypeAlias = Callable[[Sentence], bool]
"""Tells whether a tagged sentence stays in a text."""

Readout: TypeAlias = Literal["stated", "mean"]
"""How a confidence is read: "stated" is the score that the model states, "mean" the expected score of its distribution
over all scores; both as a share of the highest score."""

ScoreKind: TypeAlias = Literal["confidence", "uncertainty", "surprisal", "complement"]
"""What scores made elsewhere are: a confidence, higher for surer; an uncertainty without a scale, of which only the
order counts; minus the logarithm of a confidence; or one minus a confidence."""

Promise: TypeAlias = Literal["all-true", "share", "errors"]
"""What a guarantee is about: all kept sentences are true, a share of them is, or their errors are bounded."""

Mode: TypeAlias = Literal["iterative", "free-form"]
"""A way to tag, see ``MODES``."""

ITERATIVE: Mode = "iterative"
FREE_FORM: Mode = "free-form"
MODES = (ITERATIVE, FREE_FORM)
"""Ways to tag: "iterative" scores a given text sentence by sentence, "free-form" writes text and scores together."""

ELSEWHERE = "scored"
"""The mode of rows that no evaluation has made: of confidences and labels that ``lovec score`` has read."""

FittedMode: TypeAlias = Literal["iterative", "free-form", "by source", "free-form by source"]
"""What a calibration is fitted to: the confidences of a way to tag, or those by source of one."""

ThresholdBy: TypeAlias = Literal["knowledge", "source"]
"""Which of two confidences of a sentence is compared with a threshold."""

BY_SOURCE: Mapping[str, FittedMode] = {ITERATIVE: "by source", FREE_FORM: "free-form by source"}
"""By the way to tag, what its confidences by source are called."""

Kind: TypeAlias = Literal["method", "baseline", "constant", "recalibrated", "hybrid", "ablation", "variation"]
"""What a row of results measures: a trained method, a baseline, the best constant score, a method's confidences after
recalibration, the mean of two methods, a method with something taken away, or a variation of a recipe in a sweep."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One line of a result table: the metrics of one method on one kind of data.

    Attributes:
        method: name in tables.
        kind: what the row measures.
        domain: group of the records, such as "in-domain".
        mode: one of ``MODES``, or ``ELSEWHERE``.
        level: "sentence" or "passage".
        readout: how a confidence is read: "stated" (the score in the tag), "mean" (of the distribution over scores), or
            "deployed" (what users get: after the calibration that lies beside the adapter).
        seed: training seed; None for a mean over several.
        n: number of pairs of confidence and factuality.
        metrics: value by the metric's name, see ``lovec.metrics.table``; None where it is undefined.
        bases: the methods that this one is made from: one for "recalibrated" and "ablation", two for "hybrid".
        variant: which recalibration map ("isotonic", "platt") or ablation ("no previous scores", "as its own", "as the
            user's") was applied.
        file: name of the file with the tagged records, relative to the folder of the results; None without one.
        options: the command-line options that a variation changes.
    """

    method: str
    kind: Kind
    domain: str
    mode: str
    level: str
    readout: str
    seed: int | None
    n: int
    metrics: Mapping[str, float | None]
    bases: tuple[str, ...] = ()
    variant: str | None = None
    file: str | None = None
    options: tuple[str, ...] = ()
