"""What a model writes while it thinks never becomes a sentence, a tag or a rating."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinyrun import tiny
from transformers import AutoTokenizer

from lovec.encoding import Encoder
from lovec.labelling.steps import SplitStep, _answer
from lovec.oracles.prompts import read_ratings
from lovec.taggers.freeform import AnswerReader, GrowingAnswer, TextReader, read_answer, sentence_spans
from lovec.tags import DEFAULT_TAGS, TagFormat, parse, thought_length, without_thoughts
from lovec.text.abstentions import is_abstention
from lovec.text.sentences import split_sentences
from lovec.text.untag import split_record
from lovec.types import Completion, Record, Sentence, TokenScores

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
    assert thought_length(text, opened=True) == length


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


LATE = "I should tag. <confidence> 9 </confidence> Like so. <confidence> 3 </confidence></think>\n\n" + ANSWER


@pytest.mark.parametrize("size", [1, 2, 7, 30, 90, 1000])
def test_a_thought_whose_beginning_is_not_written_is_withdrawn_at_its_end(size: int) -> None:
    for text, words in ((LATE, DEFAULT_TAGS), (LATE.replace("confidence>", "»"), TagFormat("<»", "</»"))):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        written: list[str] = []
        reader = TextReader(words, lambda written=written: "".join(written))
        found = []
        for chunk in chunks:
            written.append(chunk)
            found += reader.add(chunk)
        found += reader.ending()
        assert [span.text for span in found[reader.withdrawn :]] == ["She was born.", "In London."]
        assert [span.text for span in found[: reader.withdrawn]] == ["I should tag.", "Like so."][: reader.withdrawn]


def test_a_growing_answer_begins_anew_behind_its_thought(tmp_path: Path) -> None:
    encoder = Encoder(AutoTokenizer.from_pretrained(tiny(tmp_path)))
    ids = encoder.pieces(LATE)
    logps = [float(at) for at in range(len(ids))]

    class ByTokens:
        needs_token_logps = needs_distribution = True

        def confidence(self, sentence: Sentence) -> float:
            return 0.5

    growing = GrowingAnswer(encoder, [1], ByTokens())  # type: ignore[arg-type]
    found, contexts = [], []
    for token in ids:
        if not growing.on_token(token):
            while due := growing.due(None, [], []):
                contexts.append(due[0].context)
                growing.take(due[0], TokenScores((), choices=tuple(range(11))))
            found += growing.release(logps)
    assert growing.withdrawn == 2 and "2 sentences" in growing.withdrawal[0]
    spans = sentence_spans(parse(LATE), ids, encoder)
    expected = [("She was born.", tuple(logps[spans[0]])), ("In London.", tuple(logps[spans[1]]))]  # type: ignore[index]
    assert [(one.sentence.text, one.sentence.token_logps) for one in found[2:]] == expected
    assert contexts[2] == [1, *encoder.head("She was born.", first=True)]


def test_given_answers_and_labelled_ones() -> None:
    record = split_record(Record("a", "Who?", answer="<think>Hm. Ada.</think>She was born. In London."), DEFAULT_TAGS)
    assert [s.text for s in record.sentences] == ["She was born.", "In London."]
    tagged = split_record(Record("a", "Who?", answer=DRAFT + ANSWER), DEFAULT_TAGS)
    assert [(s.text, s.score) for s in tagged.sentences] == [("She was born.", 9), ("In London.", 4)]
    assert _answer("<think>Hm.</think> She was.", True).text == "She was."
    assert _answer("<think>Hm.", False).problem is not None


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        ("<think>I don't know much about her. I am not sure when she was born.</think> She was born. In London.", 2),
        ("<think>Ada was born. In London. She wrote notes.</think> I'm sorry, but I don't know who that is.", None),
        ("<think>I don't know who that is.", 0),
    ],
)
def test_a_thought_does_not_decide_whether_an_answer_declines(answer: str, count: int | None) -> None:
    [outcome] = SplitStep(split_sentences, is_abstention)([Record("a", "Who?", answer=answer)])
    expected = {"abstained": 1} if count is None else {"sentences": count} if count else {"without an answer": 1}
    assert outcome.counts == expected and outcome.records[0].answer == answer
