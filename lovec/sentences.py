"""Where the sentences of an untagged answer begin and end, and whether an answer declines to answer.

Rules for English prose as language models write it (paragraphs, lists, Markdown): no model, no files, no network, and
linear time on any input. ``benchmarks/sentences.py`` measures how often both are right.

The rules of ``spans``, in their order:

1. A line break ends a sentence, unless the line above ends in a comma, or the line below goes on in small letters.
   Behind a stop the rules below decide. A blank line, a list marker, a heading or a row of a table always begins anew.
2. A run of ``. ! ? …`` ends a sentence, closing quotes, brackets, emphasis and references such as ``[3]`` included, if
   white space follows, and then neither a small letter nor a mark that goes on (``, ; : )``).
3. Not inside quotation marks or brackets that close soon: titles, quotations and asides stay whole.
4. Not after a single full stop behind an abbreviation. Some never end a sentence ("Dr."), some only take a number
   ("No. 5"); after the others, after initials and acronyms ("Jr.", "V.", "U.S.") a sentence ends only if the next word
   is one that opens sentences ("He", "The", "In").
5. A piece without a letter or a digit (a rule, a row of stars) joins its neighbour, so that every sentence can be
   judged.
"""

# Dashes and quotation marks of every kind are the subject here.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from collections.abc import Iterator

_LONGEST_PAIR = 250  # characters between quotation marks or brackets that are kept whole
_LONGEST_SINGLE = 60  # the same for single quotation marks: apostrophes look like them
_LOOK = 30  # characters of the word before a stop that are looked at
_LONGEST_MARKER = 12  # characters of a list marker such as "> - (10."

_STOPS = ".!?…"
_WIDE_STOPS = "。！？"
_CLOSERS = "\"'”’»)]}」』*_"
_OPENERS = "\"'“‘«([{「『*_¿¡"
_GOES_ON = ",;:.!?…)]}”»/%=<>|-–—"
_BULLETS = "•*+"
_OPENED_BY = {'"': '"', "'": "'", "”": "“", "’": "‘", "»": "«", ")": "(", "]": "["}
_SINGLE = "'‘"  # closed by what is an apostrophe elsewhere
_BEFORE_QUOTE = "([{-–—/"

_END = re.compile(
    rf"(?P<mark>[{_STOPS}{_WIDE_STOPS}][{_STOPS}{_WIDE_STOPS}{re.escape(_CLOSERS)}]*(?:\[\d{{1,3}}\])*)\s*"
)
_BREAK = re.compile(r"\n\s*")
_MARKER = re.compile(r"[-*+•–—]\s|\(?\d{1,3}[.)]\s|[#>|]")
_NUMBER = re.compile(r"(?:[#>*_\s]|[-+•]\s)*\(?\d{1,3}")
_PAIRED = re.compile(r"""["“”'‘’«»()\[\]]""")
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")
_NEXT_WORD = re.compile(r"[^\W\d_]+")
_ACRONYM = re.compile(r"[^\W\d_](?:\.[^\W\d_])+|[A-Z][a-z]?(?:\.[A-Z][a-z]{0,2})+")
_ROMAN = re.compile(r"[IVXLC]+")
_WORD = re.compile(r"[^\W_]")

