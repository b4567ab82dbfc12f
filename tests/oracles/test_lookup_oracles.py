"""Oracles that look facts or labels up: sentences whose rating is known must get exactly that rating."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from string import Formatter

import pytest

from lovec.datasets.jsonl import write_records
from lovec.datasets.layouts import read_any
from lovec.datasets.world import EmbeddedWorld
from lovec.datasets.world.facts import Entity
from lovec.datasets.world.text import SentenceForm, draw_sentence, forms_of
from lovec.oracles import LabelFile, TriviaQAOracle, WorldOracle
from lovec.types import LovecError, Record, Sentence

SHARED = Path(os.environ.get("LOVEC_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
FACTSCORE = SHARED / "factscore_labeled" / "ChatGPT.jsonl"

# The embedded world

CREDIT = {"year": Fraction(3, 4), "city": Fraction(2, 5)}
"""Credit of a corrupted fact, by the last word of its slot; other facts have none."""


@pytest.fixture(scope="module")
def small() -> EmbeddedWorld:
    return EmbeddedWorld("world-small")


def rated_sentences(world: EmbeddedWorld) -> Iterator[tuple[str, str, Fraction]]:
    """Yield entity, sentence and credit of every fact of the world, in its set form and freely worded.

    Each sentence comes as it is, with one fact corrupted (each in turn: a year moved by 4, a wrong city in the right
    country, any other value replaced by one that does not exist), and as a sentence about somebody else.
    """
    spec = replace(world.spec, dropped=0.0)
    for i, entity in enumerate(world.entities):
        other = world.entities[i - 1]
        for form in forms_of(entity.kind):
            slots = [slot for part in (form.head, *form.details) for _, slot, _, _ in Formatter().parse(part) if slot]
            facts = [slot for slot in slots if slot.rpartition("_")[2] not in ("name", "surname", "country")]

            def write(thing: Entity, form: SentenceForm = form, i: int = i) -> str:
                return draw_sentence(replace(thing, freedom=i % 2), form, spec, random.Random(i))

            yield entity.name, write(entity), Fraction(1)
            for slot in facts:
                lost = 1 - CREDIT.get(slot.rpartition("_")[2], Fraction(0))
                yield entity.name, write(corrupted(entity, slot)), 1 - lost / len(facts)
            if entity.name.split()[-1] not in other.name:
                yield other.name, write(entity), Fraction(0)


def corrupted(entity: Entity, slot: str) -> Entity:
    truth = entity.facts[slot]
    wrong = str(int(truth) + 4) if slot.endswith("_year") else " ".join("Nemo" for _ in truth.split())
    return replace(entity, facts={**entity.facts, slot: wrong})


def test_true_and_corrupted_sentences_of_the_world_get_their_known_rating(small: EmbeddedWorld) -> None:
    oracle, rated = WorldOracle(small), 0
    for name, sentence, credit in rated_sentences(small):
        record = Record("r", "?", sentences=(Sentence(sentence),), meta={"entity": name})
        expected = (credit * 10 + Fraction(1, 2)).__floor__() / 10
        assert oracle.rate([record]) == [[expected]], (name, sentence)
        rated += 1
    assert rated > 5_000


# TriviaQA


@pytest.mark.parametrize(
    ("answer", "aliases", "right"),
    [
        ("Sunset Boulevard", ("west sunset boulevard", "sunset blvd"), True),  # F1 0.8
        ("It was Paris, France", ("paris",), False),  # four words, one of them wanted: 0.4
        ("paris france", ("paris",), True),  # 0.67
        ("London", ("paris",), False),
        ("New York", ("york minster",), False),  # exactly 0.5 is not enough
        ("The A-Team!", ("a team",), True),
        ("A", ("a",), True),
        ("", ("paris",), False),
    ],
)
def test_short_answers_get_their_known_rating(answer: str, aliases: tuple[str, ...], right: bool) -> None:
    record = Record("r", "?", sentences=(Sentence(answer),), meta={"aliases": list(aliases)})
    assert TriviaQAOracle().rate([record]) == [[float(right)]]


# Label files


def without_labels(record: Record) -> Record:
    return replace(record, sentences=tuple(replace(sentence, factuality=None) for sentence in record.sentences))


def test_a_label_file_gives_labels_back_in_the_order_of_equal_sentences(tmp_path: Path) -> None:
    sentences = (Sentence("He ran.", 0.2), Sentence("He sat.", None), Sentence("He ran.", 0.7))
    write_records(tmp_path / "gold.jsonl", [record := Record("a", "Who?", sentences=sentences)])
    oracle = LabelFile(str(tmp_path / "gold.jsonl"))
    assert oracle.rate([without_labels(record)]) == [[0.2, None, 0.7]] and not oracle.failures


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("He was born in 1950.[1][2]", "He was born in 1950."),
        ("He was born in 1950 [1, 2].", "He was born in 1950."),
        ("[3] He was born [1-3] in 1950.¹²", "He was born in 1950.[^1]"),
        ("He was born in 1950.[^1^]", "He was born in 1950."),
        ("\u201cIt\u2019s his,\u201d she said.", '"It\'s his," she said.'),
        ("He\u00a0was \n born.\u200b", "He was born."),
        ("[1]", "[1]"),
        ("He won [1984] and [a].", "He won [1984] and [a]."),
    ],
)
def test_labels_are_found_in_spite_of_citations_quotes_and_spaces(tmp_path: Path, first: str, second: str) -> None:
    for own, other in ((first, second), (second, first)):
        write_records(tmp_path / "gold.jsonl", [Record("a", "Who?", sentences=(Sentence(own, 0.3),))])
        assert LabelFile(str(tmp_path / "gold.jsonl")).rate([Record("a", "?", sentences=(Sentence(other),))]) == [[0.3]]


@pytest.mark.parametrize("text", ["he was born.", "He was born in 1951.", "He won [1985].", "He won."])
def test_other_sentences_get_no_label_and_are_named(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    gold = tmp_path / "gold.jsonl"
    write_records(
        gold, [Record("a", "Who?", sentences=(Sentence("He won [1984].", 0.3), Sentence("He was born.", 1.0)))]
    )
    oracle = LabelFile(str(gold))
    asked = Record("a", "Who?", sentences=(Sentence("He was born."), Sentence(text)))
    assert oracle.rate([asked]) == [[1.0, None]] and not oracle.failures
    (said,) = caplog.messages
    assert said.startswith(f"{gold} does not have 1 sentences: a, sentence 2, {text!r} (nearest: 'He w")


def test_naming_sentences_without_a_label_is_bounded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = "word " * 4_000
    gold = tmp_path / "gold.jsonl"
    write_records(gold, [Record("a", "Who?", sentences=tuple(Sentence(f"{i} {long}", 1.0) for i in range(200)))])
    oracle = LabelFile(str(gold))
    oracle.rate([Record("a", "Who?", sentences=tuple(Sentence(f"x{i} {long}") for i in range(300)))])
    (said,) = caplog.messages
    assert "does not have 300 sentences: a, sentence 1, 'x0 word" in said and len(said) < 4_000


def test_a_file_without_labels_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "bare.jsonl", [Record("a", "Who?", sentences=(Sentence("He ran."),))])
    with pytest.raises(LovecError, match="contains no labelled sentence"):
        LabelFile(str(tmp_path / "bare.jsonl"))


@pytest.mark.skipif(not FACTSCORE.exists(), reason="FActScore's labelled data are not beside the checkout")
def test_factscore_gives_all_its_labels_back() -> None:
    records = list(read_any(str(FACTSCORE)))
    expected = [[sentence.factuality for sentence in record.sentences] for record in records]
    assert LabelFile(str(FACTSCORE)).rate(list(map(without_labels, records))) == expected
    assert sum(label is not None for row in expected for label in row) == 1209
