"""Threads beside the loop: nobody waits for another's backlog, nor for a thread that the system does not give."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Any

import pytest

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.distributed import event_loop
from graphlearn_dist.distributed.event_loop import LoopThread
from graphlearn_dist.errors import SystemLimitError
from graphlearn_dist.loader.prefetch import made_ahead
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.engine.threads import WorkerThreads
from tests.support.waiting import wait_until

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


@pytest.mark.parametrize("place", ["_calls.get", "_work.take"])
def test_closed_by_the_garbage_collector_in_one_of_its_threads(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """As where an iterator of batches that are made ahead is in a cycle: collections begin in the midst of anything."""
    threads, closed = WorkerThreads(3, "test"), threading.Event()
    attribute, method = place.split(".")
    queue = getattr(threads, attribute)

    class Closing:
        """As the queue, but that a call of ``method`` closes the threads first."""

        def __getattr__(self, name: str) -> Any:
            if name == method:
                threads.close(0.0)
                closed.set()
            return getattr(queue, name)

    futures = [threads.call(pow, 3, 2) for _ in range(3)]
    assert [future.result(DEADLINE_S) for future in futures] == [9] * 3
    monkeypatch.setattr(threads, attribute, Closing())
    threads.call(pow, 3, 2)
    wait_until(closed.is_set)
    wait_until(lambda: not any(thread.is_alive() for thread in threads._threads))


class ThreadLimit:
    """A system that starts only so many of the threads whose names contain a word."""

    def __init__(self, word: str) -> None:
        self.left = 0
        self._word = word
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        """In place of ``Thread.start``."""
        if self._word in thread.name:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
        self._start(thread)


def limit_threads(monkeypatch: pytest.MonkeyPatch, word: str) -> ThreadLimit:
    limit = ThreadLimit(word)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: limit.start(thread))
    return limit


def test_threads_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """None: an error that names them, and no trace of it. One of three: it does the work of all."""
    limit = limit_threads(monkeypatch, "scarce")
    threads = WorkerThreads(3, "scarce")
    with pytest.raises(SystemLimitError, match=r"scarce-0: can't start new thread"):
        threads.submit(lambda: None)
    limit.left = 1
    futures = [threads.call(pow, number, 2) for number in range(5)]
    assert [future.result(DEADLINE_S) for future in futures] == [0, 1, 4, 9, 16]
    threads.close(DEADLINE_S)


def test_batches_are_made_ahead_by_the_threads_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = limit_threads(monkeypatch, "gld-prefetch")
    with pytest.raises(SystemLimitError, match="gld-prefetch-0"):
        list(made_ahead(str, range(5), 3))
    limit.left = 1
    assert list(made_ahead(str, range(5), 3)) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("engine", ["native", "python"])
def test_a_request_that_no_thread_can_serve_fails(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """The caller is told, where it would have waited for its deadline; and is served as soon as there are threads."""
    settings = RpcSettings(engine=engine, request_timeout_s=DEADLINE_S)
    limit = limit_threads(monkeypatch, "rpc-server-0-")
    with Endpoint("server", 0, settings=settings) as server, Endpoint("client", 0, settings=settings) as client:
        server.register("square", lambda value: value * value)
        with pytest.raises(SystemLimitError, match="rpc-server-0-0: can't start new thread"):
            client.call(server.address, "square", 3)
        limit.left = 1
        assert client.call(server.address, "square", 3) == 9


def test_an_endpoint_without_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = limit_threads(monkeypatch, "rpc-server-0")
    endpoint = Endpoint("server", 0)
    with pytest.raises(SystemLimitError, match="rpc-server-0: can't start new thread"):
        endpoint.open()
    limit.left = 1
    with endpoint:
        assert endpoint.address.port > 0


def test_a_loop_whose_thread_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not been started then: stopping it waits for nobody. And stopping it takes no thread."""
    limit = limit_threads(monkeypatch, "")
    loop = LoopThread("a loop")
    with pytest.raises(SystemLimitError, match="a loop: can't start new thread"):
        loop.start()
    assert not loop.is_running
    loop.stop()
    limit.left = 2  # the loop's, and one that runs what blocks
    loop.start()
    assert loop.run(asyncio.to_thread(pow, 3, 2), DEADLINE_S) == 9
    loop.stop()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "a loop"]


