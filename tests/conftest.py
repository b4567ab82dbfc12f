"""What the tests of training share."""

from __future__ import annotations

import pytest
from tinyrun import sft_adapter, tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model."""
    return tiny(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def adapter(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter that SFT has written for it."""
    return sft_adapter(tmp_path_factory.mktemp("sft"), model)
