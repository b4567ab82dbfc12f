"""A pytest plugin that adds the device ``npu``, which computes on the CPU and, like CUDA, refuses its tensors.

``LOVEC_TEST_DEVICE=npu pytest -p otherdevice`` builds it with a C++ compiler (half a minute, once), and has Lightning
and lovec take it wherever a device is chosen for them. What was left on the CPU, or put there, is an error then.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch.nn.attention import flex_attention
from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

from lovec import tries
from lovec.core import devices
from lovec.core.files import cache_folder
from lovec.tries import attention

NAME = "npu"
SOURCE = Path(__file__).with_suffix(".cpp")


def compiler() -> str:
    """The name of the C++ compiler, which need not be there."""
    return os.environ.get("CXX", "g++")


def library() -> Path:
    """The device as a library, built where it is not yet."""
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    made = cache_folder() / f"otherdevice-{digest}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            out = Path(folder) / made.name
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
            command = [compiler(), "-std=c++20", "-O0", "-shared", "-fPIC", abi, str(SOURCE), "-o", str(out)]
            command += [f"-I{path}" for path in include_paths()]
            command += [f"-L{TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu", "-ltorch"]
            subprocess.run(command, check=True)
            out.replace(made)
    return made


class OtherDevice(Accelerator):
    """The device, as Lightning sees it."""

    def setup_device(self, device: torch.device) -> None: ...

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return 1

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


def module() -> ModuleType:
    """What ``torch.npu`` is asked for."""
    made = ModuleType(NAME)
    made.is_available = made.is_initialized = lambda: True  # type: ignore[attr-defined]
    made.device_count, made.current_device = lambda: 1, lambda: 0  # type: ignore[attr-defined]
    made._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    made.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    made.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    return made


def register() -> None:
    """Add the device to this process, and have it chosen where none is named."""
    torch.ops.load_library(library())
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module())
    torch.utils.generate_methods_for_privateuse1_backend()
    AcceleratorRegistry.register(NAME, OtherDevice, description="the device of these tests")
    connector: Any = _AcceleratorConnector
    choose, mixed, device_of = connector._choose_strategy, MixedPrecision.__init__, devices.device_of

    def strategy(self: Any) -> Any:
        made = choose(self)
        single = isinstance(made, SingleDeviceStrategy) and self._accelerator_flag == NAME
        return SingleDeviceStrategy(device=torch.device(NAME, 0)) if single else made

    def precision(self: Any, precision: Any, device: str, scaler: Any = None) -> None:
        mixed(self, precision, NAME if device == "cuda" else device, scaler)  # Lightning takes what is no CPU for CUDA

    connector._choose_auto_accelerator = staticmethod(lambda: NAME)
    connector._choose_strategy = strategy
    MixedPrecision.__init__ = precision  # type: ignore[method-assign]
    devices.device_of = lambda name: device_of(name or NAME)

    # Attention over shared tokens as on CUDA, by the definition of flex attention: there is no kernel to compile.
    flex_attention._validate_device = lambda *tensors: None  # type: ignore[assignment]
    attention._compiled_flex_attention = lambda: flex_attention.flex_attention  # type: ignore[assignment]
    for operator in (torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward):
        operator.fallthrough(torch._C.DispatchKey.AutocastPrivateUse1)  # as of CUDA's
    tries.missing_kernels = lambda device: None


def pytest_configure(config: Any) -> None:
    """Register the device before any test is collected."""
    register()
