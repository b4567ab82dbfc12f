"""What the tests of taggers share."""

from __future__ import annotations

import pytest

from lovec.models.tiny import build_tiny
from lovec.taggers import Session, open_session


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A random model with the short CONTEXT of the tests' module; its tokenizer has a token for every byte."""
    context = request.module.CONTEXT
    path = build_tiny("llama", tmp_path_factory.mktemp("tiny") / "llama", max_position_embeddings=context)
    return open_session(str(path), instruction="Rate.", tag_words=("<c>", "</c>"), rows=3)
