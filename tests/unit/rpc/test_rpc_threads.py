"""Threads that answer requests: nobody waits for another's backlog."""

from __future__ import annotations

import threading

from graphlearn_dist.rpc.engine.threads import WorkerThreads

DEADLINE_S = 60.0


def test_owners_take_turns() -> None:
    """One has a hundred pieces of work waiting; those of two others come next but one, each owner's own in order."""
    threads = WorkerThreads(1, "test")
    started, gate, done = threading.Event(), threading.Event(), threading.Event()
    order: list[tuple[str, int]] = []

    def block() -> None:
        started.set()
        gate.wait(DEADLINE_S)

    threads.submit(block, "greedy")
    assert started.wait(DEADLINE_S)
    for number in range(100):
        threads.submit(lambda number=number: order.append(("greedy", number)), "greedy")
    for number in range(3):
        for owner in ("a", "b"):
            threads.submit(lambda owner=owner, number=number: order.append((owner, number)), owner)
    threads.submit(done.set, "greedy")
    gate.set()
    assert done.wait(DEADLINE_S)
    turns = [(owner, number) for number in range(3) for owner in ("greedy", "a", "b")]
    assert order == [*turns, *(("greedy", number) for number in range(3, 100))]
    threads.close(DEADLINE_S)


def test_what_waits_at_the_end_is_not_run() -> None:
    threads = WorkerThreads(1, "test")
    gate, started = threading.Event(), threading.Event()
    ran: list[str] = []

    def block() -> None:
        started.set()
        gate.wait(DEADLINE_S)
        ran.append("running")

    threads.submit(block)
    assert started.wait(DEADLINE_S)
    threads.submit(lambda: ran.append("waiting"), "another")
    threads.close(0.01)  # it lets go without waiting for what runs
    threads.submit(lambda: ran.append("late"))
    gate.set()
    threads.close(DEADLINE_S)
    assert ran == ["running"]
