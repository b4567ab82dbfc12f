"""Split untagged answers into sentences.

The rules are for English prose as language models write it (paragraphs, lists, Markdown). They need no model, and take
linear time on any input. ``benchmarks/sentences.py`` measures how often they are right.

The rules of ``spans``, in order:

1. A line break ends a sentence, unless the line above ends in a comma or the line below begins in lower case. After a
   stop the rules below decide. A blank line, a list marker, a heading or a row of a table always starts a new
   sentence, and so does what follows the end of a paragraph, a list item or another block of HTML.
2. A run of ``. ! ? …``, with the closing quotes, brackets, emphasis, formulas and references such as ``[3]`` after it,
   ends a sentence if white space follows, and after that neither a lower-case letter nor a mark such as ``, ; : )``.
   Where the space is missing, or a displayed formula ends without a stop, it does if the next word often begins
   sentences.
3. It does not inside quotation marks or brackets that close soon: titles, quotations and asides stay whole.
4. It does not where it is a single full stop after an abbreviation. Some abbreviations never end a sentence ("Dr."),
   some only stand before a number ("No. 5"); after the others, after initials and acronyms ("Jr.", "V.", "U.S.") a
   sentence ends only if the next word often begins sentences ("He", "The", "In").
5. A piece without a letter or a digit (a rule, a row of stars) is joined to its neighbour, so that every sentence can
   be judged.
"""

# This file deals with dashes and quotation marks of every kind.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import yaml

_LONGEST_PAIR = 250  # characters between quotation marks or brackets that are kept whole
_LONGEST_SINGLE = 60  # the same for single quotation marks: apostrophes look like them
_LONGEST_WORD = 30  # characters before a stop that are searched for its word
_LONGEST_MARKER = 12  # characters of a list marker such as "> - (10."

_STOPS = ".!?…"
_WIDE_STOPS = "。｡．！？।॥۔؟։።"  # they end a sentence whether or not white space follows
_CLOSERS = "\"'”’“»)]}」』）】》*_`$"
_OPENERS = "\"'“‘«„([{「『（【《*_`¿¡"
_CONTINUES = ",;:.!?…)]}”»/%=<>|-–—"
_WIDE_CONTINUES = "，、；：とをがはのにもでや"  # after a closing quotation mark: commas, and Japanese particles
_BULLETS = "•*+"
_OPENED_BY = {'"': '"', "'": "'", "`": "`", "”": "“„", "“": "„", "’": "‘", "»": "«", ")": "(", "]": "["}
_OPENED_BY |= {"」": "「", "』": "『", "）": "（", "】": "【", "》": "《"}
_SINGLE = "'‘"  # their closing marks are also apostrophes
_BEFORE_QUOTE = "([{-–—/"

_SUPERSCRIPT = "[⁰¹²³⁴-⁹]{1,3}(?:[ ,⁻–-]?[⁰¹²³⁴-⁹]{1,3})*"
_REFERENCE = (
    r"(?:\[\d{1,3}(?:\s?[,;–—-]\s?\d{1,3})*\]|\[\^[\w-]{1,20}\]|\[(?:[a-z]|note \d{1,3}|citation needed)\]"
    rf"|【[^】\n]{{1,40}}】|{_SUPERSCRIPT})"
)
"""A reference such as ``[3]``, ``[1, 2]``, ``[1-3]``, ``[^1]``, ``¹``. After a stop it belongs to that sentence."""
_SPACED_REFERENCE = rf"[ \xa0](?!{_SUPERSCRIPT}){_REFERENCE}(?!\s+[a-zß-ÿа-я])"  # "[5] says so" begins a sentence

