"""An adapter is asked as it was trained, whatever data it is measured on, and a test without one valid tag fails."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from commandline import CPU
from tinyrun import records

from lovec.cli import main
from lovec.cli.training import execute, warn_of_unmeasured
from lovec.datasets.jsonl import write_records
from lovec.types import ResultRow


@pytest.fixture
def words(here: Path, model: str, adapter: str) -> list[str]:
    """A test of the adapter, which was trained with the instruction of other data, on a file without one."""
    write_records(here / "d.jsonl", records(6))
    return [
        "--model", "SFT", "--model.policy.model", model, "--model.evaluation.adapter", adapter,
        "--data", "Demonstrations", "--data.path", "d.jsonl", "--data.test_path", "d.jsonl",
        "--model.evaluation.modes", "[iterative]", "--trainer.default_root_dir", "run",
        "--trainer.enable_progress_bar", "false", *CPU,
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["test", "validate", "predict"])
def test_the_adapters_own_instruction_is_used(words: list[str], command: str) -> None:
    cli = execute(command, words, verbose=False)
    assert cli.model.encoder.instruction == "Rate each sentence."  # that of the data it was trained on


def test_a_table_of_adapters_is_asked_as_they_were_trained(words: list[str], adapter: str) -> None:
    words[1:2], words[4:6] = ["Comparison"], ["--model.adapters.SFT", adapter]
    assert execute("test", words, verbose=False).model.encoder.instruction == "Rate each sentence."


def test_another_instruction_is_said_and_other_tags_are_refused(words: list[str], capsys: Any) -> None:
    with pytest.warns(UserWarning, match="trained with the instruction 'Rate each sentence.', and is asked with 'Tag"):
        assert main(["test", *words, "--model.policy.instruction", "Tag it."]) == 0
    capsys.readouterr()
    assert main(["test", *words, "--model.policy.tag_words", "[<c>, </c>]"]) == 1
    assert "was trained with the tags <confidence> </confidence>" in capsys.readouterr().err


def test_training_on_with_another_prompt_is_said(words: list[str], adapter: str) -> None:
    words[4:6] = ["--model.policy.adapter", adapter]
    with pytest.warns(UserWarning, match="Rate each sentence.., and is asked with .You are a helpful"):
        assert main(["fit", *words, "--trainer.max_steps", "1", "--trainer.limit_val_batches", "0"]) == 0


def test_training_on_with_the_same_prompt_is_not_remarked_on(words: list[str], capsys: Any) -> None:
    words[4:6] = ["--model.policy.adapter", "null"]
    short = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0"]
    assert main(["fit", *words, *short]) == 0
    words[4:6] = ["--model.policy.adapter", "run/adapter", "--trainer.default_root_dir", "second"]
    del words[words.index("run") - 1 : words.index("run") + 1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["fit", *words, *short]) == 0
    assert not [warning for warning in caught if "was trained with" in str(warning.message)]


def test_an_adapter_keeps_the_chat_template_of_its_training(words: list[str], model: str, here: Path) -> None:
    text = (Path(model) / "chat_template.jinja").read_text()
    for name in ("own", "other"):
        (here / f"{name}.jinja").write_text(f"{text}{{# {name} #}}")
    words[4:6] = ["--model.policy.adapter", "null"]
    short = ["--trainer.max_steps", "1", "--trainer.limit_val_batches", "0"]
    chosen = "--model.policy.chat_template"
    assert main(["fit", *words, *short, chosen, "own.jinja"]) == 0

    def used(command: str, *more: str) -> str:
        return str(execute(command, [*words, *more], verbose=False).model.encoder.tokenizer.chat_template)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert used("test").endswith("{# own #}") and used("validate", chosen, "own.jinja").endswith("{# own #}")
        words[4:6], root = ["--model.policy.adapter", "run/adapter"], words.index("run")
        words[root] = "second"
        assert used("fit", *short).endswith("{# own #}")
        assert used("test").endswith("{# own #}")  # it has been written beside the second adapter, too
    assert not [warning for warning in caught if "was trained with" in str(warning.message)]
    words[root] = "third"
    for command, more in (("test", ["--model.evaluation.adapter", "run"]), ("fit", short)):
        with pytest.warns(UserWarning, match="was trained with the chat template in .* is asked with that in other"):
            assert used(command, *more, chosen, "other.jinja").endswith("{# other #}")


def test_adapters_of_different_chat_templates_are_not_measured_as_one(
    words: list[str], adapter: str, model: str, here: Path, capsys: Any
) -> None:
    template = here / "own.jinja"
    template.write_text((Path(model) / "chat_template.jinja").read_text() + "{# own #}")
    given = ["--model.policy.chat_template", str(template)]
    words[4:6] = ["--model.policy.adapter", "null", "--model.policy.instruction", "Rate each sentence."]
    assert main(["fit", *words, *given, "--trainer.max_steps", "1", "--trainer.limit_val_batches", "0"]) == 0
    words[words.index("run")] = "table"
    words[1:2], words[4:8] = ["Comparison"], ["--model.adapters.SFT", adapter, "--model.adapters.Own", "run"]
    capsys.readouterr()
    assert main(["test", *words]) == 1
    assert "the adapters were trained with different chat templates: " in capsys.readouterr().err
    cli = execute("test", [*words, *given], verbose=False)
    assert cli.model.encoder.tokenizer.chat_template == template.read_text()


def row(n: int, malformed: float, method: str = "SFT") -> ResultRow:
    return ResultRow(method, "method", "in-domain", "iterative", "sentence", "stated", 0, n, {"malformed": malformed})


def test_a_test_without_a_single_confidence_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"SFT was not measured: it has written no valid tag \(n = 0\)"):
        warn_of_unmeasured([row(0, 1.0), row(0, 1.0), row(9, 0.0, "Vanilla")], ["SFT"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_unmeasured([row(1, 0.9), row(0, 1.0), row(0, 1.0, "Vanilla")], ["SFT"])
        warn_of_unmeasured([row(0, 0.0)], ["SFT"])  # no labels
