"""Sampling workers that die or freeze: the epoch goes on with the same bits, or ends with one error."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.distributed.workers import fork_server
from graphlearn_dist.distributed.workers.fork_server import ForkedWorker, ForkServer
from graphlearn_dist.distributed.workers.sampling_producer import SamplingProducer
from graphlearn_dist.distributed.workers.worker_handle import WorkerHandle
from graphlearn_dist.distributed.workers.worker_messages import WorkerReady
from graphlearn_dist.distributed.workers.worker_process import WorkerOrigin, WorkerProcess
from graphlearn_dist.errors import DeadlineExceededError, InvalidArgumentError, SamplingWorkerError
from graphlearn_dist.loader import NeighborLoader
from tests.support.jobs import (
    NUM_FEATURES,
    NUM_NODES,
    children,
    load,
    make_partitions,
    running_servers,
    same_batches,
    shared_memory_names,
    wait_ended,
    workers_of,
)
from tests.support.waiting import collect

pytestmark = pytest.mark.faults

SEEDS = torch.arange(NUM_NODES)
NUM_BATCHES = 30
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    names, processes = set(shared_memory_names()), set(children(os.getpid()))
    yield
    # What an earlier test had left may have ended meanwhile.
    assert (set(shared_memory_names()) - names, set(children(os.getpid())) - processes) == (set(), set())


def make_loader(data: Any, options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        data, [3, 2], SEEDS, 4, True, edge_dir="in", collect_features=True, random_seed=1, worker_options=options
    )


def epoch(whole: Path, number: int) -> list[Any]:
    """The same batches, made in this process."""
    loader = NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=4, shuffle=True, seed=1)
    return [loader.batch(number, index) for index in range(len(loader))]


def in_memory() -> DistDataset:
    """The data set of ``make_partitions``, in this process's memory."""
    ids, dataset = torch.arange(NUM_NODES), Dataset(edge_dir="in")
    dataset.init_graph(torch.cat([torch.stack([(ids + hop) % NUM_NODES, ids]) for hop in (1, 2, 3, 4)], dim=1))
    dataset.init_node_features(ids.float()[:, None].repeat(1, NUM_FEATURES))
    dataset.init_node_labels(ids)
    return DistDataset.from_dataset(dataset)


