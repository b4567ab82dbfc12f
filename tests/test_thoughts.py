"""What a model writes while it thinks never becomes a sentence, a tag or a rating."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinyrun import tiny
from transformers import AutoTokenizer

from lovec.encoding import Encoder
from lovec.labelling.steps import _answer
from lovec.oracles.prompts import read_ratings
from lovec.taggers.freeform import AnswerReader, read_answer, sentence_spans
from lovec.tags import DEFAULT_TAGS, parse, thought_length, without_thoughts
from lovec.text.untag import split_record
from lovec.types import Completion, Record

DRAFT = "<think>Ada? <confidence> 3 </confidence> Wait. Paris.</think>\n\n"
ANSWER = "She was born. <confidence> 9 </confidence> In London. <confidence> 4 </confidence>"


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (DRAFT + ANSWER, len(DRAFT)),
        ("Ada? Hm.</think> She.", len("Ada? Hm.</think> ")),  # the template wrote the first mark
        ("<think>Ada? Hm.", len("<think>Ada? Hm.")),
        ("She wrote <think>x</think>.", 0),
        ("She was born.", 0),
        ("", 0),
    ],
)
def test_how_much_of_an_answer_is_a_thought(text: str, length: int) -> None:
    assert thought_length(text) == length


def test_replies_may_think_anywhere() -> None:
    assert without_thoughts("So. <think>a</think> b <think>c</think> 7") == " 7"
    assert without_thoughts("7") == "7"
    assert without_thoughts("<think>a</think> <think>b") is None
    assert read_ratings("<think>Rating: 3</think>Rating: 7") == [0.7]


def test_tags_in_a_thought_are_not_read() -> None:
    parsed = parse(DRAFT + ANSWER)
    assert [(s.text, s.score) for s in parsed.sentences] == [("She was born.", 9), ("In London.", 4)]
    assert parsed.thought + "".join(s.raw for s in parsed.sentences) + parsed.tail == DRAFT + ANSWER
    cut = parse("<think>Ada? <confidence> 3 </confidence>")
    assert (cut.sentences, cut.tail, cut.thought) == ((), "", "<think>Ada? <confidence> 3 </confidence>")


def test_written_answers(tmp_path: Path) -> None:
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny(tmp_path)))
    ids = tuple(encoder.pieces(DRAFT + ANSWER))
    record, text = read_answer(Record("a", "Who?"), Completion(ids, (0.0,) * len(ids), True), encoder)
    assert [s.text for s in record.sentences] == ["She was born.", "In London."]
    spans = sentence_spans(text, ids, encoder)
    assert [encoder.decode(ids[span]).strip() for span in spans if span] == ["She was born.", "In London."]
    reader = AnswerReader(encoder)
    streamed = [span.text for token in ids for span in reader.on_token(token)]
    assert streamed == ["She was born.", "In London."]
    cut = tuple(encoder.pieces("<think>Ada?"))
    record, _ = read_answer(Record("a", "Who?"), Completion(cut, (0.0,) * len(cut), False), encoder)
    assert record.sentences == () and "ends inside a thought" in record.meta["problems"][0]


def test_given_answers_and_labelled_ones() -> None:
    record = split_record(Record("a", "Who?", answer="<think>Hm. Ada.</think>She was born. In London."), DEFAULT_TAGS)
    assert [s.text for s in record.sentences] == ["She was born.", "In London."]
    tagged = split_record(Record("a", "Who?", answer=DRAFT + ANSWER), DEFAULT_TAGS)
    assert [(s.text, s.score) for s in tagged.sentences] == [("She was born.", 9), ("In London.", 4)]
    assert _answer("<think>Hm.</think> She was.", True).text == "She was."
    assert _answer("<think>Hm.", False).problem is not None
