"""Ray's simulated nodes in a process of their own.

Each node is a handful of daemons, children of whoever starts it. Not of the tests: some of them look at what children
their own process has, and a killed test run must not leave a Ray behind.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from tests.support.processes import TestProcess, start

STARTS = 3  # Ray gives a node 30 s to start, which a busy machine may miss
STOP_TIMEOUT_S = 60.0
_HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
_NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}


class RayNodes:
    """A head and two nodes named ``first`` and ``second``; more may come and go.

    Attributes:
        address: for ``ray.init``.
    """

    def __init__(self, process: TestProcess) -> None:
        self._process = process
        self.address = process.readline()

    def add_node(self, **options: Any) -> str:
        """One node more, with the options of ``ray.cluster_utils.Cluster.add_node``; its id."""
        return self._ask("add", options)

    def remove_node(self, node_id: str) -> None:
        """Ends a node that was added at once, as a machine that fails; returns when Ray knows."""
        self._ask("remove", node_id)

    def _ask(self, operation: str, argument: Any) -> str:
        self._process.tell(json.dumps([operation, argument]))
        return self._process.readline()


@contextlib.contextmanager
def running_nodes(cpus: int) -> Iterator[RayNodes]:
    """Three nodes with that many CPUs each; when the block ends, no process of theirs is left."""
    with start(f"{__name__}.serve", cpus=cpus) as process:
        yield RayNodes(process)
        process.tell(json.dumps(["end", None]))
        process.wait(STOP_TIMEOUT_S)


def serve(cpus: int) -> None:
    """Starts the nodes and does what it is told on standard input, until that ends."""
    cluster = _start_nodes(cpus)
    nodes: dict[str, Any] = {}
    try:
        print(cluster.address, flush=True)
        for line in sys.stdin:
            operation, argument = json.loads(line)
            if operation == "end":
                break
            if operation == "add":
                node = cluster.add_node(**_NODE, **argument)
                nodes[node.node_id] = node
                cluster.wait_for_nodes()
                print(node.node_id, flush=True)
            else:
                node = nodes.pop(argument)
                node.all_processes["raylet"][0].process.kill()  # its workers end with it; they would outlive the rest
                cluster.remove_node(node, allow_graceful=False)
                cluster.wait_for_nodes()  # Ray may place actors there until it knows
                print(argument, flush=True)
    finally:
        cluster.shutdown()


def _start_nodes(cpus: int) -> Any:
    from ray.cluster_utils import Cluster

    for attempt in range(STARTS):
        cluster = Cluster()
        try:
            cluster.add_node(**_NODE, num_cpus=cpus, _system_config=_HEALTH, resources={"head": 1})
            for name in ("first", "second"):
                cluster.add_node(**_NODE, num_cpus=cpus, resources={name: 1})
            cluster.wait_for_nodes()
        except Exception:
            cluster.shutdown()
            if attempt == STARTS - 1:
                raise
        else:
            return cluster
    raise AssertionError("unreachable")