def test_worker_processes_that_die_or_freeze(whole: Path) -> None:
    """In the midst of an epoch, between two of them, and while nobody reads; the data set is the loader's alone."""
    options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB")
    with make_loader(in_memory(), options) as loader:
        collect()
        first, second = workers_of(os.getpid())
        batches = iter(loader)
        seen = [next(batches) for _ in range(3)]
        os.kill(first, signal.SIGKILL)
        seen += [next(batches) for _ in range(7)]
        os.kill(second, signal.SIGSTOP)  # noticed by its silence
        same_batches([*seen, *batches], epoch(whole, 0))
        pids = workers_of(os.getpid())
        assert len(pids) == 2
        assert not {first, second} & set(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        same_batches(loader, epoch(whole, 1))
        same_batches(seen, epoch(whole, 0)[:10])  # what a dead process made stays good


def test_a_killed_worker_of_a_server(whole: Path) -> None:
    """Batches that it had made for a trainer that does not read are not lost either."""
    options = RemoteDistSamplingWorkerOptions(server_rank=0, rpc_timeout=60, prefetch_size=6)
    with running_servers(whole) as job, job.client(), make_loader(None, options) as loader:
        batches = iter(loader)
        seen = [next(batches)]
        (pid,) = workers_of(job.servers[0].pid)
        os.kill(pid, signal.SIGKILL)
        same_batches([*seen, *batches], epoch(whole, 0))
        assert workers_of(job.servers[0].pid) not in ([], [pid])


DEADLY = """
import os, signal
from graphlearn_dist.distributed.workers import fork_server_main, sampling_worker

make = sampling_worker.PartitionedBatches.make_in

async def make_or_die(self, epoch, indices, *more):
    if 7 in indices:
        os.kill(os.getpid(), signal.SIGSEGV)
    return await make(self, epoch, indices, *more)

sampling_worker.PartitionedBatches.make_in = make_or_die
os._exit(fork_server_main.main())
"""


def recorded_forks(
    monkeypatch: pytest.MonkeyPatch, meet: Callable[[ForkedWorker, int], object] = lambda worker, number: None
) -> list[ForkedWorker]:
    """The workers that are started from now on; each meets this, with its number from 1."""
    fork, started = ForkServer.fork, []

    def fork_and_record(self: ForkServer) -> ForkedWorker:
        worker = fork(self)  # by several threads at once
        started.append(worker)
        meet(worker, len(started))
        return worker

    monkeypatch.setattr(ForkServer, "fork", fork_and_record)
    return started


@pytest.mark.parametrize(("together", "num_starts"), [(1, 2), (3, 3)])
def test_a_batch_that_kills_its_worker(
    whole: Path, monkeypatch: pytest.MonkeyPatch, together: int, num_starts: int
) -> None:
    """The batches before it come; it is named, though others were under way with it; nothing is tried for ever.

    Where it travels with others, the first death leaves open which of them it was.
    """
    monkeypatch.setattr(fork_server, "_PROGRAM", DEADLY)
    started = recorded_forks(monkeypatch)
    options = MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB", batches_per_message=together)
    with make_loader(load(whole), options) as loader:
        batches = iter(loader)
        same_batches([next(batches) for _ in range(7)], epoch(whole, 0)[:7])
        with pytest.raises(SamplingWorkerError) as caught:
            next(batches)
    text = str(caught.value)
    assert f"worker 0 (pid {started[-1].pid}) ended: killed by SIGSEGV; on {os.uname().nodename}, " in text
    assert "stage sample, batch 7 of epoch 0; this batch ended its worker 2 times" in text
    assert len(started) == num_starts


def test_a_worker_that_dies_on_its_way_up(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started again like any other, and given up when its restarts are used up."""
    started = recorded_forks(monkeypatch, lambda worker, number: number != 2 and worker.kill())
    with make_loader(load(whole), MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB")) as loader:
        same_batches(loader, epoch(whole, 0))
        assert len(started) == 2
    options = MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB", max_restarts=1)
    with pytest.raises(SamplingWorkerError, match=r"SIGKILL; on .*, stage set-up; max_restarts=1 within an hour are"):
        make_loader(load(whole), options)
    assert len(started) == 4


def test_where_one_worker_fails_on_its_way_up_the_others_are_called_off(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits any more for one that is not up yet: its task has ended before the error is raised."""
    start, start_all, begun, ended, waiting = WorkerHandle.start, SamplingProducer.start, [], [], []

    async def recorded(self: WorkerHandle, origin: WorkerOrigin) -> None:
        begun.append(self.name)
        try:
            await start(self, origin)
        finally:
            ended.append(self.name)

    async def recorded_all(self: SamplingProducer) -> None:
        try:
            await start_all(self)
        finally:
            waiting.extend(set(begun) - set(ended))

    monkeypatch.setattr(WorkerHandle, "start", recorded)
    monkeypatch.setattr(SamplingProducer, "start", recorded_all)
    signals = {1: signal.SIGKILL, 2: signal.SIGSTOP}
    recorded_forks(monkeypatch, lambda worker, number: os.kill(worker.pid, signals[number]))
    options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB", max_restarts=0)
    with pytest.raises(SamplingWorkerError, match=r"SIGKILL; on .*, stage set-up"):
        make_loader(load(whole), options)
    assert len(begun) == 2
    assert not waiting


def test_a_worker_that_freezes_on_its_way_up(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed for it, and started again."""
    started = recorded_forks(monkeypatch, lambda worker, number: number == 1 and os.kill(worker.pid, signal.SIGSTOP))
    with make_loader(load(whole), MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB")) as loader:
        same_batches(loader, epoch(whole, 0))
    assert len(started) == 2


def test_a_worker_that_dies_when_it_has_said_that_it_is_up(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory goes with it, before anybody has opened it."""
    on_ready, started = WorkerProcess._on_ready, recorded_forks(monkeypatch)

    def die_first(self: WorkerProcess, ready: WorkerReady) -> None:
        if len(started) == 1:
            started[0].kill()
            wait_ended([started[0].pid], DEADLINE_S)
        on_ready(self, ready)

    monkeypatch.setattr(WorkerProcess, "_on_ready", die_first)
    with make_loader(load(whole), MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB")) as loader:
        same_batches(loader, epoch(whole, 0))
    assert len(started) == 2


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing goes but what nobody refers to any more."""
    collect()
    gc.disable()
    yield
    gc.enable()


def held_for_workers() -> Counter[str]:
    """What this process has for its workers: threads that take their batches, and shared memory."""
    held: Counter[str] = Counter()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            held["threads"] += (thread / "comm").read_text().strip() == "gld-batches"
    held["mappings"] = Path("/proc/self/maps").read_text().count("/memfd:gld")
    return held


def test_what_a_worker_had_that_none_follows_goes_with_its_loader(whole: Path, no_collection: None) -> None:
    options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB", max_restarts=0)
    with make_loader(load(whole), options):  # what the first one brings about stays
        pass
    before = held_for_workers()
    with make_loader(load(whole), options) as loader:
        (pid, _) = workers_of(os.getpid())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SamplingWorkerError, match="max_restarts=0 within an hour are used up"):
            list(loader)
    assert held_for_workers()["threads"] == before["threads"]  # the error's traceback may lead to memory


def test_a_loader_that_is_closed_while_a_worker_is_started_again(
    whole: Path, monkeypatch: pytest.MonkeyPatch, no_collection: None
) -> None:
    options = MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB")
    with make_loader(load(whole), options):
        pass
    before, is_up = held_for_workers(), threading.Event()
    on_ready, started = WorkerProcess._on_ready, recorded_forks(monkeypatch)

    def stay_on_the_way(self: WorkerProcess, ready: WorkerReady) -> None:
        if len(started) == 1:
            on_ready(self, ready)
        else:
            is_up.set()

    monkeypatch.setattr(WorkerProcess, "_on_ready", stay_on_the_way)
    with make_loader(load(whole), options):
        started[0].kill()
        assert is_up.wait(DEADLINE_S)
    assert held_for_workers() == before


LATE = """
import asyncio, os
from graphlearn_dist.distributed.workers import fork_server_main, sampling_worker

async def never_serve(control):
    if await sampling_worker.receive_message(control) is None:
        return 0  # it was forked when nobody waited for it any more
    await asyncio.get_running_loop().create_future()

sampling_worker._serve = never_serve
os._exit(fork_server_main.main())
"""


def test_workers_that_do_not_come_up_in_time(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them is said; how long batches may take has nothing to do with it, and nothing is left of them."""
    options = MpDistSamplingWorkerOptions(num_workers=1, channel_size="16MB", rpc_timeout=1e-3)
    with make_loader(load(whole), options):
        assert len(workers_of(os.getpid())) == 1
    monkeypatch.setattr(fork_server, "_PROGRAM", LATE)
    started = recorded_forks(monkeypatch)
    options = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB", start_timeout=1.5)
    with pytest.raises(DeadlineExceededError, match=r"workers 0, 1 of 2 were not set up within start_timeout=1.5 s"):
        make_loader(load(whole), options)
    wait_ended([worker.pid for worker in started], DEADLINE_S)
    with pytest.raises(InvalidArgumentError, match="start_timeout: expected a positive number of seconds, got 0"):
        MpDistSamplingWorkerOptions(start_timeout=0)
