"""Trainers that hold partitions and ask each other: batches in groups ask less often, copies of rows for less."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_rpc,
    init_worker_group,
    shutdown_rpc,
)
from graphlearn_dist.distributed.copies.host_row_cache import HostRowCache, RowCacheStats
from graphlearn_dist.distributed.copies.partition_asker import PartitionAsker
from graphlearn_dist.distributed.dist_context import _reset_context
from graphlearn_dist.distributed.partitions.partition_peers import PartitionHolders
from graphlearn_dist.distributed.rpc import get_endpoint
from graphlearn_dist.errors import DeadlineExceededError, InvalidArgumentError, PeerLostError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.messages import SampledBatch
from graphlearn_dist.rpc.engine.threads import WorkerThreads
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.jobs import NUM_FEATURES, NUM_NODES, load, make_partitions, same_batches
from tests.support.oracle import assert_same, pyg_tensors
from tests.support.processes import start

HERE = "tests.distributed.test_asking_workers"
DEADLINE_S = 60.0
SEEDS = torch.arange(NUM_NODES).repeat(22)
NUM_BATCHES = 66
ROW_BYTES = 4 * NUM_FEATURES + 8  # with the label
SETTINGS: dict[str, Any] = {"batch_size": 40, "shuffle": True}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> NeighborLoader:
    return NeighborLoader(load(make_partitions(tmp_path_factory.mktemp("whole"), 1)), [4], SEEDS, **SETTINGS)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One of two partitions; the other one's worker has to be asked."""
    halves = make_partitions(tmp_path_factory.mktemp("halves"), 2)
    with reserved_port() as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLD_SHARE_PARTITIONS", "0")
        with start(f"{HERE}.answer", port=port, directory=str(halves)) as other:
            init_worker_group(2, 0)
            init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
            yield load(halves, 0)
            other.tell("end")
            shutdown_rpc()
            other.wait(DEADLINE_S)
            _reset_context()


def answer(port: int, directory: str) -> None:
    """Worker 1, with the other partition, until it is told to end."""
    init_worker_group(2, 1)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
    with open_loader(load(Path(directory), 1)):
        print("ready", flush=True)
        sys.stdin.readline()
    shutdown_rpc()


