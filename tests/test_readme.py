"""README and docs say what is true: links lead somewhere, commands parse, the printed objective trains."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shlex
import sys
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from pages import DOCS, PAGES, README, ROOT, blocks, commands_of, printed_files
from scripts import load_script
from tinyrun import Rows, module, records, tiny, trainer

from lovec.cli import COMMANDS, main
from lovec.cli.arguments import RECIPES
from lovec.cli.examples import EXAMPLES
from lovec.cli.parser import OneLineErrors
from lovec.cli.training import TrainingCLI, TrainingParser
from lovec.core import hub
from lovec.datasets.jsonl import read_records, record_from_dict, write_records
from lovec.labelling import write_recipe
from lovec.types import LovecError, Record, ResultRow, Sentence

EXTENDING = DOCS / "extending.md"
PLAIN = set(
    "label agreement calibrate apply sweep curves world demo report score tag join serve export completion".split()
)
"""Commands with a parser of their own."""


world = load_script("world")
tables = sys.modules["world_tables"]
found_intervals = sys.modules["world_intervals"]


def commands():
    """Every `lovec ...` line of the bash blocks, as words."""
    for page in PAGES:
        for block in blocks(page, "bash"):
            for words in commands_of(block):
                marks = [pytest.mark.quant] if "qlora.yaml" in words else []
                yield pytest.param(words, id=f"{page.name}: {' '.join(words)}", marks=marks)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the files that the pages print and the recipe that lovec label writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    files = printed_files()
    for name, text in files.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        Path(f"{name}.py").write_text(text)
    Path("runs/labels").mkdir(parents=True)
    write_recipe(Path("runs/labels"), "meta-llama/Meta-Llama-3-8B-Instruct", False, None)
    yield tmp_path
    for name in files:
        sys.modules.pop(name, None)


def objective(page):
    """The file my_ipo.py as a page prints it."""
    return next(block for block in blocks(page, "python") if "class IPO" in block)


def short(text):
    """Whether a file is as short as the pages promise."""
    return len([line for line in text.splitlines() if line.strip()]) < 15


# ---------------------------------------------------------------- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not link.startswith(("http://", "https://")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), link
            assert not anchor or anchor in headings(target), f"{target.name} has no heading #{anchor}"


def headings(page):
    """The anchors of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("#")]
    return [re.sub(r"[^\w -]", "", line).replace(" ", "-") for line in lines]


def test_every_page_is_linked():
    linked = {path for page in PAGES for path in re.findall(r"\]\(([^)#\s]+\.md)[#)]", page.read_text())}
    assert {page.name for page in PAGES[1:]} <= {Path(path).name for path in linked}
    assert {page.name for page in DOCS.glob("*.md")} <= set(re.findall(r"\(docs/(\w[\w-]*\.md)\)", README.read_text()))


