"""Coroutines in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import torch

from ..errors import DeadlineExceededError, InvalidArgumentError, NotInitializedError, SystemLimitError
from ..rpc.engine.threads import LoopExecutor, post, run_loop
from ..utils.system.lifetime import Home, start_thread

T = TypeVar("T")

_STOP_TIMEOUT_S = 60.0  # a batch that is being sampled is sampled to its end


def wrap_torch_future(f: torch.futures.Future[Any]) -> asyncio.Future[Any]:
    """An asyncio future, of the running loop, that is done when ``f`` is, with its result or error.

    Raises:
        RuntimeError: no loop runs in this thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def finish(done: torch.futures.Future[Any]) -> None:
        if future.cancelled():
            return
        try:
            future.set_result(done.value())
        except Exception as error:
            future.set_exception(error)

    def on_done(done: torch.futures.Future[Any]) -> None:
        post(loop, finish, done)

    f.add_done_callback(on_done)
    return future


def to_torch_future(future: Future[Any]) -> torch.futures.Future[Any]:
    """A torch future that is done when ``future`` is, with its result or error."""
    torch_future: torch.futures.Future[Any] = torch.futures.Future()

    def copy(done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if done.cancelled():
            torch_future.set_exception(RuntimeError("the request was cancelled"))
        elif error is not None:
            torch_future.set_exception(error)
        else:
            torch_future.set_result(done.result())

    future.add_done_callback(copy)
    return torch_future


class LoopThread:
    """An asyncio loop that runs in a daemon thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._home = Home(name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._executor: LoopExecutor | None = None
        self._posting = threading.RLock()  # what is submitted, until the loop has it

    def start(self) -> None:
        """Starts the thread. Idempotent.

        Raises:
            SystemLimitError: no threads, or no descriptors, are left.
        """
        self._home.check()
        if self._loop is not None:
            return
        try:
            loop = asyncio.new_event_loop()
        except OSError as error:
            raise SystemLimitError(f"{self._name}: {error} (see ulimit -n)") from error
        executor = LoopExecutor(self._name)
        loop.set_default_executor(executor)
        thread = threading.Thread(target=_run_to_the_end, args=(loop,), name=self._name, daemon=True)
        try:
            start_thread(thread)
        except SystemLimitError:
            loop.close()
            raise
        except BaseException:  # interrupted: it may run already
            post(loop, loop.stop)
            raise
        self._loop, self._thread, self._executor = loop, thread, executor

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._loop is not None and self._home.is_here

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return self._thread is threading.current_thread()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine; cancelling the future cancels it.

        Raises:
            NotInitializedError: the thread does not run.
            ForkedProcessError: it runs in the process that this one is a fork of.
        """
        try:
            self._home.check()
        except NotInitializedError:
            coroutine.close()
            raise
        with self._posting:  # or else the loop might end before it has heard of it
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise NotInitializedError(f"{self._name} does not run: start it first")

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None, what: str = "a task") -> T:
        """As ``submit``, and waits for the result; what comes too late or is interrupted is cancelled.

        Raises:
            DeadlineExceededError: it was not there within ``timeout_s``; says ``what`` was waited for.
        """
        future = self.submit(coroutine)
        try:
            if wait((future,), timeout_s).not_done:
                raise DeadlineExceededError(f"{self._name}: waited {timeout_s:g} s for {what}")
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancels what runs, and ends the thread. Idempotent; without effect in a fork."""
        if not self._home.is_here:
            return
        with self._posting:
            loop, thread, executor = self._loop, self._thread, self._executor
            if loop is None or thread is None or executor is None:
                return
            post(loop, _begin_to_end, loop, executor)  # one step: who is interrupted here leaves none half done
            self._loop = self._thread = self._executor = None
        thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TimeoutError(f"{self._name}: what runs on it did not end within {_STOP_TIMEOUT_S:g} s")


def _run_to_the_end(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is stopped, and closes it."""
    try:
        run_loop(loop)
    finally:
        loop.close()


def _begin_to_end(loop: asyncio.AbstractEventLoop, executor: LoopExecutor) -> None:
    """On the loop, which stops when nothing else runs on it."""
    loop.create_task(_cancel_others(executor)).add_done_callback(lambda _: loop.stop())


async def _cancel_others(executor: LoopExecutor) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await executor.close()


class ConcurrentEventLoop:
    """Runs coroutines in a thread, at most ``concurrency`` of those given to ``add_task`` at once.

    Args:
        concurrency: tasks in flight.
    """

    def __init__(self, concurrency: int) -> None:
        if concurrency < 1:
            raise InvalidArgumentError(f"concurrency: expected at least 1, got {concurrency}")
        self._free = threading.BoundedSemaphore(concurrency)
        self._home = Home(type(self).__name__)
        self._thread = LoopThread(type(self).__name__)
        self._lock = threading.Lock()
        self._under_way: set[Future[Any]] = set()
        self._error: BaseException | None = None

    def start_loop(self) -> None:
        """Starts the thread. Idempotent."""
        self._thread.start()

    def shutdown_loop(self) -> None:
        """Cancels the tasks in flight, and ends the thread. Idempotent."""
        self._thread.stop()

    def wait_all(self, timeout: float | None = None) -> None:
        """Waits until every task that was added has ended.

        Args:
            timeout: seconds; None waits as long as they take.

        Raises:
            RuntimeError: a task or a callback of its own calls this, and would wait for itself.
            TimeoutError: some are still in flight.
            Exception: what the first task raised that failed since the last call.
        """
        self._home.check()
        if self._thread.is_current:
            raise RuntimeError("wait_all: called in the thread of the loop, by a task or a callback that it waits for")
        deadline = None if timeout is None else time.monotonic() + timeout
        while under_way := self._those_under_way():  # callbacks may add some
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if wait(under_way, left_s).not_done:
                raise TimeoutError(f"wait_all: tasks are still in flight after {timeout} s")
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _those_under_way(self) -> set[Future[Any]]:
        with self._lock:
            return set(self._under_way)

    def add_task(self, coro: Coroutine[Any, Any, Any], callback: Callable[[Any], None] | None = None) -> None:
        """Runs a coroutine; waits while ``concurrency`` of them are in flight.

        Args:
            coro: the coroutine.
            callback: called with its result, in the thread of the loop. What the coroutine or the callback raises comes
                out of ``wait_all``.
        """
        try:
            self._home.check()
        except NotInitializedError:
            coro.close()
            raise
        self._free.acquire()
        try:
            future = self._thread.submit(self._run(coro, callback))
        except BaseException:
            self._free.release()
            coro.close()
            raise
        with self._lock:
            self._under_way.add(future)
        future.add_done_callback(self._on_done)

    async def _run(self, coro: Coroutine[Any, Any, Any], callback: Callable[[Any], None] | None) -> None:
        try:
            result = await coro
            if callback is not None:
                callback(result)
        except Exception as error:
            with self._lock:  # before the future is done: whoever waits for it then finds the error
                self._error = self._error or error
            raise

    def _on_done(self, future: Future[Any]) -> None:
        with self._lock:
            self._under_way.discard(future)
        self._free.release()

    def run_task(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Runs a coroutine and returns its result; raises what it raises, or ``DeadlineExceededError``."""
        return self._thread.run(coro, timeout)
