"""The GGUF file of a repository of the hub: an adapter that was trained on it finds it by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hubserver import hub_server
from hubshell import HubShell

from lovec.models.gguf import SMOLLM2, gguf_file

pytestmark = pytest.mark.real


def test_a_file_of_the_hub_is_a_base(run: Any, tmp_path: Path) -> None:
    """The adapter says what one says that was trained on this name elsewhere."""
    name = "acme/smol:SmolLM2-135M-Instruct.Q4_1.gguf"
    adapter = tmp_path / "adapter"
    shutil.copytree(run.adapter, adapter)
    options, settings = (json.loads((adapter / file).read_text()) for file in ("adapter_config.json", "lovec.json"))
    digest = options["base_model_name_or_path"].rpartition("-")[2]
    options["base_model_name_or_path"] = f"/home/somebody/gguf/SmolLM2-135M-Instruct.Q4_1-{digest}"
    settings["base"]["name"] = name
    (adapter / "adapter_config.json").write_text(json.dumps(options))
    (adapter / "lovec.json").write_text(json.dumps(settings))
    (tmp_path / "page.txt").write_text("Paris is a city in France.")
    with hub_server() as hub:
        hub.add("models", "acme/smol", {name.partition(":")[2]: gguf_file(SMOLLM2).read_bytes()})
        shell = HubShell(hub.address, tmp_path / "hub")
        try:
            words = ["tag", "page.txt", "--about", "Paris", "--adapter", "adapter"]
            code, out, said = shell.run(words, tmp_path, LOVEC_CACHE=str(tmp_path / "cache"))
            assert code == 0 and "</confidence>" in out, said
            assert "dequantised once" in said
            assert any("SmolLM2-135M-Instruct.Q4_1.gguf" in asked for asked in hub.asked)
        finally:
            shell.end()
