"""What a supervisor says of the memory of workers, and when."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import ResourceUsage
from graphlearn_dist.cluster.supervisor import Supervisor, Watch

DEADLINE_S = 60.0  # only ever reached by a hang
MIB = 1 << 20


class Slot:
    """A worker that uses some memory of a machine that has 1000 MiB."""

    def __init__(self, rank: int, node: str, used_mib: int, done: threading.Barrier | None) -> None:
        self.rank, self.incarnation, self.where = rank, 0, f"worker {rank}"
        self._node, self._used, self._done = node, used_mib, done
        self._asked = 0

    def ping(self) -> None:
        pass

    def status(self) -> Any:
        return SimpleNamespace(node=self._node)

    def ask_usage(self, on_answer: Any) -> None:
        on_answer(ResourceUsage(0.0, 0, self._used * MIB, 0, 1, 1, 0, 1000 * MIB))
        self._asked += 1
        if self._done is not None and self._asked == 2:  # the second round would repeat what it should not
            self._done.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("used", "limit_mib", "said"),
    [
        ([89, 90], 100, ["worker 1: 90 MiB of 100 MiB of memory are in use"]),
        ([400, 500, 899], None, ["the workers of node a: 900 MiB of 1000 MiB of memory are in use"]),
        ([400, 499], None, []),
    ],
)
def test_memory_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, used: list[int], limit_mib: int | None, said: list[str]
) -> None:
    caplog.set_level(logging.WARNING, "graphlearn_dist")
    done = threading.Barrier(2)
    nodes = ["a", "a", "b"]
    slots = [Slot(rank, nodes[rank], mib, done if rank == len(used) - 1 else None) for rank, mib in enumerate(used)]
    supervisor = Supervisor(Watch(False, None, True, None if limit_mib is None else limit_mib * MIB, 0.001))
    supervisor.start(slots)  # type: ignore[arg-type]
    done.wait(DEADLINE_S)
    supervisor.stop()
    assert [record.getMessage() for record in caplog.records] == said
