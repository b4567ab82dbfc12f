"""Texts to pass on: doubted sentences are left out of a tagged text, or worded as uncertain.

A text is changed only where something is doubted. What stays has the bytes that it had, and so has the white space
around it; of the white space around what is left out, the widest stays.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, compress, groupby, pairwise
from typing import Literal, NamedTuple, TypeAlias

from lovec.display import band
from lovec.tags import thought_length
from lovec.text.clauses import shortened, whole_confidence
from lovec.text.documents import kept_blocks
from lovec.text.sentences import ITEM_MARKER, Places
from lovec.types import STATEMENT, Action, Keeps, PartKind, Record, Sentence, ThresholdBy

Revise: TypeAlias = Literal["drop", "hedge"]
"""What becomes of doubted sentences: they are left out, or worded as uncertain."""

PLACE = "{sentence}"
"""What a phrase has where the sentence stands."""

PHRASES: Mapping[str, str] = {
    "low": f"This is doubtful: {PLACE}",
    "middle": f"This is uncertain: {PLACE}",
    "high": f"This is likely, but not certain: {PLACE}",
    "none": f"This is unconfirmed: {PLACE}",
}
"""How a doubted sentence is worded, by the band of its confidence (``lovec.display.BANDS``)."""

REVISED = "revised"
"""Key of ``Record.meta``: the revised text."""

_MARKER = re.compile(
    rf"(?:(?!\(?[A-Z]\.){ITEM_MARKER}[^\S\n]+(?:\[[ xX]\][^\S\n]+)?"  # "A. Lovelace" begins with a name
    r"|>[^\S\n]*(?:\n[^\S\n]*(?=>))?)*"  # with the empty lines of a quotation
)
_BEFORE_ITEM = re.compile(r"[\s>]*")
_EMPTY_QUOTE = re.compile(r"[> \t]*>")  # a line between two paragraphs of a quotation
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-zA-Z][\w-]*)(?:\s[^<>]*)?>")
_LEFT_OUT = "[…]"  # stands for the words of a list item of which only what is indented below them stays
_LOWEST_LEVEL = 7  # of a heading that is bold type only; those of Markdown are 1 to 6
_LABEL_LEVEL = 8


class Revised(NamedTuple):
    """A revised text.

    Attributes:
        text: what remains of the text.
        actions: what became of each sentence of the record.
        shown: the sentences as they read in the text, and between them those that were dropped; each with its
            ``revision``.
    """

    text: str
    actions: tuple[Action, ...]
    shown: tuple[Sentence, ...]


def revise(
    record: Record, keeps: Keeps, how: Revise, phrase: str | None = None, by: ThresholdBy = "knowledge"
) -> Revised:
    """Return a tagged text without its doubted sentences, or with these worded as uncertain.

    The text is the answer of the record, or its sentences one after the other where these are not all of the answer; a
    thought before it is no part of it. What is not doubted, and what states nothing, stays as it is. With "drop":

    - A heading goes if all statements of its section go and nothing else is left there; so does a line such as "Early
      life:" before its list.
    - Of a sentence in clauses, what may stay of it stays, see ``lovec.text.clauses.shortened``.
    - The marker of a list item stays where its first sentence goes and others of the item stay; where these are
      paragraphs or lists below it, "[…]" stands behind the marker.
    - An element of HTML that sentences stand in keeps both its tags where something else is left in it, and else goes.

    With "hedge", a sentence with a doubted clause is worded as uncertain as a whole, by its lowest confidence.

    Args:
        record: sentences with confidences, without tags.
        keeps: tells whether a sentence or clause is not doubted.
        how: what becomes of doubted ones.
        phrase: a text with ``{sentence}`` in it, in whose place the sentence stands; None takes that of ``PHRASES`` for
            its confidence.
        by: which confidence words it.
    """
    text, spans = _located(record)
    parts = list(_parts(text, record.sentences, spans))
    for part in parts:
        doubted = [not keeps(unit) for unit in part.sentences]
        if not any(doubted):
            continue
        if how == "drop":
            _drop(part, text, doubted)
        else:
            _hedge(part, doubted, phrase, by)
    if how == "drop":
        _drop_elements(text, parts)
        _drop_headings(text, parts)
        _drop_empty_lines(text, parts)
    found = {at: action for part in parts for at, action in zip(part.units, part.actions, strict=False)}
    actions = tuple(found.get(at, "dropped") for at in range(len(spans)))  # a tag without words is no part
    return Revised(_assembled(text, parts), actions, tuple(sentence for part in parts for sentence in part.shown))


@dataclass(slots=True)
class _Part:
    """A sentence with its clauses, or another part of a text.

    Attributes:
        start: its place in the text.
        end: where it ends.
        kind: what it is.
        marker: the marker of the list item or quotation that it begins; "" elsewhere.
        indentation: width of the white space before its line, and behind each mark of a quotation around it.
        spans: start and end of the sentence, or of each of its clauses.
        units: their indices among the sentences of the record; none for a heading that a sentence of an answer that a
            model tagged itself begins with.
        sentences: the sentence, or its clauses.
        text: what stands in its place; "" is nothing.
        actions: what became of each of its sentences.
        shown: as in `Revised`.
    """

    start: int
    end: int
    kind: PartKind
    marker: str
    indentation: tuple[int, ...]
    spans: Sequence[tuple[int, int]]
    units: Sequence[int]
    sentences: Sequence[Sentence]
    text: str
    actions: list[Action] = field(init=False)
    shown: list[Sentence] = field(init=False)

    def __post_init__(self) -> None:
        self.became("kept")

    def became(self, action: Action) -> None:
        """Say what became of all of it."""
        self.actions = [action] * len(self.sentences)
        self.shown = [replace(sentence, revision=action) for sentence in self.sentences]

    @property
    def is_gone(self) -> bool:
        """Whether it was left out."""
        return not self.text

    @property
    def item(self) -> str:
        """The marker of its list item without number and letter; "" where it begins none."""
        return re.sub(r"\w", "", "".join(self.marker.replace(">", " ").split()[:1]))

    def column(self, other: _Part) -> tuple[int, ...]:
        """Return where it begins in the quotation that another part stands in; nothing if it is not in there."""
        quotes = len(other.indentation) - 1
        return self.indentation[quotes : quotes + 1]

    def is_below(self, item: _Part) -> bool:
        """Return whether it belongs to a list item that begins before it: it is indented deeper."""
        return self.column(item) > item.column(item)


def _located(record: Record) -> tuple[str, list[tuple[int, int]]]:
    """Return the text, and start and end of every sentence in it; equal ones where a sentence has no words."""
    text = record.answer[thought_length(record.answer, not record.given) :]
    places, spans, end = Places(text), [], 0
    for sentence in record.sentences:
        span = places.find(sentence.text) if sentence.text else (end, end)
        if span is None or text[end : span[0]].strip():
            break
        spans.append(span)
        end = span[1]
    else:
        if not text[end:].strip():
            return text, spans
    texts = [sentence.text for sentence in record.sentences]
    ends = [*accumulate((len(text) + 1 for text in texts), initial=0)]
    return " ".join(texts), [(start, following - 1) for start, following in pairwise(ends)]


def _parts(text: str, sentences: Sequence[Sentence], spans: Sequence[tuple[int, int]]) -> Iterator[_Part]:
    """Yield the parts of a text: sentences with all their clauses, and the others."""
    before = 0
    indentation: tuple[int, ...] = (0,)
    elements = [(begin.start(), end.start()) for begin, end in _elements(text)]
    partners = {one: other for pair in elements for one, other in (pair, pair[::-1])}
    numbered = ((at, sentence) for at, sentence in enumerate(sentences) if sentence.text)
    for _, group in groupby(numbered, lambda one: (one[1].part_of is None and one[0], one[1].part_of)):
        units, own = zip(*group, strict=True)
        places = [spans[at] for at in units]
        (start, first_end), end = places[0], places[-1][1]
        here = start
        begins_line = start == 0 or "\n" in text[before:start]
        for begin, until, kind in _blocks_before(text[start:end], begins_line) if own[0].is_statement else ():
            here = start + until
            block = Sentence(text[start + begin : here], kind=kind)
            marker = _marker(text, start + begin, here)
            indentation = _indentation(text, start + begin, marker)
            yield _Part(start + begin, here, kind, marker, indentation, (), (), (block,), block.text)
        start = end - len(text[here:end].lstrip())
        tags_before, tags_behind = _outer_tags(text, start, end, partners) if own[0].is_statement else ([], [])
        for place in tags_before:
            if "\n" in text[before : place[0]]:
                indentation = _indentation(text, place[0], "")
            yield _tag_part(text, place, indentation)
            before = place[1]
        if tags_before:
            start = end - len(text[before:end].lstrip())
        if tags_behind:
            end = start + len(text[start : tags_behind[0][0]].rstrip())
        places[-1] = places[-1][0], end
        places[0] = start, min(first_end, end)
        marker = ""
        if start == 0 or "\n" in text[before:start]:
            marker = _marker(text, start, end)
            indentation = _indentation(
                text, start, text[start:end] if _EMPTY_QUOTE.fullmatch(text, start, end) else marker
            )
        shown = [replace(sentence, text=text[slice(*place)]) for sentence, place in zip(own, places, strict=True)]
        yield _Part(start, end, own[0].kind, marker, indentation, places, units, shown, text[start:end])
        for place in tags_behind:
            yield _tag_part(text, place, indentation)
        before = tags_behind[-1][1] if tags_behind else end


def _elements(text: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Return the first and the last tag of every element of HTML that is ended, inner elements first."""
    found, opened = [], []
    unclosed: Counter[str] = Counter()
    for tag in _TAG.finditer(text):
        name = tag["name"].lower()
        if not tag["end"]:
            opened.append((name, tag))
            unclosed[name] += 1
        while tag["end"] and unclosed[name]:
            inner, begin = opened.pop()
            unclosed[inner] -= 1
            if inner == name:
                found.append((begin, tag))
                break
    return found


