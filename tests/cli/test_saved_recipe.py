"""A recipe inside a checkpoint is a stranger's: what is taken from it, and what never is."""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commandline import CPU, build, error_of, write_checkpoint
from recipes import OBJECTIVES, OVERLAYS, QUANTIZED, command_of

from lovec.cli.arguments import BASE, RECIPES, arrange
from lovec.cli.errors import UsageError
from lovec.cli.saved_recipe import (
    _FORMS,
    RECIPE_KEY,
    LeftOut,
    known_classes,
    read_saved_recipe,
    recipe_text,
    run_folder,
)
from lovec.cli.training import resolved
from lovec.core.plugins import plugins
from lovec.core.settings import declared
from lovec.types import LovecError

CLASS = {"class_path": "lovec.modules.DPO"}
EVIL = "import lightning.pytorch, pathlib\npathlib.Path('canary').write_text('ran')\n"


def recipe(**changes: Any) -> dict[str, Any]:
    """The recipe of a run of DPO, with settings changed by their names on the command line, dots as ``__``."""
    settings: dict[str, Any] = {
        "seed_everything": 0, "trainer": {}, "model": {**CLASS, "init_args": {"policy": {"model": "world"}}},
        "data": {"class_path": "lovec.datamodules.World", "init_args": {}},
    }  # fmt: skip
    for name, value in changes.items():
        *parents, last = name.split("__")
        group = settings
        for parent in parents:
            group = group.setdefault(parent, {})
        group[last] = value
    return settings


def taken(path: Path, command: str = "test", *words: str) -> dict[str, Any]:
    """What the parser gets of the recipe inside a checkpoint."""
    return dict(yaml.safe_load(arrange(command, ["--ckpt_path", str(path), *words])[3]))


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if command_of(name) == "fit"])
def test_everything_of_a_packaged_recipe_is_taken(here: Path, name: str, capsys: Any) -> None:
    cli = build("fit", "--config", name, *CPU)
    settings = resolved(cli.parser, cli.config)
    folder = Path(settings["trainer"]["default_root_dir"]) / "logs" / "version_0" / "checkpoints"
    folder.mkdir(parents=True)
    saved = write_checkpoint(folder / "last.ckpt", settings)
    settings["trainer"]["logger"]["init_args"]["save_dir"] = "."  # the folder of the run
    policy = settings["model"]["init_args"]["policy"]
    adapter = policy.pop("adapter")
    if adapter is None:
        policy["adapter"] = None
    assert taken(Path(saved), "fit") == settings
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"objective {settings['model']['class_path']}, model world, data lovec.datamodules.World" in line
    assert ("left out" in line) == (adapter is not None)  # the checkpoint holds the weights that came from it
    machine = {"accelerator", "devices", "num_nodes", "strategy", "plugins", "sync_batchnorm"}
    trainer = {option: value for option, value in settings["trainer"].items() if option not in machine}
    assert taken(Path(saved), "test") == {**settings, "trainer": trainer}  # with the one flag
    capsys.readouterr()
    again = build("fit", "--ckpt_path", saved, *CPU)
    assert resolved(again.parser, again.config)["model"] == {**settings["model"], "init_args": {
        **settings["model"]["init_args"], "policy": {**policy, "adapter": None}}}  # fmt: skip
    assert again.trainer.default_root_dir == settings["trainer"]["default_root_dir"]


@pytest.mark.parametrize("name", [*OVERLAYS, BASE.name])
def test_of_an_overlay_only_places_and_servers_are_left_out(here: Path, name: str, capsys: Any) -> None:
    if name in QUANTIZED:
        pytest.importorskip("bitsandbytes", reason="the extra quant is not installed")
    cli = build("fit", "--config", "sft.yaml", "--config", name, *CPU)
    settings = resolved(cli.parser, cli.config)
    saved = write_checkpoint(here / "last.ckpt", settings)
    try:
        arrange("fit", ["--ckpt_path", saved])
        named = capsys.readouterr().err.partition("left out: ")[2]
    except UsageError as error:
        named = str(error).partition("if you know them, add ")[2].partition(", or a --config")[0]
    overlay = (RECIPES / name).read_text()
    for flag in re.findall(r"(?:^|--|; )((?:model|data|trainer)[\w.]*[ =](?:'[^']*'|\S+))", named):
        value = flag.partition(" ")[2].strip("'")
        assert "/" in value or value.endswith((".jsonl", ".ckpt")) or "bitsandbytes" in value, flag
        assert "bitsandbytes" in value or "http" in value or value in overlay or "default_root_dir" in flag, flag


