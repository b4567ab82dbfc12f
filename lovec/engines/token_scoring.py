"""Log-probabilities of the tokens that are there, from the hidden states of a forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from lovec.core.settings import check_count
from lovec.types import MOST_TOP, LovecError, TokenScores

_LOGITS_AT_ONCE = 1 << 24
"""Logits that are in memory at once: 64 MiB in float32."""


def check_starts(contexts: Sequence[Sequence[int]], starts: Sequence[int], top: int) -> None:
    """Check the arguments of ``Engine.token_logps``.

    Raises:
        LovecError: there is not one start per context, one lies outside it or is 0, or ``top`` is out of range.
    """
    check_count("top", top, at_least=0, at_most=MOST_TOP)
    if len(starts) != len(contexts):
        raise LovecError(f"got {len(starts)} starts for {len(contexts)} contexts, expected one each")
    for number, (context, start) in enumerate(zip(contexts, starts, strict=True)):
        if not 1 <= start <= len(context):
            raise LovecError(
                f"start {number} is {start}, expected 1 to {len(context)}, the length of its context; the first token "
                "follows nothing and has no log-probability"
            )


@contextmanager
def outputs_of(modules: Sequence[Any], read: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
    """Yield a list that gets ``read(hidden states)`` of every module, in their order, when the model runs.

    Args:
        modules: parts of a model that return hidden states [B, Q, D], alone, first in a tuple or as
            ``last_hidden_state``.
        read: picks what is kept of them.
    """
    found: list[Tensor] = []

    def hook(module: Any, inputs: Any, output: Any) -> None:
        states = getattr(output, "last_hidden_state", output)
        found.append(read(states[0] if isinstance(states, tuple) else states))

    with ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_hook(hook).remove)
        yield found


def token_scores(model: Any, states: Tensor, targets: Sequence[int], top: int) -> TokenScores:
    """Compute log-probabilities of tokens from the last hidden states before them.

    Args:
        model: a transformers causal language model.
        states: P last hidden states, [P, D].
        targets: P token ids.
        top: number of the most probable tokens to return for every place.
    """
    head = model.get_output_embeddings()
    softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    chunk = max(1, _LOGITS_AT_ONCE // model.config.get_text_config().vocab_size)
    ids = torch.tensor(targets, dtype=torch.long, device=states.device)
    logps: list[float] = []
    most: list[dict[int, float]] = []
    for part, wanted in zip(torch.split(states, chunk), torch.split(ids, chunk), strict=True):
        logits = head(part)
        if softcap is not None:
            logits = torch.tanh(logits / softcap) * softcap
        logits = logits.float()
        norm = logits.logsumexp(-1, keepdim=True)
        logps += (logits.gather(-1, wanted[:, None]) - norm)[:, 0].tolist()
        if top:
            values, tokens = (logits - norm).topk(min(top, logits.shape[-1]))
            most += [dict(zip(*row, strict=True)) for row in zip(tokens.tolist(), values.tolist(), strict=True)]
    return TokenScores(tuple(logps), tuple(most))
