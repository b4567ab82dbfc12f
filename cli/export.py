"""``lovec export``: a trained policy as a folder that other programs load."""

from __future__ import annotations

from pathlib import Path

from .parser import OneLineParser


def run(words: list[str]) -> None:
    """Writes an adapter or a merged model with its card.

    Args:
        words: the command line after ``export``.

    Raises:
        LovecError: there is no adapter, or the folder to write is taken.
    """
    parser = OneLineParser("export", "Write a trained adapter, or base and adapter as one model, with a model card.")
    parser.add_argument("source", metavar="RUN", help="folder of a run, such as runs/dpo, or of a PEFT adapter")
    parser.add_argument("out", metavar="FOLDER", type=Path, help="folder to write")
    parser.add_argument("--merged", action="store_true", help="merge the adapter into the base model")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of merged weights")
    parser.add_argument("--model", help="base model, where it is not the one that the adapter names")
    parser.add_argument("--results", type=Path, help="results for the card; by default RUN/test/results.json")
    parser.add_argument("--force", action="store_true", help="replace FOLDER if it holds something")
    options = parser.read(words)
    from lovec.exporting import Source, export_adapter, export_merged

    source = Source.find(options.source, options.model)
    figures = _figures(options.results, source.run)
    if options.merged:
        export_merged(source, options.out, figures, options.dtype, options.force)
    else:
        export_adapter(source, options.out, figures, options.force)
    print(f"{'merged model' if options.merged else 'adapter'} and model card written to {options.out}")


def _figures(results: Path | None, run: Path | None) -> str:
    """The table of the card: stated scores of sentences, as the run's test found them."""
    from lovec.reports import markdown_table, read_results

    path = results or (None if run is None else run / "test" / "results.json")
    if path is None or (results is None and not path.exists()):
        return "Not measured; `lovec test` does."
    rows = [row for row in read_results(path) if row["level"] == "sentence" and row["readout"] == "stated"]
    table = markdown_table(rows)
    return f"Sentences, stated score, in percent; BS and ECE-M: lower is better, SC: higher.\n\n{table.rstrip()}"
