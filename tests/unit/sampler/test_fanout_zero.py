"""A fan-out of 0 takes no neighbors of that hop and edge type, whatever is sampled and however it is drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader as PyGNodeLoader

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.distributed.sampling.batches import NoPeers, PartitionedGraph
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.convert import message_type
from graphlearn_dist.sampler.tasks import SeedList
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import WAYS, config_for, graph_for
from tests.support.graphs import EDGE_TYPES, MAX_TIME, make_dataset
from tests.support.oracle import load_partitions, pyg_tensors, write_partitions

BUYS, REV, KNOWS = EDGE_TYPES
SEEDS = torch.arange(40)
LOADERS = {"node": NeighborLoader, "link": LinkNeighborLoader, "subgraph": SubGraphLoader}
# Induced subgraphs have neither trees nor times.
TASKS = [
    (task, way)
    for task in LOADERS
    for way, settings in WAYS.items()
    if task != "subgraph" or not settings.keys() & {"temporal_strategy", "disjoint"}
]


def loader_of(kind: str, task: str, way: str, fanouts: Any) -> Any:
    settings: dict[str, Any] = {**WAYS[way], "with_edge": True, "batch_size": 16, "prefetch": 0, "seed": 3}
    times = settings.get("temporal_strategy") is not None
    typed = kind == "typed"
    if task == "link":
        pairs = torch.stack([SEEDS, SEEDS.flip(0)])
        settings["edge_label_index"] = (BUYS, pairs) if typed else pairs
        settings |= {"edge_label_time": torch.full((40,), MAX_TIME)} if times else {}
    else:
        settings["input_nodes"] = ("user", SEEDS) if typed else SEEDS
        settings |= {"input_time": torch.full((40,), MAX_TIME)} if times else {}
    return LOADERS[task](make_dataset(graph_for(kind, WAYS[way])), num_neighbors=fanouts, **settings)


def without_counts(batch: Any) -> dict[str, Any]:
    return {key: value for key, value in pyg_tensors(batch).items() if "num_sampled" not in key}


def assert_equal(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(torch.as_tensor(actual[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize(("task", "way"), TASKS)
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_hops_behind_it_reach_nobody(kind: str, task: str, way: str) -> None:
    """[3, 0, 2] is [3] with two empty hops; [0, 4] has the seeds alone."""
    for batch, short in zip(loader_of(kind, task, way, [3, 0, 2]), loader_of(kind, task, way, [3]), strict=True):
        assert_equal(without_counts(batch), without_counts(short))
        for store, other in zip(batch.stores, short.stores, strict=True):
            for name in ("num_sampled_nodes", "num_sampled_edges"):
                if name in store:
                    assert store[name] == [*other[name], 0, 0]
    for batch in loader_of(kind, task, way, [0, 4]):
        for store in batch.stores:
            assert sum(store.get("num_sampled_nodes", [0])[1:]) == 0
            if task != "subgraph" and "edge_index" in store:
                assert store.edge_index.shape == (2, 0)
                assert store.num_sampled_edges == [0, 0]


def test_types_are_left_out_hop_by_hop() -> None:
    """0 in a list of a type is as if that type were not asked for in that hop."""
    asked = {BUYS: [4, 0], REV: [0, 3], KNOWS: [0, 0]}
    for batch in loader_of("typed", "node", "uniform", asked):
        counts = {name: batch[message_type(name, "out")].num_sampled_edges for name in EDGE_TYPES}
        assert {name: [count > 0 for count in by_hop] for name, by_hop in counts.items()} == {
            BUYS: [True, False],
            REV: [False, True],
            KNOWS: [False, False],
        }


@pytest.mark.parametrize("way", WAYS)
def test_one_hop_by_hand(way: str) -> None:
    graph = make_dataset(graph_for("homogeneous", WAYS[way])).graph
    settings = {key: value for key, value in WAYS[way].items() if key in ("strategy", "with_weight", "replace")}
    out = NeighborSampler(graph, with_edge=True, **settings).sample_one_hop(SEEDS, 0)
    assert out.nbr_num.tolist() == [0] * 40
    assert out.edge is not None
    assert (out.nbr.numel(), out.edge.numel()) == (0, 0)
    with pytest.raises(UnknownIdError, match="300"):
        NeighborSampler(graph, **settings).sample_one_hop(torch.tensor([300]), 0)


def test_probabilities() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    sampler = NeighborSampler(dataset.graph, [0, 2])
    found = sampler.sample_prob(NodeSamplerInput(SEEDS), 300)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [1.0] * 40 + [0.0] * 260


def test_pyg_loaders() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}), "in")
    sampler = PyGSampler(dataset, [2, 0], with_edge=True)
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=300)
    for batch in PyGNodeLoader(data, sampler, input_nodes=SEEDS, batch_size=16):
        assert batch.num_sampled_edges[1] == 0
        assert batch.num_sampled_edges[0] == batch.edge_index.size(1) > 0


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_partitions_at_hand_in_pieces(kind: str, tmp_path: Any) -> None:
    graph = graph_for(kind, {})
    parts: list[DistDataset] = load_partitions(write_partitions(graph, tmp_path, "random", 2, "out"), 2)
    plan = make_plan(parts[0], config_for([2, 0], {}))
    services = [PartitionService(part) for part in parts]
    access = PartitionedGraph(parts[0], plan, services, NoPeers())
    seeds = SeedList(len(plan.schema.node_types) - 1, SEEDS)
    ((made, _),) = run_local(access.sample([((seeds,), 0, 0)]))
    assert {edges[1] for edges in made.num_sampled_edges} == {0}
    assert made.num_edges > 0
