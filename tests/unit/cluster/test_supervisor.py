"""What a supervisor says of the memory of workers, and when; what it does with those that die."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import ActorProfile, ActorSpec, ResourceUsage
from graphlearn_dist.cluster.groups.health import WorkerState
from graphlearn_dist.cluster.groups.supervisor import Supervisor, Watch
from graphlearn_dist.cluster.groups.worker_layout import plan_workers
from graphlearn_dist.cluster.groups.worker_slot import WorkerSlot

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


class Process:
    """A process whose end the test tells."""

    def __init__(self, spec: ActorSpec) -> None:
        self.spec = spec
        self.ready: Future[ActorProfile] = Future()
        self.ended: Future[None] = Future()


class Engine:
    """Starts what the test ends."""

    def __init__(self) -> None:
        self.started: queue.SimpleQueue[Process] = queue.SimpleQueue()

    def create(self, spec: ActorSpec) -> Process:
        process = Process(spec)
        self.started.put(process)
        return process

    create_when_free = create

    def kill(self, process: Process) -> None:
        pass


def test_a_process_that_is_late_is_one_more_death() -> None:
    engine = Engine()
    supervisor = Supervisor(Watch(True, None, False, None))
    [metadata] = plan_workers([1], [(0, [0])], "late")
    slot = WorkerSlot(ActorSpec("late", "p.C", start_timeout_s=5.0), metadata, engine, 1, supervisor.on_death)  # type: ignore[arg-type]
    supervisor.start([])
    try:
        first = engine.started.get(timeout=DEADLINE_S)
        first.ready.set_result(ActorProfile(1, "node", {}))
        first.ended.set_exception(OSError("killed"))
        second = engine.started.get(timeout=DEADLINE_S)
        late = second.spec.late("node")
        second.ready.set_exception(late)
        second.ended.set_exception(late)
        assert slot.wait_settled(DEADLINE_S) is WorkerState.RETIRED
        assert (slot.status().restarts, slot.status().last_error) == (1, str(late))
    finally:
        supervisor.stop()
