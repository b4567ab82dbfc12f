"""Documents: which parts of a text are statements, and which are kept as they are and never scored or labelled.

Plain text, Markdown and HTML take one path, wherever a text comes from. Markdown is parsed by markdown-it-py, and
plain text is Markdown without marks; HTML is parsed by selectolax, and its visible text becomes Markdown. Between the
blocks of a document that state nothing (headings, code, tables, front matter, footnotes) lies prose, which is split
into sentences; some of these are questions, labels, addresses or marks, which state nothing either.

The text of a document is never changed: every part of it is a piece of the text, and only white space lies between.
"""

# This file deals with dashes, stops and quotation marks of every kind.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from lovec.tags import DEFAULT_TAGS, SOURCE_WORDS, TagFormat
from lovec.text.sentences import ends_with_stop, split_sentences
from lovec.types import STATEMENT, PartKind, Sentence, is_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_TITLE_WITHIN = 4000  # characters of a text that are searched for its title
_LONGEST_TITLE = 80  # characters
_FIRST_LINE = re.compile(r"\s*([^\W_a-z][^\n]{0,78}\S)[ \t\r]*\n[ \t\r]*\n(?=\s*\S)")
_COLONS = tuple(":;,：；，、")  # a title ends neither in one of these nor in a stop
_FRONT_MATTER = re.compile(r"\ufeff?-{3,}[ \t]*\r?\n(?:#[^\n]*\n)*[\"']?\w[^\n:]*:(?:\s|\Z)")
_BLANK_LINE = re.compile(r"\n\s*\n")
_NEWLINE = re.compile(r"\r\n?|\n")
_MARKS_LINE = re.compile(r"(?<![^\r\n])(?:[ \t]*+>[> \t]*+|\\(?:`{3,}|~{3,}|#{1,6}|-+|=+))(?![^\r\n])")
"""A line between two paragraphs of a quotation, or one of marks that a backslash makes prose, see `_prose`."""
_BEFORE = "x "  # stands for what a line that is not read begins with

_HTML_DOCUMENT = re.compile(
    r"\ufeff?\s*(?>(?:<\?xml[^>]*>|<!--(?>.*?-->))\s*)*+<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_HTML_FRAGMENT = re.compile(
    r"\s*<(?:p|div|h[1-6]|[uod]l|table|pre|blockquote|center|section|article|main|header|figure)\b", re.IGNORECASE
)
_HTML_TAG = re.compile(r"<[!/?a-zA-Z][^<>]*>")
_HTML_TABLE = re.compile(
    r"(?:<table|\A\s*</?(?:caption|colgroup|thead|tbody|tfoot|t[rdh]))\b.*?(?:</table\s*>|\S(?=\s*\Z))",
    re.IGNORECASE | re.DOTALL,
)
"""A table in a block of HTML, or what is left of one that a blank line divides."""

