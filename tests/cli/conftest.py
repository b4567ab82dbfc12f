from __future__ import annotations

import sys

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; afterwards the import path is as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path