_END = re.compile(
    rf"(?P<mark>(?:(?P<stop>[{_STOPS}{_WIDE_STOPS}](?:[{_STOPS}{_WIDE_STOPS}{re.escape(_CLOSERS)}]|[ \xa0\u202f]»(?!\w)"
    rf"|\s?\\\]|</[a-z]{{1,6}}>)*)|\\\]|\$\$)(?:{_REFERENCE}|{_SPACED_REFERENCE})*)\s*"
)
_REFERENCES = re.compile(_REFERENCE)
_UNIT = re.compile(
    r"^[ \t]*(?P<fence>`{3,}|~{3,})(?P<rest>[^\n`]*)$|\\begin\{(?P<begin>\w+\*?)\}|\\end\{(?P<end>\w+\*?)\}"
    r"|(?P<math>\$\$)|(?P<left>\\\[)|(?P<right>\\\])",
    re.MULTILINE,
)
_REST_OF_LINE = re.compile(r"[^\S\n]*(?:\n|\Z)")
_BREAK = re.compile(r"\n\s*")
_HTML_BREAK = re.compile(
    r"(?:(?:</(?:p|div|h[1-6]|[uod]l|li|d[td]|t[rdh]|table|pre|blockquote|section|article)>|<[bh]r ?/?>)(?!`)\s*)+",
    re.IGNORECASE,
)
ITEM_MARKER = r"(?:[-*+•–—]|\(?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,5}|[IVX]{2,5})[.)])"
"""What an item of a list begins with, before white space: a bullet, a number or a letter."""
_MARKER = re.compile(rf"{ITEM_MARKER}\s|[#>|]")
_NUMBER = re.compile(r"(?:[#>*_\s]|[-+•]\s)*\(?(?:\d{1,3}|[ivx]{1,5}|[IVX]{2,5})")
_PAIRED = re.compile(r"""["“”„'‘’«»()\[\]「」『』（）【】《》`]""")
_LETTER = r"(?:[^\W_]|[\u0900-\u0963\u0966-\u097f])"  # vowel signs of Devanagari belong to words as well
_LAST_WORD = re.compile(rf"{_LETTER}+(?:\.{_LETTER}+)*\Z")
_NEXT_WORD = re.compile(r"[^\W\d_]+")
_ACRONYM = re.compile(r"[^\W\d_](?:\.[^\W\d_])+|[A-Z][a-z]?(?:\.[A-Z][a-z]{0,2})+")
_ROMAN = re.compile(r"[IVXLC]+")
_WORD = re.compile(r"[^\W_]")

_WORDS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""Lists of words, and regular expressions, which the file explains."""
_TITLES, _MIDDLE, _NUMBERED, _MAYBE, _STARTERS = (
    frozenset(_WORDS[name].split()) for name in ("titles", "middle", "numbered", "maybe", "starters")
)
_ENDS_WITH_STOP, _ORDINAL = (re.compile(_WORDS[name]) for name in ("ends_with_stop", "ordinal"))


def split_sentences(text: str) -> list[str]:
    """Split an untagged text into sentences, without white space at their edges.

    Only white space between sentences is lost, and splitting a sentence again returns it unchanged.

    Args:
        text: an answer of any length; tags are treated as words.

    Returns:
        Non-empty texts, in order; none for a text of white space.
    """
    return [text[start:end] for start, end in spans(text)]


def spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of every sentence: ``text[start:end]`` is the sentence.

    The spans are in order, do not overlap, have no white space at their edges, and cover all other characters.

    Args:
        text: as for ``split_sentences``.
    """
    pieces: list[tuple[int, int]] = []
    units = list(_units(text))
    begin = 0
    for unit in [unit for unit in units if _stands_alone(text, *unit)]:
        pieces += _split(text, begin, unit[0], units)
        pieces.append(unit)
        begin = unit[1]
    pieces += _split(text, begin, len(text), units)
    return _joined(text, pieces)


def ends_with_stop(line: str) -> bool:
    """Return whether a line ends with a stop and what closes behind it: quotation marks, brackets, references.

    Args:
        line: a text without white space at its end.
    """
    return any(stop["stop"] and stop.end() == len(line) for stop in _END.finditer(line))


class Places:
    """Finds the sentences of a text in it again, one after the other; their white space may differ from the text's.

    Args:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        self._places = [place for place, character in enumerate(text) if not character.isspace()]
        self._solid = "".join(text.split())
        self._end = 0

    def find(self, sentence: str) -> tuple[int, int] | None:
        """Return start and end of the next place of a sentence behind those found so far; None where it has none.

        Args:
            sentence: a sentence, or any other part of the text.
        """
        solid = "".join(sentence.split())
        start = self._solid.find(solid, self._end)
        if start < 0 or not solid:
            return None
        self._end = start + len(solid)
        return self._places[start], self._places[self._end - 1] + 1


def _split(text: str, begin: int, end: int, units: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the sentences of a part of the text; they do not end inside a unit."""
    for first, last in _blocks(text, begin, end, units):
        start = first
        for stop, following in _ends(text, first, last, units):
            yield start, stop
            start = following
        yield start, last


