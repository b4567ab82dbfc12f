"""Where the time of a step on a GPU goes, and which share of the device's arithmetic it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cost import Sizes, rectangle, step_flops
from lightning.pytorch import Callback, Trainer

from lovec.core.stopwatch import Stopwatch
from lovec.modules.batching import Example

PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations per second by part of a device's name, as its maker states them."""
PHASES = {"reference_token_logps": "reference", "loss": "forward", "manual_backward": "backward", "update": "optimiser"}
"""Methods of a module whose time is measured, and what it is called: without that of those inside, as ``Stopwatch``
does it, so that what remains of ``update`` is the optimiser's step."""


class StepTimer(Callback):
    """Times the phases of every step, and keeps what it learns from."""

    def __init__(self, module: Any) -> None:
        self.rows: list[dict[str, float]] = []
        self.examples: Sequence[Example] = ()
        self._watch = Stopwatch()
        module.update = self._keeping(module.update)
        for method, name in PHASES.items():
            setattr(module, method, self._timed(getattr(module, method), name))

    def on_train_batch_start(self, trainer: Trainer, module: Any, *args: Any) -> None:
        """Start timing a step."""
        synchronize()
        self._watch = Stopwatch()
        self._step = self._watch.phase("rollout")  # what is outside of the other phases
        self._step.__enter__()

    def on_train_batch_end(self, trainer: Trainer, module: Any, *args: Any) -> None:
        """Stop timing the step."""
        synchronize()
        self._step.__exit__(None, None, None)
        self.rows.append(dict(self._watch.seconds))

    def _keeping(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def keep(examples: Sequence[Example]) -> None:
            self.examples = examples
            update(examples)

        return keep

    def _timed(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            synchronize()
            with self._watch.phase(name):
                result = method(*args, **kwargs)
                synchronize()
            return result

        return run


def synchronize() -> None:
    """Wait until the GPU has finished its work, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def model_flops(config: Mapping[str, Any], examples: Sequence[Example], reference: bool, lora_r: int) -> int:
    """Return the operations of a step whose sequences are computed one by one, without padding or recomputation."""
    sequences = [sequence for example in examples for sequence in example.sequences]
    sizes = sum((rectangle([sequence]) for sequence in sequences), Sizes(0, 0, 0))
    return step_flops(config, sizes, sizes if reference else None, lora_r=lora_r)


def utilisation(flops: int, seconds: float) -> float | None:
    """Return model FLOPs utilisation, a fraction; None on a device whose peak is not known.

    Work that is shared counts as if it were done for every sequence, so it may exceed what the hardware has done.
    """
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    peak = next((peak for part, peak in PEAKS.items() if part in name), None)
    return None if peak is None else flops / seconds / peak
