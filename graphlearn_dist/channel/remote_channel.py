"""Batches of producers on servers, for a program that begins epochs itself and takes whatever comes next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..distributed import rpc
from ..distributed.dist_server import DistServer
from ..errors import ChannelClosedError, ChannelError, InvalidArgumentError
from ..rpc.calls.remote import Remote
from ..utils.system.lifetime import Home
from .base import ChannelBase


class RemoteReceivingChannel(ChannelBase):
    """What some producers on servers have not handed out yet of their epochs, by turns from each.

    The program begins epochs with ``DistServer.start_new_epoch_sampling`` on each server and then ``reset``. At most
    ``prefetch_size`` requests per server are under way.

    Args:
        server_rank: the servers, or the one.
        producer_id: the producer on each of them.
        prefetch_size: requests under way per server.
        timeout_s: how long to wait for a batch.
    """

    def __init__(
        self,
        server_rank: int | Sequence[int],
        producer_id: int | Sequence[int],
        prefetch_size: int = 2,
        timeout_s: float = 180.0,
    ) -> None:
        ranks = [server_rank] if isinstance(server_rank, int) else list(server_rank)
        producers = [producer_id] if isinstance(producer_id, int) else list(producer_id)
        if len(ranks) != len(producers) or not ranks or prefetch_size < 1:
            raise InvalidArgumentError(
                "server_rank, producer_id, prefetch_size: expected one producer for each server and at least 1, got "
                f"{server_rank}, {producer_id}, {prefetch_size}"
            )
        self._home = Home("the channel of batches")
        self._servers = list(zip(ranks, producers, strict=True))
        self._limit = prefetch_size * len(ranks)
        self._timeout_s = timeout_s
        self._turn = 0
        self._ended: set[int] = set()
        self._under_way: deque[tuple[int, Future[Any]]] = deque()
        self._closed = False

    def reset(self) -> None:
        """Calls off everything under way; the producers have begun another epoch. Without effect in a fork."""
        if not self._home.is_here:
            return
        for _, future in self._under_way:
            future.cancel()
        self._under_way.clear()
        self._ended.clear()
        self._turn = 0

    def close(self) -> None:
        """Calls off everything under way; ``recv`` fails from now on. Idempotent."""
        self.reset()
        self._closed = True

    def send(self, msg: Any, **kwargs: Any) -> None:
        """Only servers send here: a ``ChannelError``."""
        raise ChannelError(f"send: this channel only receives, from servers {[rank for rank, _ in self._servers]}")

    def recv(self, **kwargs: Any) -> Any:
        """The next batch, a ``SampledBatch``; ``StopIteration`` when every producer has handed out its last one.

        Raises:
            InvalidArgumentError: there is no such producer, or no epoch was begun.
            SamplingWorkerError: a worker failed at it, or died.
            PeerLostError: a server is gone.
            DeadlineExceededError: it did not come in time.
            ChannelClosedError: the channel was closed.
        """
        self._home.check()
        if self._closed:
            raise ChannelClosedError("the channel was closed")
        while True:
            self._ask()
            if not self._under_way:
                raise StopIteration
            place, future = self._under_way.popleft()
            batch, _ = future.result()  # the request has a deadline
            if batch is not None:
                return batch
            self._ended.add(place)

    def _ask(self) -> None:
        while len(self._under_way) < self._limit and len(self._ended) < len(self._servers):
            place = self._turn % len(self._servers)
            self._turn += 1
            if place not in self._ended:
                rank, producer = self._servers[place]
                server: Remote[DistServer] = Remote(
                    rpc.get_endpoint(), ("server", rank), timeout_s=self._timeout_s, fail_fast=True
                )
                request = server.ask(DistServer.fetch_one_sampled_message, producer)
                self._under_way.append((place, request))
