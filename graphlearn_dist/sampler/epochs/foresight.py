"""Batches that are sampled before their rows are wanted, so that those who read rows from disk know what comes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Generic, TypeVar

from ...data.disk_tier import Announced

T = TypeVar("T")
Batch = TypeVar("Batch")
WINDOW = 8  # batches sampled ahead; what more or fewer give is not measured yet


class SampledAhead(Generic[T, Batch]):
    """The batches of one pass, each sampled when the one ``window`` places before it is made; any thread may make one.

    Which thread samples what never matters: a batch is a function of its name.

    Args:
        sample: the batch at a place, without its rows.
        announce: tells which rows a batch will want.
        fill: the batch with its rows.
        count: how many batches there are.
        window: how many are sampled ahead.
    """

    def __init__(
        self,
        sample: Callable[[int], T],
        announce: Callable[[T], Announced],
        fill: Callable[[T], Batch],
        count: int,
        window: int = WINDOW,
    ) -> None:
        self._sample, self._announce, self._fill = sample, announce, fill
        self._count, self._window = count, window
        self._lock = threading.Lock()
        self._sampled: dict[int, Future[T]] = {}
        self._num_begun = 0
        self._announcing = threading.Lock()  # announcements are in the order of the batches
        self._announced: dict[int, Announced] = {}
        self._num_announced = 0
        self._is_closed = False

    def __enter__(self) -> SampledAhead[T, Batch]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def make(self, place: int) -> Batch:
        """The batch at a place, with its rows. Each is made once, and none long before those in front of it."""
        while (mine := self._claim(min(place + self._window + 1, self._count))) is not None:
            self._sample_one(mine)
        batch = self._sampled[place].result()  # where another thread samples it, that is under way
        self._announce_sampled()
        try:
            return self._fill(batch)
        finally:
            with self._announcing:
                del self._sampled[place]
                announced = self._announced.pop(place, None)
            if announced is not None:
                announced.finish()

    def close(self) -> None:
        """What was announced will not be wanted any more. Idempotent."""
        with self._announcing:
            self._is_closed = True
            left = list(self._announced.values())
            self._announced.clear()
        for announced in left:
            announced.finish()

    def _claim(self, stop: int) -> int | None:
        """A place before ``stop`` that nobody samples yet."""
        with self._lock:
            if self._num_begun >= stop:
                return None
            self._sampled[self._num_begun] = Future()
            self._num_begun += 1
            return self._num_begun - 1

    def _sample_one(self, place: int) -> None:
        future = self._sampled[place]
        try:
            future.set_result(self._sample(place))
        except BaseException as error:
            future.set_exception(error)  # raised where the batch is made
            if not isinstance(error, Exception):
                raise
        self._announce_sampled()

    def _announce_sampled(self) -> None:
        """Announces what is sampled, as far as nothing in front of it is missing."""
        with self._announcing:
            while not self._is_closed and self._num_announced < self._num_begun:
                future = self._sampled.get(self._num_announced)
                if future is not None:  # it was not made meanwhile
                    if not future.done():
                        return
                    if future.exception() is None:
                        self._announced[self._num_announced] = self._announce(future.result())
                self._num_announced += 1
