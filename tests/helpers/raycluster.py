"""A real Ray cluster of two nodes on this machine, each with processes of its own and few resources."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from forks import Fork

STORE = 100 << 20  # bytes of each node's object store


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Run a cluster with room for two actors; yield its address, as for RAY_ADDRESS."""

    def serve() -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        ended = {signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, ended)
        cluster = Cluster()
        cluster.add_node(num_cpus=2, object_store_memory=STORE, include_dashboard=False)  # one for Ray's own actor
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        print(f"address {cluster.address}")
        signal.sigwait(ended)
        cluster.shutdown()

    fork = Fork(serve)
    try:
        line = next(line for line in fork.stdout if line.startswith("address "))
        yield line.split()[1]
    finally:
        fork.send_signal(signal.SIGTERM)
        fork.wait()
        fork.end()
