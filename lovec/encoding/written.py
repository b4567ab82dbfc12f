"""Scores that are known from writing: a model that writes a tag computes, on the way, how probable each score was.

Where an engine returns the log-probabilities of the tokens that scores begin with at every token that it samples
(``Sampling.watched``), the scores of an answer need no computation of their own.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

NEGLIGIBLE = 1e-4
"""Share of the scores' probability below which scores that writing does not tell apart need not be told apart: no share
of a score is further off."""

Steps: TypeAlias = Sequence[tuple[int, Mapping[int, float]]]
"""Tokens that a model wrote one after the other, each with natural log-probabilities of tokens in its place, by id."""


def steps_behind(
    context: Sequence[int], prompt: Sequence[int], ids: Sequence[int], watched: Sequence[Mapping[int, float]]
) -> Steps:
    """Return what a model wrote behind a context; nothing where the context is not the beginning of what it wrote.

    Args:
        context: token ids of the context.
        prompt: token ids of the prompt that the model answered.
        ids: token ids of its answer so far.
        watched: log-probabilities in the places of these, by token id; shorter where they are not known.
    """
    written = len(context) - len(prompt)
    if not 0 <= written < len(watched) or list(context) != [*prompt, *ids[:written]]:
        return ()
    return list(zip(ids[written:], watched[written:], strict=False))


def choice_logps(choices: Sequence[Sequence[int]], steps: Steps) -> list[float] | None:
    """Return the log-probability of every choice behind a context, if what was written behind it tells.

    The first tokens of choices are told where the context ends, and later ones where all tokens before them were
    written: with a token per digit, how a 1 goes on is told only if a 1 was written. The choices that are not told
    apart share the probability of what they have in common in equal parts, if all of this is less than ``NEGLIGIBLE``
    of the probability of the others.

    Args:
        choices: token ids of each choice.
        steps: what was written behind the context.

    Returns:
        Natural log-probabilities, one per choice; None where they are not known.
    """
    logps: list[float] = []
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)  # choices by the tokens that are known of them
    for number, choice in enumerate(choices):
        logps.append(0.0)
        for depth, token in enumerate(choice):
            was_passed = depth < len(steps) and all(steps[at][0] == choice[at] for at in range(depth))
            if not was_passed or token not in steps[depth][1]:
                alike[tuple(choice[:depth])].append(number)
                break
            logps[-1] += steps[depth][1][token]
    if alike:
        told = set(range(len(choices))).difference(*alike.values())
        rest = sum(math.exp(logps[numbers[0]]) for numbers in alike.values())
        if rest >= NEGLIGIBLE * sum(math.exp(logps[number]) for number in told):
            return None
    for numbers in alike.values():
        for number in numbers:
            logps[number] -= math.log(len(numbers))
    return logps
