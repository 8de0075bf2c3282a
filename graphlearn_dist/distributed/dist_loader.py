"""The loop of a distributed loader: which batches, from which servers, as PyG objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ChannelClosedError, InvalidArgumentError, PeerLostError, RpcError
from ..loader.transform import to_pyg
from ..messages import EndOfEpoch
from ..sampler.base import NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from . import rpc
from .dist_client import client_context
from .dist_context import assign_server_by_order
from .dist_options import ProducerRequest, RemoteDistSamplingWorkerOptions
from .dist_server import DistServer, ProducerInfo
from .remote_channel import RemoteReceivingChannel

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


@dataclass(frozen=True)
class Shard:
    """Batch ``i`` of an epoch belongs to shard ``i % count``: shards together see every batch once."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InvalidArgumentError(f"shard: expected (index, count) with 0 <= index < count, got {self}")


class DistLoader:
    """Iterates over batches that servers make. Each ``iter()`` begins the next epoch, from 0.

    Args:
        data: must be None: the data set is on the servers.
        input_data: seeds, or where the servers find them.
        sampling_config: how to sample.
        to_device: where batches go; None leaves them on the host.
        worker_options: which servers, how many workers.
        shard: the part of every epoch's batches that this loader gives.
        transform: called with each batch.
    """

    def __init__(
        self,
        data: None,
        input_data: NodeSamplerInput | RemoteSamplerInput,
        sampling_config: SamplingConfig,
        to_device: torch.device | None = None,
        worker_options: RemoteDistSamplingWorkerOptions | None = None,
        *,
        shard: tuple[int, int] = (0, 1),
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if data is not None or not isinstance(worker_options, RemoteDistSamplingWorkerOptions):
            raise InvalidArgumentError(
                "data, worker_options: expected None and RemoteDistSamplingWorkerOptions: this version samples on "
                "servers (in this process: loader.NeighborLoader)"
            )
        client_context()
        self.epoch = -1
        self._run = 0
        self._config = sampling_config
        self._device = to_device
        self._transform = transform
        self._shard = Shard(*shard)
        self._options = worker_options
        self._server_ranks = _server_ranks(worker_options)
        self._infos = self._open_producers(input_data)
        self._channel = RemoteReceivingChannel(
            self._server_ranks,
            [info.producer_id for info in self._infos],
            worker_options.prefetch_size,
            worker_options.rpc_timeout,
        )
        self._closed = False

    def _open_producers(self, input_data: NodeSamplerInput | RemoteSamplerInput) -> list[ProducerInfo]:
        """One producer on each server, all at once; undone if one of them fails."""
        endpoint, options = rpc.get_endpoint(), self._options
        name = rpc.function_name(DistServer.open_producer)
        futures = []
        for place, rank in enumerate(self._server_ranks):
            request = ProducerRequest(
                first=self._shard.index + self._shard.count * place,
                step=self._shard.count * len(self._server_ranks),
                num_workers=options.num_workers,
                concurrency=options.worker_concurrency,
                num_threads=options.num_threads,
                buffer_bytes=options.buffer_bytes,
                request_timeout_s=options.rpc_timeout,
            )
            futures.append(
                endpoint.request(
                    ("server", rank), name, input_data, self._config, request, timeout_s=options.rpc_timeout
                )
            )
        errors, infos = [], []
        for rank, future in zip(self._server_ranks, futures, strict=True):
            try:
                infos.append((rank, future.result()))
            except Exception as error:
                errors.append(error)
        if errors:
            for rank, info in infos:
                with contextlib.suppress(RpcError):  # what is reported is why it has to be undone
                    endpoint.call(
                        ("server", rank),
                        rpc.function_name(DistServer.destroy_sampling_producer),
                        info.producer_id,
                        fail_fast=True,
                    )
            raise errors[0]
        return [info for _, info in infos]

    def __len__(self) -> int:
        """Batches of one epoch in this shard."""
        return len(self._indices)

    @property
    def _indices(self) -> range:
        return range(self._shard.index, self._infos[0].num_batches, self._shard.count)

    def __iter__(self) -> Iterator[Data | HeteroData]:
        self.epoch += 1
        self._run += 1
        self._channel.start(self._run, self.epoch, self._indices)
        return _Epoch(self, self._run)

    def next_of(self, run: int) -> Data | HeteroData:
        """The next batch of an iteration.

        Raises:
            StopIteration: that was all.
            ChannelClosedError: a later iteration has begun.
        """
        if run != self._run:
            raise ChannelClosedError(f"iterator {run} of this loader was left when iterator {self._run} began")
        return next(self)

    def __next__(self) -> Data | HeteroData:
        item = self._channel.recv()
        if isinstance(item, EndOfEpoch):
            raise StopIteration
        batch = to_pyg(item, self._infos[0].schema, with_edge_ids=self._config.with_edge)
        if self._device is not None:
            batch = batch.to(self._device)
        return batch if self._transform is None else self._transform(batch)

    def shutdown(self) -> None:
        """Ends the producers on the servers. Idempotent; also called by ``with``."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        if not rpc.rpc_is_initialized():
            return
        endpoint = rpc.get_endpoint()
        name = rpc.function_name(DistServer.destroy_sampling_producer)
        futures = [
            endpoint.request(("server", rank), name, info.producer_id, fail_fast=True)
            for rank, info in zip(self._server_ranks, self._infos, strict=True)
        ]
        for future in futures:
            with contextlib.suppress(PeerLostError):  # with its server the producer is gone
                future.result()

    def __enter__(self) -> DistLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class _Epoch:
    """One iteration over a loader; unlike the loader, iterating over it goes on instead of beginning again."""

    def __init__(self, loader: DistLoader, run: int) -> None:
        self._loader = loader
        self._run = run

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Data | HeteroData:
        return self._loader.next_of(self._run)


def _server_ranks(options: RemoteDistSamplingWorkerOptions) -> list[int]:
    context = client_context()
    wanted = options.server_rank
    ranks = assign_server_by_order() if wanted is None else [wanted] if isinstance(wanted, int) else list(wanted)
    for rank in ranks:
        if not 0 <= rank < context.num_servers():
            raise InvalidArgumentError(f"server_rank: expected 0 to {context.num_servers() - 1}, got {rank}")
    if not ranks or len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"server_rank: expected distinct ranks, got {ranks}")
    return ranks
