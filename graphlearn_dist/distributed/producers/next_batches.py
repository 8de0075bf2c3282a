"""Batches of producers on servers, for a reader that takes whatever comes next and names none."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ...messages import SampledBatch
from ...utils.lifetime import Home
from .. import rpc
from ..dist_server import DistServer


class NextBatches:
    """What some producers have not handed out yet of their epochs, by turns from each.

    Args:
        servers: (server rank, producer id) of each.
        limit: requests under way at most.
        timeout_s: deadline of each request.
    """

    def __init__(self, servers: Sequence[tuple[int, int]], limit: int, timeout_s: float) -> None:
        self._home = Home("the channel of batches")
        self._servers = servers
        self._limit = limit
        self._timeout_s = timeout_s
        self._turn = 0
        self._ended: set[int] = set()
        self._under_way: deque[tuple[int, Future[Any]]] = deque()

    def reset(self) -> None:
        """Calls off everything under way; the producers have begun another epoch. Without effect in a fork."""
        if not self._home.is_here:
            return
        for _, future in self._under_way:
            future.cancel()
        self._under_way.clear()
        self._ended.clear()
        self._turn = 0

    def recv(self) -> SampledBatch:
        """The next batch; ``StopIteration`` when every producer has handed out its last one.

        Raises:
            InvalidArgumentError: there is no such producer, or no epoch was begun.
            SamplingWorkerError: a worker failed at it, or died.
            PeerLostError: a server is gone.
            DeadlineExceededError: it did not come in time.
        """
        self._home.check()
        while True:
            self._ask()
            if not self._under_way:
                raise StopIteration
            place, future = self._under_way.popleft()
            batch: SampledBatch | None
            batch, _ = future.result()  # the request has a deadline
            if batch is not None:
                return batch
            self._ended.add(place)

    def _ask(self) -> None:
        name = rpc.function_name(DistServer.fetch_one_sampled_message)
        while len(self._under_way) < self._limit and len(self._ended) < len(self._servers):
            place = self._turn % len(self._servers)
            self._turn += 1
            if place not in self._ended:
                rank, producer = self._servers[place]
                request = rpc.get_endpoint().request(
                    ("server", rank), name, producer, timeout_s=self._timeout_s, fail_fast=True
                )
                self._under_way.append((place, request))
