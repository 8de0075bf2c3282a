"""Sampling workers that the system does not start."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.distributed.workers import fork_server, sampling_producer, worker_process
from graphlearn_dist.distributed.workers.batch_shelf import BatchShelf
from graphlearn_dist.distributed.workers.fork_server import ForkedWorker, ForkServer, hold_fork_server
from graphlearn_dist.distributed.workers.sampling_producer import SamplingProducer
from graphlearn_dist.distributed.workers.worker_memory import WorkerMemory
from graphlearn_dist.distributed.workers.worker_messages import StopWorker
from graphlearn_dist.distributed.workers.worker_process import WorkerProcess
from graphlearn_dist.errors import SamplingWorkerError, SystemLimitError
from graphlearn_dist.rpc.engine import threads
from graphlearn_dist.rpc.engine.threads import LoopExecutor
from tests.support.jobs import wait_ended

DEADLINE_S = 60.0  # only ever reached by a hang
MEMORY = WorkerMemory.divide(1 << 17)


def test_a_worker_that_cannot_be_forked_is_named() -> None:
    def fork() -> Any:
        raise BlockingIOError(errno.EAGAIN, f"fork: {os.strerror(errno.EAGAIN)}")

    async def start() -> None:
        origin: Any = SimpleNamespace(forks=SimpleNamespace(fork=fork))
        told: list[Any] = []
        process = WorkerProcess(
            "loader 1, worker 0", BatchShelf("loader 1", 1), 0, MEMORY, lambda *end: told.append(end), origin
        )
        try:
            await process.start()
        finally:
            await process.close()

    with pytest.raises(SamplingWorkerError, match=r"loader 1, worker 0: stage start: .* fork: Resource temporarily"):
        asyncio.run(start())


def test_a_worker_without_memory_for_its_ring_is_named() -> None:
    async def make() -> None:
        WorkerProcess(
            "loader 1, worker 0",
            BatchShelf("loader 1", 1),
            0,
            WorkerMemory(1 << 30, 1 << 20),
            lambda *_: None,
            origin=None,
        )  # type: ignore[arg-type]

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(SamplingWorkerError, match=r"loader 1, worker 0: stage set-up: cannot create .* too large"):
            asyncio.run(make())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_worker_is_killed_where_its_end_is_not_waited_for() -> None:
    """As where a limit of time is over, or a loader's loop ends, while it is asked to."""

    async def close_and_cancel(forks: ForkServer) -> int:
        def fork() -> ForkedWorker:
            worker = forks.fork()
            os.kill(worker.pid, signal.SIGSTOP)  # it hears nothing
            return worker

        origin: Any = SimpleNamespace(forks=SimpleNamespace(fork=fork), make_setup=lambda feed: StopWorker())
        process = WorkerProcess("loader 1, worker 0", BatchShelf("loader 1", 1), 0, MEMORY, lambda *_: None, origin)
        starting = asyncio.create_task(process.start())
        while not process.pid:
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(process.close())
        await asyncio.sleep(0)  # it has begun
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await process.close()  # again, as by who was to close it anyway
        starting.cancel()
        return process.pid

    with hold_fork_server() as forks:
        pid = asyncio.run(close_and_cancel(forks))
        wait_ended([pid], DEADLINE_S)


def test_a_failure_at_the_start_is_told_though_the_time_is_over_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a worker has failed, and the others have not ended yet when the time for starting is over."""

    class Failing:
        is_up = False

        async def start(self, origin: Any) -> None:
            raise SamplingWorkerError("worker 0 failed")

        async def close(self) -> None:
            pass

    class Slow(Failing):
        async def start(self, origin: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.2)  # beyond the limit of time

    async def start() -> None:
        producer = SamplingProducer.__new__(SamplingProducer)
        producer._name, producer._workers = "loader 1", [Failing(), Slow()]  # type: ignore[list-item]
        producer._request = SimpleNamespace(start_timeout_s=0.1)  # type: ignore[assignment]
        producer._shelf = SimpleNamespace(open=lambda: None)  # type: ignore[assignment]
        producer._resources, producer._start_failure = contextlib.ExitStack(), None
        producer.close = Failing().close  # type: ignore[method-assign]
        await producer.start()

    monkeypatch.setattr(sampling_producer, "hold_fork_server", contextlib.nullcontext)
    with pytest.raises(SamplingWorkerError, match="worker 0 failed"):
        asyncio.run(start())


def test_a_start_that_is_called_off_as_a_worker_dies_starts_no_other() -> None:
    """Until Python 3.12, ``asyncio.wait_for`` forgets a cancellation where what it waits for is there."""

    class Dead:
        """Its process has ended already."""

        is_closed = False

        async def wait(self) -> int:
            return -9

        def kill(self) -> None:
            pass

    async def end() -> bool:
        dead: Any = Dead()
        ending = asyncio.create_task(worker_process._end(dead))
        for _ in range(2):
            await asyncio.sleep(0)  # it waits, and the end is there in this turn
        ending.cancel()
        await asyncio.wait((ending,))
        return ending.cancelled()

    assert asyncio.run(end())


def test_a_worker_whose_descriptor_finds_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def recv_fds(sock: socket.socket, *_: Any) -> Any:
        return sock.recv(fork_server.ANSWER.size), [], 0, None

    with hold_fork_server() as forks:
        forks.fork().close()  # it is up
        monkeypatch.setattr(fork_server.socket, "recv_fds", recv_fds)
        with pytest.raises(OSError, match="Too many open files"):
            forks.fork()


def test_descriptors_that_are_used_up_are_not_taken_for_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_process(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(fork_server, "_C", SimpleNamespace(open_process=open_process))
    with pytest.raises(OSError, match="Too many open files"):
        ForkServer().fork()


def test_what_workers_need_is_closed_though_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def start(thread: threading.Thread) -> None:
        raise SystemLimitError("can't start new thread")

    async def close() -> None:
        producer = SamplingProducer.__new__(SamplingProducer)
        producer._workers, producer._on_close = [], []
        producer._shelf = SimpleNamespace(close=lambda: closed.append("shelf"))  # type: ignore[assignment]
        producer._resources = contextlib.ExitStack()
        producer._resources.callback(closed.append, "resources")
        producer.end = lambda error: None  # type: ignore[method-assign]
        producer._name = "loader 1"
        asyncio.get_running_loop().set_default_executor(LoopExecutor("some"))
        monkeypatch.setattr(threads, "start_thread", start)
        await producer.close()

    asyncio.run(close())
    assert closed == ["shelf", "resources"]


_ENDS_AT_ONCE = """
import os, subprocess
from graphlearn_dist.distributed.workers import fork_server

popen = subprocess.Popen

class Popen(popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os._exit(3)  # while it imports

subprocess.Popen = Popen
fork_server.ForkServer().fork()
"""


def test_a_program_that_ends_while_its_fork_server_comes_up_says_nothing_after_it() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS_AT_ONCE], capture_output=True, text=True, timeout=DEADLINE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", "")  # read until the fork server has ended too