def test_badges_say_what_pyproject_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [c.rsplit(" ", 1)[1] for c in project["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert f"python: {' | '.join(versions)}<" in (ROOT / "docs/badges/python.svg").read_text()
    assert f"licence: {project['license']}<" in (ROOT / "docs/badges/licence.svg").read_text()


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize(
    "words", [*commands(), *(shlex.split(line)[1:] for lines in EXAMPLES.values() for line, _ in lines)]
)
def test_commands_are_ones_the_parser_takes(words, here, monkeypatch):
    from lovec.cli import arguments

    if "qlora.yaml" in words:
        pytest.importorskip("bitsandbytes", reason="the extra quant is not installed")

    class Parsed(Exception):
        pass

    def parse_and_stop(parser, args=None, *rest, parse=OneLineErrors.parse_args, **kwargs):
        options = parse(parser, args, *rest, **kwargs)
        if parser.exit_on_error and not isinstance(parser, TrainingParser):  # not a parser inside a parser
            raise Parsed
        return options

    def stop(*_):
        raise Parsed

    monkeypatch.setattr(OneLineErrors, "parse_args", parse_and_stop)
    monkeypatch.setattr("lovec.cli.sweep.execute_run", stop)
    monkeypatch.setattr(TrainingCLI, "instantiate_classes", lambda self: None)
    # a checkpoint holds its recipe
    recipe = yaml.safe_load((RECIPES / "dpo.yaml").read_text())
    monkeypatch.setattr(arguments, "saved_recipe", lambda path, *_: recipe)
    command, rest = words[0], words[1:]
    assert command in COMMANDS
    if command in PLAIN:
        with pytest.raises(Parsed):
            importlib.import_module(f"lovec.cli.{command}").run(rest)
    elif "--print_config" in rest:
        with pytest.raises(SystemExit) as stop:
            TrainingCLI(command, rest)
        assert not stop.value.code
    else:
        own = (word for option, word in pairwise(rest) if option == "--model" and word.startswith("my_"))
        class_path = TrainingCLI(command, rest).config.model.class_path
        assert class_path.startswith(next(own, ("lovec.modules.", "lovec.evaluation.Comparison")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_data_of_files_are_given_the_file_that_a_command_reads(page):
    text = page.read_text().replace("\\\n", " ")
    for given in re.findall(r"[^`\n]*--data (?:Demonstrations|Preferences|Prompts)\b[^`\n]*", text):
        assert "--data.path " in given, given  # which they need whatever the command
        assert "--data.test_path " in given or "lovec test" not in given, given


def test_a_wrong_option_in_a_page_would_be_noticed(here):
    with pytest.raises(LovecError, match=r"unknown option --model\.bta of DPO; did you mean --model\.beta"):
        TrainingCLI("fit", ["--config", "dpo.yaml", "--model.bta", "1"])


def test_make_targets_exist():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets_named = re.findall(r"^make (\w+)", "\n".join(blocks(README, "bash")), re.MULTILINE)
    assert targets_named == ["demo", "test"]
    assert set(targets_named) <= set(targets)


def test_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r'pip install "\.\[(\w+)\]"', (DOCS / "install.md").read_text()))
    assert named | {"dev"} == project["optional-dependencies"].keys()


# ---------------------------------------------------------------- the objective


@pytest.mark.parametrize("page", [README, EXTENDING], ids=lambda page: page.name)
def test_the_printed_objective_trains(page, here, tmp_path_factory):
    Path("my_ipo.py").write_text(objective(page))
    write_records("pairs.jsonl", records(8))
    Path("tiny.yaml").write_text(yaml.safe_dump({
        "trainer": {"accelerator": "cpu", "max_steps": 2, "limit_val_batches": 0, "log_every_n_steps": 1,
                    "enable_progress_bar": False, "enable_model_summary": False},
        "model": {"init_args": {"policy": {"model": tiny(tmp_path_factory.getbasetemp()), "adapter": None}}},
        "data": {"class_path": "Preferences", "init_args": {"path": "pairs.jsonl", "batch_size": 4}},
    }))  # fmt: skip
    (line,) = [p.values[0] for p in commands() if "my_ipo.IPO" in p.values[0] and p.id.startswith(f"{page.name}: fit")]
    words = [*line, "--config", "tiny.yaml"]
    assert main(words) == 0
    folder = Path(line[line.index("--trainer.default_root_dir") + 1])
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    tau = float(line[line.index("--model.tau") + 1])
    names, *rows = [row.split(",") for row in (folder / "logs/version_0/metrics.csv").read_text().splitlines()]
    losses = [row[names.index("train/preference")] for row in rows]  # the recipe adds an SFT term to it
    loss = float(next(value for value in losses if value))  # a probe may have a row of its own
    assert loss == pytest.approx((1 / (2 * tau)) ** 2, rel=1e-5)  # policy and reference agree at the start


@pytest.mark.parametrize(
    ("file", "name", "loss"),
    [("my_rloo", "RLOO", "policy"), ("my_gspo", "GSPO", "policy"), ("my_rps", "RankedProbability", "score")],
)
def test_the_other_printed_objectives_take_a_step(file, name, loss, here, monkeypatch, tmp_path_factory):
    class ByName:
        def rate(self, rows):
            return [[len(row.id + str(i)) % 11 / 10 for i, _ in enumerate(row.sentences)] for row in rows]

    monkeypatch.syspath_prepend(here)
    assert short(printed_files()[file])
    cls = getattr(importlib.import_module(file), name)
    options = {} if name == "RankedProbability" else {"oracle": ByName(), "group_size": 2, "max_new_tokens": 8}
    options |= {"beta": 0.0} if name == "GSPO" else {}
    objective, logged = module(cls, tiny(tmp_path_factory.getbasetemp()), **options), {}
    monkeypatch.setattr(objective, "log_dict", lambda metrics, **_: logged.update(metrics))
    trainer(here, max_steps=1).fit(objective, Rows())
    assert math.isfinite(logged[f"train/{loss}"])
    if name == "RLOO":  # a random model tags nothing, so all its rewards are alike
        assert objective.advantages(torch.tensor([[10.0, 20.0, 60.0]])).tolist() == [[-3.0, -1.5, 4.5]]
    elif name == "RankedProbability":
        assert logged["train/grad_norm"] > 0


def test_the_printed_gspo_has_one_ratio_per_answer(here, monkeypatch):
    monkeypatch.syspath_prepend(here)
    cls = importlib.import_module("my_gspo").GSPO
    logps = torch.tensor([[-1.0, -2.0, -7.0], [-1.0, -1.0, -1.0]])
    old = torch.tensor([[-1.5, -2.5, -1.0], [-3.0, -3.0, -3.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    advantages = torch.tensor([[2.0] * 3, [1.0] * 3])
    clipped = SimpleNamespace(clip_low=0.2, clip_high=0.3)
    losses = cls.token_loss(clipped, logps, old, None, advantages, mask)
    # the ratio of the first answer is exp(0.5), of the second exp(2): both are clipped to 1.3
    assert losses[0, :2].tolist() == pytest.approx([-2 * 1.3] * 2)
    assert losses[1].tolist() == pytest.approx([-1.3] * 3)
    losses = cls.token_loss(clipped, logps, old, None, -advantages, mask)
    assert losses[0, :2].tolist() == pytest.approx([2 * math.exp(0.5)] * 2)


def test_the_objective_is_as_short_as_readme_says():
    lines = [line for line in objective(README).splitlines() if line.strip()]
    assert len(lines) <= 10


# ---------------------------------------------------------------- the reward


def test_the_printed_reward_is_checked_as_printed(here, monkeypatch, capsys):
    from lovec.rewards import mean_reward, sentence_rewards

    monkeypatch.syspath_prepend(here)
    assert short(printed_files()["my_reward"])
    (check,) = [block for block in blocks(EXTENDING, "python") if "reward_surface" in block]
    exec(check, {})
    (printed,) = [block for block in blocks(EXTENDING, "text") if block.startswith("[")]
    assert capsys.readouterr().out == printed
    assert Path("my_reward.svg").stat().st_size > 0
    mine = importlib.import_module("my_reward").MyReward(scale=5)
    assert mean_reward(sentence_rewards(mine, [10, None, 5], [10, 3, 8])) == pytest.approx((5 - 30 + 5 * 0.5**0.5) / 3)


def test_the_printed_rewards_and_metric_are_ones_for_the_command(here):
    small = ["--model.policy.model", "none", "--trainer.logger", "false", "--trainer.callbacks", "[]"]

    def build(file):
        (line,) = [p.values[0] for p in commands() if any(f"{file}." in word for word in p.values[0])]
        return TrainingCLI(line[0], [*line[1:], *small]).model

    reward = build("my_reward").reward
    assert (type(reward).__module__, type(reward).__name__, reward.scale) == ("my_reward", "MyReward", 5.0)
    answer_reward = build("my_brevity").answer_reward
    assert answer_reward(Record("a", "Q?", answer="word " * 43)) == pytest.approx(-0.3)
    (metric,) = build("my_metric").evaluation.metrics
    metric.update(torch.tensor([0.9, 0.9, 0.2]), torch.tensor([0.6, 0.75, 0.0]))
    assert float(metric.compute()) == pytest.approx(1 / 3)  # 0.9 beside 0.6 is more than 0.2 too high


def test_the_printed_example_prints_its_sentences(adapter, tmp_path, monkeypatch, capsys, caplog):
    """A tiny adapter stands for the one that comes with the package, which tests/real runs."""
    (example,) = [block for block in blocks(README, "python") if "lovec.tag(" in block]
    (printed,) = [block for block in blocks(README, "text") if "0.93 Hamburg" in block]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(hub.SHIPPED, "atlas", Path(adapter))
    exec(example, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in lines] == [line.partition(" ")[2] for line in printed.splitlines()]
    assert all(re.fullmatch(r"[01]\.\d\d .+", line) for line in lines)
    assert "taken to" not in caplog.text


# ---------------------------------------------------------------- data


def test_the_printed_records_can_be_read():
    for page in (README, DOCS / "data.md"):
        line, *questions = blocks(page, "json")
        assert record_from_dict(json.loads(line)).labelled
        for question in "".join(questions).splitlines():
            assert record_from_dict({"id": "line-1", **json.loads(question)}).evidence


@pytest.mark.parametrize(
    "line",
    [
        '{"id": "b", "question": 1 "sentences": []}',
        '{"id": "b"}',
        '{"question": "Q?", "sentences": [{"text": "A."}, {"text": "B.", "factuality": 7}]}',
        '{"question": "Q?", "sentences": [{"text": "A.", "factualty": 1}]}',
        '{"question": "Q?", "sentences": [{"text": "A."}, {"text": "B."}], "rejected": [3]}',
        '{"id": "ada", "question": "Q?"}',
    ],
)
def test_errors_are_as_printed(line, here):
    Path("pairs.jsonl").write_text(f'{{"id": "ada", "question": "Q?"}}\n\n{line}\n')
    with pytest.raises(LovecError) as error:
        list(read_records("pairs.jsonl"))
    (printed,) = blocks(ROOT / "docs" / "data.md", "text")
    assert str(error.value) in printed.splitlines()


# ---------------------------------------------------------------- results


def test_the_page_of_the_world_is_of_its_results():
    results = world.read_committed()
    page = world.PAGE.read_text()
    assert page == tables.full_tables(results)
    assert f"\n{tables.table(results)}\n" in page and f"\n{tables.example_table(results['example'])}\n" in page


@pytest.mark.parametrize("name", ["comparison", "deployed"])
def test_the_pages_of_baselines_and_of_deployed_confidences_are_of_their_results(name):
    script = load_script(name)
    assert script.PAGE.read_text() == script.page(sys.modules["common"].read_json(script.RESULTS))


def results_of(seeds):
    metrics = dict(ece_m=0.2, spearman=0.3, malformed=0.0, mean_confidence=0.5, mean_factuality=0.5)
    rows = [ResultRow(method, "method", "in-domain", mode, "sentence", "stated", seed, 600,
                      {"brier": 0.1 + 0.01 * seed, **metrics})
            for seed in range(seeds) for method in tables.METHODS for mode in tables.MODES]  # fmt: skip
    answer = {"id": "b", "question": "Q?", "sentences": [
        {"text": "True.", "score": 9, "factuality": 1.0}, {"text": "Half.", "score": None, "factuality": 0.45}
    ]}  # fmt: skip
    return {"date": "2026-01-01", "commit": "abc", "versions": {"lovec": "0", "torch": "2"}, "machine": "a machine",
            "rows": rows, "intervals": [], "example": answer}  # fmt: skip


def test_the_table_says_means():
    lines = tables.table(results_of(3)).splitlines()
    assert lines.count("| Vanilla | 11.0 | - | 20.0 | 30.0 |") == len(tables.MODES)
    assert "3 seeds" in lines[-1]


def test_the_page_begins_with_the_table_and_an_answer():
    page = tables.full_tables(results_of(1))
    assert "\n| True. `<confidence> 9 </confidence>` | 10 |\n| Half. (no valid tag) | 5 |\n" in page
    assert page.index("| Vanilla |") < page.index("| True.") < page.index("## What holds here")


def test_the_answer_shown_is_the_median_of_mixed_truth():
    def answer(name, *truths):
        return Record(name, "Q?", sentences=tuple(Sentence("S.", factuality=f, score=1) for f in truths))

    # All say 1: the more is true, the worse.
    made = [answer("even", 0.9, 1.0), answer("unknown", 0.0, None, 1.0), answer("edge", 0.3, 0.9)]
    made += [answer("best", 0.0, 0.6, 0.0), answer("worst", 0.3, 1.0, 1.0)]
    assert world.example(made)["id"] == "edge"


def test_the_diagram_leaves_other_domains_out(tmp_path):
    from lovec.reports import reliability_diagram

    def tagged(name, factuality, domain="in-domain"):
        sentence = Sentence("S.", factuality=factuality, score=10)
        return replace(Record(name, "Q?", sentences=(sentence,)), meta={"domain": domain})

    for run, method in (("sft", "sft"), ("dpo", "dpo")):
        rows = [tagged("a", 0.5), tagged("b", 0.0, "out-of-domain")]
        write_records(tmp_path / run / "test" / f"{method}.iterative.jsonl", rows)
    world.draw(tmp_path, tmp_path / "found.svg")
    groups = {name: [tagged("a", 0.5)] for name in ("SFT", "DPO")}
    title = "The embedded world: in domain, iterative tagging"
    expected = reliability_diagram(groups, tmp_path / "expected.svg", title=title)
    assert (tmp_path / "found.svg").read_bytes() == expected.read_bytes()