_PREFIX = re.compile(r"(?:[-*+•–—>]\s+(?:\[[ xX]\]\s+)?|\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{2,5})[.)]\s+)*")
_WORD = re.compile(r"[^\W_]")
_LONE_MARKER = re.compile(r"\(?\d{1,3}[.)]|\[\^?\w{1,20}\]")
_CODE = re.compile(r"`{3}|~{3}")
_TABLE_ROW = re.compile(r"\|[^\n]*\|(?:[^\S\n]*+\n[ \t:-]*+\|[| \t:-]*+)*+")  # with rows without words, such as "|---|"
_ADDRESS = (
    r"(?:<?(?:https?://|www\.|mailto:)[^\s>]++>?|<?[\w.+-]++@[\w-]++(?:\.[\w-]++)++>?"
    r"|!?\[[^\]\n]*+\]\([^)\n]*+\))"
)
_LONGEST_LABEL = 3  # words of a line that ends in a colon, whatever its words are, or of what an address follows
_REFERENCE = re.compile(
    rf"(?:(?:[^\s.!?:]++[^\S\n]++){{0,{_LONGEST_LABEL - 1}}}+[^\s.!?:]++:\s*+)?"
    rf"{_ADDRESS}(?:[\s,;]++{_ADDRESS})*+[.,;]?"
    rf"|\[[\w-]{{1,20}}\]:\s++{_ADDRESS}\s++[\"'(][^\n]*|\[\^[\w-]{{1,20}}\]:\s.*",
    re.DOTALL,
)
_LINKED = re.compile(r"(?<!!)\[([^\[\]\n]++)\]\(")
_TARGET = re.compile(r"[/#@]|\.\w")  # what the address of a definition has; a word does not
_ASKS = ("?", "？", "؟", "⸮")
_AROUND = re.compile(
    r"(?P<mark>\*{1,3}|_{1,3})((?:(?!(?P=mark)).)+)(?P=mark)|\(([^()]+)\)|\[([^\[\]]+)\]"
    r"|[\"“”„«»「」『』]([^\"“”„«»「」『』]+)[\"“”„«»「」『』]|['‘’]((?:[^'‘’]|(?<=\w)['’](?=\w))+)['‘’]",
    re.DOTALL,
)
"""Emphasis, brackets or quotation marks around all of a text, and around nothing less: they do not occur within it."""
_MOST_AROUND = 4  # such pairs around each other
_BOLD = re.compile(r"(?P<mark>\*{2,3}|__)(?P<words>(?=\S)(?:(?!(?P=mark))[^\n])*\S)(?P=mark)")
_EMPHASIS = re.compile(r"[*_]{1,3}")
_HASHES = re.compile(r"^#+\s*|\s+#+\s*$")
_TITLE_MARKS = re.compile(r"\*{1,3}|(?<![^\W_])_{1,3}|_{1,3}(?![^\W_])")  # underscores within words are part of them
_SMALL_WORD = 3  # letters of a word that a title may write in lower case


def parts(
    text: str,
    split: Callable[[str], list[str]] = split_sentences,
    begins: bool = True,
    until: int | None = None,
    begins_line: bool = True,
) -> list[Sentence]:
    """Return the parts of a text in their order: the sentences of its prose, and what is kept as it is.

    Args:
        text: plain text or Markdown; `readable` makes it of HTML.
        split: returns the sentences of prose.
        begins: whether the text is the beginning of its document, whose first line may be its title.
        until: where the last part ends, at the end of a sentence or a block; None is the end of the text.
        begins_line: whether the text begins a line; if not, what its first line begins with is no block.
    """
    found: list[Sentence] = []
    here, until = 0, len(text) if until is None else until
    for start, end, kind in kept_blocks(text, begins, begins_line):
        if end > until:
            break
        found += map(_sentence, split(text[here:start]))
        found.append(Sentence(text[start:end], kind=kind))
        here = end
    found += map(_sentence, split(text[here:until]))
    return found


def paragraphs(text: str) -> list[tuple[str, PartKind]]:
    """Return the texts between blank lines, and what each of them is where it is a block that states nothing.

    Blank lines in such a block, as code has them, do not count.
    """
    blocks = kept_blocks(text)
    starts = [start for start, _, _ in blocks]
    found: list[tuple[str, PartKind]] = []
    here = 0
    for start, end in [*((gap.start(), gap.end()) for gap in _BLANK_LINE.finditer(text)), (len(text), len(text))]:
        at = bisect_right(starts, start) - 1
        if at >= 0 and start < blocks[at][1]:
            continue
        if paragraph := text[here:start].strip():
            whole = at >= 0 and text[blocks[at][0] : blocks[at][1]] == paragraph
            found.append((paragraph, blocks[at][2] if whole else STATEMENT))
        here = end
    return found


