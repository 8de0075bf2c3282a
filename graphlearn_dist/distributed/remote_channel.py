"""The client's end of remote sampling: asks servers for batches ahead of time, gives them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..errors import ChannelClosedError, DeadlineExceededError
from ..messages import EndOfEpoch, SampledBatch
from . import rpc
from .dist_sampling_producer import failure_error
from .dist_server import DistServer


class RemoteReceivingChannel:
    """Batches of one loader from its producers, in the order of their indices.

    Batch number ``j`` of this client comes from server ``j % len(server_ranks)``. At most ``prefetch_size`` requests
    per server are under way, so a trainer that does not read holds nothing up but its own producers.

    Args:
        server_ranks: the servers.
        producer_ids: the producer on each of them.
        prefetch_size: requests under way per server.
        timeout_s: how long to wait for a batch.
    """

    def __init__(
        self, server_ranks: Sequence[int], producer_ids: Sequence[int], prefetch_size: int = 2, timeout_s: float = 180.0
    ) -> None:
        self._servers = list(zip(server_ranks, producer_ids, strict=True))
        self._limit = prefetch_size * len(self._servers)
        self._timeout_s = timeout_s
        self._indices: deque[tuple[int, int]] = deque()  # (position, batch index) still to be asked for
        self._under_way: deque[tuple[int, int, Future[Any]]] = deque()
        self._run = 0
        self._closed = False

    def start(self, run: int, epoch: int, indices: Sequence[int]) -> None:
        """Begins a run over these batch indices; whatever was under way is off."""
        self._check_open()
        self.reset()
        endpoint = rpc.get_endpoint()
        name = rpc.function_name(DistServer.start_new_epoch_sampling)
        started = [
            endpoint.request(("server", rank), name, producer, epoch, run, timeout_s=self._timeout_s)
            for rank, producer in self._servers
        ]
        for future in started:
            future.result()
        self._run = run
        self._indices = deque(enumerate(indices))
        self._ask()

    def reset(self) -> None:
        """Calls off everything under way."""
        self._indices.clear()
        for _, _, future in self._under_way:
            future.cancel()
        self._under_way.clear()

    def close(self) -> None:
        """Calls off everything under way; ``recv`` fails from now on. Idempotent."""
        self.reset()
        self._closed = True

    def recv(self) -> SampledBatch | EndOfEpoch:
        """The next batch; ``EndOfEpoch`` after the last.

        Raises:
            SamplingWorkerError: a worker failed at it, or died.
            PeerLostError: its server is gone.
            DeadlineExceededError: it did not come in time.
            ChannelClosedError: the channel was closed.
        """
        self._check_open()
        if not self._under_way:
            self._ask()  # more to ask for is left only after an error: that must not look like the end
        if not self._under_way:
            return EndOfEpoch(self._run, 0, 0)
        rank, index, future = self._under_way.popleft()
        try:
            item = future.result(self._timeout_s)
        except TimeoutError as error:
            if isinstance(error, DeadlineExceededError):
                raise
            raise DeadlineExceededError(
                f"batch {index}: nothing from server {rank} within {self._timeout_s:g} s"
            ) from error
        self._ask()
        if isinstance(item, SampledBatch):
            return item
        if isinstance(item, EndOfEpoch):
            raise ChannelClosedError(f"batch {index}: server {rank} has only {item.num_batches} batches")
        raise failure_error(item)

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelClosedError("the loader was shut down")

    def _ask(self) -> None:
        endpoint = rpc.get_endpoint()
        name = rpc.function_name(DistServer.fetch_batch)
        while self._indices and len(self._under_way) < self._limit:
            position, index = self._indices.popleft()
            rank, producer = self._servers[position % len(self._servers)]
            future = endpoint.request(
                ("server", rank), name, producer, self._run, index, timeout_s=self._timeout_s, fail_fast=True
            )
            self._under_way.append((rank, index, future))
