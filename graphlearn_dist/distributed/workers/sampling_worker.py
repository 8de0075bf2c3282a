"""A sampling worker: a process of a server that computes batches and leaves them in shared memory.

Forked by the fork server with one end of a socket pair, over which its server sends commands; when the server is gone
that socket closes, and the worker ends. To a pipe it writes a byte a second, as a sign of life. Batches are announced
in a shared-memory ring and lie in the worker's own region, written there once; where the region has no room they follow
in the ring instead. Another ring tells of slots that are free again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter_ns
from typing import Any

import torch

from ... import _C
from ...config import trace_setting
from ...data.feature import divide_memory
from ...errors import ChannelClosedError, ChannelTimeoutError, MessageTooLargeError, SamplingWorkerError
from ...messages import EndOfEpoch, SampledBatch
from ...rpc.peers.identity import boot_id
from ...rpc.shm.arena import SendingArena
from ...rpc.wire.codec import encode
from ...rpc.wire.encoded import Encoded
from ...sampler.batch_maker import with_rows
from ...sampler.epochs.batches_together import most_together_bytes
from ...telemetry import BatchCounts
from ...telemetry.trace import start_tracing, stop_tracing, tracer
from ..dist_dataset import DistDataset
from ..partitions.host_partitions import open_partitions
from ..partitions.partition_peers import Peers, ServerPeers
from ..partitions.partition_service import PartitionService
from ..sampling.batches import (
    BatchesLookup,
    NoPeers,
    PartitionedBatches,
    Place,
    Rows,
    most_pairs,
    place_in_pool,
    together,
)
from .control import Control, receive_message, send_message
from .pulse import start_pulse
from .row_counts import open_counts
from .upcoming import Upcoming
from .worker_failure import describe_failure
from .worker_messages import (
    ITEM_HEADER_BYTES,
    ItemHeader,
    ItemKind,
    MoveHolders,
    StartRun,
    StopWorker,
    UseCopies,
    WorkerReady,
    WorkerSetup,
)

_RING_WAIT_S = 0.5  # how long one attempt to send into a full ring lasts; cancellation waits for at most this


Item = tuple[ItemHeader, Encoded]


class BatchesTooLargeError(Exception):
    """Batches are too large to travel together: nothing is to be gained by it."""


@dataclass
class BatchSlot:
    """Where batches were put that travel together.

    Attributes:
        offset: of their slot in the region; 0: they are in private memory.
        nbytes: of the slot.
        head: of what lies there.
    """

    offset: int = 0
    nbytes: int = 0
    head: bytes = b""


@dataclass
class _UnderWay:
    """Batches that are being made, to be handed on together.

    Attributes:
        indices: of them.
        task: makes them.
        turn: they are the next to be handed on; None: they need not wait for that.
        asking: asks for the rows of these and others; None: ``task`` does.
    """

    indices: Sequence[int]
    task: asyncio.Task[deque[Item]]
    turn: asyncio.Event | None = None
    asking: asyncio.Task[BatchesLookup] | None = None


class BatchSender:
    """Where finished batches go.

    Args:
        ring: announces them to the server.
        returns: tells of slots that the server needs no more.
        region: the shared memory they lie in.
        counts: of the batches.
    """

    def __init__(self, ring: _C.ShmRing, returns: _C.ShmRing, region: SendingArena, counts: BatchCounts) -> None:
        self._ring = ring
        self._returns = returns
        self._region = region
        self._counts = counts

    def place(self, slot: BatchSlot, batches: Sequence[SampledBatch], rows: Sequence[Rows]) -> list[Rows]:
        """Places for looked-up rows, by batch, in a slot of the region, to which all else is copied; see ``Place``."""
        begun = perf_counter_ns()
        encoded = encode(together(batches))
        most_bytes = most_together_bytes(self._region.capacity_bytes, len(batches))
        if len(batches) > 1 and encoded.nbytes > most_bytes:
            raise BatchesTooLargeError(f"{len(batches)} batches of {encoded.nbytes} bytes")
        for free in _C.take_returned(self._returns):
            self._region.release(free)
        offset = self._region.reserve(encoded.nbytes) if encoded.nbytes else None
        if offset is None:
            return place_in_pool(batches, rows)
        slot.offset, slot.nbytes, slot.head = offset, encoded.nbytes, encoded.head
        memory = self._region.view(offset, encoded.nbytes)
        addresses = [tensor.data_ptr() for of_batch in rows for tensor in of_batch.values()]
        starts = iter(_C.copy_segments(encoded.segments, memory, addresses))
        places: list[Rows] = [
            {
                name: tensor
                if (start := next(starts)) < 0  # it has no bytes
                else torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=start).view(tensor.shape)
                for name, tensor in of_batch.items()
            }
            for of_batch in rows
        ]
        self._counts.add_copy(perf_counter_ns() - begun)
        return places

    def check_room(self, encoded: Encoded) -> None:
        """Raises ``MessageTooLargeError`` for a batch that lies not in the region, and fits into no ring."""
        needed = encoded.blob_bytes + ITEM_HEADER_BYTES
        if needed > self._ring.capacity_bytes:
            raise MessageTooLargeError(
                f"buffer_size or channel_size: expected room for a batch of {needed} bytes in each worker, got "
                f"{self._ring.capacity_bytes}; raise it, or the server's memory_budget, or sample smaller batches"
            )

    def release(self, offset: int) -> None:
        """A slot that was not announced."""
        self._region.release(offset)

    async def send(
        self, header: ItemHeader, encoded: Encoded, on_announced: Callable[[], object] = lambda: None
    ) -> None:
        """Announces an item; waits while the ring is full.

        ``on_announced`` is called as soon as the item is the server's, also where this is cancelled at that moment:
        who releases its slot must be told apart, as a slot that is released twice may be another batch's by then.
        """
        if header.offset:
            parts: list[Any] = [header.pack(), encoded.head]
        else:
            parts = [header.pack(), *encoded.write_parts()]
        cancelled: asyncio.CancelledError | None = None
        try:
            self._ring.send(parts, 0.0)
        except ChannelTimeoutError:
            begun = perf_counter_ns()
            cancelled = await self._send_when_free(parts)
            self._counts.add_send(perf_counter_ns() - begun)
        on_announced()
        if cancelled is not None:
            raise cancelled

    async def _send_when_free(self, parts: list[Any]) -> asyncio.CancelledError | None:
        """Returns when it was sent, with the cancellation that came too late; a cancellation in time is raised."""
        loop = asyncio.get_running_loop()
        cancelled: asyncio.CancelledError | None = None
        while True:
            sending = loop.run_in_executor(None, self._ring.send, parts, _RING_WAIT_S)
            try:
                await asyncio.shield(sending)
                return None
            except ChannelTimeoutError:
                continue  # still full: the trainer is busy
            except asyncio.CancelledError as error:
                cancelled = error
            try:
                await sending  # its thread goes on, and may still succeed
                return cancelled
            except ChannelTimeoutError:
                raise cancelled from None


class SamplingWorker:
    """Obeys one server.

    Args:
        setup: what to sample.
        control: the socket to the server.
        peers: the other partitions.
    """

    def __init__(self, setup: WorkerSetup, control: Control, peers: Peers) -> None:
        self._setup = setup
        self._peers = peers
        self._control = control
        self._dataset = dataset = DistDataset.from_ipc_handle(setup.dataset)
        services = [
            PartitionService(dataset, setup.num_threads),
            *open_partitions(setup.holders.shared, dataset, setup.num_threads),
        ]
        counts = BatchCounts(open_counts(setup.batch_counts).numpy().data)
        if setup.feature_memory is not None:
            divide_memory([each for service in services for each in service.limited_features()], setup.feature_memory)
        self._batches = PartitionedBatches(
            dataset, setup.sampler_input, setup.config, services, peers, setup.num_threads, setup.near, counts,
            recent_bytes=setup.recent_bytes,
        )  # fmt: skip
        self._batches.trace_key = setup.key
        self._batches.use_copies(setup.copies)
        if setup.row_counts is not None:
            self._batches.count_rows_in(open_counts(setup.row_counts))
        self._has_peers = len(services) < dataset.num_partitions
        self._region = SendingArena(setup.region_bytes)
        rings = _C.ShmRing.open(setup.ring_path), _C.ShmRing.open(setup.returns_path)
        self._sender = BatchSender(*rings, self._region, counts)
        self._run_task: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None
        self._are_large = False  # batches were too large to travel together

    async def serve(self) -> None:
        """Announces that it is ready, then obeys until told to stop or the server is gone."""
        region = self._region
        send_message(self._control, WorkerReady(region.path, region.capacity_bytes, region.nonce))
        while True:
            match await receive_message(self._control):
                case StartRun() as start:
                    await self._end_run()
                    self._run_task = asyncio.create_task(self._run(start))
                    self._run_task.add_done_callback(self._on_run_end)
                case MoveHolders(addresses) if isinstance(self._peers, ServerPeers):
                    self._peers.move(addresses)
                case UseCopies(copies):
                    self._batches.use_copies(copies)
                case StopWorker() | None:
                    await self._end_run()
                    if self._broken is not None:
                        raise self._broken
                    return

    async def _end_run(self) -> None:
        if self._run_task is not None:
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)
            self._run_task = None

    def _on_run_end(self, run: asyncio.Task[None]) -> None:
        """A run that breaks, other than by one batch, breaks the worker: closing the socket tells ``serve``."""
        if not run.cancelled() and (error := run.exception()) is not None:
            self._broken = error
            self._control.feed_end()

    async def _run(self, start: StartRun) -> None:
        """Keeps ``concurrency`` batches under way, or two groups, and sends them in the order of their indices."""
        under_way: deque[_UnderWay] = deque()
        upcoming: Upcoming | None = None
        if self._batches.reads_disk:
            upcoming = Upcoming(self._batches, start.run, start.epoch, start.share.groups())
        num_batches = self._batches.schedule.num_batches
        # Without peers there is nothing to wait for: more batches under way would only hold memory.
        concurrency = self._setup.concurrency if self._has_peers else 1
        most_groups = min(concurrency, max(2, -(-concurrency // start.share.size)))
        num_pairs = self._most_pairs(start.share.size) if upcoming is None and concurrency > 1 else 0
        most_begun = most_groups * start.share.size
        if num_pairs > 1:  # all that are asked for at once, and the first of those behind them
            num_exchanges = max(2, -(-concurrency // (start.share.size * num_pairs)))
            most_groups = num_pairs * (num_exchanges - 1) + 1
            most_begun = num_exchanges * num_pairs * start.share.size
        num_careful = most_begun if start.careful else 0
        place, groups = 0, start.share.groups()
        try:
            while asked := tuple(islice(groups, max(1, num_pairs))):
                is_careful = place < num_careful
                alone = is_careful or self._are_large
                most = 1 if is_careful else concurrency if alone else most_groups
                if num_pairs and not alone:
                    making = self._make_in_turn(start, asked)
                else:
                    making = self._begin(start, asked, upcoming, place, alone=alone, is_careful=is_careful)
                for begun in making:
                    under_way.append(begun)
                    if len(under_way) >= most:
                        await self._send_first(under_way)
                place += sum(map(len, asked))
            while under_way:
                await self._send_first(under_way)
            end = EndOfEpoch(start.run, start.epoch, num_batches)
            await self._sender.send(ItemHeader(ItemKind.END, start.run, start.epoch, num_batches), encode(end))
        finally:
            asking = {each.asking for each in under_way if each.asking is not None}
            await self._discard([*(each.task for each in under_way), *asking])
            if upcoming is not None:
                await upcoming.close()

    def _begin(
        self,
        start: StartRun,
        groups: Sequence[Sequence[int]],
        upcoming: Upcoming | None,
        place: int,
        *,
        alone: bool,
        is_careful: bool,
    ) -> Iterator[_UnderWay]:
        """Begins to make groups, the first of whose batches has this place in the share; ``alone``: their batches."""
        for group in groups:
            for indices in [group[at : at + 1] for at in range(len(group))] if alone else [group]:
                if upcoming is None:
                    making = self._make(start, indices)
                else:
                    if not is_careful:
                        upcoming.look_ahead(place)
                    making = self._make_and_forget(start, indices, upcoming)
                yield _UnderWay(indices, asyncio.create_task(making))
                place += len(indices)

    def _most_pairs(self, count: int) -> int:
        """Pairs of large batches for whose rows to ask at once; 0 where groups of so many batches are no such pairs."""
        setup = self._setup
        most = most_pairs(
            self._dataset, setup.sampler_input, setup.config, self._batches.plan, self._region.capacity_bytes, count
        )
        return min(most, 1) if self._batches.keeps_rows else most  # then later ones find the rows anyway

    def _make_in_turn(self, start: StartRun, groups: Sequence[Sequence[int]]) -> Iterator[_UnderWay]:
        """Begins to make pairs whose rows are asked for at once, and written when it is a pair's turn to be sent: until
        then it takes little memory."""
        indices = [index for group in groups for index in group]
        asking = asyncio.create_task(self._batches.ask(start.epoch, indices, start.run))
        first = 0
        for group in groups:
            turn = asyncio.Event()
            making = self._make_part(start, group, asking, range(first, first + len(group)), turn)
            yield _UnderWay(group, asyncio.create_task(making), turn, asking)
            first += len(group)

    async def _send_first(self, under_way: deque[_UnderWay]) -> None:
        first = under_way[0]
        if first.turn is not None:
            first.turn.set()
        indices, items = first.indices, await first.task
        while items:
            header, encoded = items[0]
            begun = perf_counter_ns()
            await self._sender.send(header, encoded, items.popleft)
            if (traced := tracer()) is not None:
                at = indices.index(header.index)
                for index in indices[at : at + header.count]:
                    traced.span("send", "ring", begun, (self._setup.key, header.epoch, index))
        under_way.popleft()

    async def _discard(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, deque):
                self._drop(result)

    def _drop(self, items: Iterable[Item]) -> None:
        for header, _ in items:
            if header.offset:
                self._sender.release(header.offset)

    async def _make_and_forget(self, start: StartRun, indices: Sequence[int], upcoming: Upcoming) -> deque[Item]:
        """``_make``, after which what was sampled ahead for these batches is of no use."""
        try:
            return await self._make(start, indices, upcoming)
        finally:
            upcoming.finish(indices)

    async def _make(self, start: StartRun, indices: Sequence[int], upcoming: Upcoming | None = None) -> deque[Item]:
        """Some batches as one item; an item each where that fails, which tells what fails and sends the others."""
        try:
            return deque([await self._make_together(start, indices, upcoming)])
        except Exception as error:
            if len(indices) == 1:
                return deque([self._failure(start, indices[0], error)])
            self._are_large |= isinstance(error, BatchesTooLargeError)
        return await self._make_each(start, indices, upcoming)

    async def _make_each(
        self, start: StartRun, indices: Sequence[int], upcoming: Upcoming | None = None
    ) -> deque[Item]:
        """Some batches as an item each."""
        # All at once: one after the other, they would have to wait for peers as many times as long.
        making = [asyncio.create_task(self._make(start, (index,), upcoming)) for index in indices]
        try:
            return deque(item for items in await asyncio.gather(*making) for item in items)
        except BaseException:
            await self._discard(making)
            raise

    async def _make_part(
        self,
        start: StartRun,
        indices: Sequence[int],
        asking: asyncio.Task[BatchesLookup],
        of: range,
        turn: asyncio.Event,
    ) -> deque[Item]:
        """Those that ``of`` says of what is asked for, see ``_make``."""
        try:
            begun = await asyncio.shield(asking)
            await turn.wait()
            return deque([await self._as_item(start, indices, partial(self._batches.write, begun, of=of))])
        except Exception as error:
            self._are_large |= isinstance(error, BatchesTooLargeError)
            return await self._make_each(start, indices)

    async def _make_together(self, start: StartRun, indices: Sequence[int], upcoming: Upcoming | None) -> Item:
        """Some batches as one item."""
        sampling = None if upcoming is None else upcoming.take(indices)

        def make(place: Place) -> Awaitable[list[tuple[SampledBatch, Rows]]]:
            return self._batches.make_in(start.epoch, indices, start.run, place, sampling)

        return await self._as_item(start, indices, make)

    async def _as_item(
        self,
        start: StartRun,
        indices: Sequence[int],
        make: Callable[[Place], Awaitable[list[tuple[SampledBatch, Rows]]]],
    ) -> Item:
        """Some batches as one item, in a slot of the region where there is room for them."""
        slot = BatchSlot()
        try:
            made = await make(partial(self._sender.place, slot))
            if slot.offset:
                encoded = Encoded(slot.head, (), 0)
            else:
                encoded = encode(together([with_rows(*each) for each in made]))
                self._sender.check_room(encoded)
        except BaseException:
            if slot.offset:
                self._sender.release(slot.offset)
            raise
        where = slot.offset, slot.nbytes, len(encoded.head)
        return ItemHeader(ItemKind.BATCH, start.run, start.epoch, indices[0], *where, len(indices)), encoded

    def _failure(self, start: StartRun, index: int, error: Exception) -> Item:
        failure = describe_failure(self._setup.name, "sample", error, start.run, start.epoch, index)
        return ItemHeader(ItemKind.FAILURE, start.run, start.epoch, index), encode(failure)


async def _serve(control: Control) -> int:
    setup = await receive_message(control)
    if setup is None or isinstance(setup, StopWorker):
        return 0
    if not isinstance(setup, WorkerSetup):
        raise SamplingWorkerError(f"expected WorkerSetup first, got {type(setup).__name__}")
    os.environb.clear()
    os.environb.update(setup.environ)
    try:
        start_tracing(trace_setting(), setup.name, boot_id())
        with _open_peers(setup) as peers:
            await SamplingWorker(setup, control, peers).serve()
    except (ChannelClosedError, BrokenPipeError, ConnectionResetError):
        return 0  # the server took the ring away or closed the socket: it is done with this worker
    except Exception as error:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then nobody is left to be told
            send_message(control, describe_failure(setup.name, "set-up", error))
        return 1
    return 0


def _open_peers(setup: WorkerSetup) -> contextlib.AbstractContextManager[Peers]:
    if not setup.holders.addresses:
        return contextlib.nullcontext(NoPeers())
    return ServerPeers(setup.name, setup.rank, setup.holders, setup.request_timeout_s, setup.reconnect_timeout_s)


async def _main(descriptor: int) -> int:
    control = await Control.open(socket.socket(fileno=descriptor))
    try:
        return await _serve(control)
    finally:
        stop_tracing()
        control.close()


def run(control: int, pulse: int) -> int:
    """What the process of a worker does until its end.

    Args:
        control: descriptor of its socket.
        pulse: descriptor of its pipe.

    Returns:
        Its exit code.
    """
    torch.set_num_threads(1)
    start_pulse(pulse)
    return asyncio.run(_main(control))
