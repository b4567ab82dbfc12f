"""Text to token ids and back: prompts with exactly one BOS, and tagged answers cut where the scores begin.

An answer is encoded piece by piece (a sentence up to the opening tag word, then " X <closing tag word>"), and the same
pieces are used in training, in scoring and in tagging. So a policy is trained on exactly the ids that it is asked
about later, and a score is always compared as a string: "10" may be one token or two.

Questions, turns, sentences and instructions are foreign text. Where one has the text of a special token in it, such as
``<|eot_id|>``, it is encoded as plain characters, so that no text can end its turn or begin another.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lovec.core.settings import checked
from lovec.encoding.chats import SLOT, AnswerPlace, Refused, render
from lovec.encoding.prompts import prompt
from lovec.encoding.token_texts import TokenTexts, whole_characters
from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import MOST_WATCHED, LovecError, Record, Scale

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_LISTED = 20  # levels of a numeric scale that an instruction lists one by one at most

Scoring: TypeAlias = Literal["exact", "prefix"]
"""What is scored at a tag, see ``Encoder``."""

DEFAULT_SCORING: Scoring = "prefix"
"""What is scored where nothing says otherwise: it costs a small part of "exact", and differs where tags are broken."""

Author: TypeAlias = Literal["model", "user"]
"""In whose turn a text stands that is to be tagged, see ``Encoder.prompt_with_text``."""

QUESTION = "In a paragraph, could you tell me what you know about {entity}?"
"""The paper's question prompt (its case studies)."""

EVIDENCE = "{evidence}"
"""Stands for the source in the text of a ``Grounding``."""

_GUARD = "\n"  # stands before a piece of a text, so that no tokenizer takes the piece for the beginning of a text

_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # how SentencePiece names a byte that no other token holds

_JOINTS = 32  # tokens by which an encoded prompt may be longer than its parts, ample


def default_instruction(tags: TagFormat) -> str:
    """Return the instruction for these tags: the paper's, with its scale and tag words replaced by the given ones.

    For the default tags it is the paper's (section "Prompt for SFT and RL-based tuning"), word for word.

    Args:
        tags: the tag words and the scale.
    """
    scale, words = tags.scale, tags.scale.words
    return prompt("instruction").format(
        levels=f"0 to {scale.top}" if scale.is_numeric and scale.size > _MOST_LISTED else ", ".join(words),
        lowest=words[0],
        highest=words[-1],
        open=tags.open,
        close=tags.close,
        kind=f"a number from 0 to {scale.top}" if scale.is_numeric else f"one of {', '.join(words)}",
    )


def default_grounding(tags: TagFormat) -> str:
    """Return the text that puts a source into a prompt, for these tags: ours.

    Args:
        tags: the tag words and the scale.
    """
    return prompt("grounded").replace("{lowest}", tags.scale.words[0]).replace("{highest}", tags.scale.words[-1])


@dataclass(frozen=True)
class Grounding:
    """How the source of a record is put into its prompt, after the question.

    Attributes:
        text: what follows the question; ``{evidence}`` in it stands for the source.
        tokens: the most tokens of the source.

    Raises:
        LovecError: ``{evidence}`` is not in the text, or is in it more than once.
    """

    text: str
    tokens: int

    def __post_init__(self) -> None:
        if (times := self.text.count(EVIDENCE)) != 1:
            raise LovecError(f"the text around a source has {EVIDENCE} {times} times, expected once; correct it")


INSTRUCTION = default_instruction(DEFAULT_TAGS)
"""The paper's instruction, word for word."""


