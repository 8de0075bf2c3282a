"""The client's end of remote sampling: asks servers for batches ahead of time, gives them in order."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ..errors import InvalidArgumentError
from ..messages import EndOfEpoch, SampledBatch
from ..sampler.schedule import BatchIndices
from . import rpc
from .batch_window import BatchRequest, BatchWindow
from .dist_server import DistServer


class RemoteReceivingChannel:
    """Batches of one loader from its producers, in the order of their indices.

    Batch number ``j`` of this client comes from server ``j % len(server_ranks)``. At most ``prefetch_size`` requests
    per server are under way, so a trainer that does not read holds nothing up but its own producers.

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
        self._servers = list(zip(ranks, producers, strict=True))
        self._timeout_s = timeout_s
        self._window = BatchWindow(self._ask, prefetch_size * len(ranks), timeout_s, self._place_of)

    def start(self, run: int, epoch: int, indices: BatchIndices) -> None:
        """Begins a run over these batch indices; whatever was under way is off."""
        self._window.check_open()
        self._window.reset()
        endpoint = rpc.get_endpoint()
        name = rpc.function_name(DistServer.start_new_epoch_sampling)
        started = [
            endpoint.request(
                ("server", rank),
                name,
                producer,
                epoch,
                run,
                indices[place :: len(self._servers)],
                timeout_s=self._timeout_s,
            )
            for place, (rank, producer) in enumerate(self._servers)
        ]
        for future in started:
            future.result()
        self._window.start(run, epoch, indices)

    def reset(self) -> None:
        """Calls off everything under way."""
        self._window.reset()

    def close(self) -> None:
        """Calls off everything under way; ``recv`` fails from now on. Idempotent."""
        self._window.close()

    def recv(self) -> SampledBatch | EndOfEpoch:
        """The next batch; ``EndOfEpoch`` after the last. Raises as ``BatchWindow.recv`` does."""
        return self._window.recv()

    def _ask(self, request: BatchRequest) -> Future[Any]:
        rank, producer = self._server_of(request)
        return rpc.get_endpoint().request(
            ("server", rank),
            rpc.function_name(DistServer.fetch_batch),
            producer,
            request.run,
            request.index,
            timeout_s=self._timeout_s,
            fail_fast=True,
        )

    def _server_of(self, request: BatchRequest) -> tuple[int, int]:
        return self._servers[request.position % len(self._servers)]

    def _place_of(self, request: BatchRequest) -> str:
        return f"server {self._server_of(request)[0]}"