def test_switches_that_run_code_are_never_taken() -> None:
    """What bool parameters are called, among all classes that are taken: a new one of this kind has to be looked at."""
    from lightning.pytorch import Trainer

    from lovec.evaluation import EvaluationConfig
    from lovec.policy import PolicyConfig

    kinds = {*known_classes().values(), Trainer, EvaluationConfig, PolicyConfig}
    switches = {name for kind in kinds for name, option in declared(kind).items() if bool in option.types}
    assert len(switches) > 30
    risky = re.compile("trust|allow|unsafe|remote|code|pickle|exec|eval|any|push|write|overwrite|download|insecure")
    assert {name for name in switches if risky.search(name)} == {"trust_remote_code", "any_base"}


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"model": {"class_path": "my_evil.DPO"}}, "--model my_evil.DPO"),
        ({"data": {"class_path": "my_evil.Data"}}, "--data my_evil.Data"),
        ({"model__init_args__policy__trust_remote_code": True}, "--model.policy.trust_remote_code true"),
        ({"model__init_args__policy__model": "./stranger"}, "--model.policy.model ./stranger"),
        ({"model__init_args__policy__model": "https://evil.example/m"}, "--model.policy.model https://evil.example/m"),
        ({"model__init_args__policy__model": "folder/here"}, "--model.policy.model folder/here"),
        ({"model__init_args__policy__chat_template": "/etc/passwd"}, "--model.policy.chat_template /etc/passwd"),
        ({"model__init_args__policy__dtype": "../x"}, "--model.policy.dtype ../x"),
        ({"model__init_args__policy__any_base": "yes", "model__init_args__policy__chat_template": "plain"},
         "--model.policy.chat_template plain"),
        ({"model__init_args__evaluation__abstentions": "os"}, "--model.evaluation.abstentions os"),
        ({"data": {"class_path": "lovec.datamodules.Demonstrations", "init_args": {"unlabelled": "private"}}},
         "--data.unlabelled private"),
        ({"model__init_args__evaluation__name": "../../x"}, "--model.evaluation.name ../../x"),
        ({"model__init_args__optimizer": "my_evil.Adam"}, "--model.optimizer my_evil.Adam"),
        ({"model__init_args__reward": {"class_path": "my_evil.Reward"}}, "--model.reward '{"),
        ({"model__init_args__reward": {"class_path": "lovec.rewards.LogReward", "dict_kwargs": {"a": 1}}}, "--model.r"),
        ({"model__init_args__lr_scheduler": {"class_path": "subprocess.Popen"}}, "--model.lr_scheduler '{"),
        ({"model__init_args__baselines": [{"class_path": "os.system", "init_args": {"command": "x"}}]}, "baselines+="),
        ({"model__init_args__baselines": [{"class_path": "lovec.baselines.PTrue", "init_args": {"adapter": "/a"}}]},
         "--model.baselines+="),
        ({"model__init_args__oracle": {"class_path": "lovec.oracles.LabelFile", "init_args": {"path": "/x"}}},
         "--model.oracle.path /x"),
        ({"model__init_args__engine": {"class_path": "lovec.engines.RemoteVllm"}}, "--model.engine '{"),
        ({"model__init_args__engine": {"class_path": "lovec.engines.VllmEngine",
                                       "init_args": {"settings": {"trust_remote_code": True}}}},
         "--model.engine.settings '{"),
        ({"model__init_args__policy.chat_template": "x"}, "--model.policy.chat_template x"),
        ({"data": {"class_path": "lovec.datamodules.Demonstrations", "init_args": {"path": "/x y"}}},
         "--data.path '/x y'"),
    ],
)  # fmt: skip
def test_what_names_a_place_a_class_or_a_switch_must_come_from_the_command_line(
    here: Path, capsys: Any, changes: dict[str, Any], flag: str
) -> None:
    Path("my_evil.py").write_text(EVIL)
    Path("folder/here").mkdir(parents=True)
    saved = write_checkpoint(here / "x.ckpt", recipe(**changes))
    code, line = error_of(capsys, "test", "--ckpt_path", saved, *CPU)
    assert (code, flag in line) == (2, True), line
    assert "not taken from a checkpoint" in line and "add --" in line
    assert not Path("canary").exists() and "my_evil" not in sys.modules


