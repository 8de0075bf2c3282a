"""Many clients of one server: they join, leave, crash, come back, do not read; nobody loses by it, nothing stays."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    DistNeighborLoader,
    DistRole,
    DistServer,
    RemoteDistSamplingWorkerOptions,
    init_client,
    rendezvous_store,
    rpc,
    shutdown_client,
)
from graphlearn_dist.distributed.dist_options import ProducerRequest
from graphlearn_dist.distributed.producers.remote_producer import RemoteProducer
from graphlearn_dist.errors import PeerLostError, RegistryError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.engine.threads import post
from graphlearn_dist.rpc.wire.codec import encode
from graphlearn_dist.sampler.base import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.utils.units import parse_size
from tests.support.jobs import NUM_NODES, Job, load, make_partitions, running_servers, same_batches, workers_of
from tests.support.memory import private_bytes
from tests.support.processes import start

pytestmark = pytest.mark.usefixtures("over_unix_sockets")

HERE = "tests.distributed.test_sessions"
DEADLINE_S = 60.0  # far above what anything here takes; reached by a hang alone
SEEDS = torch.arange(NUM_NODES)
BATCH_SIZE = 4
NUM_FEATURES = 3000  # a batch of some 500 KB
MIB = 1 << 20
# Threads that start when they are first needed, and stay: those that answer, and the loop's own.
POOLED_THREADS = 16 + min(32, (os.cpu_count() or 1) + 4)
BUDGET = 320 * MIB
REQUEST = ProducerRequest(num_workers=1, concurrency=1, num_threads=1, buffer_bytes=1 << 30, request_timeout_s=60.0)
CONFIG = SamplingConfig(
    SamplingType.NODE,
    num_neighbors=[3, 2],
    batch_size=BATCH_SIZE,
    shuffle=True,
    drop_last=False,
    with_edge=False,
    collect_features=True,
    with_neg=False,
    with_weight=False,
    edge_dir="in",
    seed=1,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1, num_features=NUM_FEATURES)


@pytest.fixture(scope="module")
def job(whole: Path) -> Iterator[Job]:
    """One server for all tests, with a small budget."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLD_MEMORY_BUDGET", str(BUDGET))
        with running_servers(whole) as job:
            with job.client(), make_loader() as loader:  # what the first one brings about stays
                next(iter(loader))
            asker = Client(job, 0)  # by a unix socket: the arena that answers of Python pass through stays, too
            for future in asker.open_producer():
                future.result(DEADLINE_S)
            asker.leave()
            yield job
            assert "Traceback" not in job.servers[0].output()


def make_loader(
    seeds: torch.Tensor = SEEDS, *, shuffle: bool = True, shard: tuple[int, int] = (0, 1), **options: Any
) -> DistNeighborLoader:
    worker_options = RemoteDistSamplingWorkerOptions(server_rank=0, rpc_timeout=DEADLINE_S, **options)
    return DistNeighborLoader(
        None, [3, 2], seeds, BATCH_SIZE, shuffle, edge_dir="in", collect_features=True, random_seed=1,
        worker_options=worker_options, shard=shard,
    )  # fmt: skip


@pytest.fixture(scope="module")
def epochs(whole: Path) -> Callable[[int], list[Any]]:
    """An epoch as it is made in this process."""
    loader = NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=BATCH_SIZE, shuffle=True, seed=1)
    return lambda number: [loader.batch(number, index) for index in range(len(loader))]


class Client:
    """A client with an endpoint of its own, in this process like all the others."""

    def __init__(self, job: Job, rank: int) -> None:
        self.endpoint = Endpoint("client", rank, name=f"client-{rank}", use_unix=rank % 2 == 0).open()
        self.endpoint.join("127.0.0.1", job.port, timeout_s=DEADLINE_S)

    def ask(self, method: Any, *args: Any) -> Any:
        return self.endpoint.call(("server", 0), method.__qualname__, *args, timeout_s=DEADLINE_S)

    def open_producer(
        self, config: SamplingConfig = CONFIG, num_ahead: int = 4, seeds: torch.Tensor = SEEDS
    ) -> list[Any]:
        """Begins an epoch, and asks for its first batches."""
        producer = self.ask(DistServer.open_producer, NodeSamplerInput(seeds), config, REQUEST).producer_id
        self.ask(DistServer.start_new_epoch_sampling, producer, 0, 1)
        return [
            self.endpoint.request(("server", 0), DistServer.fetch_batch.__qualname__, producer, 1, index)
            for index in range(num_ahead)
        ]

    def leave(self) -> None:
        """Says goodbye, and closes nothing that it holds."""
        self.ask(DistServer.client_done)
        self.endpoint.leave()
        self.endpoint.close()


