"""How facts of the embedded world become text: sentences, answers, and the corpus that its model is trained on.

A sentence is a head ("Toran won the Fern Prize") with details ("in 1960", "for a book about whales") in any order, one
of which may stand before the head, and with words around it that state no fact. Heads and details offer choices of
words. In its set form a sentence has the first choice everywhere, all details in their order, and nothing around it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from lovec.datasets.world.facts import KINDS, VOCABULARY, Entity, WorldSpec
from lovec.encoding import QUESTION
from lovec.tags import render

INSTRUCTION = "Give every sentence a confidence from 0 to 10."
"""The world's own instruction: short, because its model has a vocabulary of whole words and knows few of them."""

OPENERS: Sequence[str] = VOCABULARY["openers"]
ASIDES: Sequence[str] = VOCABULARY["asides"]

_CHOICE = re.compile(r"\(([^()]*)\)")
_TAG_WEIGHTS = (1, 1, 1, 1, 1, 2, 3, 5, 10, 20, 55)  # of the scores 0..10: overconfident, and independent of the truth


@dataclass(frozen=True, slots=True)
class SentenceForm:
    """What all sentences about the same facts have in common.

    Attributes:
        head: subject and verb, with choices of words in round brackets and facts in braces.
        details: what can follow the head in any order, in the same notation.
    """

    head: str
    details: tuple[str, ...] = ()

    def orders(self) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Yield every arrangement: the details before the head (none or one), and those after it."""
        for n in range(len(self.details) + 1):
            for order in permutations(self.details, n):
                yield (), order
                if order:
                    yield order[:1], order[1:]


FORMS: Mapping[str, Mapping[str, Sequence[SentenceForm]]] = {
    kind: {
        topic: [SentenceForm(entry["head"], tuple(entry["details"])) for entry in entries]
        for topic, entries in topics.items()
    }
    for kind, topics in VOCABULARY["sentences"].items()
}
"""Sentence forms by kind of thing and topic ("life", "private"), in the order of an answer."""

ONE_FACT: Mapping[str, Sequence[tuple[str, SentenceForm]]] = {
    kind: [(entry["ask"], SentenceForm(entry["answer"])) for entry in entries]
    for kind, entries in VOCABULARY["one_fact"].items()
}
"""Questions about one fact by kind of thing, each with the form of its answer."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of the pre-training corpus.

    Attributes:
        entity: name of the thing that it is about.
        question: the user turn.
        instruct: whether the prompt has the instruction and the answer has confidence tags.
        text: the answer.
    """

    entity: str
    question: str
    instruct: bool
    text: str


def question(entity: Entity, topic: str = "life") -> str:
    """Return the question about a thing: the paper's for the topic "life", another one for "private"."""
    return QUESTION.format(entity=entity.name) if topic == "life" else _fill(VOCABULARY["private_question"], entity)


def one_fact_questions(entity: Entity) -> list[str]:
    """Return the questions about single facts of a thing."""
    return [_fill(ask, entity) for ask, _ in ONE_FACT.get(entity.kind, ())]


def forms_of(kind: str) -> list[SentenceForm]:
    """Return all forms of sentences about a kind of thing, answers about one fact included."""
    forms = [form for topic in FORMS[kind].values() for form in topic]
    return forms + [form for _, form in ONE_FACT.get(kind, ())]


def set_form(entity: Entity, form: SentenceForm) -> str:
    """Return the true sentence about a thing in its set form."""
    return _write(entity, "", (), form.head, form.details, "", lambda options: options[0])


def draw_sentence(entity: Entity, form: SentenceForm, spec: WorldSpec, rng: random.Random) -> str:
    """Draw a true sentence about a thing, in its set form or freely worded."""
    if rng.random() >= entity.freedom:
        return set_form(entity, form)
    details = list(form.details)
    rng.shuffle(details)
    if len(details) > 1 and rng.random() < spec.dropped:
        details.pop()
    front = tuple(details[:1]) if details and rng.random() < spec.fronted else ()
    opener = rng.choice(OPENERS) if rng.random() < spec.opened else ""
    aside = rng.choice(ASIDES) if rng.random() < spec.aside else ""
    return _write(entity, opener, front, form.head, details[len(front) :], aside, rng.choice)


