"""A producer: the sampling workers that a process runs for one loader, and the batches they have ready.

Everything here runs on one asyncio loop: the server's RPC loop, or a loop of the loader's process. Workers serve fixed
shares of a run's batches and send them in order, so that what is asked for next is always at the head of one worker's
ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from ... import _C
from ...data.disk_tier import FeatureMemory
from ...errors import (
    DeadlineExceededError,
    GraphLearnError,
    InvalidArgumentError,
    SamplingWorkerError,
    SystemLimitError,
)
from ...messages import EndOfEpoch, SampledBatch, WorkerFailure
from ...rpc.wire.codec import decode
from ...rpc.wire.encoded import release
from ...sampler.base import EdgeSamplerInput, NodeSamplerInput, SamplingConfig
from ...sampler.batches import make_plan, make_schedule, with_own_times
from ...sampler.epochs.schedule import BatchIndices, BatchShare
from ...telemetry import MadeStats
from ...telemetry.trace import BatchName
from ...utils.coroutines import gather_all, within
from ..dist_dataset import DistDataset
from ..dist_options import ProducerRequest
from ..partitions.dataset_handle import CacheHandle, DatasetHandle
from ..partitions.partition_peers import PartitionHolders
from ..sampling.batches import most_together, rows_asked_of, tell_where_sampled
from ..sampling.recent_rows import AskedRows
from .batch_shelf import BatchShelf
from .fork_server import hold_fork_server
from .row_counts import RowCounts, SharedBatchCounts
from .worker_failure import failure_error
from .worker_handle import WorkerHandle
from .worker_memory import WorkerMemory
from .worker_messages import MoveHolders, StartRun, UseCopies, WorkerSetup
from .worker_process import WorkerOrigin


class SamplingProducer:
    """The sampling workers of one loader, in one process.

    Args:
        name: for errors.
        dataset: the process's partition; held, since workers that are started later map what lies in its memory.
        handle: the same for its workers.
        sampler_input: the loader's input nodes, checked.
        config: how to sample.
        request: how many workers.
        holders: who serves the other partitions.
        row_counts: of copies that its workers use; None where there will be none.
        near: see ``make_schedule``.
        feature_memory: that its workers divide, see ``Dataset.limit_feature_memory``; None leaves files mapped.

    Attributes:
        plan: how to sample.
        schedule: which seeds are in which batch.
        together: how many of its batches may travel together.
    """

    def __init__(
        self,
        name: str,
        dataset: DistDataset,
        handle: DatasetHandle,
        sampler_input: NodeSamplerInput | EdgeSamplerInput,
        config: SamplingConfig,
        request: ProducerRequest,
        holders: PartitionHolders,
        row_counts: RowCounts | None = None,
        near: torch.Tensor | None = None,
        feature_memory: FeatureMemory | None = None,
    ) -> None:
        config = with_own_times(config, sampler_input, dataset)
        tell_where_sampled(dataset)
        self.plan = make_plan(dataset, config)  # whatever is wrong with the config is said before a process starts
        self.schedule = make_schedule(sampler_input, config, near)
        self._name = name
        self._request = request
        self._dataset = dataset
        self._handle = handle
        self._input = sampler_input
        self._config = config
        self._holders = holders
        self._copies: tuple[CacheHandle, ...] = ()
        self._row_counts = row_counts
        self._feature_memory = None if feature_memory is None else feature_memory.part(1, request.num_workers)
        self._resources = contextlib.ExitStack()
        self._on_close: list[Callable[[], None]] = []
        if row_counts is not None:
            self._resources.callback(row_counts.close)
        self._batch_counts = SharedBatchCounts(request.num_workers)
        self._start_failure: SamplingWorkerError | None = None  # of the first worker that failed on its way up
        self._run = 0
        self._epoch = 0
        self._share = BatchShare(BatchIndices(0, 0))
        self._num_given = 0
        recent_bytes = None if request.recent_bytes is None else request.recent_bytes // request.num_workers
        asked: Sequence[AskedRows] | None = ()
        if holders.some_are_asked:
            num_asked = len(holders.addresses.keys() - holders.shared.keys())
            # With copies there are fewer, as they come.
            asked = rows_asked_of(num_asked, dataset, config) if row_counts is None else None
        self._memory = WorkerMemory.divide(request.buffer_bytes // request.num_workers, recent_bytes, asked)
        self.together = most_together(
            dataset, sampler_input, config, self.plan, self._memory.region, request.batches_per_message,
            asks_others=holders.some_are_asked,
        )  # fmt: skip
        self._shelf = BatchShelf(name, request.num_workers)
        self.fetch = self._shelf.fetch
        self.end = self._shelf.end
        self._workers = [
            WorkerHandle(self._name_of(rank), self._shelf, rank, self._memory, request.max_restarts)
            for rank in range(request.num_workers)
        ]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    @property
    def made(self) -> MadeStats:
        """What its workers have made until now."""
        restarts = sum(worker.num_restarts for worker in self._workers)
        sums = replace(self._batch_counts.sums(), credit_ns=self._shelf.native.credit_ns)
        return MadeStats(self.where, sums, len(self._workers), restarts)

    @property
    def where(self) -> str:
        """Its workers, for people."""
        count = len(self._workers)
        return f"{count} process{'es' if count > 1 else ''}"

    def trace_names(self, index: int) -> list[BatchName]:
        """What a batch of the current run, and those of its group behind it, are called in a trace; none of others."""
        try:
            indices = self._share.rest_of_group(index)
        except InvalidArgumentError:
            return []
        return [(self._request.key, self._epoch, each) for each in indices]

    @property
    def credit(self) -> tuple[int, int]:
        """Bytes that the reader allows to be with it unread, and those that are; zeros where that is left open."""
        return self._shelf.native.credit

    @property
    def num_ready(self) -> int:
        """Batches that are finished, and that nobody has asked for yet."""
        return self._shelf.native.num_ready

    @property
    def shelf(self) -> _C.BatchShelf:
        """Its batches, for clients that ask without the interpreter."""
        return self._shelf.native

    async def start(self) -> None:
        """Starts all workers; undone if one fails.

        Raises:
            SamplingWorkerError: a worker failed on its way up, or died too often.
            DeadlineExceededError: some were not up in time.
        """
        try:
            await within(self._start_workers(), self._request.start_timeout_s)
        except BaseException as error:
            late = [str(rank) for rank, worker in enumerate(self._workers) if not worker.is_up]
            failure, self._start_failure = self._start_failure, None
            try:
                await self.close()
                if not isinstance(error, asyncio.TimeoutError) or isinstance(error, GraphLearnError):
                    raise
                if failure is not None:  # the others had not ended yet when the time was over
                    raise failure from None
            finally:
                del failure  # its traceback may lead here
            raise DeadlineExceededError(
                f"{self._name}: workers {', '.join(late)} of {len(self._workers)} were not set up within "
                f"start_timeout={self._request.start_timeout_s:g} s; a busy machine may take longer to start them"
            ) from error

    async def _start_workers(self) -> None:
        self._shelf.open()
        forks = self._resources.enter_context(hold_fork_server())
        await gather_all(
            self._start_worker(worker, WorkerOrigin(forks, partial(self._make_setup, rank)))
            for rank, worker in enumerate(self._workers)
        )

    async def _start_worker(self, worker: WorkerHandle, origin: WorkerOrigin) -> None:
        try:
            await worker.start(origin)
        except SamplingWorkerError as error:
            if self._start_failure is None:
                self._start_failure = error
            raise

    def _name_of(self, rank: int) -> str:
        return f"{self._name}, worker {rank}"

    def _make_setup(self, rank: int, feed: _C.WorkerFeed) -> WorkerSetup:
        """Once for each process of a worker."""
        request = self._request
        return WorkerSetup(
            name=self._name_of(rank),
            environ=dict(os.environb),
            dataset=self._handle,
            sampler_input=self._input,
            config=self._config,
            ring_path=feed.ring_path,
            returns_path=feed.returns_path,
            region_bytes=self._memory.region,
            concurrency=request.concurrency,
            num_threads=request.num_threads,
            holders=self._holders,
            rank=rank,
            request_timeout_s=request.request_timeout_s,
            reconnect_timeout_s=request.reconnect_timeout_s,
            key=request.key,
            batch_counts=self._batch_counts.handle_of(rank),
            copies=self._copies,
            row_counts=None if self._row_counts is None else self._row_counts.handle_of(rank),
            near=self.schedule.near,
            feature_memory=self._feature_memory,
            recent_bytes=self._memory.recent_rows,
        )

    @property
    def reconnect_timeout_s(self) -> float:
        """How long its workers wait for a holder that is gone."""
        return self._request.reconnect_timeout_s

    async def move_holders(self, holders: PartitionHolders) -> None:
        """Tells the workers who serves the other partitions now."""
        if holders is self._holders:
            return
        self._holders = holders
        for worker in self._workers:
            worker.tell(MoveHolders(holders.addresses))

    async def use_copies(self, copies: tuple[CacheHandle, ...]) -> None:
        """Tells the workers which rows of other partitions the host keeps now."""
        if copies is self._copies:
            return
        self._copies = copies
        for worker in self._workers:
            worker.tell(UseCopies(copies))

    async def start_run(
        self, run: int, epoch: int, share: BatchShare | None = None, credit_bytes: int | None = None
    ) -> None:
        """Begins to make these batches of an epoch, by the workers in turn; all of them, one by one, unless given.

        Older runs are off. See ``BatchShelf.begin_run``.

        Raises:
            InvalidArgumentError: the run is not newer than the last one, or the epoch has fewer batches.
        """
        if run <= self._run:
            raise InvalidArgumentError(f"run: expected more than {self._run}, got {run}")
        if run >= 1 << 63 or not 0 <= (credit_bytes or 0) < 1 << 63:
            raise InvalidArgumentError(
                f"run, credit_bytes: expected numbers of 63 bits, the second from 0, got {run}, {credit_bytes}"
            )
        num_batches = self.schedule.num_batches
        share = BatchShare(BatchIndices(0, num_batches)) if share is None else share
        most = (1 << 63) // len(self._workers)  # what each of them makes is said in numbers of 63 bits
        for number in (epoch, share.size, share.first, share.step, share.begin):
            if not isinstance(number, int) or not -most <= number < most:
                raise InvalidArgumentError(f"epoch, share: expected numbers from -{most} below {most}, got {number!r}")
        if share.indices and share.indices[-1] >= num_batches:
            raise InvalidArgumentError(f"indices: expected batches in [0, {num_batches}), got {share.indices}")
        self._shelf.begin_run(share, EndOfEpoch(run, epoch, num_batches), credit_bytes)
        self._run, self._epoch, self._share, self._num_given = run, epoch, share, 0
        for rank, worker in enumerate(self._workers):
            worker.start_run(StartRun(run, epoch, share.divided(rank, len(self._workers))))

    def grant(self, run: int, oldest: int) -> None:
        """The reader of a run has read all batches before ``oldest``."""
        self._shelf.native.grant(run, oldest)

    async def fetch_next(self) -> SampledBatch | None:
        """The first batch of the run that was not given before, decoded; None when all were.

        Decoding copies it; ``fetch`` does not.

        Raises:
            InvalidArgumentError: no run was begun, or one whose batches travel together.
            SamplingWorkerError: a worker failed at it, or died too often.
        """
        if self._run == 0:
            raise InvalidArgumentError(f"{self._name}: no epoch was begun: call start_new_epoch_sampling() first")
        if self._share.size > 1:
            raise InvalidArgumentError(f"share: expected batches one by one, got groups of {self._share.size}")
        if self._num_given == len(self._share):
            return None
        index = self._share[self._num_given]
        self._num_given += 1
        encoded = await self.fetch(self._run, index)
        try:
            item: SampledBatch | WorkerFailure = decode(encoded.head, bytearray().join(encoded.payload_parts()))
        finally:
            release(encoded)
        if isinstance(item, WorkerFailure):
            raise failure_error(item)
        return item

    def on_close(self, call: Callable[[], None]) -> None:
        """Has something called when the workers have ended, on the loop."""
        self._on_close.append(call)

    async def close(self) -> None:
        """Ends the workers. Idempotent."""
        self.end(SamplingWorkerError(f"{self._name}: it was shut down"))
        try:
            await asyncio.gather(*(worker.close() for worker in self._workers))
        finally:
            self._shelf.close()
            calls, self._on_close = self._on_close, []
            for call in calls:
                call()
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._resources.close)
            except SystemLimitError:  # no thread is left
                self._resources.close()