def cut(endpoint: Endpoint) -> None:
    """Breaks every connection of an endpoint, before anything else is asked over them."""
    done = threading.Event()

    def close_all() -> None:
        for connection in list(endpoint._links.connections):
            connection.close("cut by a test")
        done.set()

    assert post(endpoint.loop, close_all)
    assert done.wait(DEADLINE_S)


# --- what a server uses --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """What a server's clients cost it: processes, descriptors, and mappings of shared memory."""

    workers: int
    descriptors: int
    regions: int

    def within(self, other: Usage) -> bool:
        """Whether nothing of it is more."""
        return self.workers <= other.workers and self.descriptors <= other.descriptors and self.regions <= other.regions


def usage(pid: int) -> Usage:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return Usage(len(workers_of(pid)), len(os.listdir(f"/proc/{pid}/fd")), maps.count("/memfd:gld"))


def idle_usage(job: Job) -> Usage:
    """What the server uses when nobody is there; the last client may still be on its way out."""
    pid, found = job.servers[0].pid, None
    while found != (found := usage(pid)) or found.workers:
        time.sleep(0.3)
    return found


def num_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(job: Job, expected: Usage) -> Usage:
    """What the server uses, as soon as that is no more than expected: it has no way of saying so itself."""
    pid, deadline = job.servers[0].pid, time.monotonic() + DEADLINE_S
    while not (found := usage(pid)).within(expected) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def shared_bytes(job: Job) -> int:
    """Shared memory that the server and its workers have taken from the system."""
    server = job.servers[0].pid
    taken = {}
    for entry in itertools.chain.from_iterable(
        Path(f"/proc/{pid}/fd").iterdir() for pid in (server, *workers_of(server))
    ):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(entry).startswith("/memfd:gld"):
                status = entry.stat()
                taken[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(taken.values())


# --- leases --------------------------------------------------------------------------------------------------------


def test_a_connection_that_comes_back(job: Job, epochs: Callable[[int], list[Any]]) -> None:
    """The loader goes on with the workers that it has."""
    before = idle_usage(job)
    with job.client():
        with make_loader() as loader:
            workers = workers_of(job.servers[0].pid)
            for number in range(2):
                batches = iter(loader)
                seen = list(itertools.islice(batches, 3))
                cut(rpc.get_endpoint())
                same_batches([*seen, *batches], epochs(number))
                assert workers_of(job.servers[0].pid) == workers
    assert settled(job, before).within(before)


def train(port: int) -> list[int]:
    """Says after three batches that it is ready; ids of the nodes of the epoch's batches."""
    init_client(1, 1, 0, "127.0.0.1", port, is_dynamic=True, connect_timeout_s=DEADLINE_S)
    with make_loader() as loader:
        batches = iter(loader)
        seen = list(itertools.islice(batches, 3))
        print("ready", flush=True)
        input()
        seen += batches
    shutdown_client()
    return [node for batch in seen for node in batch.n_id.tolist()]


@pytest.mark.thorough
def test_clients_that_do_not_come_back(job: Job, epochs: Callable[[int], list[Any]]) -> None:
    """One freezes until its lease is over, and then has its batches all the same; one leaves and closes nothing; and
    one is gone without a word."""
    pid = job.servers[0].pid
    before, threads = idle_usage(job), num_threads(pid)
    with start(f"{HERE}.train", port=job.port) as frozen:
        assert frozen.readline() == "ready"
        frozen.freeze()
        leaving, crashing = Client(job, 1), Client(job, 2)
        for client in (leaving, crashing):
            for future in client.open_producer():
                future.result(DEADLINE_S)
        assert usage(pid).workers == before.workers + 3
        leaving.leave()
        crashing.endpoint.close()
        del future
        assert settled(job, before).within(before)
        assert num_threads(pid) <= threads + POOLED_THREADS
        frozen.send_signal(signal.SIGCONT)
        frozen.tell()
        expected = [node for batch in epochs(0) for node in batch.n_id.tolist()]
        assert frozen.wait(DEADLINE_S) == expected
    assert settled(job, before).within(before)


def test_an_answer_that_is_lost(job: Job, epochs: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader was opened when its connection broke: the server does not keep what nobody knows of."""
    before, open_it = idle_usage(job), RemoteProducer._open
    lost: list[Any] = []

    def open_and_lose(self: RemoteProducer, rank: int) -> Future[Any]:
        future = open_it(self, rank)
        if lost:
            return future
        lost.append(future.result(DEADLINE_S))
        broken: Future[Any] = Future()
        broken.set_exception(PeerLostError("server 0", "cut by a test"))
        return broken

    monkeypatch.setattr(RemoteProducer, "_open", open_and_lose)
    with job.client(), make_loader() as loader, make_loader() as other:
        assert len(lost) == 1
        assert usage(job.servers[0].pid).workers == before.workers + 2
        same_batches(loader, epochs(0))
        same_batches(other, epochs(0))
    assert settled(job, before).within(before)


def test_an_answer_that_nobody_waits_for(
    job: Job, epochs: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives up opening a loader closes what the server had opened for it, and stays."""
    before, open_it = idle_usage(job), RemoteProducer._open
    lost: list[Future[Any]] = []

    def open_and_lose(self: RemoteProducer, rank: int) -> Future[Any]:
        lost.append(open_it(self, rank))
        lost[-1].result(DEADLINE_S)
        cut(rpc.get_endpoint())  # and so is what it says on giving up, at first
        broken: Future[Any] = Future()
        broken.set_exception(PeerLostError("server 0", "cut by a test"))
        return broken

    with job.client(), make_loader() as loader:
        held = usage(job.servers[0].pid)
        with monkeypatch.context() as patch:
            patch.setattr(RemoteProducer, "_open", open_and_lose)
            with pytest.raises(PeerLostError, match=r"it was not back within reconnect_timeout=0 s"):
                make_loader(reconnect_timeout=0)
        same_batches(loader, epochs(0))  # and is connected, so that no lease expires
        assert len(lost) == 1
        assert settled(job, held).within(held)
    assert settled(job, before).within(before)


# --- two jobs ---------------------------------------------------------------------------------------------------------


def train_elsewhere(port: int, rank: int) -> list[Any]:
    """A trainer of a second job of two, with ranks that the first has, too; the others of its job, and its nodes."""
    init_client(1, 2, rank, "127.0.0.1", port, client_group_name="other", is_dynamic=True, connect_timeout_s=DEADLINE_S)
    store = rendezvous_store(DEADLINE_S)
    store.set(f"rank-{rank}", "")
    store.wait(["rank-0", "rank-1"])
    others = rpc.all_gather(rank, DEADLINE_S)
    with make_loader(shard=(rank, 2)) as loader:
        seen = [node for batch in loader for node in batch.n_id[: batch.batch_size].tolist()]
    clients = rpc.get_rpc_worker_names()[DistRole.CLIENT]
    rpc.barrier(DEADLINE_S)
    if rank == 1:
        with pytest.raises(RegistryError, match=r"rank 0 of client:other is taken: other_0 \(client:other 0, pid"):
            Endpoint("client:other", 0, name="late").open().join("127.0.0.1", port, timeout_s=DEADLINE_S)
    rpc.barrier(DEADLINE_S)
    shutdown_client()
    return [others, clients, seen]


def test_a_second_job(job: Job, epochs: Callable[[int], list[Any]]) -> None:
    """It counts its own trainers; each of the two jobs has all of its batches."""
    before = idle_usage(job)
    with job.client(), make_loader() as loader:
        batches = iter(loader)
        seen = list(itertools.islice(batches, 2))
        with contextlib.ExitStack() as stack:
            trainers = [
                stack.enter_context(start(f"{HERE}.train_elsewhere", port=job.port, rank=rank)) for rank in range(2)
            ]
            told = [trainer.wait(DEADLINE_S) for trainer in trainers]
        same_batches([*seen, *batches], epochs(0))
    for others, clients, _ in told:
        assert others == {"other_0": 0, "other_1": 1}
        assert set(clients) == {"_default_client_0", "other_0", "other_1"}
    assert sorted(told[0][2] + told[1][2]) == SEEDS.tolist()
    assert settled(job, before).within(before)


# --- many at once --------------------------------------------------------------------------------------------------


def visit(job: Job, rank: int) -> None:
    """One of many: every fifth has batches made, some look rows up, and they leave in all ways."""
    client = Client(job, rank)
    rows = client.ask(DistServer.get_node_feature, None, torch.tensor([rank, 1]))
    assert rows[:, 0].tolist() == [rank, 1]
    if rank % 5 == 0:
        futures = client.open_producer()
        for index, future in enumerate(futures[: rank // 10]):
            assert future.result(DEADLINE_S).index == index
    if rank % 3 == 0:
        cut(client.endpoint)
    if rank % 2 == 0:
        client.endpoint.close()
    else:
        client.leave()


def test_fifty_clients_come_and_go(job: Job, epochs: Callable[[int], list[Any]]) -> None:
    """Meanwhile another one has its epochs, and afterwards the server is what it was."""
    pid = job.servers[0].pid
    with job.client(), make_loader() as loader:
        same_batches(loader, epochs(0))
        before, rss, threads = usage(pid), rss_bytes(pid), num_threads(pid)
        with ThreadPoolExecutor(8) as pool:
            visits = [pool.submit(visit, job, rank) for rank in range(1, 51)]
            number = 0
            while number < 3 or not all(visit.done() for visit in visits):
                number += 1
                same_batches(loader, epochs(number))
        for done in visits:
            done.result()
        assert settled(job, before).within(before)
        same_batches(loader, epochs(number + 1))
        assert num_threads(pid) <= threads + POOLED_THREADS
        assert rss_bytes(pid) < rss + 64 * MIB


LONG = SEEDS.repeat(20_000)  # an input of 18 MiB


@pytest.mark.thorough
def test_rounds_of_clients(job: Job) -> None:
    """What a server uses after two rounds of visitors it uses after any number: what they held does not pile up."""
    pid = job.servers[0].pid
    before = num_threads(pid)

    def stay(rank: int) -> None:
        client = Client(job, rank)
        for future in client.open_producer(seeds=LONG)[: rank % 4]:
            future.result(DEADLINE_S)
        if rank % 2:
            client.leave()
        else:
            client.endpoint.close()

    used, shared, private = [], [], []
    for number in range(6):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(stay, range(1 + 4 * number, 5 + 4 * number)))
        used.append(idle_usage(job))
        shared.append(shared_bytes(job))
        private.append(private_bytes(pid))
    assert used[-1].within(used[1])
    assert shared[-1] <= shared[1]
    # 16 clients with 18 MiB each came since.
    assert private[-1] < private[1] + 32 * MIB, private
    assert num_threads(pid) <= before + POOLED_THREADS


def test_clients_that_do_not_read(job: Job, epochs: Callable[[int], list[Any]]) -> None:
    """32 of them stay within the budget, and another one has its epochs; a batch too large for a share says so."""
    before, private = idle_usage(job), private_bytes(job.servers[0].pid)
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(8) as pool:
            clients = list(pool.map(lambda rank: Client(job, rank), range(1, 33)))
            for client in clients:
                stack.callback(client.leave)
            asked = list(itertools.chain.from_iterable(pool.map(Client.open_producer, clients)))
        kept = [future.result(DEADLINE_S) for future in asked]
        with job.client(), make_loader() as loader:
            for number in range(2):
                same_batches(loader, epochs(number))
        # How often a slot was free again before the next batch was placed, and how many pages were thus touched, is
        # chance: about a MiB for each client.
        assert 16 * MIB < shared_bytes(job) < BUDGET
        assert private_bytes(job.servers[0].pid) < private + 64 * MIB
        (answer,) = clients[0].open_producer(replace(CONFIG, batch_size=NUM_NODES), num_ahead=1)
        failure = answer.result(DEADLINE_S)
        assert failure.type_name == "MessageTooLargeError"
        assert "memory_budget" in failure.message
    assert all(batch.index < 4 for batch in kept)
    del kept, asked
    assert settled(job, before).within(before)


# --- one that reads slowly -----------------------------------------------------------------------------------------

# Every third batch is large: 20 nodes or so, where the others have a node and its few neighbors.
UNEVEN = torch.cat([torch.full((2 * BATCH_SIZE,), 7), torch.arange(0, 60, 15)]).repeat(10)
LARGE, SMALL = 350_000, 110_000  # bytes of such batches; as many as they have, or a few more


def unread_bytes(loader: DistNeighborLoader) -> list[int]:
    """Bytes of the batches that have come and were not read."""
    producer = loader._producer
    return [encode(future.result()).nbytes for _, future in producer._under_way.values() if future.done()]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_comes_ahead_of_a_slow_reader_is_bounded_in_bytes(job: Job, whole: Path, num_workers: int) -> None:
    """Many small batches or few large ones; at least one, also of those that are larger than all that may come."""
    local = list(NeighborLoader(load(whole), [3, 2], UNEVEN, batch_size=BATCH_SIZE, seed=1))
    with job.client():
        ahead = []
        for limit, num_fit in ((1, 1), (LARGE + SMALL, 2), ("1GB", 24)):
            with make_loader(
                UNEVEN, shuffle=False, num_workers=num_workers, prefetch_size=24, prefetch_bytes=limit
            ) as loader:
                batches, seen, most = iter(loader), [], 0
                for batch in batches:
                    seen.append(batch)
                    under_way = [future for _, future in loader._producer._under_way.values()]
                    # These come in any case; behind the third, a large one, there are two small ones.
                    come = num_fit if len(seen) == 3 or limit == "1GB" else 1
                    for future in under_way[:come]:
                        assert future.exception(DEADLINE_S) is None
                    waiting = unread_bytes(loader)
                    assert len(waiting) <= 1 or sum(waiting) <= parse_size(limit)
                    most = max(most, len(waiting))
                same_batches(seen, local)
                ahead.append(most)
    assert ahead[0] == 1
    assert 1 < ahead[1] < 24
    assert ahead[2] == 24
