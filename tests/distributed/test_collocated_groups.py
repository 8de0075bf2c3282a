"""Batches that a trainer makes itself and needs other workers for: they are made in groups, which ask less often."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    init_rpc,
    init_worker_group,
    shutdown_rpc,
)
from graphlearn_dist.distributed.rpc import get_endpoint
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.messages import SampledBatch
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.jobs import NUM_NODES, load, make_partitions, same_batches
from tests.support.oracle import assert_same, pyg_tensors
from tests.support.processes import start

DEADLINE_S = 60.0
SEEDS = torch.arange(NUM_NODES).repeat(22)
NUM_BATCHES = 66
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
        with start("tests.distributed.test_collocated_groups.answer", port=port, directory=str(halves)) as other:
            init_worker_group(2, 0)
            init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
            yield load(halves, 0)
            other.tell("end")
            shutdown_rpc()
            other.wait(DEADLINE_S)


def answer(port: int, directory: str) -> None:
    """Worker 1, with the other partition, until it is told to end."""
    init_worker_group(2, 1)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
    with open_loader(load(Path(directory), 1)):
        sys.stdin.readline()
    shutdown_rpc()


def open_loader(data: Any, **options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        data, [4], SEEDS, edge_dir="in", collect_features=True, **SETTINGS,
        worker_options=CollocatedDistSamplingWorkerOptions(rpc_timeout=DEADLINE_S, **options),
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
    with open_loader(half, **options) as loader:
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
