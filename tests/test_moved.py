"""Old names still work, and say the new one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from lovec.core.moved import MODULES


@pytest.mark.parametrize(("old", "new"), [*MODULES.items(), ("lovec.passages.markup", "lovec.display.markup")])
def test_an_old_path_is_the_new_module_and_says_so(old, new, monkeypatch):
    monkeypatch.delitem(sys.modules, old, raising=False)
    there = import_module(new)
    spec = there.__spec__
    with pytest.warns(FutureWarning, match=f"^{old} is now {new}; the old name goes with the next version$"):
        assert import_module(old) is there
    assert there.__spec__ is spec and spec.name == new
    monkeypatch.delitem(sys.modules, old)


def test_the_warning_names_the_line_of_the_user(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import lovec\nfrom lovec.answers import untag\nfrom lovec.engines import VllmServer\n"
        "print(VllmServer.__name__)\n"
    )
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.stdout == "RemoteVllm\n"
    engine = "lovec.engines.VllmServer is now lovec.engines.RemoteVllm"
    for line, words in ((2, "lovec.answers is now lovec.text.untag"), (3, engine)):
        assert f"mine.py:{line}: FutureWarning: {words}; the old name goes with the next version" in run.stderr


def test_other_names_are_still_errors():
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        import_module("lovec.nothing")
    with pytest.raises(AttributeError, match="Nothing"):
        _ = import_module("lovec.engines").Nothing
