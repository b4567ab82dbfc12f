"""Confidences in the text of a reply: a template says in which words, and by it they are found in later turns."""

from __future__ import annotations

import re
from itertools import chain, repeat

from lovec.tags import TagFormat
from lovec.types import LovecError

_LONGEST = 200  # characters of a template: it is written behind every sentence
_FIELD = re.compile(r"\{(score|(?:confidence|by_source)(?::\.[0-9][f%])?)\}")
_EXPECTED = "expected one such as ' [{confidence:.0%}]' or ' <confidence> {score} </confidence>'"


def check_template(template: str) -> str:
    """Return a template that `Inline` can use.

    Raises:
        LovecError: it has no number, nothing but numbers, or too many characters.
    """
    if template and not _FIELD.search(template):
        raise LovecError(
            "the template has neither {score} nor {confidence} nor {by_source}, the latter two with or without a "
            f"format, {_EXPECTED}"
        )
    if template and not _FIELD.sub("", template).strip():
        raise LovecError(
            f"the template has only numbers, which later turns could not tell from those of an answer, {_EXPECTED}"
        )
    if len(template) > _LONGEST:
        raise LovecError(f"the template has {len(template)} characters, expected at most {_LONGEST}")
    return template


class Inline:
    """Writes confidences into the text of a reply, and finds them again in a reply that a client sends back.

    Args:
        template: what stands right behind a sentence: ``{score}`` becomes the stated score, in the words of the scale,
            ``{confidence}`` the confidence and ``{by_source}`` that by the evidence, with two decimals or as a format
            says (``{confidence:.0%}``). "" writes nothing.
        tags: the tags of the model.

    Raises:
        LovecError: see ``check_template``.
    """

    def __init__(self, template: str, tags: TagFormat) -> None:
        self._template, self._tags = check_template(template), tags
        texts, self._fields = _FIELD.split(template)[::2], _FIELD.findall(template)
        words = "|".join(map(re.escape, sorted(tags.scale.words, key=len, reverse=True)))
        # No number can be read in two ways, so that hostile texts take no longer than others.
        scores = chain([f"({words})"], repeat(r"\1"))
        numbers = [next(scores) if field == "score" else _written_as(field) for field in self._fields]
        space = texts[-1][len(texts[-1].rstrip()) :]
        texts[-1] = texts[-1].rstrip()
        expression = "".join(re.escape(text) + number for text, number in zip(texts, [*numbers, ""], strict=True))
        expression += rf"(?:{re.escape(space)}|\Z)"  # a client may have stripped the text
        self._pattern = re.compile(rf"(?<=\S){expression}(?=\s|\Z)")  # behind a sentence, and before another or the end

    def tag(self, score: int | None, confidence: float | None, by_source: float | None = None) -> str:
        """Return what stands behind a sentence; "" where it has no number that the template asks for.

        Args:
            score: its stated score, an index into the scale; None where it has none.
            confidence: its confidence, in [0, 1]; None where it has none.
            by_source: that by the evidence, likewise.
        """
        numbers = {"score": score, "confidence": confidence, "by_source": by_source}
        if any(numbers[_name(field)] is None for field in self._fields):
            return ""

        def written(field: re.Match[str]) -> str:
            if score is not None and field[1] == "score":
                return self._tags.scale.words[score]
            return format(numbers[_name(field[1])], _format(field[1]))

        return _FIELD.sub(written, self._template)

    def restored(self, text: str) -> str:
        """Return an earlier reply as the model is to see it.

        Stated scores stand in the tags of the model again, as it wrote them. Confidences, which it did not write, are
        removed.

        Args:
            text: the reply, as a client sends it back.
        """
        if not self._fields:
            return text

        def restore(found: re.Match[str]) -> str:
            return f" {self._tags.tag(self._tags.scale.words.index(found[1]))}" if found.groups() else ""

        return self._pattern.sub(restore, text)


def _name(field: str) -> str:
    """Return the name of a field, without its format."""
    return field.partition(":")[0]


def _format(field: str) -> str:
    """Return the format of a confidence, as Python writes it."""
    return field.partition(":")[2] or ".2f"


def _written_as(field: str) -> str:
    """Return a regular expression for confidences in a format."""
    digits, unit = tuple(_format(field)[1:])
    fraction = rf"\.[0-9]{{{digits}}}" if digits != "0" else ""
    return f"(?:100|[0-9]{{1,2}}){fraction}%" if unit == "%" else f"[01]{fraction}"
