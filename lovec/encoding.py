"""Text to token ids and back: prompts with one BOS, completions cut where tags are scored.

A completion is encoded piece by piece (sentence up to the opening tag word, then " X <closing tag>"), and the same
pieces are used in training, in scoring and in tagging. So the ids a policy is trained on are exactly those it is
asked about later, and a score is always compared as a whole string: "10" may be one token or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lovec.tags import DEFAULT_TAGS, TagFormat
from lovec.types import N_SCORES, LovecError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INSTRUCTION = """\
You are a helpful assistant. Your task is to provide accurate and informative answers to user queries.

For each sentence in your response:
- Include a confidence score from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.
- The score indicates how certain you are that the sentence is factually correct:
    - 0 = very low confidence (likely incorrect)
    - 10 = very high confidence (very likely correct)

Append the confidence score at the end of each sentence using the format: <confidence> X </confidence>,\x20
where X is a number from 0 to 10."""
"""The paper's instruction (section "Prompt for SFT and RL-based tuning"), word for word."""

QUESTION = "In a paragraph, could you tell me what you know about {entity}?"
"""The paper's question prompt (its case studies)."""

_SLOT = "\ue000"  # stands for the user turn while the chat template is rendered; no template writes it


class Encoder:
    """Encodes prompts and tagged completions for one tokenizer.

    Args:
        tokenizer: a tokenizer with a chat template.
        instruction: system prompt that asks for tags; it is put before the user turn where the template knows no
            system role.
        tags: the tag words.

    Attributes:
        end_id: id that ends an assistant turn.
        stop_ids: ids at which sampling stops.
        tails: ids of " X <closing tag>" for X = 0..10.

    Raises:
        LovecError: the tokenizer has no chat template, cannot give text back, merges the prompt with the answer, or
            ends a turn with no token of its own.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, instruction: str = INSTRUCTION, tags: TagFormat = DEFAULT_TAGS
    ) -> None:
        self.tokenizer: Any = tokenizer
        self._ids = lru_cache(maxsize=1 << 16)(self._tokenize)  # sentences come back every epoch and tagging step
        self._prompt = lru_cache(maxsize=1 << 14)(self._encode_prompt)
        self.instruction = instruction
        self.tags = tags
        name = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise LovecError(
                f"the tokenizer of {name} has no chat template; use an instruction-tuned model, or give a template "
                "with --model.policy.chat_template FILE.jinja"
            )
        self._system_role = self._knows_system_role()
        self.end_id = self._turn_end(name)
        self.stop_ids = tuple(sorted({self.end_id} | ({tokenizer.eos_token_id} - {None})))
        self.tails = [self.pieces(f" {score} {tags.close}") for score in range(N_SCORES)]
        for score, tail in enumerate(self.tails):
            tag = f"{tags.open} {score} {tags.close}"
            if (text := self.decode(self.pieces(f" {tags.open}") + tail).strip()) != tag:
                raise LovecError(f"the tokenizer of {name} does not give the tag {tag!r} back: it made {text!r} of it")

    def pieces(self, text: str) -> list[int]:
        """Ids of a piece of a completion: no special tokens added."""
        return list(self._ids(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def prompt(self, question: str, instruct: bool = True) -> list[int]:
        """Ids of the whole prompt, ready for the answer, with one BOS.

        Args:
            question: the user turn.
            instruct: whether the instruction goes with it (False asks for a plain answer).
        """
        return list(self._prompt(question, instruct))

    def dialogue(self, turns: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a whole conversation, ready for the next answer, with one BOS and the instruction first.

        Args:
            turns: (role, text) in their order; system texts follow the instruction, the others are "user" and
                "assistant", the first and the last of them the user's. A single user turn is what `prompt` gives.

        Raises:
            LovecError: the turns are others.
        """
        systems = [text for role, text in turns if role == "system"]
        spoken = [(role, text) for role, text in turns if role != "system"]
        if [role for role, _ in spoken] != [("user", "assistant")[i % 2] for i in range(len(spoken))] or not (
            len(spoken) % 2
        ):
            raise LovecError(
                f"the roles are {', '.join(role for role, _ in turns) or 'none'}; expected user and assistant in turn, "
                "the user's first and last, and system texts"
            )
        first, *others = spoken
        opening = self._messages(first[1], True, "\n\n".join([self.instruction, *systems]))
        rest = [{"role": role, "content": text} for role, text in others]
        return self._render([*opening, *rest], add_generation_prompt=True)

    def head(self, sentence: str, first: bool) -> list[int]:
        """Ids of a sentence and its opening tag word; all but the first begin with a space."""
        return self.pieces(f"{'' if first else ' '}{sentence} {self.tags.open}")

    def completion(self, sentences: Sequence[str], scores: Sequence[int]) -> list[int]:
        """Ids of a whole tagged answer, the end of turn included."""
        return self.marked(sentences, scores)[0]

    def marked(self, sentences: Sequence[str], scores: Sequence[int]) -> tuple[list[int], list[int]]:
        """Ids of a whole tagged answer, and the indices at which the tails of its scores begin."""
        ids: list[int] = []
        marks: list[int] = []
        for i, (sentence, score) in enumerate(zip(sentences, scores, strict=True)):
            ids += self.head(sentence, first=i == 0)
            marks.append(len(ids))
            ids += self.tails[score]
        return [*ids, self.end_id], marks

    def _tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _encode_prompt(self, question: str, instruct: bool) -> tuple[int, ...]:
        return tuple(self._render(self._messages(question, instruct), add_generation_prompt=True))

    def _messages(self, question: str, instruct: bool, instruction: str | None = None) -> list[dict[str, str]]:
        if not instruct:
            return [{"role": "user", "content": question}]
        instruction = instruction or self.instruction
        if self._system_role:
            return [{"role": "system", "content": instruction}, {"role": "user", "content": question}]
        return [{"role": "user", "content": f"{instruction}\n\n{question}"}]

    def _render(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> list[int]:
        ids = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=add_generation_prompt, tokenize=True, return_dict=True
        )["input_ids"]
        bos = self.tokenizer.bos_token_id
        while bos is not None and list(ids[:2]) == [bos, bos]:  # template and tokenizer both wrote one
            ids = ids[1:]
        return list(ids)

    def _knows_system_role(self) -> bool:
        """Whether the template renders a system turn (Gemma's raises, others drop it silently)."""
        from jinja2.exceptions import TemplateError

        turns = [{"role": "system", "content": "7"}, {"role": "user", "content": "3"}]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        except TemplateError:
            return False
        alone = str(self.tokenizer.apply_chat_template(turns[1:], tokenize=False))
        return str(text).count("7") > alone.count("7")

    def _turn_end(self, name: str) -> int:
        """The id that follows an assistant's answer in the template."""
        messages = self._messages("3", instruct=True)
        prompt = self._render(messages, add_generation_prompt=True)
        whole = self._render([*messages, {"role": "assistant", "content": "7"}], add_generation_prompt=False)
        if whole[: len(prompt)] != prompt:
            raise LovecError(
                f"the chat template of {name} renders a prompt differently once an answer follows; "
                "training and sampling would disagree; give another with --model.policy.chat_template FILE.jinja"
            )
        special = set(self.tokenizer.all_special_ids)
        ends = [i for i in whole[len(prompt) :] if i in special]
        end = ends[0] if ends else self.tokenizer.eos_token_id
        if end is None:
            raise LovecError(f"the tokenizer of {name} has no EOS token, and its template no token that ends a turn")
        return int(end)