def kept_blocks(text: str, begins: bool = True, begins_line: bool = True) -> list[tuple[int, int, PartKind]]:
    """Return start, end and kind of the blocks of a text that hold no prose, in their order, without overlap.

    Args:
        text: as for `parts`.
        begins: as for `parts`.
        begins_line: as for `parts`.
    """
    if not begins_line:
        skipped = len(_BEFORE)
        blocks_behind = kept_blocks(_BEFORE + text, begins=False)
        return [(max(start - skipped, 0), end - skipped, kind) for start, end, kind in blocks_behind]
    lines = [0, *(match.end() for match in _NEWLINE.finditer(text)), len(text)]
    environment: dict[str, Any] = {}
    blocks = [*_kept_lines(_markdown(text).parse(text, environment))]
    references = environment.get("references", {}).values()
    blocks += [
        (reference["map"], "reference")
        for reference in references
        if reference.get("map") and _TARGET.search(reference["href"])
    ]
    marks = (bisect_right(lines, line.start()) for line in _MARKS_LINE.finditer(text))
    blocks += [([line - 1, line], "mark") for line in marks]
    found: list[tuple[int, int, PartKind]] = []
    for (first, last), kind in sorted(blocks, key=lambda block: block[0]):
        start, end = lines[first], lines[min(last, len(lines) - 1)]
        block = text[start:end]
        start, end = end - len(block.lstrip()), start + len(block.rstrip())
        if start < end and (not found or start >= found[-1][1]):
            found.append((start, end, kind))
    after = int(bool(found) and found[0][2] == "data")  # the title stands behind front matter
    title = _FIRST_LINE.match(text, found[0][1] if after else 0) if begins else None
    if title and not _is_sentence(title[1]):
        found.insert(after, (*title.span(1), "heading"))
    return found


def kind_of(text: str, begins_line: bool = True) -> PartKind:
    """Return what a sentence, or a block that stands alone, is.

    Args:
        text: the sentence or the block.
        begins_line: whether it begins a line; elsewhere it is not a block.
    """
    blocks = kept_blocks(text, begins=False) if begins_line else []
    if len(blocks) == 1 and text[slice(*blocks[0][:2])] == text.strip():
        return blocks[0][2]
    return _kind_of_sentence(text)


def title_of(text: str, tags: TagFormat = DEFAULT_TAGS) -> tuple[str, str] | None:
    """Return the title of a text and where it was found; None without one.

    It is the first heading if the text begins with it, the ``<title>`` of HTML, or a first line that stands alone and
    ends without a stop. A line with a confidence tag is a sentence.

    Args:
        text: any text.
        tags: the tag words.
    """
    if is_html(text):
        named = _html(text).css_first("title")
        title, place = ("" if named is None else named.text()), "its title"
    else:
        blocks = kept_blocks(text[:_TITLE_WITHIN])
        after = blocks.pop(0)[1] if blocks and blocks[0][2] == "data" else 0
        if not blocks or blocks[0][2] != "heading" or text[after : blocks[0][0]].strip("\ufeff \t\r\n"):
            return None
        heading = text[blocks[0][0] : blocks[0][1]]
        if tags.occur_in(heading):
            return None
        title, *underline = heading.splitlines()
        place = "its heading" if title[0] == "#" or underline else "its first line"
        title = _HASHES.sub("", title)
    title = " ".join(_TITLE_MARKS.sub("", title.replace("`", "")).split())
    return (title, place) if title and is_text(title) else None


def is_html(text: str) -> bool:
    """Return whether a text is HTML: it begins as a document does, or all of its blocks are HTML.

    Markdown that has HTML among its paragraphs is none.
    """
    if _HTML_DOCUMENT.match(text):
        return True
    return bool(_HTML_FRAGMENT.match(text)) and all(
        token.type == "html_block" for token in _markdown(text).parse(text, {}) if token.level == 0
    )


def readable(text: str, tags: TagFormat = DEFAULT_TAGS) -> str:
    """Return the visible text of HTML as Markdown; other texts as they are.

    Headings, lists, tables and code are marked; scripts, styles, forms and navigation are no part of it.

    Args:
        text: any text.
        tags: the tag words, which are no HTML and stay.
    """
    if not is_html(text):
        return text
    unused = unused_characters(text)
    covers = [(word, next(unused)) for word in (tags.open, tags.close, *SOURCE_WORDS) if word in text]
    for word, cover in covers:
        text = text.replace(word, cover)
    text = _visible(text)
    for word, cover in covers:
        text = text.replace(cover, word)
    return text


