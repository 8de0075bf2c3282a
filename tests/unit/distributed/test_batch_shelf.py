"""Finished batches on a producer's shelf, as this process asks for them (and ``tests/csrc/test_serving.cpp``)."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import weakref
from collections.abc import Awaitable, Callable

import pytest

from graphlearn_dist import _C
from graphlearn_dist.distributed.workers.batch_shelf import BatchShelf
from graphlearn_dist.distributed.workers.worker_messages import ItemHeader, ItemKind
from graphlearn_dist.errors import InvalidArgumentError, PeerLostError, SamplingWorkerError
from graphlearn_dist.messages import EndOfEpoch
from graphlearn_dist.rpc.shm.arena import SendingArena
from graphlearn_dist.rpc.wire.codec import decode, encode
from graphlearn_dist.rpc.wire.encoded import Encoded, SharedRegion, release
from graphlearn_dist.sampler.epochs.schedule import BatchIndices, BatchShare
from tests.support.waiting import collect


class Worker:
    """A worker that makes texts, in a region or in its ring."""

    def __init__(self, shelf: BatchShelf, number: int = 0) -> None:
        self.feed = _C.WorkerFeed(shelf.native, number, 1 << 16, 1 << 16, 8)
        self.arena = SendingArena(1 << 16)
        self.region = SharedRegion(self.arena.path, self.arena.capacity_bytes, self.arena.nonce)
        self.feed.open(self.region.path, self.region.size, self.region.number)
        shelf.regions[self.region.number] = self.region
        self._ring = _C.ShmRing.open(self.feed.ring_path)
        self._returns = _C.ShmRing.open(self.feed.returns_path)

    def make(self, run: int, index: int, in_region: bool = False) -> None:
        encoded = encode([index, b"x" * 4096])
        header = ItemHeader(ItemKind.BATCH, run, 0, index)
        if in_region:
            offset = self.arena.put(encoded.payload_parts(), encoded.nbytes)
            assert offset
            header = ItemHeader(ItemKind.BATCH, run, 0, index, offset, encoded.nbytes, len(encoded.head))
            self._ring.send([header.pack(), encoded.head], 60)
        else:
            self._ring.send([header.pack(), *encoded.write_parts()], 60)

    def returned(self) -> list[int]:
        return _C.take_returned(self._returns)

    def close(self) -> None:
        self.feed.close()
        self.arena.close()


def number_of(encoded: Encoded) -> int:
    payload = bytearray().join(encoded.payload_parts())
    return int(decode(encoded.head, payload or None)[0])


def run(program: Callable[[BatchShelf], Awaitable[None]], num_workers: int = 1) -> None:
    async def main() -> None:
        shelf = BatchShelf("loader 1", num_workers)
        shelf.open()
        try:
            await program(shelf)
        finally:
            shelf.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def begin(shelf: BatchShelf, run: int = 1, share: BatchShare | None = None, credit: int | None = None) -> None:
    shelf.begin_run(share or BatchShare(BatchIndices(0, 10)), EndOfEpoch(run, 0, 10), credit)


@pytest.mark.parametrize("in_region", [False, True])
def test_batches_asked_for_in_any_order(in_region: bool) -> None:
    async def program(shelf: BatchShelf) -> None:
        worker = Worker(shelf)
        begin(shelf, share=BatchShare(BatchIndices.of((0, 2, 3, 4))))
        asked = {index: asyncio.create_task(shelf.fetch(1, index)) for index in (4, 0, 2)}
        for index in (0, 2, 3, 4):
            worker.make(1, index, in_region)
        for index, task in asked.items():
            encoded = await task
            assert number_of(encoded) == index
            assert (encoded.place is not None) == in_region
            assert encoded.place is None or encoded.place[0] is worker.region
            release(encoded)
        assert number_of(await shelf.fetch(1, 3)) == 3
        end = await shelf.fetch(1, 10)
        assert decode(end.head, None) == EndOfEpoch(1, 0, 10)
        assert shelf.native.announced(0) == 4
        worker.close()

    run(program)


def test_who_is_called_off() -> None:
    """Its batch is there for who asks again; one that came at that moment is given back."""

    async def program(shelf: BatchShelf) -> None:
        worker = Worker(shelf)
        begin(shelf)
        early, late = asyncio.create_task(shelf.fetch(1, 1)), asyncio.create_task(shelf.fetch(1, 0))
        await asyncio.sleep(0)
        again = asyncio.create_task(shelf.fetch(1, 1))
        with pytest.raises(InvalidArgumentError, match="index: batch 1 was asked for again"):
            await early
        early = again
        early.cancel()
        await asyncio.gather(early, return_exceptions=True)
        worker.make(1, 0, True)
        worker.feed.drain()  # and the loop does not know of it
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        worker.make(1, 1)
        assert number_of(await shelf.fetch(1, 1)) == 1
        for index in range(2, 9):  # small slots go back together
            worker.make(1, index, True)
            release(await shelf.fetch(1, index))
        assert len(worker.returned()) >= 1
        worker.close()

    run(program)


def test_words_of_errors() -> None:
    async def program(shelf: BatchShelf) -> None:
        workers = [Worker(shelf, number) for number in range(2)]
        begin(shelf)
        waiting = [asyncio.create_task(shelf.fetch(1, index)) for index in range(4)]
        await asyncio.sleep(0)
        shelf.fail(1, SamplingWorkerError("worker 1 died"))
        for task in waiting[1::2]:
            with pytest.raises(SamplingWorkerError, match=r"^worker 1 died$") as caught:
                await task
            assert caught.value.__cause__ is None
        begin(shelf, 2)
        for task in waiting[::2]:
            with pytest.raises(SamplingWorkerError, match=r"^loader 1: run 2 has begun$"):
                await task
        with pytest.raises(InvalidArgumentError, match="run: expected the current run 2, got 1"):
            await shelf.fetch(1, 0)
        last = asyncio.create_task(shelf.fetch(2, 0))
        await asyncio.sleep(0)
        shelf.end(PeerLostError("server-0", "it was shut down"))
        with pytest.raises(PeerLostError, match="server-0: it was shut down"):
            await last
        for worker in workers:
            worker.close()

    run(program, 2)


@pytest.mark.parametrize("seed", range(30))
def test_shares_are_those_of_the_schedule(seed: int) -> None:
    draws = random.Random(seed)
    single = tuple(sorted(draws.sample(range(20), draws.randrange(4))))
    start = single[-1] + 1 + draws.randrange(3) if single else draws.randrange(3)
    indices = BatchIndices(start, start + draws.randrange(40), 1 + draws.randrange(3), single)
    num_workers, step = 1 + draws.randrange(3), 1 + draws.randrange(3)
    share = BatchShare(indices, 1 + draws.randrange(4), draws.randrange(step), step, draws.randrange(12))

    async def program(shelf: BatchShelf) -> None:
        shelf.begin_run(share, EndOfEpoch(1, 0, 100), None)
        found = {}
        for worker in range(num_workers):
            shelf.fail(worker, SamplingWorkerError(str(worker)))
        for index in range(70):
            with pytest.raises((SamplingWorkerError, InvalidArgumentError)) as caught:
                await shelf.fetch(1, index)
            if isinstance(caught.value, SamplingWorkerError):
                found[index] = int(str(caught.value))
            else:
                assert str(caught.value) == f"index: expected one of {share}, got {index}"
        assert found == {index: share.group_of(index) % num_workers for index in share}

    run(program, num_workers)


def test_what_waits_holds_nothing_when_it_has_failed() -> None:
    """An error leads to nothing that leads to it."""

    async def program(shelf: BatchShelf) -> None:
        begin(shelf)

        class Memory:
            """What whoever waits has."""

        async def wait(memory: Memory) -> None:
            await shelf.fetch(1, 0)

        async def fail() -> weakref.ref[Memory]:
            memory = Memory()
            asyncio.get_running_loop().call_soon(shelf.fail, 0, SamplingWorkerError("died"))
            try:
                await wait(memory)
            except SamplingWorkerError:
                return weakref.ref(memory)
            raise AssertionError("it should have failed")

        collect()
        gc.disable()
        try:
            kept = await fail()
            await asyncio.sleep(0)  # the loop had the error in its hands
            assert kept() is None
        finally:
            gc.enable()

    run(program)


def test_the_header_is_as_the_core_reads_it() -> None:
    packed = ItemHeader(ItemKind.FAILURE, 1, 2, 3, 4, 5, 6, 7).pack()
    assert struct.unpack("<8q", packed) == (3, 1, 2, 3, 4, 5, 6, 7)