def _outer_tags(
    text: str, start: int, end: int, partners: Mapping[int, int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the places of the tags that a sentence begins with, and ends with, of elements that are not all in it.

    Args:
        text: the text.
        start: where the sentence begins.
        end: where it ends.
        partners: where the other tag of an element begins, by the place of one.
    """
    begin, until = start, end

    def is_outer(place: int) -> bool:
        return place in partners and not begin <= partners[place] < until

    before: list[tuple[int, int]] = []
    while is_outer(start) and (tag := _TAG.match(text, start, end)):
        before.append(tag.span())
        start = end - len(text[tag.end() : end].lstrip())
    behind: list[tuple[int, int]] = []
    while is_outer(at := text.rfind("<", start, end)) and (tag := _TAG.fullmatch(text, at, end)):
        behind.insert(0, tag.span())
        end = start + len(text[start:at].rstrip())
    return before, behind


def _tag_part(text: str, place: tuple[int, int], indentation: tuple[int, ...]) -> _Part:
    """Return a tag of HTML that a sentence begins or ends with as a part of its own."""
    tag = Sentence(text[slice(*place)], kind="mark")
    return _Part(*place, tag.kind, "", indentation, (), (), (tag,), tag.text)


def _marker(text: str, start: int, end: int) -> str:
    """Return the markers of list items and quotations that a part at the beginning of a line begins with."""
    found = _MARKER.match(text, start, end)
    return "" if found is None or found.end() == end else found[0]


def _indentation(text: str, start: int, marker: str) -> tuple[int, ...]:
    """Return the indentation of a part at the beginning of a line, see `_Part`."""
    line = (text[text.rfind("\n", 0, start) + 1 : start] + marker).rpartition("\n")[2]
    return tuple(map(len, _BEFORE_ITEM.match(line)[0].expandtabs(4).split(">")))  # type: ignore[index]


def _blocks_before(sentence: str, begins_line: bool) -> Iterator[tuple[int, int, PartKind]]:
    """Yield start, end and kind of the headings and other blocks that a sentence of a tagged answer begins with.

    Args:
        sentence: the sentence.
        begins_line: whether it begins a line; where it does not, what its first line has is no block.
    """
    if "\n" not in sentence:
        return
    here = 0
    for start, end, kind in kept_blocks(sentence, begins=False, begins_line=begins_line):
        if sentence[here:start].strip() or not sentence[end:].strip():
            break
        yield start, end, kind
        here = end


def _drop(part: _Part, text: str, doubted: Sequence[bool]) -> None:
    """Leave out what is doubted of a sentence, and all of it where nothing may stay."""
    left = shortened([text[slice(*span)] for span in part.spans], doubted)
    part.became("dropped")
    part.text = "" if left is None else left.text
    if left is not None:
        stay = slice(left.begin, left.end)
        part.actions[stay] = ["kept"] * (left.end - left.begin)
        part.shown[stay] = [_shown(left.text, part.sentences[stay], whole_confidence, "kept")]


def _hedge(part: _Part, doubted: Sequence[bool], phrase: str | None, by: ThresholdBy) -> None:
    """Word a sentence as uncertain."""
    units = list(compress(part.sentences, doubted))
    template = PHRASES[band(_lowest([unit.confidence_by(by) for unit in units]))] if phrase is None else phrase
    part.became("hedged")
    part.text = part.marker + template.replace(PLACE, part.text[len(part.marker) :])
    part.shown = [_shown(part.text, units, _lowest, "hedged")]


def _lowest(confidences: Sequence[float | None]) -> float | None:
    """Return the lowest of confidences; None where one is not known."""
    known = [confidence for confidence in confidences if confidence is not None]
    return min(known) if len(known) == len(confidences) else None


def _shown(
    text: str,
    units: Sequence[Sentence],
    joined: Callable[[Sequence[float | None]], float | None],
    revision: Action,
) -> Sentence:
    """Return what stands in the place of sentences or clauses, with what their confidences come to."""
    confidence, by_source = joined([unit.confidence for unit in units]), joined([unit.by_source for unit in units])
    return Sentence(text, confidence=confidence, by_source=by_source, revision=revision)


def _drop_elements(text: str, parts: Sequence[_Part]) -> None:
    """Leave out the tags of elements of HTML of which all else is left out."""
    starts, ends = [part.start for part in parts], {part.end for part in parts}
    gone = [part.start for part in parts if part.is_gone]
    stay = [part.start for part in parts if _TAG.sub("", part.text).strip()]
    for begin, end in reversed(_elements(text)):  # outer elements first
        first, last = (bisect_left(starts, place) for place in (begin.start(), end.end()))
        if first == last or parts[first].is_gone or starts[first] != begin.start() or end.end() not in ends:
            continue
        left, lost = (bisect_left(places, begin.start()) < bisect_left(places, end.end()) for places in (stay, gone))
        for part in parts[first:last] if lost and not left else ():
            part.became("dropped")
            part.text = ""


def _drop_headings(text: str, parts: Sequence[_Part]) -> None:
    """Leave out headings and labels whose whole section is left out, the inner ones first."""
    for at in reversed(range(len(parts))):
        if parts[at].kind not in ("heading", "label"):
            continue
        section = list(_section(text, parts, at))
        stays = any(not part.is_gone and part.kind != "mark" for part in section)
        if not stays and any(part.kind == STATEMENT for part in section):
            parts[at].became("dropped")
            parts[at].text = ""


def _drop_empty_lines(text: str, parts: Sequence[_Part]) -> None:
    """Leave out empty lines of a quotation beside paragraphs that went, but for one between two that stay."""
    last: _Part | None = None  # that stays
    for at, part in enumerate(parts):
        if _EMPTY_QUOTE.fullmatch(part.text):
            above = _paragraph(text, (parts[place] for place in range(at, -1, -1)))
            below = _paragraph(text, (parts[place] for place in range(at, len(parts))))
            if any(around and all(one.is_gone for one in around) for around in (above, below)):
                is_between = last is not None and not _BLANK_LINE.search(text, last.end, part.start)
                if not (is_between and any(not one.is_gone for one in below)):
                    part.became("dropped")
                    part.text = ""
        if not part.is_gone:
            last = part


def _paragraph(text: str, parts: Iterable[_Part]) -> list[_Part]:
    """Return the parts of the paragraph next to the first part, which is an empty line of a quotation."""
    found: list[_Part] = []
    for before, part in pairwise(parts):
        begin, until = sorted((before, part), key=lambda one: one.start)
        if _BLANK_LINE.search(text, begin.end, until.start) or _EMPTY_QUOTE.fullmatch(text, part.start, part.end):
            break
        found.append(part)
    return found


def _section(text: str, parts: Sequence[_Part], at: int) -> Iterator[_Part]:
    """Yield the parts that belong to a heading or a label, in a list or quotation those of its item or quotation."""
    head, level = parts[at], _level(text, parts[at])
    for before, part in pairwise(parts[at:]):
        if not (head.item and part.is_below(head)):
            if _ends_item(head, before, part) or (_is_on_its_own(head, part) and _level(text, part) <= level):
                return
            apart = before is not head and _BLANK_LINE.search(text, before.end, part.start) is not None
            if level == _LABEL_LEVEL and apart and not part.marker:
                return
        yield part


def _ends_item(head: _Part, before: _Part, part: _Part) -> bool:
    """Return whether a part that is not below a heading or label stands outside of its list item or quotation.

    Args:
        head: the heading or label.
        before: the part before the part.
        part: a part behind it.
    """
    column, own = part.column(head), head.column(head)
    if not column or (head.item and before.is_below(head)):
        return True
    return bool(part.item) and (column < own or (column == own and part.item == head.item))


def _is_on_its_own(head: _Part, part: _Part) -> bool:
    """Return whether a part is a heading or label in no list, and in no quotation that the first one is not in."""
    is_quoted = len(part.indentation) > len(head.indentation)
    return part.kind in ("heading", "label") and not (part.item or is_quoted)


def _level(text: str, part: _Part) -> int:
    """Return the level of a heading: 0 for a title without marks, 1 to 6 as in Markdown, more for lesser ones."""
    original = text[part.start + len(part.marker) : part.end]
    if part.kind == "label":
        return _LABEL_LEVEL
    if original.startswith("#"):
        return len(original) - len(original.lstrip("#"))
    if original.startswith(("*", "_")):
        return _LOWEST_LEVEL
    underline = original.rpartition("\n")[2] if "\n" in original else ""
    return {"=": 1, "-": 2}.get(underline.lstrip("> \t")[:1], 0)


def _assembled(text: str, parts: Sequence[_Part]) -> str:
    """Return the text of what is left of its parts."""
    pieces: list[str] = []
    gaps: list[str] = []  # white space since the last part that stays
    item, end = None, 0  # a list item or quotation whose first sentence went
    for at, part in enumerate(parts):
        gap, end = text[end : part.start], part.end
        if item is None or not _goes_on(item, part, gap):
            item = None
            gaps.append(gap)
        if part.is_gone:
            if part.marker:
                gaps, item = [_merged(gaps, first=not pieces)], part
            if part.item and _is_left_below(text, parts, at):
                pieces.append(f"{gaps[0]}{part.marker}{_LEFT_OUT}")
                gaps, item = [], None
            continue
        pieces.append(f"{_merged(gaps, first=not pieces)}{'' if item is None else item.marker}{part.text}")
        gaps, item = [], None
    return "".join([*pieces, text[end:]]) if pieces else ""


def _goes_on(item: _Part, part: _Part, gap: str) -> bool:
    """Return whether a part belongs to the first paragraph of a list item or quotation, as the part before it does.

    Args:
        item: the part that begins the item.
        part: a part behind it.
        gap: the white space before the part.
    """
    return not part.marker and not _BLANK_LINE.search(gap) and ("\n" not in gap or part.is_below(item))


def _is_left_below(text: str, parts: Sequence[_Part], at: int) -> bool:
    """Return whether all of the first paragraph of a list item went, and something that is indented below it stays."""
    item, goes_on = parts[at], True
    for here in range(at + 1, len(parts)):
        part, gap = parts[here], text[parts[here - 1].end : parts[here].start]
        goes_on = goes_on and _goes_on(item, part, gap)
        if not (goes_on or part.is_below(item)):
            return False
        if not part.is_gone:
            return not goes_on
    return False


def _merged(gaps: Sequence[str], first: bool) -> str:
    """Return the white space that stays between two parts: the widest, with the indentation of the last line.

    Args:
        gaps: the white space around each part that was left out between them, in order.
        first: whether they stand at the beginning of the text, whose white space stays.
    """
    if len(gaps) == 1:
        return gaps[0]
    widest = gaps[0] if first else max(reversed(gaps), key=lambda gap: (gap.count("\n"), bool(gap)))
    lines, newline, indentation = widest.rpartition("\n")
    if "\n" in gaps[-1] and (newline or first):
        indentation = gaps[-1].rpartition("\n")[2]
    return f"{lines}{newline}{indentation}"
