"""Records as JSONL: nothing is lost, broken lines are named, a file is old or new but never half."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.datasets.jsonl import read_objects, read_records, record_from_dict, record_to_dict, write_records
from lovec.types import LovecError, Record, Sentence

share = st.floats(0, 1)
text = st.text(min_size=1).map(str.strip).filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def sentences_with(levels):
    return st.builds(
        Sentence,
        text=text,
        factuality=st.none() | share,
        confidence=st.none() | share,
        score=st.none() | st.integers(0, levels - 1),
        distribution=st.none() | st.tuples(*[share] * levels),
        levels=st.just(levels),
    )


@st.composite
def records(draw):
    levels = draw(st.sampled_from([11, 11, 2, 5, 101]))
    sentences = draw(st.lists(sentences_with(levels), max_size=4).map(tuple))
    size = len(sentences)
    wrong = st.lists(st.integers(0, levels - 1), min_size=size, max_size=size).map(tuple)
    keys = st.text().filter(lambda k: k not in Record.__dataclass_fields__)
    return Record(
        id=draw(st.text(min_size=1)),
        question=draw(text),
        evidence=draw(st.lists(st.text(), max_size=3).map(tuple)),
        answer=draw(st.text()),
        sentences=sentences,
        meta=draw(st.dictionaries(keys, json_values, max_size=3)),
        rejected=draw(st.none() | wrong),
    )


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


@given(record=records())
def test_dict_round_trip(record):
    assert record_from_dict(record_to_dict(record)) == record
    assert record_from_dict(json.loads(json.dumps(record_to_dict(record), allow_nan=False))) == record


@given(many=st.lists(records(), max_size=5, unique_by=lambda record: record.id))
def test_file_round_trip(many, tmp_path_factory):
    path = tmp_path_factory.mktemp("jsonl") / "deep" / "records.jsonl"
    write_records(path, iter(many))
    assert list(read_records(path)) == many
    assert [p.name for p in path.parent.iterdir()] == ["records.jsonl"]


def test_question_alone_is_enough_and_strangers_go_to_meta(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"question": "Who?", "evidence": "A page.", "popularity": 3, "meta": {"domain": "bios"}},
        "\n  \n",
        {"question": "What?", "id": 17, "evidence": None},
        {"question": "Why?", "id": None, "evidence": ["a", "b"]},
    )
    first, second, third = read_records(path)
    assert (first.id, second.id, third.id) == ("line-1", "17", "line-5")
    assert first.evidence == ("A page.",) and second.evidence == () and third.evidence == ("a", "b")
    assert first.meta == {"domain": "bios", "popularity": 3}
    assert not first.labelled and first.sentences == () and first.answer == ""


def test_reading_streams(tmp_path):
    path = write(tmp_path / "r.jsonl", {"question": "Who?"}, {"question": "What?"}, "{broken\n")
    reader = read_records(path)
    assert next(reader).question == "Who?"
    assert next(reader).question == "What?"
    with pytest.raises(LovecError, match=r"r\.jsonl:3: not valid JSON"):
        next(reader)


OK = {"id": "a", "question": "Who?", "sentences": [{"text": "One."}, {"text": "Two."}]}


def sentence(**values):
    return {**OK, "sentences": [{"text": "One."}, {"text": "Two.", **values}]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ('{"question": "Who?", "x": NaN}', "NaN is not JSON; an unknown value is null"),
        ('{"question": "half \\ud83d"}', "not valid UTF-8 text (surrogates not allowed)"),
        ('{"question": "Who?", "x": [1e999]}', "1e999 is too large for a number"),
        ('{"question": "Who?", "x": -1' + "0" * 400 + ".0}", "-1000000000000000000 is too large for a number"),
        ("[1]", "holds [1], expected a JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ({**OK, "id": "first"}, "id 'first' is already that of line 1"),
        ({**OK, "id": 1.5}, "'id' is 1.5, expected a string"),
        ({"id": "a"}, "'question' is missing, expected a text"),
        ({"question": "  "}, "'question' is \"  \", expected a text"),
        ({"question": 3}, "'question' is 3"),
        ({**OK, "answer": 3}, "'answer' is 3, expected a text"),
        ({**OK, "evidence": {"a": 1}}, "'evidence' is {\"a\": 1}, expected a text or a list of texts"),
        ({**OK, "evidence": [1]}, "'evidence' is [1], expected a text or a list of texts"),
        ({**OK, "meta": [1]}, "'meta' is [1], expected an object"),
        ({**OK, "meta": {"x": 1}, "x": 2}, "'x' is both beside 'meta' and in it"),
        ({**OK, "sentences": "One."}, "'sentences' is \"One.\", expected a list"),
        ({**OK, "sentences": ["One."]}, "'sentences[0]' is \"One.\", expected an object"),
        (sentence(text=" "), "'sentences[1]' has text \" \", expected a sentence"),
        (sentence(factualty=0.5), "'sentences[1]' has a key 'factualty', expected only text, factuality"),
        (sentence(factuality=7), "'sentences[1]' has factuality 7, expected a number in [0, 1] or null (a rating of 7"),
        (sentence(factuality=-0.1), "factuality -0.1"),
        (sentence(factuality=True), "factuality true"),
        (sentence(factuality="0.5"), 'factuality "0.5"'),
        (sentence(confidence=1.01), "'sentences[1]' has confidence 1.01"),
        (sentence(score=11), "'sentences[1]' has score 11, expected an integer 0..10"),
        (sentence(score=7.0), "score 7.0"),
        (sentence(score=5, levels=5), "'sentences[1]' has score 5, expected an integer 0..4"),
        (sentence(levels=1), "'sentences[1]' has levels 1, expected an integer above 1"),
        (sentence(levels="5"), "'sentences[1]' has levels \"5\", expected an integer"),
        (sentence(distribution=[0.1] * 10), "expected 11 probabilities"),
        (sentence(distribution=[0.1] * 11, levels=5), "expected 5 probabilities"),
        (sentence(distribution=[0.1] * 10 + [2]), "expected 11 probabilities"),
        ({**OK, "rejected": [3]}, "'rejected' is [3], expected 2 integers 0..10, one per sentence"),
        ({**OK, "rejected": [3, 11]}, "'rejected' is [3, 11]"),
        ({**OK, "rejected": [3, 2.5]}, "'rejected' is [3, 2.5]"),
        ({**OK, "rejected": 3}, "'rejected' is 3"),
    ],
)
def test_broken_line_is_named(tmp_path, line, said):
    path = write(tmp_path / "r.jsonl", {"id": "first", "question": "Who?"}, line)
    with pytest.raises(LovecError) as caught:
        list(read_records(path))
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ") and said in message and "\n" not in message
    assert len(message) < len(str(path)) + 250


def test_encodings(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "Zo\xc3\xab\xe2\x80\xa8?"}\r\n{"question": "\xff"}\n')
    reader = read_records(path)
    assert next(reader).question == "Zoë\u2028?"
    with pytest.raises(LovecError, match=r"r\.jsonl:2: not valid UTF-8 text"):
        next(reader)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(LovecError, match=r"cannot read .*none\.jsonl \(No such file or directory\); give the path"):
        next(read_records(tmp_path / "none.jsonl"))
    with pytest.raises(LovecError, match="Is a directory"):
        next(read_objects(tmp_path))


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [Record("a", "Who?")])
    before = path.read_bytes()

    def interrupted():
        yield Record("b", "What?")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_records(path, interrupted())
    for bad in ({"x": float("nan")}, {"x": object()}, {"x": "\ud83d"}):
        with pytest.raises(LovecError, match="record 'c' cannot be written as JSON"):
            write_records(path, [Record("b", "What?"), Record("c", "What?", meta=bad)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_of_numpy_are_written_as_those_of_json(tmp_path):
    sentence = Sentence("A.", factuality=np.float32(0.5), score=np.int64(7), distribution=tuple(np.full(11, 0.25, "f")))
    write_records(tmp_path / "r.jsonl", [Record("a", "Who?", sentences=(sentence,), meta={"n": np.int32(3)})])
    (record,) = read_records(tmp_path / "r.jsonl")
    assert record.sentences == (Sentence("A.", factuality=0.5, score=7, distribution=(0.25,) * 11),)
    assert record.meta == {"n": 3}


def test_a_reader_keeps_the_file_it_opened(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [Record(name, "Who?" * 9_000) for name in "ab"])  # longer than a read-ahead
    reader = read_records(path)
    first = next(reader)
    write_records(path, (Record(name, "Why?" * 9) for name in "cdefg"))
    assert [first.id, *(record.id for record in reader)] == ["a", "b"]
    assert [record.id for record in read_records(path)] == list("cdefg")


def test_levels_are_written_only_for_other_scales(tmp_path):
    path = tmp_path / "r.jsonl"
    sentences = (Sentence("Une.", score=3, levels=5), Sentence("Deux.", score=9))
    write_records(path, [Record("a", "Qui ?", sentences=sentences, rejected=(4, 0))])
    first, second = json.loads(path.read_text("utf-8"))["sentences"]
    assert first["levels"] == 5 and "levels" not in second
    (record,) = read_records(path)
    assert record.sentences == sentences and [s.stated for s in record.sentences] == [0.75, 0.9]


def test_unknown_values_are_null_and_text_is_readable(tmp_path):
    path = tmp_path / "r.jsonl"
    write_records(path, [Record("a", "Qui est Zoë ?", sentences=(Sentence("Une."),))])
    line = path.read_text("utf-8")
    assert "Zoë" in line and "NaN" not in line and "rejected" not in line
    assert json.loads(line)["sentences"] == [
        {"text": "Une.", "factuality": None, "confidence": None, "score": None, "distribution": None}
    ]