_TITLES = frozenset(
    "Adm Brig Capt Cdr Cmdr Col Cpl Dr Drs Fr Gen Gov Hon Lt Maj Messrs Mlle Mme Mr Mrs Ms Msgr Mt Mx Pres Prof Profs "
    "Pvt Rep Reps Rev Sen Sens Sgt Supt".split()
)
"""Before a name: never the end."""
_MIDDLE = frozenset("approx ca cf eg e.g ie i.e feat viz vs".split())
"""Never the end, by their meaning."""
_NUMBERED = frozenset("ch chap fig figs no nos op pp vol vols".split())
"""Abbreviations before a number, words otherwise."""
_MAYBE = frozenset(
    "al assn assoc ave bldg blvd bros co corp dept est esq ft inc jr llc ltd plc rd sr st univ "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
"""At the end as often as not."""
_STARTERS = frozenset(
    "a about according additionally after also although an and another any apart as aside at because before besides "
    "beyond born both but by consequently currently despite due during each even eventually every finally following "
    "for from further furthermore he her hers his how however i if in initially instead it its later many meanwhile "
    "more moreover most much my nevertheless notably on once only other others our outside over overall recently she "
    "similarly since some subsequently such that the their then there therefore these they this those though through "
    "throughout thus to today together ultimately under unlike until upon we what when where whether which while who "
    "with within without yet".split()
)
"""Words that open sentences and are hardly ever names."""

_DECLINES = re.compile(
    r"""
    [\s*_#>]*
    (?:[^.!?"“”]{0,120}?(?:[,;:]\**|\s[–—-])\s)?                             # "As an AI language model,"
    (?:(?:[Ii]t\s(?:appears|seems)(?:\sthat)?|I\sregret\sto\s\w+(?:\syou)?(?:\sthat)?)\s)?
    (?:(?:[Bb]ut|[Aa]nd|[Ss]o|[Tt]hat|[Hh]owever|[Uu]nfortunately|[Ss]adly|[Cc]urrently)\s)*
    (?:
      (?:I(?:'m|\sam)|[Ww]e(?:'re|\sare))\s(?:\w+\s)?(?:sorry|afraid)(?=[,.!—–-]|\s(?:but|for|that|to|I|we|there|this)\b)
    | [Ss]orry(?:,\s(?:but|I|we|no|there|that|this)|\s(?:but|I)|\s(?:for|about)\s(?:the|any|that))\b
    | (?:I|[Ww]e)\s(?:\w+\s)?apologi[sz]e\b
    | [Mm]y\sapologies\b
    | (?:I|[Ww]e)(?:'m|'re|'ve)?\s
      (?:(?:am|are|was|were|do|have|really|currently|also|just|simply|actually|personally|still|unfortunately)\s)*
      (?:
        (?:can(?:no|')t|can\snot|could(?:n't|\snot)|won't\sbe\sable\sto|(?:unable|(?:wasn't|weren't|not)\sable)\sto)\s(?:\w+ly\s)?
        (?: (?:answer|assist|verify|confirm|recall|recogni[sz]e|provide(?!\sfor)|identify|determine|comment|browse
              |help\s(?:with|you))\b
          | (?:find|locate|give|tell|share|write|create|see|say|speak|offer|produce|access|retrieve|generate)\b
            [^.!?]{0,60}?\b(?:information|info|details?|data|records?|references?|sources?|results?|anyone|anything|person|people
                |individual|figure|bio|biography|profile|entry|page|article|answer|response|much|about|who|named?)\b)
      | (?:don't|do\snot|not|didn't|did\snot)\s(?:\w+ly\s|even\s)?
        (?: (?:have|possess|hold|find|see)\b[^.!?]{0,60}?
            \b(?:information|info|data|details|knowledge|records?|access|context|answer|biograph\w+|idea|anything|facts
                |results)\b
          | know(?=[.,;!]|\s(?:who|what|anything|much|of|enough|about|if|whether|that|this|the\sanswer|him|her)\b|$)
          | recogni[sz]e\b | recall\b)
      | (?:have|found|find|see|know\sof|possess|hold)\s(?:no|not\senough|insufficient|absolutely\sno)\s
        (?:[\w-]+\s){0,4}?(?:information|info|data|details|knowledge|records?|access|context|answer|idea|person|one|results)\b
      | lack\s(?:\w+\s){0,3}?(?:information|data|details|knowledge|context)\b
      | (?:would\s)?(?:need|require)\s(?:more|additional|further)\s
      | (?:not|un)\s?(?:familiar\swith|aware\sof|(?:sure|certain)\s(?:who|what|which|if|whether|about))\b
      | (?:haven't|not|never)\s(?:heard\sof|come\sacross|encountered|been\sable\sto)\b
      | (?:must\sdecline|prefer\snot|would\srather\snot)\b
      | (?:just|only|merely)\san?\s(?:AI|(?:large\s)?language\smodel|chatbot)\b[^.!?]{0,40}?
        \b(?:cannot|can't|don't|not)\b
      )
    | (?:[Uu]nable|[Nn]ot\sable)\sto\s(?:find|locate|provide|verify|retrieve)\b[^.!?]{0,40}?
      \b(?:information|info|data|details|records?|references?|sources?|results?)\b
    | [Tt]here(?:'s|\sis|\sare|\sseems\sto\sbe|\sappears\sto\sbe|\sisn't|\saren't)\s
      (?:\w+\s)?(?:no|any|not\s(?:any|enough)|insufficient)\s(?:[\w-]+\s){0,4}?(?:information|info|data|details)\b
    | [Nn]o\s(?:[\w-]+\s){0,4}?(?:information|info|results|data|details)\b[^.!?]{0,80}?\b(?:found|available|located)\b
    | (?:[Bb]iographical\s)?[Ii]nformation\s(?:about|on|regarding)\b[^.!?]{0,80}?\b(?:isn't|is\snot|could\snot\sbe)\s
      (?:\w+ly\s)?(?:available|found|accessible)\b
    | [Mm]y\s(?:knowledge|training|database|information|records|sources|search)\b[^.!?]{0,60}?
      (?:n't|\snot|\sno|\slimited|\sprevents\sme)\b
    | [Ii]t(?:'s|\sis|\swas)\s(?:not\s|im)possible\sfor\sme\b
    | [^.!?"“”]{0,80}?(?:n't|\snot)\s(?:ring\sa\sbell|(?:\w+\s)?(?:available|known|familiar)\sto\sme)\b
    | (?:[Cc]ould|[Cc]an|[Ww]ould)\syou\s(?:please\s)?(?:provide|clarify|specify|share|give|tell|confirm)\b
    | [Pp]lease\s(?:provide|clarify|specify|share|give)\b
    | [^.!?"“”]{0,80}?\bnot\s(?:someone|anyone|an?\s(?:\w+\s)?(?:person|name|figure|individual|topic|term))\b
      [^.!?]{0,20}?\bI\b
    )
    """,
    re.VERBOSE,
)
"""Openings of a sentence that declines; what needs a small letter is not taken for a title ("I'm Sorry")."""
_TO_READER = re.compile(
    r"\b(?:I|[Mm]e|[Mm]y|[Ww]e|[Oo]ur|[Yy]ou|[Yy]our|[Pp]lease|[Ss]orry)\b|\?\W*\Z"
    r"|\b(?:possible|possibly|perhaps|likely|may\sbe|might\sbe|could\sbe|would\sbe)\b"
)
"""Talk with the reader, or a guess at why nothing was found."""


def split_sentences(text: str) -> list[str]:
    """The sentences of an untagged text, in order, without white space at their edges.

    Nothing but white space between them is lost, and a sentence that is split again gives itself.

    Args:
        text: an answer of any length; tags would be taken for words.

    Returns:
        Non-empty texts; none for a text of white space.
    """
    return [text[start:end] for start, end in spans(text)]


def spans(text: str) -> list[tuple[int, int]]:
    """Start and end of every sentence: ``text[start:end]`` is the sentence.

    The spans are in order, do not overlap, have no white space at their edges, and hold everything else.

    Args:
        text: as for ``split_sentences``.
    """
    pieces = []
    for first, last in _blocks(text):
        start = first
        for end, following in _ends(text, first, last):
            pieces.append((start, end))
            start = following
        pieces.append((start, last))
    return _joined(text, pieces)


def is_abstention(answer: str) -> bool:
    """Whether an answer declines: says that it cannot find, does not know or will not tell, and little else.

    One of its first two sentences declines (in the first person, or of the information itself), and at most half of
    all its sentences state something. What declines and then answers all the same is an answer. English only.

    Args:
        answer: the whole untagged text; an empty one is no abstention.
    """
    sentences = split_sentences(answer.replace("’", "'"))
    if not any(_DECLINES.match(sentence) for sentence in sentences[:2]):
        return False
    statements = sum(not _DECLINES.match(sentence) and not _TO_READER.search(sentence) for sentence in sentences)
    return 2 * statements <= len(sentences)


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of the parts between hard line breaks, without white space at their edges."""
    end = len(text.rstrip())
    first = line = len(text) - len(text.lstrip())
    for found in _BREAK.finditer(text, first, end):
        above = text[line : found.start()].rstrip()
        if _is_hard(above, found):
            yield first, line + len(above)
            first = found.end()
        line = found.end()
    if first < end:
        yield first, end


def _is_hard(above: str, found: re.Match[str]) -> bool:
    """Whether the line break ``found`` ends a sentence, whatever stops there are."""
    below = found.end()
    if found[0].count("\n") > 1 or above.startswith(("#", "|")) or _MARKER.match(found.string, below):
        return True
    if above.endswith(",") or above.rstrip(_CLOSERS).endswith(tuple(_STOPS)):
        return False
    return above.endswith(":") or not found.string[below].islower()


def _ends(text: str, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Of every sentence of a block but the last: its end, and the start of the next."""
    start = first
    pairs = _pairs(text, first, last)
    opened = reach = 0  # how many pairs open before the stop at hand, and where the last of them closes
    for found in _END.finditer(text, first, last):
        end, following = found.end("mark"), found.end()
        while opened < len(pairs) and pairs[opened][0] < found.start():
            reach = max(reach, pairs[opened][1])
            opened += 1
        if following < last and reach < end and _is_end(found, start):
            yield end, following
            start = following


def _pairs(text: str, first: int, last: int) -> list[tuple[int, int]]:
    """Where quotation marks and brackets open and close, in the order of their opening."""
    pairs: list[tuple[int, int]] = []
    waiting: list[tuple[str, int]] = []
    for found in _PAIRED.finditer(text, first, last):
        mark, here = found[0], found.start()
        before = text[here - 1] if here > first else " "
        after = text[here + 1] if here + 1 < last else " "
        opener = _OPENED_BY.get(mark)
        if mark == opener and (before.isspace() or before in _BEFORE_QUOTE):  # the same sign opens and closes
            opener = None if after.isalpha() or (mark == '"' and not after.isspace()) else opener
        if opener is None:
            waiting.append((mark, here))
            continue
        if opener in _SINGLE:
            if after.isalnum():
                continue
        else:  # an apostrophe at the head of a word ("'Twas") opened nothing
            while waiting and waiting[-1][0] in _SINGLE:
                waiting.pop()
        if waiting and waiting[-1][0] == opener:
            begin = waiting.pop()[1]
            if here - begin <= (_LONGEST_SINGLE if opener in _SINGLE else _LONGEST_PAIR):
                pairs.append((begin, here))
    return sorted(pairs)


def _is_end(found: re.Match[str], start: int) -> bool:
    """Whether the stop ``found``, outside quotes and brackets, ends the sentence that begins at ``start``."""
    text, mark, following = found.string, found["mark"], found.end()
    if any(stop in mark for stop in _WIDE_STOPS):  # white space does not follow them
        return True
    if text[following] in _BULLETS and _MARKER.match(text, following):
        return True
    word = following
    while word < following + 4 and text[word : word + 1] in tuple(_OPENERS):
        word += 1
    first = text[word : word + 1]
    if following == found.end("mark"):  # a space was forgotten, as in "in London.She", or it is an address
        return mark in _STOPS and text[found.start() - 1 : found.start()].islower() and _opens_sentence(text, word)
    if first.strip() == "" or first in _GOES_ON:
        return False
    if first.islower() and not text[word + 1 : word + 2].isupper() and "\n" not in text[found.end("mark") : following]:
        return False
    single = mark[0] == "." and not any(stop in _STOPS for stop in mark[1:])
    return not (single and _is_abbreviated(text, start, found.start(), word))


def _opens_sentence(text: str, word: int) -> bool:
    """Whether the word that begins at ``word`` is one with which sentences open."""
    found = _NEXT_WORD.match(text, word)
    if not found or found[0].casefold() not in _STARTERS:
        return False
    initial = len(found[0]) == 1 and text[found.end() : found.end() + 1] == "."
    return found[0][0].isupper() and not initial


def _is_abbreviated(text: str, start: int, stop: int, word: int) -> bool:
    """Whether the full stop at ``stop`` belongs to the word before it, given where the next word begins."""
    if stop - start <= _LONGEST_MARKER and _NUMBER.fullmatch(text, start, stop):
        return True
    found = _LAST_WORD.search(text[max(start, stop - _LOOK) : stop])
    if not found:
        return False
    last, small = found[0], found[0].casefold()
    if (last[0].isupper() and last.capitalize() in _TITLES) or small in _MIDDLE:
        return True
    opens = _opens_sentence(text, word)
    if small in _NUMBERED:
        return text[word].isdigit() or (_ROMAN.match(text, word) is not None and not opens)
    initial = len(last) == 1 and last.isalpha()
    return (initial or small in _MAYBE or _ACRONYM.fullmatch(last) is not None) and not opens


def _joined(text: str, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pieces, those without a letter or a digit joined to the one before, or to the first of those behind."""
    joined: list[tuple[int, int]] = []
    begin = None
    for start, end in pieces:
        if _WORD.search(text, start, end):
            joined.append((start if begin is None else begin, end))
            begin = None
        elif joined:
            joined[-1] = (joined[-1][0], end)
        elif begin is None:
            begin = start
    return joined if begin is None else [(begin, pieces[-1][1])]
