"""Edge weights, edge times and node times of topologies, graphs and data sets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset, Graph, Topology
from graphlearn_dist.data.shared_memory import from_handle, to_handle
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support.graphs import (
    EDGE_TYPES,
    WEIGHT_DTYPES,
    Direction,
    analytic_edges,
    random_graph,
    with_times,
    with_weights,
)
from tests.support.hops import native_graph, one_hop
from tests.support.reference import Draw

A = torch.tensor


def by_edge(topology: Topology) -> list[tuple[float, ...]]:
    """(edge id, source, target, weight, time) of each edge, by id."""
    source, target, ids, weights = topology.to_coo()
    assert weights is not None
    assert topology.edge_times is not None
    columns = [tensor.tolist() for tensor in (ids, source, target, weights, topology.edge_times)]
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("dtype", WEIGHT_DTYPES)
@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_every_layout_carries_them(layout: Any, dtype: torch.dtype) -> None:
    graph = with_times(with_weights(random_graph(20, 90, 1, explicit_edge_ids=True), 2, some_zero=True, dtype=dtype), 3)
    edges, ids, weights, times = graph.edges[None], graph.edge_ids[None], graph.weights[None], graph.times[None]
    made = Topology(edges, ids, weights, layout=layout, num_nodes=(20, 20), edge_times=times)
    assert made.edge_weights is not None
    assert made.edge_weights.dtype == dtype
    columns = [tensor.tolist() for tensor in (ids, *edges, weights, times)]
    assert by_edge(made) == sorted(zip(*columns, strict=True))
    by_source, by_target = made.to_csr(), made.to_csc()
    in_order = by_source if layout == "CSR" else by_target
    assert torch.equal(in_order[3], made.edge_weights)
    weight_of = dict(zip(ids.tolist(), weights.tolist(), strict=True))
    for out in (by_source, by_target):
        assert out[3].tolist() == [weight_of[edge] for edge in out[2].tolist()]


def test_order_by_time() -> None:
    edges = A([[0, 0, 0], [3, 1, 2]])
    made = Topology(edges, None, [1, 2, 3], edge_times=A([5, 9, 5], dtype=torch.int32))
    assert made.indices.tolist() == [2, 3, 1]
    assert made.edge_times is not None
    assert made.edge_times.tolist() == [5, 5, 9]
    assert made.edge_times.dtype == torch.int64
    assert made.edge_weights is not None
    assert made.edge_weights.tolist() == [3, 1, 2]  # integers became float32
    assert made.edge_weights.dtype == torch.float32


def test_graphs_sample_by_weight_and_time() -> None:
    """The same edges as from the core's own arrays; sums are made when first asked for and survive growth."""
    plain = with_times(with_weights(random_graph(30, 300, 4), 2, some_zero=True), 3)
    made = Topology(plain.edges[None], None, plain.weights[None], num_nodes=(30, 30), edge_times=plain.times[None])
    graph = Graph(made)
    assert made._weight_sums is None
    ids, times = torch.arange(30), torch.arange(30) % 20
    draw = Draw("weighted", times="before")
    expected = one_hop(native_graph(plain, None, "out"), ids, 3, 7, draw, times=times)
    with pytest.raises(InvalidArgumentError, match="no edge weights"):
        one_hop(graph.graph_handler, ids, 3, 7, draw, times=times)
    assert made._weight_sums is None
    assert one_hop(graph.weighted_handler, ids, 3, 7, draw, times=times) == expected
    assert graph.weighted_handler is graph.weighted_handler
    graph.cover(40, 35)
    assert graph.topo.weight_sums is made.weight_sums
    assert one_hop(graph.weighted_handler, ids, 3, 7, draw, times=times) == expected
    with pytest.raises(InvalidArgumentError, match=r"with_weight, strategy: .* the graph has none"):
        _ = Graph(Topology(analytic_edges(3))).weighted_handler


@pytest.mark.parametrize("some_zero", [False, True])
def test_shared_with_another_process(some_zero: bool) -> None:
    """All that sampling reads lies in shared memory, sums included; a data set's handle names it."""
    graph = with_times(with_weights(random_graph(30, 300, 4), 2, some_zero=some_zero), 3)
    dataset = Dataset()
    dataset.init_graph(graph.edges[None], None, graph.weights[None], edge_times=graph.times[None])
    topology = dataset.graph.topo.share_memory_()
    for tensor in (topology.edge_weights, topology.edge_times, topology.weight_sums.sums):
        assert torch.equal(from_handle(to_handle(tensor)), tensor)
    opened = DistDataset.from_ipc_handle(DistDataset.from_dataset(dataset).share_ipc())
    opened.validate()
    mine, other = topology, opened.graph.topo
    assert torch.equal(mine.edge_weights, other.edge_weights)
    assert torch.equal(mine.edge_times, other.edge_times)
    assert other._weight_sums is not None
    assert torch.equal(mine.weight_sums.sums, other._weight_sums.sums)
    assert (other._weight_sums.positive_counts is not None) == some_zero
    ids = torch.arange(30)
    draw = Draw("weighted")
    assert one_hop(opened.graph.weighted_handler, ids, 3, 7, draw) == one_hop(
        dataset.graph.weighted_handler, ids, 3, 7, draw
    )


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed_graphs_have_them_for_some_types(edge_dir: Direction) -> None:
    buys, rev, knows = EDGE_TYPES
    dataset = Dataset(edge_dir=edge_dir)
    edges = dict.fromkeys(EDGE_TYPES, analytic_edges(6))
    times = {buys: torch.arange(12), rev: torch.arange(12)}
    dataset.init_graph(edges, None, {knows: torch.arange(12.0)}, edge_times=times)
    topologies = {edge_type: graph.topo for edge_type, graph in dataset.graph.items()}
    assert [edge_type for edge_type, topo in topologies.items() if topo.edge_weights is not None] == [knows]
    assert {edge_type for edge_type, topo in topologies.items() if topo.edge_times is not None} == {buys, rev}
    assert torch.equal(topologies[buys].edge_times, topologies[buys].edge_ids.long())


