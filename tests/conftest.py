"""What the tests of training share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tinyrun import sft_adapter, tiny


@pytest.fixture(autouse=True)
def _no_files_of_other_tests() -> Iterator[None]:
    """Forget modules named ``my_...``, which stand for files of users, and where the commands looked for them."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapter(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter that SFT has written for it."""
    return sft_adapter(tmp_path_factory.mktemp("sft"), model)
