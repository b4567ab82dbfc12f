"""How many files somebody reads to follow a row, a rollout, a text, a request or a table from its beginning to its end.

    python benchmarks/files_read.py     # benchmarks/results/files_read.json, and the table in CONTRIBUTING.md

Each way is taken once with the embedded world's model, and a profiler counts the files of lovec whose functions are
called. What is done once at the start (loading models, reading recipes, starting the server) does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from common import ROOT, provenance, results_and_page
from lightning.pytorch import Trainer
from page_parts import page_options, run_for_page

from lovec.datamodules import World
from lovec.datasets.columns import Columns
from lovec.datasets.scored import read_scored
from lovec.modules import DPO, GRPO, PolicyModule
from lovec.modules.batching import Batch, Example
from lovec.policy import PolicyConfig
from lovec.reports.scores import measured_files, print_scores
from lovec.serving.app import make_app
from lovec.serving.connections import make_server
from lovec.serving.limits import RequestLimits
from lovec.taggers import open_session
from lovec.tagging import tag
from lovec.types import LossOutput, Record

RESULTS, PAGE = results_and_page("files_read", "CONTRIBUTING.md")
MARKS = ("<!-- files: written by benchmarks/files_read.py -->", "<!-- end of files -->")
HOMES = (f"{ROOT / 'lovec'}/", f"{ROOT / 'cli'}/")
ADAPTER = ROOT / "lovec" / "datasets" / "world" / "adapter"
TEXT = "Ada Lovelace was born in London. She wrote notes on an engine."


class Files:
    """Files of lovec with a function that was called, in the order of their first calls."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._counts = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what is called inside the block, by threads that were started under ``profiled`` as well."""
        self._counts = True
        try:
            yield
        finally:
            self._counts = False

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Watch this thread, and those that are started inside the block."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if self._counts and event == "call" and name.startswith(HOMES) and frame.f_code.co_name != "<module>":
            self.found[str(Path(name).relative_to(ROOT))] = None


def followed(objective: type[PolicyModule], folder: Path) -> Files:
    """Train the embedded world's model for two steps, and follow the rows of the second one to their loss."""
    files = Files()

    class Followed(objective):  # type: ignore[misc, valid-type]
        def update_batches(self, rows: Sequence[Record]) -> Iterator[Sequence[Example]]:
            with files.counted() if self.global_step else nullcontext():
                found = list(super().update_batches(rows))
            yield from found

        def loss(self, batch: Batch[Any]) -> LossOutput:
            with files.counted() if self.global_step else nullcontext():
                return super().loss(batch)

    trainer = Trainer(
        max_steps=2,
        accelerator="cpu",
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    with files.profiled():
        trainer.fit(Followed(policy=PolicyConfig(model="world", adapter=str(ADAPTER))), World(batch_size=4))
    return files


def row_to_loss(folder: Path) -> Files:
    """Follow preference pairs to the loss of DPO."""
    return followed(DPO, folder)


def rollout_to_loss(folder: Path) -> Files:
    """Follow questions to sampled and rated answers, and to the loss of GRPO."""
    return followed(GRPO, folder)


def text_to_html(folder: Path) -> Files:
    """Follow a text to the HTML of a notebook."""
    files = Files()
    with open_session("world", str(ADAPTER)) as session, files.profiled():
        tag(TEXT, session=session)
        with files.counted():
            tag(TEXT, session=session)._repr_html_()
    return files


def request_to_answer(folder: Path) -> Files:
    """Follow a request for a chat completion to the last event of its stream."""
    files, limits = Files(), RequestLimits()
    with files.profiled():
        server = make_server(make_app(open_session("world", str(ADAPTER)), "world", limits), limits)
        server.config.port = 0
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            thread.join(0.05)
        port = server.servers[0].sockets[0].getsockname()[1]
        body = {"model": "world", "messages": [{"role": "user", "content": "Who was Ada?"}], "stream": True}
        headers = {"Content-Type": "application/json"}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        for context in (nullcontext(), files.counted()):  # the first request imports what it needs
            with context:
                urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
        server.should_exit = True
        thread.join()
    return files


def table_to_scores(folder: Path) -> Files:
    """Follow a CSV file with confidences and labels to the table of their metrics."""
    path, files = folder / "scores.csv", Files()
    path.write_text("confidence,label\n" + "".join(f"{i / 20},{int(i % 20 > 9)}\n" for i in range(20)))
    with files.profiled(), contextlib.redirect_stdout(io.StringIO()):
        for context in (nullcontext(), files.counted()):  # the first time imports what it needs
            with context:
                print_scores(measured_files([read_scored(path, Columns())]))
    return files


WAYS = {
    "a row, to the loss of DPO": row_to_loss,
    "a rollout, to the loss of GRPO": rollout_to_loss,
    "a text, to its HTML": text_to_html,
    "a chat request, to its streamed answer": request_to_answer,
    "a table of confidences, to its scores": table_to_scores,
}


def measure(folder: Path) -> dict[str, Any]:
    """Count the files of every way."""
    found = {}
    for name, follow in WAYS.items():
        place = folder / follow.__name__
        place.mkdir(parents=True)
        found[name] = list(follow(place).found)
        print(f"{name}: {len(found[name])} files", flush=True)
    return found


def table(results: Mapping[str, Any]) -> str:
    """Return the ways in Markdown, with how many files each takes and those that come first."""
    lines = ["", "| To follow | Files | Begin with |", "|---|---|---|"]
    for name, files in results["files"].items():
        begin = ", ".join(f"`{file}`" for file in files[:3])
        lines.append(f"| {name} | {len(files)} | {begin} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command line."""

    def measured(_: argparse.Namespace) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return {**provenance(), "files": measure(Path(folder))}

    run_for_page(page_options(__doc__), measured, table, RESULTS, PAGE, MARKS)


if __name__ == "__main__":
    main()
