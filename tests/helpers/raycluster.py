"""A real Ray cluster of two nodes on this machine, each with processes of its own and few resources."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from forks import Fork

STORE = 100 << 20  # bytes of each node's object store
LIMIT = 180.0  # seconds to start or to end


@dataclass(frozen=True)
class RayCluster:
    """A cluster: its address, as for RAY_ADDRESS, and the process that all its processes descend from."""

    address: str
    pid: int

    def actors(self) -> list[psutil.Process]:
        """Return the processes that hold a model."""
        return [p for p in self.processes() if _name(p).startswith("ray::MapWorker(MapBatches(_Actor")]

    def processes(self) -> list[psutil.Process]:
        """Return all its processes."""
        return list(psutil.Process(self.pid).children(recursive=True))


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Run a cluster with room for two actors; no process of it is left at the end."""

    def serve() -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
        from ray.cluster_utils import Cluster

        ended = {signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ended)
        cluster = Cluster()
        cluster.add_node(num_cpus=2, object_store_memory=STORE, include_dashboard=False)  # one for Ray's own actor
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        print(f"address {cluster.address}")
        faulthandler.cancel_dump_traceback_later()
        signal.sigwait(ended)
        faulthandler.dump_traceback_later(LIMIT, exit=True, file=2)
        cluster.shutdown()

    fork = Fork(serve)
    processes = []
    try:
        line = next((line for line in fork.stdout if line.startswith("address ")), None)
        if line is None:
            assert fork.stderr is not None
            raise RuntimeError(f"the cluster has not started: {fork.stderr.read()}")
        cluster = RayCluster(line.split()[1], fork.pid)
        processes = cluster.processes()
        yield cluster
    finally:
        if fork.poll() is None:  # those of an ended cluster descend from it no longer
            processes += cluster.processes() if processes else []
            fork.send_signal(signal.SIGTERM)
        code = fork.wait()
        fork.end()
        _, left = psutil.wait_procs(processes, timeout=30)
        for process in left:
            process.kill()
    assert code == 0 and not left, f"the cluster ended with {code}; {left} still ran"


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
