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
    DistLinkNeighborLoader,
    DistLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    init_worker_group,
    shutdown_rpc,
)
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler.base import NegativeSampling
from graphlearn_dist.utils.common import get_free_port
from tests.support.graphs import MAX_TIME, Direction, TestGraph, make_dataset, with_times, with_weights
from tests.support.jobs import NUM_NODES, children, load
from tests.support.oracle import GRAPHS, LOADER, SEED, assert_same, input_of, pyg_tensors, write_partitions
from tests.support.processes import run_processes

HERE = "tests.distributed.test_modes"
DEADLINE_S = 300.0  # only ever reached by a hang
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


def graph_of(name: str) -> TestGraph:
    """One of the shared graphs, with weights and times."""
    return with_times(with_weights(GRAPHS[name](), 3, some_zero=True), 4)


def links_of(graph: TestGraph, rank: int, world_size: int) -> Any:
    """One worker's part of some links, as a loader takes them; most are edges."""
    edge_type = None if graph.is_homogeneous else ("user", "buys", "item")
    links = graph.edges[edge_type][:, rank : 60 * world_size : world_size]
    return links if edge_type is None else (edge_type, links)


KINDS: dict[str, dict[str, Any]] = {
    "node": {},
    "weighted": {"with_weight": True},
    "temporal": {"input_time": True, "temporal_strategy": "last"},
    "trees": {"strategy": "labor", "disjoint": True},
    "links": {"neg_sampling": NegativeSampling("binary", 1.5, strict=True)},
    "triplets": {"neg_sampling": NegativeSampling("triplet", 2)},
    "subgraph": {},
}


def open_loaders(
    kind: str, dataset: DistDataset, graph: TestGraph, place: tuple[int, int], options: Any
) -> tuple[DistLoader, Any]:
    """A distributed loader, and the one in one process with the same arguments."""
    whole, shared = make_dataset(graph, dataset.edge_dir), {**LOADER, **KINDS[kind]}
    local: Any = {"seed": SEED, "prefetch": 0, **shared}
    far: Any = {
        "edge_dir": dataset.edge_dir, "collect_features": True, "random_seed": SEED, "worker_options": options, **shared
    }  # fmt: skip
    if kind in ("links", "triplets"):
        local["edge_label_index"] = far["edge_label_index"] = links_of(graph, *place)
        return DistLinkNeighborLoader(dataset, FANOUTS, **far), LinkNeighborLoader(whole, FANOUTS, **local)
    seeds = share_of(graph, *place)
    if kind == "subgraph":
        return DistSubGraphLoader(dataset, seeds, FANOUTS, **far), SubGraphLoader(whole, seeds, FANOUTS, **local)
    if kind == "temporal":
        count = (seeds[1] if isinstance(seeds, tuple) else seeds).numel()
        local["input_time"] = far["input_time"] = torch.arange(count) % (MAX_TIME + 1)
    return DistNeighborLoader(dataset, FANOUTS, seeds, **far), NeighborLoader(whole, FANOUTS, seeds, **local)


def compare(
    kind: str, dataset: DistDataset, graph: TestGraph, options: Any, epochs: int, place: tuple[int, int] = (0, 1)
) -> int:
    """How many batches of a loader are those of the loader in one process, in the same order."""
    far, local = open_loaders(kind, dataset, graph, place, options)
    compared = 0
    with far:
        assert len(far) == len(local)
        for _ in range(epochs):
            for batch, expected in zip(far, local, strict=True):
                assert_same(pyg_tensors(batch), pyg_tensors(expected))
                compared += 1
    return compared


def kinds_of(number: int) -> list[str]:
    """What is sampled in a case: over all cases, everything with both kinds of graph and both numbers of partitions."""
    return list(KINDS)[(0, 1, 1, 0)[number // 2] :: 2]


def work(rank: int, world_size: int, port: int, cases: list[list[Any]]) -> list[int]:
    """A worker: every case in collocated mode, each case on one worker in multiprocessing mode too.

    Worker 0 is through earlier than the others, and goes on answering them.
    """
    meeting = {"master_addr": "127.0.0.1", "master_port": port, "rpc_timeout": DEADLINE_S}
    init_worker_group(world_size, rank)
    compared = []
    for number, (name, num_parts, directory) in enumerate(cases):
        graph, dataset = graph_of(name), load(Path(directory), rank % num_parts)
        epochs, kinds = 1 if rank == 0 else 2, kinds_of(number)
        for kind in kinds:
            collocated = CollocatedDistSamplingWorkerOptions(**meeting, prefetch_size=number % 3)
            compared.append(compare(kind, dataset, graph, collocated, epochs, (rank, world_size)))
        if number % world_size == rank:
            mp = replace(MP, num_workers=1 + number % 2, num_threads=1 + number % 2, **meeting)
            compared.append(compare(kinds[number % len(kinds)], dataset, graph, mp, epochs, (rank, world_size)))
    shutdown_rpc()
    return compared


@pytest.mark.parametrize("in_place", [False, True])
def test_batches_of_a_group_equal_local_ones(tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of graph over two and three partitions; where there are two, two of three workers hold the same, and
    where there are three, features lie in other partitions than their nodes and edges."""
    monkeypatch.setenv("GLD_SHARE_PARTITIONS", str(int(in_place)))
    world_size, cases = 3, []
    for number, (name, edge_dir, kind) in enumerate(CASES):
        for num_parts in (2, 3):
            root = tmp_path / f"{number}-{num_parts}"
            root.mkdir()
            own = num_parts == 3
            written = write_partitions(graph_of(name), root, kind, num_parts, edge_dir, own_feature_books=own)
            cases.append([name, num_parts, str(written)])
    arguments = {"world_size": world_size, "port": get_free_port(), "cases": cases}
    results = run_processes([(f"{HERE}.work", {"rank": rank, **arguments}) for rank in range(world_size)], DEADLINE_S)
    assert sum(len(counts) for counts in results) == world_size * 4 * len(KINDS) + len(cases)
    assert min(min(counts) for counts in results) > 0


ONE_PROCESS: dict[str, Any] = {"default": None, "no prefetch": CollocatedDistSamplingWorkerOptions(prefetch_size=0)}


@pytest.mark.parametrize("mode", ONE_PROCESS)
@pytest.mark.parametrize(("name", "edge_dir", "kind"), CASES)
def test_one_partition_needs_no_group(tmp_path: Path, name: str, edge_dir: Direction, kind: str, mode: str) -> None:
    graph = graph_of(name)
    dataset = load(write_partitions(graph, tmp_path, kind, 1, edge_dir))
    for what in KINDS:
        assert compare(what, dataset, graph, ONE_PROCESS[mode], 2) > 0


@pytest.mark.parametrize(("name", "edge_dir", "kind"), CASES[:2])
def test_one_partition_sampled_by_subprocesses(tmp_path: Path, name: str, edge_dir: Direction, kind: str) -> None:
    before = children(os.getpid())
    graph = graph_of(name)
    dataset = load(write_partitions(graph, tmp_path, kind, 1, edge_dir))
    assert compare("node" if graph.is_homogeneous else "links", dataset, graph, MP, 2) > 0
    assert children(os.getpid()) == before
