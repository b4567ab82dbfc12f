"""What `lovec.tag` returns: dicts and lists like any other, that notebooks, terminals and pandas can show."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest

from lovec.datasets.jsonl import record_from_dict, record_to_dict
from lovec.taggers import TaggedText, TaggedTexts
from lovec.types import LovecError, Record, Sentence

SENTENCES = (
    Sentence("Ada wrote\nnotes.", 1.0, 0.64, 7, (0.1,) * 11),
    Sentence("She <b>flew</b>.", None, 0.1, 1),
    Sentence("It \x1b[2Jrained."),
)
RECORD = Record("text-1", "Who was Ada?", answer="Ada wrote notes.", sentences=SENTENCES, meta={"problems": ["cut"]})
NOTE = "Confidence: what the model says."


def tagged(record: Record = RECORD, note: str = NOTE) -> TaggedText:
    return TaggedText(record_to_dict(record), note)


def test_a_tagged_text_is_its_dict() -> None:
    one, plain = tagged(), record_to_dict(RECORD)
    assert one == plain and json.dumps(one) == json.dumps(plain) and record_from_dict(one) == RECORD
    many, list_of_plain = TaggedTexts([one, one]), [plain, plain]
    assert many == list_of_plain and json.loads(json.dumps(many)) == json.loads(json.dumps(list_of_plain))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("value", [tagged(), TaggedTexts([tagged(), tagged(note="")])], ids=["text", "texts"])
def test_a_copy_shows_itself_alike(value: Any, again: Any) -> None:
    other = again(value)
    assert type(other) is type(value) and other == value and other is not value
    assert other._repr_html_() == value._repr_html_() and NOTE in other._repr_html_()


def test_terminals_show_a_line_per_sentence() -> None:
    assert repr(tagged()).splitlines() == [
        "text-1: Who was Ada?",
        "confidence  score  sentence",
        "      0.64      7  Ada wrote notes.",
        "      0.10      1  She <b>flew</b>.",
        "         -      -  It \ufffd[2Jrained.",
        "problem: cut",
    ]
    left = Record("a", "?", sentences=(Sentence("x" * 200),) * 60, meta={"left_out": 4})
    lines = repr(tagged(left)).splitlines()
    assert lines[-2:] == ["and 10 more sentences", "left out: 4"] and len(lines) == 54
    assert max(map(len, lines)) < 120
    many = repr(TaggedTexts([tagged()] * 7))
    assert many.count("text-1: ") == 5 and many.endswith("\n\nand 2 more") and repr(TaggedTexts()) == "[]"


class Printer:
    """The part of IPython's printer that values call."""

    def __init__(self) -> None:
        self.printed = ""

    def text(self, text: str) -> None:
        self.printed += text


def pretty(value: Any) -> str:
    printer = Printer()
    value._repr_pretty_(printer, False)
    return printer.printed


def test_notebooks_take_html_and_plain_text() -> None:
    for value in (tagged(), TaggedTexts([tagged()] * 2)):
        assert pretty(value) == repr(value)
        html = value._repr_html_() or ""
        assert "She &lt;b&gt;flew&lt;/b&gt;." in html and html.count(NOTE) == 1


def test_what_is_no_record_any_more_is_shown_as_a_dict() -> None:
    changed = tagged()
    changed["sentences"] = [{"text": 5}]
    assert repr(changed) == repr(dict(changed)) == pretty(changed) and changed._repr_html_() is None
    assert TaggedTexts([changed])._repr_html_() is None
    with pytest.raises(LovecError, match="sentence"):
        changed.to_frame()
    mixed = TaggedTexts([tagged()])
    mixed.append(record_to_dict(RECORD))  # type: ignore[arg-type]
    assert NOTE in (mixed._repr_html_() or "") and len(mixed.to_frame()) == 6


def test_a_frame_has_a_row_per_sentence() -> None:
    frame = TaggedTexts([tagged(), tagged(Record("b", "Q?", sentences=(Sentence("B.", confidence=0.5),)))]).to_frame()
    assert list(frame.columns) == ["id", "question", "sentence", "text", "confidence", "score", "factuality"]
    assert frame["id"].tolist() == ["text-1"] * 3 + ["b"] and frame["sentence"].tolist() == [1, 2, 3, 1]
    assert frame["question"].tolist() == ["Who was Ada?"] * 3 + ["Q?"]
    assert frame["text"].tolist() == [*(s.text for s in SENTENCES), "B."]
    assert frame["confidence"].dropna().tolist() == [0.64, 0.1, 0.5] and frame["confidence"].isna().sum() == 1
    assert frame["score"].dropna().tolist() == [7, 1] and frame["factuality"].dropna().tolist() == [1.0]
    empty = TaggedTexts().to_frame()
    assert list(empty.columns) == list(frame.columns) and empty.dtypes.equals(frame.dtypes) and not len(empty)
    assert tagged(Record("a", "?", sentences=(Sentence("No score."),))).to_frame().dtypes.equals(frame.dtypes)


def test_pandas_is_imported_for_frames_only() -> None:
    code = "import sys, lovec.display; assert not {'pandas', 'torch', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
