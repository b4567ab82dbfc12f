"""Articles of the embedded world: what they support is known exactly, and differs from what is true."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from lovec.datasets.world import EmbeddedWorld
from lovec.datasets.world.articles import answer_from, make_article, stated_facts, supported
from lovec.datasets.world.facts import Entity
from lovec.datasets.world.grading import factuality, split_sentences
from lovec.datasets.world.reading import facts
from lovec.datasets.world.text import FORMS, set_form
from lovec.oracles.world import WorldOracle
from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def small() -> EmbeddedWorld:
    return EmbeddedWorld("world-small")


def told(entity: Entity) -> list[str]:
    """All that an answer says of a thing, in set form."""
    return [set_form(entity, form) for form in FORMS[entity.kind]["life"]]


def answers(small: EmbeddedWorld) -> list[Record]:
    """Answers of which every second sentence is about another thing's facts."""
    found = []
    for record in small.questions("dev") + small.questions("test"):
        entity = small._entity(record.meta["entity"])
        other = next(e for e in small.entities if e.kind == entity.kind and e.facts != entity.facts)
        wrong = told(replace(entity, facts=other.facts))
        texts = [true if at % 2 else false for at, (true, false) in enumerate(zip(told(entity), wrong, strict=True))]
        found.append(replace(record, sentences=tuple(map(Sentence, texts))))
    return found


def test_a_whole_article_supports_what_is_true_and_nothing_supports_what_it_leaves_out(small: EmbeddedWorld) -> None:
    for entity in small.entities[::7]:
        texts = told(entity)
        for at, text in enumerate(texts):
            assert supported(entity, " ".join(texts), text) == factuality(entity, text) == 1
            assert supported(entity, " ".join(texts[:at] + texts[at + 1 :]), text) == 0
        assert supported(entity, "", texts[0]) == supported(entity, texts[0], "It rained.") == 0


def test_support_is_the_credit_by_the_facts_of_the_article(small: EmbeddedWorld) -> None:
    person = next(e for e in small.entities if e.kind == "person")
    first = FORMS["person"]["life"][3]  # prize, year, topic, count
    year = str(int(person.facts["book_year"]) + 8)
    article = set_form(replace(person, facts={**person.facts, "book_year": year}), first)
    assert supported(person, article, set_form(person, first)) == 0.9  # (1 + 0.5 + 1 + 1) / 4, rounded
    assert supported(person, article, article) == 1 and factuality(person, article) == 0.9
    name = person.name.split()[-1]
    assert supported(person, f"{name} won the {person.facts['book_prize']}.", set_form(person, first)) == 0.3  # 1 / 4
    stranger = next(e for e in small.entities if e.kind == "person" and e is not person)
    assert supported(person, set_form(stranger, first), set_form(person, first)) == 0


def test_articles_are_seeded_by_id_and_their_labels_are_exact(small: EmbeddedWorld) -> None:
    cells = dict.fromkeys(((a, b) for a in (False, True) for b in (False, True)), 0)
    records = answers(small)
    for record in records:
        sourced = small.with_article(record)
        assert sourced == small.with_article(record) and sourced.question == record.question
        entity = small._entity(record.meta["entity"])
        article = " ".join(sourced.evidence)
        mentioned = stated_facts(entity, split_sentences(article))
        assert WorldOracle(small).rate([sourced]) == [[s.factuality for s in sourced.sentences]] or not article
        for sentence in sourced.sentences:
            (read, *_) = facts(entity.name, entity.kind, sentence.text)
            same = [slot for slot, value in read.items() if value.split(", ")[0] == mentioned.get(slot)]
            assert sentence.factuality >= len([s for s in same if not s.endswith("_city")]) / len(read) - 0.05
            assert sentence.factuality == 0 or set(read) & set(mentioned)
            by_source, by_world = sentence.factuality >= 0.75, factuality(entity, sentence.text) >= 0.75
            cells[by_source, by_world] += 1
    assert min(cells.values()) > 0.05 * sum(cells.values())  # all four of supported or not, true or not
    renamed = [small.with_article(replace(r, id=f"{r.id}/2")).evidence for r in records]
    assert sum(a != small.with_article(r).evidence for a, r in zip(renamed, records, strict=True)) > len(records) / 2


def test_answers_from_articles_say_mostly_what_they_say(small: EmbeddedWorld) -> None:
    labels, kept = [], []
    for record in small.questions("dev"):
        entity = small._entity(record.meta["entity"])
        others = [e for e in small.entities if e.kind == entity.kind]
        article = make_article(entity, (), others, small.spec, random.Random(record.id))
        texts = answer_from(entity, article, others, small.spec, random.Random(record.id))
        assert all(supported(entity, text, text) == 1 for text in texts)  # each can be read back
        labels += [supported(entity, article, text) for text in texts] if article else []
        kept += [text in split_sentences(article) for text in texts]
        again = small.with_article(replace(record, sentences=(Sentence("It rained."),)), rewritten=True)
        assert "It rained." not in again.answer or not again.evidence
    assert 0.5 < sum(labels) / len(labels) < 0.9 and labels.count(1.0) > len(labels) / 5
    assert sum(kept) < len(kept) / 2  # in other words
