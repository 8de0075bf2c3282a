"""Threads beside the endpoint's loop, and the way back to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from queue import SimpleQueue
from typing import Any

from ...errors import SystemLimitError
from ...utils.system.lifetime import Home, start_thread, threads

Work = Callable[[], None]

_MAX_LOOP_CALLS = 32


class TurnQueue:
    """Work in one queue for each who wants it done; they are served by turns, so that none waits for another's backlog.

    It has no bound of its own: connections refuse requests beyond a number. Not thread-safe.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[Work]] = {}  # none is empty; the next in turn stands first

    def put(self, owner: Hashable, work: Work) -> None:
        """At the end of its owner's queue; an owner that had none comes after all others."""
        self._queues.setdefault(owner, deque()).append(work)

    def take(self) -> Work | None:
        """The next piece of work, or None."""
        if not self._queues:
            return None
        owner = next(iter(self._queues))
        own = self._queues.pop(owner)
        work = own.popleft()
        if own:
            self._queues[owner] = own
        return work


class WorkerThreads:
    """Daemon threads that run what they are given, by turns of those who gave it, and in order for each of them.

    (An executor's threads hold the interpreter at exit, and refuse work from then on: that of atexit handlers, too.)

    Args:
        count: number of threads; started with the first pieces of work.
        name: prefix of the threads' names.
        begin: what each thread does before all else; it must not raise. With it, all threads start with the first piece
            of work.
    """

    def __init__(self, count: int, name: str, begin: Work | None = None) -> None:
        self._home = Home(f"{name} (threads)")
        self._begin = begin
        self._count = count
        self._name = name
        self._work = TurnQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        # One for each piece of work, and for the end. `close` takes no lock and changes no queue that others read: the
        # garbage collector may call it, in the midst of anything that these threads do.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._closed = False

    def submit(self, work: Work, owner: Hashable = None) -> None:
        """Run ``work``, which must not raise, on some thread, when it is its owner's turn.

        Raises:
            SystemLimitError: not one thread could be started; those there are do what more would have done.
        """
        self._home.check()
        with self._lock:
            if self._closed:
                return
            wanted = self._count if self._begin is not None and not self._threads else len(self._threads) + 1
            while len(self._threads) < min(wanted, self._count) and self._add_thread():
                pass
            self._calls.put(None)  # first: where this is interrupted, a call too many does no harm
            self._work.put(owner, work)

    @property
    def num_started(self) -> int:
        """Threads that were started."""
        return len(self._threads)

    def _add_thread(self) -> bool:
        """Whether one could be started; raises where there is none then."""
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        try:
            start_thread(thread)
        except SystemLimitError:
            if not self._threads:
                raise
            return False
        self._threads.append(thread)
        return True

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on some thread; its result, or what it raises, comes in a future."""
        future: Future[Any] = Future()
        self.submit(lambda: _settle(future, function, args, kwargs))
        return future

    def run(self, callback: Callable[..., None], *args: Any) -> None:
        """Run a user's callback on some thread; what it raises goes to ``threading.excepthook``."""

        def work() -> None:
            try:
                callback(*args)
            except Exception as error:
                hook_args = (type(error), error, error.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(hook_args))

        self.submit(work)

    def _next(self) -> Work | None:
        while True:
            self._calls.get()
            with self._lock:
                work = self._work.take()
            if self._closed:
                self._calls.put(None)  # for the next thread
                return None
            if work is not None:
                return work

    def _run(self) -> None:
        if self._begin is not None:
            with threads.work:
                self._begin()
        while (work := self._next()) is not None:
            with threads.work:
                work()
            del work  # else the last answer's memory lives until the next request

    def close(self, timeout_s: float) -> None:
        """Let the threads finish what they do, for at most ``timeout_s``; what waits is not run. Idempotent."""
        if not self._home.is_here:
            return
        self._closed = True
        self._work = TurnQueue()  # what waits goes now, whatever the threads still do
        self._calls.put(None)
        current, deadline = threading.current_thread(), time.monotonic() + timeout_s
        for thread in list(self._threads):
            if thread is not current:
                thread.join(max(0.0, deadline - time.monotonic()))


def _settle(future: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        if future.set_running_or_notify_cancel():
            future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
    finally:
        del future  # its error's traceback leads here


class LoopExecutor(ThreadPoolExecutor):
    """What a loop of this package runs blocking functions in, to the very end of the process.

    (Only the class is that of ``concurrent.futures``, as asyncio wants it. Its threads take no more work once the main
    thread has ended, so that nothing could be closed, or begun, by atexit handlers.)

    Args:
        name: prefix of the threads' names.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1)  # it never starts
        self._own = WorkerThreads(_MAX_LOOP_CALLS, name)
        self._under_way: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``Executor``."""
        future = self._own.call(fn, *args, **kwargs)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def close(self) -> None:
        """Waits on its loop for what runs, and ends the threads.

        (``loop.shutdown_default_executor`` starts a thread for that, which the system may not have.)
        """
        await asyncio.gather(*map(asyncio.wrap_future, list(self._under_way)), return_exceptions=True)
        self._own.close(0.0)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ``Executor``."""
        if wait:
            wait_for(list(self._under_way))
        self._own.close(0.0)


def run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop on the calling thread, until it is stopped or the process ends."""
    with threads.work_of_loop(lambda stop: post(loop, stop)):
        loop.run_forever()


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> bool:
    """``loop.call_soon_threadsafe``, or False where the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


class Posts:
    """The way of other threads to a loop that knows whether something is still on it. From any thread.

    Attributes:
        count: what was posted and has not run.

    Args:
        loop: what runs it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self.count = 0

    def post(self, function: Callable[..., Any], *args: Any) -> bool:
        """See ``post``."""
        with self._lock:
            self.count += 1
        return post(self._loop, self._run, function, args)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            function(*args)
        finally:
            with self._lock:
                self.count -= 1