@pytest.mark.parametrize("layout", ["COO", "CSR", "CSC"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_an_edge_has_the_time_of_the_node_it_leads_to(edge_dir: Direction, layout: str) -> None:
    plain = Topology(analytic_edges(8))
    given: Any = {"COO": analytic_edges(8), "CSR": plain.to_csr()[:2], "CSC": plain.to_csc()[:2]}[layout]
    node_times = (torch.arange(8) * 5 + 3) % 8
    dataset = Dataset(edge_dir=edge_dir)
    dataset.init_graph(given, layout=layout, node_times=node_times)
    topology = dataset.graph.topo
    assert torch.equal(topology.edge_times, node_times[topology.indices.long()])
    assert torch.equal(dataset.node_times[None], node_times)


def test_node_times_by_type() -> None:
    buys, _, knows = EDGE_TYPES
    dataset, edges = Dataset(edge_dir="out"), dict.fromkeys(EDGE_TYPES, analytic_edges(6))
    item_times = torch.arange(6, dtype=torch.int32)
    dataset.init_graph(edges, edge_times={knows: torch.arange(12)}, node_times={"item": item_times})
    assert {key for key, graph in dataset.graph.items() if graph.topo.edge_times is not None} == {buys, knows}
    assert dataset.node_times["item"].dtype == torch.int64
    with pytest.raises(InvalidArgumentError, match="edge_times, node_times: expected one of them"):
        Dataset(edge_dir="out").init_graph(edges, edge_times={buys: torch.arange(12)}, node_times={"item": item_times})
    fine = Dataset(edge_dir="in")  # there the edges of this type lead to users
    fine.init_graph(edges, edge_times={buys: torch.arange(12)}, node_times={"item": item_times})


EDGES = A([[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"edge_weights": A([1.0, -1.0])}, InvalidArgumentError, r"edge_weights\[1\]: .* got -1"),
        ({"edge_weights": A([1.0, float("nan")])}, InvalidArgumentError, r"edge_weights\[1\]"),
        ({"edge_weights": A([float("inf"), 1.0])}, InvalidArgumentError, r"edge_weights\[0\]"),
        ({"edge_weights": A([1.0])}, InvalidArgumentError, r"edge_weights: expected \[2\]"),
        ({"edge_weights": torch.ones(2, 1)}, InvalidArgumentError, r"edge_weights: expected \[2\]"),
        ({"edge_weights": A([True, False])}, InvalidArgumentError, "edge_weights: expected floating-point"),
        ({"edge_weights": {EDGE_TYPES[0]: A([1.0])}}, InvalidArgumentError, "edge_weights: unknown edge type"),
        ({"edge_times": A([1.0, 2.0])}, InvalidArgumentError, "edge_times: expected dtype int64 or int32"),
        ({"edge_times": A([1])}, InvalidArgumentError, r"edge_times: expected \[2\]"),
        ({"edge_times": A([1, 2]), "node_times": A([1, 2, 3])}, InvalidArgumentError, "edge_times, node_times"),
        ({"node_times": A([1, 2])}, InvalidArgumentError, r"node_times: expected int64 or int32 \[3\], got .* \[2\]"),
        ({"node_times": A([1.0, 2.0, 3.0])}, InvalidArgumentError, "node_times: expected int64"),
        ({"node_times": {"user": A([1])}}, InvalidArgumentError, "node_times: unknown node type 'user'"),
        ({"node_times": A([1, 2]), "num_nodes": 2}, UnknownIdError, "2 is outside"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Dataset().init_graph(EDGES, **options)


def test_a_graph_without_edges() -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    dataset = Dataset()
    dataset.init_graph(none, None, torch.empty(0), num_nodes=4, edge_times=torch.empty(0, dtype=torch.int64))
    times = torch.zeros(4, dtype=torch.int64)
    for method in ("uniform", "weighted", "labor"):
        found = one_hop(
            dataset.graph.weighted_handler, torch.arange(4), 3, 0, Draw(method, times="before"), times=times
        )
        assert found == ([[], [], [], []], [[], [], [], []])
    assert dataset.graph.topo.share_memory_().weight_sums.sums.numel() == 0
