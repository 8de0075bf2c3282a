"""Producers in the training process: sampling here (collocated), or in subprocesses (multiprocessing)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy

from ... import _C
from ...data.device.device_copies import DeviceCopies
from ...errors import DeadlineExceededError, NotInitializedError, PeerLostError
from ...rpc.shm.loans import Loans
from ...rpc.wire.codec import byte_array, decode
from ...rpc.wire.encoded import Encoded, release
from ...sampler.base import SamplerInput, SamplingConfig
from ...sampler.batch_maker import with_rows
from ...sampler.batches import with_own_times
from ...sampler.epochs.fingerprint import Settings, input_settings
from ...sampler.epochs.locality import order_of_seeds
from ...sampler.epochs.schedule import BatchIndices, BatchShare
from ...sampler.plan import SamplingPlan
from ...telemetry import DeviceCacheCounts, MadeStats
from ...utils.coroutines import run_local
from ...utils.device import wait_for_stream
from .. import rpc
from ..copies.host_row_cache import CopiesJob, CopiesUser, HostRowCache, RowCacheStats, budget_of
from ..copies.row_chances import Announcement
from ..dist_context import get_context
from ..dist_dataset import DistDataset
from ..dist_options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    ProducerRequest,
    recent_rows_bytes,
)
from ..event_loop import LoopThread
from ..partitions.dataset_handle import CacheHandle
from ..partitions.partition_input import resolve_among, resolve_here
from ..partitions.partition_peers import PartitionHolders
from ..partitions.partition_service import PartitionService
from ..sampling.batches import NoPeers, PartitionedBatches, most_together, place_in_pool, tell_where_sampled, together
from ..session.group_peers import find_holders, open_peers
from ..workers.row_counts import open_counts
from ..workers.sampling_producer import SamplingProducer
from ..workers.upcoming import Upcoming
from .batch_producer import BatchProducer, BatchRequest

_numbers = itertools.count()


class LocalProducer(BatchProducer):
    """What producers in the training process share: where the input comes from, and a thread with a loop.

    Args:
        dataset: this worker's partition.
        sampler_input: the loader's input.
        config: how to sample.
        options: times, and where the other workers are.
        limit: most batches under way before the reader wants the first of them.
        thread_name: of the thread.
    """

    def __init__(
        self,
        dataset: DistDataset,
        sampler_input: SamplerInput,
        config: SamplingConfig,
        options: CollocatedDistSamplingWorkerOptions | MpDistSamplingWorkerOptions,
        limit: int,
        thread_name: str,
    ) -> None:
        super().__init__(limit, options.rpc_timeout)
        self.schema, self.constants = dataset.schema, dataset.constants
        named = resolve_here(sampler_input, dataset)
        self._holders = find_holders(dataset, options)
        self._input = resolve_among(named, dataset, self._holders, options.rpc_timeout)
        self._near = order_of_seeds(config, self._input, dataset)
        self._thread = LoopThread(thread_name)
        self._number = next(_numbers)
        self._group = 1  # of the run
        self._row_cache: HostRowCache | None = None
        if options.row_cache is not None:
            budget = budget_of(options.row_cache, dataset)  # says what is wrong with it
            if budget and self._holders.some_are_asked and config.collect_features:
                self._row_cache = HostRowCache(dataset, PartitionService(dataset), budget)

    def _fill_copies(self, user: CopiesUser, batch_size: int, plan: SamplingPlan) -> None:
        """Begins to fetch copies for who samples."""
        if self._row_cache is None:
            return
        schema, sampler_input = self.schema, self._input  # the copies must not keep this alive
        holders: Future[PartitionHolders] = Future()
        holders.set_result(self._holders)
        self._row_cache.attach(CopiesJob(rpc.get_endpoint(), lambda _: holders, (user,)))
        self._row_cache.announce(
            user, None, lambda: Announcement.of_loader(schema, sampler_input, batch_size, plan.expected_fanouts)
        )

    def _end_copies(self) -> None:
        if self._row_cache is not None:
            self._row_cache.close()

    @property
    def row_cache_stats(self) -> RowCacheStats | None:
        return None if self._row_cache is None else self._row_cache.stats()

    def _group_of(self, position: int) -> Sequence[int]:
        return range(position, (position // self._group + 1) * self._group)

    @property
    def trace_key(self) -> int:
        return os.getpid() << 20 | 1 << 19 | self._number

    @functools.cached_property
    def input_settings(self) -> Settings:  # long inputs take long
        return input_settings(self._input, self._near)


class _CopiesInBatches:
    """Has the batches of a loader use copies; on one thread.

    Args:
        batches: the loader's.
    """

    def __init__(self, batches: PartitionedBatches) -> None:
        self._batches = batches
        self._used: tuple[CacheHandle, ...] = ()

    async def use(self, copies: tuple[CacheHandle, ...]) -> None:
        """There are these now."""
        if copies is not self._used:
            self._used = copies
            self._batches.use_copies(copies)


class _OnLoop:
    """Uses copies on the loop of a thread, while there is one.

    Args:
        thread: where.
        use: how.
    """

    def __init__(self, thread: LoopThread, use: Callable[[tuple[CacheHandle, ...]], Coroutine[Any, Any, None]]) -> None:
        self._thread = thread
        self._use = use

    async def use_copies(self, copies: tuple[CacheHandle, ...]) -> None:
        """See ``CopiesUser``."""
        with contextlib.suppress(NotInitializedError):  # it does not run yet, or any more
            await asyncio.wrap_future(self._thread.submit(self._use(copies)))


class CollocatedProducer(LocalProducer):
    """Samples in this process: ``prefetch_size`` batches ahead in a thread, or, with 0, when a batch is asked for.

    Where other workers are asked, batches are made in groups, as in sampling processes.
    A GPU that the graph lies on samples, and batches stay there; in a thread, on a stream of its own beside training.

    Args:
        dataset: this worker's partition.
        sampler_input: the loader's input.
        config: how to sample.
        options: threads, times, and where the other workers are.

    Raises:
        InvalidArgumentError: the config does not fit the data set.
        UnknownIdError: an input node is outside the graph.
        NotInitializedError: other partitions are needed, and this process is no worker.
    """

    def __init__(
        self,
        dataset: DistDataset,
        sampler_input: SamplerInput,
        config: SamplingConfig,
        options: CollocatedDistSamplingWorkerOptions,
    ) -> None:
        super().__init__(dataset, sampler_input, config, options, options.prefetch_size, "collocated sampling")
        services, self._peers = open_peers(dataset, options, self._holders)
        config = with_own_times(config, self._input, dataset)
        self._batches = PartitionedBatches(
            dataset, self._input, config, services, self._peers, options.num_threads, self._near,
            recent_bytes=recent_rows_bytes(options.recent_bytes, options.buffer_bytes), keeps_device=True,
        )  # fmt: skip
        self._batches.trace_key = self.trace_key
        self._row_counts = None if self._row_cache is None else self._row_cache.new_counts(1)
        if self._row_counts is not None:
            self._batches.count_rows_in(open_counts(self._row_counts.handle_of(0)))
        self._with_copies = _CopiesInBatches(self._batches)
        self.device = self._batches.device
        self._copies = DeviceCopies(self.device)
        tell_where_sampled(dataset)
        self.num_batches = self._batches.schedule.num_batches
        # Batches that are made when they are asked for, and wait for nobody, need no thread.
        waits = not isinstance(self._peers, NoPeers) or self._batches.reads_disk
        self._is_synchronous = options.prefetch_size == 0 and not waits
        self._options = options
        self._together = self._most_together(dataset, config)
        self._alone_until = -1  # position in the run: batches before it are made one by one
        self._upcoming: Upcoming | None = None  # of the run
        self._fill_copies(_OnLoop(self._thread, self._with_copies.use), config.batch_size, self._batches.plan)

    def _most_together(self, dataset: DistDataset, config: SamplingConfig) -> int:
        """How many of its batches may be made together."""
        asks, options = self._holders.some_are_asked, self._options
        if not asks or options.prefetch_size == 0:
            return 1
        wish = options.batches_per_message
        return most_together(
            dataset, self._input, config, self._batches.plan, options.buffer_bytes, wish, asks_others=asks
        )

    @property
    def where(self) -> str:
        return "this process"

    def made(self) -> MadeStats:
        options = {
            "workers": "num_threads=, or processes that sample (MpDistSamplingWorkerOptions)",
            "ahead": "prefetch_size= of the worker options",
            "peers": "prefetch_size= of the worker options, or a partitioner that cuts fewer edges",
        }
        return MadeStats(self.where, self._batches.counts.sums(), int(self._limit > 0), options=options)

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        return self._batches.device_cache

    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        if not self._is_synchronous:
            self._thread.start()
            if self._row_cache is not None:
                self._thread.run(self._with_copies.use(self._row_cache.handles))
            self._end_upcoming()
            if (enter := self._copies.beside_training(None)) is not None:
                self._thread.run(_call(enter))
            self._group = self._options.group_of(self._together, len(indices))
            self._limit, self._alone_until = self._options.groups_ahead(self._group), -1
            self._upcoming = Upcoming(self._batches, run, epoch, BatchShare(indices, self._group).groups())

    def _ask(self, request: BatchRequest) -> Future[Any]:
        if self._upcoming is not None:
            positions = request.positions[: 1 if request.position < self._alone_until else None]
            indices = [self._indices[position] for position in positions]
            return self._thread.submit(self._make(request, indices, self._upcoming))
        made: Future[Any] = Future()
        try:
            made.set_result(run_local(self._batches.make(request.epoch, request.index, request.run)))
        except Exception as error:  # of this batch; the others come
            made.set_exception(error)
        return made

    async def _make(self, request: BatchRequest, indices: Sequence[int], upcoming: Upcoming) -> Any:
        """These batches of a request; the first alone where one of them fails, which tells which."""
        upcoming.look_ahead(request.position)
        try:
            try:
                return await self._make_together(request, indices, upcoming)
            except (PeerLostError, DeadlineExceededError):  # it is no batch's fault
                raise
            except Exception:
                if len(indices) == 1:
                    raise
            self._alone_until = request.positions[-1] + 1
            return await self._make_together(request, indices[:1], upcoming)
        finally:
            upcoming.finish(indices)

    async def _make_together(self, request: BatchRequest, indices: Sequence[int], upcoming: Upcoming) -> Any:
        named = request.epoch, indices, request.run
        made = await self._batches.make_in(*named, place_in_pool, upcoming.take(indices))
        wait_for_stream(self.device)  # the reader's stream knows nothing of this thread's
        return together([with_rows(batch, rows) for batch, rows in made])

    def _end_upcoming(self) -> None:
        if self._upcoming is not None and self._thread.is_running:
            self._thread.run(self._upcoming.close())
        self._upcoming = None

    def _place_of(self, request: BatchRequest) -> str:
        return "this process"

    def _release(self) -> None:
        with contextlib.ExitStack() as last:  # what is interrupted keeps nothing else from its end
            if self._row_counts is not None:
                last.callback(self._row_counts.close)
            last.callback(self._batches.forget_rows)
            last.callback(self._peers.close)
            last.callback(self._thread.stop)
            self._end_copies()
            self._end_upcoming()


class MpProducer(LocalProducer):
    """Samples in subprocesses, which map this worker's partition, and leave batches where this process reads them.

    Args:
        dataset: this worker's partition.
        sampler_input: the loader's input.
        config: how to sample.
        options: processes, memory, times, and where the other workers are.

    Raises:
        InvalidArgumentError: the config does not fit the data set.
        UnknownIdError: an input node is outside the graph.
        NotInitializedError: other partitions are needed, and this process is no worker.
        SamplingWorkerError: a subprocess failed on its way up.
    """

    def __init__(
        self,
        dataset: DistDataset,
        sampler_input: SamplerInput,
        config: SamplingConfig,
        options: MpDistSamplingWorkerOptions,
    ) -> None:
        super().__init__(dataset, sampler_input, config, options, 2 * options.num_workers, "sampling processes")
        self._options = options
        self._producer = SamplingProducer(
            f"{_own_name()}, loader {self._number}",
            dataset,
            dataset.to_handle(with_splits=False),
            self._input,
            config,
            ProducerRequest(
                num_workers=options.num_workers,
                concurrency=options.worker_concurrency,
                num_threads=options.num_threads,
                buffer_bytes=options.buffer_bytes,
                request_timeout_s=options.rpc_timeout,
                max_restarts=options.max_restarts,
                start_timeout_s=options.start_timeout,
                key=self.trace_key,
                batches_per_message=options.batches_per_message,
                recent_bytes=options.recent_bytes,
            ),
            self._holders,
            None if self._row_cache is None else self._row_cache.new_counts(options.num_workers),
            near=self._near,
            feature_memory=dataset.feature_memory,
        )
        self.num_batches = self._producer.schedule.num_batches
        self._loans: Loans | None = None  # of the thread's loop
        try:
            self._thread.start()
            self._thread.run(self._producer.start())  # has a limit of its own
            self._fill_copies(_OnLoop(self._thread, self._producer.use_copies), config.batch_size, self._producer.plan)
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        return self._producer.where

    def made(self) -> MadeStats:
        options = {
            "workers": "num_workers= of the worker options, as far as there are cores",
            "ahead": "a larger buffer (channel_size=)",
            "peers": "worker_concurrency= of the worker options, or a partitioner that cuts fewer edges",
        }
        return replace(self._producer.made, options=options)

    @property
    def num_ready(self) -> int:
        return super().num_ready + self._producer.num_ready

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the sampling subprocesses."""
        return self._producer.worker_pids

    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        if self._row_cache is not None:  # as soon as they are there, and not when somebody tells of them
            self._thread.run(self._producer.use_copies(self._row_cache.handles))
        what = f"its sampling processes to begin epoch {epoch}"
        self._group = self._options.group_of(self._producer.together, len(indices))
        share = BatchShare(indices, self._group)
        self._thread.run(self._producer.start_run(run, epoch, share), self._timeout_s, what)

    def _ask(self, request: BatchRequest) -> Future[Any]:
        return self._thread.submit(self._fetch(request))

    async def _fetch(self, request: BatchRequest) -> Any:
        encoded = await self._producer.fetch(request.run, request.index)
        if self._loans is None:
            self._loans = Loans(asyncio.get_running_loop())
        return decode_here(encoded, self._loans)

    def _place_of(self, request: BatchRequest) -> str:
        return "its sampling process"

    def _release(self) -> None:
        try:
            self._end_copies()
            if self._thread.is_running:
                self._thread.run(self._close_workers())
        finally:
            self._thread.stop()

    async def _close_workers(self) -> None:
        await self._producer.close()
        if self._loans is not None:
            self._loans.close()


async def _call(enter: Callable[[int], None]) -> None:
    enter(0)


def decode_here(encoded: Encoded, loans: Loans) -> Any:
    """A worker's message in this process; call it on the loop that releases its memory, which is that of ``loans``.

    What lies in the worker's region stays there: its slot goes back when the last tensor over it dies. What came in the
    ring is copied, since a ring whose front is kept is stuck.
    """
    (payload,) = encoded.segments or (memoryview(b""),)
    if encoded.on_released is None:
        copy = memoryview(_C.Buffer(payload.nbytes)) if payload.nbytes else None
        if copy is not None:
            numpy.copyto(byte_array(copy), byte_array(payload))
        return decode(encoded.head, copy)
    return decode(encoded.head, loans.lend(payload, _release_all, encoded))


def _release_all(encoded: list[Encoded]) -> None:
    for each in encoded:
        release(each)


def _own_name() -> str:
    context = get_context()
    return context.worker_name if context is not None else "this process"
