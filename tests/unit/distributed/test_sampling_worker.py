"""What a sampling worker makes of a group of batches, in this process, on a loop that the test steps."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_peers import PartitionHolders
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import NoPeers, place_in_pool
from graphlearn_dist.distributed.workers import sampling_worker
from graphlearn_dist.distributed.workers.control import Control, send_message
from graphlearn_dist.distributed.workers.row_counts import SharedBatchCounts
from graphlearn_dist.distributed.workers.sampling_worker import SamplingWorker
from graphlearn_dist.distributed.workers.upcoming import Upcoming
from graphlearn_dist.distributed.workers.worker_messages import ItemHeader, ItemKind, StartRun, StopWorker, WorkerSetup
from graphlearn_dist.errors import PeerLostError
from graphlearn_dist.messages import SampledBatch
from graphlearn_dist.rpc.wire.codec import decode
from graphlearn_dist.rpc.wire.encoded import Encoded
from graphlearn_dist.sampler.base import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batch_maker import with_rows
from graphlearn_dist.sampler.batches import LocalBatches, make_plan
from graphlearn_dist.sampler.epochs import batches_together
from graphlearn_dist.sampler.epochs.schedule import BatchIndices, BatchShare
from graphlearn_dist.telemetry import trace
from graphlearn_dist.utils.coroutines import gather_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import make_dataset, random_graph
from tests.support.oracle import assert_same, load_partitions, tensors_of, write_partitions
from tests.support.waiting import collect

NUM_NODES = 40
CONFIG = SamplingConfig(SamplingType.NODE, [2], 4, True, False, False, True, False, False, "in", 0)
SIZE = 4  # batches of a group
START = StartRun(1, 0, BatchShare(BatchIndices(0, 10), SIZE))
START_LONG = StartRun(1, 0, BatchShare(BatchIndices(0, 37), SIZE))


def in_memory(num_nodes: int) -> DistDataset:
    ids, dataset = torch.arange(num_nodes), Dataset(edge_dir="in")
    dataset.init_graph(torch.stack([(ids + 1) % num_nodes, ids]))
    dataset.init_node_features(ids.float()[:, None].repeat(1, 8))
    return DistDataset.from_dataset(dataset)


@contextlib.asynccontextmanager
async def open_worker(
    num_nodes: int = NUM_NODES, dataset: DistDataset | None = None, peers: Any = None, **more: Any
) -> AsyncIterator[tuple[SamplingWorker, Any]]:
    """A worker, and its ring; ``more`` of its set-up may be given."""
    dataset = in_memory(num_nodes) if dataset is None else dataset
    ring, returns, counts = _C.ShmRing(1 << 20, 64), _C.ShmRing(4096, 8), SharedBatchCounts(1)
    here, there = socket.socketpair()
    control = await Control.open(here)
    setup = WorkerSetup(
        name="worker 0",
        environ={},
        dataset=dataset.to_handle(with_splits=False),
        sampler_input=NodeSamplerInput(torch.arange(num_nodes), None),
        config=CONFIG,
        ring_path=ring.path,
        returns_path=returns.path,
        region_bytes=1 << 20,
        concurrency=8,
        num_threads=1,
        holders=PartitionHolders({}),
        rank=0,
        request_timeout_s=60,
        reconnect_timeout_s=60,
        key=1,
        batch_counts=counts.handle_of(0),
    )
    try:
        yield SamplingWorker(replace(setup, **more), control, NoPeers() if peers is None else peers), ring
    finally:
        control.close()
        there.close()


def contents(worker: SamplingWorker, items: Iterable[tuple[ItemHeader, Encoded]]) -> list[Any]:
    """What items hold, whose slots are given back."""
    found: list[Any] = []
    for header, encoded in items:
        payload: Any = bytearray().join(encoded.payload_parts())
        if header.offset:
            payload = bytearray(worker._region.view(header.offset, header.nbytes))
        found.append(decode(encoded.head, payload))
        worker._drop([(header, encoded)])
    return found


class Sampling:
    """Batches that are sampled when the test says so, or fail.

    Attributes:
        begun: which were begun, in order.
    """

    def __init__(self, worker: SamplingWorker, count: int = 10) -> None:
        self._sample = worker._batches.sample
        self._ends = [asyncio.Event() for _ in range(count)]
        self._errors: dict[int, Exception] = {}
        self.begun: list[int] = []
        worker._batches.sample = self  # type: ignore[method-assign,assignment]

    async def __call__(self, epoch: int, indices: Sequence[int], run: int, graph: object = None) -> list[SampledBatch]:
        self.begun += indices
        await gather_all(map(self._until_sampled, indices))
        return await self._sample(epoch, indices, run)

    async def _until_sampled(self, index: int) -> None:
        await self._ends[index].wait()
        if index in self._errors:
            raise self._errors[index]

    def end(self, index: int, error: Exception | None = None) -> None:
        """A batch is sampled, or fails, now and whenever it is made again."""
        if error is not None:
            self._errors[index] = error
        self._ends[index].set()


ITEM = struct.Struct("<8q")


def headers_in(ring: Any) -> Iterator[ItemHeader]:
    """Those of the items that were announced since."""
    while (message := ring.try_recv()) is not None:
        with memoryview(message) as view:
            yield ItemHeader(*ITEM.unpack_from(view))
        message.release()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_batch_that_fails_while_others_are_sampled(ahead: bool) -> None:
    """The others come, also where they were begun ahead, as features on disk have it; each is named that fails."""

    async def main() -> None:
        async with open_worker() as (worker, _):
            sampling = Sampling(worker)
            upcoming = Upcoming(worker._batches, 1, 0, START.share.groups())
            if ahead:
                upcoming._window = 2 * SIZE
                upcoming.look_ahead(0)
            making = asyncio.create_task(worker._make(START, range(SIZE), upcoming))
            await turns()
            sampling.end(1, PeerLostError("server-1", "gone"))
            await turns()
            for index in (0, 2, 3):
                sampling.end(index)
            items = await asyncio.wait_for(making, 60)
            kinds = [(header.kind, header.index, header.count) for header, _ in items]
            of_failed = (ItemKind.FAILURE, 1, 1)
            assert kinds == [(ItemKind.BATCH, 0, 1), of_failed, (ItemKind.BATCH, 2, 1), (ItemKind.BATCH, 3, 1)]
            made = contents(worker, items)
            assert [each.index for each in made] == [0, 1, 2, 3]
            assert "gone" in made[1].message
            await upcoming.close()
            assert worker._region.used_bytes == 0

    asyncio.run(main())


def test_batches_that_fail_together_are_tried_again_at_once() -> None:
    """A peer that is gone is waited for by each: one after the other, they would take as many times as long."""

    async def main() -> None:
        async with open_worker() as (worker, _):
            sampling = Sampling(worker)
            upcoming = Upcoming(worker._batches, 1, 0, START.share.groups())
            making = asyncio.create_task(worker._make(START, range(SIZE), upcoming))
            await turns()
            sampling.end(2, PeerLostError("server-1", "gone"))
            await turns()
            assert sampling.begun == [*range(SIZE), *range(SIZE)]
            for index in (0, 1, 3):
                sampling.end(index, PeerLostError("server-1", "gone"))
            items = await asyncio.wait_for(making, 60)
            assert [(header.kind, header.index) for header, _ in items] == [(ItemKind.FAILURE, i) for i in range(SIZE)]

    asyncio.run(main())


@pytest.mark.parametrize("most_pairs", [0, 1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_ends_at_any_moment_leaves_no_slot(seed: int, most_pairs: int) -> None:
    """Batches under way are called off, whatever they wait for, and whichever of them fail."""

    async def main() -> None:
        draws = random.Random(seed)
        async with open_worker() as (worker, ring):
            worker._has_peers = True  # then several groups are under way
            ask_at_once(worker, most_pairs)
            sampling = Sampling(worker)
            worker._run_task = asyncio.create_task(worker._run(START))
            for index in draws.sample(range(10), draws.randrange(11)):
                sampling.end(index, PeerLostError("server-1", "gone") if draws.random() < 0.2 else None)
                await turns(draws.randrange(6))
            announced = list(headers_in(ring))
            await worker._end_run()
            announced += headers_in(ring)
            assert worker._region.used_bytes == sum(-(-h.nbytes // 4096) * 4096 for h in announced if h.offset)

    asyncio.run(main())


def ask_at_once(worker: SamplingWorker, groups: int) -> None:
    """It asks for the rows of so many groups at once, though its batches are small."""
    worker._most_pairs = lambda count: groups  # type: ignore[method-assign]


def test_groups_that_are_asked_for_at_once_are_written_in_turn() -> None:
    """Of those behind the one that is sent next nothing is written, and no more is begun than two times as many."""

    async def main() -> None:
        async with open_worker(148) as (worker, ring):
            worker._has_peers = True
            ask_at_once(worker, 2)
            sampling = Sampling(worker, 37)
            place, placed = worker._sender.place, []

            def note(slot: Any, batches: Sequence[SampledBatch], rows: Any) -> Any:
                placed.append([batch.index for batch in batches])
                return place(slot, batches, rows)

            worker._sender.place = note  # type: ignore[method-assign]
            worker._run_task = asyncio.create_task(worker._run(START_LONG))
            await turns()
            assert sampling.begun == [*range(16)]
            for index in range(8, 16):
                sampling.end(index)
            await turns()
            assert placed == []
            for index in range(8):
                sampling.end(index)
            await turns(100)
            assert placed == [[*range(at, at + 4)] for at in range(0, 16, 4)]
            assert sampling.begun == [*range(32)]
            for index in range(16, 37):
                sampling.end(index)
            await asyncio.wait_for(worker._run_task, 60)
            assert sampling.begun == [*range(37)]
            assert placed == [[*range(at, min(at + 4, 37))] for at in range(0, 37, 4)]
            announced = [(header.kind, header.index, header.count) for header in headers_in(ring)]
            assert announced == [
                *((ItemKind.BATCH, at, min(4, 37 - at)) for at in range(0, 37, 4)),
                (ItemKind.END, 37, 1),
            ]

    asyncio.run(main())


@pytest.mark.parametrize("failing", [2, 6, 9])
def test_a_batch_that_fails_of_groups_that_are_asked_for_at_once(failing: int) -> None:
    """It alone fails, whichever group it is of; the others come as they are."""

    async def main() -> None:
        async with open_worker() as (worker, _):
            expected = await worker._batches.make_in(0, range(10), 0, place_in_pool)
            worker._has_peers = True
            ask_at_once(worker, 2)
            sampling = Sampling(worker)
            for index in range(10):
                sampling.end(index, PeerLostError("server-1", "gone") if index == failing else None)
            sent = await sent_in_run(worker, START)
            made = contents(worker, sent)[:-1]
            batches = {b.index: b for each in made for b in getattr(each, "batches", [each])}
            assert sorted(batches) == [*range(10)]
            assert "gone" in batches[failing].message
            for index in range(10):
                if index != failing:
                    assert_same(tensors_of(batches[index]), tensors_of(with_rows(*expected[index])))
            assert worker._region.used_bytes == 0
            assert not worker._are_large

    asyncio.run(main())


def test_groups_that_are_asked_for_at_once_and_turn_out_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their batches come one by one, and so do those behind them, by whom nobody asks for several any more."""
    monkeypatch.setattr(sampling_worker, "most_together_bytes", lambda nbytes, count: 1)

    async def main() -> None:
        async with open_worker() as (worker, _):
            worker._has_peers = True
            worker._setup = replace(worker._setup, concurrency=2)
            ask_at_once(worker, 2)
            begin, begun = worker._batches.begin, []

            async def note(epoch: int, indices: Sequence[int], *more: Any) -> Any:
                begun.append(len(indices))
                return await begin(epoch, indices, *more)

            worker._batches.begin = note  # type: ignore[method-assign]
            sent = await sent_in_run(worker, replace(START, share=BatchShare(BatchIndices(0, 10), 2)))
            assert [header.index for header, _ in sent] == [*range(11)]
            assert begun.count(4) <= 2
            assert set(begun) <= {4, 1}
            assert [each.index for each in contents(worker, sent)[:-1]] == [*range(10)]
            assert worker._region.used_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("places", "recent_bytes", "num_asked"),
    [(12, 0, 5), (12, 1 << 20, 9), (64, 0, 9)],
    ids=["large", "large, and rows are kept", "small"],
)
def test_rows_of_two_large_groups_are_asked_for_at_once(
    places: int, recent_bytes: int, num_asked: int, tmp_path: Path
) -> None:
    """Of groups that follow each other, where memory has ``places`` for batches; later ones find rows that are kept."""
    graph = random_graph(80, 400, 5)
    config = replace(CONFIG, num_neighbors=[8, 8], batch_size=36)
    seeds = NodeSamplerInput(torch.arange(72).repeat(9), None)
    local = LocalBatches(make_dataset(graph, "in"), seeds, config)
    parts = load_partitions(write_partitions(graph, tmp_path, "random", 2, "in"), 2)
    peers = DirectPeers([PartitionService(part) for part in parts])
    expected = batches_together._expected_batch(config, make_plan(parts[0], config), [0], parts[0].stores())
    assert expected is not None

    async def main() -> None:
        memory = {"region_bytes": places * expected.nbytes, "recent_bytes": recent_bytes}
        async with open_worker(72, parts[0], peers, sampler_input=seeds, config=config, **memory) as (worker, _):
            sent = await sent_in_run(worker, StartRun(1, 0, BatchShare(BatchIndices(0, 18), 2)))
            assert [header.count for header, _ in sent] == [2] * 9 + [1]
            made = [batch for each in contents(worker, sent)[:-1] for batch in each.batches]
            assert [batch.index for batch in made] == [*range(18)]
            for batch in made:
                assert_same(tensors_of(batch), tensors_of(local.make(0, batch.index)))
            assert len(peers.asked_as("hop")) == 2 * num_asked
            assert len(peers.asked_as("rows")) == num_asked or recent_bytes
            assert worker._batches.counts.sums().batches == 18

    asyncio.run(main())


