"""The fact-checking prompt is the paper's; ratings are read strictly and in linear time."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lovec.oracles.prompts import FACT_CHECK, NO_EVIDENCE, fact_check, read_ratings

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "lovec.tex"
DIGEST = "4b4cb8be0d1f4e5f3872fbaf97cd80fc1d45e40f6e357175e7583b60bcd6d7d5"

ratings = st.integers(0, 10)
styles = st.sampled_from(
    ["**Rating:** ${}$", "**Rating:** {}/10", "Rating: {}", "**Rating: {}**", "**Rating**: $[{}]$", "**rating:**\n${}$",
     "**Veracity Rating:** {} / 10.", "**Rating 3:** {} (mostly)", "2. **Rating:** {} - fine", "- Rating: {}.0"]
)  # fmt: skip
prose = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="*:<"), max_size=60)


def test_the_prompt_is_what_was_copied_from_the_paper() -> None:
    assert hashlib.sha256(FACT_CHECK.encode()).hexdigest() == DIGEST


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not beside the checkout")
def test_the_prompt_is_the_papers_word_for_word() -> None:
    assert f"[style=plainins]\n{FACT_CHECK}\n\\end{{lstlisting}}" in PAPER.read_text(encoding="utf-8")


def test_sentences_are_listed_as_in_the_papers_example() -> None:
    prompt = fact_check(" Page {sentence} one.\n", ["She was born\nin 1815.", "{evidence} {0}"])
    assert prompt.endswith("without repeating the sentences.:\n\n### She was born in 1815.  \n### {evidence} {0}")
    assert "for your reference:\n\nPage {sentence} one.\n\n---" in prompt
    example = FACT_CHECK[FACT_CHECK.index("### ") : FACT_CHECK.index("\n\n**Example Outputs")]
    listed = [line.removeprefix("### ").rstrip() for line in example.splitlines()]
    assert fact_check("", listed).endswith(f"\n\n{example}")
    assert NO_EVIDENCE in fact_check(" \n", ["A."])


def test_the_papers_own_example_is_read() -> None:
    outputs = FACT_CHECK[FACT_CHECK.index("**Example Outputs") : FACT_CHECK.index("Here is some relevant")]
    assert read_ratings(outputs) == [1.0, 0.2, 0.6, 0.1]


@given(st.lists(st.tuples(prose, styles, ratings), min_size=1, max_size=6))
def test_ratings_come_back_in_order(rows: list[tuple[str, str, int]]) -> None:
    reply = "\n\n".join(f"**Analysis:** {' '.join(words.split())} .\n{style.format(n)}" for words, style, n in rows)
    assert read_ratings(reply) == [n / 10 for *_, n in rows]
    assert read_ratings(f"<think>Rating: 3\nRating: 4 {reply}</think>{reply}") == [n / 10 for *_, n in rows]


@given(st.lists(ratings, min_size=1, max_size=6), st.sampled_from(["{}", "${}$", "{}/10", "- {}", " **{}** ", "{}."]))
def test_numbers_alone_on_their_lines_are_ratings(numbers: list[int], style: str) -> None:
    assert read_ratings("Here they are:\n" + "\n".join(map(style.format, numbers))) == [n / 10 for n in numbers]


@given(st.text(st.sampled_from("*Rating:$ 0123-.,/\n[](){}\\<>think7-9to ٧五"), max_size=200) | st.text(max_size=200))
def test_any_reply_gives_numbers_from_0_to_1_or_none(reply: str) -> None:
    for value in read_ratings(reply):
        assert value is None or 0.0 <= value <= 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("11", None), ("-3", None), ("\u22123", None), ("100", None), ("7-9", None),
        ("7 \u2013 9", None), ("$7$ to $9$", None),
        ("7 or 8", None), ("7/5", None), ("70%", None), ("7th", None), ("7,5", None), ("7.5.1", None),
        ("9" * 400, None),        ("N/A", None), ("seven", None), ("$[0-10]$", None), ("", None), ("x 7", None),
        ("7.5", 0.75), ("10", 1.0),
        ("0", 0.0), ("10/10", 1.0), ("7 out of 10", 0.7), ("7. 2 details are wrong", 0.7),
        ("8, since 3 of 4 hold", 0.8),        ("7/100", None), ("007", 0.7),
        ("1e1", None), ("10.1", None),
        ("0x7", None), ("7~8", None), ("7..9", None),
    ],
)  # fmt: skip
def test_an_invalid_rating_is_none_in_its_place(text: str, expected: float | None) -> None:
    assert read_ratings(f"**Rating:** $3$\n**Rating:** {text}\n\n**Rating:** $4$") == [0.3, expected, 0.4]


def test_prose_about_ratings_is_not_a_rating() -> None:
    assert read_ratings(
        "The film's rating: 7 of 10. Ratings vary; a rating of 8 is high.\nRatings: 7\n**Rating:** $2$"
    ) == [0.2]
    assert read_ratings("I cannot rate this. It has 7 claims.") == []
    assert read_ratings("<think>Rating: 3\nRating: 4") == []
    assert read_ratings("1. Rating: 7\n2. Rating: 8\n9") == [0.7, 0.8]


@pytest.mark.parametrize(
    "hostile",
    [
        "*",
        "** ",
        "rating ",
        "Rating: ",
        "1",
        "\n",
        " ",
        "Rating:\n",
        "$",
        "$ ",
        "- ",
        "<think>",
        "1) ",
        "(",
        "7-",
        "7$ ",
    ],
)
@pytest.mark.parametrize("head", ["", "**Rating", "Rating: 7", "Rating: 7 -"])
def test_time_is_linear(hostile: str, head: str) -> None:
    def took(size: int) -> float:
        """Return the shortest of three times: a single one may include a garbage collection."""
        reply = head + hostile * (size // len(hostile)) + "x"
        times = []
        for _ in range(3):
            begin = time.process_time()
            read_ratings(reply)
            times.append(time.process_time() - begin)
        return min(times)

    short = max(took(20_000), 1e-3)
    assert took(200_000) < 60 * short  # quadratic is 100 times, and here far beyond