def _units(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of code blocks, LaTeX environments and displayed formulas, in order, without overlap.

    A code block whose fence is never closed reaches to the end of the text; other units need their end.
    """
    tokens = list(_UNIT.finditer(text))
    ends: dict[str, list[tuple[int, int]]] = {}  # tokens that can end a unit, by what it must have begun with
    for token in tokens:
        if not (token["rest"] or "").strip():
            begun = token["fence"] or token["end"] or token["math"] or (token["right"] and r"\[")
            ends.setdefault(begun or "", []).append(token.span())
    following = 0
    for token in tokens:
        begun = token["fence"] or token["begin"] or token["math"] or token["left"]
        if begun is None or token.start() < following:
            continue
        places = ends.get(begun, [])
        at = bisect_left(places, (token.end(),))
        if at == len(places) and not token["fence"]:
            continue
        following = places[at][1] if at < len(places) else len(text.rstrip())
        yield token.start() + len(token[0]) - len(token[0].lstrip()), following


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Return whether a unit begins and ends its lines, so that it is a sentence of its own."""
    begin = max(0, start - _LONGEST_WORD)
    above = text.rfind("\n", begin, start) + 1 or (0 if begin == 0 else start)
    begins_line = not text[above:start].strip() and (above == 0 or text[above - 1] == "\n")
    return begins_line and _REST_OF_LINE.match(text, end) is not None


def _inside(units: Sequence[tuple[int, int]], place: int) -> bool:
    """Return whether a place in the text lies inside a unit, after its first character."""
    before = bisect_left(units, (place,)) - 1
    return before >= 0 and place < units[before][1]


def _blocks(text: str, begin: int, end: int, units: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield start and end of the parts between hard breaks, without white space at their edges."""
    end = begin + len(text[begin:end].rstrip())
    first = end - len(text[begin:end].lstrip())
    for last, following in _hard_breaks(text, first, end, units):
        if first < last:
            yield first, last
            first = following
    if first < end:
        yield first, end


def _hard_breaks(text: str, first: int, end: int, units: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield where a part ends and the next one begins: at line breaks, and at the ends of blocks of HTML."""
    line = first
    found = [*_HTML_BREAK.finditer(text, first, end), *_BREAK.finditer(text, first, end)]
    for match in sorted(found, key=re.Match.start):
        if match.start() < line:  # a line break after a block of HTML
            continue
        above = text[line : match.start()].rstrip()
        if not _inside(units, match.start()):
            if match.re is _HTML_BREAK:
                yield match.start() + len(match[0].rstrip()), match.end()
            elif _is_hard(above, match):
                yield line + len(above), match.end()
        line = match.end()


def _is_hard(above: str, line_break: re.Match[str]) -> bool:
    """Return whether a line break ends a sentence, with or without a stop; ``above`` is the line before it."""
    below = line_break.end()
    if line_break[0].count("\n") > 1 or above.startswith(("#", "|")) or _MARKER.match(line_break.string, below):
        return True
    if above.endswith(",") or above.rstrip(_CLOSERS).endswith(tuple(_STOPS)):
        return False
    return above.endswith(":") or not line_break.string[below].islower()


def _ends(text: str, first: int, last: int, units: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the end of every sentence of a block but the last, and the start of the next one."""
    start = first
    reach = reach_of_pairs(text, first, last)
    for stop in _END.finditer(text, first, last):
        end, following = stop.end("mark"), stop.end()
        if following < last and reach(stop.start()) < end and not _inside(units, end) and _is_end(stop, start):
            yield end, following
            start = following


def reach_of_pairs(text: str, first: int, last: int) -> Callable[[int], int]:
    """Return what tells where the last of the pairs closes that open before a place; 0 where none does.

    Args:
        text: any text.
        first: where the part begins whose pairs count, see ``_pairs_of``.
        last: where it ends.
    """
    pairs = sorted(_pairs_of(text, first, last))
    opened = [here for here, _ in pairs]
    reach = list(accumulate((there for _, there in pairs), max, initial=0))
    return lambda place: reach[bisect_left(opened, place)]


def _pairs_of(text: str, first: int, last: int) -> list[tuple[int, int]]:
    """Return where quotation marks and brackets open and close that are soon closed.

    Args:
        text: any text.
        first: where the part begins that is searched.
        last: where it ends.
    """
    pairs: list[tuple[int, int]] = []
    waiting: list[tuple[str, int]] = []
    for match in _PAIRED.finditer(text, first, last):
        mark, here = match[0], match.start()
        before = text[here - 1] if here > first else " "
        after = text[here + 1] if here + 1 < last else " "
        openers = _OPENED_BY.get(mark, "")
        opener = next((o for o in openers if waiting and waiting[-1][0] == o), openers[:1])
        if mark == opener and (before.isspace() or before in _BEFORE_QUOTE):  # the same character opens and closes
            opener = "" if after.isalpha() or (mark in '"`' and not after.isspace()) else opener
        if not opener or (mark == "“" and not (waiting and waiting[-1][0] == "„")):
            waiting.append((mark, here))
            continue
        if opener in _SINGLE:
            if after.isalnum():
                continue
        else:  # what looked open was an apostrophe at the start of a word ("'Twas")
            while waiting and waiting[-1][0] in _SINGLE:
                waiting.pop()
        if waiting and waiting[-1][0] == opener:
            begin = waiting.pop()[1]
            if here - begin <= (_LONGEST_SINGLE if opener in _SINGLE else _LONGEST_PAIR):
                pairs.append((begin, here))
    return pairs


def _is_end(stop: re.Match[str], start: int) -> bool:
    """Return whether a stop outside quotes and brackets ends the sentence that begins at ``start``."""
    text, mark, following = stop.string, stop["mark"], stop.end()
    if stop["stop"] is None:  # a displayed formula without a stop
        return following > stop.end("mark") and _opens_sentence(text, following)
    if "……" in mark or any(character in mark for character in _WIDE_STOPS):
        return text[following] not in _WIDE_CONTINUES or mark[-1] in _WIDE_STOPS + "…"
    if text[following] in _BULLETS and _MARKER.match(text, following):
        return True
    word = following
    while word < following + 4 and text[word : word + 1] in tuple(_OPENERS):
        word += 1
    first = text[word : word + 1]
    if following == stop.end("mark"):  # a missing space, as in "in London.She" and "1815.She", or an address
        before = text[stop.start() - 1 : stop.start()]
        after_word = before.islower() or (before.isdigit() and not _is_number(text, start, stop.start()))
        return stop["stop"] in _STOPS and after_word and _opens_sentence(text, word)
    if first.strip() == "" or first in _CONTINUES:
        return False
    if first.islower() and not text[word + 1 : word + 2].isupper() and "\n" not in text[stop.end("mark") : following]:
        return False
    single = mark[0] == "." and not any(character in _STOPS for character in mark[1:])
    return not (single and _is_abbreviated(text, start, stop.start(), word))


def _opens_sentence(text: str, word: int) -> bool:
    """Return whether the word at index ``word`` is one that often begins sentences."""
    match = _NEXT_WORD.match(text, word)
    if not match or match[0].casefold() not in _STARTERS:
        return False
    initial = len(match[0]) == 1 and text[match.end() : match.end() + 1] == "."
    return match[0][0].isupper() and not initial


def _is_number(text: str, start: int, stop: int) -> bool:
    """Return whether what stands between is the number of a list item or a heading."""
    return stop - start <= _LONGEST_MARKER and _NUMBER.fullmatch(text, start, stop) is not None


def _is_abbreviated(text: str, start: int, stop: int, word: int) -> bool:
    """Return whether the full stop at ``stop`` belongs to the word before it; the next word is at ``word``."""
    if _is_number(text, start, stop):
        return True
    before = text[max(start, stop - _LONGEST_WORD) : stop]
    if _ENDS_WITH_STOP.search(before):
        return False
    match = _LAST_WORD.search(before)
    if not match:
        return False
    last, small = match[0], match[0].casefold()
    if (last[0].isupper() and last.capitalize() in _TITLES) or small in _MIDDLE:
        return True
    opens = _opens_sentence(text, word)
    if small in _NUMBERED:
        return text[word].isdigit() or (_ROMAN.match(text, word) is not None and not opens)
    hyphenated = re.search(r"\w-\Z", before[: match.start()]) is not None  # "Static-X."
    initial = len(last) == 1 and last.isalpha() and not hyphenated
    abbreviated = initial or small in _MAYBE or _ACRONYM.fullmatch(last) or _ORDINAL.search(before)
    return bool(abbreviated) and not opens


def _joined(text: str, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join pieces without a letter or a digit to the piece before, or to the first piece that has one."""
    joined: list[tuple[int, int]] = []
    begin = None
    for start, end in pieces:
        if _WORD.search(_REFERENCES.sub("", text[start:end])):
            joined.append((start if begin is None else begin, end))
            begin = None
        elif joined:
            joined[-1] = (joined[-1][0], end)
        elif begin is None:
            begin = start
    return joined if begin is None else [(begin, pieces[-1][1])]
