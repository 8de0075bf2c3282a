"""Walks and PageRank over servers, and by workers, have the bits of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborSampler,
    ServedDataset,
    importance_neighbors,
    init_rpc,
    init_worker_group,
    personalized_pagerank,
    random_walk,
    shutdown_rpc,
)
from graphlearn_dist.errors import NotInitializedError
from graphlearn_dist.sampler import WalkSettings
from tests.support.graphs import EDGE_TYPES, make_dataset
from tests.support.jobs import running_servers
from tests.support.oracle import graph_of, load_partitions, write_partitions
from tests.support.processes import run_processes

DEADLINE_S = 60.0  # only ever reached by a hang
SEEDS = torch.arange(200)


@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_servers(num_servers: int, tmp_path: Path) -> None:
    graph = graph_of("typed")
    data = make_dataset(graph, "out")
    directory = write_partitions(graph, tmp_path, "random", num_servers, "out")
    with running_servers(*[directory] * num_servers, partitions=range(num_servers)) as job, job.client():
        served = ServedDataset.connect(DEADLINE_S)
        path = EDGE_TYPES[:2]
        assert torch.equal(random_walk(served, SEEDS, 5, metapath=path), random_walk(data, SEEDS, 5, metapath=path))
        for q in (0.5, 4.0):
            how = {"metapath": EDGE_TYPES[2:], "p": 3.0, "q": q, "with_weight": True, "restart_prob": 0.1, "seed": 3}
            assert torch.equal(random_walk(served, SEEDS, 4, **how), random_walk(data, SEEDS, 4, **how))
        how = {"metapath": EDGE_TYPES[2:], "p": 1e-4, "q": 1e4, "seed": 4}  # many draw from whole rows
        assert torch.equal(random_walk(served, SEEDS, 4, **how), random_walk(data, SEEDS, 4, **how))
        how = {"num_random_walks": 20, "num_traversals": 2, "metapath": EDGE_TYPES[:2], "seed": 6}
        pairs = zip(
            importance_neighbors(served, SEEDS, 3, **how), importance_neighbors(data, SEEDS, 3, **how), strict=True
        )
        assert all(torch.equal(*pair) for pair in pairs)
        found = personalized_pagerank(served, SEEDS, edge_type=EDGE_TYPES[2], top_k=8)
        expected = personalized_pagerank(data, SEEDS, edge_type=EDGE_TYPES[2], top_k=8)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def work(rank: int, port: int, directory: str) -> list[list[float]]:
    """A worker of two: walks from its own seeds, and what matters to them."""
    init_worker_group(2, rank)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
    options = CollocatedDistSamplingWorkerOptions(rpc_timeout=DEADLINE_S)
    sampler = DistNeighborSampler(load_partitions(Path(directory), 2)[rank], [1], worker_options=options)
    settings = WalkSettings(6, p=0.5, q=2.0, seed=2)
    with pytest.raises(NotInitializedError, match="start_loop"):
        sampler.random_walk(SEEDS, settings)
    sampler.start_loop()
    walks = sampler.random_walk(SEEDS[100 * rank : 100 * rank + 100], settings, first=100 * rank)
    nodes, counts, scores = sampler.personalized_pagerank(SEEDS[100 * rank : 100 * rank + 100], top_k=5)
    sampler.shutdown_loop()
    shutdown_rpc()
    return [*walks.tolist(), nodes.tolist(), counts.tolist(), scores.tolist()]


def test_workers(port: int, tmp_path: Path) -> None:
    graph = graph_of("homogeneous")
    directory = write_partitions(graph, tmp_path, "range", 2, "in")
    function = "tests.distributed.test_walks_over_servers.work"
    jobs = [(function, {"rank": rank, "port": port, "directory": str(directory)}) for rank in range(2)]
    first, second = run_processes(jobs, DEADLINE_S)
    data = make_dataset(graph, "in")
    assert first[:100] + second[:100] == random_walk(data, SEEDS, 6, p=0.5, q=2.0, seed=2).tolist()
    expected = personalized_pagerank(data, SEEDS, top_k=5)
    assert [one + other for one, other in zip(first[100:], second[100:], strict=True)] == [
        *map(torch.Tensor.tolist, expected)
    ]
