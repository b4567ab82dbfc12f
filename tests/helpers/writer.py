"""Engines that write tagged answers, which random models do not; they score with the model."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tinyrun import tiny

from lovec.engines import TransformersEngine
from lovec.taggers import Session, open_session
from lovec.types import Completion, OnToken, Sampling


class Writer(TransformersEngine):
    """Writes tagged sentences, a different answer for each prompt; random models write no tags. It scores as always."""

    tokenizer: Any = None

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        stop_ids: Sequence[int],
        keys: Sequence[str] | None = None,
        on_token: OnToken | None = None,
    ) -> list[list[Completion]]:
        groups = []
        for row, prompt in enumerate(prompts):
            begin, answer = self._answer(list(prompt), stop_ids[0])
            written: list[int] = []
            for token in answer[len(prompt) - begin :]:
                written.append(token)
                if (on_token and not on_token(row, 0, token)) or len(written) == sampling.max_new_tokens:
                    break
            logps = tuple(-0.01 * (1 + token % 50) for token in written)
            groups.append([Completion(tuple(written), logps, written[-1] in stop_ids)])
        return groups

    def _answer(self, prompt: list[int], end: int) -> tuple[int, list[int]]:
        """The length of the prompt that an answer continues, and the answer."""
        for begin, answer in self.known:
            if prompt[: len(begin)] == begin and answer[: len(prompt) - len(begin)] == prompt[len(begin) :]:
                return len(begin), answer
        answer = [*self.tokenizer(self.text(prompt), add_special_tokens=False)["input_ids"], end]
        self.known.append((prompt, answer))
        return len(prompt), answer

    def __init__(self) -> None:
        super().__init__(max_rows=4)
        self.known: list[tuple[list[int], list[int]]] = []

    def sync(self, policy: Any) -> None:
        super().sync(policy)
        self.tokenizer = policy.tokenizer

    def text(self, prompt: list[int]) -> str:
        """The answer to a prompt."""
        draw = random.Random(str(prompt))
        words = ("Ada ran", "She wrote a note on engines", "It was noon", "London is a town")
        parts = [f"{draw.choice(words)}. <confidence> {draw.choice('0123456789x')} </confidence>" for _ in range(4)]
        return " ".join([*parts, "And"])


class Watched(Writer):
    """A writer that gives the log-probabilities of watched tokens, as the engines of lovec do.

    Attributes:
        scored: the contexts that it was asked to score.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[list[int]] = []

    def generate(self, *arguments: Any, **named: Any) -> list[list[Completion]]:
        prompts, sampling = arguments[:2]
        groups = []
        for prompt, [completion] in zip(prompts, super().generate(*arguments, **named), strict=True):
            with torch.no_grad():
                logits = self._model(torch.tensor([[*prompt, *completion.ids]])).logits[0, len(prompt) - 1 : -1]
            rows = logits.log_softmax(-1)[:, list(sampling.watched)].tolist()
            watched = tuple(dict(zip(sampling.watched, row, strict=True)) for row in rows) if sampling.watched else ()
            groups.append([replace(completion, watched=watched)])
        return groups

    def score(self, contexts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]) -> list[list[float]]:
        self.scored += map(list, contexts)
        return super().score(contexts, choices)


class Scripted(Writer):
    """Writes one answer, whatever it is asked, at a pace; `token_logps` and scores are those of the model.

    Attributes:
        answer: the text, with tags.
        pause: seconds before every token.
        held: number of tokens after which it waits for ``go``; None never waits.
        go: lets it go on.
        asked: how it was told to sample, call by call.
    """

    answer = "One. <confidence> 9 </confidence>"
    pause = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Sampling] = []
        self.held: int | None = None
        self.go = threading.Event()
        self.written = 0

    def text(self, prompt: list[int]) -> str:
        return self.answer

    def generate(self, *arguments: Any, on_token: OnToken | None = None, **named: Any) -> list[list[Completion]]:
        self.asked.append(arguments[1])

        def paced(*place: int) -> bool:
            time.sleep(self.pause)
            self.written += 1
            if self.held is not None and self.written > self.held:
                self.go.wait(60)
            return on_token is None or on_token(*place)

        return super().generate(*arguments, on_token=paced, **named)


@contextmanager
def scripted(folder: Path, answer: str) -> Iterator[Session]:
    """Open a session with a tiny Llama in a folder, whose engine writes the same answer whatever it is asked."""
    engine = Scripted()
    made = tiny(folder, "llama", max_position_embeddings=1024)
    with open_session(made, engine=engine, instruction="Rate.", device="cpu") as session:
        engine.answer = answer
        yield session
