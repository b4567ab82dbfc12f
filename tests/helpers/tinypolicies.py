"""The same tiny policy with shared beginnings and with padding, and what tests compare of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tinyrun import tiny
from torch import Tensor

from lovec.policy import Policy, PolicyConfig

CHOICES = [(40, 41), (42, 41), (40, 43, 41), (44,)]


def ids(count: int, seed: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def policies(folder: Path, arch: str, **config: Any) -> tuple[Policy, Policy]:
    """The same policy, with shared beginnings and with padding; both have a random adapter of full effect."""
    made = []
    for share in (True, False):
        settings = PolicyConfig(model=tiny(folder, arch), lora_r=4, lora_alpha=8, share_prefixes=share, **config)
        policy = Policy(settings).train()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in policy.trainable():
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
        made.append(policy)
    return made[0], made[1]


def gradient(policy: Policy, *values: Tensor) -> Tensor:
    policy.zero_grad()
    total = sum(
        (x * torch.randn(x.shape, generator=torch.Generator().manual_seed(9), dtype=x.dtype)).sum() for x in values
    )
    total.backward()  # type: ignore[union-attr]
    return torch.cat([p.grad.flatten() for p in policy.trainable()])  # type: ignore[union-attr]


def counted(policy: Policy) -> list[int]:
    """The tokens of every forward pass of the policy from now on, as a list that grows."""
    seen: list[int] = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _, args, __: seen.append(args[0].numel()))
    return seen
