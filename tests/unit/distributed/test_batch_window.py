"""What a reader of batches that are asked for ahead is told, and when."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed.producers.batch_producer import BatchProducer, BatchRequest
from graphlearn_dist.errors import (
    ChannelClosedError,
    DeadlineExceededError,
    PeerLostError,
    ProducerGoneError,
    SamplingWorkerError,
)
from graphlearn_dist.messages import EndOfEpoch, SampledBatch, SampledBatches, Subgraph, WorkerFailure
from graphlearn_dist.sampler.epochs.fingerprint import Settings
from graphlearn_dist.sampler.epochs.schedule import BatchIndices
from graphlearn_dist.telemetry import MadeStats
from tests.support.waiting import collect


class Awaited(Future[Any]):
    """A batch that never comes; ``is_awaited`` is set when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def result(self, timeout: float | None = None) -> Any:
        self.is_awaited.set()
        return super().result(timeout)


class NeverMade(BatchProducer):
    """Its batches never come."""

    def __init__(self, timeout_s: float, alarm: Future[None] | None) -> None:
        super().__init__(2, timeout_s, alarm)
        self.asked: list[Awaited] = []

    @property
    def input_settings(self) -> Settings:
        return {}

    @property
    def where(self) -> str:
        return "nowhere"

    def made(self) -> MadeStats:
        return MadeStats(self.where)

    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        pass

    def _ask(self, request: BatchRequest) -> Future[Any]:
        self.asked.append(Awaited())
        return self.asked[-1]

    def _place_of(self, request: BatchRequest) -> str:
        return "nobody"

    def _release(self) -> None:
        pass


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_alarm_ends_a_wait(when: str) -> None:
    alarm: Future[None] = Future()
    producer = NeverMade(60, alarm)
    producer.start(1, 0, BatchIndices(0, 5))

    def go_off() -> None:
        assert producer.asked[0].is_awaited.wait(60)
        alarm.set_exception(PeerLostError("server-0", "it is gone"))

    thread = threading.Thread(target=go_off)
    if when == "before":
        alarm.set_exception(PeerLostError("server-0", "it is gone"))
    else:
        thread.start()
    for _ in range(2):  # and every later one
        with pytest.raises(PeerLostError, match="it is gone"):
            producer.recv()
    if when == "meanwhile":
        thread.join()
        assert producer.asked[0].cancelled()


def test_a_batch_that_does_not_come_in_time() -> None:
    producer = NeverMade(0.01, None)
    producer.start(1, 0, BatchIndices(3, 5))
    with pytest.raises(DeadlineExceededError, match=r"batch 3: nothing from nobody within 0\.01 s"):
        producer.recv()
    producer.asked[0].set_result(made_batch(3))  # late, but not lost
    assert producer.recv().index == 3
    with pytest.raises(DeadlineExceededError, match=r"batch 4: nothing from nobody"):
        producer.recv()
    producer.asked[1].set_exception(DeadlineExceededError("a partition did not answer"))
    with pytest.raises(DeadlineExceededError, match="a partition did not answer"):  # that was its answer
        producer.recv()
    assert producer.recv() == EndOfEpoch(1, 0, 2)


