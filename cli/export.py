"""``lovec export``: a trained policy as a folder that other programs load."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lovec.core.files import check_adapter_folder, check_output, read_adapter_config
from lovec.core.hub import HubName, adapter_folder
from lovec.core.notices import counted
from lovec.types import LovecError

from .console import say_next, warn
from .errors import UsageError, check_folder_name
from .parser import OneLineParser

if TYPE_CHECKING:
    from lovec.export.exporting import ExportSource
    from lovec.metrics.table import MetricInfo
    from lovec.types import ResultRow

_CLOSE = 0.05  # expected calibration error up to which scores may be read as shares


def run(words: list[str]) -> None:
    """Write an adapter or a merged model with its card.

    Args:
        words: the command line after ``export``.

    Raises:
        LovecError: there is no adapter, or the folder to write is taken.
    """
    parser = OneLineParser("export", "Write a trained adapter, or base and adapter as one model, with a model card.")
    parser.add_argument("source", metavar="RUN", help="folder of a run, such as runs/dpo, or of a PEFT adapter")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="folder to write")
    parser.add_argument("--merged", action="store_true", help="merge the adapter into the base model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of merged weights")
    parser.add_argument("--model", help="base model; null is the one that the adapter names")
    parser.add_argument("--any_base", action="store_true", help="take --model even if the adapter names another one")
    parser.add_argument("--results", type=Path, help="results for the card; null is those in RUN/test of these weights")
    parser.add_argument("--redo", action="store_true", help="replace FOLDER if it holds something")
    parser.add_argument("--push", metavar="REPO", help="upload the folder to the hub, as org/name or org/name@branch")
    parser.add_argument("--public", action="store_true", help="let everybody read REPO; it is private without this")
    options = parser.read(words)
    check_folder_name("FOLDER", options.out)
    if options.public and options.push is None:
        raise UsageError("--public needs --push REPO")
    if HubName.parse(options.source) is None:
        check_adapter_folder(adapter_folder(options.source))
    if options.results is not None and not options.results.is_file():
        raise LovecError(f"there are no results at {options.results}; `lovec test` writes them")
    from lovec.export.exporting import ExportSource, export_adapter, export_merged, vllm_command
    from lovec.export.uploading import check_upload, upload
    from lovec.models import resolve_model
    from lovec.models.gguf import is_gguf
    from lovec.models.names import is_built_offline

    name = None if options.push is None else check_upload(options.push)  # before a model is merged in vain

    source = ExportSource.find(options.source, options.model, options.any_base)
    check_output(options.out, (options.results,), "choose another folder")
    table = _results_table(source, _results_of(source) if options.results is None else [options.results])
    if options.merged:
        changed = export_merged(source, options.out, table, options.dtype, options.redo)
    else:
        export_adapter(source, options.out, table, options.redo)
        changed = None
    base = source.base_for_others
    if name is not None:
        if not options.merged and Path(base).exists():
            warn(f"the base model is {base}, which others do not have")
        try:
            address = upload(options.out, name, options.public)
        except LovecError as error:
            again = shlex.join(["lovec", "export", *words, *([] if options.redo else ["--redo"])])
            raise LovecError(f"{error}. The folder is written; to upload it later: {again}") from None
    print(f"{'merged model' if options.merged else 'adapter'} of {base} and model card written to {options.out}")
    if changed is not None:
        print(changed)
    if name is not None:
        print(f"uploaded to {address}" + ("" if options.public else " (private)"))
        say_next((f"lovec tag page.txt --{'model' if options.merged else 'adapter'} {name}", "on any machine"))
        return
    folder = shlex.quote(str(options.out))
    given = f"--model {folder}" if options.merged else f"--adapter {folder}"
    stored = resolve_model(source.base) if is_gguf(source.base) or is_built_offline(source.base) else source.base
    rank = None if options.merged else read_adapter_config(options.out).get("r")
    vllm = vllm_command(str(options.out), str(stored), rank, source.chat_template is not None)
    say_next(
        (f"lovec tag page.txt {given}", "a confidence for each sentence of a text"),
        (vllm, "serve it with vLLM"),
    )


def _results_of(source: ExportSource) -> list[Path]:
    """Return the results of the run that measure the exported weights, as far as their tests have noted what they did.

    Those of other weights are named in a warning.
    """
    from lovec.core.provenance import weights_digest
    from lovec.evaluation.run_folders import RESULTS, tested_in
    from lovec.reports.runs import tests_of

    exported, found = weights_digest(source.adapter), []
    for folder in () if source.run is None else tests_of(source.run):
        measured = {digest for digest in tested_in(folder)[0].values() if isinstance(digest, str)}
        if measured and exported not in measured:
            warn(
                f"{folder} is left out of the model card, since it measures other weights than {source.adapter}; run "
                f"`lovec test` again, without --ckpt_path, or give --results {shlex.quote(str(folder / RESULTS))}"
            )
        else:
            found.append(folder / RESULTS)
    return found


def _results_table(source: ExportSource, paths: Sequence[Path]) -> str:
    """Return the table of the card: stated scores of sentences, as tests measured them, and what it shows."""
    from lovec.core.provenance import weights_digest
    from lovec.evaluation.run_folders import tested_in
    from lovec.metrics.results import read_results
    from lovec.reports import markdown_results

    if not paths:
        return "Not measured; `lovec test` does."
    exported, said = weights_digest(source.adapter), []
    shown: list[ResultRow] = []
    infos: dict[str, MetricInfo] = {}
    for path in paths:
        results = read_results(path)
        rows = [row for row in results.rows if row.level == "sentence" and row.readout == "stated"]
        tested = {name: digest for name, digest in tested_in(path.parent)[0].items() if digest is not None}
        said += claims(rows, {name for name, digest in tested.items() if digest == exported} if tested else None)
        shown, infos = shown + rows, infos | dict(results.metrics)
    legend = "Sentences, stated score, in percent; BS and ECE-M: lower is better, SC: higher."
    return "\n\n".join([legend, markdown_results(shown, infos).rstrip(), *said])


def claims(rows: Sequence[ResultRow], methods: Collection[str] | None = None) -> list[str]:
    """Return how far the stated scores of exported weights are true in the first mode of a test: a sentence per domain.

    There is none where it is undefined.

    Args:
        rows: the rows of the test, of stated scores of sentences.
        methods: what these weights are called there; None where that is not known, which leaves a test of several
            trained methods without a sentence.
    """
    trained = {row.method for row in rows if row.kind == "method"}
    if methods is None:
        methods = trained if len(trained) == 1 else ()
    first: tuple[str, str] | None = None
    said_of: list[str] = []
    for row in rows:
        said, true, off = (row.metrics.get(name) for name in ("mean_confidence", "mean_factuality", "ece_m"))
        if row.method not in methods or row.kind != "method":
            continue
        if said is not None and true is not None and off is not None:
            first = first or (row.method, row.mode)
            if (row.method, row.mode) != first:
                continue
            side = "too high" if said > true else "too low"
            state = "close to" if off <= _CLOSE else f"on average {side}, and not to be read as"
            said_of.append(
                f"{row.domain}, {counted(row.n, 'sentence')}: stated scores are {state} the share that is true: "
                f"{row.method} states {100 * said:.1f} % on average where {100 * true:.1f} % is true ({row.mode} "
                f"tagging), and differs from it by {100 * off:.1f} points (ECE-M)."
            )
    return said_of
