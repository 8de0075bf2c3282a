"""Payloads that are used where their maker wrote them: lent, given back, and never handed out twice."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.peers.identity import PeerAddress
from graphlearn_dist.rpc.shm.arena import SendingArena
from graphlearn_dist.rpc.wire.codec import encode
from graphlearn_dist.rpc.wire.encoded import Encoded, SharedRegion
from tests.support.processes import start
from tests.support.waiting import collect, wait_until

pytestmark = pytest.mark.usefixtures("engines")

DEADLINE_S = 60.0
COUNT = 50_000


class Maker:
    """Stands for a sampling worker: owns a region, writes tensors into it, notes which slots come back."""

    def __init__(self, capacity_bytes: int = 8 << 20) -> None:
        self._lock = threading.Lock()  # of the arena: the endpoint's threads make answers, its loop releases them
        self.arena = SendingArena(capacity_bytes)
        self.region = SharedRegion(self.arena.path, self.arena.capacity_bytes, self.arena.nonce)
        self.offsets: list[int] = []
        self.released: list[int] = []

    def make(self, value: int) -> Encoded:
        """An answer that lies in the region."""
        encoded = encode({"values": torch.full((COUNT,), value)})
        with self._lock:
            offset = self.arena.put(encoded.payload_parts(), encoded.nbytes)
        assert offset is not None
        self.offsets.append(offset)
        view = self.arena.view(offset, encoded.nbytes)
        return Encoded(encoded.head, (view,), encoded.nbytes, lambda: self.release(offset), (self.region, offset))

    def release(self, offset: int) -> None:
        with self._lock:
            self.released.append(offset)
            self.arena.release(offset)


@pytest.fixture
def maker() -> Maker:
    return Maker()


@pytest.fixture
def server(maker: Maker) -> Iterator[Endpoint]:
    with Endpoint("server", 0) as endpoint:
        endpoint.register("make", maker.make)
        endpoint.register("echo", lambda x: x)
        yield endpoint


def ask(client: Endpoint, server: Endpoint, value: int) -> torch.Tensor:
    values: torch.Tensor = client.call(server.address, "make", value, timeout_s=DEADLINE_S)["values"]
    return values


def test_lent_values_are_right_and_go_back_when_the_tensor_dies(server: Endpoint, maker: Maker) -> None:
    with Endpoint("client", 0) as client:
        assert (ask(client, server, 1) == 1).all()  # inline: the region is offered with it
        wait_until(lambda: len(maker.released) == 1)
        values = ask(client, server, 2)
        assert (values == 2).all()
        assert client.stats().lent_payloads_received == server.stats().lent_payloads_sent == 1
        client.call(server.address, "echo", 0)
        assert len(maker.released) == 1, "still in use here"
        del values
        collect()
        wait_until(lambda: len(maker.released) == 2)


def test_slots_that_came_back_go_with_the_next_request(server: Endpoint, maker: Maker) -> None:
    with Endpoint("client", 0) as client:
        ask(client, server, 1)
        kept = [ask(client, server, value) for value in range(5)]
        assert len(maker.released) == 1
        kept.clear()
        collect()
        client.call(server.address, "echo", 0)
        wait_until(lambda: len(maker.released) == 6)


def test_a_region_may_close_behind_its_last_answer(server: Endpoint) -> None:
    """The thread that waits for the answer has it, while the loop hears that the region is gone."""
    makers: list[Maker] = []

    async def make_last(value: int) -> Encoded:
        asyncio.get_running_loop().call_soon(makers[-1].region.close)  # when this answer has been sent
        return makers[-1].make(value)

    server.register("make first", lambda value: makers[-1].make(value))
    server.register("make last", make_last)
    with Endpoint("client", 0) as client:
        for value in range(30):
            makers.append(Maker(2 << 20))
            client.call(server.address, "make first", value, timeout_s=DEADLINE_S)
            values = client.call(server.address, "make last", value, timeout_s=DEADLINE_S)["values"]
            assert (values == value).all()
        assert client.stats().lent_payloads_received == 30


def test_no_python_code_runs_where_a_tensor_dies(server: Endpoint, maker: Maker) -> None:
    """A Ctrl-C that arrives in such code would be printed, and forgotten."""
    called: list[str] = []

    def on_event(frame: Any, event: str, argument: Any) -> None:
        called.append(f"{event} {frame.f_code.co_name}")

    with Endpoint("client", 0) as client:
        ask(client, server, 1)
        values = [ask(client, server, 2)]
        assert client.stats().lent_payloads_received == 1
        sys.setprofile(on_event)
        try:
            values.clear()
        finally:
            sys.setprofile(None)
        wait_until(lambda: len(maker.released) == 2)
    names = {call.split()[1] for call in called}
    assert names <= {"test_no_python_code_runs_where_a_tensor_dies"}, called


def test_a_view_keeps_the_slot(server: Endpoint, maker: Maker) -> None:
    with Endpoint("client", 0) as client:
        ask(client, server, 1)
        part = ask(client, server, 7)[10:20]
        for value in range(8, 20):
            assert (ask(client, server, value) == value).all()
        assert part.tolist() == [7] * 10


def test_kept_answers_stay_as_they_are(server: Endpoint, maker: Maker) -> None:
    with Endpoint("client", 0) as client:
        kept = [ask(client, server, value) for value in range(15)]
        assert [int(values[0]) for values in kept] == list(range(15))
        assert len(set(maker.offsets) - set(maker.released)) >= 13


def test_borrowed_memory_is_the_borrowers_own(server: Endpoint, maker: Maker) -> None:
    """Writing in place must work as on any tensor (read-only pages would end the process)."""
    with Endpoint("client", 0) as client:
        ask(client, server, 1)
        values = ask(client, server, 2)
        values.add_(40)
        assert (values == 42).all()


def test_slots_of_a_lost_borrower_are_never_used_again(server: Endpoint, maker: Maker) -> None:
    client = Endpoint("client", 0).open()
    ask(client, server, 1)
    wait_until(lambda: len(maker.released) == 1)
    values = ask(client, server, 2)
    given_back = maker.released.count(maker.offsets[1])
    client.close()  # the tensor lives on
    with Endpoint("client", 1) as other:
        for value in range(3, 20):
            assert (ask(other, server, value) == value).all()
    assert (values == 2).all()
    assert maker.offsets[1] not in maker.offsets[2:]
    assert maker.released.count(maker.offsets[1]) == given_back


def test_a_closed_region_stays_readable_where_it_is_borrowed(server: Endpoint, maker: Maker) -> None:
    with Endpoint("client", 0) as client:
        ask(client, server, 1)
        values = ask(client, server, 2)
        server.loop.call_soon_threadsafe(maker.region.close)
        client.call(server.address, "echo", 0)
        assert (values == 2).all()
        assert (ask(client, server, 3) == 3).all()
        assert server.stats().lent_payloads_sent == 1, "nothing is lent from a closed region"


def test_over_tcp_nothing_is_lent(maker: Maker) -> None:
    with Endpoint("server", 0, use_unix=False) as server, Endpoint("client", 0, use_unix=False) as client:
        server.register("make", maker.make)
        for value in range(4):
            assert (ask(client, server, value) == value).all()
        assert server.stats().lent_payloads_sent == 0
        wait_until(lambda: len(maker.released) == 4)


def test_a_region_that_cannot_be_opened_means_copies(maker: Maker) -> None:
    maker.region = SharedRegion("/proc/1/fd/999999", maker.arena.capacity_bytes, maker.arena.nonce)
    with Endpoint("server", 0, settings=RpcSettings()) as server, Endpoint("client", 0) as client:
        server.register("make", maker.make)
        for value in range(4):
            assert (ask(client, server, value) == value).all()
        assert server.stats().lent_payloads_sent == 0
        wait_until(lambda: len(maker.released) == 4)


def test_a_cancelled_request_gives_its_slot_back(server: Endpoint, maker: Maker) -> None:
    settings = replace(RpcSettings(), max_inflight=4)
    with Endpoint("client", 0, settings=settings) as client:
        ask(client, server, 1)
        futures = [client.request(server.address, "make", value) for value in range(12)]
        while futures:  # one that is answered already holds what was lent
            futures.pop().cancel()
        client.call(server.address, "echo", 0)
        wait_until(lambda: len(maker.released) == len(maker.offsets))


def borrow_and_wait(host: str, port: int, unix: str, boot_id: str) -> None:
    """Keeps what it borrowed until it is killed."""
    client = Endpoint("client", 7).open()
    address = PeerAddress(host, port, unix, boot_id)
    client.call(address, "make", 1)
    kept = [client.call(address, "make", value) for value in (2, 3, 4)]
    client.call(address, "has", len(kept))
    threading.Event().wait(DEADLINE_S)


def test_slots_of_a_dead_borrower_come_back(server: Endpoint, maker: Maker) -> None:
    borrowed = threading.Event()
    server.register("has", lambda count: borrowed.set())
    address = server.address
    where = {"host": address.host, "port": address.port, "unix": address.unix, "boot_id": address.boot_id}
    with start("tests.unit.rpc.test_rpc_lending.borrow_and_wait", **where) as process:
        assert borrowed.wait(DEADLINE_S)
        assert server.stats().lent_payloads_sent == 3
        assert len(maker.released) == 1
        process.kill()
        wait_until(lambda: len(maker.released) == 4)
