"""Clauses: where sentences are divided, and that nothing of them is lost."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.text.clauses import in_clauses, joint_confidence, sentence_confidences, spans, split_clauses
from lovec.types import Record, Sentence

DIVIDED = """
She was born in London in 1815 | and moved to Paris in 1990.
He was born in 1972 | and grew up in Tokyo.
Born in Ulm, Germany, | Einstein moved to Munich, | where he grew up.
John Smith, who was born on May 5, 1950, | is an American actor.
He directed the film, | becoming the first to do so.
The film was written and directed by James Cameron | and stars Kate Winslet, | who won an award.
After graduating from Yale in 1990, | he worked as a lawyer; | he later became a judge.
In 1990, she moved to Paris, | and her father was a doctor.
He studied law at Harvard (and was awarded a prize), | but he did not finish.
She has two sons, | one of whom is a doctor.
He was married to Jane Doe, | with whom he had three children, | and lives in New York.
He plays for the club, | although he was never paid | because it lost its licence.
He is an actor | who appeared in over 200 films.
All that he wrote, | which was little, | was burnt in 1990.
The bridge, built in 1900, | was later moved to Linz, | having survived two wars.
"""

WHOLE = """
Hamburg is a city in Germany.
He died on June 1, 1999, in Paris, France, at the age of 50.
He is known for his roles in A, B, and C, including the lead in D.
He wrote "Pride was sold, and Prejudice was lost, which was sad" in 1813.
Dr. J. Smith Jr. wrote Where the Wild Things Are, And Then There Were None and Who Is Who.
She studied law, history, and economics at the University of Texas.
The man who shot Lincoln was an actor.
The house (which was sold in 1920, and was burnt in 1930) is red.
It has 1,000,000 inhabitants and an area of 50.5 sq. mi.
He was tall, dark and handsome.
Founded in 1901.
and was
"""


@pytest.mark.parametrize("sentence", DIVIDED.strip().splitlines())
def test_sentences_are_divided_between_their_predicates(sentence):
    assert split_clauses(sentence.replace(" |", "")) == sentence.split(" | ")


@pytest.mark.parametrize("sentence", WHOLE.strip().splitlines())
def test_what_is_one_clause_or_quoted_or_a_name_stays_whole(sentence):
    assert split_clauses(sentence) == [sentence]


MIXED = """
    and but which who was were born in, Paris, he she it ; however moved moved, ( ) " ' « also and, 1990, became the
    becoming although after while - .
"""
WORDS = st.sampled_from([*MIXED.split(), "\n", "  ", "\u3000", ""])


@given(st.lists(WORDS, max_size=30).map(" ".join))
def test_clauses_joined_by_spaces_are_the_sentence(sentence):
    clauses = split_clauses(sentence)
    assert " ".join(clauses) == sentence
    assert [sentence[start:end] for start, end in spans(sentence)] == clauses
    assert all(clause == clause.strip() and clause for clause in clauses[1:-1])


@pytest.mark.parametrize("words", ["and ", "also ", "although ", "he was, ", "which, ", "a; ", "((", "was and also "])
def test_the_time_grows_in_proportion_to_the_length(words):
    begin = time.process_time()
    split_clauses(words * 20_000)
    assert time.process_time() - begin < 5


def test_a_record_in_clauses_names_the_sentence_of_each():
    sentences = (
        Sentence("Early life:", kind="label"),
        Sentence("She was born in Ulm and moved to Linz.", factuality=0.5, confidence=0.5),
        Sentence("She died in 1990.", factuality=1.0),
    )
    record = in_clauses(Record("ada", "Who?", answer="x", sentences=sentences, rejected=(0, 1, 2)))
    assert record.sentences == (
        sentences[0],
        Sentence("She was born in Ulm", part_of=1),
        Sentence("and moved to Linz.", part_of=1),
        Sentence("She died in 1990.", factuality=1.0, part_of=2),
    )
    assert record.rejected is None and in_clauses(record) == record


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 1))
def test_a_sentence_is_between_the_product_and_the_lowest_of_its_clauses(confidences, dependence):
    found = joint_confidence(confidences, dependence)
    assert math.prod(confidences) - 1e-12 <= found <= min(confidences) + 1e-12
    assert joint_confidence(confidences, 0) == pytest.approx(math.prod(confidences))
    assert joint_confidence(confidences, 1) == min(confidences)
    assert joint_confidence(confidences[:1]) == pytest.approx(confidences[0])
    assert found <= joint_confidence(confidences[1:] or [1.0], dependence) + 1e-12  # more clauses, less confidence


def test_a_sentence_without_a_confidence_for_a_clause_has_none():
    sentences = [Sentence("a", confidence=0.5, part_of=7), Sentence("b", part_of=7), Sentence("c", confidence=0.5)]
    sentences.append(Sentence("d", confidence=0.4, part_of=9))
    record = Record("x", "Who?", sentences=tuple(sentences))
    assert sentence_confidences(record) == {7: None, 9: pytest.approx(0.4)}
