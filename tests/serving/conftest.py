"""What the tests of the server share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from served import Server, running
from writer import scripted

from lovec.taggers import Session


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session whose engine writes the ANSWER of the tests' module, whatever it is asked."""
    with scripted(tmp_path_factory.mktemp("models"), request.module.ANSWER) as session:
        yield session


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    """A server of that session."""
    with running(replace(session)) as server:
        yield server
