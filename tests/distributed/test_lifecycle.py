"""Loaders, sessions and servers over their lives: left half-way, begun again, side by side, closed twice."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    DistNeighborLoader,
    DistServer,
    RemoteDistSamplingWorkerOptions,
    init_client,
    request_server,
    rpc,
    shutdown_client,
)
from graphlearn_dist.errors import ChannelClosedError, InvalidArgumentError, NotInitializedError
from graphlearn_dist.loader import NeighborLoader
from tests.support.jobs import (
    NUM_NODES,
    Job,
    children,
    load,
    make_partitions,
    running_servers,
    same_batches,
    shared_memory_names,
    wait_ended,
    workers_of,
)
from tests.support.processes import start
from tests.support.waiting import collect, wait_until

HERE = "tests.distributed.test_lifecycle"
SOON_S = 30.0  # far above what anything here takes; reached by a hang alone
SEEDS = torch.arange(NUM_NODES)
NUM_BATCHES = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two servers of two partitions, for all sessions of this module; what one leaves behind the next would meet."""
    names, processes = set(shared_memory_names()), set(children(os.getpid()))
    halves = make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2)
    with running_servers(halves, halves) as job:
        yield job
        with job.client():
            for rank in range(2):  # that the registry goes with server 0 does not matter to the other one
                assert request_server(rank, DistServer.exit)
                assert job.servers[rank].wait(SOON_S) == 0
        assert [server.output() for server in job.servers if "Traceback" in server.output()] == []
    # What an earlier test had left may have ended meanwhile.
    assert (set(shared_memory_names()) - names, set(children(os.getpid())) - processes) == (set(), set())


@pytest.fixture
def job(servers: Job) -> Iterator[Job]:
    with servers.client():
        yield servers
    assert [workers_of(server.pid) for server in servers.servers] == [[], []]


def make_loader(seed: int = 0, **options: Any) -> DistNeighborLoader:
    workers = RemoteDistSamplingWorkerOptions(**({"server_rank": [0, 1], "rpc_timeout": 60} | options))
    return DistNeighborLoader(
        None, [3, 2], SEEDS, 6, True, edge_dir="in", collect_features=True, random_seed=seed, worker_options=workers
    )


def oracle(whole: Path, seed: int = 0) -> NeighborLoader:
    """The same batches, made in this process."""
    return NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=6, shuffle=True, seed=seed)


def epoch(whole: Path, number: int, seed: int = 0) -> list[Any]:
    loader = oracle(whole, seed)
    return [loader.batch(number, index) for index in range(len(loader))]


# --- iterating -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_read", [0, 1, 7])
def test_a_loop_left_half_way(job: Job, whole: Path, num_read: int) -> None:
    """The next loop is the next epoch, whole, from its first batch; nothing is left over of the one that was left.

    A loop of which nothing was read has begun no epoch.
    """
    with make_loader() as loader:
        assert len(loader) == NUM_BATCHES
        same_batches(itertools.islice(loader, num_read), epoch(whole, 0)[:num_read])
        expected = 1 if num_read else 0
        same_batches(loader, epoch(whole, expected))
        assert loader.epoch == expected


def test_leaving_many_loops_uses_nothing_up(job: Job, whole: Path) -> None:
    """Batches that were made for nobody give their memory back: the buffer holds a few, many more are left."""
    with make_loader(server_rank=0, buffer_size="1MB", prefetch_size=4) as loader:
        for number in range(40):
            batch = next(iter(loader))
            assert torch.equal(batch.x[:, 0], batch.n_id.float())
            assert loader.epoch == number
        same_batches(loader, epoch(whole, 40))


def test_batches_ahead_are_counted_where_several_travel_together(job: Job, whole: Path) -> None:
    """Messages of two batches: two are as many as three ahead, and no more are asked for."""
    with make_loader(server_rank=0, prefetch_size=3, batches_per_message=2) as loader:
        most, read = 0, []
        for batch in loader:
            read.append(batch)
            most = max(most, len(loader._producer._under_way))
        assert most == 2
        same_batches(read, epoch(whole, 0))


