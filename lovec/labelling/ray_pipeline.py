"""The pipeline of Ray Data behind ``lovec.labelling.on_ray``; only this module imports Ray."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent away that was not asked for
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # it warns of what Ray Data does by itself

import itertools

import pyarrow
import ray
from ray.data import ActorPoolStrategy, DataContext, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata
from ray.data.checkpoint import CheckpointConfig
from ray.exceptions import RayError

from lovec.labelling.ray_files import CHUNKS, ID, RESULTS, RaySettings, begin_try, read_chunk, write_results
from lovec.labelling.stage import Stage
from lovec.types import LovecError

_BLOCKS = 1000
"""Most blocks of a data set. A kill loses at most the work on one block for every actor."""

_FILTER_MEMORY = 64 << 20  # bytes that Ray sets apart for the ids that are done, which are integers
_RECORDS = "records"
_RAISED = re.compile(r"^((?:\w+\.)*\w+): (.+)$\n\nThe above exception", re.MULTILINE)
_QUOTED = 300  # characters of an error that a message quotes


@contextmanager
def connected() -> Iterator[None]:
    """Connect to the Ray cluster of this machine or of RAY_ADDRESS, or start one; a connection that is there is kept.

    Raises:
        LovecError: there is no cluster at that address.
    """
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        place = os.environ.get("RAY_ADDRESS", "this machine")
        raise LovecError(
            f"there is no Ray cluster at {place} ({str(error).splitlines()[0][:200]}); start one with `ray start "
            "--head`, or correct RAY_ADDRESS"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def run_pipeline(
    folder: Path, places: Mapping[int, int], open_stage: Callable[[], Stage], settings: RaySettings
) -> None:
    """Write the results of all chunks that no earlier run has written.

    Args:
        folder: folder with the file of chunks, in which results and checkpoints are written.
        places: place of every chunk in that file by its id, in bytes.
        open_stage: returns the stage in an actor.
        settings: how many actors, with what.

    Raises:
        LovecError: the cluster is too small, or the work failed.
    """
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised as well
    checkpoints = CheckpointConfig(ID, str(folder / "done"), delete_checkpoint_on_success=False)
    checkpoints.checkpoint_actor_memory_bytes = _FILTER_MEMORY
    checkpoints.checkpoint_actor_pool_max_size = 1
    context = DataContext.get_current().copy()
    context.checkpoint_config = checkpoints
    context.enable_progress_bars = sys.stderr.isatty()
    blocks = min(_BLOCKS, len(places))
    with DataContext.current(context):
        data = read_datasource(_Chunks(folder / CHUNKS, places), override_num_blocks=blocks, num_cpus=0)
        results = data.map_batches(
            _Actor,
            batch_size=1,
            batch_format="pyarrow",
            fn_constructor_args=(open_stage, os.getcwd(), folder),
            compute=ActorPoolStrategy(min_size=1, max_size=min(_most(settings), blocks)),
            num_cpus=settings.actor_cpus,
            num_gpus=settings.actor_gpus or None,
        )
        try:
            results.write_parquet(str(folder / RESULTS), ray_remote_args={"num_cpus": 0})
        except RayError as error:
            raise _explained(error) from error


def _most(settings: RaySettings) -> int:
    """Return how many actors the cluster has room for, at most as many as were asked for.

    Ray's filter of the ids that are done is an actor with a CPU of its own, which has to be left for it.

    Raises:
        LovecError: there is room for none.
    """
    there = ray.cluster_resources()
    cpus, gpus = there.get("CPU", 0), there.get("GPU", 0)
    most = (cpus - 1) // settings.actor_cpus
    if settings.actor_gpus:
        most = min(most, gpus // settings.actor_gpus)
    if most < 1:
        raise LovecError(
            f"the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs, expected {settings.actor_cpus + 1:g} CPUs and "
            f"{settings.actor_gpus:g} GPUs for one actor and Ray's own work; give an actor less, or add nodes"
        )
    return int(min(most, settings.actors or most))


def _explained(error: BaseException) -> LovecError:
    """Return the error of an actor as this process would have raised it, or one that says what went wrong there.

    Of an error in an actor only the printed traceback comes back, at whose end the error stands by itself.
    """
    match = _RAISED.search(str(error))
    if match is None:
        return LovecError(f"the work on Ray has failed ({type(error).__name__}: {str(error).strip()[-_QUOTED:]})")
    name, message = match.groups()
    if name.startswith("lovec."):
        return LovecError(message)
    return LovecError(f"the work on Ray has failed ({name}: {message[:_QUOTED]}); run the same command again to go on")


class _Chunks(Datasource):  # type: ignore[misc]  # Ray is an extra, without which it has no types
    """The file of chunks as a source of Ray Data: as many blocks of successive chunks as are asked for."""

    def __init__(self, path: Path, places: Mapping[int, int]) -> None:
        super().__init__()
        self._path = path
        self._places = list(places.items())

    def estimate_inmemory_data_size(self) -> int:
        return self._path.stat().st_size

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
        count = len(self._places)
        bounds = [count * at // parallelism for at in range(parallelism + 1)]
        size = self._path.stat().st_size // parallelism
        return [
            ReadTask(
                _Reading(self._path, self._places[begin][1], [id_ for id_, _ in self._places[begin:end]]),
                BlockMetadata(num_rows=end - begin, size_bytes=size, input_files=None, exec_stats=None),
            )
            for begin, end in itertools.pairwise(bounds)
            if end > begin
        ]


class _Reading:
    """Reads one block: the chunks with these ids, which are successive lines from a place on."""

    def __init__(self, path: Path, place: int, ids: Sequence[int]) -> None:
        self._path, self._place, self._ids = path, place, ids

    def __call__(self) -> list[Any]:
        with open(self._path, "rb") as file:
            file.seek(self._place)
            lines = [file.readline() for _ in self._ids]
        return [pyarrow.table({ID: self._ids, _RECORDS: pyarrow.array(lines, pyarrow.large_binary())})]


class _Actor:
    """Holds an opened stage, and works on one chunk at a time.

    Args:
        open_stage: returns the stage.
        home: the working directory, from which relative paths go out and where a user's own classes lie.
        folder: folder of the stage on Ray.
    """

    def __init__(self, open_stage: Callable[[], Stage], home: str, folder: Path) -> None:
        self._open_stage, self._home, self._folder = open_stage, home, folder
        self._stage: Stage | None = None

    def __call__(self, batch: Any) -> Any:
        """Return the results of a batch of one chunk."""
        self._go_home()  # the folder of the tries may be below it
        (id_,), (line,) = batch[ID].to_pylist(), batch[_RECORDS].to_pylist()
        records = read_chunk(line)
        tries = begin_try(self._folder, id_, records)  # before the stage is opened, which may end the process as well
        result = write_results(self._opened().written(records))
        tries.unlink(missing_ok=True)  # another actor may have done this chunk, too
        return pyarrow.table({ID: batch[ID], RESULTS: pyarrow.array([result], pyarrow.large_string())})

    def _go_home(self) -> None:
        try:
            os.chdir(self._home)
        except OSError as error:
            raise LovecError(
                f"a node of the Ray cluster has no folder {self._home} ({error.strerror}); run the command in a folder "
                "that all nodes share"
            ) from None

    def _opened(self) -> Stage:
        if self._stage is None:  # opened here and not above, where Ray would report an error as that of a dead actor
            self._stage = self._open_stage()
        return self._stage