def compose(entity: Entity, topic: str, share: float, spec: WorldSpec, rng: random.Random) -> list[str]:
    """Draw the sentences of one document; the first sentence is always included, and stays first.

    Args:
        entity: what the document is about.
        topic: "life" or "private".
        share: popularity rank of the thing over the number of things of its kind, in [0, 1).
        spec: the numbers of the world.
        rng: source of randomness.
    """
    keep = spec.keep - spec.keep_fall * share
    forms = [form for i, form in enumerate(FORMS[entity.kind][topic]) if i == 0 or rng.random() < keep]
    sentences = [draw_sentence(entity, form, spec, rng) for form in forms]
    if len(sentences) > 2 and rng.random() < spec.swap_share:
        i = rng.randrange(1, len(sentences) - 1)
        sentences[i : i + 2] = sentences[i + 1], sentences[i]
    return sentences


def make_corpus(spec: WorldSpec, entities: Sequence[Entity]) -> list[Document]:
    """Return the pre-training corpus: ``steps * batch_size`` documents in random order.

    Well-known things have more documents, and longer ones.
    """
    rng = random.Random(f"{spec.seed}/{spec.model_seed}/corpus")
    by_kind = {kind: [e for e in entities if e.kind == kind] for kind in KINDS}
    popularity = {
        kind: [(entity.rank + spec.rank_shift) ** -spec.rank_power for entity in group]
        for kind, group in by_kind.items()
    }
    n_others = sum(len(group) for kind, group in by_kind.items() if kind != "company")
    shares = [
        spec.company_share if kind == "company" else (1 - spec.company_share) * len(group) / n_others
        for kind, group in by_kind.items()
    ]
    documents = []
    for _ in range(spec.steps * spec.batch_size):
        (kind,) = rng.choices(KINDS, shares)
        (entity,) = rng.choices(by_kind[kind], popularity[kind])
        if kind in ONE_FACT and rng.random() < spec.one_fact_share:
            ask, form = rng.choice(ONE_FACT[kind])
            asked, sentences = _fill(ask, entity), [draw_sentence(entity, form, spec, rng)]
        else:
            topic = "private" if "private" in FORMS[kind] and rng.random() < spec.private_share else "life"
            asked = question(entity, topic)
            sentences = compose(entity, topic, entity.rank / len(by_kind[kind]), spec, rng)
        instruct = rng.random() < spec.tagged_share
        scores = rng.choices(range(len(_TAG_WEIGHTS)), _TAG_WEIGHTS, k=len(sentences))
        text = render(zip(sentences, scores, strict=True)) if instruct else " ".join(sentences)
        documents.append(Document(entity.name, asked, instruct, text))
    return documents


def true_words(entity: Entity) -> Iterator[str]:
    """Yield texts that together have every word of every true sentence about a thing, in every place it can stand."""
    for form in forms_of(entity.kind):
        for part in (form.head, *form.details):
            for words in _wordings(part):
                text = _fill(words, entity)
                yield from (f" {text},", f"{_capital(text)}.", f" {_capital(text)}")


def _wordings(part: str) -> Iterator[str]:
    """Yield a part of a sentence with every choice of words."""
    pieces = _CHOICE.split(part)  # text and choices in turn
    for chosen in product(*(piece.split("|") if i % 2 else [piece] for i, piece in enumerate(pieces))):
        yield "".join(chosen)


def _write(
    entity: Entity,
    opener: str,
    front: Sequence[str],
    head: str,
    details: Sequence[str],
    aside: str,
    choose: Callable[[Sequence[str]], str],
) -> str:
    """Return a sentence of these parts; ``choose`` picks one of the words that a part offers."""
    parts = (*front, head, *details)
    text = ""
    for i, part in enumerate(parts):
        words = _CHOICE.sub(lambda match: choose(match[1].split("|")), part)
        comma = i < len(front) or (part.endswith("_country}") and i < len(parts) - 1)
        text += f"{' ' if i else ''}{words}{',' if comma else ''}"
    text = _fill(text, entity)
    return f"{opener} {text}{aside}." if opener else f"{_capital(text)}{aside}."


def _fill(text: str, entity: Entity) -> str:
    return text.format(name=entity.name, surname=entity.name.split()[-1], **entity.facts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
