"""What scoring first tokens changes, measured against whole tags."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from lovec.encoding import Encoder
from lovec.engines import TransformersEngine
from lovec.policy import Policy, PolicyConfig
from lovec.taggers import IterativeTagger
from lovec.taggers.scoring_check import LARGE, SENTENCES, ScoringDifference, scoring_difference
from lovec.types import Record, Sentence


def records(number: int, sentences: int) -> list[Record]:
    texts = [f"Ada wrote {at} notes." for at in range(sentences)]
    return [Record(f"r{i}", "Who is Ada?", sentences=tuple(map(Sentence, texts))) for i in range(number)]


@pytest.fixture(scope="module")
def opened(model: str) -> tuple[TransformersEngine, Encoder]:
    engine = TransformersEngine()
    engine.sync(Policy(PolicyConfig(model)).eval())
    return engine, Encoder(AutoTokenizer.from_pretrained(model))


def test_the_difference_is_that_of_two_taggings(opened: tuple[TransformersEngine, Encoder]) -> None:
    engine, encoder = opened
    found = scoring_difference(engine, encoder, [Record("plain", "Who?"), *records(3, 4)])
    assert found is not None and found.sentences == 12
    sides = [
        IterativeTagger(engine, encoder.with_scoring(scoring), "mean").tag(records(3, 4))
        for scoring in ("prefix", "exact")
    ]
    confidences = [[s.confidence for record in side for s in record.sentences] for side in sides]
    changes = [abs(a - b) for a, b in zip(*confidences, strict=True)]  # type: ignore[operator]
    assert found.largest == max(changes) > LARGE and found.is_large  # an untrained model closes no tag
    assert found.mean == pytest.approx(sum(changes) / 12, abs=1e-12)


def test_a_bounded_number_of_sentences_is_scored_twice(opened: tuple[TransformersEngine, Encoder]) -> None:
    found = scoring_difference(*opened, records(30, 7))
    assert found is not None and found.sentences == SENTENCES
    engine, encoder = opened
    fewer = scoring_difference(engine, encoder, records(3, 4), sentences=5)
    assert fewer is not None and fewer.sentences == 5
    assert scoring_difference(engine, encoder, records(3, 4), sentences=0) is None
    assert scoring_difference(engine, encoder.with_scoring("exact"), records(1, 1)) is None
    assert scoring_difference(engine, encoder, [Record("plain", "Who?")]) is None


def test_it_is_said_in_words() -> None:
    small = ScoringDifference(1, 0.001, 0.0004, 0)
    assert not small.is_large
    assert small.describe() == (
        "first tokens compared with whole tags on 1 sentence: confidences differ by 0.0004 on average and by 0.0010 at "
        "most; 0 stated scores differ"
    )
    assert "--scoring exact scores whole tags" in small.advice("--scoring")
