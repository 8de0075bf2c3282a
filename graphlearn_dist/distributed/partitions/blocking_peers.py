"""The other partitions, as those see them who have no event loop: an answer blocks the thread that wants it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any

import torch

from ...rpc import Endpoint
from ...rpc.calls.remote import Remote
from ...utils.system.lifetime import Home
from .partition_service import PartitionService
from .rounds import AnyExchange, Rounds


class _Answer:
    """An answer that blocks whoever awaits it: what asks it needs no event loop, and runs in any thread."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def __await__(self) -> Generator[None, None, Any]:
        return self._future.result()  # the request has a deadline
        yield  # never reached; it makes this a generator, as awaiting takes


class BlockingPeers:
    """The partitions, each asked of one process that serves it.

    Args:
        endpoint: gives the endpoint whose connections are used.
        holders: by partition the process, as the endpoint takes targets, and the suffix of its functions' names.
        timeout_s: deadline of each request.
    """

    times = (0, 0, 0, 0)  # nobody asks for those of its batches

    def __init__(
        self, endpoint: Callable[[], Endpoint], holders: Mapping[int, tuple[Any, str]], timeout_s: float
    ) -> None:
        self._endpoint, self._holders, self._timeout_s = endpoint, holders, timeout_s
        self._home = Home("the data set on servers")

    def until(self, timeout_s: float) -> BlockingPeers:
        """The same with an earlier deadline of each request."""
        return BlockingPeers(self._endpoint, self._holders, min(timeout_s, self._timeout_s))

    def ask(self, partition: int, function: Callable[..., Any], *args: Any) -> _Answer:
        """Calls a function of the process that serves the partition."""
        self._home.check()
        target, suffix = self._holders[partition]
        holder = Remote[Any](self._endpoint(), target, suffix=suffix, timeout_s=self._timeout_s, fail_fast=True)
        return _Answer(holder.ask(function, *args))

    def run(self, make: Callable[[], AnyExchange]) -> Rounds[AnyExchange]:
        """See ``Peers``; it never waits in a coroutine."""
        return Rounds(make(), self._ask_query)

    def _ask_query(self, partition: int, head: torch.Tensor, payload: torch.Tensor) -> _Answer:
        return self.ask(partition, PartitionService.query, head, payload)
