"""The in-process loader: the contract of PyG's ``NeighborLoader``, values and not shapes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph, trim_to_layer

from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.typing import Split, reverse_edge_type
from tests.support.graphs import (
    EDGE_TYPES,
    Case,
    Direction,
    analytic_graph,
    cases,
    make_dataset,
    random_graph,
    typed_graph,
)


def loader_of(case: Case, **options: Any) -> NeighborLoader:
    settings_ = {"batch_size": case.batch_size, "shuffle": case.shuffle, "replace": case.replace, "seed": case.seed}
    dataset = make_dataset(case.graph, case.edge_dir)
    return NeighborLoader(dataset, case.fanouts, case.input_nodes, with_edge=True, **{**settings_, **options})


def check_edges(case: Case, edge_type: Any, source_ids: torch.Tensor, target_ids: torch.Tensor, store: Any) -> None:
    """Every edge of the batch is the edge of the graph with its id; messages run from neighbor to seed."""
    sender, receiver = source_ids[store.edge_index[0]], target_ids[store.edge_index[1]]
    place = {int(edge_id): i for i, edge_id in enumerate(case.graph.ids_of(edge_type))}
    positions = torch.tensor([place[int(edge_id)] for edge_id in store.e_id], dtype=torch.int64)
    source, target = case.graph.edges[edge_type][:, positions]
    expected = (source, target) if case.edge_dir == "in" else (target, source)
    assert torch.equal(torch.stack([sender, receiver]), torch.stack(expected))
    assert sum(store.num_sampled_edges) == store.edge_index.size(1) == store.e_id.numel()
    table = case.graph.edge_features()
    assert ("edge_attr" in store) == (edge_type in table)
    if edge_type in table:
        assert torch.equal(store.edge_attr, table[edge_type][store.e_id])


def check_nodes(case: Case, node_type: Any, store: Any) -> None:
    assert store.num_nodes == store.n_id.numel() == sum(store.num_sampled_nodes)
    for name, table in (("x", case.graph.node_features()), ("y", case.graph.node_labels())):
        assert (name in store) == (node_type in table)
        if node_type in table:
            assert torch.equal(store[name], table[node_type][store.n_id])
    first = store.batch_size if "batch_size" in store else 0
    assert store.num_sampled_nodes[0] == first
    found = store.n_id[first:].tolist()  # only seeds may stand twice
    assert len(set(found)) == len(found)
    assert not set(found) & set(store.n_id[:first].tolist())


def check_seeds(case: Case, store: Any) -> None:
    assert torch.equal(store.n_id[: store.batch_size], case.seeds[store.input_id])
    assert "batch" not in store  # PyG's poolings would take it for a graph of each node


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_homogeneous_contract(data: st.DataObject) -> None:
    case = data.draw(cases(typed=False))
    seen: list[int] = []
    for batch in loader_of(case):
        assert type(batch) is Data
        check_seeds(case, batch)
        check_nodes(case, None, batch)
        check_edges(case, None, batch.n_id, batch.n_id, batch)
        seen += batch.input_id.tolist()
    assert sorted(seen) == list(range(len(case.seeds)))


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_typed_contract(data: st.DataObject) -> None:
    """Types that a batch did not reach are there, and empty."""
    case = data.draw(cases(typed=True))
    for batch in loader_of(case):
        assert type(batch) is HeteroData
        check_seeds(case, batch[case.seed_type])
        assert set(batch.node_types) == set(case.graph.num_nodes)
        for node_type in batch.node_types:
            check_nodes(case, node_type, batch[node_type])
        for edge_type in EDGE_TYPES:
            message_type = edge_type if case.edge_dir == "in" else reverse_edge_type(edge_type)
            senders, receivers = batch[message_type[0]].n_id, batch[message_type[2]].n_id
            check_edges(case, edge_type, senders, receivers, batch[message_type])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@given(data=st.data(), explicit=st.booleans())
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_full_neighborhoods_are_those_of_pyg(edge_dir: Direction, data: st.DataObject, explicit: bool) -> None:
    """[-1, -1] reaches the nodes of PyG's 2-hop subgraph, over exactly the edges that enter (leave) its 1-hop subgraph,
    each once, repeated edges told apart by their ids."""
    sizes = data.draw(st.tuples(st.integers(1, 30), st.integers(0, 120), st.integers(0, 999)))
    graph = random_graph(*sizes, explicit_edge_ids=explicit)
    num_nodes, edges, ids = graph.num_nodes[None], graph.edges[None], graph.ids_of(None)
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=5, unique=True)))
    flow = "source_to_target" if edge_dir == "in" else "target_to_source"
    inner, outer = (k_hop_subgraph(seeds, k, edges, num_nodes=num_nodes, flow=flow)[0] for k in (1, 2))
    sampled_for = edges[1] if edge_dir == "in" else edges[0]
    loader = NeighborLoader(make_dataset(graph, edge_dir), [-1, -1], seeds, batch_size=len(seeds), with_edge=True)
    (batch,) = list(loader)
    assert sorted(batch.n_id.tolist()) == sorted(outer.tolist())
    assert sorted(batch.e_id.tolist()) == sorted(ids[torch.isin(sampled_for, inner)].tolist())


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("fanouts", [[3, 2, 2], [-1, -1]])
def test_trim_to_layer(edge_dir: Direction, fanouts: list[int]) -> None:
    """Messages of the last hop are not needed in the second layer: aggregating over trimmed edges gives the seeds the
    same result as aggregating over all of them."""
    graph = random_graph(200, 2000, 4)
    loader = NeighborLoader(make_dataset(graph, edge_dir), fanouts, torch.arange(10).repeat(2), batch_size=20)
    (batch,) = list(loader)

    def layer(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])

    full, trimmed, edge_index = batch.x.double(), batch.x.double(), batch.edge_index
    sizes = []
    for i in range(len(fanouts)):
        trimmed, edge_index, _ = trim_to_layer(i, batch.num_sampled_nodes, batch.num_sampled_edges, trimmed, edge_index)
        full, trimmed = layer(full, batch.edge_index), layer(trimmed, edge_index)
        sizes.append(edge_index.size(1))
    assert torch.equal(trimmed[:20], full[:20])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == batch.num_sampled_edges[0] < sizes[0]


def test_duplicate_seeds_are_kept() -> None:
    """Each has edges of its own; the first stands for the node where others reach it."""
    dataset = make_dataset(analytic_graph(10), "out")
    (batch,) = list(NeighborLoader(dataset, [-1, -1], torch.tensor([3, 3, 2]), batch_size=3, with_edge=True))
    assert batch.n_id.tolist() == [3, 3, 2, 4, 5, 6, 7]
    first_hop = batch.edge_index[:, : batch.num_sampled_edges[0]].tolist()
    assert first_hop == [[3, 4, 3, 4, 0, 3], [0, 0, 1, 1, 2, 2]]
    assert batch.e_id[:6].tolist() == [6, 7, 6, 7, 4, 5]
    assert batch.input_id.tolist() == [0, 1, 2]
    assert batch.x[:, 0].tolist() == [3, 3, 2, 4, 5, 6, 7]
    assert batch.y.tolist() == batch.n_id.tolist()


def test_epochs_shuffle_and_length() -> None:
    loader = NeighborLoader(make_dataset(analytic_graph(50)), [1], torch.arange(50), batch_size=8, shuffle=True, seed=1)
    assert len(loader) == 7
    epochs = [[batch.input_id.tolist() for batch in loader] for _ in range(3)]
    assert loader.epoch == 2
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [8] * 6 + [2]
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(50))
    assert epochs[0] != epochs[1] != epochs[2]
    dropped = NeighborLoader(
        make_dataset(analytic_graph(50)), [1], torch.arange(50), batch_size=8, shuffle=True, seed=1, drop_last=True
    )
    assert len(dropped) == 6
    assert [batch.input_id.tolist() for batch in dropped] == epochs[0][:6]
    assert torch.equal(loader.batch(1, 4).input_id, torch.tensor(epochs[1][4]))


def test_left_half_way_the_next_epoch_is_what_it_would_have_been() -> None:
    graph = random_graph(50, 400, 0)
    left, through = (
        NeighborLoader(make_dataset(graph), [2, 2], torch.arange(50), batch_size=8, shuffle=True) for _ in range(2)
    )
    next(iter(left))
    list(through)
    for one, other in zip(left, through, strict=True):
        assert torch.equal(one.n_id, other.n_id)
        assert torch.equal(one.edge_index, other.edge_index)


@pytest.mark.parametrize("replace", [False, True])
def test_isolated_seeds(replace: bool) -> None:
    dataset = make_dataset(random_graph(20, 0, 0))
    for batch in NeighborLoader(
        dataset, [2, 2], torch.tensor([4, 4, 19]), batch_size=2, with_edge=True, replace=replace
    ):
        assert batch.edge_index.shape == (2, 0)
        assert batch.e_id.shape == (0,)
        assert (batch.edge_index.dtype, batch.e_id.dtype) == (torch.int64, torch.int64)
        assert batch.num_sampled_nodes == [batch.batch_size, 0, 0]
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)


def test_no_inputs_no_batches() -> None:
    for none in (torch.empty(0, dtype=torch.int64), [], np.empty(0, np.int64)):
        loader = NeighborLoader(make_dataset(analytic_graph(5)), [2], none)
        assert len(loader) == 0
        assert list(loader) == []


def test_ways_to_name_inputs() -> None:
    dataset = make_dataset(typed_graph(20, 10, 60, 0))
    users = torch.arange(20)
    dataset.init_node_split(({"user": users[:4]}, {"user": users[4:9]}, None))

    def seeds(input_nodes: Any) -> list[int]:
        store = next(iter(NeighborLoader(dataset, [2], input_nodes, batch_size=99)))["user"]
        return store.n_id[: store.batch_size].tolist()

    assert seeds(("user", Split.train)) == [0, 1, 2, 3]
    assert seeds(("user", users == 7)) == [7]
    assert seeds(("user", users[:2].int())) == [0, 1]
    assert seeds(("user", [3, 1])) == seeds(("user", np.array([3, 1], np.int32))) == [3, 1]
    assert seeds(("user", range(3))) == seeds(("user", np.arange(20) < 3)) == [0, 1, 2]
    assert seeds("user") == seeds(("user", None)) == users.tolist()
    with pytest.raises(InvalidArgumentError, match="no 'test' split"):
        seeds(("user", Split.test))
    for bad in (
        ("nobody", users), "nobody", None, users, [1, 2], ("user", users.float()), ("user", users[None]),
        ("user", [1.5]), ("user", ["a"]), ("user", np.array(["a"])), ("user", [[1]]),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="input_nodes"):
            seeds(bad)
    for unknown in (-1, 20):
        with pytest.raises(UnknownIdError, match=f"input_nodes: node id {unknown} "):
            seeds(("user", torch.tensor([0, unknown])))


def test_without_features_labels_and_edge_ids() -> None:
    dataset = Dataset()
    dataset.init_graph(analytic_graph(6).edges[None])
    (batch,) = list(NeighborLoader(dataset, [1], torch.arange(6), batch_size=6, transform=lambda data: data))
    assert not {"x", "y", "edge_attr", "e_id"} & set(batch.keys())
    assert Counter(batch.edge_index[1].tolist()) == Counter(range(6))


def test_edge_features_come_without_asking_for_edge_ids() -> None:
    """And the ids, which are sampled for them, as from PyG's loaders; without features they are left out."""
    dataset = make_dataset(analytic_graph(6), "in")
    (batch,) = list(NeighborLoader(dataset, [-1], torch.tensor([5]), batch_size=1))
    assert batch.e_id.tolist() == [7, 8]  # 3 -> 5 is edge 7, 4 -> 5 is edge 8
    assert batch.edge_attr.view(-1).tolist() == [7 / 4, 8 / 4]
    plain = make_dataset(analytic_graph(6), "in", edge_features=False)
    (batch,) = list(NeighborLoader(plain, [-1], torch.tensor([5]), batch_size=1))
    assert not {"e_id", "edge_attr"} & set(batch.keys())


