"""The results of one call on several workers."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .actors.base import Ref

if TYPE_CHECKING:
    from .worker_groups import RayWorkerGroup


@dataclass
class MultiWorkerFuture:
    """References to the results of several workers. Can be awaited, for what ``get_results`` gives.

    Attributes:
        futures: one for each worker called, in the order of the calls; streams for generators.
        return_from_workers: ranks whose results are wanted, in this order; None means all.
        called_workers: rank of each future; None where future i is that of rank i.
        group: the group that was called; needed only where the future is awaited.
    """

    futures: list[Ref]
    return_from_workers: list[int] | None = None
    called_workers: list[int] | None = None
    group: RayWorkerGroup | None = field(default=None, repr=False, compare=False)

    def get_results(
        self,
        worker_group: RayWorkerGroup,
        return_generators_as_proxies: bool = False,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """The results, or whatever the first worker that failed raised.

        Where methods are generators, the items of all wanted workers, one worker after the other.

        Args:
            worker_group: the group that was called.
            return_generators_as_proxies: hand out the futures themselves, wanted ones only, and fetch nothing.
            timeout_s: for all of them; None waits as long as the workers live.

        Raises:
            IndexError: without ``called_workers``, a wanted rank has no future.
            DeadlineExceededError: they were not there in time.
        """
        if return_generators_as_proxies:
            return self._wanted(strict=False) if self.return_from_workers is not None else self.futures
        engine = worker_group.cluster.backend
        refs: list[Ref] = []
        for future in self._wanted(strict=True):
            refs.extend(future if engine.is_stream(future) else [future])
        return engine.get(refs, timeout_s)

    def _wanted(self, *, strict: bool) -> list[Ref]:
        """Futures of the wanted workers; ``strict`` refuses ranks without one where futures go by rank."""
        if self.return_from_workers is None:
            return self.futures
        if self.called_workers is None:
            in_range = [rank for rank in self.return_from_workers if strict or rank < len(self.futures)]
            return [self.futures[rank] for rank in in_range]
        position = {rank: place for place, rank in enumerate(self.called_workers) if place < len(self.futures)}
        return [self.futures[position[rank]] for rank in self.return_from_workers if rank in position]

    def __await__(self) -> Generator[Any, None, Any]:
        if self.group is None:
            raise TypeError("a MultiWorkerFuture can be awaited where a group made it; else use get_results")
        waiting = asyncio.get_running_loop().run_in_executor(None, self.get_results, self.group)
        return (yield from waiting.__await__())
