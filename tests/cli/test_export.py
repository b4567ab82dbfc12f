"""`lovec export`: its folders load in plain transformers and peft, give the same logits, and have a model card."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from peft import LoraConfig, PeftModel, get_peft_model
from tinyrun import tiny
from transformers import AutoModelForCausalLM, AutoTokenizer

from lovec.cli import main
from lovec.cli.export import _results_table, claims
from lovec.core.hub import ADAPTER_FILES, TEMPLATE
from lovec.core.provenance import weights_digest
from lovec.encoding import Encoder
from lovec.export.exporting import ExportSource, export_adapter, model_card, trained_card
from lovec.metrics.results import write_results
from lovec.policy import Policy, PolicyConfig, load_tokenizer
from lovec.taggers import open_session
from lovec.taggers.session import settings_file
from lovec.types import LovecError, ResultRow

IDS = torch.tensor([[1, 40, 41, 42, 43, 44, 45, 46]])
VLLM = os.environ.get("VLLM_PYTHON", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: an adapter with large weights, results and recipes."""
    home = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(tiny(home, "llama"), lora_r=8))
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.normal_(std=0.1)
    policy.save_adapter(home / "dpo" / "adapter")
    metrics = {"brier": 0.0625, "ece_m": 0.1, "spearman": None, "malformed": 0.0}
    row = ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 12, metrics)
    other = replace(row, level="passage", metrics={**metrics, "brier": 0.9})
    write_results(home / "dpo" / "test" / "results.json", [row, other])
    for version, seed in ((2, 7), (10, 8)):
        logs = home / "dpo" / "logs" / f"version_{version}"
        logs.mkdir(parents=True)
        settings = {"class_path": "lovec.modules.DPO", "init_args": {"policy": {"adapter": "runs/sft/adapter"}}}
        data = {"class_path": "lovec.datamodules.World"}
        (logs / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed, "model": settings, "data": data}))
    return home / "dpo"


def base_of(run: Path) -> str:
    return str(json.loads((run / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"])


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits.float().log_softmax(-1)


@pytest.fixture(scope="module")
def wanted(run: Path) -> torch.Tensor:
    policy = Policy(PolicyConfig(base_of(run), adapter=str(run / "adapter")), reference=False)
    return logits(policy.peft)


def test_the_adapter_loads_in_plain_peft(run: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    base = AutoModelForCausalLM.from_pretrained(base_of(run), dtype=torch.float32)
    bare = logits(base)
    exported = logits(PeftModel.from_pretrained(base, tmp_path / "out"))
    assert torch.equal(exported, wanted)
    assert not torch.allclose(bare, wanted, atol=1e-2)


def test_an_adapter_with_ranks_by_layer_is_exported_as_one_that_vllm_reads(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "v_proj"],
        rank_pattern={"q_proj": 12},
        alpha_pattern={"v_proj": 64},
    )
    peft = get_peft_model(AutoModelForCausalLM.from_pretrained(base_of(run), dtype=torch.float32), config)
    for name, parameter in peft.named_parameters():
        if ".lora_" in name:
            parameter.data.normal_(std=0.1)
    peft.save_pretrained(str(tmp_path / "adapter"), save_embedding_layers=False)
    expected, out = logits(peft), tmp_path / "out"
    assert main(["export", str(tmp_path / "adapter"), str(out)]) == 0
    command = f"vllm serve {base_of(run)} --enable-lora --max-lora-rank 16 --lora-modules lovec="
    card = (out / "README.md").read_text()
    assert f"{command}{out}" in capsys.readouterr().err and f"{command}./out" in card and "(rank 12)" in card
    options = json.loads((out / "adapter_config.json").read_text())
    assert (options["r"], options["rank_pattern"], options["alpha_pattern"]) == (12, {}, {})
    assert {path.name for path in out.iterdir()} == {*ADAPTER_FILES, "README.md", "lovec.json"}
    base = AutoModelForCausalLM.from_pretrained(base_of(run), dtype=torch.float32)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, out)), expected, rtol=1e-4, atol=1e-4)


