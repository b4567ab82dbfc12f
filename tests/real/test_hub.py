"""The GGUF file of a repository of the hub: trained on by its name, and found again by the adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hubserver import hub_server
from hubshell import HubShell
from realrun import LABELLED, brief

from lovec.gguf import SMOLLM2, gguf_file

pytestmark = pytest.mark.real


def test_a_file_of_the_hub_is_a_base(smollm2: str, tmp_path: Path) -> None:
    name = "acme/smol:SmolLM2-135M-Instruct.Q4_1.gguf"
    (tmp_path / "page.txt").write_text("Paris is a city in France.")
    with hub_server() as hub:
        hub.add("models", "acme/smol", {name.partition(":")[2]: gguf_file(SMOLLM2).read_bytes()})
        shell = HubShell(hub.address, tmp_path / "hub")
        try:
            here = {"LOVEC_CACHE": str(tmp_path / "cache")}
            options = [*brief(tmp_path / "run", answers=1), "--model.policy.model", name]
            code, _, said = shell.run(["fit", "--config", "sft.yaml", *LABELLED, *options], tmp_path, **here)
            assert code == 0, said
            settings = json.loads((tmp_path / "run" / "adapter" / "lovec.json").read_text())
            assert settings["base"]["name"] == name
            (tmp_path / "cache").rename(tmp_path / "gone")  # as on another machine
            tag = ["tag", "page.txt", "--about", "Paris", "--adapter", "run/adapter"]
            code, out, said = shell.run(tag, tmp_path, **here)
            assert code == 0 and "</confidence>" in out, said
            assert "dequantised once" in said
        finally:
            shell.end()
