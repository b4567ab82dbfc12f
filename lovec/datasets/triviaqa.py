"""TriviaQA, short form: a question, an answer of a few words, and whether it is right (Joshi et al. 2017)."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Iterator
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.datasets.rows import Reading, cell_value, layout
from lovec.tags import DEFAULT_TAGS
from lovec.types import DEFAULT_SCALE, LovecError, Record, Scale

HUB = HubDataset("mandarjoshi/trivia_qa", "validation", ("question", "question_id", "answer"), "rc.nocontext")
"""The validation split, because the answers of the test split are withheld."""

DOMAIN = "TriviaQA"

SHORT_FORM = f"""\
{{question}}

Reply with the answer alone: a name, a number or a few words, not a whole sentence. Behind it, write how certain you \
are that it is correct, {{levels}} from {{lowest}} (almost certainly wrong) to {{highest}} (almost certainly right), \
in the format {DEFAULT_TAGS.open} X {DEFAULT_TAGS.close}, and stop there."""
"""The user turn. The paper prints no prompt for short answers; this one is ours."""

_OVERLAP = 0.5
_SPACED = str.maketrans({mark: " " for mark in string.punctuation + "\u2018\u2019\u00b4"})


def read_triviaqa(path: str | os.PathLike[str] | None = None, scale: Scale = DEFAULT_SCALE) -> list[Record]:
    """Return the questions with all answers that count as right.

    The data set has many questions twice, for web and for Wikipedia evidence; they become one record, and the aliases
    of both count as right.

    Args:
        path: a copy of the data set, see ``HubDataset.table``; ``answer`` may also be a plain list of aliases. None
            reads it from the hub.
        scale: scale of the confidence that the question asks for.

    Returns:
        Records whose ``meta`` has aliases (normalised), the bare question and domain.

    Raises:
        LovecError: the data set is not available or has another form, or a question has no answer.
    """
    records: dict[str, Record] = {}
    for row in HUB.table(path).select_columns(list(HUB.columns)):
        record_id, question, aliases = str(row["question_id"]), row["question"].strip(), _aliases(row["answer"])
        if not aliases:
            raise LovecError(
                f"question {record_id!r} of {path or HUB.name} has no answer; take the validation split (the test "
                "split withholds its answers)"
            )
        if record_id in records:
            known = records[record_id].meta["aliases"]
            known += [alias for alias in aliases if alias not in known]
            continue
        meta = {"aliases": aliases, "bare_question": question, "domain": DOMAIN}
        records[record_id] = Record(record_id, short_form(question, scale), meta=meta)
    return list(records.values())


@layout("TriviaQA", "question question_id answer", fits=lambda row: not isinstance(row["answer"], str | None))
def short_answer(row: dict[str, Any], reading: Reading) -> Iterator[Record]:
    """Read a question with the answers that count as right, as `read_triviaqa` does with a whole data set."""
    if not (aliases := _aliases(row["answer"])):
        raise LovecError("there is no answer; take the validation split (the test split withholds its answers)")
    question = row["question"].strip()
    meta = {"aliases": aliases, "bare_question": question, "domain": DOMAIN}
    name = question[:60] if row["question_id"] in (None, "") else str(row["question_id"])
    yield Record(reading.ids.of(name), short_form(question), meta=meta)


def short_form(question: str, scale: Scale = DEFAULT_SCALE) -> str:
    """Return the user turn that asks for a short answer with a confidence on a scale."""
    levels = "as a whole number" if scale.is_numeric else f"as one of {', '.join(scale.words)},"
    return SHORT_FORM.format(question=question, levels=levels, lowest=scale.words[0], highest=scale.words[-1])


def matches(answer: str, aliases: Iterable[str]) -> bool:
    """Return whether an answer is right: its highest token F1 with one of the aliases exceeds 0.5.

    Answer A and alias B are normalised and compared as sets of tokens, F1 = 2 |A & B| / (|A| + |B|).

    Args:
        answer: what the model wrote, without its tag.
        aliases: answers that count as right.
    """
    tokens = set(normalise(answer).split())
    for alias in aliases:
        expected = set(normalise(alias).split())
        if expected and 2 * len(tokens & expected) > _OVERLAP * (len(tokens) + len(expected)):
            return True
    return False


def normalise(answer: str) -> str:
    """Return an answer in lower case without punctuation, articles and double spaces, as in TriviaQA's evaluation.

    If nothing would be left (blood group A), the articles stay.
    """
    text = answer.lower().translate(_SPACED)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split() or text.split())


def _aliases(answer: Any) -> list[str]:
    """Return the normalised aliases that an answer lists; one text is one alias, or a list as tables write it."""
    if isinstance(answer, str):
        answer = cell_value(answer)
        answer = [answer] if isinstance(answer, str) else answer
    if isinstance(answer, dict):
        answer = [*(answer.get("normalized_aliases") or ()), *(answer.get("aliases") or ()), answer.get("value") or ""]
    return list(dict.fromkeys(filter(None, map(normalise, answer or ()))))