def test_an_iterator_goes_on(job: Job, whole: Path) -> None:
    """``iter(iterator)`` is the iterator: reading one batch and looping over the rest is one epoch."""
    with make_loader() as loader:
        iterator = iter(loader)
        first = next(iterator)
        same_batches([first, *iterator], epoch(whole, 0))
        assert loader.epoch == 0
        assert list(iterator) == []
        later = iter(loader)
        next(later)
        with pytest.raises(ChannelClosedError, match="iterator 1 of this loader was left when iterator 2 began"):
            next(iterator)
        same_batches([oracle(whole).batch(1, 0), *later], epoch(whole, 1))


def test_every_batch_is_kept(job: Job, whole: Path) -> None:
    """Far more than the buffer holds, and unchanged by the epochs after it."""
    with make_loader(buffer_size="1MB") as loader:
        kept = [list(loader) for _ in range(3)]
        for number, batches in enumerate(kept):
            same_batches(batches, epoch(whole, number))
    same_batches(kept[0], epoch(whole, 0))  # the loader is gone, its batches are not


def test_kept_batches_outlive_the_session(servers: Job, whole: Path) -> None:
    with servers.client():
        with make_loader() as loader:
            kept = list(loader)
    same_batches(kept, epoch(whole, 0))
    for batch in kept:
        batch.x.zero_()  # a batch is the trainer's own


def test_two_loaders_at_once(job: Job, whole: Path) -> None:
    """On the same servers, read in turns: each gets its own batches."""
    with make_loader(1, server_rank=0) as first, make_loader(2, server_rank=0, num_workers=2) as second:
        for number in range(2):
            pairs = list(zip(first, second, strict=True))
            same_batches([pair[0] for pair in pairs], epoch(whole, number, seed=1))
            same_batches([pair[1] for pair in pairs], epoch(whole, number, seed=2))


def test_a_slow_trainer_holds_up_nobody_else(job: Job, whole: Path) -> None:
    """One loader is not read at all for whole epochs of another one."""
    with make_loader(1, server_rank=0) as slow, make_loader(2, server_rank=0) as fast:
        waiting = iter(slow)
        head = [next(waiting)]
        for number in range(3):
            same_batches(fast, epoch(whole, number, seed=2))
        same_batches([*head, *waiting], epoch(whole, 0, seed=1))


def test_shards_of_one_epoch(job: Job, whole: Path) -> None:
    """Together they are the epoch."""
    expected = epoch(whole, 0)
    options = RemoteDistSamplingWorkerOptions(server_rank=[0, 1])
    arguments = {"edge_dir": "in", "collect_features": True, "worker_options": options}
    for index in range(2):
        with DistNeighborLoader(None, [3, 2], SEEDS, 6, True, shard=(index, 2), **arguments) as loader:
            assert len(loader) == NUM_BATCHES // 2
            same_batches(loader, expected[index::2])


def test_a_shard_without_batches(job: Job) -> None:
    options = RemoteDistSamplingWorkerOptions(server_rank=0)
    with DistNeighborLoader(None, [3], SEEDS[:6], 6, edge_dir="in", worker_options=options, shard=(1, 2)) as empty:
        assert (len(empty), list(empty)) == (0, [])


# --- closing ---------------------------------------------------------------------------------------------------


def test_a_loader_that_was_shut_down(job: Job) -> None:
    loader = make_loader()
    iterator = iter(loader)
    next(iterator)
    loader.shutdown()
    loader.shutdown()
    assert [workers_of(server.pid) for server in job.servers] == [[], []]
    with pytest.raises(ChannelClosedError, match="the loader was shut down"):
        next(iterator)
    with pytest.raises(ChannelClosedError, match="the loader was shut down"):
        iter(loader)
    with loader:
        pass


def test_a_loader_that_is_shut_down_while_it_is_read(job: Job) -> None:
    """By two threads, beside one that waits for a batch whose maker stands still: it is told, nothing begins anew."""
    with make_loader(prefetch_size=1) as loader, ThreadPoolExecutor(3) as pool:
        workers = [pid for server in job.servers for pid in workers_of(server.pid)]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        reader = pool.submit(list, loader)
        wait_until(lambda: loader._producer._awaited is not None)
        for closing in [pool.submit(loader.shutdown) for _ in range(2)]:
            closing.result(SOON_S)
        with pytest.raises(ChannelClosedError, match="the loader was shut down"):
            reader.result(SOON_S)
        wait_ended(workers, SOON_S)