def test_a_loop_whose_stop_is_interrupted_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl-C, while what runs on it takes its time to end."""
    loop, may_end, is_called_off = LoopThread("a loop"), threading.Event(), threading.Event()

    async def end_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_called_off.set()
            await asyncio.to_thread(may_end.wait, DEADLINE_S)

    loop.start()
    running = loop.submit(end_late())
    loop.run(asyncio.sleep(0))
    thread, inner, executor = loop._thread, loop._loop, loop._executor
    assert thread is not None
    assert inner is not None

    def interrupt(timeout: float | None = None) -> None:
        assert is_called_off.wait(DEADLINE_S)
        raise KeyboardInterrupt

    join = thread.join
    monkeypatch.setattr(thread, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.stop()
    assert not loop.is_running
    may_end.set()
    join(DEADLINE_S)
    assert not thread.is_alive()
    assert inner.is_closed()
    assert running.cancelled()
    loop.stop()
    loop._loop, loop._thread, loop._executor = inner, thread, executor  # as after an interrupt a moment before
    monkeypatch.undo()
    loop.stop()
    assert not loop.is_running


def test_a_loop_whose_start_is_interrupted_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        thread.start()
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(event_loop, "start_thread", start)
    loop = LoopThread("a loop")
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    started[0].join(DEADLINE_S)
    assert not started[0].is_alive()
    assert not loop.is_running
    loop.stop()


def test_a_loop_without_descriptors_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_event_loop() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "new_event_loop", new_event_loop)
    with pytest.raises(SystemLimitError, match=r"a loop: .*Too many open files"):
        LoopThread("a loop").start()


@pytest.mark.parametrize("use_unix", [False, True])
def test_a_small_answer_does_not_wait_for_the_loop(*, use_unix: bool) -> None:
    """The thread that made it sends it, while the loop is busy with a coroutine."""
    settings = RpcSettings(engine="native", request_timeout_s=DEADLINE_S)
    working, is_occupied, free = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        working.set()
        assert is_occupied.wait(DEADLINE_S)
        return "done"

    async def occupy() -> bool:
        is_occupied.set()
        return free.wait(DEADLINE_S)

    with (
        Endpoint("server", 0, settings=settings, use_unix=use_unix) as server,
        Endpoint("client", 0, settings=settings, use_unix=use_unix) as client,
    ):
        server.register("work", work)
        server.register("occupy", occupy)
        answer = client.request(server.address, "work")
        assert working.wait(DEADLINE_S)
        occupied = client.request(server.address, "occupy")
        assert answer.result(DEADLINE_S / 2) == "done"
        assert not occupied.done()
        free.set()
        assert occupied.result(DEADLINE_S)


@pytest.mark.parametrize("use_unix", [False, True])
def test_one_request_does_not_wait_for_anothers_hundred(*, use_unix: bool) -> None:
    """All have come while the loop was busy: it sees to the connections in turns."""
    settings = RpcSettings(engine="native", request_timeout_s=DEADLINE_S, max_inflight=100)
    is_occupied, free = threading.Event(), threading.Event()
    order: list[str] = []

    async def occupy() -> None:
        is_occupied.set()
        assert free.wait(DEADLINE_S)

    async def note(name: str) -> None:
        order.append(name)

    with (
        Endpoint("server", 0, settings=settings, use_unix=use_unix) as server,
        Endpoint("client", 0, settings=settings, use_unix=use_unix) as greedy,
        Endpoint("client", 1, settings=settings, use_unix=use_unix) as modest,
    ):
        server.register("occupy", occupy)
        server.register("note", note)
        for client in (greedy, modest):
            client.call(server.address, "note", "before")
        occupied = greedy.request(server.address, "occupy")
        assert is_occupied.wait(DEADLINE_S)
        answers = [greedy.request(server.address, "note", "greedy") for _ in range(99)]
        answers.append(modest.request(server.address, "note", "modest"))
        free.set()
        occupied.result(DEADLINE_S)
        for answer in answers:
            answer.result(DEADLINE_S)
    assert order[:2] == ["before", "before"]
    assert order.count("greedy") == 99
    assert order.index("modest") < 40  # they are written by this thread, but who reads first is the kernel's choice
