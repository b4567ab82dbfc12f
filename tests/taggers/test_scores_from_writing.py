"""Free-form tagging and serving read scores from writing where that tells them, and otherwise let the engine score."""

from __future__ import annotations

from typing import Any

import pytest
from served import chat, post, running
from tinyrun import tiny
from writer import Watched, Writer

from lovec.taggers import FreeFormTagger, Session, open_session
from lovec.types import Record, Sampling

DIGITS = tuple("0123456789")
RECORDS = [Record(f"r{number}", f"Who was {name}?") for number, name in enumerate(("Ada", "Bob", "Eve", "Mia", "Tom"))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("models"), "llama", max_position_embeddings=1024)


def opened(model: str, writer: Writer, **options: Any) -> Session:
    return open_session(model, engine=writer, instruction="Rate.", device="cpu", **options)


def tagged(session: Session) -> list[Record]:
    return FreeFormTagger(session.engine, session.encoder, Sampling(200), "mean").tag(RECORDS)


def assert_alike(found: list[Record], expected: list[Record]) -> None:
    """The distributions are the same, up to rounding; and so is everything else."""
    sides = [[sentence for record in records for sentence in record.sentences] for records in (found, expected)]
    for one, other in zip(*sides, strict=True):
        assert (one.text, one.score) == (other.text, other.score)
        assert one.distribution == (None if other.distribution is None else pytest.approx(other.distribution, abs=1e-6))
    assert sum(sentence.distribution is not None for sentence in sides[0]) > 10


def test_nothing_is_scored_where_first_tokens_tell_the_scores_apart(model: str) -> None:
    watched = Watched()
    with opened(model, watched, scale=DIGITS, scoring="prefix") as session:
        found = tagged(session)
    with opened(model, Writer(), scale=DIGITS, scoring="prefix") as session:
        assert_alike(found, tagged(session))
    assert watched.scored == []
    with opened(model, watched, scale=DIGITS, scoring="exact") as session:
        tagged(session)
    assert len(watched.scored) == sum(s.score is not None for record in found for s in record.sentences)


def test_what_is_not_known_is_scored(model: str) -> None:
    """With a token per digit, 1 and 10 are told apart only where a 1 was written."""
    watched = Watched()
    with opened(model, watched, scoring="prefix") as session:
        found = tagged(session)
    with opened(model, Writer(), scoring="prefix") as session:
        assert_alike(found, tagged(session))
    scores = [s.score for record in found for s in record.sentences if s.score is not None]
    assert len(watched.scored) == sum(score != 1 for score in scores) and 1 in scores


def test_a_sentence_that_is_encoded_otherwise_than_it_was_written_is_scored(model: str) -> None:
    class Spaced(Watched):
        def text(self, prompt: list[int]) -> str:
            return super().text(prompt).replace(". <", ".\n<", 1)  # tags are encoded with a space before them

    watched = Spaced()
    with opened(model, watched, scale=DIGITS, scoring="prefix") as session:
        found = tagged(session)
    expected = Writer()
    expected.text = watched.text  # type: ignore[method-assign]
    with opened(model, expected, scale=DIGITS, scoring="prefix") as session:
        assert_alike(found, tagged(session))
    valid = sum(s.score is not None for record in found for s in record.sentences)
    assert len(watched.scored) == valid  # from there on, what is behind the context is not what was written
    assert all(record.sentences[0].text.endswith(".") for record in found)


def test_answers_of_the_server_are_scored_as_they_are_written(model: str) -> None:
    watched, entries = Watched(), []
    for writer in (watched, Writer()):
        with running(opened(model, writer, scale=DIGITS, scoring="prefix"), key=None) as server:
            replies = [post(server, chat(record.question, max_tokens=120))[1] for record in RECORDS[:3]]
            entries.append([e for reply in replies for e in reply["choices"][0]["message"]["confidence"]])
    assert watched.scored == [] and len(entries[0]) > 6
    for one, other in zip(*entries, strict=True):
        values = one.pop("confidence"), other.pop("confidence")
        assert one == other and values[0] == (None if values[1] is None else pytest.approx(values[1], abs=1e-6))
