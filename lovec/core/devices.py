"""Where a model runs and how precisely; the names of devices, engines and dtypes are checked without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lovec.core.errors import LovecError
from lovec.core.plugins import plugins

if TYPE_CHECKING:
    import torch

_DEVICES = ("cpu", "cuda", "hpu", "mps", "mtia", "npu", "xla", "xpu")
_ENGINES = ("transformers", "vllm")
_SERVERS = ("http://", "https://")
_DTYPES = ("float32", "bfloat16")


def check_dtype_name(name: str) -> None:
    """Refuse what is not a precision that models run in.

    Raises:
        LovecError: so it is.
    """
    if name not in _DTYPES:
        raise LovecError(f"policy.dtype is {name!r}, expected {' or '.join(_DTYPES)}")


def check_device_name(name: str) -> None:
    """Refuse what is not a device of any machine; whether it is one of this machine, ``device_of`` knows.

    Args:
        name: such as "cpu" or "cuda:1".

    Raises:
        LovecError: so it is.
    """
    kind, colon, number = name.partition(":")
    if kind not in _DEVICES or (colon and not number.isdecimal()):
        raise LovecError(
            f"device is {name!r}, expected one of {', '.join(_DEVICES)}, with a number where there are several, "
            f"such as cuda:1"
        )


def check_engine_name(name: str) -> None:
    """Refuse what is neither an engine, of lovec or of a package that brings one, nor the address of a server.

    Raises:
        LovecError: so it is.
    """
    if name in _ENGINES or name.startswith(_SERVERS):
        return
    if name not in (brought := plugins("lovec.engines")):
        raise LovecError(
            f"the engine is {name!r}, expected one of {', '.join([*_ENGINES, *brought])}, or the address of a vLLM "
            f"server such as http://127.0.0.1:8000/v1"
        )


def device_of(name: str | None) -> torch.device:
    """Return a device of this machine.

    Args:
        name: such as "cpu", "cuda" or "cuda:1"; None takes CUDA if there is a device, else the CPU.

    Raises:
        LovecError: there is no such device here.
    """
    import torch

    if name:
        check_device_name(name)
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    try:
        device = torch.device(name or ("cuda" if cuda else "cpu"))
        torch.zeros(1, device=device).item()  # "meta" is a device without memory
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0][:120]
        raise LovecError(
            f"device is {name!r}, which this machine does not have; expected {', '.join(['cpu', *cuda])} ({reason})"
        ) from None
    return device
