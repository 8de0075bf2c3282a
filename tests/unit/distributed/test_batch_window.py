"""What a reader of batches that are asked for ahead is told, and when."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from graphlearn_dist.distributed.producers.batch_producer import BatchProducer, BatchRequest
from graphlearn_dist.errors import DeadlineExceededError, PeerLostError
from graphlearn_dist.sampler.fingerprint import Settings
from graphlearn_dist.sampler.schedule import BatchIndices
from graphlearn_dist.telemetry import MadeStats


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
    assert producer.asked[0].cancelled()


def test_an_alarm_does_not_hold_a_producer() -> None:
    alarm: Future[None] = Future()
    NeverMade(60, alarm).close()
    alarm.set_exception(PeerLostError("server-0", "it is gone"))  # nobody is there to be told