def test_the_merged_model_loads_in_plain_transformers(run: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(run), str(out), "--merged"]) == 0
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    assert torch.allclose(logits(model), wanted, atol=1e-4)
    assert not list(out.glob("*.bin")) and not list(out.glob("adapter*")) and list(out.glob("*.safetensors"))
    original, exported = AutoTokenizer.from_pretrained(base_of(run)), AutoTokenizer.from_pretrained(out)
    assert exported.chat_template == original.chat_template
    assert exported("One. <confidence> 10").input_ids == original("One. <confidence> 10").input_ids
    low = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    assert main(["export", str(run), str(out), "--merged", "--dtype", "bfloat16", "--redo"]) == 0
    rounded = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert rounded.dtype == torch.bfloat16 and torch.equal(logits(rounded), logits(low))


def test_an_export_keeps_instruction_and_tags(run: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for file in (run / "adapter").iterdir():
        (adapter / file.name).write_bytes(file.read_bytes())
    settings = {"instruction": "Be sure.", "tag_words": ["<c>", "</c>"], "unit": "clause"}
    (adapter / "lovec.json").write_text(json.dumps(settings))
    for flags in ([], ["--merged"]):
        out = tmp_path / f"out{len(flags)}"
        assert main(["export", str(adapter), str(out), *flags]) == 0
        opened = open_session(str(out)) if flags else open_session(adapter=str(out))
        with opened as session:
            assert session.encoder.instruction == "Be sure."
            assert session.encoder.tags.open == "<c>"
            assert session.unit == "clause"
        assert "`<c> X </c>`" in (out / "README.md").read_text()


def test_an_export_keeps_the_chat_template(run: Path, tmp_path: Path) -> None:
    """Of a base that has none, too, which could otherwise not be used at all."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(base_of(run), base)
    text = (base / TEMPLATE).read_text() + "{# own #}"
    (base / TEMPLATE).unlink()
    shutil.copytree(run / "adapter", adapter)
    (tmp_path / "own.jinja").write_text(text)
    tokenizer = load_tokenizer(PolicyConfig(str(base), chat_template=str(tmp_path / "own.jinja")))
    for name, content in settings_file(Encoder(tokenizer, "Be sure."), template=True).items():
        (adapter / name).write_text(content)
    for flags in ([], ["--merged"]):
        out = tmp_path / f"my out{len(flags)}"
        assert main(["export", str(adapter), str(out), "--model", str(base), "--any_base", *flags]) == 0
        assert (out / TEMPLATE).read_text() == text
        assert ("chat_template" in json.loads((out / "lovec.json").read_text())) is (not flags)
        named = {"model": str(out)} if flags else {"model": str(base), "adapter": str(out), "any_base": True}
        with open_session(**named) as session:  # type: ignore[arg-type]
            assert session.encoder.tokenizer.chat_template == text
        card = (out / "README.md").read_text()
        assert ("chat template in `chat_template.jinja`" in card) is (not flags)
        if not flags:
            served = shlex.split(re.findall(r"`(vllm serve .*)`", card)[0])
            assert served[-2:] == ["--chat-template", "./my out0/chat_template.jinja"]
            (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
            assert "tokenizer.chat_template = " in code and ast.parse(code)


def test_the_card_shows_metrics_and_training(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert str(tmp_path / "out") in printed.out
    assert f"vllm serve {base_of(run)} --enable-lora --max-lora-rank 8 --lora-modules lovec={tmp_path}" in printed.err
    card = (tmp_path / "out" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert "base_model" not in yaml.safe_load(front)  # which has to be a model of the hub, and is a folder here
    assert yaml.safe_load(front)["library_name"] == "peft"
    assert "| DPO | 6.2 | 10.0 | - |" in text and "90.0" not in text
    assert "`lovec.modules.DPO`, continued from another adapter" in text and "Seed: 8." in text
    assert yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())["seed_everything"] == 8
    assert "{" not in text and "FOLDER" not in text
    assert "lovec tag --adapter ./out --ask" in text and '"./out")' in text and "lovec=./out" in text
    assert "A score of 7 claims that about 70 % of such sentences are true. How far that holds" in text
    assert "X from 0 (surely wrong) to 10 (surely right)" in text
    assert main(["export", str(run / "adapter"), str(tmp_path / "adapter"), "--results", "nowhere.json"]) == 1
    assert "no results at nowhere.json" in capsys.readouterr().err


def test_the_card_leaves_out_what_other_weights_measured(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "dpo")
    old = copy / "test" / "results.json"
    weights = {"own": {"DPO": weights_digest(copy / "adapter")}, "early": {"DPO": "a" * 64}, "bare": {"DPO": None}}
    for number, (name, digests) in enumerate(weights.items(), 1):
        folder = copy / "test" / name
        folder.mkdir()
        folder.joinpath("results.json").write_text(old.read_text().replace("0.0625", f"0.{number}"))
        folder.joinpath("tested.json").write_text(json.dumps({"data": name, "records": 12, "weights": digests}))
    assert main(["export", str(copy), str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert [f"| DPO | {brier} |" in card for brier in ("6.2", "10.0", "20.0", "30.0")] == [True, True, False, True]
    own = copy / "test" / "own"
    results = json.loads((own / "results.json").read_text())
    results["rows"][0]["metrics"] |= {"mean_confidence": 0.9, "mean_factuality": 0.7, "ece_m": 0.2}
    own.joinpath("results.json").write_text(json.dumps(results))
    own.joinpath("tested.json").write_text(json.dumps({"weights": {"SFT": "a" * 64, "DPO": weights["own"]["DPO"]}}))
    assert "DPO states" in _results_table(found := ExportSource.find(str(copy)), [own / "results.json"])
    own.joinpath("tested.json").write_text(json.dumps({"weights": {"SFT": weights["own"]["DPO"], "DPO": "a" * 64}}))
    assert "DPO states" not in _results_table(found, [own / "results.json"])
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    early = copy / "test" / "early"
    assert line.startswith(f"lovec: warning: {early} is left out of the model card, since it measures other weights")
    given = shlex.split(line.partition("or give ")[2])
    assert given == ["--results", str(early / "results.json")]
    assert main(["export", str(copy), str(tmp_path / "given"), *given]) == 0
    assert "| DPO | 20.0 |" in (tmp_path / "given" / "README.md").read_text()
    assert "warning" not in capsys.readouterr().err
    for path in (old, copy / "test" / "own" / "results.json", copy / "test" / "bare" / "results.json"):
        path.unlink()
    other = copy / "other" / "test" / "world"  # of another run, in the folder of this one
    other.parent.mkdir(parents=True)
    early.rename(other).joinpath("tested.json").unlink()
    assert main(["export", str(copy), str(tmp_path / "none")]) == 0
    assert "Not measured; `lovec test` does." in (tmp_path / "none" / "README.md").read_text()


def test_the_recipe_is_that_of_the_training_that_wrote_the_adapter(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "dpo")
    written = (copy / "adapter" / "adapter_model.safetensors").stat().st_mtime
    for version, later in ((2, -60), (10, 60)):  # the last training has failed before its first step
        os.utime(copy / "logs" / f"version_{version}" / "config.yaml", (written + later,) * 2)
    assert main(["export", str(copy), str(tmp_path / "out")]) == 0
    assert yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())["seed_everything"] == 7
    assert "Seed: 7." in (tmp_path / "out" / "README.md").read_text()


def test_a_folder_that_is_not_empty_is_kept_without_redo(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert main(["export", str(run), str(out)]) == 0  # an empty one is free
    (out / "mine").write_text("x")
    for flags in ([], ["--merged"]):
        assert main(["export", str(run), str(out), *flags]) == 1
        assert "exists and is not empty" in capsys.readouterr().err
    monkeypatch.setattr("lovec.export.exporting.settings_file", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert main(["export", str(run), str(out), "--redo"]) == 1
    assert capsys.readouterr().err == "lovec: error: disk full\n"
    assert (out / "mine").exists() and [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.undo()
    assert main(["export", str(run), str(out), "--redo"]) == 0
    assert not (out / "mine").exists() and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_without_an_adapter_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [('{"r": 8', r"not JSON \(.*\)"), ("[8]", "broken: it holds a list, .*")])
def test_a_broken_configuration_is_one_line(run: Path, tmp_path: Path, text: str, said: str) -> None:
    source = ExportSource(Path(shutil.copytree(run / "adapter", tmp_path / "adapter")), None, base_of(run))
    (source.adapter / "adapter_config.json").write_text(text)
    with pytest.raises(LovecError, match=rf"^{source.adapter}/adapter_config\.json is {said}; copy it again$"):
        export_adapter(source, tmp_path / "out", "")
    assert not (tmp_path / "out").exists()


@pytest.mark.vllm
@pytest.mark.skipif(not VLLM, reason="VLLM_PYTHON does not name the python of an environment with vLLM")
def test_vllm_loads_both(run: Path, wanted: torch.Tensor, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "adapter")]) == 0
    assert main(["export", str(run), str(tmp_path / "merged"), "--merged"]) == 0
    script = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
base, adapter, merged, ids = sys.argv[1:]
ids = json.loads(ids)
asked = SamplingParams(max_tokens=1, prompt_logprobs=0)
settings = dict(dtype="float32", enforce_eager=True, max_model_len=64)
def logps(model, lora, **more):
    found = LLM(model, **settings, **more).generate({"prompt_token_ids": ids}, asked, lora_request=lora)[0]
    return [found.prompt_logprobs[i][token].logprob for i, token in enumerate(ids) if i]
print("FOUND", json.dumps([
    logps(base, LoRARequest("a", 1, adapter), enable_lora=True, max_lora_rank=8), logps(merged, None)]))
"""
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    words = [base_of(run), str(tmp_path / "adapter"), str(tmp_path / "merged"), json.dumps(IDS[0].tolist())]
    done = subprocess.run(
        [VLLM, "-c", script, *words], env={**os.environ, **settings}, capture_output=True, text=True, timeout=600
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND")), None)
    assert line is not None, done.stderr[-3000:]
    expected = wanted[0, :-1].gather(1, IDS[0, 1:, None])[:, 0]
    for logps in json.loads(line.removeprefix("FOUND ")):
        assert torch.allclose(torch.tensor(logps), expected, atol=1e-4)


def test_the_card_says_how_far_stated_scores_are_true() -> None:
    def said(**metrics: float | None) -> list[str]:
        return claims([ResultRow("DPO", "method", "in-domain", "iterative", "sentence", "stated", 0, 12, metrics)])

    (line,) = said(mean_confidence=0.925, mean_factuality=0.758, ece_m=0.17)
    assert "on average too high, and not to be read as the share that is true: DPO states 92.5 %" in line
    assert "where 75.8 % is true (iterative tagging), and differs from it by 17.0 points (ECE-M)." in line
    assert "on average too low" in said(mean_confidence=0.5, mean_factuality=0.758, ece_m=0.26)[0]
    assert "are close to the share" in said(mean_confidence=0.75, mean_factuality=0.758, ece_m=0.05)[0]
    metrics = {"mean_confidence": 0.75, "mean_factuality": 0.758, "ece_m": 0.05}
    near = ResultRow("DPO", "method", "near", "iterative", "sentence", "stated", 0, 160, metrics)
    far = replace(near, domain="far", n=1, metrics={**metrics, "mean_confidence": 1.0, "ece_m": 0.3})
    rows = [near, far, replace(near, mode="free-form"), replace(near, method="Vanilla", kind="baseline")]
    lines = claims(rows)
    assert [line[:35] for line in lines] == [
        "near, 160 sentences: stated scores ",
        "far, 1 sentence: stated scores are ",
    ]
    assert "close to" in lines[0] and "too high" in lines[1]
    assert said(mean_confidence=None, mean_factuality=0.7, ece_m=None) == claims([]) == []
    others = [replace(near, method="SFT", metrics={**metrics, "mean_confidence": 0.7}), *rows]
    assert claims(others, {"DPO"}) == lines and claims(rows, {"SFT"}) == []
    assert "SFT states 70.0 %" in claims(others, {"SFT"})[0]
    assert claims(others) == []  # it is not known which of them is exported


@pytest.mark.parametrize("rank", [8, None])
@pytest.mark.parametrize("base", ["my `bases`/Ada's", "my `bases`/Ada's.gguf"])
def test_commands_and_code_of_a_card_hold_for_any_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str, rank: int | None
) -> None:
    encoder, name = Encoder(load_tokenizer(PolicyConfig(base_of(run)))), "my `run`'s ``x"
    cards = [model_card(encoder, base, name, name, "", "", rank)]
    if rank is not None and not base.endswith("gguf"):
        assert main(["export", str(run), str(tmp_path / name)]) == 0
        cards.append((tmp_path / name / "README.md").read_text())
    parsed = [[child for token in MarkdownIt().parse(card) for child in token.children or ()] for card in cards]
    inline = [[child.content for child in children if child.type == "code_inline"] for children in parsed]
    served = [[code for code in found if code.startswith("vllm serve ")] for found in inline]
    for card, found, commands in zip(cards, inline, served, strict=True):
        tag, vllm = map(shlex.split, [*re.findall(r"^lovec tag .*", card, re.MULTILINE), *commands])
        assert f"./{name}" in found
        assert tag[3] == f"./{name}" and tag[4] == "--ask" and vllm[-1].removeprefix("lovec=") == f"./{name}"
        assert len(vllm) == (3 if rank is None else 8)
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        texts = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
        assert f"./{name}" in texts
    if rank is not None and not base.endswith("gguf"):
        assert shlex.split(served[0][0])[2] == base and inline[0].count(base) == 2


def test_the_card_of_a_training_says_what_is_not_known_yet(run: Path) -> None:
    policy = Policy(PolicyConfig(base_of(run), adapter=str(run / "adapter")), reference=False)
    encoder = Encoder(policy.tokenizer, "Be sure.")
    card = trained_card(encoder, base_of(run), 8, run, "my_ipo.IPO", "lovec.datamodules.World", 3)
    assert card.startswith("---\nlibrary_name: peft") and "# dpo\n" in card and "rank 8" in card and "Be sure." in card
    assert "Objective: `my_ipo.IPO`. Data: `lovec.datamodules.World`. Seed: 3." in card
    named = model_card(encoder, "org/base@v1", "dpo", "adapter", "", "", rank=8)
    assert yaml.safe_load(named.split("---\n", 2)[1])["base_model"] == "org/base"
    stored = model_card(encoder, "org/base:small.gguf", "dpo", "adapter", "", "", rank=8)
    assert yaml.safe_load(stored.split("---\n", 2)[1])["base_model"] == "org/base"
    assert "base = resolve_model('org/base:small.gguf')" in stored and "vllm serve BASE" in stored
    built = model_card(encoder, "world", "dpo", "adapter", "", "", rank=12)
    assert "base = resolve_model('world')" in built
    assert "`vllm serve BASE --enable-lora --max-lora-rank 16 --lora-modules lovec=./adapter`" in built
    assert "Not measured when this was written" in card and "Where `calibration.json` lies in this folder" in card
    apart = trained_card(encoder, base_of(run), 8, run, "my_ipo.IPO", "lovec.datamodules.World", 3, by_layer=True)
    assert "vllm serve" in card and "vllm serve" not in apart and "`lovec export` writes a copy of it" in apart
    assert "lovec tag --adapter ./adapter" in card and "More Information" not in card and "FOLDER" not in card
