"""Induced subgraphs: nodes of the sampled neighborhood, each once, and all edges between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph, subgraph

from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import SubGraphLoader
from graphlearn_dist.typing import reverse_edge_type
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
from tests.support.reference import sample_batch, sorted_rows


def store_of(batch: Any, name: Any) -> Any:
    """The store of a type, or the batch itself where it has one unnamed type."""
    return batch if name is None else batch[name]


def loader_of(case: Case, num_neighbors: Any, **options: Any) -> SubGraphLoader:
    settings_ = {"batch_size": case.batch_size, "shuffle": case.shuffle, "replace": case.replace, "seed": case.seed}
    dataset = make_dataset(case.graph, case.edge_dir)
    return SubGraphLoader(dataset, case.input_nodes, num_neighbors, with_edge=True, **{**settings_, **options})


def induced(case: Case, edge_type: Any, nodes: dict[Any, list[int]]) -> list[tuple[int, int, int]]:
    """(neighbor, node, edge id) of all edges between nodes, in local ids: node by node, each row in its order."""
    ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
    row_type, neighbor_type = ends if case.edge_dir == "out" else ends[::-1]
    rows, found = sorted_rows(case.graph, edge_type, case.edge_dir), []
    local = {node: i for i, node in enumerate(nodes[neighbor_type])}
    for col, node in enumerate(nodes[row_type]):
        row = [edge for edge in rows.get(node, []) if edge.neighbor in local]
        found += [(local[edge.neighbor], col, edge.edge_id) for edge in row]
    return found


@pytest.mark.parametrize("typed", [False, True])
@given(data=st.data())
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(typed: bool, data: st.DataObject) -> None:
    case = data.draw(cases(typed=typed))
    num_neighbors = data.draw(st.sampled_from([None, case.fanouts]))
    loader = loader_of(case, num_neighbors)
    node_types = sorted(case.graph.num_nodes, key=str)
    for index in range(len(loader)):
        batch = loader.batch(case.epoch, index)
        store = store_of(batch, case.seed_type)
        seeds = case.seeds[store.input_id].tolist()
        nodes = {name: [] for name in node_types} | {case.seed_type: list(dict.fromkeys(seeds))}
        if num_neighbors is not None:
            expected = sample_batch(
                case.graph, case.edge_dir, case.fanouts, case.seed_type, nodes[case.seed_type],
                replace=case.replace, seed=case.seed, epoch=case.epoch, index=index,
            )  # fmt: skip
            nodes = dict(zip(node_types, expected.nodes, strict=True))
        assert {name: store_of(batch, name).n_id.tolist() for name in node_types} == nodes
        assert store.n_id[store.mapping].tolist() == seeds
        assert store.batch_size == len(seeds)
        for edge_type in case.graph.edges:
            reverse = edge_type is not None and case.edge_dir == "out"
            edges = store_of(batch, reverse_edge_type(edge_type) if reverse else edge_type)
            found = zip(*edges.edge_index.tolist(), edges.e_id.tolist(), strict=True)
            assert list(found) == induced(case, edge_type, nodes)
            assert "num_sampled_edges" not in edges


def test_rows_of_a_batch() -> None:
    """Features and labels of nodes and of edges."""
    graph = typed_graph(12, 7, 60, 2)
    dataset = make_dataset(graph, "in")
    batch = next(iter(SubGraphLoader(dataset, ("user", torch.arange(5)), [2, 2], batch_size=5, with_edge=True)))
    assert type(batch) is HeteroData
    assert torch.equal(batch["user"].x, graph.node_features()["user"][batch["user"].n_id])
    assert torch.equal(batch["item"].y, graph.node_labels()["item"][batch["item"].n_id])
    edges = batch[EDGE_TYPES[0]]
    assert torch.equal(edges.edge_attr, graph.edge_features()[EDGE_TYPES[0]][edges.e_id])
    without = next(iter(SubGraphLoader(dataset, ("user", torch.arange(5)), [2, 2], batch_size=5)))
    assert torch.equal(without[EDGE_TYPES[0]].e_id, edges.e_id)  # they were sampled for the features
    assert torch.equal(without[EDGE_TYPES[0]].edge_attr, edges.edge_attr)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_full_neighborhoods_are_those_of_pyg(edge_dir: Direction, hops: int) -> None:
    """The k-hop subgraph of PyG, with all edges between its nodes."""
    graph = random_graph(80, 160, 3)
    seeds, edges = torch.tensor([7, 30, 2, 7]), graph.edges[None]
    flow = "source_to_target" if edge_dir == "in" else "target_to_source"
    nodes = k_hop_subgraph(seeds, hops, edges, num_nodes=80, flow=flow)[0]
    kept = subgraph(nodes, edges, torch.arange(edges.size(1)), num_nodes=80)[1]
    loader = SubGraphLoader(make_dataset(graph, edge_dir), seeds, [-1] * hops or None, batch_size=4, with_edge=True)
    (batch,) = list(loader)
    assert type(batch) is Data
    assert sorted(batch.n_id.tolist()) == nodes.tolist()
    assert sorted(batch.e_id.tolist()) == sorted(kept.tolist())
    source, target = batch.n_id[batch.edge_index] if edge_dir == "in" else batch.n_id[batch.edge_index].flip(0)
    assert torch.equal(torch.stack([source, target]), edges[:, batch.e_id])
    assert batch.n_id[batch.mapping].tolist() == seeds.tolist()


def test_values_by_hand() -> None:
    """v has the out-neighbors v + 1 (edge 2v) and v + 2 (edge 2v + 1)."""
    (batch,) = list(
        SubGraphLoader(make_dataset(analytic_graph(10)), torch.tensor([4, 3, 4, 5]), batch_size=4, with_edge=True)
    )
    assert batch.n_id.tolist() == [4, 3, 5]
    assert batch.mapping.tolist() == [0, 1, 0, 2]
    assert batch.edge_index.tolist() == [[2, 0, 2], [0, 1, 1]]  # 4 -> 5; 3 -> 4, 3 -> 5, messages the other way
    assert batch.e_id.tolist() == [8, 6, 7]
    assert batch.num_sampled_nodes == [3]


def test_refuses() -> None:
    dataset = make_dataset(analytic_graph(6))
    for options, message in (
        ({"num_neighbors": []}, "num_neighbors: expected at least one hop"),
        ({"num_neighbors": [-2]}, "num_neighbors: expected each fan-out"),
        ({"with_weight": True, "num_neighbors": [1]}, "with_weight: expected edge weights"),
        ({"input_nodes": ("user", torch.arange(3))}, "input_nodes: unknown node type 'user'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            SubGraphLoader(dataset, **{"input_nodes": torch.arange(3), **options})  # type: ignore[arg-type]
    with pytest.raises(UnknownIdError, match="node id 6 is outside"):
        SubGraphLoader(dataset, torch.tensor([6]))


def test_what_is_no_data_set_is_told_what_makes_one() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(InvalidArgumentError, match=r"data: expected a Dataset, got Data; .*subgraph_type='induced'"):
        SubGraphLoader(data, None)  # type: ignore[arg-type]
