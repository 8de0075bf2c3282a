"""Features larger than ``feature_memory``: every mode gives the bits of memory, with rows that are read from disk."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from graphlearn_dist.errors import GraphLearnError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RandomPartitioner
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.jobs import load
from tests.support.oracle import assert_same, pyg_tensors
from tests.support.processes import assert_nothing_left, start

pytestmark = pytest.mark.usefixtures("over_unix_sockets")

HERE = "tests.distributed.test_disk"
DEADLINE_S = 240.0
MEMORY = 1 << 20  # for 4 MB and more
EDGE_TYPES = {"u": ("u", "to", "v"), "v": ("v", "to", "u")}


def graph(typed: bool) -> dict[str, Any]:
    """Numbers of nodes, edges, and features of both."""
    generator = torch.Generator().manual_seed(7)
    counts = {"u": 5000, "v": 4000} if typed else {None: 9000}
    ends = {EDGE_TYPES[t]: tuple(EDGE_TYPES[t][::2]) for t in counts} if typed else {None: (None, None)}
    drawn = {
        key: torch.stack([torch.randint(counts[end], (30_000,), generator=generator) for end in pair])
        for key, pair in ends.items()
    }
    nodes = {key: torch.randn(count, 128, generator=generator) for key, count in counts.items()}
    edges = {key: torch.randn(30_000, 16, generator=generator) for key in drawn}
    parts = {"num_nodes": counts, "edges": drawn, "node_feat": nodes, "edge_feat": edges}
    return parts if typed else {name: part[None] for name, part in parts.items()}


def expected_batches(typed: bool, num: int) -> list[dict[str, Any]]:
    """Those of the loader in one process, with features in memory."""
    parts, dataset = graph(typed), Dataset(edge_dir="out")
    dataset.init_graph(parts["edges"], num_nodes=parts["num_nodes"])
    dataset.init_node_features(parts["node_feat"])
    dataset.init_edge_features(parts["edge_feat"])
    return [pyg_tensors(batch) for batch in NeighborLoader(dataset, **arguments(typed), seed=3, prefetch=0)][:num]


def arguments(typed: bool) -> dict[str, Any]:
    seeds: Any = torch.arange(3000)
    inputs = ("u", seeds) if typed else seeds
    return {"num_neighbors": [5, 3], "input_nodes": inputs, "batch_size": 100, "shuffle": True, "with_edge": True}


def make_directory(root: Path, typed: bool, num_parts: int) -> Path:
    parts = graph(typed)
    partitioner = RandomPartitioner(
        str(root / "partitions"),
        num_parts,
        parts["num_nodes"],
        parts["edges"],
        node_feat=parts["node_feat"],
        edge_feat=parts["edge_feat"],
        edge_assign_strategy="by_src",
    )
    return Path(partitioner.partition())


def compare(dataset: DistDataset | None, options: Any, typed: bool) -> None:
    loader = DistNeighborLoader(
        dataset, **arguments(typed), edge_dir="out", collect_features=True, random_seed=3, worker_options=options
    )
    with loader:
        expected = expected_batches(typed, len(loader))
        for batch, wanted in zip(loader, expected, strict=True):
            assert_same(pyg_tensors(batch), wanted)
        next(iter(loader))  # one that is left
        for batch, wanted in zip(range(3), iter(loader), strict=False):
            del batch, wanted


@pytest.mark.parametrize("typed", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_workers_in_this_process_and_beside_it(tmp_path: Path, typed: bool) -> None:
    dataset = load(make_directory(tmp_path, typed, 1))
    dataset.limit_feature_memory(MEMORY)
    compare(dataset, MpDistSamplingWorkerOptions(num_workers=2), typed)
    for ahead in (2, 0):
        before = rows_ahead(dataset)
        compare(dataset, CollocatedDistSamplingWorkerOptions(prefetch_size=ahead), typed)
        assert all(now > then for now, then in zip(rows_ahead(dataset), before, strict=True))


def rows_ahead(dataset: Dataset) -> list[int]:
    """By feature, how many rows this process has read because it knew what would come."""
    tiers = [feature.disk_tier for feature in dataset.features_in_use()]
    return [tier.counts["rows_ahead"] for tier in tiers if tier is not None]


def serve(rank: int, directory: str, port: int, in_place: bool) -> int:
    """A server; how many bytes it has read to answer others."""
    os.environ["GLD_SHARE_PARTITIONS"] = str(int(in_place))
    dataset = load(Path(directory), rank)
    init_server(2, 1, rank, dataset, "127.0.0.1", port, feature_memory=MEMORY)
    wait_and_shutdown_server()
    return sum(each.disk_tier.counts["bytes"] for each in dataset.features_in_use() if each.disk_tier is not None)


@pytest.mark.parametrize(
    ("typed", "in_place"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.thorough),
        pytest.param(True, True, marks=pytest.mark.thorough),
    ],
)
def test_servers(tmp_path: Path, typed: bool, in_place: bool) -> None:
    """Peers read each other's partitions from the same files, or ask for rows, which are then read by who is asked."""
    directory = str(make_directory(tmp_path, typed, 2))
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        given = {"directory": directory, "port": port, "in_place": in_place}
        servers = [stack.enter_context(start(f"{HERE}.serve", rank=rank, **given)) for rank in range(2)]
        init_client(2, 1, 0, "127.0.0.1", port)
        try:
            compare(None, RemoteDistSamplingWorkerOptions([0, 1], num_workers=1, buffer_size="16MB"), typed)
        finally:
            shutdown_client()
        answered = [server.wait(DEADLINE_S) for server in servers]
        assert_nothing_left(*(server.pid for server in servers))
    assert all((count > 0) != in_place for count in answered)


def test_an_error_of_the_disk_reaches_the_trainer(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, False, 1)
    dataset = load(directory)
    dataset.limit_feature_memory(MEMORY)
    options = MpDistSamplingWorkerOptions(num_workers=1)
    loader = DistNeighborLoader(
        dataset, **arguments(False), edge_dir="out", collect_features=True, worker_options=options
    )
    with loader:
        os.truncate(directory / "part0" / "node_feat" / "x.npy", 1000)
        with pytest.raises(GraphLearnError, match=r"node_feat/x\.npy: expected at least \d+ bytes, got 1000"):
            next(iter(loader))
