"""The loop of a distributed loader: batches of a producer, wherever that samples, as PyG objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ChannelClosedError, InvalidArgumentError
from ..loader.transform import to_pyg
from ..messages import EndOfEpoch
from ..sampler.base import SamplerInput, SamplingConfig
from ..sampler.schedule import BatchIndices
from .batch_producer import BatchProducer
from .dist_dataset import DistDataset
from .dist_options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from .local_producers import CollocatedProducer, MpProducer
from .remote_producer import RemoteProducer

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


def open_producer(
    data: DistDataset | None,
    input_data: SamplerInput | list[SamplerInput],
    config: SamplingConfig,
    options: AllDistSamplingWorkerOptions | None,
) -> BatchProducer:
    """Starts whatever makes the batches of a loader, in the mode that its options ask for.

    Raises:
        InvalidArgumentError: data and options contradict each other; see also the producers' classes.
    """
    if isinstance(options, RemoteDistSamplingWorkerOptions):
        if data is not None:
            raise InvalidArgumentError("data: expected None with RemoteDistSamplingWorkerOptions: servers have it")
        return RemoteProducer(input_data, config, options)
    if not isinstance(data, DistDataset):
        raise InvalidArgumentError(
            f"data: expected a DistDataset unless servers sample (RemoteDistSamplingWorkerOptions), got "
            f"{type(data).__name__}; a data set held whole becomes one with DistDataset.from_dataset"
        )
    if data.graph is None:
        raise InvalidArgumentError("data: expected a data set with a graph; call load() first")
    if isinstance(input_data, list):
        raise InvalidArgumentError("input_nodes: expected one input; a list has one for each server, and none samples")
    match options or CollocatedDistSamplingWorkerOptions():
        case CollocatedDistSamplingWorkerOptions() as collocated:
            return CollocatedProducer(data, input_data, config, collocated)
        case MpDistSamplingWorkerOptions() as mp:
            return MpProducer(data, input_data, config, mp)
        case other:
            raise InvalidArgumentError(
                f"worker_options: expected None or {AllDistSamplingWorkerOptions}, got {type(other).__name__}"
            )


class DistLoader:
    """Iterates over the batches of a producer. Each ``iter()`` begins the next epoch, from 0.

    Args:
        data: this worker's partition; None where servers sample.
        input_data: seeds, or where they are found; a list has one for each server, see ``DistNeighborLoader``.
        sampling_config: how to sample.
        to_device: where batches go; None leaves them on the host.
        worker_options: where to sample, see ``DistNeighborLoader``.
        shard: the part of every epoch's batches that this loader gives.
        transform: called with each batch.
    """

    def __init__(
        self,
        data: DistDataset | None,
        input_data: SamplerInput | list[SamplerInput],
        sampling_config: SamplingConfig,
        to_device: torch.device | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        shard: tuple[int, int] = (0, 1),
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.epoch = -1
        self._run = 0
        self._config = sampling_config
        self._device = to_device
        self._transform = transform
        self._shard = Shard(*shard)
        self._pin = isinstance(worker_options, MpDistSamplingWorkerOptions) and worker_options.pin_memory
        self._producer = open_producer(data, input_data, sampling_config, worker_options)

    def __len__(self) -> int:
        """Batches of one epoch in this shard."""
        return len(self._indices)

    @property
    def _indices(self) -> BatchIndices:
        return BatchIndices(0, self._producer.num_batches)[self._shard.index :: self._shard.count]

    def __iter__(self) -> Iterator[Data | HeteroData]:
        self.epoch += 1
        self._run += 1
        self._producer.start(self._run, self.epoch, self._indices)
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
        item = self._producer.recv()
        if isinstance(item, EndOfEpoch):
            raise StopIteration
        batch = to_pyg(item, self._producer.schema, with_edge_ids=self._config.with_edge)
        if self._pin:
            batch = batch.pin_memory()
        if self._device is not None:
            batch = batch.to(self._device, non_blocking=self._pin)
        return batch if self._transform is None else self._transform(batch)

    def shutdown(self) -> None:
        """Ends what samples for this loader. Idempotent; also called by ``with``."""
        self._producer.close()

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
