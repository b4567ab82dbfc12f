"""What the tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

# MKL keeps its buffers by thread: in a fork of a process whose other threads have multiplied matrices, as the servers
# of the tests do, the search for a free one may never end. MKL reads this before its first product.
os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")

# Forks of the tests load models in one thread: the pool of threads in which transformers does it otherwise is one more
# thing that a fork of a process with threads may lack.
os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")

import pytest
from hypothesis import HealthCheck, settings
from tinyrun import sft_adapter, tiny

# A busy machine is no reason to fail; where CI is set, every run tries the same examples.
settings.register_profile(
    "lovec", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("lovec")

# Started in the background, or by nohup, the tests would inherit signals that are ignored, and so would their children.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_left_out_of_collections() -> None:
    """Freeze the objects of what is imported by now: going through them takes a second, and many commands collect."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_files_of_other_tests() -> Iterator[None]:
    """Forget modules named ``my_...``, which stand for files of users, and where the commands looked for them."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the key nor the address of an endpoint is set, whatever this machine has."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapter(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter that SFT has written for it."""
    return sft_adapter(tmp_path_factory.mktemp("sft"), model)