def open_loader(data: Any, kind: Any = CollocatedDistSamplingWorkerOptions, **options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        data, [4], SEEDS, edge_dir="in", collect_features=True, **SETTINGS,
        worker_options=kind(rpc_timeout=DEADLINE_S, **options),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "together"),
    [
        ({}, 2),  # more would leave a short epoch few groups
        ({"batches_per_message": 8}, 8),
        ({"batches_per_message": 1}, 1),
        ({"batches_per_message": 8, "prefetch_size": 0}, 1),  # made when they are asked for
        ({"batches_per_message": 8, "prefetch_size": 1}, 8),
    ],
    ids=str,
)
def test_a_group_costs_one_query_a_hop(
    half: Any, local: NeighborLoader, options: dict[str, Any], together: int
) -> None:
    with open_loader(half, recent_rows=0, **options) as loader:
        same_batches(loader, [local.batch(0, index) for index in range(NUM_BATCHES)])
        before = get_endpoint().stats().requests_sent
        same_batches(loader, [local.batch(1, index) for index in range(NUM_BATCHES)])
        hop_and_rows = 2
        assert get_endpoint().stats().requests_sent - before == hop_and_rows * -(-NUM_BATCHES // together)


def test_a_group_with_a_batch_that_fails(half: Any, local: NeighborLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one is told of in its place, and all others come."""
    make = BatchMaker.make_together

    async def fail(maker: BatchMaker, epoch: int, indices: Sequence[int], run: int) -> list[SampledBatch]:
        if 11 in indices:
            raise RuntimeError("no batch 11")
        return await make(maker, epoch, indices, run)

    monkeypatch.setattr(BatchMaker, "make_together", fail)
    with open_loader(half, batches_per_message=8) as loader:
        batches = iter(loader)
        for index in range(NUM_BATCHES):
            if index == 11:
                with pytest.raises(RuntimeError, match="no batch 11"):
                    next(batches)
            else:
                assert_same(pyg_tensors(next(batches)), pyg_tensors(local.batch(0, index)))
        assert next(batches, None) is None


@pytest.mark.parametrize("lost", [PeerLostError("worker 1", "it was frozen"), DeadlineExceededError("too late")])
def test_a_group_whose_peer_is_lost(half: Any, monkeypatch: pytest.MonkeyPatch, lost: Exception) -> None:
    """It is not tried again batch by batch: each would wait for the peer as long."""
    tried: list[int] = []

    async def fail(_: BatchMaker, epoch: int, indices: Sequence[int], run: int) -> list[SampledBatch]:
        tried.append(len(indices))
        raise lost

    monkeypatch.setattr(BatchMaker, "make_together", fail)
    with open_loader(half, batches_per_message=8, prefetch_size=1) as loader:
        with pytest.raises(type(lost), match=str(lost)):
            next(iter(loader))
        assert tried in ([8], [8, 7])  # the rest is asked for again, together


# --- rows that were answered lately -------------------------------------------------------------------------------

KINDS = [CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_asked_for_once(half: Any, local: NeighborLoader, kind: Any) -> None:
    """The first epoch wants all of them, so that the second one asks for hops alone."""
    with open_loader(half, kind) as loader:
        for epoch in range(2):
            sent, before = get_endpoint().stats().requests_sent, loader.stats().made.sums
            same_batches(loader, [local.batch(epoch, index) for index in range(NUM_BATCHES)])
            made = loader.stats().made.sums - before
        of_others = made.row_bytes // ROW_BYTES - sum(
            int((local.batch(1, index).n_id < NUM_NODES // 2).sum()) for index in range(NUM_BATCHES)
        )
        assert made.recent_bytes == of_others * ROW_BYTES
        if kind is CollocatedDistSamplingWorkerOptions:  # the others ask by themselves
            assert get_endpoint().stats().requests_sent - sent == NUM_BATCHES // 2
        assert "of them answered before" in str(loader.stats())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_nobody_keeps(half: Any, local: NeighborLoader, kind: Any) -> None:
    for given in (0, "100"):  # a quarter of the other partition's rows find no room in 100 bytes
        with open_loader(half, kind, recent_rows=given) as loader:
            for epoch in range(2):
                same_batches(loader, [local.batch(epoch, index) for index in range(NUM_BATCHES)])
            assert loader.stats().made.sums.recent_bytes == 0
            assert "answered before" not in str(loader.stats())


ALL_KINDS = [*KINDS, RemoteDistSamplingWorkerOptions]


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (-1, "expected at least 0, got -1"),
        (True, "expected a number of bytes"),
        (0.0, "expected a number of bytes"),
        (torch.tensor([0, 1]), "expected a number of bytes"),
        ("much", "expected a size"),
        ("513MB", "expected at most half of the 1073741824 bytes for batches, got 537919488"),
    ],
    ids=str,
)
def test_no_amount_of_recent_rows(kind: Any, wrong: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"recent_rows: {message}"):
        kind(recent_rows=wrong)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_amounts_of_recent_rows(kind: Any) -> None:
    amounts: dict[Any, int | None] = {None: None, 0: 0, "0": 0, "0MB": 0, "64MB": 64 << 20, 5: 5}
    assert {given: kind(recent_rows=given).recent_bytes for given in amounts} == amounts


# --- copies of rows ------------------------------------------------------------------------------------------------


def wait_for_copies(loader: DistNeighborLoader) -> RowCacheStats:
    give_up = time.monotonic() + DEADLINE_S
    while (stats := loader.row_cache_stats()) is None or stats.is_filling:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return stats


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_rows(half: Any, local: NeighborLoader, kind: Any) -> None:
    """Batches are the same before and after copies have come, and rows that were copied are not asked for."""
    with open_loader(half, kind, row_cache="1MB") as loader:  # more than all rows take
        same_batches(loader, [local.batch(0, index) for index in range(NUM_BATCHES)])
        before = wait_for_copies(loader)
        assert before.rows == NUM_NODES // 2
        sent = get_endpoint().stats().requests_sent
        same_batches(loader, [local.batch(1, index) for index in range(NUM_BATCHES)])
        after = loader.row_cache_stats()
        assert after is not None
        assert after.hits > before.hits
        assert after.misses == before.misses
        assert after.bytes_saved - before.bytes_saved == (after.hits - before.hits) * ROW_BYTES
        told = {metric.name: metric.value for metric in loader.metrics() if metric.name.startswith("row_cache")}
        assert told == {
            "row_cache_bytes": after.nbytes,
            "row_cache_hits_total": after.hits,
            "row_cache_misses_total": after.misses,
            "row_cache_saved_bytes_total": after.bytes_saved,
        }
        if kind is CollocatedDistSamplingWorkerOptions:  # the others ask by themselves
            assert get_endpoint().stats().requests_sent - sent == NUM_BATCHES // 2  # for hops alone


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_the_likeliest_rows(half: Any, local: NeighborLoader, kind: Any) -> None:
    """Of a tenth of all rows some are found, others are not."""
    with open_loader(half, kind, row_cache=0.1) as loader:
        stats = wait_for_copies(loader)
        assert 0 < stats.rows <= NUM_NODES // 10
        assert stats.nbytes <= stats.budget_bytes
        for epoch in range(2):
            same_batches(loader, [local.batch(epoch, index) for index in range(NUM_BATCHES)])
        stats = wait_for_copies(loader)
        assert stats.hits > 0
        assert stats.misses > 0


def test_no_room_for_a_row_is_told(half: Any, caplog: pytest.LogCaptureFixture) -> None:
    with open_loader(half, row_cache="7") as loader:
        assert wait_for_copies(loader).rows == 0
    (told,) = [record.getMessage() for record in caplog.records if "row_cache" in record.getMessage()]
    assert told == f"row_cache: expected at least the {8 + ROW_BYTES} bytes of a row, got 7: there are no copies"


def test_a_loader_that_ends_while_copies_come(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ends = threading.Event(), threading.Event()
    ask = PartitionAsker.query

    def wait(asker: PartitionAsker, *of: Any) -> Any:
        asked.set()
        assert ends.wait(DEADLINE_S)
        return ask(asker, *of)

    monkeypatch.setattr(PartitionAsker, "query", wait)
    with open_loader(half, row_cache=1.0) as loader:
        assert asked.wait(DEADLINE_S)
        stats = loader.row_cache_stats()
        assert stats is not None
        assert (stats.is_filling, stats.rows) == (True, 0)
        next(iter(loader))
    ends.set()
    assert wait_for_copies(loader).rows == 0


def test_copies_go_with_their_loader(half: Any) -> None:
    with open_loader(half, row_cache=1 << 64) as loader:  # more bytes than any machine has
        list(loader)
        before = wait_for_copies(loader)
    after = loader.row_cache_stats()
    assert after is not None
    assert (before.rows, after.rows, after.nbytes) == (NUM_NODES // 2, 0, 0)


def test_a_loader_that_ends_before_copies_are_asked_for(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerThreads, "submit", lambda *_: None)
    with open_loader(half, row_cache=1.0) as loader:
        stats = loader.row_cache_stats()
        assert stats is not None
        assert stats.is_filling
    assert wait_for_copies(loader).rows == 0


def leave_first(port: int, directory: str) -> None:
    """Worker 0, which leaves the job before its loader is closed, and before anybody was asked for copies."""
    init_worker_group(2, 0)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
    has_left = threading.Event()
    find = HostRowCache._find_holders

    def find_late(cache: HostRowCache) -> PartitionHolders:
        assert has_left.wait(DEADLINE_S)
        return find(cache)

    HostRowCache._find_holders = find_late  # type: ignore[method-assign]
    with open_loader(load(Path(directory), 0), row_cache=1.0) as loader:
        sys.stdin.readline()
        shutdown_rpc(graceful=False)
        has_left.set()
        assert wait_for_copies(loader).rows == 0


def test_a_trainer_that_leaves_while_copies_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", "0")
    job: dict[str, Any] = {"directory": str(make_partitions(tmp_path, 2))}
    with reserved_port() as port, start(f"{HERE}.leave_first", port=port, **job) as first:
        with start(f"{HERE}.answer", port=port, **job) as other:
            assert other.readline() == "ready"
            first.tell("leave")
            first.wait(DEADLINE_S)
            other.tell("end")
            other.wait(DEADLINE_S)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [-0.5, 1.5, "much", -3])
def test_no_amount_of_copies(half: Any, kind: Any, wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="row_cache: "):
        open_loader(half, kind, row_cache=wrong)


def test_no_copies_where_nobody_is_asked(half: Any, tmp_path: Path) -> None:
    with open_loader(half) as loader:
        assert loader.row_cache_stats() is None
    with open_loader(half, row_cache=0) as loader:
        assert loader.row_cache_stats() is None
    with open_loader(load(make_partitions(tmp_path, 1)), row_cache=0.5) as loader:
        assert loader.row_cache_stats() is None
