"""Threads beside the endpoint's loop, and the way back to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

Work = Callable[[], None]


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

    def clear(self) -> None:
        """Forgets all of it."""
        self._queues.clear()


class WorkerThreads:
    """Daemon threads that run what they are given, by turns of those who gave it, and in order for each of them.

    (An executor's threads hold the interpreter at exit.)

    Args:
        count: number of threads; started with the first pieces of work.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work = TurnQueue()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._closed = False

    def submit(self, work: Work, owner: Hashable = None) -> None:
        """Run ``work``, which must not raise, on some thread, when it is its owner's turn."""
        with self._changed:
            if self._closed:
                return
            if len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._work.put(owner, work)
            self._changed.notify()

    def _next(self) -> Work | None:
        with self._changed:
            while (work := self._work.take()) is None and not self._closed:
                self._changed.wait()
            return work

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # else the last answer's memory lives until the next request

    def close(self, timeout_s: float) -> None:
        """Let the threads finish what they do, for at most ``timeout_s``; what waits is not run. Idempotent."""
        with self._changed:
            self._closed = True
            self._work.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        current, deadline = threading.current_thread(), time.monotonic() + timeout_s
        for thread in threads:
            if thread is not current:
                thread.join(max(0.0, deadline - time.monotonic()))


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
