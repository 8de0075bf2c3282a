"""Where the background threads of a loader run."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

from ..errors import InvalidArgumentError
from .dataloader_keywords import say_once


class ThreadPlacement(ABC):
    """The contexts of PyG's loaders for their worker processes, for loaders whose workers are threads."""

    _cores: tuple[frozenset[int], ...] = ()

    @contextlib.contextmanager
    def enable_cpu_affinity(self, loader_cores: Sequence[int | Collection[int]] | None = None) -> Iterator[None]:
        """Binds the background threads of the iterations that begin in a ``with`` block to cores.

        Args:
            loader_cores: for each thread its core, or its cores; the first ones that this process may use unless given.

        Raises:
            InvalidArgumentError: the loader has no such threads, there is not one entry for each of them, or a core is
                none that this process may use.
        """
        usable = os.sched_getaffinity(0)
        cores = self._cores_of_threads(sorted(usable) if loader_cores is None else loader_cores, loader_cores is None)
        if unusable := frozenset().union(*cores) - usable:
            raise InvalidArgumentError(f"loader_cores: expected some of {sorted(usable)}, got {sorted(unusable)}")
        before, self._cores = self._cores, cores
        try:
            yield
        finally:
            self._cores = before

    @contextlib.contextmanager
    def enable_multithreading(self, worker_threads: int | None = None) -> Iterator[None]:
        """Changes nothing, which is said once: ``num_threads`` of a loader says how many threads make one batch."""
        say_once("enable_multithreading: without effect: num_threads= of the loader says how many threads make a batch")
        yield

    @contextlib.contextmanager
    def enable_memory_log(self) -> Iterator[None]:
        """Changes nothing, which is said once: there are no worker processes whose memory could be logged."""
        say_once("enable_memory_log: without effect: batches are made by threads of this process")
        yield

    def _cores_of_threads(
        self, given: Sequence[int | Collection[int]], may_be_more: bool
    ) -> tuple[frozenset[int], ...]:
        count = self._num_background_threads
        if count == 0:
            raise InvalidArgumentError(
                "enable_cpu_affinity: expected a loader with background threads, num_workers > 0"
            )
        if len(given) < count or (len(given) > count and not may_be_more):
            raise InvalidArgumentError(f"loader_cores: expected one for each of {count} threads, got {len(given)}")
        return tuple(frozenset([one] if isinstance(one, int) else one) for one in given[:count])

    @property
    @abstractmethod
    def _num_background_threads(self) -> int:
        """How many threads make batches ahead."""

    def _placed(self, begin: Callable[[int], None] | None) -> Callable[[int], None] | None:
        """What each background thread calls first, with its number: it goes to its cores before ``begin``."""
        cores = self._cores
        if not cores:
            return begin

        def placed(number: int) -> None:
            os.sched_setaffinity(0, cores[number])  # of this thread alone
            if begin is not None:
                begin(number)

        return placed
