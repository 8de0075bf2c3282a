"""Subgraphs and links from a GPU are those of the CPU, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist.loader import LinkNeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NodeSamplerInput, SamplingType
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.local_graph import LocalGraph
from tests.support.device_batches import (
    LINK_WAYS,
    NEGATIVES,
    assert_same_batches,
    assert_same_data,
    config_for,
    crowded_graph,
    graph_for,
    link_graph,
    links_for,
    on_device,
)
from tests.support.gpu import GPU, needs_gpu
from tests.support.graphs import TestGraph, make_dataset

pytestmark = needs_gpu
KINDS = ["homogeneous", "typed"]


def dataset_on_gpu(graph: TestGraph, mode: str) -> Any:
    """The test's data set with graphs on the GPU, and features on the host."""
    dataset = make_dataset(graph)
    dataset.init_graph(graph.unwrap(graph.edges), num_nodes=graph.unwrap(graph.num_nodes), graph_mode=mode, device=0)
    return dataset


def assert_same_loaders(expected: Any, found: Any) -> None:
    """Two epochs of PyG objects are equal, and what was made on the GPU is there."""
    for _ in range(2):
        for one, other in zip(expected, found, strict=True):
            assert_same_data(other, one)
            assert all(store.edge_index.is_cuda for store in other.edge_stores if "edge_index" in store)


@pytest.mark.parametrize("placement", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("fanouts", [None, [3, 2], [-1]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_subgraphs_are_those_of_the_cpu(kind: str, fanouts: list[int] | None, placement: str) -> None:
    dataset = make_dataset(graph_for(kind, {}))
    inputs = NodeSamplerInput(torch.arange(90).repeat(2), None if kind == "homogeneous" else "user")
    config = config_for(fanouts, {"shuffle": True}, SamplingType.SUBGRAPH)
    local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU, placement)
    assert_same_batches(local, device, dataset, inputs, config)


def test_a_subgraph_with_a_row_of_many_tiles() -> None:
    edges = torch.randint(0, 20_000, (2, 400_000), generator=torch.Generator().manual_seed(1))
    edges[0, :100_000] = 17
    dataset = make_dataset(TestGraph({None: 20_000}, {None: edges}, {}))
    config = config_for([10], {"batch_size": 2000}, SamplingType.SUBGRAPH)
    local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
    assert_same_batches(local, device, dataset, NodeSamplerInput(torch.arange(4000)), config)


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("kind", KINDS)
def test_subgraph_loaders_give_the_batches_of_the_cpu(kind: str, mode: str) -> None:
    graph = graph_for(kind, {})
    nodes: Any = torch.arange(100) if kind == "homogeneous" else ("user", torch.arange(100))
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "with_edge": True, "seed": 4}
    loaders = [
        SubGraphLoader(data, nodes, [3, 2], **settings) for data in (make_dataset(graph), dataset_on_gpu(graph, mode))
    ]
    assert_same_loaders(*loaders)


@pytest.mark.parametrize("placement", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_links_are_those_of_the_cpu(kind: str, negatives: str, placement: str) -> None:
    for way in LINK_WAYS.values():
        graph = link_graph(kind, way)
        dataset, inputs = make_dataset(graph), links_for(graph, negatives, way)
        config = config_for([3, 2], {**way, "with_neg": negatives != "none"}, SamplingType.LINK)
        local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU, placement)
        assert_same_batches(local, device, dataset, inputs, config)


@pytest.mark.parametrize("negatives", ["binary-strict", "triplet-strict"])
def test_strict_negatives_where_most_pairs_are_edges(negatives: str) -> None:
    dataset, inputs = make_dataset(crowded_graph(30)), links_for(crowded_graph(30), negatives, {})
    config = config_for([2], {"with_neg": True}, SamplingType.LINK)
    local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU)
    assert_same_batches(local, device, dataset, inputs, config)


@pytest.mark.parametrize("negatives", ["none", "binary-strict", "triplet"])
@pytest.mark.parametrize("kind", KINDS)
def test_link_loaders_give_the_batches_of_the_cpu(kind: str, negatives: str) -> None:
    graph = graph_for(kind, {})
    links = links_for(graph, negatives, {})
    pairs: Any = torch.stack([links.row, links.col])
    settings: dict[str, Any] = {"neg_sampling": links.neg_sampling, "batch_size": 16, "shuffle": True, "seed": 4}
    loaders = [
        LinkNeighborLoader(
            data, [3, 2], edge_label_index=pairs if kind == "homogeneous" else (links.input_type, pairs), **settings
        )
        for data in (make_dataset(graph), dataset_on_gpu(graph, "CUDA"))
    ]
    assert_same_loaders(*loaders)
