"""The sweep: what it plans, what it refuses before it trains, and that its table shows what validation measured."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tinyrun import records, tiny

from lovec.cli import main
from lovec.cli.arguments import value_of
from lovec.cli.errors import UsageError
from lovec.cli.sweep import VariedOption, plan, read_seeds, read_varied, sweep
from lovec.core.own_code import is_own_file, own_modules
from lovec.datasets.jsonl import write_records
from lovec.metrics.results import read_results
from lovec.reports.diagnostic_tables import sweep_table
from lovec.reports.table import markdown, print_table
from lovec.types import LovecError, ResultRow

GRPO = ["--config", "grpo.yaml"]
GROUPS = VariedOption("model.group_size", ("4", "8"))
REWARDS = VariedOption("model.reward", ("lovec.rewards.LogReward", "lovec.rewards.LinearReward"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Work in an empty directory, and restore the import path afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def calls(monkeypatch):
    """The command and the words of every stage that is executed."""
    from lovec.cli import training

    executed, execute = [], training.execute

    def recorded(command, words, verbose=True):
        executed.append((command, *words))
        return execute(command, words, verbose)

    monkeypatch.setattr(training, "execute", recorded)
    return executed


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("model.group_size=4,8", ("4", "8")),
        ("--model.group_size = 4 , 8,4", ("4", "8")),
        ("model.group_size=[4,(8,9)],{a: 1, b: [2,3]}", ("[4,(8,9)]", "{a: 1, b: [2,3]}")),
        ("model.group_size=\"a,(b)\",'c,}d'", ('"a,(b)"', "'c,}d'")),
        ('model.group_size="a(,b",c', ('"a(,b"', "c")),
        ("model.group_size=a=b,c", ("a=b", "c")),
    ],
)
def test_values_are_split_at_commas_outside_brackets_and_quotes(text, values):
    assert read_varied(text) == VariedOption("model.group_size", values)


@given(st.lists(st.recursive(st.integers(0, 99), lambda inner: st.lists(inner, min_size=1, max_size=3)), min_size=1))
def test_any_lists_are_values(values):
    texts = [json.dumps(value) for value in values]
    assert read_varied(f"x={','.join(texts)}").values == tuple(dict.fromkeys(texts))


@pytest.mark.parametrize("text", ["model.beta", "model.beta=", "=1", "model.beta=1,,2", "x=[1,2", "x=1],2", "x='1,2"])
def test_a_text_without_a_list_of_values_is_refused(text):
    with pytest.raises(UsageError, match="--vary"):
        read_varied(text)


def test_seeds_are_whole_numbers():
    assert read_seeds("2, 0,2") == [2, 0]
    for text in ("", "1,x", "-1", "1.5"):
        with pytest.raises(UsageError, match="expected whole numbers"):
            read_seeds(text)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--vary model.beta=1 --vary model.group_sise=4",
         "unknown option --model.group_sise of GRPO; did you mean --model.group_size?"),
        ("--vary model.group_size=4,x", "--model.group_size is x, expected an integer"),
        ("--vary model.credit=answer,sentenc", "--model.credit is sentenc, expected 'answer' or 'sentence'"),
        ("--vary model.group_size=4,1", "group_size is 1, expected at least 2"),
        ("--vary model.reward=lovec.rewards.LogRewrd",
         "there is no LogRewrd in lovec.rewards; did you mean LogReward?"),
        ("--vary model.beta=1 --trainer.max_step 1",
         "unknown option --trainer.max_step; did you mean --trainer.max_steps?"),
        ("--vary model.beta=1 --vary model.beta=2",
         "--vary model.beta is given twice; put all its values into one list, with commas"),
        ("--vary model.beta=1 --seed_everything 3", "--seed_everything is not for a sweep: use --seeds"),
        ("--vary trainer.default_root_dir=a,b",
         "--trainer.default_root_dir is not for a sweep: each run has a folder of its own; use --out"),
        ("--vary model.beta=1 --seeds one",
         "--seeds is one, expected whole numbers with commas between them, such as 0,1,2"),
        ("--vary model.beta=1 --jobs 0", "--jobs is 0, expected at least 1"),
        ("--vary model.beta=1 --jobs 2 --trainer.devices 2",
         "--jobs is 2, which is for runs of one device, and a run takes 2; give --jobs 1, or --trainer.devices 1"),
        ("--vary trainer.num_nodes=3 --jobs 2",
         "--jobs is 2, which is for runs of one device, and a run takes 3; give --jobs 1, or --trainer.devices 1"),
        ("", "--vary must be given"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_before_anything_runs(here, capsys, calls, words, line):
    (here / "runs" / "sft" / "adapter").mkdir(parents=True)  # it is looked for before everything else
    (here / "runs" / "sft" / "adapter" / "adapter_config.json").write_text("{}")
    assert main(["sweep", *GRPO, *words.split()]) in (1, 2)
    errors = [text for text in capsys.readouterr().err.splitlines() if text and not text.startswith("Seed set")]
    assert len(errors) == 1
    assert errors[0].startswith(f"lovec: error: {line}")
    assert calls == []
    assert [path.name for folder in (here, here / "runs") for path in folder.iterdir()] == ["runs", "sft"]


# ---------------------------------------------------------------- planning


def test_one_option_at_a_time_or_every_combination(here):
    labels = [planned.label for planned in plan(GRPO, [GROUPS, REWARDS], here)]
    assert labels == ["base", "group_size=4", "group_size=8", "reward=LogReward", "reward=LinearReward"]
    runs = plan(GRPO, [GROUPS, REWARDS], here, seeds=[0, 1], grid=True)
    assert [(planned.label, planned.seed) for planned in runs[-2:]] == [
        ("group_size=8, reward=LinearReward", s) for s in (0, 1)
    ]
    assert len(runs) == 2 * (1 + 4)
    assert runs[-1].words == (*GRPO, "--model.group_size=8", "--model.reward=lovec.rewards.LinearReward")


def test_labels_are_as_long_as_they_must_be(here):
    both = [
        VariedOption("model.max_new_tokens", ("9",)),
        VariedOption("model.evaluation.max_new_tokens", ("[9][0]", "8")),
    ]
    labels = [planned.label for planned in plan(GRPO, both[:1], here)]
    assert labels == ["base", "max_new_tokens=9"]
    with pytest.raises(UsageError, match=r"model.evaluation.max_new_tokens is \[9\]\[0\]|expected an integer"):
        plan(GRPO, both, here)
    both[1] = VariedOption("model.evaluation.max_new_tokens", ("8",))
    labels = [planned.label for planned in plan(GRPO, both, here)]
    assert labels == ["base", "model.max_new_tokens=9", "model.evaluation.max_new_tokens=8"]
    Path("rewards.py").write_text("from lovec.rewards import LogReward\n\nclass Mine(LogReward):\n    pass\n")
    Path("more.py").write_text("from rewards import Mine as Other\n\nclass Mine(Other):\n    pass\n")
    labels = [
        planned.label for planned in plan(GRPO, [VariedOption("model.reward", ("rewards.Mine", "more.Mine"))], here)
    ]
    assert labels == ["base", "reward=rewards.Mine", "reward=more.Mine"]


def test_runs_of_the_same_settings_share_a_folder(here):
    base, four, eight, log, linear = plan(GRPO, [GROUPS, REWARDS], here)
    assert base.folder == eight.folder == log.folder  # the recipe's own values
    assert len({base.folder, four.folder, linear.folder}) == 3
    assert base.folder.parent == here
    assert base.folder.name.startswith("base-seed-0-")
    four.folder.mkdir()
    four.result.write_text("[]")
    again = plan([*GRPO, "--model.group_size", "4"], [VariedOption("model.group_size", ("8",))], here, seeds=[0, 1])
    assert again[0].folder == four.folder  # it is finished there, with another label
    keys = [planned.folder.name.rpartition("-")[2] for planned in (base, *again)]
    assert len(set(keys)) == 4
    assert keys[3] == keys[0]


def test_null_among_the_values_is_no_text(here):
    words = ["--config", "sft.yaml", "--model.policy.instruction", "Rate."]
    runs = [*plan(words, [read_varied("model.policy.instruction=null")], here), *plan(words[:2], [], here)]
    given, none, without = (planned.folder.name.rpartition("-")[2] for planned in runs)
    assert given != none == without


def test_another_adapter_to_start_from_is_another_run(here):
    words = [*GRPO, "--model.policy.adapter", "mine"]
    Path("mine").mkdir()
    folders = set()
    for content in (None, b"a", b"b", b"a"):
        if content:
            Path("mine/adapter_model.safetensors").write_bytes(content)
        folders.add(plan(words, [], here)[0].folder)
    assert len(folders) == 3


def test_other_data_under_the_same_name_are_another_run(here):
    words = [
        "--config",
        "sft.yaml",
        "--model.policy.model",
        "world",
        "--data",
        "Demonstrations",
        "--data.path",
        "mine.jsonl",
    ]
    folders = set()
    for seed in (0, 1, 0):
        write_records("mine.jsonl", records(4, seed=seed))
        folders.add(plan(words, [], here)[0].folder)
    assert len(folders) == 2
    Path("halueval").mkdir()
    words = [*words[:4], "--data", "HaluEval", "--data.path", "halueval"]
    folders = {plan(words, [], here)[0].folder}
    Path("halueval/human-Science.json").write_text("[]")
    assert plan(words, [], here)[0].folder not in folders


def test_other_inputs_of_the_model_are_another_run(here):
    words = ["--config", "distil.yaml", "--model.policy.adapter", "mine", "--model.policy.chat_template", "chat.jinja"]
    words += ["--model.policy.model", "base", "--model.oracle", "LabelFile", "--model.oracle.path", "labels.jsonl"]
    words += ["--model.teacher", "{class_path: PolicyMean, init_args: {adapter: other}}"]
    for name in ("mine", "base", "other/adapter"):
        Path(name).mkdir(parents=True)
    Path("other/adapter/adapter_config.json").write_text("{}")
    write_records("labels.jsonl", records(4))
    inputs = ["chat.jinja", "base/model.safetensors", "other/adapter/adapter_model.safetensors"]
    folders = []
    for changed in (*inputs, "labels.jsonl", None, "other/log.txt"):  # the last one decides nothing
        if changed == "labels.jsonl":
            write_records(changed, records(4, seed=1))
        elif changed:
            Path(changed).write_text("changed")
        folders.append(plan(words, [], here)[0].folder)
    assert len(set(folders)) == 4
    assert len(set(folders[-3:])) == 1


def test_other_code_of_a_class_of_the_users_own_is_another_run(here):
    """Also of what its file imports, wherever and however; other files decide nothing, nor do installed packages."""
    files = {
        "my_group/__init__.py": "from .near import LIMIT",
        "my_group/near.py": "LIMIT = 3",
        "my_helper.py": "import my_group",
        "my_late.py": "import sys",
        "my_reward.py": """
            import torch
            from my_helper import my_group

            class Mine:
                def __call__(self, score: int | None, rating: int) -> float:
                    import my_late, my_missing
                    return my_group.LIMIT * float(torch.ones(()))
            """,
        "my_other.py": "",
    }
    for name, code in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(textwrap.dedent(code))
    folders = {plan([*GRPO, "--model.reward", "my_reward.Mine"], [], here)[0].folder}
    for number, name in enumerate(files, start=2):
        Path(name).write_text(f"{Path(name).read_text()}# changed")
        folders.add(plan([*GRPO, "--model.reward", "my_reward.Mine"], [], here)[0].folder)
        assert len(folders) == min(number, 6), name
    assert own_modules(["lovec.modules", "torch", "os", "my_other"]) == {"my_other": here / "my_other.py"}
    assert not is_own_file(sys.modules["lovec.cli"].__file__) and is_own_file("my_other.py")


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ({"model": {"init_args": {"evaluation": {"adapter": "other"}}}}, "each run measures the adapter that it has"),
        ({"ckpt_path": "some.ckpt"}, "every run starts anew; use --model.policy.adapter"),
    ],
)
def test_what_a_sweep_sets_itself_is_refused_in_a_recipe(here, recipe, line):
    torch.save({}, "some.ckpt")
    Path("mine.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(UsageError, match=f"is not for a sweep: {line}"):
        plan([*GRPO, "--config", "mine.yaml"], [], here)


# ---------------------------------------------------------------- the table


def row(method, mode, brier, seed=0, level="sentence", readout="stated", **metrics):
    metrics = {"brier": brier, "ece_m": 0.1, "spearman": None, "malformed": 0.0, "seconds": 10.0} | metrics
    return ResultRow(method, "variation", "in-domain", mode, level, readout, seed, 9, metrics)


def test_the_table_gives_means_and_the_range():
    rows = [row("base", "iterative", 0.1), row("base", "iterative", 0.2, seed=1, seconds=20.0, ece_m=0.2),
            row("base", "free-form", 0.3, spearman=0.5), row("base", "free-form", 0.3, seed=1, seconds=20.0),
            row("beta=1", "iterative", 0.25), row("beta=1", "iterative", 0.25, seed=1),
            row("base", "iterative", 0.9, level="passage"), row("base", "iterative", 0.9, readout="mean")]  # fmt: skip
    table = markdown(sweep_table(rows), intervals=True).replace("*", "").splitlines()
    assert [line for line in table if line.startswith(("| base", "| beta"))] == [
        "| base | 15.0 (10.0 to 20.0) | 15.0 | - | 0.0 | 30.0 | 10.0 | - | 0.0 | 15 |",
        "| beta=1 | 25.0 | 10.0 | - | 0.0 | - | - | - | - | 10 |",
    ]
    assert any("2 training seeds" in line for line in table)


def test_the_printed_table_cuts_no_digit(capsys):
    name = "reward=QuadraticReward, group_size=16, normalisation=constant, credit=sentence"
    rows = [
        row(name, mode, brier, seed) for mode in ("iterative", "free-form") for seed, brier in enumerate((0.1, 0.2))
    ]
    print_table(sweep_table(rows, "Title"), intervals=True)
    output = capsys.readouterr().out
    assert name in output
    assert output.count("15.0 (10.0 to 20.0)") == 2


# ---------------------------------------------------------------- running


@pytest.fixture(scope="module")
def tiny_words(tmp_path_factory):
    """Recipes and flags of a DPO run of about a second, with a dev split."""
    folder = tmp_path_factory.mktemp("sweep")
    write_records(folder / "pairs.jsonl", records(8))
    write_records(folder / "dev.jsonl", records(6, seed=1))
    (folder / "tiny.yaml").write_text(yaml.safe_dump({
        "trainer": {"enable_progress_bar": False, "max_steps": 2, "log_every_n_steps": 1},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp(), "llama"), "adapter": None,
                                           "lora_r": 4}, "evaluation": {"modes": ["iterative"]}}},
        "data": {"class_path": "Preferences", "init_args": {
            "path": str(folder / "pairs.jsonl"), "val_path": str(folder / "dev.jsonl"), "batch_size": 4}},
    }))  # fmt: skip
    return ["--config", "dpo.yaml", "--config", str(folder / "tiny.yaml"), "--trainer.accelerator", "cpu"]


LR = ["--vary", "model.optimizer.lr=0.3"]


@pytest.fixture(scope="module")
def done(tiny_words, tmp_path_factory):
    """The folder of a sweep of the learning rate, run by the command."""
    out = tmp_path_factory.mktemp("sweep-out")
    assert main(["sweep", *tiny_words, *LR, "--out", str(out), "--seeds", "0,1"]) == 0
    return out


def rows_in(path):
    """Return the rows of a results file without the time that they took."""
    return [replace(row, metrics={**row.metrics, "seconds": None}) for row in read_results(path).rows]


def test_a_sweep_trains_each_variation_and_gives_what_validation_measured(done, tiny_words, tmp_path, capsys):
    rows = read_results(done / "sweep.json").rows
    variations = dict.fromkeys((row.method, row.options, row.kind) for row in rows)
    assert list(variations) == [("base", (), "variation"), ("lr=0.3", ("--model.optimizer.lr=0.3",), "variation")]
    assert {(row.mode, row.seed) for row in rows} == {("iterative", 0), ("iterative", 1)}
    assert all(row.metrics["seconds"] > 0 and row.n > 0 for row in rows)
    means = [row for row in rows if (row.level, row.readout) == ("sentence", "mean")]
    assert len({row.metrics["brier"] for row in means}) == 4  # each run has other weights
    last = next(done.glob("lr-0.3-seed-1-*"))
    assert (last / "adapter" / "adapter_model.safetensors").exists()

    from lovec.cli.training import execute

    words = [*tiny_words, "--trainer.default_root_dir", str(last), "--seed_everything", "1"]
    metrics = execute("validate", words, verbose=False).trainer.callback_metrics
    for name in ("brier", "mean_confidence"):
        assert means[-1].metrics[name] == pytest.approx(float(metrics[f"val/mean_{name}"]), abs=1e-6)

    page = (done / "sweep.md").read_text()
    assert page.startswith("`lovec sweep --config dpo.yaml")
    for line in markdown(sweep_table(rows), intervals=True, title=False).splitlines():
        assert line in page


def test_a_variation_that_equals_another_says_so_in_its_label(done, tiny_words, capsys):
    results = sweep(plan(tiny_words, [read_varied("model.beta=0.1")], done))
    assert list(dict.fromkeys(row.method for row in results.rows)) == ["base", "beta=0.1 (= base)"]


def test_only_what_is_missing_is_run_again(done, tiny_words, tmp_path, calls, capsys):
    out = shutil.copytree(done, tmp_path / "out")
    words = ["sweep", *tiny_words, *LR, "--out", str(out), "--seeds", "0,1"]
    assert main(words) == 0
    assert calls == []
    assert "4 runs, of which 4 done already" in capsys.readouterr().err
    assert rows_in(out / "sweep.json") == rows_in(done / "sweep.json")
    lost = next(out.glob("lr-0.3-seed-0-*"))
    (lost / "result.json").unlink()
    assert main(words) == 0
    assert [call[0] for call in calls] == ["fit", "validate"]
    assert [value_of(call, "--trainer.default_root_dir") for call in calls] == [str(lost)] * 2
    assert rows_in(out / "sweep.json") == rows_in(done / "sweep.json")
    assert "val/brier" not in capsys.readouterr().out  # one table, not one per run


def test_a_run_that_fails_is_named_and_the_others_stay(done, tiny_words, tmp_path, calls):
    out = shutil.copytree(done, tmp_path / "out")
    with pytest.raises(LovecError, match=r"^adapter=nowhere, seed 0: .*there is no adapter nowhere, expected"):
        sweep(plan(tiny_words, [VariedOption("model.policy.adapter", ("nowhere", "elsewhere"))], out))
    assert len(calls) == 1
    assert len(list(out.glob("*/result.json"))) == 4


@pytest.mark.slow
def test_runs_in_processes_give_the_same_metrics(done, tiny_words, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    base = next(done.glob("base-seed-0-*"))
    shutil.copytree(base, tmp_path / base.name)
    broken = VariedOption("model.policy.adapter", ("nowhere",))
    with pytest.raises(LovecError, match=r"^adapter=nowhere, seed 0: .*there is no adapter nowhere, expected"):
        sweep(plan(tiny_words, [read_varied(LR[1]), broken], tmp_path), jobs=2)  # the other run has started already
    rows, alone = (rows_in(next(folder.glob("lr-0.3-seed-0-*")) / "result.json") for folder in (tmp_path, done))
    for together, single in zip(rows, alone, strict=True):
        assert replace(together, metrics={}) == replace(single, metrics={})
        for name, value in single.metrics.items():
            assert together.metrics[name] == (None if value is None else pytest.approx(value, abs=1e-6)), name


# ---------------------------------------------------------------- the benchmark


@pytest.mark.slow
def test_the_ablations_are_options_of_their_recipes(here, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    ablation = importlib.import_module("ablation")
    for part in ablation.PARTS.values():
        varied = part.varied
        if not varied:  # with flags of its own, which are options of the recipe, too
            assert [planned.label for planned in plan(["--config", part.recipe, *part.flags], (), here)] == ["base"]
            continue
        runs = plan(["--config", part.recipe, *part.flags], varied, here)
        same_as_base = [planned.label.partition("=")[0] for planned in runs if planned.folder == runs[0].folder]
        assert same_as_base == ["base", *(option.name.rpartition(".")[2] for option in varied)]


def test_the_page_of_the_ablations_is_the_table(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    ablation = importlib.import_module("ablation")
    rows = [row("GRPO: base", "iterative", 0.1)]
    origin = {"versions": {"lovec": "1", "torch": "2"}, "date": "today", "commit": "abc", "machine": "one core"}
    text = ablation.page({**origin, "rows": rows, "steps": 60, "variant": "small-world"})
    assert markdown(sweep_table(rows), title=False) in text
    assert "60 steps" in text
    assert "today, commit abc, torch 2; one core." in text
    assert "Test records" not in text and "## Why" not in text
    assert ablation.FINDINGS not in text, "what the whole world showed, of runs on the small one"
    assert ablation.FINDINGS in ablation.page({**origin, "rows": rows, "steps": 60, "variant": "world"})


def test_the_page_of_the_ablations_has_the_test_things_and_the_diagnosis(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    ablation, diagnosis = importlib.import_module("ablation"), importlib.import_module("diagnosis")
    origin = {"versions": {"lovec": "1", "torch": "2"}, "date": "today", "commit": "abc", "machine": "one core"}
    probs = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.6, 0.1], [0.45, 0.1, 0.45]], dtype=torch.float64)
    found = diagnosis.summary(probs.log() - 1.0, torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    assert found["said"] == pytest.approx([1 / 3] * 3)
    assert found["stated_brier"] == pytest.approx(0.0)
    assert found["stated_spearman"] == pytest.approx(1.0)
    means = [0.8, 0.4, 0.5]
    errors = [(mean - truth) ** 2 for mean, truth in zip(means, [1.0, 0.5, 0.0], strict=True)]
    assert found["mean_brier"] == pytest.approx(sum(errors) / 3)
    assert found["rounded_brier"] == pytest.approx(0.25 / 3)  # 1.6, 0.8 and 1 are nearest 2, 1 and 1
    assert found["spread"] == pytest.approx((0.44 + 0.36 + 0.9) / 3)
    constant = diagnosis.summary(probs[:1].expand(3, 3).log(), torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64))
    assert constant["stated_spearman"] is None
    lines = {
        "labels": [0.2, 0.3, 0.5],
        "methods": [{"method": "SFT", "seed": seed, "as_sft2": 0.5, **found} for seed in (0, 1)],
        "free": [{"w": 0.3, "t": 0.0, "step": 20, **constant}],
        "traces": [
            {"run": "Brier rule", "seed": 0, "step": 0, **found, "gradient": {"score": 3.0, "text": 2.0}},
            {"run": "Brier rule", "seed": 0, "step": 9, **found},
        ],
    }
    dev = replace(row("DPO: base", "iterative", 0.1), kind="variation")
    rows = [dev, replace(dev, kind="method", metrics={**dev.metrics, "brier": 0.07})]
    text = ablation.page({**origin, "rows": rows, "steps": 60, "variant": "world"}, {**origin, **lines})
    assert "Test records, stated score." in text and "Options were chosen on the dev things alone." in text
    assert "| SFT | 0: 33, 1: 33, 2: 33 | 0.6 | 0.0 | 10.0 | 8.3 | 100.0 |" in text
    assert "| 0.3 | 0 | 20 | 2: 100 | 0.4 | 41.7 | - |" in text
    assert "| Brier rule | 0 | " in text and text.count(" | 1.5 |") == 1
    assert "20, 30, 50" in text and "Runs of seed 0." in text


def test_free_distributions_end_at_the_score_nearest_the_mean(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    diagnosis = importlib.import_module("diagnosis")
    monkeypatch.setattr(diagnosis, "FREE_STEPS", (0, 400))
    probs = torch.tensor([[0.1, 0.05, 0.15, 0.1, 0.6], [0.1, 0.2, 0.4, 0.2, 0.1]], dtype=torch.float64)  # means 3.05, 2
    truth = torch.tensor([0.5, 0.5], dtype=torch.float64)
    for variance_weight, entropy_weight in ((1.0, 0.0), (0.5, 0.0), (1.0, 0.02)):
        first, last = diagnosis.free_run(probs.log(), truth, variance_weight, entropy_weight)
        assert first["said"] == [0, 0, 0.5, 0, 0.5]
        assert last["said"] == [0, 0, 0.5, 0.5, 0]
        assert last["spread"] < first["spread"]
