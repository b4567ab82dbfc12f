"""Chat templates: rendering conversations, and finding where a template puts an answer.

A prompt is what the template writes before an answer that is to come, up to the place of the answer itself. Where the
template writes something between the two, such as the channel of gpt-oss or the empty thought of Qwen3, that belongs to
the prompt. A thought that a template begins is ended at once: models of lovec answer without thinking.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lovec.types import LovecError

SLOT = "\ue000"
"""Stands for the content of a turn while a chat template is rendered; no template writes it."""

_ANSWER = "\ue001"  # the same for the content of an answer
_MOST_STEPS = 1_000_000  # lines of Python that a chat template may run for; real ones need some hundred per turn
# 26 July 2024, noon: what templates of Llama 3 write where they know no date. A macro hides the function of this
# name that transformers defines. It takes no functions as arguments since 5.22, but makes texts of them. The line break
# after the macro belongs to its end and is not written.
_CLOCK = "strftime_now"
_DAY = {
    "%Y": "2024", "%m": "07", "%d": "26", "%y": "24", "%B": "July", "%b": "Jul", "%A": "Friday", "%a": "Fri",
    "%j": "208", "%-d": "26", "%H": "12", "%I": "12", "%M": "00", "%S": "00", "%p": "PM",
}  # fmt: skip
_FIXED_CLOCK = (
    f"{{% macro {_CLOCK}(format) -%}}{{{{- format"
    + "".join(f" | replace('{directive}', '{text}')" for directive, text in _DAY.items())
    + " -}}{%- endmacro %}\n"
)
_THOUGHT = "<think>"
_END_OF_THOUGHT = "\n</think>\n\n"


class Refused(LovecError):
    """A chat template raised an error of its own, as some do about a system turn."""


@dataclass(frozen=True, slots=True)
class AnswerPlace:
    """What a chat template writes around an answer.

    Attributes:
        opening: what follows the rendered prompt and is not yet the answer: an empty thought, or the name of a channel.
        blank: white space between prompt and answer.
        end: what follows the answer.
    """

    opening: str
    blank: str
    end: str

    @classmethod
    def of(cls, tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> AnswerPlace:
        """Find it, by comparing the prompt of a conversation with the conversation after it was answered.

        Some templates write what is before the last question differently once it is answered: Mistral's puts the
        system text in front of the last turn, if that is the user's. This does not matter, since a prompt is always
        rendered without an answer. What lies between question and answer matters.

        Args:
            tokenizer: the tokenizer.
            messages: a conversation whose last turn is the user's, with ``SLOT`` at its end.

        Raises:
            LovecError: the template fails, or does not tell where the answer begins.
        """
        answered = [*messages, {"role": "assistant", "content": _ANSWER}]
        prompt = str(render(tokenizer, messages, add_generation_prompt=True))
        whole = str(render(tokenizer, answered, add_generation_prompt=False))
        _, asked, after = prompt.rpartition(SLOT)
        body, found, end = whole.partition(_ANSWER)
        _, repeated, between = body.rpartition(SLOT)
        if after.rstrip().endswith(_THOUGHT):
            return cls(_END_OF_THOUGHT, "", end)
        if asked and found and repeated:
            if between.startswith(after):
                rest = between.removeprefix(after)
                return cls(rest, "", end) if rest.strip() else cls("", rest, end)
            if between.rstrip() == after.rstrip():
                return cls("", "", end)
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise LovecError(
            f"the chat template of {name} renders a prompt differently once an answer follows: after the question it "
            f"writes {after[:80]!r} before an answer that is to come, and {between[:80]!r} before one that is there, "
            "so training and sampling would disagree; give another with --model.policy.chat_template FILE.jinja"
        )


def render(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = False, opening: str = ""
) -> str:
    """Render a conversation with the chat template of a tokenizer, which a stranger may have written.

    Templates that know the option ``enable_thinking`` are told not to think; those that write today's date always write
    the same one, so that a model is asked tomorrow as it was trained today.

    Args:
        tokenizer: the tokenizer.
        messages: turns with their role and content.
        add_generation_prompt: whether the beginning of an answer follows.
        opening: what follows that, see ``AnswerPlace``.

    Raises:
        LovecError: the template fails, or runs for more than ``_MOST_STEPS`` lines of Python.
    """
    from jinja2.exceptions import TemplateError

    steps, name, outer = 0, tokenizer.name_or_path or type(tokenizer).__name__, sys.gettrace()

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > _MOST_STEPS:
            raise LovecError(
                f"the chat template of {name} does not come to an end; give another with --model.policy.chat_template "
                "FILE.jinja"
            )
        return count

    sys.settrace(count)  # of this thread only; a time limit would depend on the machine
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            chat_template=_dated(tokenizer.get_chat_template()),
            enable_thinking=False,
        )
        return f"{text}{opening}"
    except LovecError:
        raise
    except Exception as error:  # whatever the template makes it stumble over
        kind = Refused if isinstance(error, TemplateError) else LovecError
        raise kind(
            f"the chat template of {name} fails: {' '.join(str(error).split())[:160] or type(error).__name__}"
        ) from error
    finally:
        sys.settrace(outer)


def _dated(template: str) -> str:
    return f"{_FIXED_CLOCK}{template}" if _CLOCK in template else template