REFUSED = {
    "batch_size": {"batch_size": 0},
    "with_weight: expected edge weights in the data set, which has none": {"with_weight": True},
    "strategy: expected one of": {"strategy": "best"},
    "strategy: 'labor' draws without": {"strategy": "labor", "replace": True},
    "neighbor_sampler|node_sampler": {"neighbor_sampler": 1},
    "seed: expected an int of 64 bits, got 9": {"seed": 1 << 63},
    "seed: expected an int of 64 bits, got 1.5": {"seed": 1.5},
    "prefetch: expected": {"prefetch": -1},
    "temporal_strategy: expected one of": {"temporal_strategy": "first", "input_time": torch.zeros(6).long()},
    "temporal_strategy: expected one of .*, got 'First'": {"temporal_strategy": "First"},
    "temporal_strategy: 'last' expects a data set with times": {"temporal_strategy": "last"},
    "temporal_strategy: 'last' takes": {
        "temporal_strategy": "last",
        "input_time": torch.zeros(6).long(),
        "replace": True,
    },
    "input_time: expected edge times in the data set": {"input_time": torch.zeros(6).long()},
    "input_time: expected one time for each of 6 seeds": {"input_time": torch.zeros(5).long()},
    "input_time: expected a tensor of dtype int64": {"input_time": torch.zeros(6)},
    "num_neighbors: expected a list": {"num_neighbors": None},
    "num_neighbors: expected each fan-out to be at most": {"num_neighbors": [2**62], "replace": True},
    "num_neighbors: unknown edge type": {"num_neighbors": {EDGE_TYPES[0]: [1]}},
}


@pytest.mark.parametrize("message", REFUSED)
def test_refuses(message: str) -> None:
    arguments = {"num_neighbors": [1], "input_nodes": torch.arange(6), **REFUSED[message]}
    with pytest.raises(InvalidArgumentError, match=message):
        NeighborLoader(make_dataset(analytic_graph(6)), **arguments)


def test_fan_outs_of_numpy() -> None:
    dataset, seeds = make_dataset(analytic_graph(6)), torch.arange(6)
    expected = NeighborLoader(dataset, [2, 1], seeds, batch_size=6).batch(0, 0)
    for fanouts in (list(np.array([2, 1])), [np.int64(2), np.uint8(1)]):
        assert torch.equal(NeighborLoader(dataset, fanouts, seeds, batch_size=6).batch(0, 0).e_id, expected.e_id)


def test_refuses_layers_of_a_typed_graph() -> None:
    with pytest.raises(InvalidArgumentError, match="as_pyg_v1: expected False"):
        NeighborLoader(make_dataset(typed_graph(5, 5, 9, 0)), [1], ("user", torch.arange(5)), as_pyg_v1=True)