class MadeInGroups(NeverMade):
    """Its batches come when the test says so, at most ``size`` together.

    Attributes:
        requests: what was asked for, with the answers, in order.
    """

    def __init__(self, limit: int, size: int) -> None:
        super().__init__(60, None)
        self._limit, self._size = limit, size
        self.requests: list[tuple[BatchRequest, Future[Any]]] = []
        self.granted: list[int] = []

    def _ask(self, request: BatchRequest) -> Future[Any]:
        self.requests.append((request, Future()))
        return self.requests[-1][1]

    def _group_of(self, position: int) -> Sequence[int]:
        return range(position, (position // self._size + 1) * self._size)

    def _grant(self, position: int) -> None:
        self.granted.append(position)

    def answer(self, number: int, indices: list[int]) -> None:
        """A request is answered by these batches."""
        batches = [made_batch(index) for index in indices]
        self.requests[number][1].set_result(batches[0] if len(batches) == 1 else SampledBatches(tuple(batches)))

    @property
    def asked_for(self) -> list[tuple[int, int, int]]:
        """(index, position, count) of each request."""
        return [(request.index, request.position, len(request.positions)) for request, _ in self.requests]


def made_batch(index: int) -> SampledBatch:
    nothing = Subgraph((), (), (), (), (), ())
    return SampledBatch(1, 0, index, 0, torch.tensor([index]), nothing, (), (), ())


def test_batches_that_travel_together() -> None:
    producer = MadeInGroups(limit=2, size=3)
    producer.start(1, 0, BatchIndices(10, 26, 2))  # 10, 12, ..., 24
    assert producer.asked_for == [(10, 0, 3), (16, 3, 3)]
    assert not producer.is_ready()
    producer.answer(0, [10, 12, 14])
    assert producer.is_ready()
    assert [producer.recv().index for _ in range(3)] == [10, 12, 14]
    assert producer.asked_for[2:] == [(22, 6, 2)]
    assert producer.granted == [0]  # once for all of them
    producer.answer(1, [16])  # fewer: the others are asked for at once, before what is behind them
    assert producer.recv().index == 16
    assert producer.asked_for[3:] == [(18, 4, 2)]
    assert not producer.is_ready()
    producer.requests[3][1].set_result(WorkerFailure(1, 0, 18, "worker", "sample", "ValueError", "no", ""))
    with pytest.raises(SamplingWorkerError, match="no"):
        producer.recv()
    assert producer.asked_for[4:] == [(20, 5, 1)]  # what did not fail still comes
    producer.answer(4, [20])
    producer.answer(2, [22, 24])
    assert [producer.recv().index for _ in range(3)] == [20, 22, 24]
    assert producer.recv() == EndOfEpoch(1, 0, 8)


class MadeByOwners(MadeInGroups):
    """Two make its batches, each those of some positions, at most ``size`` of these together.

    Attributes:
        read: the last positions that were noted as read.
    """

    def __init__(self, limit: int, size: int, owners: Sequence[int]) -> None:
        super().__init__(limit, size)
        self._own = [[p for p, owner in enumerate(owners) if owner == maker] for maker in (0, 1)]
        self._owners = owners
        self.read: list[int] = []

    def _group_of(self, position: int) -> Sequence[int]:
        own = self._own[self._owners[position]]
        at = own.index(position)
        return own[at : (at // self._size + 1) * self._size]

    def _note_read(self, position: int) -> None:
        self.read.append(position)

    @property
    def positions_asked_for(self) -> list[list[int]]:
        return [list(request.positions) for request, _ in self.requests]


def test_groups_that_do_not_follow_each_other() -> None:
    """The reader gets batches in order, however those lie that came together."""
    producer = MadeByOwners(2, 3, [0, 1, 1, 0, 0, 1, 1, 0, 1])
    producer.start(1, 0, BatchIndices(10, 19))
    assert producer.positions_asked_for == [[0, 3, 4], [1, 2, 5]]
    producer.answer(1, [11, 12, 15])
    assert not producer.is_ready()
    producer.answer(0, [10, 13, 14])
    assert [producer.recv().index for _ in range(2)] == [10, 11]
    assert producer.positions_asked_for[2:] == [[6, 8], [7]]
    assert [producer.recv().index for _ in range(4)] == [12, 13, 14, 15]
    assert producer.read == [4, 5]
    assert not producer.is_ready()
    producer.answer(3, [17])
    producer.answer(2, [16, 18])
    assert [producer.recv().index for _ in range(3)] == [16, 17, 18]
    assert producer.recv() == EndOfEpoch(1, 0, 9)


def test_fewer_of_a_group_that_does_not_follow_itself() -> None:
    """The rest is asked for at once, and waits for its turn among what others make; a failure takes one batch alone."""
    producer = MadeByOwners(2, 3, [0, 1, 0, 0, 1, 1])
    producer.start(1, 0, BatchIndices(0, 6))
    assert producer.positions_asked_for == [[0, 2, 3], [1, 4, 5]]
    producer.answer(0, [0])
    assert producer.recv().index == 0
    assert producer.positions_asked_for[2:] == [[2, 3]]
    producer.requests[1][1].set_result(WorkerFailure(1, 0, 1, "worker", "sample", "ValueError", "no", ""))
    with pytest.raises(SamplingWorkerError, match="no"):
        producer.recv()
    assert producer.positions_asked_for[3:] == [[4, 5]]
    producer.answer(3, [4])
    assert not producer.is_ready()
    producer.answer(2, [2, 3])
    assert [producer.recv().index for _ in range(3)] == [2, 3, 4]
    assert producer.positions_asked_for[4:] == [[5]]
    producer.answer(4, [5])
    assert producer.recv().index == 5
    assert producer.read == [0, 1, 3, 4, 5]
    assert producer.recv() == EndOfEpoch(1, 0, 6)


class MadeAtOnce(MadeByOwners):
    """Its batches come as they are asked for, any number of a group."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        owners = [self._random.randrange(2) for _ in range(self._random.randint(1, 20))]
        super().__init__(self._random.randint(0, 4), self._random.randint(1, 5), owners)

    def _ask(self, request: BatchRequest) -> Future[Any]:
        asked = super()._ask(request)
        num_made = self._random.randint(1, len(request.positions))
        self.answer(len(self.requests) - 1, list(request.positions)[:num_made])
        return asked


@pytest.mark.parametrize("seed", range(50))
def test_any_order_of_groups_is_read_in_order(seed: int) -> None:
    producer = MadeAtOnce(seed)
    count = len(producer._owners)
    producer.start(1, 0, BatchIndices(0, count))
    assert [producer.recv().index for _ in range(count)] == list(range(count))
    assert producer.recv() == EndOfEpoch(1, 0, count)
    for own in producer._own:  # of each maker, in its order
        noted = [position for position in producer.read if position in own]
        assert noted == sorted(noted)
        assert noted[-1:] == own[-1:]


def test_batches_that_come_too_late_together() -> None:
    """They are waited for again, and asked for once: none is lost."""
    producer = MadeInGroups(limit=1, size=3)
    producer._timeout_s = 0.01
    producer.start(1, 0, BatchIndices(0, 4))
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="batch 0: nothing"):
            producer.recv()
    assert producer.asked_for == [(0, 0, 3)]
    producer.answer(0, [0, 1, 2])
    assert [producer.recv().index for _ in range(3)] == [0, 1, 2]
    producer.answer(1, [3])
    assert producer.recv().index == 3
    assert producer.recv() == EndOfEpoch(1, 0, 4)


def test_who_failed_is_told_what_was_read() -> None:
    """Its next batch may wait for that, and no other request of this reader's goes there."""
    producer = MadeInGroups(limit=2, size=1)
    producer.start(1, 0, BatchIndices(0, 4))
    producer.requests[0][1].set_result(WorkerFailure(1, 0, 0, "worker", "sample", "ValueError", "no", ""))
    with pytest.raises(SamplingWorkerError, match="no"):
        producer.recv()
    producer.answer(1, [1])
    assert producer.recv().index == 1
    assert producer.granted == [0, 1]


def test_what_came_together_is_dropped_with_its_run() -> None:
    producer = MadeInGroups(limit=1, size=4)
    producer.start(1, 0, BatchIndices(0, 8))
    producer.answer(0, [0, 1, 2, 3])
    assert producer.recv().index == 0
    producer.start(2, 0, BatchIndices(6, 8))
    assert not producer.is_ready()
    producer.answer(2, [6, 7])
    assert [producer.recv().index for _ in range(2)] == [6, 7]
    producer.close()
    with pytest.raises(ChannelClosedError):
        producer.recv()


def test_an_alarm_does_not_hold_a_producer() -> None:
    alarm: Future[None] = Future()
    NeverMade(60, alarm).close()
    alarm.set_exception(PeerLostError("server-0", "it is gone"))  # nobody is there to be told


class LostOnce(MadeInGroups):
    """Its first server is lost, and another one cannot be asked at first."""

    def _recover(self, request: BatchRequest, lost: PeerLostError | ProducerGoneError) -> Any:
        error: Exception = lost
        for is_there in (False, True):
            try:
                if not is_there:
                    raise PeerLostError("server-1", "it is not there")
                return SampledBatches((made_batch(0), made_batch(1)))
            except PeerLostError as again:
                error = again  # its traceback has this frame, and so those that called it
        raise error


def test_what_came_after_a_loss_is_the_readers_alone() -> None:
    producer = LostOnce(2, 2)
    producer.start(1, 0, BatchIndices(0, 4))
    producer.requests[0][1].set_exception(PeerLostError("server-0", "it is gone"))
    collect()
    gc.disable()  # a cycle of an error and its traceback is left to the collector
    try:
        there = [weakref.ref(producer.recv()), weakref.ref(producer.recv())]
        assert [ref() for ref in there] == [None, None]
    finally:
        gc.enable()
