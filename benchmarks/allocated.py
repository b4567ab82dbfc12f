"""How much memory a step really takes: what PyTorch's allocator gives out and takes back, by its profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile


def allocated(step: Callable[[], object]) -> int:
    """Run a step and return the most bytes that it had allocated at a time, beyond what was there before.

    Temporary memory of PyTorch's own kernels counts; what libraries below it take, such as oneDNN, does not. Garbage is
    collected first: if that happened within the step, its bytes would be subtracted.
    """
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        now += change
        peak = max(peak, now)
    return peak


def there(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()) -> int:
    """Return the bytes of a module's weights, of what decodes those in 4 bits, and of optimiser states."""
    tensors: list[Tensor] = []
    for parameter in module.parameters():
        tensors.append(parameter.to_local() if isinstance(parameter, DTensor) else parameter.data)
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            tensors += [t for t in (state.absmax, state.code, state.offset) if t is not None]
            state = state.state2
    for optimizer in optimizers:
        tensors += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
