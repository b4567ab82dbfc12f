"""Answers as sentences: plain ones are split; in those that hold confidence tags already, a tag ends a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from lovec.tags import DEFAULT_TAGS, TagFormat, parse, shows_confidence, strip, thought_length, without_own_marks
from lovec.text.clauses import CONFIDENCES, in_clauses
from lovec.text.documents import kept_blocks, kind_of, parts, readable, unused_characters
from lovec.text.sentences import spans, split_sentences
from lovec.types import STATEMENT, Record, Sentence, Unit

_OF_EARLIER_RUNS = ("problems", "left_out", CONFIDENCES, "revised", "hedged")
_BLANK_LINE = re.compile(r"\n\s*\n")
_FENCE = re.compile(r"`{3,}|~{3,}")
_FENCE_LINE = r"^[ \t>]*(?:`{3,}|~{3,})[ \t]*"


def untag(
    record: Record, tags: TagFormat = DEFAULT_TAGS, split: Callable[[str], list[str]] = split_sentences
) -> tuple[Record, int]:
    """Return a record whose answer and sentences hold no tags, and the number of sentences whose tag was read.

    A record without sentences gets those that its tags mark: a tag ends a sentence, and what has no valid tag is split.
    A confidence that ``lovec tag`` printed in a tag ends a sentence, too. The score of a valid tag becomes the score of
    its sentence. Removed are also confidences by source, and those of whole sentences behind their clauses. What stands
    in a block of code between two fences is code, tags included. Of a tagged answer in HTML the visible text stays.

    Args:
        record: given or generated text.
        tags: the tag words and the scale.
        split: returns the sentences of a text without tags.
    """
    if (answer := without_own_marks(record.answer, tags)) != record.answer:
        record = replace(record, answer=answer)
    visible = not record.sentences and tags.occur_in(answer)
    opened = not record.given
    covered = _Covered(_readable(answer, tags, opened) if visible else answer, tags, opened)
    texts = [covered.text, *(sentence.text for sentence in record.sentences if sentence.kind != "code")]
    if not any(map(tags.occur_in, texts)):
        return record, 0
    given = sum(sentence.score is not None for sentence in record.sentences)
    if record.sentences:
        sentences = tuple(_read(sentence, tags, opened) for sentence in record.sentences)
    else:
        marked = _marked(covered.text, tags, split, opened)
        sentences = tuple(replace(sentence, text=covered.restored(sentence.text)) for sentence in marked)
    kept = tuple(sentence for sentence in sentences if sentence.text)
    rejected = record.rejected if len(kept) == len(sentences) else None
    answer = covered.restored(strip(covered.text, tags, opened))
    untagged = replace(record, answer=answer, sentences=kept, rejected=rejected)
    return untagged, sum(sentence.score is not None for sentence in sentences) - given


def bare_statements(record: Record, tags: TagFormat = DEFAULT_TAGS) -> Record:
    """Return a record as it is tagged or trained on: without tags, and without parts that state nothing.

    Args:
        record: given or generated text.
        tags: the tag words and the scale.
    """
    return untag(record, tags)[0].statements()


class _Covered:
    """An answer whose blocks of code hold no tag words.

    Args:
        answer: the answer.
        tags: the tag words and the scale.
        opened: as for ``lovec.tags.thought_length``.

    Attributes:
        text: the answer, in which characters that it does not have stand for these tag words.
    """

    def __init__(self, answer: str, tags: TagFormat, opened: bool) -> None:
        blocks = _code_blocks(answer, tags, opened)
        self._covers: list[tuple[str, str]] = []
        if blocks:
            unused = unused_characters(answer)
            self._covers = [(word, next(unused) * len(word)) for word in (tags.open, tags.close)]
        pieces, here = [], 0
        for start, end in blocks:
            block = answer[start:end]
            for word, cover in self._covers:
                block = block.replace(word, cover)
            pieces += [answer[here:start], block]
            here = end
        self.text = "".join([*pieces, answer[here:]])

    def restored(self, text: str) -> str:
        """Return a piece of the text as it was in the answer."""
        for word, cover in self._covers:
            text = text.replace(cover, word)
        return text


def _code_blocks(answer: str, tags: TagFormat, opened: bool) -> list[tuple[int, int]]:
    """Return start and end of the blocks of code of an answer that hold tag words.

    They are found as if there were no tags behind sentences: one behind a block stands in the line that closes it. A
    block that nothing closes would be all of the text behind it, so the tags in it count.
    """
    if not (tags.occur_in(answer) and _FENCE.search(answer)):
        return []
    opening, closing = re.escape(tags.open), re.escape(tags.close)
    words = "|".join(map(re.escape, sorted(tags.scale.words, key=len, reverse=True)))
    begin = thought_length(answer, opened)
    tag = re.compile(rf"({_FENCE_LINE}){opening}[^\n]*|{opening}[ \t]*(?:{words})[ \t]*{closing}", re.MULTILINE)
    plain = tag.sub(lambda found: (found[1] or "").ljust(len(found[0])), answer[begin:])
    return [
        (begin + start, begin + end)
        for start, end, kind in kept_blocks(plain)
        if kind == "code" and _is_closed(plain[start:end]) and tags.occur_in(answer[begin + start : begin + end])
    ]


def _is_closed(block: str) -> bool:
    """Return whether a block of code begins and ends with a fence."""
    first, *others = block.splitlines()
    fence = _FENCE.search(first)
    return fence is not None and bool(others) and others[-1].strip(" \t>").startswith(fence[0])


def split_record(
    record: Record,
    tags: TagFormat = DEFAULT_TAGS,
    split: Callable[[str], list[str]] = split_sentences,
    unit: Unit = "sentence",
) -> Record:
    """Return a record with sentences, without tags: its own sentences, or else the parts of its answer.

    A tag in the answer ends a sentence, so an answer that was tagged before has the sentences that it had then. Of an
    answer in HTML the visible text stays, see ``lovec.text.documents.readable``. What states nothing has its ``kind``.
    Problems of an earlier run are removed from ``meta``, and its revised text.

    Args:
        record: given or generated text.
        tags: the tag words and the scale.
        split: returns the sentences of prose without tags.
        unit: "clause" divides the sentences into clauses, see ``lovec.text.clauses.in_clauses``.
    """
    record = _with_ends(untag(record, tags, split)[0], record.answer)
    meta = {name: value for name, value in record.meta.items() if name not in _OF_EARLIER_RUNS}
    if "revised" in record.meta:
        sentences = (replace(sentence, revision=None) for sentence in record.sentences)
        record = replace(record, sentences=tuple(sentences))
    record = replace(record, meta=meta) if record.sentences else _split(replace(record, meta=meta), tags, split)
    return in_clauses(record) if unit == "clause" else record


def _with_ends(record: Record, answer: str) -> Record:
    """Return a record without tags whose answer has the thought, and the white space at both ends, that it had."""
    if record.answer == answer:
        return record
    begin = thought_length(answer, not record.given) or len(answer) - len(answer.lstrip())
    end = len(answer.rstrip())
    return replace(record, answer=f"{answer[:begin]}{record.answer.strip()}{answer[end:]}")


def _split(record: Record, tags: TagFormat, split: Callable[[str], list[str]]) -> Record:
    opened = not record.given
    answer = _readable(record.answer, tags, opened)
    sentences = tuple(parts(answer[thought_length(answer, opened) :], split))
    return replace(record, answer=answer, sentences=sentences, rejected=None)


def _readable(answer: str, tags: TagFormat, opened: bool) -> str:
    """Return an answer with its thought as it is, and its visible text behind that."""
    begin = thought_length(answer, opened)
    return answer[:begin] + readable(answer[begin:], tags)


def _marked(answer: str, tags: TagFormat, split: Callable[[str], list[str]], opened: bool) -> Iterator[Sentence]:
    """Yield the parts of a tagged answer, with the scores of valid tags."""
    parsed = parse(answer, tags, opened)
    for span in parsed.sentences:
        first = span is parsed.sentences[0]
        begins_line = first or _begins_line(span.raw)
        if span.score is None and not shows_confidence(span, tags):
            yield from parts(strip(span.raw, tags, opened=False), split, first, begins_line=begins_line)
            continue
        begin = _last_paragraph(span.text, begins_line, first)
        yield from parts(span.text, split, first, begin, begins_line)
        text, head = span.text[begin:].strip(), span.text[:begin].rstrip()
        if head:
            begins_line = "\n" in span.text[len(head) : len(span.text) - len(text)]
        sentence = Sentence(text, kind=kind_of(text, begins_line))
        yield sentence if span.score is None else _scored(sentence, span.score, tags)
    first = not parsed.sentences
    yield from parts(parsed.tail, split, first, begins_line=first or _begins_line(parsed.tail))


def _begins_line(text: str) -> bool:
    """Return whether what stands behind a tag begins a line of its own."""
    return "\n" in text[: len(text) - len(text.lstrip())]


def _last_paragraph(text: str, begins_line: bool, first: bool) -> int:
    """Return where the last paragraph begins, or what follows the last question, label or address in it.

    A sentence is never longer than its paragraph, and has nothing in it that states nothing, such as a heading.

    Args:
        text: what stands before a tag, after the tag before it.
        begins_line: whether it begins a line; elsewhere a number sign begins no heading.
        first: whether it begins the answer, whose first line may be its title.
    """
    begin = max((end for _, end, _ in kept_blocks(text, first, begins_line) if text[end:].strip()), default=0)
    pieces = [(begin + start, begin + end) for start, end in spans(text[begin:])]
    for (begun, end), (start, _) in zip(reversed(pieces[:-1]), reversed(pieces[1:]), strict=True):
        if _BLANK_LINE.search(text, end, start) or kind_of(text[begun:end], begins_line=False) != STATEMENT:
            return start
    return begin


def _read(sentence: Sentence, tags: TagFormat, opened: bool) -> Sentence:
    """Return a sentence without tags in its text; the score of a valid tag at its end is kept if it has no other."""
    if sentence.kind == "code":
        return sentence
    text = strip(sentence.text, tags, opened)
    marked = parse(sentence.text, tags, opened).sentences
    if sentence.score is None and len(marked) == 1 and marked[0].score is not None and marked[0].text == text:
        return _scored(replace(sentence, text=text), marked[0].score, tags)
    return replace(sentence, text=text)


def _scored(sentence: Sentence, score: int, tags: TagFormat) -> Sentence:
    confidence = tags.scale.confidence(score)
    return replace(sentence, score=score, confidence=confidence, levels=tags.scale.size)