def test_a_loader_that_is_dropped(job: Job, whole: Path) -> None:
    """Servers end what they sample for it with; the client's other loaders go on."""
    with make_loader() as other:
        others = [workers_of(server.pid) for server in job.servers]
        batches = iter(make_loader(1))
        next(batches)
        workers = [pid for server in job.servers for pid in workers_of(server.pid)]
        del batches
        collect()
        wait_ended(set(workers) - {*itertools.chain(*others)}, SOON_S)
        same_batches(other, epoch(whole, 0))


def test_a_client_that_leaves_its_loaders_open(servers: Job, whole: Path) -> None:
    """Its workers end with its session; the next session begins from nothing."""
    with servers.client():
        loader = make_loader()
        next(iter(loader))
        workers = [pid for server in servers.servers for pid in workers_of(server.pid)]
        assert len(workers) == 2
    wait_ended(workers, SOON_S)
    with pytest.raises(NotInitializedError, match="call init_rpc"):
        next(iter(loader))
    shutdown_client()
    for number in range(2):
        with servers.client(), make_loader(number, server_rank=1) as later:
            same_batches(later, epoch(whole, 0, seed=number))
            with pytest.raises(InvalidArgumentError, match=r"producer_id: there is no producer \d+ \(any more\)"):
                next(iter(loader))  # of the first session
    loader.shutdown()  # without effect: the session it belonged to is over
    assert [workers_of(server.pid) for server in servers.servers] == [[], []]


def clients_turn(port: int, rank: int, num_clients: int) -> int:
    """A session that waits to be told, with everything that a trainer does."""
    init_client(1, num_clients, rank, "127.0.0.1", port)
    rpc.barrier(SOON_S)  # all clients are there
    options = RemoteDistSamplingWorkerOptions(server_rank=0)
    with DistNeighborLoader(None, [2], SEEDS, 6, edge_dir="in", worker_options=options, shard=(rank, 2)) as loader:
        count = len(list(loader))
    print("done", flush=True)
    input()
    shutdown_client()
    return count


def test_a_server_ends_with_its_last_client(whole: Path) -> None:
    """With ``num_clients=2`` it serves until both are done, in whichever order, then ends by itself."""
    with running_servers(whole, num_clients=2) as job:
        clients = [(f"{HERE}.clients_turn", {"port": job.port, "rank": rank, "num_clients": 2}) for rank in range(2)]
        with start(clients[0][0], **clients[0][1]) as first, start(clients[1][0], **clients[1][1]) as second:
            assert (first.readline(), second.readline()) == ("done", "done")
            second.tell()
            assert second.wait(SOON_S) == NUM_BATCHES // 2
            assert job.servers[0].poll() is None  # the first one is not done
            first.tell()
            assert first.wait(SOON_S) == NUM_BATCHES // 2
            assert job.servers[0].wait(SOON_S) == 0
            assert job.servers[0].output().count("Traceback") == 0


def test_batches_come_in_the_memory_they_were_written_to(servers: Job) -> None:
    """Between processes of one host nothing but the first batches of each worker, which offer its memory, is copied."""
    options = RemoteDistSamplingWorkerOptions(server_rank=[0, 1], prefetch_size=1)
    with servers.client():
        before = rpc.get_endpoint().stats()
        with DistNeighborLoader(
            None, [-1, -1], SEEDS, 40, edge_dir="in", with_edge=True, collect_features=True, worker_options=options
        ) as loader:
            num_batches = sum(1 for _ in loader)
        after = rpc.get_endpoint().stats()
    lent = after.lent_payloads_received - before.lent_payloads_received
    copied = after.arena_payloads_received - before.arena_payloads_received
    assert lent >= num_batches - 4, f"{num_batches} batches, {lent} lent, {copied} through the arena"
