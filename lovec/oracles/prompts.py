"""The paper's fact-checking prompt, and how ratings are read from a reply: pure functions, in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence

FACT_CHECK = """\
Your task is to fact-check each of the following sentences.

Each sentence may contain multiple factual claims. For each one:
1. Break down and assess the factual accuracy of each individual detail.
2. Consider names, dates, locations, statistics, events, and attributions.
3. Assign a numeric **veracity rating** from 0 to 10 based on this scale:

0: Completely incorrect - entirely false or misleading. \x20
1-3: Mostly incorrect - several key inaccuracies. \x20
4-6: Partially correct - mix of accurate and inaccurate information. \x20
7-9: Mostly correct - generally accurate with minor issues. \x20
10: Completely correct - all facts are verifiably accurate.

Use the following format for your output (do **not** repeat the sentence):

**Analysis:** [Your detailed factual analysis] \x20
**Rating:** $[0-10]$

---

**Example Inputs:** \x20
### Marie Curie won two Nobel Prizes, one in Physics in 1903 and another in Chemistry in 1911 for her work on \
radioactivity. \x20
### The Great Fire of London occurred in 1666 and destroyed nearly half of the city's modern skyscrapers. \x20
### Albert Einstein developed the theory of relativity while working as a professor at the University of Zurich and \
received the Nobel Prize in Physics in 1921 for this work. \x20
### Mount Everest, located on the border between Nepal and India, is the second-highest mountain in the world after \
K2.

**Example Outputs:** \x20
**Analysis:** Marie Curie received the Nobel Prize in Physics in 1903 (shared with Pierre Curie and Henri Becquerel) \
and the Nobel Prize in Chemistry in 1911 for discovering polonium and radium. The statement is entirely accurate. \x20
**Rating:** $10$

**Analysis:** While the date of the fire is correct, the mention of "modern skyscrapers" is anachronistic and \
factually incorrect. Skyscrapers did not exist in 1666. \x20
**Rating:** $2$

**Analysis:** Einstein did work at the University of Zurich and received the Nobel Prize in 1921, but it was awarded \
for his explanation of the photoelectric effect, not for the theory of relativity. \x20
**Rating:** $6$

**Analysis:** Mount Everest is located between Nepal and the Tibet Autonomous Region of China, not India. \
Additionally, it is the highest mountain in the world, not the second-highest. \x20
**Rating:** $1$

---

Here is some relevant information for your reference:

{evidence}

---

Now evaluate the following sentences and output all the results in one go.

You should only output the analysis and rating for each sentence without repeating the sentences.:

{sentence}"""
"""The paper's prompt (section "Prompt for Fact-Checking"), word for word. The slots are the evidence and the list of
sentences, each behind "### " on a line of its own as in the prompt's example."""

NO_EVIDENCE = "(none was found; judge by what you know)"
"""Fills the evidence slot of a record without evidence; the paper has no such record."""

_LABEL = re.compile(
    r"(?:^[^\w\n]*(?:\d+[.):][^\w\n]*)?|\*\*[^\S\n]*)"  # a line starts here, perhaps numbered, or bold print does
    r"(?:veracity[^\S\n]+)?rating(?:[^\S\n]+\#?\d+)?[^\S\n]*(?::[^\S\n]*\*\*|\*\*[^\S\n]*:?|:)",
    re.IGNORECASE | re.MULTILINE,
)
_VALUE = re.compile(  # quantified classes that stand beside each other share no character, so time is linear
    r"[ \t\r$*\\\[({`]*([-\u2212]?[0-9]{1,3}(?:\.[0-9]{1,9})?)(?![\w%])[ \t\r$*\\\])}`.]*"
    r"(?:(?:/|out of)[ \t]*\$?10(?![\w%])[ \t\r$*\\\])}`.]*)?",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    r"(?:[-\u2010-\u2015\u2212/,;~]+|(?:to|or|and)\b|(?<=\.)(?=\d))[ \t$*\\\[({`]*[-\u2212]?\d", re.IGNORECASE
)  # a range or a choice
_BULLET = re.compile(r"[^\S\n]*[-*\u2022][^\S\n]+")


def fact_check(evidence: str, sentences: Sequence[str]) -> str:
    """The user turn that asks for a rating of every sentence.

    Args:
        evidence: what to judge by; "" stands for none.
        sentences: at least one; line breaks in a sentence become blanks, since a sentence is a line.
    """
    listed = "  \n".join(f"### {' '.join(sentence.split())}" for sentence in sentences)
    return FACT_CHECK.format(evidence=evidence.strip() or NO_EVIDENCE, sentence=listed)


def read_ratings(reply: str) -> list[float | None]:
    """Factuality in [0, 1] of every rating in a reply, in its order; one that cannot be taken at its word is None.

    A rating stands behind "Rating:", bold or not ("**Rating:** $7$", "Rating: 7/10", or the number on the next line),
    or alone on a line ("$7$", "7") in a reply that has no such label at all. Anything else behind a label keeps the
    place as None: a number outside 0..10, a range, a word. What a thinking model writes before "</think>" is a draft
    and is not read.

    How many there are is for the caller to compare: a reply with one too few says nothing of which is missing.
    """
    _, _, answer = reply.rpartition("</think>")
    if "<think>" in answer:  # cut off within the draft
        return []
    labels = list(_LABEL.finditer(answer))
    if not labels:
        return [_fraction(found[1]) for line in answer.splitlines() if (found := _alone(line))]
    ends = [label.start() for label in labels[1:]] + [len(answer)]
    return [_behind(answer[label.end() : end]) for label, end in zip(labels, ends, strict=True)]


def _behind(text: str) -> float | None:
    """The rating in what stands between a label and the next one."""
    line, _, rest = text.partition("\n")
    if not line.strip("*$ \t\r"):
        found = _alone(rest.lstrip().partition("\n")[0])
        return _fraction(found[1]) if found else None
    found = _VALUE.match(line)
    if found is None or _ANOTHER.match(line, found.end()):
        return None
    return _fraction(found[1])


def _alone(line: str) -> re.Match[str] | None:
    """A number that fills its line."""
    bullet = _BULLET.match(line)
    return _VALUE.fullmatch(line, bullet.end() if bullet else 0)


def _fraction(number: str) -> float | None:
    if number[0] in "-\u2212" or float(number) > 10:
        return None
    return float(number) / 10
