"""Threads beside the endpoint's loop, and the way back to it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any


class WorkerThreads:
    """Daemon threads that run what they are given, in order. (An executor's threads hold the interpreter at exit.)

    Args:
        count: number of threads; started with the first piece of work.
        name: prefix of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise, on some thread."""
        with self._lock:
            if self._closed:
                return
            if len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # else the last answer's memory lives until the next request

    def close(self, timeout_s: float) -> None:
        """Let the threads finish what they do, for at most ``timeout_s``; what waits is not run. Idempotent."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        current = threading.current_thread()
        for thread in threads:
            if thread is not current:
                thread.join(timeout_s / len(threads))


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., Any], *args: Any) -> bool:
    """``loop.call_soon_threadsafe``, or False where the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
