"""Collocated and multiprocessing mode give the local loader's bits, whatever the partitions and the workers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    shutdown_rpc,
)
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.utils.common import get_free_port
from tests.support.graphs import Direction, TestGraph, make_dataset
from tests.support.jobs import NUM_NODES, children, load
from tests.support.oracle import GRAPHS, LOADER, SEED, assert_same, input_of, pyg_tensors, write_partitions
from tests.support.processes import run_processes

HERE = "tests.distributed.test_modes"
DEADLINE_S = 120.0  # only ever reached by a hang
FANOUTS = [4, 3]
IDS = torch.arange(NUM_NODES)
CASES: list[tuple[str, Direction, str]] = [
    ("homogeneous", "in", "random"),
    ("typed", "out", "range"),
    ("homogeneous", "out", "range"),
    ("typed", "in", "random"),
]
MP = MpDistSamplingWorkerOptions(channel_size="32MB")


# --- one oracle for all ----------------------------------------------------------------------------------------


def share_of(graph: TestGraph, rank: int, world_size: int) -> Any:
    """One worker's part of the input nodes, as a loader takes it."""
    seeds = input_of(graph)
    return (seeds[0], seeds[1][rank::world_size]) if isinstance(seeds, tuple) else seeds[rank::world_size]


def compare(dataset: DistDataset, graph: TestGraph, seeds: Any, options: Any, epochs: int) -> int:
    """How many batches of a loader are those of the loader in one process, in the same order."""
    edge_dir = dataset.edge_dir
    local = NeighborLoader(make_dataset(graph, edge_dir), FANOUTS, seeds, seed=SEED, **LOADER)
    compared = 0
    with DistNeighborLoader(
        dataset, FANOUTS, seeds, edge_dir=edge_dir, collect_features=True, random_seed=SEED, worker_options=options,
        **LOADER,
    ) as loader:  # fmt: skip
        assert len(loader) == len(local)
        for _ in range(epochs):
            for batch, expected in zip(loader, local, strict=True):
                assert_same(pyg_tensors(batch), pyg_tensors(expected))
                compared += 1
    return compared


def work(rank: int, world_size: int, port: int, cases: list[list[Any]]) -> list[int]:
    """A worker: every case in collocated mode, each case on one worker in multiprocessing mode too.

    Worker 0 is through earlier than the others, and goes on answering them.
    """
    meeting = {"master_addr": "127.0.0.1", "master_port": port, "rpc_timeout": DEADLINE_S}
    init_worker_group(world_size, rank)
    compared = []
    for number, (name, num_parts, directory) in enumerate(cases):
        graph, dataset = GRAPHS[name](), load(Path(directory), rank % num_parts)
        modes: list[Any] = [CollocatedDistSamplingWorkerOptions(**meeting, prefetch_size=number % 3)]
        if number % world_size == rank:
            modes.append(replace(MP, num_workers=1 + number % 2, num_threads=1 + number % 2, **meeting))
        seeds = share_of(graph, rank, world_size)
        compared += [compare(dataset, graph, seeds, options, 1 if rank == 0 else 2) for options in modes]
    shutdown_rpc()
    return compared


@pytest.mark.parametrize("in_place", [False, True])
def test_batches_of_a_group_equal_local_ones(tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of graph over two and three partitions; where there are two, two of three workers hold the same."""
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", str(int(in_place)))
    world_size, cases = 3, []
    for number, (name, edge_dir, kind) in enumerate(CASES):
        for num_parts in (2, 3):
            root = tmp_path / f"{number}-{num_parts}"
            root.mkdir()
            cases.append([name, num_parts, str(write_partitions(GRAPHS[name](), root, kind, num_parts, edge_dir))])
    arguments = {"world_size": world_size, "port": get_free_port(), "cases": cases}
    results = run_processes([(f"{HERE}.work", {"rank": rank, **arguments}) for rank in range(world_size)], DEADLINE_S)
    assert sum(len(counts) for counts in results) == len(cases) * (world_size + 1)
    assert min(min(counts) for counts in results) > 0


ONE_PROCESS: dict[str, Any] = {"default": None, "no prefetch": CollocatedDistSamplingWorkerOptions(prefetch_size=0)}


@pytest.mark.parametrize("mode", ONE_PROCESS)
@pytest.mark.parametrize(("name", "edge_dir", "kind"), CASES)
def test_one_partition_needs_no_group(tmp_path: Path, name: str, edge_dir: Direction, kind: str, mode: str) -> None:
    graph = GRAPHS[name]()
    dataset = load(write_partitions(graph, tmp_path, kind, 1, edge_dir))
    assert compare(dataset, graph, input_of(graph), ONE_PROCESS[mode], 2) > 0


@pytest.mark.parametrize(("name", "edge_dir", "kind"), CASES[:2])
def test_one_partition_sampled_by_subprocesses(tmp_path: Path, name: str, edge_dir: Direction, kind: str) -> None:
    graph = GRAPHS[name]()
    dataset = load(write_partitions(graph, tmp_path, kind, 1, edge_dir))
    assert compare(dataset, graph, input_of(graph), MP, 2) > 0
    assert children(os.getpid()) == []
