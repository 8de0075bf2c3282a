"""What programs read of PyG's own sampler, and its outputs' ``metadata``."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NeighborSampler, NodeSamplerInput

from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.errors import InvalidArgumentError
from tests.support.graphs import random_edges

TYPES = ("b", "to", "a")


def homogeneous() -> Data:
    data = Data(edge_index=random_edges(9, 9, 30, 3), num_nodes=9, time=torch.arange(9))
    data.edge_time, data.edge_weight = torch.arange(30) * 7 % 30, torch.arange(30) + 0.5
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data["b"].num_nodes, data["a"].num_nodes = 9, 8
    data["b"].time, data["a"].time = torch.arange(9), torch.arange(8)
    data[TYPES].edge_index, data["a", "to", "b"].edge_index = random_edges(9, 8, 30, 3), random_edges(8, 9, 20, 4)
    data[TYPES].edge_time, data[TYPES].edge_weight = torch.arange(30) * 7 % 30, torch.arange(30) + 0.5
    return data


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "times of nodes": {"time_attr": "time", "temporal_strategy": "last"},
    "others": {"replace": True, "disjoint": True, "subgraph_type": "bidirectional"},
}
NAMES = (
    "num_nodes", "is_hetero", "is_temporal", "edge_time", "edge_weight", "replace", "disjoint", "subgraph_type",
    "temporal_strategy", "num_neighbors", "sample_direction", "keep_orig_edges",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib'")
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", [homogeneous, typed])
def test_what_programs_read_of_a_sampler(make: Any, settings: str) -> None:
    data = make()
    ours, pygs = (kind(data, num_neighbors=[2], **SETTINGS[settings]) for kind in (PyGSampler, NeighborSampler))
    for name in NAMES:
        assert getattr(ours, name) == getattr(pygs, name), name
    if settings != "times of nodes":
        assert ours.node_time is pygs.node_time is None
    elif make is homogeneous:
        assert torch.equal(ours.node_time, pygs.node_time)
    else:
        assert {key: times.tolist() for key, times in ours.node_time.items()} == {
            key: times.tolist() for key, times in pygs.node_time.items()
        }
    if make is typed:
        assert (ours.node_types, ours.edge_types) == (pygs.node_types, pygs.edge_types)
    else:  # as PyG has them of stores
        assert (ours.node_types, ours.edge_types) == ([None], [None])


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_times_and_weights_of_edges_are_those_of_their_ids(make: Any) -> None:
    data, key = make(), "__".join(TYPES)
    times = PyGSampler(data, [2], time_attr="edge_time").edge_time
    weights = PyGSampler(data, [2], weight_attr="edge_weight").edge_weight
    store = data[TYPES] if make is typed else data
    assert torch.equal(times[key] if make is typed else times, store.edge_time)
    assert torch.equal(weights[key] if make is typed else weights, store.edge_weight)


def test_settings_that_programs_change() -> None:
    data = Data(edge_index=torch.tensor([[1], [0]]), num_nodes=2)
    sampler = PyGSampler(data, [3])
    seeds, twice = (NodeSamplerInput(None, torch.zeros(count, dtype=torch.int64)) for count in (1, 2))
    assert sampler.sample_from_nodes(seeds).row.tolist() == [1]
    sampler.replace = True
    assert sampler.sample_from_nodes(seeds).row.tolist() == [1, 1, 1]
    sampler.replace, sampler.disjoint, sampler.num_neighbors = False, True, [1]
    assert sampler.sample_from_nodes(twice).batch.tolist() == [0, 1, 0, 1]
    induced = PyGSampler(data, [3], subgraph_type="induced")
    with pytest.raises(InvalidArgumentError, match="disjoint"):
        induced.disjoint = True
    assert not induced.disjoint


def test_names_and_times_of_seeds_are_in_the_metadata_as_they_came() -> None:
    data = homogeneous()
    plain, timed = PyGSampler(data, [2]), PyGSampler(data, [2], time_attr="time")
    nodes, ends = torch.tensor([1, 2]), (torch.tensor([0, 1]), torch.tensor([3, 4]))
    assert plain.sample_from_nodes(NodeSamplerInput(None, nodes)).metadata == (None, None)
    found = plain.sample_from_edges(EdgeSamplerInput(None, *ends)).metadata
    assert (found[0], found[2:], found[1].tolist()) == (None, (None, None), [[0, 1], [2, 3]])
    times = torch.tensor([8, 8], dtype=torch.int32)
    assert timed.sample_from_nodes(NodeSamplerInput(nodes, nodes, times)).metadata == (nodes, times)
    links = EdgeSamplerInput(None, *ends, None, times)
    for mode, count in (("binary", 4), ("triplet", 2)):
        found = timed.sample_from_edges(links, NegativeSampling(mode)).metadata
        assert found[0] is None
        assert (found[-1].tolist(), found[-1].dtype) == ([8] * count, torch.int32)


def test_what_is_asked_for_again_is_drawn_anew() -> None:
    data = Data(edge_index=random_edges(200, 200, 4000, 3), num_nodes=200)
    nodes, links = NodeSamplerInput(None, torch.arange(9)), EdgeSamplerInput(None, *data.edge_index[:, :9])
    sampler, again = (PyGSampler(data, [3], seed=1) for _ in range(2))

    def ask(sampler: PyGSampler) -> list[list[int]]:
        found = [sampler.sample_from_nodes(nodes).node.tolist() for _ in range(2)]
        negatives = [sampler.sample_from_edges(links, NegativeSampling("binary")) for _ in range(2)]
        found += [out.metadata[1].tolist() for out in negatives] + [out.node.tolist() for out in negatives]
        assert all(found[at] != found[at + 1] for at in (0, 2, 4))
        return found

    first = ask(sampler)
    assert first == ask(again)
    assert ask(sampler) != first
    sampler.set_epoch(0)
    assert ask(sampler) == first
    copied = pickle.loads(pickle.dumps(sampler))
    sampler.set_epoch(4)
    assert ask(sampler) == ask_in_epoch(again, 4, ask) != first
    copied.set_epoch(4)
    assert ask(copied) == ask_in_epoch(again, 4, ask)


def ask_in_epoch(sampler: PyGSampler, epoch: int, ask: Any) -> Any:
    sampler.set_epoch(epoch)
    return ask(sampler)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_epochs_of_pygs_loader_differ(options: dict[str, Any]) -> None:
    """Nobody calls ``set_epoch``, as in PyG's programs; their seed is torch's."""
    data = Data(edge_index=random_edges(200, 200, 4000, 3), num_nodes=200)

    def epochs() -> list[list[list[int]]]:
        torch.manual_seed(3)
        sampler = PyGSampler(data, [3], seed=1)
        loader = NeighborLoader(data, [3], torch.arange(20), neighbor_sampler=sampler, batch_size=10, **options)
        return [[batch.n_id.tolist() for batch in loader] for _ in range(3)]

    found = epochs()
    assert all(one != other for one, other in itertools.combinations(found, 2))
    assert found == epochs()
