"""TriviaQA, short form: a question, a few words for an answer, and whether they are right (Joshi et al. 2017)."""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable
from typing import Any

from lovec.datasets.hub import HubDataset
from lovec.tags import DEFAULT_TAGS
from lovec.types import LovecError, Record

HUB = HubDataset("mandarjoshi/trivia_qa", "validation", ("question", "question_id", "answer"), "rc.nocontext")
"""The validation split: the answers of the test split are withheld."""

DOMAIN = "TriviaQA"

SHORT_FORM = f"""\
{{question}}

Reply with the answer alone: a name, a number or a few words, not a whole sentence. Behind it, write how certain you \
are that it is correct, as a whole number from 0 (almost certainly wrong) to 10 (almost certainly right), in the \
format {DEFAULT_TAGS.open} X {DEFAULT_TAGS.close}, and stop there."""
"""The user turn. The paper prints none for short answers; this one is ours."""

_OVERLAP = 0.5
_SPACED = str.maketrans({mark: " " for mark in string.punctuation + "\u2018\u2019\u00b4"})


def read_triviaqa(path: str | os.PathLike[str] | None = None) -> list[Record]:
    """The questions with every answer that counts as right.

    The data set has a question once for the web and once for Wikipedia; it is asked once, and what either counts as
    right is right.

    Args:
        path: a copy of the data set, see ``HubDataset.table``; ``answer`` may also be a plain list of aliases. None
            asks the hub.

    Returns:
        Records whose ``meta`` holds aliases (normalised), the bare question and domain.

    Raises:
        LovecError: the data set is not there or of another form, or a question has no answer.
    """
    records: dict[str, Record] = {}
    for row in HUB.table(path).select_columns(list(HUB.columns)):
        name, question, aliases = row["question_id"], row["question"].strip(), _aliases(row["answer"])
        if not aliases:
            raise LovecError(
                f"question {name!r} of {path or HUB.name} has no answer; take the validation split (the test split "
                "withholds its answers)"
            )
        if name in records:
            known = records[name].meta["aliases"]
            known += [alias for alias in aliases if alias not in known]
            continue
        meta = {"aliases": aliases, "asked": question, "domain": DOMAIN}
        records[name] = Record(name, SHORT_FORM.format(question=question), meta=meta)
    return list(records.values())


def matches(answer: str, aliases: Iterable[str]) -> bool:
    """Whether an answer is right: its best token F1 over the aliases exceeds 0.5.

    Answer and aliases are normalised alike; tokens are compared as sets, F1 = 2 |A & B| / (|A| + |B|).

    Args:
        answer: what the model wrote, without its tag.
        aliases: answers that count as right.
    """
    given = set(normalise(answer).split())
    for alias in aliases:
        wanted = set(normalise(alias).split())
        if wanted and 2 * len(given & wanted) > _OVERLAP * (len(given) + len(wanted)):
            return True
    return False


def normalise(answer: str) -> str:
    """Lower case without punctuation, articles and double spaces, as TriviaQA's own evaluation does it.

    Where nothing is left (blood group A), the articles stay.
    """
    text = answer.lower().translate(_SPACED)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split() or text.split())


def _aliases(answer: Any) -> list[str]:
    if isinstance(answer, dict):
        answer = [*(answer.get("normalized_aliases") or ()), *(answer.get("aliases") or ()), answer.get("value") or ""]
    return list(dict.fromkeys(filter(None, map(normalise, answer or ()))))