def unix_lines(text: str) -> str:
    """Return a text with the line breaks of Unix, so that a text of another system is the same text."""
    for line_break in ("\r\r\n", "\r\n", "\r"):  # the first is no blank line: some programs end every line with it
        text = text.replace(line_break, "\n")
    return text


def unused_characters(text: str) -> Iterator[str]:
    """Yield characters that a text does not have, which can stand for words of it that must not be read there."""
    used = set(text)
    return (chr(code) for code in _UNUSED if chr(code) not in used)


def _sentence(text: str) -> Sentence:
    return Sentence(text, kind=_kind_of_sentence(text))


def _kind_of_sentence(text: str) -> PartKind:
    """Return what a sentence of prose is."""
    body = text[_PREFIX.match(text).end() :]  # type: ignore[union-attr]  # it matches anything
    if _REFERENCE.fullmatch(body) and not any(map(_states, _LINKED.findall(body))):
        return "reference"
    if _LONE_MARKER.fullmatch(text) or not _WORD.search(_HTML_TAG.sub("", body)):
        return "mark"
    if _CODE.match(body):
        return "code"
    if _TABLE_ROW.fullmatch(text):
        return "table"
    if _is_question(body):
        return "question"
    if (bold := _BOLD.fullmatch(body)) and not _goes_on(bold["words"]):
        return "heading"
    return "label" if _is_label(_EMPHASIS.sub("", body).rstrip()) else STATEMENT


def _states(linked: str) -> bool:
    """Return whether the text of a link is a statement and no title: it ends in a stop."""
    return ends_with_stop(linked) and _kind_of_sentence(linked) == STATEMENT


def _is_sentence(line: str) -> bool:
    """Return whether a first line that stands alone is not a title: it has a stop, or is an item of a list."""
    return _goes_on(line) or _PREFIX.match(line)[0] != "" or len(split_sentences(line)) > 1  # type: ignore[index]


def _goes_on(line: str) -> bool:
    """Return whether a line ends as no title does: with a stop, whatever closes behind it, or with a colon or comma."""
    return line.endswith(_COLONS) or ends_with_stop(line)


def _is_question(text: str) -> bool:
    """Return whether a sentence asks; one that just ends in a quoted, emphasised or bracketed question does not."""
    for _ in range(_MOST_AROUND):
        if (around := _AROUND.fullmatch(text)) is None:
            break
        text = around[around.lastindex or 0]  # what stands within the marks
    return text.endswith(_ASKS)


def _is_label(text: str) -> bool:
    """Return whether a line that ends in a colon names what follows, and states nothing: a few words, or a title."""
    if not text.endswith((":", "：")) or len(text) > _LONGEST_TITLE or "\n" in text:
        return False
    words = text[:-1].split()
    return len(words) <= _LONGEST_LABEL or not any(len(word) > _SMALL_WORD and word[0].islower() for word in words)


# Markdown


def _markdown(text: str) -> MarkdownIt:
    """Return the parser of the blocks of a text. A rule at its beginning begins front matter only where keys follow."""
    return _parser(_FRONT_MATTER.match(text) is not None)