@pytest.mark.parametrize(
    "trainer",
    [
        {"default_root_dir": "/elsewhere"},
        {"logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "/elsewhere"}}},
        {"logger": {"class_path": "my_evil.Logger"}},
        {"callbacks": [{"class_path": "my_evil.Callback"}, 
         {"class_path": "ModelCheckpoint", "init_args": {"dirpath": "/elsewhere"}}]},
        {"plugins": ["my_evil.Plugin"], "profiler": {"class_path": "my_evil.Profiler"}, "strategy": "my_evil/x"},
        {"model_registry": "https://evil.example"},
    ],
)  # fmt: skip
def test_folders_and_classes_of_the_trainer_are_left_out_and_named(
    here: Path, capsys: Any, trainer: dict[str, Any]
) -> None:
    Path("my_evil.py").write_text(EVIL)
    saved = write_checkpoint(here / "x.ckpt", recipe(trainer={**trainer, "max_epochs": 3}))
    cli = build("fit", "--ckpt_path", saved, *CPU)
    line = next(line for line in capsys.readouterr().err.splitlines() if "taken from the recipe" in line)
    assert all(f"trainer.{name}" in line.partition("left out: ")[2] for name in trainer)
    assert cli.trainer.max_epochs == 3 and Path(cli.trainer.default_root_dir) == here
    assert "elsewhere" not in json.dumps(resolved(cli.parser, cli.config))
    assert not Path("canary").exists() and "my_evil" not in sys.modules


def test_an_oracle_of_a_checkpoint_gets_no_request_and_no_key(here: Path, capsys: Any, monkeypatch: Any) -> None:
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(dict(self.headers))
            self.send_error(500)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    url = f"http://127.0.0.1:{server.server_port}/v1"
    oracle = {"class_path": "lovec.oracles.OpenAIOracle", "init_args": {"model": "m", "base_url": url}}
    saved = write_checkpoint(here / "x.ckpt", recipe(model__init_args__oracle=oracle))
    code, line = error_of(capsys, "test", "--ckpt_path", saved, *CPU)
    assert code == 2 and "--model.oracle" in line and "sk-mine" not in line
    server.shutdown()
    server.server_close()
    assert requests == []


def test_what_the_command_line_names_is_no_error(here: Path) -> None:
    changes = {"model__init_args__policy__model": "/mine", "model__init_args__policy__lora_r": 4}
    saved = Path(write_checkpoint(here / "x.ckpt", recipe(**changes)))
    with pytest.raises(UsageError, match=r"add --model\.policy\.model /mine, or"):
        taken(saved)
    for words in (["--model.policy.model", "/mine"], ["--model.init_args.policy.model=/mine"]):
        assert taken(saved, "test", *words)["model"]["init_args"]["policy"] == {"lora_r": 4}
    Path("mine.yaml").write_text("model: {init_args: {policy: {model: /mine}}}\n")
    assert taken(saved, "test", "--config", "mine.yaml")["model"]["init_args"]["policy"] == {"lora_r": 4}
    own = write_checkpoint(here / "own.ckpt", recipe(model={"class_path": "my_ipo.IPO", "init_args": {"tau": 0.4}}))
    model = taken(Path(own), "test", "--model", "my_ipo.IPO")["model"]
    assert model == {"class_path": "my_ipo.IPO", "init_args": {"tau": 0.4}}


def test_a_flag_of_a_long_value_names_its_class_or_length() -> None:
    def flag(option: str, value: Any) -> str:
        return LeftOut(option, value, "not taken").flag

    long = {"path": "x" * 200}
    assert flag("model.oracle", {"class_path": "mine.My Oracle", "init_args": long}) == (
        "--model.oracle 'mine.My Oracle' (with its settings)"
    )
    assert flag("trainer.callbacks+", {"class_path": "mine.Own", "init_args": long}) == (
        "--trainer.callbacks+=mine.Own (with its settings)"
    )
    for value in ("x" * 201, {"class_path": "x" * 201}, {"class_path": 1, **long}, ["x" * 197]):
        length = len(value if isinstance(value, str) else json.dumps(value))
        assert flag("data.path", value) == f"--data.path (its value has {length} characters)"
    short = {"class_path": "mine.Own"}
    assert flag("model.oracle", short) == f"--model.oracle '{json.dumps(short)}'"


def test_a_class_that_a_package_brings_is_named_in_short(here: Path, monkeypatch: Any) -> None:
    entries = here / "site" / "brought-1.0.dist-info" / "entry_points.txt"
    entries.parent.mkdir(parents=True)
    entries.write_text("[lovec.modules]\nMine = brought:Mine\n[lovec.datamodules]\nRows = brought:Rows\n")
    (entries.parent / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (here / "site" / "brought.py").write_text(
        "from lovec.datamodules import World\nfrom lovec.modules import DPO\n"
        "class Mine(DPO): pass\nclass Rows(World): pass\n"
    )
    monkeypatch.syspath_prepend(here / "site")
    plugins.cache_clear()
    model = {
        "class_path": "brought.Mine",
        "init_args": {"policy": {"quantization": "nf4"}, "evaluation": {"modes": ["iterative"]}},
    }
    data = {"class_path": "brought.Rows", "init_args": {"unlabelled": "private"}}
    saved = write_checkpoint(here / "x.ckpt", recipe(model=model, data=data))
    found = taken(Path(saved), "test", "--model", "Mine", "--data", "Rows")
    assert (found["model"], found["data"]) == (model, data)
    plugins.cache_clear()


def test_no_part_of_a_long_value_is_given_as_a_flag(here: Path) -> None:
    saved = write_checkpoint(here / "x.ckpt", recipe(model__init_args__policy__model="/mine" * 50))
    with pytest.raises(UsageError, match=r"add --model\.policy\.model \(its value has 250 characters\), or"):
        taken(Path(saved))


def test_hub_ids_and_offline_models_are_taken(here: Path) -> None:
    for name in ("meta-llama/Meta-Llama-3-8B-Instruct", "world-small", "tiny-llama", "random:google/gemma-2-9b-it"):
        saved = write_checkpoint(here / "x.ckpt", recipe(model__init_args__policy__model=name))
        assert taken(Path(saved))["model"]["init_args"]["policy"]["model"] == name


def test_words_are_taken_where_their_type_says_that_nothing_opens_them(here: Path) -> None:
    world = {"class_path": "lovec.datamodules.World", "init_args": {"unlabelled": "private", "test_sets": ["one-fact"]}}
    policy = {"model": "world", "quantization": "nf4", "scale": ["no", "yes/perhaps"]}
    saved = write_checkpoint(here / "x.ckpt", recipe(data=world, model__init_args__policy=policy))
    found = taken(Path(saved))
    assert (found["data"], found["model"]["init_args"]["policy"]) == (world, policy)


def test_a_class_that_has_moved_since_is_taken_by_its_old_name(here: Path) -> None:
    for path in ("lovec.models.embedding.MiniLM", "lovec.models.embedding.MiniLM"):
        saved = write_checkpoint(here / "x.ckpt", recipe(model__init_args__evaluation__embedder={"class_path": path}))
        evaluation = taken(Path(saved))["model"]["init_args"]["evaluation"]
        assert evaluation["embedder"]["class_path"] == path


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (["x"], "it is a list, expected YAML text"),
        ("[1, 2]", "it is a list, expected settings"),
        ("model: [1]", "its model is a list"),
        ("trainer: 5", "its trainer is a int"),
        (BOMB, "anchors or aliases"),
        ("model: !!python/object/apply:os.system [touch canary]", "the YAML tag"),
        ("model: " + "[" * 5000, "levels"),
        ("x: " + "y" * 100_000_000, "characters, expected at most"),
        ("a: b: c", "is broken"),
    ],
    ids=["no text", "no settings", "model", "trainer", "bomb", "tag", "deep", "long", "no YAML"],
)
def test_a_recipe_that_lovec_did_not_write_is_one_line(here: Path, capsys: Any, text: Any, reason: str) -> None:
    torch.save({RECIPE_KEY: text, "state_dict": {}}, here / "x.ckpt")
    code, line = error_of(capsys, "test", "--ckpt_path", "x.ckpt", *CPU)
    assert (code, "the recipe inside x.ckpt is broken" in line, reason in line) == (1, True, True), line
    assert len(line) < 300 and not Path("canary").exists()


