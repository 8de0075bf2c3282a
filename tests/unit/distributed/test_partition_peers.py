"""Exchanges with other partitions over endpoints: called off, failed, late, and begun again with who came back."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.config import RpcSettings
from graphlearn_dist.core import thread_pool, to_tensor
from graphlearn_dist.distributed.partitions.partition_peers import EndpointPeers, PartitionHolders, ServerPeers
from graphlearn_dist.distributed.partitions.partition_service import SERVICE
from graphlearn_dist.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PeerLostError,
    ProtocolError,
    UnknownIdError,
)
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.remote import remote
from tests.faults.proxy import Proxy
from tests.support.waiting import collect

DEADLINE_S = 60.0  # only ever reached by a hang
ROWS = torch.arange(40, dtype=torch.float32).view(20, 2)


class Partition:
    """A partition of 20 rows, each gathered by Python code, which may be told to wait."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        book = _C.PartitionBook.range(torch.tensor([0, 20]))
        stores = [("x", book, None, (self._gather, 8), None)]
        self.native = _C.PartitionServer(0, [], stores, thread_pool(1), 1 << 20)

    def _gather(self, rows: Any) -> torch.Tensor:
        self.begun.release()
        assert self.gate.wait(DEADLINE_S)
        return ROWS[to_tensor(rows)]

    @remote
    def query(self, head: torch.Tensor, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``PartitionService.query``, for endpoints whose engine is in Python."""
        answer, segments, _ = self.native.answer(head, payload)
        rows = b"".join(bytes(memoryview(segment)) for segment in segments)
        padded = bytearray(rows + bytes(-len(rows) % 64))
        return torch.frombuffer(bytearray(answer), dtype=torch.uint8), torch.frombuffer(padded, dtype=torch.uint8)


class Job:
    """Two partitions that a third process asks."""

    def __init__(self, stack: ExitStack, engine: str, timeout_s: float = DEADLINE_S) -> None:
        self.settings = RpcSettings(engine=engine, request_timeout_s=timeout_s)
        self.partitions = {1: Partition(), 2: Partition()}
        self.endpoints = {partition: self.serve(partition) for partition in self.partitions}
        self.asker = stack.enter_context(Endpoint("asker", 0, settings=self.settings, listen_host=None))
        stack.callback(lambda: [endpoint.close() for endpoint in self.endpoints.values()])
        stack.callback(lambda: [partition.gate.set() for partition in self.partitions.values()])

    def serve(self, partition: int, listen_port: int = 0) -> Endpoint:
        """Opens the endpoint of a partition."""
        served = self.partitions[partition]
        endpoint = Endpoint("server", partition, settings=self.settings, listen_port=listen_port, use_unix=False)
        endpoint.register("PartitionService.query", served.query)
        endpoint.answer_queries(SERVICE, served.native)
        return endpoint.open()

    @property
    def holders(self) -> PartitionHolders:
        return PartitionHolders({partition: endpoint.address for partition, endpoint in self.endpoints.items()})


@pytest.fixture(params=["native", "python"])
def engine(request: pytest.FixtureRequest) -> str:
    """What moves the frames."""
    return str(request.param)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def rows_of(ids: list[int], store: str = "x", partitions: tuple[int, ...] = (1, 2)) -> Callable[[], _C.SingleRound]:
    """Asks partitions for the rows of some ids."""
    query = _C.rows_query([store], [torch.tensor(ids)])
    return lambda: _C.SingleRound([(partition, query, [len(ids)]) for partition in partitions])


def answers_of(exchange: _C.SingleRound) -> list[torch.Tensor]:
    return [to_tensor(tensor) for (tensor,) in exchange.answers()]


def test_many_exchanges_at_once(engine: str, stack: ExitStack) -> None:
    job = Job(stack, engine)

    async def ask() -> None:
        peers = EndpointPeers(job.asker, job.holders, DEADLINE_S)
        for _ in range(2):  # the second time they are connected
            rounds = [peers.run(rows_of([i, 19 - i])) for i in range(20)]
            for i, under_way in enumerate(rounds):
                assert all(torch.equal(rows, ROWS[[i, 19 - i]]) for rows in answers_of(await under_way))
        peers.close()

    asyncio.run(ask())


def test_loops_one_after_the_other(engine: str, stack: ExitStack) -> None:
    job = Job(stack, engine)
    peers = EndpointPeers(job.asker, job.holders, DEADLINE_S)

    async def ask() -> list[torch.Tensor]:
        return answers_of(await peers.run(rows_of([3])))

    for _ in range(3):
        assert all(torch.equal(rows, ROWS[[3]]) for rows in asyncio.run(ask()))


def test_errors_of_a_holder(engine: str, stack: ExitStack) -> None:
    job = Job(stack, engine)

    async def ask() -> None:
        peers = EndpointPeers(job.asker, job.holders, DEADLINE_S)
        with pytest.raises(UnknownIdError, match="77"):
            await peers.run(rows_of([1, 77]))
        with pytest.raises(InvalidArgumentError, match="stores: expected one of"):
            await peers.run(rows_of([1], "y"))
        assert all(torch.equal(rows, ROWS[[1]]) for rows in answers_of(await peers.run(rows_of([1]))))

    asyncio.run(ask())


def test_a_holder_that_does_not_answer_in_time(engine: str, stack: ExitStack) -> None:
    job = Job(stack, engine)
    job.partitions[2].gate.clear()

    async def ask() -> None:
        peers = EndpointPeers(job.asker, job.holders, 0.5)
        with pytest.raises(DeadlineExceededError, match=r"no answer from server-2.* within 0\.5 s"):
            await peers.run(rows_of([1]))
        job.partitions[2].gate.set()
        patient = EndpointPeers(job.asker, job.holders, DEADLINE_S)
        assert all(torch.equal(rows, ROWS[[1]]) for rows in answers_of(await patient.run(rows_of([1]))))

    asyncio.run(ask())


def test_leaving_with_queries_under_way_says_nothing(engine: str, stack: ExitStack) -> None:
    """A batch is called off while it waits; the ends of what it asked are nobody's errors."""
    job = Job(stack, engine)
    for partition in job.partitions.values():
        partition.gate.clear()

    async def ask() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        peers = EndpointPeers(job.asker, job.holders, DEADLINE_S)

        async def make_batch() -> None:
            await peers.connect_all()
            under_way = [peers.run(rows_of([i])) for i in range(3)]
            for exchange in under_way:
                await exchange

        batch = asyncio.create_task(make_batch())
        for partition in job.partitions.values():
            assert await loop.run_in_executor(None, lambda gate=partition.begun: gate.acquire(timeout=DEADLINE_S))
        batch.cancel()
        await asyncio.gather(batch, return_exceptions=True)
        for partition in job.partitions.values():
            partition.gate.set()
        await loop.run_in_executor(None, job.asker.close)
        await asyncio.sleep(0)  # one turn of the loop: what the endpoint failed has arrived
        del batch
        collect()
        return complaints

    assert asyncio.run(ask()) == []


def test_who_is_not_needed_need_not_be_there(engine: str, stack: ExitStack) -> None:
    job = Job(stack, engine)
    holders = job.holders
    job.endpoints[2].close()

    async def ask() -> None:
        peers = EndpointPeers(job.asker, holders, DEADLINE_S)
        assert torch.equal(answers_of(await peers.run(rows_of([4], partitions=(1,))))[0], ROWS[[4]])
        with pytest.raises(PeerLostError):
            await peers.run(rows_of([4]))
        assert torch.equal(answers_of(await peers.run(rows_of([5], partitions=(1,))))[0], ROWS[[5]])

    asyncio.run(ask())


@pytest.mark.parametrize("when", ["before", "while it is asked"])
def test_a_holder_that_comes_back_is_asked_again(stack: ExitStack, when: str) -> None:
    job = Job(stack, "native")

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        with ServerPeers("worker", 0, job.holders, DEADLINE_S, DEADLINE_S) as peers:
            await peers.run(rows_of([1]))
            lost = job.partitions[2]
            if when == "before":
                await loop.run_in_executor(None, job.endpoints[2].close)
                under_way = peers.run(rows_of([7, 8]))
            else:
                while lost.begun.acquire(blocking=False):
                    pass
                lost.gate.clear()
                under_way = peers.run(rows_of([7, 8]))
                assert await loop.run_in_executor(None, lambda: lost.begun.acquire(timeout=DEADLINE_S))
                closing = loop.run_in_executor(None, job.endpoints[2].close)
                lost.gate.set()  # the answer may still come, or not
                await closing
            job.partitions[2] = Partition()
            job.endpoints[2] = job.serve(2)
            peers.move(job.holders.addresses)
            assert all(torch.equal(rows, ROWS[[7, 8]]) for rows in answers_of(await under_way))

    asyncio.run(ask())


def test_a_holder_that_stays_away(stack: ExitStack) -> None:
    job = Job(stack, "native")

    async def ask() -> None:
        with ServerPeers("worker", 0, job.holders, DEADLINE_S, 0.7) as peers:
            await peers.run(rows_of([1]))
            await asyncio.get_running_loop().run_in_executor(None, job.endpoints[2].close)
            with pytest.raises(PeerLostError, match=r"it was not back within 0\.7 s"):
                await peers.run(rows_of([1]))
            peers.patience_s = 1e6  # who asks again at once, as each batch of a group does, does not wait as long
            with pytest.raises(PeerLostError):
                await asyncio.wait_for(peers.run(rows_of([1])), DEADLINE_S)
            assert torch.equal(answers_of(await peers.run(rows_of([1], partitions=(1,))))[0], ROWS[[1]])

    asyncio.run(ask())


def test_a_holder_that_is_back_and_lost_again_has_its_time_again(stack: ExitStack) -> None:
    job = Job(stack, "native")
    addresses = job.holders.addresses

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        with ServerPeers("worker", 0, job.holders, DEADLINE_S, 0.3) as peers:
            await peers.run(rows_of([1]))
            await loop.run_in_executor(None, job.endpoints[2].close)
            with pytest.raises(PeerLostError):
                await peers.run(rows_of([1]))
            peers.patience_s = DEADLINE_S
            job.endpoints[2] = job.serve(2, addresses[2].port)
            assert torch.equal(answers_of(await peers.run(rows_of([2])))[1], ROWS[[2]])
            await loop.run_in_executor(None, job.endpoints[2].close)
            while peers._open_stream(2) is not None:  # its end has not come here yet
                await asyncio.sleep(0)
            missed, connect = asyncio.Event(), peers._connect

            async def connect_or_tell(partition: int) -> None:
                try:
                    await connect(partition)
                except PeerLostError:
                    missed.set()
                    raise

            peers._connect = connect_or_tell  # type: ignore[method-assign]

            async def come_back() -> None:
                await missed.wait()
                job.endpoints[2] = job.serve(2, addresses[2].port)

            async def ask_again() -> _C.SingleRound:
                return await peers.run(rows_of([3]))

            answered, _ = await asyncio.gather(ask_again(), come_back())
            assert torch.equal(answers_of(answered)[1], ROWS[[3]])

    asyncio.run(ask())


def test_noise_on_the_way_is_survived(stack: ExitStack) -> None:
    """A frame that noise has altered costs its connection; another one is made, and the same is asked again."""
    job = Job(stack, "native")
    network = Proxy()
    stack.callback(network.close)
    port = network.open(lambda: ("127.0.0.1", job.endpoints[2].address.port))
    addresses = {**job.holders.addresses, 2: replace(job.endpoints[2].address, port=port)}

    async def ask() -> None:
        with ServerPeers("worker", 0, PartitionHolders(addresses), DEADLINE_S, DEADLINE_S) as peers:
            await peers.run(rows_of([1]))
            for seed in range(12):
                network.garble(random.Random(seed))
                assert all(torch.equal(rows, ROWS[[6]]) for rows in answers_of(await peers.run(rows_of([6]))))

    asyncio.run(ask())


def test_a_holder_that_answers_what_was_not_asked(stack: ExitStack) -> None:
    """Once it may be noise; when the second connection gives the same, it is the holder."""
    job = Job(stack, "native")
    query = _C.rows_query(["x"], [torch.tensor([3])])

    async def ask() -> None:
        peers = EndpointPeers(job.asker, job.holders, DEADLINE_S)
        with pytest.raises(ProtocolError, match="server-2"):
            await peers.run(
                lambda: _C.SingleRound([(1, query, [1]), (2, query, [1, 1])])
            )  # of two tensors, it gives one
        assert torch.equal(answers_of(await peers.run(rows_of([3])))[1], ROWS[[3]])

    asyncio.run(ask())


def test_engines_of_both_kinds_in_one_job(stack: ExitStack) -> None:
    """A holder whose engine is in Python is asked by calls."""
    job = Job(stack, "python")
    asker = stack.enter_context(Endpoint("other", 0, settings=RpcSettings(engine="native"), listen_host=None))

    async def ask() -> None:
        peers = EndpointPeers(asker, job.holders, DEADLINE_S)
        for _ in range(2):
            assert all(torch.equal(rows, ROWS[[2]]) for rows in answers_of(await peers.run(rows_of([2]))))

    asyncio.run(ask())
