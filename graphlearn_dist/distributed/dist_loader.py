"""The loop of a distributed loader: batches of a producer, wherever that samples, as PyG objects."""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from ..data.device.device_copies import Copy, DeviceCopies, OneAhead, pinned
from ..errors import ChannelClosedError, InvalidArgumentError
from ..loader.epochs import EpochLoader, LoaderIterator
from ..loader.learned_rows import Embeddings, with_learned_rows
from ..loader.resume import Shard
from ..loader.transform import allow_matrices, to_pyg
from ..messages import EndOfEpoch
from ..sampler.base import SamplerInput, SamplingConfig
from ..sampler.epochs.fingerprint import Settings, config_settings
from ..sampler.epochs.locality import warn_of_locality
from ..sampler.epochs.schedule import BatchIndices
from ..telemetry import DeviceCacheCounts, MadeStats, Metric
from ..utils.device import can_pin, parse_device
from ..utils.system.lifetime import threads
from ..utils.values import check_callable
from .copies.host_row_cache import RowCacheStats
from .dist_dataset import DistDataset
from .dist_options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from .producers.batch_producer import BatchProducer
from .producers.local_producers import CollocatedProducer, MpProducer
from .producers.remote_producer import RemoteProducer

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


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
        try:
            return RemoteProducer(input_data, config, options)
        except InvalidArgumentError as error:
            # What the user got wrong is in the message; two tracebacks, down to the server's depths, would hide it.
            raise error.with_traceback(None) from None
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