async def sent_in_run(worker: SamplingWorker, start: StartRun) -> list[tuple[ItemHeader, Encoded]]:
    """The items of a whole run, which take no way through the ring."""
    sent: list[tuple[ItemHeader, Encoded]] = []

    async def keep(header: ItemHeader, encoded: Encoded, on_announced: Callable[[], object] = lambda: None) -> None:
        sent.append((header, encoded))
        on_announced()

    worker._sender.send = keep  # type: ignore[method-assign]
    await asyncio.wait_for(worker._run(start), 60)
    return sent


def test_what_was_sampled_ahead_in_vain_goes_with_the_run() -> None:
    """Errors lead to nothing that leads to them, and what was called off has ended when a run has."""

    async def fail(index: int) -> None:
        if index == SIZE:
            raise PeerLostError("server-1", "gone")

    async def sample(epoch: int, indices: Sequence[int], run: int, graph: object = None) -> list[SampledBatch]:
        if SIZE not in indices:
            await asyncio.Event().wait()
        await gather_all(map(fail, indices))
        return []

    async def main() -> weakref.ref[Upcoming]:
        async with open_worker() as (worker, _):
            worker._batches.sample = sample  # type: ignore[method-assign]
            upcoming = Upcoming(worker._batches, 1, 0, [range(SIZE), range(SIZE, 2 * SIZE)])
            upcoming._window = 2 * SIZE
            upcoming.look_ahead(0)
            await turns()
            upcoming.finish(range(SIZE))  # called off, and not ended yet
            await upcoming.close()
            assert len(asyncio.all_tasks()) == 1
            return weakref.ref(upcoming)

    collect()
    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()