@cache
def _parser(front_matter: bool) -> MarkdownIt:
    """Return a parser of blocks. Indented lines are no code: plain texts indent their paragraphs."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins.footnote import footnote_plugin
    from mdit_py_plugins.front_matter import front_matter_plugin

    parser = MarkdownIt("commonmark").enable("table").disable("code").use(footnote_plugin)
    if front_matter:
        parser.use(front_matter_plugin)
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


_KEPT: dict[str, PartKind] = {
    "fence": "code",
    "table_open": "table",
    "hr": "mark",
    "front_matter": "data",
    "footnote_reference_open": "reference",
}
"""Kinds of the blocks that hold no prose, by the type of their token."""


def _kept_lines(tokens: list[Any]) -> Iterator[tuple[list[int], PartKind]]:
    """Yield the first line of every block that holds no prose and the line behind it, and its kind."""
    for at, token in enumerate(tokens):
        if kind := _KEPT.get(token.type):
            yield token.map, kind
        elif token.type == "html_block" and not _visible(token.content):
            yield token.map, "code"
        elif token.type == "html_block":
            line, here = token.map[0], 0
            for table in _HTML_TABLE.finditer(token.content):
                line += token.content.count("\n", here, table.start())
                here = table.start()
                yield [line, line + table[0].count("\n") + 1], "table"
        elif token.type == "heading_open":
            line = tokens[at + 1].content
            if token.markup[0] == "#" or not ("\n" in line or _goes_on(line)):
                yield token.map, "heading"  # a rule below a paragraph underlines no heading


# HTML

_SKIPPED = frozenset(
    "head script style template noscript svg math iframe object canvas audio video select button nav form".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer h1 h2 "
    "h3 h4 h5 h6 header hr html li main ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
_IN_LAYOUT = "p, div, table, ul, ol, h1, h2, h3, h4, h5, h6, pre, blockquote"
_UNUSED = range(0xE000, 0xF900)  # characters without a meaning
_HOLDS_PROSE = r"(?:[-+*] |\d{1,9}[.)] |> ?)*+"  # lists and quotations; what begins in them may be another block
_BLOCK_START = re.compile(rf"^({_HOLDS_PROSE})(?=`{{3}}|~{{3}}|#{{1,6}}(?: |$)|<[!?/a-zA-Z])", re.MULTILINE)
_UNDERLINE = re.compile(rf"(\n{_HOLDS_PROSE})(?=(?:-+|=+)$)", re.MULTILINE)
_TAG = re.compile(r"<(?P<end>/?)(?!(?:br|hr|img|embed|meta)\b)(?P<name>[a-z][^\s/>]*+)[^>]*+(?:>|\Z)", re.IGNORECASE)
_LOOSE = (
    "a p li dd dt tr td th thead tbody tfoot caption colgroup option optgroup rb rp rt rtc "
    "area base col input link source track wbr "
    "script style title textarea xmp iframe noembed noframes noscript"
).split()
"""Elements that pages leave open without nesting them: another one ends them, or nothing can stand in them, or no tag
but their own end."""
_INLINE = "b big code em font i nobr s small strike strong tt u".split()
_GROUPS = dict.fromkeys(_LOOSE, "loose") | dict.fromkeys(_INLINE, "inline")
_DEEPEST = {"loose": 256, "inline": 16, "": 256}
"""How many elements may be open at once, by group; browsers have a limit as well. Inline elements that are open are
repeated in every block."""


def _html(text: str) -> Any:
    """Parse HTML. What lies too deep loses its tags, and no text."""
    from selectolax.lexbor import LexborHTMLParser

    return LexborHTMLParser(_flat(text))


def _flat(html: str) -> str:
    """Return HTML without the tags that lie too deep: at every tag the parser looks at all elements that are open.

    A loose element is ended before the next of its name begins, which changes nothing where the parser does so, too.
    """
    unclosed: Counter[str] = Counter()  # by name
    depths: Counter[str] = Counter()  # by group

    def kept(tag: re.Match[str]) -> str:
        name, ends = tag["name"].lower(), bool(tag["end"])
        group = _GROUPS.get(name, "")
        if tag[0].endswith("/>") and (unclosed["svg"] or unclosed["math"]):
            return " "  # a drawing has many, and elsewhere the slash closes nothing
        deep = depths[group] + (not ends) > _DEEPEST[group]
        step = -(unclosed[name] > 0) if ends else 1
        unclosed[name] += step
        depths[group] += step
        if group == "loose":
            return f"</{name}>{tag[0]}" if deep and not ends else tag[0]
        return " " if deep else tag[0]

    return _TAG.sub(kept, html)


def _visible(html: str) -> str:
    """Return the visible text of a piece of HTML as Markdown."""
    writer = _Writer()
    writer.walk(_html(html).body)
    return writer.text()


class _Writer:
    """Writes the visible text of HTML as Markdown."""

    def __init__(self) -> None:
        self._blocks: list[tuple[str, str]] = []  # what stands before a block, and the block
        self._lines: list[list[str]] = [[]]
        self._bold = 0
        self._plain = False  # whether the block has words outside of bold type
        self._mark = ""

    def walk(self, root: Any) -> None:
        """Add a node and all below it; nodes may lie as deep as they like."""
        stack: list[tuple[Any, bool]] = [] if root is None else [(root, False)]
        while stack:
            node, leaves = stack.pop()
            if leaves:
                self._leave(node.tag)
            elif self._enter(node):
                stack.append((node, True))
                children = list(node.iter(include_text=True))
                stack += [(child, False) for child in reversed(children)]

    def text(self) -> str:
        """Return all that was added."""
        self._flush()
        return "".join(f"{before if at else ''}{block}" for at, (before, block) in enumerate(self._blocks))

    def _enter(self, node: Any) -> bool:
        """Begin a node; return whether its children are to be added."""
        tag = node.tag
        if tag == "-text":
            words = node.text_content
            self._lines[-1].append(words)
            self._plain = self._plain or (not self._bold and bool(words.strip()))
        elif tag == "br":
            self._lines.append([])
        elif tag == "pre":
            self._flush()
            self._add("\n\n", _fenced(node.text()))
        elif tag == "table" and node.css_first(_IN_LAYOUT.replace("table", "table table")) is None:
            self._flush()
            self._add("\n\n", _table(node))
        elif tag == "hr":
            self._flush()
            self._add("\n\n", "---")
        elif not (tag in _SKIPPED or tag.startswith(("-", "!"))):
            if tag in _BLOCKS:
                self._flush()
                self._mark = (
                    "- " if tag == "li" else f"{'#' * int(tag[1])} " if re.fullmatch("h[1-6]", tag) else self._mark
                )
            self._bold += tag in ("b", "strong")
            return True
        return False

    def _leave(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._flush()
            self._mark = ""
        self._bold -= tag in ("b", "strong")

    def _flush(self) -> None:
        """End the block that is being written."""
        lines = [" ".join("".join(line).split()) for line in self._lines]
        text = "\n".join(filter(None, lines))
        if text:
            if not (self._mark or self._plain or "\n" in text):
                text = f"**{text}**"
            before = "\n" if self._mark == "- " and self._blocks and self._blocks[-1][1].startswith("- ") else "\n\n"
            block = self._mark + (_heading if self._mark.startswith("#") else _prose)(text)
            begins_data = not self._blocks and _FRONT_MATTER.match(block)
            self._add(before, f"\\{block}" if begins_data else block)
            self._mark = ""
        self._lines, self._plain = [[]], False

    def _add(self, before: str, block: str) -> None:
        if block:
            self._blocks.append((before, block))


def _prose(text: str) -> str:
    """Return lines of HTML's text as Markdown reads them as prose, too.

    A backslash stands before what would begin code, a heading or HTML there, which might reach to the end of the text,
    and before a rule that would make a heading of the line above. What looks like a list, a quotation or a table stays:
    these hold prose, or a reader sees one as well.
    """
    return _UNDERLINE.sub(r"\1\\", _BLOCK_START.sub(r"\1\\", text))


def _heading(text: str) -> str:
    """Return the lines of a heading; in Markdown the first of them is one, and the others are prose."""
    first, line_break, others = text.partition("\n")
    return f"{first}{line_break}{_prose(others)}"


def _fenced(code: str) -> str:
    """Return code as a block of Markdown."""
    code = code.strip("\n")
    longest = max(map(len, re.findall("`{3,}", code)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{code}\n{fence}" if code.strip() else ""


def _table(table: Any) -> str:
    """Return the rows of a table in Markdown."""
    rows = [[_cell(cell) for cell in row.css("td, th")] for row in table.css("tr")]
    rows = [row for row in rows if any(row)]
    width = max(map(len, rows), default=0)
    if not rows:
        return ""
    lines = [_row([*row, *[""] * (width - len(row))]) for row in rows]
    return "\n".join([lines[0], _row(["---"] * width), *lines[1:]])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Any) -> str:
    return " ".join(cell.text(separator=" ").split()).replace("|", "\\|")