class DistLoader(EpochLoader):
    """Iterates over the batches of a producer. An iteration that begins ends the one before.

    Args:
        data: this worker's partition; None where servers sample.
        input_data: seeds, or where they are found; a list has one for each server, see ``DistNeighborLoader``.
        sampling_config: how to sample.
        to_device: where batches go; None leaves them where they are made, which is the GPU of a graph that this process
            samples on one, and the host otherwise. A batch that is there when the one before it is
            given is copied to a GPU meanwhile, from pinned memory on a stream of its own; the caller's current stream
            waits for it.
        worker_options: where to sample, see ``DistNeighborLoader``.
        shard: the part of every epoch's batches that this loader gives; None for all of them.
        transform: called with each batch.

    Attributes:
        batch_size, shuffle, drop_last: those of the config.
        num_workers: worker processes that sample for this loader (on each server); 0 where this process does.
    """

    def __init__(
        self,
        data: DistDataset | None,
        input_data: SamplerInput | list[SamplerInput],
        sampling_config: SamplingConfig,
        to_device: torch.device | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        shard: tuple[int, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        warn_of_locality(sampling_config)
        if sampling_config.edge_format == "adj_t":
            allow_matrices()
        super().__init__(Shard.of_pair(shard))
        check_callable("transform", transform)
        if to_device is not None:
            to_device = parse_device(to_device, "to_device")
        self._config = sampling_config
        self.batch_size, self.shuffle = sampling_config.batch_size, sampling_config.shuffle
        self.drop_last = sampling_config.drop_last
        self.num_workers: int = getattr(worker_options, "num_workers", 0)
        asked = isinstance(worker_options, MpDistSamplingWorkerOptions) and worker_options.pin_memory
        self._pin = asked and can_pin()
        self._closed = False
        self._producer = open_producer(data, input_data, sampling_config, worker_options)
        self._at_drop = weakref.finalize(self, _close_dropped, self._producer)
        self._at_drop.atexit = False  # the end of a process has its own ways
        self._constants = self._producer.constants if sampling_config.collect_features else {}
        try:
            self._copies = DeviceCopies(self._producer.device if to_device is None else to_device)
            self._transform = with_learned_rows(embeddings, self._producer.schema, transform)
        except BaseException:
            self._producer.close()
            raise

    def __repr__(self) -> str:
        """As of all loaders, and whether it was shut down."""
        return f"{type(self).__name__}(shut down)" if self._closed else super().__repr__()

    @property
    def _where(self) -> str:
        return self._producer.where

    @property
    def dataset(self) -> range:
        """The positions of the seeds or links of one epoch, those of other shards too."""
        return range(int(self._producer.input_settings["num_inputs"]))

    @property
    def _num_batches(self) -> int:
        return self._producer.num_batches

    @property
    def _trace_key(self) -> int:
        return self._producer.trace_key or super()._trace_key

    def _made(self) -> MadeStats:
        if self._closed:
            raise ChannelClosedError("the loader was shut down")
        return self._producer.made()

    def _made_here(self) -> MadeStats | None:
        return None if self._closed else self._producer.made_here

    def _device_cache(self) -> DeviceCacheCounts | None:
        return self._producer.device_cache

    def row_cache_stats(self) -> RowCacheStats | None:
        """What its copies of other partitions' rows are good for (``row_cache`` of its worker options).

        None where it keeps none; of those that servers keep, ``DistServer.get_row_cache_stats`` tells.
        """
        return self._producer.row_cache_stats

    def metrics(self) -> Iterator[Metric]:
        """See ``telemetry.MetricSource``."""
        yield from super().metrics()
        if not self._closed and (copies := self.row_cache_stats()) is not None:
            yield from copies.metrics({"loader": self._label})

    @property
    def _num_ready(self) -> int | None:
        return None if self._closed else self._producer.num_ready

    def _settings(self) -> Settings:
        return config_settings(self._config, self._producer.schema) | self._producer.input_settings

    def __iter__(self) -> LoaderIterator:
        self.check_process()
        if self._closed:
            raise ChannelClosedError("the loader was shut down")
        return super().__iter__()

    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        self._producer.start(run, epoch, indices)
        return _Received(self, run)

    @property
    def has_device(self) -> bool:
        """Whether batches have a way to go from where they are made."""
        return self._copies.device is not None

    def is_ready(self) -> bool:
        """Whether a batch is there, to be taken ahead."""
        return self._producer.is_ready()

    def recv(self) -> tuple[int, Copy]:
        """Index of the batch that comes next in an iteration, and the batch on its way to the device.

        Raises:
            StopIteration: that was all.
        """
        item = self._producer.recv()
        if isinstance(item, EndOfEpoch):
            raise StopIteration
        begun = perf_counter_ns()
        parts = self._copies.takes_parts
        batch = to_pyg(item, self._producer.schema, self._constants, as_parts=parts)
        copy = self._copies.begin(pinned(batch) if self._pin else batch)
        self.times.converted(perf_counter_ns() - begun)
        return item.index, copy

    def finish(self, copy: Copy) -> Data | HeteroData:
        """A batch as it is given."""
        batch = self._copies.finish(copy)
        return batch if self._transform is None else self._transform(batch)

    def shutdown(self) -> None:
        """Ends what samples for this loader. Idempotent; also called by ``with``. Without effect in a fork.

        Any thread may call it: one that waits for a batch gets a ``ChannelClosedError``, others that call it wait until
        all has ended. What sampled for a loader that is dropped ends soon after it.
        """
        if not self.home.is_here:
            return
        self._closed = True
        self._producer.close()
        self._at_drop.detach()

    def __enter__(self) -> DistLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _close_dropped(producer: BatchProducer) -> None:
    """Ends what samples for a loader that nobody has any more.

    Garbage is collected in any thread, wherever that is: in one that has to answer, or with a lock held. So another one
    closes, begun in the one way that takes no locks.
    """
    if producer.is_open:
        _thread.start_new_thread(_close_last, ([producer],))


def _close_last(held: list[BatchProducer]) -> None:
    """Ends the producer that is held, and lets go of it, before the end of the process may stop this thread."""
    with threads.calls:
        held.pop().close()


class _Received(Iterator[tuple[int, Any]]):
    """The batches of one iteration. No generator: after a batch that failed, the others still come."""

    def __init__(self, loader: DistLoader, run: int) -> None:
        self._loader = loader
        self._run = run
        # Without a device there is nothing to be gained by taking a batch before it is wanted.
        self._recv = OneAhead(loader.recv, loader.is_ready).next if loader.has_device else loader.recv

    def __next__(self) -> tuple[int, Any]:
        loader = self._loader
        with loader.turn:  # another thread may begin an iteration
            if self._run != loader._run:
                raise ChannelClosedError(
                    f"iterator {self._run} of this loader was left when iterator {loader._run} began"
                )
            if loader._closed:
                raise ChannelClosedError("the loader was shut down")
            index, copy = self._recv()
        return index, loader.finish(copy)