def test_a_file_that_is_no_checkpoint_is_one_line(here: Path, capsys: Any) -> None:
    torch.save([1, 2], here / "x.ckpt")
    assert error_of(capsys, "test", "--ckpt_path", "x.ckpt", *CPU) == (
        1, "cannot read x.ckpt as a checkpoint: it holds a list"
    )  # fmt: skip


def test_recipes_are_written_without_aliases(tmp_path: Path) -> None:
    shared = [0.9, 0.99]
    torch.save({RECIPE_KEY: recipe_text({"model": {"a": shared, "b": shared}})}, tmp_path / "x.ckpt")
    assert read_saved_recipe(tmp_path / "x.ckpt") == {"model": {"a": shared, "b": shared}}


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("runs/dpo/logs/version_3/checkpoints/last.ckpt", "runs/dpo"),
        ("runs/dpo/checkpoints/last.ckpt", "runs/dpo"),
        ("runs/dpo/terminated.ckpt", "runs/dpo"),
        ("runs/dpo/logs/version_3/checkpoints/best-val/brier=0.1.ckpt", "runs/dpo"),
        ("checkpoints/dpo/terminated.ckpt", "checkpoints/dpo"),
        ("stranger.ckpt", "."),
    ],
)
def test_the_folder_of_a_run_is_where_its_checkpoint_lies(path: str, folder: str) -> None:
    assert run_folder(Path(path)) == folder


