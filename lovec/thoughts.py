"""What a reasoning model writes before its answer, between ``<think>`` and ``</think>``: never part of the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def thought_length(answer: str) -> int:
    """Return how many of the first characters of an answer are a thought, its marks and the white space after included.

    An answer begins with a thought if its first word is ``<think>``, or if ``</think>`` comes without it, since many
    chat templates write the first mark themselves. A mark further on is text like any other.

    Args:
        answer: an answer; a thought that does not end takes all of it.
    """
    close = answer.find(CLOSE)
    if not answer.lstrip().startswith(OPEN) and (close < 0 or OPEN in answer[:close]):
        return 0
    if close < 0:
        return len(answer)
    rest = answer[close + len(CLOSE) :]
    return len(answer) - len(rest.lstrip())


def without_thoughts(reply: str) -> str | None:
    """Return what follows the last thought of a reply to a question; None where the reply ends inside a thought.

    Args:
        reply: what a model wrote; a thought may stand anywhere in it.
    """
    rest = reply.rpartition(CLOSE)[2]
    return None if OPEN in rest else rest
