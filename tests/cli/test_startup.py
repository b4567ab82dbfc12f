"""What commands import: nothing that they do not use. Modules and collections are counted, not seconds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lovec.core.imports import gc_paused
from lovec.datasets.jsonl import write_records
from lovec.metrics.results import write_results
from lovec.types import Record, ResultRow, Sentence

ROOT = Path(__file__).resolve().parents[2]
TRAINING = {"torchmetrics", "lightning", "lovec.modules", "lovec.datamodules"}
ELSEWHERE = {"datasets", "pandas", "sklearn", "vllm", "bitsandbytes", "openai"}
MODELS = {"transformers", "peft", "accelerate", "scipy", "torch._dynamo", "torch.distributed.tensor", "sympy"}


def python(code: str, *words: str) -> Any:
    """Run code, and return the JSON of the last line that it prints."""
    command = [sys.executable, "-c", code, *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def imported_by(*words: str) -> set[str]:
    """Return the modules that are there when a command has done its work."""
    code = "import json, sys; from lovec.cli import main; assert main(sys.argv[1:]) == 0; print()\n"
    return set(python(f"{code}print(json.dumps(list(sys.modules)))", *words))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page and a run that has been tested."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "page.txt").write_text("Ada wrote notes.", encoding="utf-8")
    records = [
        Record(f"q{i}", "Q?", sentences=(Sentence("A.", score=i, factuality=i / 10),), meta={"domain": "in-domain"})
        for i in range(3)
    ]
    write_records(folder / "labelled.jsonl", records)
    write_records(folder / "run/test/sft.jsonl", records)
    metrics = {"brier": 0.1, "ece_m": 0.1, "spearman": 0.5}
    row = ResultRow("SFT", "method", "in-domain", "iterative", "sentence", "stated", 0, 3, metrics, file="sft.jsonl")
    write_results(folder / "run/test/results.json", [row])
    return folder


@pytest.mark.slow
def test_tagging_imports_neither_the_trainer_nor_metrics(files, model):
    modules = imported_by("tag", str(files / "page.txt"), "--model", model)
    # Where they are installed, transformers imports scikit-learn, and pandas through it, and PEFT imports bitsandbytes.
    unused = TRAINING | ELSEWHERE - {"sklearn", "pandas", "bitsandbytes"} | {"matplotlib", "scipy.optimize"}
    assert "transformers" in modules and not modules & unused


def test_a_report_imports_no_model_code(files):
    modules = imported_by("report", str(files / "run"))
    assert "matplotlib.figure" in modules and not modules & (TRAINING | ELSEWHERE | MODELS)


@pytest.mark.parametrize(
    "words",
    [
        ("curves", "RUN"),
        ("agreement", "LABELLED", "LABELLED"),
        ("label", "--labelled", "LABELLED", "--out", "OUT"),
        ("tag", "--help"),
        ("label", "--help"),
        ("serve", "--help"),
        ("score", "--help"),
    ],
)
def test_commands_on_files_import_no_model_code(files, words):
    (files / "run/logs/version_0").mkdir(parents=True, exist_ok=True)
    (files / "run/logs/version_0/metrics.csv").write_text("step,train/loss\n1,0.5\n2,0.4\n", encoding="utf-8")
    places = {"RUN": "run", "LABELLED": "labelled.jsonl", "OUT": f"labels-{words[0]}"}
    intervals = {"scipy"} if words[0] == "agreement" else set()  # scipy.special alone, a sixth of a second
    words = [str(files / places[word]) if word in places else word for word in words]
    assert not imported_by(*words) & (TRAINING | ELSEWHERE | MODELS - intervals | {"scipy.optimize", "scipy.stats"})


@pytest.mark.parametrize("command", ["", "sweep", "export", "report"])
def test_help_imports_no_world(command):
    assert not imported_by(*command.split(), "--help") & {"torch", "lovec.datasets.world", "lovec.datasets.world.facts"}


@pytest.mark.slow
def test_scoring_a_file_imports_no_model_code(files):
    assert not imported_by("score", "--help") & {"torch", "numpy", "matplotlib"}
    (files / "scored.csv").write_text("confidence,label\n0.5,1\n0.2,0\n", encoding="utf-8")
    modules = imported_by("score", str(files / "scored.csv"))
    assert "scipy.optimize" in modules and not modules & (TRAINING | ELSEWHERE | MODELS - {"scipy"})


@pytest.mark.slow
def test_loading_a_model_for_the_server_imports_no_trainer(model):
    code = "import json, sys; from lovec.cli.console import without_progress_bars\n"
    code += "from lovec.taggers import open_session\nimport lovec.cli.serve\n"
    code += "with without_progress_bars(): open_session(sys.argv[1]).close()\n"
    modules = set(python(f"{code}print(json.dumps(list(sys.modules)))", model))
    assert "transformers" in modules and not modules & TRAINING


@pytest.fixture(scope="module")
def with_lightning() -> set[str]:
    """Return the modules that Lightning brings."""
    return set(python("import json, sys, lightning.pytorch; print(json.dumps(list(sys.modules)))"))


@pytest.mark.slow
@pytest.mark.parametrize("words", [["fit", "--config", "dpo.yaml", "--print_config"], ["test", "--help", "all"]])
def test_training_commands_import_only_what_lightning_does(words, with_lightning):
    assert not (imported_by(*words) - with_lightning) & (ELSEWHERE | MODELS | {"torchmetrics"})


@pytest.mark.slow
def test_commands_are_imported_without_looking_for_garbage():
    count = "import gc, json, sys; {}; print(); print(json.dumps(gc.get_stats()[0]['collections']))"
    command = python(count.format("from lovec.cli import main; main(['serve', '--help'])"))
    assert command < 0.5 * python(count.format("import torch"))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_afterwards_as_it_was(enabled):
    if not enabled:
        gc.disable()
    try:
        with pytest.raises(ImportError), gc_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


@pytest.mark.parametrize(("argument", "frozen"), [("None", True), ("['--version']", False)])
def test_only_a_process_of_its_own_ends_without_looking_for_garbage(argument, frozen):
    code = f"import atexit, gc, json, sys; from lovec.cli import main; sys.argv[1:] = ['--version']; main({argument})\n"
    assert python(f"{code}atexit._run_exitfuncs(); print(json.dumps(gc.get_freeze_count() > 0))") == frozen
