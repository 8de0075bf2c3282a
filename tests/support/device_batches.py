"""Ways to sample, and batches of two graphs compared: the CPU's, and those of kernels."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from graphlearn_dist.messages import Subgraph
from graphlearn_dist.sampler import SamplingConfig, SamplingType
from graphlearn_dist.sampler.tasks import GraphAccess, SeedList
from graphlearn_dist.utils.coroutines import run_local

from .graphs import MAX_TIME, TestGraph, random_graph, typed_graph, with_times, with_weights

WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"with_weight": True},
    "weighted-replace": {"with_weight": True, "replace": True},
    "labor": {"strategy": "labor"},
    "labor-disjoint": {"strategy": "labor", "disjoint": True},
    "times": {"temporal_strategy": "uniform"},
    "times-weighted": {"temporal_strategy": "uniform", "with_weight": True},
    "times-last": {"temporal_strategy": "last"},
}
FANOUTS = ([4, 3, 2], [-1, 2], [120, 1])


def graph_for(kind: str, way: dict[str, Any]) -> TestGraph:
    """A random graph, ``"homogeneous"`` or ``"typed"``, with the weights and times that a way needs."""
    graph = random_graph(300, 4000, 5) if kind == "homogeneous" else typed_graph(200, 90, 2500, 6)
    if way.get("with_weight"):
        graph = with_weights(graph, 7, some_zero=True)
    return with_times(graph, 8) if "temporal_strategy" in way else graph


def config_for(fanouts: list[int], way: dict[str, Any]) -> SamplingConfig:
    """The settings of a loader of nodes."""
    fixed = {"batch_size": 32, "shuffle": False, "drop_last": False, "with_edge": True, "collect_features": False}
    settings = {"with_neg": False, "with_weight": False, "edge_dir": "out", "seed": 3, **fixed, **way}
    return SamplingConfig(sampling_type=SamplingType.NODE, num_neighbors=fanouts, **settings)


def seeds_for(graph: TestGraph, way: dict[str, Any], *, count: int = 32) -> tuple[SeedList, ...]:
    """A list of seeds, some twice; two lists of different types where nodes may be collapsed."""
    draw = torch.Generator().manual_seed(9)
    node_types = sorted(graph.num_nodes, key=str)
    timed = "temporal_strategy" in way

    def seeds(number: int, *, unique: bool) -> SeedList:
        ids = torch.randint(0, graph.num_nodes[node_types[number]], (count,), generator=draw)
        times = torch.randint(0, MAX_TIME + 1, (count,), generator=draw) if timed else None
        return SeedList(number, ids, times, unique)

    last = len(node_types) - 1
    return seeds(last, unique=False), seeds(0, unique=True), seeds(last, unique=True)


def sample(graph: GraphAccess, seeds: tuple[SeedList, ...], index: int) -> tuple[Subgraph, tuple[torch.Tensor, ...]]:
    """Batch ``index`` of epoch 2."""
    return run_local(graph.sample(seeds, epoch=2, index=index))


def assert_same(
    actual: tuple[Subgraph, tuple[torch.Tensor, ...]], expected: tuple[Subgraph, tuple[torch.Tensor, ...]]
) -> None:
    """Equal bit by bit, wherever the tensors lie."""
    for one, other in zip(actual[1], expected[1], strict=True):
        assert torch.equal(one.cpu(), other)
    for field in fields(Subgraph):
        for one, other in zip(getattr(actual[0], field.name), getattr(expected[0], field.name), strict=True):
            if isinstance(other, torch.Tensor):
                assert torch.equal(one.cpu(), other), field.name
            else:
                assert one == other, field.name
