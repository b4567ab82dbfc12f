"""What a step costs: its floating-point operations, and the bytes that autograd keeps for its backward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Cost:
    """What a step costs.

    Attributes:
        flops: floating-point operations of all matrix products and attention calls.
        saved_bytes: the most bytes that autograd kept at any time for a backward pass, parameters not counted.
    """

    flops: int
    saved_bytes: int


def cost(step: Callable[[], object], parameters: Collection[Tensor]) -> Cost:
    """Run a step without the arithmetic of its matrix products, and count them.

    The same operations are called with the same shapes as in a real step, but products are zeros, so that large models
    can be counted in seconds. The step must not decide anything by their values.

    Args:
        step: makes all forward and backward passes of a step.
        parameters: weights, which are there anyway and are not counted as saved.
    """
    formulas = {ATTENTION: _attention, ATTENTION_BACKWARD: _attention_backward, aten.addmm_: _addmm}
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with saved_bytes(parameters) as saved, WithoutProducts(), counter:
        step()
    return Cost(counter.get_total_flops(), saved.peak)


def attention_pairs(queries: int, keys: int, causal: bool) -> int:
    """Return the pairs of a query and a key that an attention call computes; a causal call skips later keys."""
    if not causal:
        return queries * keys
    whole = min(queries, keys)
    return whole * (whole + 1) // 2 + (queries - whole) * keys


def _attention(
    query: Sequence[int], key: Sequence[int], value: Any, dropout: float = 0.0, causal: bool = False, **_: Any
) -> int:
    batch, heads, queries, width = query
    return 4 * batch * heads * width * attention_pairs(queries, key[2], causal)


def _attention_backward(
    grad: Any,
    query: Sequence[int],
    key: Sequence[int],
    value: Any,
    out: Any,
    sums: Any,
    dropout: float,
    causal: bool,
    **_: Any,
) -> int:
    return _attention(query, key, value, dropout, causal) * 5 // 2  # five products instead of two: one is made again


def _addmm(total: Any, a: Sequence[int], b: Sequence[int], **_: Any) -> int:
    return 2 * a[0] * a[1] * b[1]


class Saved:
    """Counts the bytes that autograd keeps; tensors that share their memory count once."""

    def __init__(self, parameters: Collection[Tensor]) -> None:
        self._ignored = {p.untyped_storage().data_ptr() for p in parameters}
        self._holders: dict[int, int] = {}
        self._now = self.peak = 0

    def keep(self, tensor: Tensor) -> _Kept:
        """Count a tensor until autograd lets go of what is returned."""
        return _Kept(self, tensor)

    def change(self, storage: Any, holders: int) -> None:
        """Add or remove one holder of some memory."""
        address = storage.data_ptr()
        if address in self._ignored:
            return
        before = self._holders.get(address, 0)
        self._holders[address] = before + holders
        if (before == 0) != (before + holders == 0):
            self._now += holders * storage.nbytes()
            self.peak = max(self.peak, self._now)


class _Kept:
    def __init__(self, saved: Saved, tensor: Tensor) -> None:
        self._saved, self.tensor = saved, tensor
        saved.change(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self._saved.change(self.tensor.untyped_storage(), -1)


@contextmanager
def saved_bytes(parameters: Collection[Tensor]) -> Iterator[Saved]:
    """Count what autograd keeps in the block."""
    saved = Saved(parameters)
    with saved_tensors_hooks(saved.keep, lambda kept: kept.tensor):
        yield saved


class WithoutProducts(TorchDispatchMode):
    """Returns zeros, of the shape that they would have, instead of matrix products and attention."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._overloadpacket
        if packet in (aten.mm, aten.bmm, aten.addmm):
            a, b = args[-2:]
            if (out := kwargs.get("out")) is not None:
                return out.zero_()
            return a.new_zeros((*a.shape[:-1], b.shape[-1]))
        if packet is aten.addmm_:
            return args[0]
        if packet is ATTENTION:
            query = args[0]
            return torch.zeros_like(query), query.new_zeros(query.shape[:-1], dtype=torch.float32)
        if packet is ATTENTION_BACKWARD:
            return tuple(torch.zeros_like(tensor) for tensor in args[1:4])
        return func(*args, **kwargs)