class UserTurn:
    """A user turn that holds somebody else's text, and the replies a model may give to it, each as a whole.

    Special tokens in the turn are letters only: a web page or an answer must not be able to end it. A reply goes up to
    the end of turn, so that "1" and "10" are told apart; what the template puts around it (a blank, an empty thought)
    is part of it.

    Args:
        encoder: its tokenizer, chat template and end of turn.
        replies: their texts.

    Attributes:
        replies: their token ids, the end of turn included.
    """

    def __init__(self, encoder: Encoder, replies: Sequence[str]) -> None:
        self._tokenizer = encoder.tokenizer
        self._quoted = lru_cache(maxsize=1 << 5)(self._tokenize)  # the same text comes with every sentence
        asked = {"role": "user", "content": _SLOT}
        prompt = self._rendered([asked], add_generation_prompt=True)
        before, _, after = prompt.partition(_SLOT)
        self._before, self._after = encoder.pieces(before), encoder.pieces(after)
        self.replies: list[list[int]] = []
        for text in replies:
            whole = self._rendered([asked, {"role": "assistant", "content": text}], add_generation_prompt=False)
            reply = [*encoder.pieces(whole[len(prompt) :]), encoder.end_id]
            self.replies.append(reply[: reply.index(encoder.end_id) + 1])

    def quoted(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are letters only."""
        return list(self._quoted(text))

    def context(self, head: str, middle: Sequence[int], tail: str, room: int | None) -> tuple[list[int], int] | None:
        """Ids of the prompt, from its beginning up to the reply.

        Args:
            head: the turn's beginning.
            middle: ids of what follows it (``quoted``); where the whole is too long, this is cut at its end.
            tail: the turn's end.
            room: tokens that the model's context holds, for the prompt and the longest reply; None is any number.

        Returns:
            The ids, and how many of ``middle`` are among them. None where the rest alone fills the context: without
            any of ``middle``, if there was some, it would be another question.
        """
        first, last = self._before + self.quoted(head), self.quoted(tail) + self._after
        kept = len(middle)
        if room is not None:
            room -= len(first) + len(last) + max(map(len, self.replies))
            if room < (1 if kept else 0):
                return None
            kept = min(kept, room)
        return [*first, *middle[:kept], *last], kept

    def _tokenize(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        return tuple(ids)

    def _rendered(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, tokenize=False)
        )
