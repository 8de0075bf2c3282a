"""Batches made ahead, in background threads, handed out in their order."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
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
    places: Iterable[int],
    num_threads: int,
    *,
    each: int = 2,
    begin: Callable[[int], None] | None = None,
) -> Generator[T, None, None]:
    """``make`` of each place, in their order. The caller's thread iterates over ``places``, as far as calls are made.

    Each call is made by one of ``num_threads`` background threads, or by the caller where that is 0. At most ``each``
    calls per thread are ahead of the one that is handed out. Every thread calls ``begin`` first, with its number, while
    the caller waits: it may change what they share. What it raises, its thread's calls raise. An exception is
    raised at the place of its call, that of ``places`` behind the calls before it, and ends the iteration. When the
    iterator ends, is closed or is dropped, calls that have not begun never do, and the threads end with those that
    have.
    """
    if num_threads == 0:
        for place in places:  # not by `map`, which a StopIteration of the call would end in silence
            yield make(place)
        return
    beginnings = None if begin is None else _Beginnings(begin)
    work = make if beginnings is None else beginnings.before(make)
    threads = WorkerThreads(num_threads, "gld-prefetch", None if beginnings is None else beginnings.begin_thread)
    ahead: deque[Future[T]] = deque()
    failure: Exception | None = None
    remaining = iter(places)
    try:
        while True:
            try:
                place = next(remaining)
            except StopIteration:
                break
            except Exception as error:  # raised behind the calls that were begun
                failure = error
                break
            ahead.append(threads.call(work, place))
            if beginnings is not None:
                beginnings.wait_for(threads.num_started)
            if len(ahead) > each * num_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
        if failure is not None:
            raise failure
    finally:
        # Not waiting: a dropped iterator may be cleared by the garbage collector, in any thread, even one of these.
        threads.close(0.0)


class _Beginnings:
    """What each of some threads does first.

    Args:
        begin: is called with the thread's number.
    """

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        self._numbers = itertools.count()
        self._mine = threading.local()
        self._have_begun = threading.Semaphore(0)
        self._num_awaited = 0

    def begin_thread(self) -> None:
        """Called by each thread."""
        try:
            self._begin(next(self._numbers))
        except BaseException as error:
            self._mine.error = error
        finally:
            self._have_begun.release()

    def before(self, make: Callable[[int], T]) -> Callable[[int], T]:
        """As ``make``, but for threads that could not begin: those raise what their beginning raised."""

        def work(index: int) -> T:
            if (error := getattr(self._mine, "error", None)) is not None:
                raise error
            return make(index)

        return work

    def wait_for(self, count: int) -> None:
        """Returns when so many threads have begun."""
        while self._num_awaited < count:
            self._have_begun.acquire()
            self._num_awaited += 1