def test_what_is_sampled_ahead_is_named_in_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom it asks, it asks for its batches."""
    tracer = trace.Tracer(tmp_path, "worker 0", "host")
    monkeypatch.setattr(trace, "_tracer", tracer)
    named = []

    async def make_together(epoch: int, indices: Sequence[int], run: int) -> list[SampledBatch]:
        named.append(trace.current_batches())
        return []

    async def main() -> None:
        async with open_worker() as (worker, _):
            monkeypatch.setattr(worker._batches._maker, "make_together", make_together)
            upcoming = Upcoming(worker._batches, 1, 3, [range(2), range(2, 4)])
            upcoming._window = 1
            upcoming.look_ahead(0)
            await turns()
            upcoming.look_ahead(1)
            await turns()
            await upcoming.close()

    asyncio.run(main())
    tracer.close()
    assert named == [((1, 3, 0), (1, 3, 1)), ((1, 3, 2), (1, 3, 3))]


def test_one_that_is_stopped_before_it_is_set_up() -> None:
    """It ends without a word, as where its set-up could not be sent."""

    async def serve() -> int:
        here, there = socket.socketpair()
        control, parent = await Control.open(here), await Control.open(there)
        try:
            send_message(parent, StopWorker())
            return await sampling_worker._serve(control)
        finally:
            control.close()
            parent.close()

    assert asyncio.run(serve()) == 0