@pytest.mark.parametrize(
    "place",
    [
        "",
        "checkpoints",
        "checkpoints/best-val",
        "lovec/abc123/checkpoints",
        "lovec/abc123/checkpoints/best-val",
        "logs/my_exp/checkpoints",
    ],
)
def test_the_folder_of_a_run_has_the_name_that_its_recipe_gave_it(place: str) -> None:
    """In every place where ``--ckpt_path last`` looks, also where the run was moved."""
    for root in ("runs/dpo", "/elsewhere/dpo", "dpo"):
        assert run_folder(Path("runs/dpo", place, "last.ckpt"), root) == "runs/dpo"


def test_times_of_a_run_are_taken(here: Path) -> None:
    limits = {"max_time": "00:08:00:00", "val_check_interval": "0:0:30:0"}
    path = write_checkpoint(here / "x.ckpt", recipe(trainer=limits))
    trainer = taken(Path(path), "fit")["trainer"]
    assert {name: trainer[name] for name in limits} == limits


@pytest.mark.parametrize("monitor", ["val/brier", "val/free-form/ece_m", "train/loss", "val/my.metric"])
def test_callbacks_that_follow_a_metric_are_taken(here: Path, capsys: Any, monitor: str) -> None:
    best = {"monitor": monitor, "mode": "max", "save_top_k": 2, "filename": "{epoch}-{val/brier:.3f}"}
    timed = {"train_time_interval": "1 day, 1:30:00", "filename": "timed"}
    ends = {"monitor": monitor, "patience": 4, "min_delta": 0.01, "strict": False}
    kinds = {"ModelCheckpoint": best, "lightning.pytorch.callbacks.ModelCheckpoint": timed, "EarlyStopping": ends}
    callbacks = [{"class_path": kind, "init_args": settings} for kind, settings in kinds.items()]
    saved = write_checkpoint(here / "x.ckpt", recipe(trainer={"callbacks": callbacks}))
    assert taken(Path(saved), "fit")["trainer"]["callbacks"] == callbacks
    assert "left out" not in capsys.readouterr().err
    build("fit", "--ckpt_path", saved, *CPU)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(
            ("monitor", name)
            for name in ("/etc/x", "../x", "val/../x", "val..x", "http://evil.example/x", "~/x", "a b")
        ),
        *(("filename", name) for name in ("/etc/x", "../x", "..", "a/b", ".x", "{/x}", "{a/../b}", "{a.__class__}")),
        *(("filename", name) for name in ("{a[0]}", "{a!r}", "{step:999999999d}", "{{", "{", "~/x")),
        ("train_time_interval", "/x"),
        ("dirpath", "elsewhere"),
    ],
)
def test_a_callback_that_names_a_place_is_left_out(here: Path, capsys: Any, option: str, value: str) -> None:
    callback = {"class_path": "ModelCheckpoint", "init_args": {"save_top_k": 1, option: value}}
    saved = write_checkpoint(here / "x.ckpt", recipe(trainer={"callbacks": [callback]}))
    assert taken(Path(saved), "fit")["trainer"]["callbacks"] == []
    assert "trainer.callbacks+=" in capsys.readouterr().err.partition("left out: ")[2]


def test_only_options_of_lightning_may_hold_more_than_a_plain_word() -> None:
    formed = {
        kind.__module__.split(".")[0] for kind in known_classes().values() if declared(kind).keys() & _FORMS.keys()
    }
    assert formed == {"lightning"}


def test_classes_that_ask_a_server_are_not_known() -> None:
    packaged = " ".join(path.read_text() for path in RECIPES.glob("*.yaml"))
    assert "lovec.engines.RemoteVllm" in packaged
    known = known_classes().keys()
    assert {
        "lovec.modules.DPO",
        "lovec.modules.dpo.DPO",
        "DPO",
        "torch.optim.AdamW",
        "torch.optim.adamw.AdamW",
    } <= known
    assert not {"OpenAIOracle", "RemoteVllm", "lovec.engines.RemoteVllm", "Trainer", "os.system"} & known
    with pytest.raises(LovecError, match="there is no checkpoint"):
        read_saved_recipe(Path("nowhere.ckpt"))
