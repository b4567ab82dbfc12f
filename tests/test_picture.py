"""README's picture is of an answer that was chosen by the rule it states, and small."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scripts import load_file

from lovec.types import LovecError, Record, Sentence

ROOT = Path(__file__).resolve().parents[1]
picture = load_file(ROOT / "docs" / "picture.py", "script_picture")


def answer(name: str, *pairs: tuple[float | None, float | None]) -> Record:
    sentences = tuple(Sentence(f"<b>{name} {i}.", factuality=f, confidence=c) for i, (c, f) in enumerate(pairs))
    return Record(name, f"Who is {name}?", answer=" ".join(s.text for s in sentences), sentences=sentences)


CLEAR = answer("clear", (0.9, 1.0), (0.8, 1.0), (0.1, 0.0), (0.05, 0.0))
OTHERS = [
    answer("close", (0.9, 1.0), (0.8, 1.0), (0.7, 0.0)),
    answer("inverted", (0.1, 1.0), (0.2, 1.0), (0.9, 0.0)),
    answer("short", (1.0, 1.0), (0.0, 0.0)),
    answer("between", (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)),
    answer("unlabelled", (1.0, 1.0), (0.0, 0.0), (0.5, None)),
    answer("unscored", (1.0, 1.0), (0.0, 0.0), (None, 1.0)),
    answer("true", (1.0, 1.0), (0.9, 1.0), (0.8, 1.0)),
]


def test_the_answer_is_the_one_whose_confidences_separate_best() -> None:
    assert picture.clearest([*OTHERS, CLEAR]) == (CLEAR, 3)
    with pytest.raises(LovecError, match="no answer mixes true and wrong sentences"):
        picture.clearest([OTHERS[-1], Record("empty", "Q?")])


def test_truth_is_a_word() -> None:
    words = [picture.truth(sentence) for sentence in CLEAR.sentences]
    assert words == ["✓ true", "✓ true", "✗ wrong", "✗ wrong"]


def test_text_of_the_model_is_escaped_and_the_caption_says_how_it_was_chosen(tmp_path: Path) -> None:
    page = picture.document(CLEAR)
    assert "<b>" not in page and page.count("<tr>") == 1 + len(CLEAR.sentences) and "✗ wrong" in page
    readme = tmp_path / "README.md"
    readme.write_text(f"a\n{picture.BEGIN}\nold\n{picture.END}\nb\n")
    for _ in range(2):
        picture.update(readme, picture.caption(CLEAR, 3, 60))
        text = readme.read_text()
        assert text.startswith(f"a\n{picture.BEGIN}\n![Who is clear? ") and text.endswith(f"{picture.END}\nb\n")
        assert "Of 60 such answers, 3 have both true and wrong sentences and no half-true one;" in text
        assert "old" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_the_picture_is_small_and_cut_below(tmp_path: Path) -> None:
    from PIL import Image

    picture.draw(picture.document(CLEAR), tmp_path / "a.png")
    width, height = Image.open(tmp_path / "a.png").size
    assert width == picture.SCALE * picture.WIDTH and 200 < height < picture.SCALE * picture.TALLEST


def test_a_missing_browser_is_named(tmp_path: Path) -> None:
    with pytest.raises(LovecError, match="there is no nobrowser on the PATH"):
        picture.draw("", tmp_path / "a.png", "nobrowser")


def test_readme_has_the_picture_once() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.count(picture.BEGIN) == text.count(picture.END) == 1
    assert "(docs/tagged.png)" in text and picture.PICTURE.stat().st_size <= picture.LARGEST
