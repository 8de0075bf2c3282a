"""What a GPU makes is what the CPU makes, bit by bit. Run by ``make gpu``; see docs/gpu.md for what has been run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist.data import Feature, UnifiedTensor
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.local_graph import LocalGraph
from graphlearn_dist.sampler.tasks import SeedList
from tests.support.device_batches import (
    FANOUTS,
    WAYS,
    assert_same,
    assert_same_data,
    config_for,
    graph_for,
    on_device,
    sample,
    seeds_for,
)
from tests.support.gpu import GPU, needs_gpu
from tests.support.graphs import TestGraph, make_dataset

pytestmark = needs_gpu


@pytest.mark.parametrize("placement", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_batches_are_those_of_the_cpu(kind: str, way: str, placement: str) -> None:
    graph = graph_for(kind, WAYS[way])
    dataset, seeds = make_dataset(graph), seeds_for(graph, WAYS[way])
    for fanouts in FANOUTS:
        config = config_for(fanouts, WAYS[way])
        local, device = LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, GPU, placement)
        for index in range(3):
            assert_same(sample(device, seeds, index), sample(local, seeds, index))


def test_batches_on_another_stream() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    config, seeds = config_for([4, 3], {}), seeds_for(graph_for("homogeneous", {}), {})
    device = on_device(dataset, config, GPU)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = sample(device, seeds, 0)
    assert_same(found, sample(LocalGraph(dataset, make_plan(dataset, config)), seeds, 0))


def test_a_batch_of_many_tiles() -> None:
    graph = TestGraph({None: 50_000}, {None: torch.randint(0, 50_000, (2, 1_000_000))}, {})
    dataset = make_dataset(graph)
    config, seeds = config_for([15, 10, 5], {}), (SeedList(0, torch.randint(0, 50_000, (1024,))),)
    expected = sample(LocalGraph(dataset, make_plan(dataset, config)), seeds, 4)
    assert_same(sample(on_device(dataset, config, GPU), seeds, 4), expected)


def test_a_seed_outside_the_graph_is_named() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    device = on_device(dataset, config_for([2], {}), GPU)
    with pytest.raises(UnknownIdError, match="node id 300, at position 2"):
        sample(device, (SeedList(0, torch.tensor([1, 2, 300])),), 0)


def dataset_on_gpu(graph: TestGraph, mode: str) -> Any:
    dataset = make_dataset(graph)
    dataset.init_graph(graph.unwrap(graph.edges), num_nodes=graph.unwrap(graph.num_nodes), graph_mode=mode, device=0)
    dataset.init_node_features(graph.unwrap(graph.node_features()), split_ratio=0.4)
    return dataset


@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_loaders_give_the_batches_of_the_cpu(kind: str, mode: str) -> None:
    graph = graph_for(kind, {})
    nodes: Any = torch.arange(100) if kind == "homogeneous" else ("user", torch.arange(100))
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "with_edge": True, "seed": 4}
    loaders = [
        NeighborLoader(data, [3, 2], nodes, device=GPU, **settings)
        for data in (make_dataset(graph), dataset_on_gpu(graph, mode))
    ]
    for _ in range(2):
        for expected, found in zip(*loaders, strict=True):
            assert_same_data(found, expected)
            assert all(store.n_id.device == GPU for store in found.node_stores)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gathers_are_those_of_the_cpu(stored: torch.dtype, wanted: torch.dtype) -> None:
    rows = (torch.randn(5000, 100) * 100).to(stored)
    ids = torch.randint(0, 5000, (20_000,))
    expected = Feature(rows, dtype=None, out_dtype=wanted)[ids]
    for split_ratio in (0.3, 1.0):
        feature = Feature(rows, split_ratio=split_ratio, device=0, dtype=None, out_dtype=wanted)
        assert torch.equal(feature[ids].cpu(), expected)
        assert torch.equal(feature[ids.to(GPU)].cpu(), expected)


def test_unified_tensor_over_device_and_host() -> None:
    rows = torch.arange(600).view(200, 3).float()
    tensor = UnifiedTensor(0)
    tensor.init_from([rows[:50], rows[50:120], rows[120:]], [0, -1, 0])
    ids = torch.randint(0, 200, (1000,))
    assert tensor[ids].device == GPU
    assert torch.equal(tensor[ids].cpu(), rows[ids])
    with pytest.raises(UnknownIdError, match=r"ids\[1\]: row 200"):
        tensor[torch.tensor([0, 200])]


def test_nothing_is_kept_over_many_batches() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    seeds = seeds_for(graph_for("homogeneous", {}), {})
    device = on_device(dataset, config_for([4, 3], {}), GPU)
    sample(device, seeds, 0)
    held = torch.cuda.memory_allocated()
    for index in range(200):
        sample(device, seeds, index)
    assert torch.cuda.memory_allocated() == held