def prompt_settings(instruction: str, tags: TagFormat, grounding: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return how a model is asked for confidences, as plain values; without evidence in prompts nothing is said of it.

    Args:
        instruction: system prompt in effect.
        tags: tag words and scale in effect.
        grounding: how evidence is put into prompts; None where it is not.
    """
    asked = {"instruction": instruction, "tag_words": [tags.open, tags.close], "scale": list(tags.scale.words)}
    return asked if grounding is None else {**asked, "grounding": dict(grounding)}


def dialogue_parts(turns: Sequence[tuple[str, str]]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the texts of the system in a conversation, and its other turns.

    Args:
        turns: (role, text) pairs in their order.

    Raises:
        LovecError: the other turns do not alternate between "user" and "assistant", with "user" first and last.
    """
    system_texts = [text for role, text in turns if role == "system"]
    others = [(role, text) for role, text in turns if role != "system"]
    expected = [("user", "assistant")[i % 2] for i in range(len(others))]
    if [role for role, _ in others] != expected or expected[-1:] != ["user"]:
        raise LovecError(
            f"the roles are {', '.join(role for role, _ in turns) or 'none'}; expected user and assistant in turn, "
            "user first and last, and any number of system texts"
        )
    return system_texts, others


def distinct_prefixes(texts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the shortest beginning of every text that no other text has.

    Args:
        texts: token ids of each text; one that is the beginning of another, or equal to it, is returned whole.
    """
    begun = Counter(tuple(text[:end]) for text in texts for end in range(1, len(text) + 1))
    ends = [next((end for end in range(1, len(text)) if begun[tuple(text[:end])] == 1), len(text)) for text in texts]
    return [list(text[:end]) for text, end in zip(texts, ends, strict=True)]


@checked()
class Encoder:
    """Encodes prompts and tagged answers for one tokenizer.

    Args:
        tokenizer: a tokenizer with a chat template.
        instruction: system prompt that asks for tags; where the template knows no system role, it is put in front of
            the first user turn. None takes ``default_instruction(tags)``.
        tags: the tag words and the scale.
        scoring: what is scored at a tag: "exact" the whole strings " X <closing tag word>", "prefix" only their first
            tokens, as many as tell the scores apart; likewise for the replies to a question. It changes no text that is
            encoded.
        stops: ids at which sampling stops besides the end of a turn and the tokenizer's EOS: those that the model
            lists, see ``lovec.policy.load_stops``.

    Attributes:
        place: what the chat template writes around an answer.
        end_id: id of the token that ends an assistant turn, in prompts and in training.
        stop_ids: ids at which sampling stops.
        tails: token ids of " X <closing tag word>" for every level X of the scale, lowest first.
        scoring: what is scored at a tag.
        choices: what engines score behind a context, one per level: the tails, or their first tokens.
        watched: ids whose log-probabilities at every token tell scores while an answer is written, see
            ``lovec.encoding.written``: those of the first tokens; none where whole tails are scored, which are not all
            written.

    Raises:
        LovecError: the tokenizer has no chat template, does not reproduce the tags when it decodes them, renders what
            is between question and answer differently once the answer follows, or has no token that ends a turn.
    """

    grounding: Grounding | None = None
    """How sources are put into prompts; None where they are not, see ``lovec.encoding.grounding``."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        instruction: str | None = None,
        tags: TagFormat = DEFAULT_TAGS,
        scoring: Scoring = DEFAULT_SCORING,
        stops: Iterable[int] = (),
    ) -> None:
        self.tokenizer: Any = tokenizer
        self._controls = _ControlTokens(tokenizer, tags)
        self._ids = lru_cache(maxsize=1 << 16)(self._tokenize)  # sentences come back every epoch and tagging step
        self._prompt = lru_cache(maxsize=1 << 14)(self._encode_prompt)
        self._token = lru_cache(maxsize=1 << 16)(lambda token: self.decode([token]))
        self._is_open = lru_cache(maxsize=1 << 16)(
            lambda token: not self._token(token) or bool(_BYTE.fullmatch(str(tokenizer.convert_ids_to_tokens(token))))
        )
        self.instruction = default_instruction(tags) if instruction is None else instruction
        self.tags = tags
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise LovecError(
                f"the tokenizer of {name} has no chat template; use an instruction-tuned model, or give a template "
                "with --model.policy.chat_template FILE.jinja"
            )
        self._has_system_role = self._supports_system_role()
        self.place = AnswerPlace.of(tokenizer, self._messages(SLOT, self.instruction))
        self._controls.add(self._template_ids())
        self.end_id = self._find_end_of_turn(name)
        self.stop_ids = tuple(sorted({self.end_id, *stops} | ({tokenizer.eos_token_id} - {None})))
        self.tails = [self.pieces(f" {word} {tags.close}") for word in tags.scale.words]
        for score, tail in enumerate(self.tails):
            decoded = self.decode(self.pieces(f" {tags.open}") + tail).strip()
            if decoded != tags.tag(score):
                spaced = decoded.split() == tags.tag(score).split() and len(decoded) > len(tags.tag(score))
                fix = "it puts a space before every text: use another model" if spaced else "choose other tag words"
                raise LovecError(
                    f"the tokenizer of {name} does not give the tag {tags.tag(score)!r} back: it decodes it to "
                    f"{decoded!r}; {fix}"
                )

        self._score(scoring)
        self._around = len(self.prompt("3")) + _JOINTS
        self._tag = len(f"  {tags.open} ".encode()) + max(map(len, self.tails))

    @property
    def scale(self) -> Scale:
        """The scale of the tags."""
        return self.tags.scale

    def scored(self, texts: list[list[int]]) -> list[list[int]]:
        """Return what is scored of texts of which one follows: the texts, or the first tokens that tell them apart.

        Args:
            texts: token ids of each text.
        """
        return texts if self.scoring == "exact" else distinct_prefixes(texts)

    def with_scoring(self, scoring: Scoring) -> Encoder:
        """Return this encoder with something else scored at a tag; both share what they have encoded."""
        other = copy(self)
        other._score(scoring)
        return other

    def pieces(self, text: str) -> list[int]:
        """Return the ids of a piece of an answer; no special tokens are added, nor read from its characters."""
        return list(self._ids(text))

    def template_pieces(self, text: str) -> list[int]:
        """Return the ids of what a chat template has written itself, with its special tokens."""
        return self._controls.read(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def written(self, ids: Sequence[int], finished: bool | None = None) -> str:
        """Return the text that a model has written, without the token that ended it.

        A limit may cut between the tokens of one character, which is then left out.

        Args:
            ids: the tokens of a completion, or those of it so far.
            finished: whether the model has ended it; None tells by the last token.
        """
        ended = bool(ids) and ids[-1] in self.stop_ids
        tokens = ids[:-1] if ended else ids
        if ended if finished is None else finished:
            return self.decode(tokens)
        return whole_characters(lambda count: self.decode(tokens[: max(len(tokens) - count, 0)]))

    def token_text(self, token: int) -> str:
        """Return the text of one token by itself; part of a character is U+FFFD."""
        return self._token(token)

    def prompt(self, question: str, instruct: bool = True) -> list[int]:
        """Return the ids of the prompt, with exactly one BOS, up to where the answer begins.

        Args:
            question: the user turn.
            instruct: whether the prompt contains the instruction; False asks for a plain answer without tags.
        """
        return list(self._prompt(question, instruct))

    def record_prompt(self, record: Record, answered: bool = True, instruct: bool = True) -> list[int]:
        """Return the ids of the prompt for a record: that of its question, or of its question and its source.

        Args:
            record: the record.
            answered: whether the answer is that of the record, so that a long source may be cut by its sentences.
            instruct: see ``prompt``.
        """
        return self.prompt(record.question, instruct)

    def has_source(self, record: Record) -> bool:
        """Return whether the prompt of a record has its evidence in it."""
        return self.grounding is not None and any(text.strip() for text in record.evidence)

    def source_pieces(self, text: str) -> list[int]:
        """Return the ids of a source: added tokens and tag words in it are encoded character by character."""
        return self._controls.characters_of(text)

    def source_prompt(
        self, turns: Sequence[tuple[str, str]], before: str, source: str, after: str, instruct: bool = True
    ) -> list[int]:
        """Return the ids of a conversation whose last turn is followed by a source; the source is encoded by itself.

        Args:
            turns: as for ``dialogue``.
            before: text between the last turn and the source.
            source: foreign text.
            after: text behind the source.
            instruct: see ``prompt``.

        Raises:
            LovecError: see ``dialogue_parts``.
        """
        hole = _unused_character([*(text for _, text in turns), before, after, self.instruction])
        messages = self._conversation(turns, f"{before}{hole}{after}", instruct)
        return self._without_second_bos(self._render_quoted(messages, True, (hole, self.source_pieces(source))))

    def within(self, context: int | None) -> Encoder:
        """Return this encoder for a context of so many tokens; None for no limit."""
        return self

    def dialogue(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Return the ids of a conversation, with exactly one BOS and the instruction, up to the next answer.

        Args:
            turns: (role, text) pairs in their order. Texts with the role "system" are appended to the instruction; the
                other roles alternate between "user" and "assistant" and begin and end with "user". A single user turn
                gives the same ids as ``prompt``.

        Raises:
            LovecError: see ``dialogue_parts``.
        """
        return self._render(self._conversation(turns))

    def prompt_with_text(self, question: str, text: str, author: Author) -> list[int]:
        """Return the ids of a prompt that has a text in it, up to where the answer begins that repeats it with tags.

        Behind the instruction come the question, the text and the question again: as three turns where the text is the
        model's earlier answer, as three paragraphs of one turn where it is the user's. Nothing else differs.

        Args:
            question: what the text answers.
            text: the text, without tags.
            author: whose the text is.
        """
        if author == "user":
            return self.dialogue([("user", f"{question}\n\n{text}\n\n{question}")])
        return self.dialogue([("user", question), ("assistant", text), ("user", question)])

    def head(self, sentence: str, first: bool) -> list[int]:
        """Return the ids of a sentence and its opening tag word; all sentences but the first begin with a space."""
        return self.pieces(self._head_text(sentence, first))

    def sentence_tokens(self, head: Sequence[int]) -> int:
        """Return how many of the ids of ``head`` belong to the sentence: those that begin before its tag."""
        text = self.decode(head)
        opening = text.rfind(self.tags.open)
        return self.tokens_until(head, len(text[:opening].rstrip()))

    def tokens_until(self, ids: Sequence[int], length: int) -> int:
        """Return how many of the first ids hold the first ``length`` characters of their text.

        It decodes all of them several times: for many questions about an answer there is ``token_texts``.
        """
        begin = self.decode(ids)[:length]
        counts = range(len(ids) + 1)
        return bisect_left(counts, True, key=lambda count: self.decode(ids[:count]).startswith(begin))

    def token_texts(self, ids: Iterable[int] = ()) -> TokenTexts:
        """Return what tells the text of an answer and of its tokens while it grows.

        Args:
            ids: its first tokens.
        """
        return TokenTexts(self.decode, self._is_open, ids)

    def completion(self, sentences: Sequence[str], scores: Sequence[int], finished: bool = True) -> list[int]:
        """Return the ids of a tagged answer.

        Args:
            sentences: the text of each sentence.
            scores: the score of each sentence, an index into the scale.
            finished: whether the end of turn follows the last sentence; not where the answer goes on after it.
        """
        return self.completion_with_marks(sentences, scores, finished)[0]

    def completion_with_marks(
        self, sentences: Sequence[str], scores: Sequence[int], finished: bool = True
    ) -> tuple[list[int], list[int]]:
        """Return the ids of a tagged answer, and the index of the first token of every score's tail."""
        ids: list[int] = []
        marks: list[int] = []
        for i, (sentence, score) in enumerate(zip(sentences, scores, strict=True)):
            ids += self.head(sentence, first=i == 0)
            marks.append(len(ids))
            ids += self.tails[score]
        return [*ids, self.end_id] if finished else ids, marks

    def is_longer(self, sentences: Sequence[str], limit: int) -> bool:
        """Return whether a tagged answer with the lowest scores has more than ``limit`` tokens.

        Encoding stops as soon as that is known, and nothing is kept: this is asked once of every answer of a file.

        Args:
            sentences: the text of each sentence.
            limit: the number of tokens.
        """
        tokens = 1  # which ends the turn
        for i, sentence in enumerate(sentences):
            tokens += len(self._tokenize(self._head_text(sentence, first=i == 0))) + len(self.tails[0])
            if tokens > limit:
                return True
        return tokens > limit

    def most_completion_tokens(self, answer: int, sentences: int) -> int:
        """Return a bound on the tokens of a tagged answer, see ``most_tokens``."""
        return answer + sentences * self._tag + 1  # which ends the turn

    def most_tokens(self, question: int, answer: int = 0, sentences: int = 0) -> int:
        """Return a bound on the tokens of a prompt and its tagged answer, without encoding them.

        A token of text stands for at least one byte of it, and few tokens are added where pieces meet.

        Args:
            question: bytes of the question in UTF-8.
            answer: bytes of all sentences.
            sentences: number of sentences.
        """
        return self._around + question + self.most_completion_tokens(answer, sentences)

    def _score(self, scoring: Scoring) -> None:
        self.scoring = scoring
        self.choices = self.scored(self.tails)
        first = set() if scoring == "exact" else set(chain(*self.choices))
        self.watched = tuple(sorted(first)) if len(first) <= MOST_WATCHED else ()

    def _head_text(self, sentence: str, first: bool) -> str:
        return f"{'' if first else ' '}{sentence} {self.tags.open}"

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self._controls.plain(text))

    def _encode_prompt(self, question: str, instruct: bool) -> tuple[int, ...]:
        return tuple(self._render(self._messages(question, self.instruction if instruct else None)))

    def _conversation(
        self, turns: Sequence[tuple[str, str]], behind: str = "", instruct: bool = True
    ) -> list[dict[str, str]]:
        """Return the messages of a conversation, see ``dialogue``, with a text behind its last turn."""
        system_texts, others = dialogue_parts(turns)
        *earlier, (role, last) = others
        (_, question), *later = [*earlier, (role, f"{last}{behind}")]
        instructions = [self.instruction, *system_texts] if instruct else system_texts
        opening = self._messages(question, "\n\n".join(instructions) if instructions else None)
        return [*opening, *({"role": role, "content": text} for role, text in later)]

    def _messages(self, question: str, instruction: str | None) -> list[dict[str, str]]:
        if instruction is None:
            return [{"role": "user", "content": question}]
        if self._has_system_role:
            return [{"role": "system", "content": instruction}, {"role": "user", "content": question}]
        return [{"role": "user", "content": f"{instruction}\n\n{question}"}]

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        if any(self._controls.are_in(message["content"]) for message in messages):
            ids = self._render_quoted(messages, add_generation_prompt)
        else:
            ids = self._controls.read(self._rendered(messages, add_generation_prompt))
        return self._without_second_bos(ids)

    def _without_second_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        while bos is not None and list(ids[:2]) == [bos, bos]:  # the template and the tokenizer each wrote one
            ids = ids[1:]
        return list(ids)

    def _rendered(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return render(self.tokenizer, messages, add_generation_prompt, self.place.opening * add_generation_prompt)

    def _render_quoted(
        self, messages: list[dict[str, str]], add_generation_prompt: bool, given: tuple[str, list[int]] = ("", [])
    ) -> list[int]:
        """Return the ids of a conversation whose texts contain special tokens, which become plain characters.

        While the template is rendered, a slot stands for each of them. All other characters are encoded where the
        template puts them.

        Args:
            messages: the conversation.
            add_generation_prompt: whether the beginning of an answer follows.
            given: a character of one of the texts, and the ids that take its place.
        """
        slot = _unused_character(message["content"] for message in messages)
        quoted: list[list[int]] = []

        def placed(ids: list[int]) -> str:
            quoted.append(ids)
            return f"{slot}{len(quoted) - 1}{slot}"

        def replaced(text: str) -> str:
            return placed(self._controls.plain(text, inside=True))

        slots = []
        for message in messages:
            before, hole, after = message["content"].partition(given[0] or slot)
            content = self._controls.replaced(before, replaced)
            if hole:
                content += placed(given[1]) + self._controls.replaced(after, replaced)
            slots.append({**message, "content": content})
        rendered = self._rendered(slots, add_generation_prompt)
        parts = rendered.split(slot)  # text, number of a slot, text, ...
        if set(parts[1::2]) != set(map(str, range(len(quoted)))):
            raise LovecError(
                "a text contains special tokens of the model, or a source, and the chat template changes or drops "
                "texts, so that they cannot be encoded as plain characters; remove them from the text"
            )
        ids: list[int] = []
        for at, part in enumerate(parts):
            ids += quoted[int(part)] if at % 2 else self._controls.read(part, inside=at > 0)
        return ids

    def _template_ids(self) -> list[int]:
        """Return the ids of a short conversation, with everything that the template writes around its turns."""
        turns = [{"role": "user", "content": "3"}, {"role": "assistant", "content": "7"}]
        return [i for begun in (True, False) for i in self._render(turns[: 1 if begun else 2], begun)]

    def _supports_system_role(self) -> bool:
        """Return whether the template renders a system turn (Gemma's raises an error, others drop it silently)."""
        turns = [{"role": "system", "content": SLOT}, {"role": "user", "content": "3"}]
        try:
            return SLOT in render(self.tokenizer, turns)
        except Refused:
            return False

    def _find_end_of_turn(self, name: str) -> int:
        """Return the id that follows an assistant's answer in the template."""
        after = self._controls.read(self.place.end)
        end = next((i for i in after if i in self._controls.special), self.tokenizer.eos_token_id)
        if end is None:
            raise LovecError(f"the tokenizer of {name} has no EOS token, and its template no token that ends a turn")
        return int(end)


def _unused_character(texts: Iterable[str]) -> str:
    """Return a character for private use that is in none of the texts.

    Raises:
        LovecError: there is none.
    """
    used = set().union(*texts)
    characters = map(chr, chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)))
    found = next((character for character in characters if character not in used), None)
    if found is None:
        raise LovecError("a text contains every character for private use, expected text; leave it out")
    return found


class _ControlTokens:
    """The special tokens of a tokenizer, and encoding text with or without them.

    Tokens of the tags are not among them.

    Args:
        tokenizer: the tokenizer.
        tags: the tag words.

    Attributes:
        special: ids that are marked as special; a tokenizer names only some of them, as its EOS token.
    """

    def __init__(self, tokenizer: Any, tags: TagFormat) -> None:
        self._tokenizer = tokenizer
        # Hostile texts have the same characters again and again.
        self._character = lru_cache(maxsize=1 << 12)(partial(self._split, inside=True))
        self._added = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        self._tag_words = (tags.open, tags.close)
        listed = {
            i: token for i, token in self._added.items() if len(token.strip()) > 1 and i != tokenizer.unk_token_id
        }
        words = sorted({*self._tag_words, *listed.values()}, key=len, reverse=True)
        self._listed, self._foreign = set(listed), re.compile(f"({'|'.join(map(re.escape, words))})")
        self._ids: set[int] = set()
        marked = (i for i, token in tokenizer.added_tokens_decoder.items() if token.special)
        self.special = frozenset(marked).union(tokenizer.all_special_ids)
        self._words: re.Pattern[str] = re.compile("(?!)")
        self.add(self.special)
        guard, guarded = self._split(_GUARD), self._split(f"{_GUARD}a")
        holds = guarded[: len(guard)] == guard and guarded[len(guard) :] != self._split("a")
        self._guard = guard if holds else []  # none where a piece by itself is as it is inside of a text

    def add(self, ids: Iterable[int]) -> None:
        """Add those of the ids that are added tokens: a template may use some that are not marked as special."""
        self._ids |= {i for i in ids if i in self._added and self._added[i] not in self._tag_words}
        words = sorted((self._added[i] for i in self._ids), key=len, reverse=True)
        self._words = re.compile("|".join(map(re.escape, words)) or "(?!)")

    def are_in(self, text: str) -> bool:
        """Return whether a text has control tokens when it is read like a template's."""
        found = self._ids.intersection(self.read(text))
        unknown = {self._tokenizer.unk_token_id}  # which any text may have
        return bool(found - unknown) or (bool(found) and self._words.search(text) is not None)

    def read(self, text: str, inside: bool = False) -> list[int]:
        """Return the ids of a text with its control tokens.

        Args:
            text: the text.
            inside: whether it goes on another text; some tokenizers put a space before what they are given.
        """
        return self._encode(text, inside)

    def plain(self, text: str, inside: bool = False) -> list[int]:
        """Return the ids of a text as plain characters; those of a text without control tokens are as ``read``.

        Args:
            text: the text.
            inside: see ``read``.
        """
        ids = self.read(text, inside)
        if self._ids.isdisjoint(ids):
            return ids
        ids = self._split(text, inside)
        if self._ids.isdisjoint(ids):
            return ids
        cuts = [0, *(match.start() + 1 for match in self._words.finditer(text)), len(text)]
        # What is not marked as special is still read as one token: it is cut behind its first character.
        return [i for start, end in pairwise(cuts) for i in self._split(text[start:end], inside or start > 0)]

    def characters_of(self, text: str) -> list[int]:
        """Return the ids of a text inside of another, its tag words and all added tokens encoded by characters.

        So no tag is there as it is in answers, whether a tag word is one token of the model or several.
        """
        ids: list[int] = []
        for at, part in enumerate(self._foreign.split(text)):
            found = [] if at % 2 else self.plain(part, inside=True)
            if at % 2 or not self._listed.isdisjoint(found):  # a tokenizer may know other spellings of its tokens
                found = [i for character in part for i in self._character(character)]
            ids += found
        return ids

    def replaced(self, text: str, replace: Callable[[str], str]) -> str:
        """Return a text with every control token in it replaced; all of it if they cannot be told apart."""
        result, n = self._words.subn(lambda match: replace(match[0]), text)
        return result if n or not self.are_in(text) else replace(text)

    def _split(self, text: str, inside: bool = False) -> list[int]:
        return self._encode(text, inside, split_special_tokens=True)

    def _encode(self, text: str, inside: bool, **options: bool) -> list[int]:
        if inside and self._guard:
            ids = self._encode(f"{_GUARD}{text}", False, **options)
            if ids[: len(self._guard)] == self._guard:
                return ids[len(self._guard) :]
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"])


class UserTurn:
    """A user turn that quotes foreign text, and the replies that a model may give to it, each scored as a whole.

    Special tokens inside the turn are encoded as plain characters: a web page or an answer must not be able to end the
    turn. A reply goes up to the end of turn, so that "1" and "10" are told apart; a blank that the template puts in
    front of it is part of it.

    Args:
        encoder: gives the tokenizer, the chat template and the end of turn.
        replies: texts of the possible replies.

    Attributes:
        replies: token ids of each reply, including the end of turn.
    """

    def __init__(self, encoder: Encoder, replies: Sequence[str]) -> None:
        self._quoted = lru_cache(maxsize=1 << 5)(encoder.pieces)  # the same text comes with every sentence
        place = encoder.place
        message = {"role": "user", "content": SLOT}
        prompt = render(encoder.tokenizer, [message], True, place.opening)
        before, _, after = prompt.partition(SLOT)
        self._before, self._after = encoder.template_pieces(before), encoder.template_pieces(after)
        self.replies: list[list[int]] = []
        for text in replies:
            reply = [*encoder.template_pieces(f"{place.blank}{text}{place.end}"), encoder.end_id]
            self.replies.append(reply[: reply.index(encoder.end_id) + 1])

    def quoted(self, text: str) -> list[int]:
        """Return the ids of a text, with special tokens in it encoded as plain characters."""
        return list(self._quoted(text))

    def context(self, head: str, middle: Sequence[int], tail: str, room: int | None) -> tuple[list[int], int] | None:
        """Return the ids of the prompt, from its beginning up to the reply.

        Args:
            head: beginning of the turn.
            middle: ids of the text that follows ``head`` (from ``quoted``); it is cut at its end where the prompt
                would be too long.
            tail: end of the turn.
            room: length of the model's context in tokens, for the prompt and the longest reply; None is no limit.

        Returns:
            The ids, and how many ids of ``middle`` are among them. None where there is no room for any of a non-empty
            ``middle``, since without it the prompt would ask something else, or no room for the rest.
        """
        first, last = self._before + self.quoted(head), self.quoted(tail) + self._after
        kept = len(middle)
        if room is not None:
            room -= len(first) + len(last) + max(map(len, self.replies))
            if room < (1 if kept else 0):
                return None
            kept = min(kept, room)
        return [*first, *middle[:kept], *last], kept
