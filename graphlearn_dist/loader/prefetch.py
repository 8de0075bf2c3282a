"""Batches made ahead, in background threads, handed out in their order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TypeVar

from ..errors import InvalidArgumentError
from ..rpc.engine.threads import WorkerThreads
from ..utils.shown import shown

T = TypeVar("T")


def check_prefetch(prefetch: int) -> int:
    """Returns the number of threads; an error names the argument where it is none."""
    if not isinstance(prefetch, int) or isinstance(prefetch, bool) or prefetch < 0:
        raise InvalidArgumentError(f"prefetch: expected a number of threads, 0 for none, got {shown(prefetch)}")
    return prefetch


def made_ahead(
    make: Callable[[int], T],
    count: int,
    num_threads: int,
    *,
    each: int = 2,
    begin: Callable[[int], None] | None = None,
) -> Generator[T, None, None]:
    """``make(0)``, ``make(1)``, … ``make(count - 1)``, in this order.

    Each call is made by one of ``num_threads`` background threads, or by the caller where that is 0. At most ``each``
    calls per thread are ahead of the one that is handed out. A thread calls ``begin`` first, with its number. An
    exception is raised at the place of its call and ends the iteration. When the iterator ends, is closed or is
    dropped, calls that have not begun never do, and the threads end with those that have.
    """
    if num_threads == 0:
        yield from map(make, range(count))
        return
    threads = WorkerThreads(num_threads, "gld-prefetch")
    work = make if begin is None else _after(begin, make)
    ahead: deque[Future[T]] = deque()
    indices = iter(range(count))
    try:
        for index in indices:
            ahead.append(threads.call(work, index))
            if len(ahead) > each * num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        # Not waiting: a dropped iterator may be cleared by the garbage collector, in any thread, even one of these.
        threads.close(0.0)


def _after(begin: Callable[[int], None], make: Callable[[int], T]) -> Callable[[int], T]:
    """As ``make``; a thread that comes for the first time calls ``begin`` before it."""
    numbers, mine = itertools.count(), threading.local()

    def work(index: int) -> T:
        if not hasattr(mine, "has_begun"):
            mine.has_begun = True
            begin(next(numbers))
        return make(index)

    return work
