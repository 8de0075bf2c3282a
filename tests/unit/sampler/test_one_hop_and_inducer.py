"""The pieces that a program samples with itself: one hop, an inducer, edges among nodes, in a whole graph or a part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Graph
from graphlearn_dist.distributed.dist_neighbor_sampler import (
    PartialNeighborOutput,
    RpcSamplingCallee,
    RpcSubGraphCallee,
    stitch_outputs,
)
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError, UnknownIdError
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput
from tests.support.graphs import (
    EDGE_TYPES,
    NODE_TYPES,
    analytic_graph,
    make_dataset,
    random_graph,
    typed_graph,
    with_weights,
)
from tests.support.oracle import load_partitions, write_partitions

SEEDS = torch.tensor([7, 3, 7, 12])


def sampler_of(graph: Any, num_neighbors: Any = None, edge_dir: Any = "in", **settings: Any) -> NeighborSampler:
    return NeighborSampler.of_dataset(make_dataset(graph, edge_dir), num_neighbors, **settings)


# --- hop by hop --------------------------------------------------------------------------------------------------


def test_hops_by_hand_are_the_samplers_batch() -> None:
    sampler = sampler_of(random_graph(40, 200, 1), [-1, -1])
    batch: Any = sampler.sample_from_nodes(NodeSamplerInput(SEEDS.unique()))
    inducer = sampler.get_inducer(2)
    assert sampler.get_inducer(99) is inducer
    assert sampler.create_inducer(2) is not inducer
    for _ in range(2):  # a second batch begins anew
        srcs = inducer.init_node(SEEDS.unique())
        nodes, rows, cols = [srcs], [], []
        for _ in range(2):
            hop = sampler.sample_one_hop(srcs, -1)
            srcs, row, col = inducer.induce_next(srcs, hop.nbr, hop.nbr_num)
            nodes.append(srcs)
            rows.append(row)
            cols.append(col)
        assert torch.equal(torch.cat(nodes), batch.node)
        assert torch.equal(torch.cat(rows), batch.col)
        assert torch.equal(torch.cat(cols), batch.row)
        assert [len(part) for part in nodes] == batch.num_sampled_nodes


def test_typed_hops_by_hand_are_the_samplers_batch() -> None:
    sampler = sampler_of(typed_graph(30, 12, 60, 1), [-1, -1])
    batch: Any = sampler.sample_from_nodes(NodeSamplerInput(SEEDS.unique(), "user"))
    inducer = sampler.create_inducer(2)
    srcs = {**dict.fromkeys(NODE_TYPES, SEEDS[:0]), **inducer.init_node({"user": SEEDS.unique()})}
    rows: dict[Any, list[torch.Tensor]] = {edge_type: [] for edge_type in EDGE_TYPES}
    cols: dict[Any, list[torch.Tensor]] = {edge_type: [] for edge_type in EDGE_TYPES}
    nodes = {name: [ids] for name, ids in srcs.items()}
    for _ in range(2):
        hops = {}
        for edge_type in sorted(EDGE_TYPES):
            hop = sampler.sample_one_hop(srcs[edge_type[2]], -1, edge_type)
            hops[edge_type] = (srcs[edge_type[2]], hop.nbr, hop.nbr_num)
        srcs, row, col = inducer.induce_next(hops)
        for edge_type in EDGE_TYPES:
            rows[edge_type].append(row[edge_type])
            cols[edge_type].append(col[edge_type])
        for name, ids in srcs.items():
            nodes[name].append(ids)
    for name in NODE_TYPES:
        assert torch.equal(torch.cat(nodes[name]), batch.node[name])
    for edge_type in EDGE_TYPES:
        assert torch.equal(torch.cat(rows[edge_type]), batch.col[edge_type])
        assert torch.equal(torch.cat(cols[edge_type]), batch.row[edge_type])


def test_what_an_inducer_refuses() -> None:
    sampler = sampler_of(analytic_graph(20))
    inducer = sampler.create_inducer(1)
    counts, neighbors = torch.tensor([1, 1]), torch.tensor([4, 5])
    with pytest.raises(NotInitializedError, match=r"call init_node\(\) first"):
        inducer.induce_next(torch.tensor([1, 2]), neighbors, counts)
    assert inducer.init_node(torch.tensor([2, 1, 2])).tolist() == [2, 1]
    with pytest.raises(InvalidArgumentError, match="srcs: expected the 2 nodes of the last hop in their order"):
        inducer.induce_next(torch.tensor([1, 2]), neighbors, counts)
    with pytest.raises(UnknownIdError, match="20"):
        inducer.induce_next(torch.tensor([2, 1]), torch.tensor([4, 20]), counts)
    for bad in (torch.tensor([20]), torch.tensor([-1])):
        with pytest.raises(UnknownIdError, match=str(int(bad))):
            inducer.init_node(bad)
    with pytest.raises(InvalidArgumentError, match="seeds: unknown node type 'user'"):
        inducer.init_node({"user": SEEDS})


# --- edges among nodes -------------------------------------------------------------------------------------------


def edges_among(nodes: torch.Tensor, rows: torch.Tensor, cols: torch.Tensor, eids: Any) -> Counter[Any]:
    """Edges by global ids, as often as they occur."""
    ids = [None] * len(rows) if eids is None else eids.tolist()
    return Counter(zip(nodes[rows].tolist(), nodes[cols].tolist(), ids, strict=True))


@pytest.mark.parametrize("with_edge", [False, True])
def test_edges_among_nodes_are_the_samplers_subgraph(with_edge: bool) -> None:
    sampler = sampler_of(random_graph(30, 300, 2), with_edge=with_edge)
    nodes = torch.tensor([9, 0, 4, 9, 17])
    expected: Any = sampler.subgraph(NodeSamplerInput(torch.tensor([9, 0, 4, 17])))
    sampler.lazy_init_subgraph_op()
    found = sampler.subgraph_op.node_subgraph(nodes, with_edge)
    assert sampler.subgraph_op is sampler.subgraph_op
    assert found.nodes.tolist() == [9, 0, 4, 17]
    assert len(found.rows) > 0
    assert edges_among(*found) == edges_among(expected.node, expected.col, expected.row, expected.edge)
    assert [len(part) for part in sampler.subgraph_op.node_subgraph(nodes[:0])[:3]] == [0, 0, 0]
    with pytest.raises(UnknownIdError, match="30"):
        sampler.subgraph_op.node_subgraph(torch.tensor([30]))


def test_edges_among_typed_nodes() -> None:
    graph = typed_graph(30, 12, 200, 2, explicit_edge_ids=True)
    op = sampler_of(graph, edge_dir="out").subgraph_op
    nodes = {"user": torch.arange(0, 30, 2), "item": torch.arange(5)}
    found = op.node_subgraph(nodes, with_edge=True)
    for edge_type, (source, target) in graph.edges.items():
        kept = torch.isin(source, nodes[edge_type[0]]) & torch.isin(target, nodes[edge_type[2]])
        ids = graph.edge_ids.get(edge_type, torch.arange(len(source)))[kept].tolist()
        expected = Counter(zip(source[kept].tolist(), target[kept].tolist(), ids, strict=True))
        rows = nodes[edge_type[0]][found.rows[edge_type]].tolist()
        cols = nodes[edge_type[2]][found.cols[edge_type]].tolist()
        assert Counter(zip(rows, cols, found.eids[edge_type].tolist(), strict=True)) == expected
    assert op.node_subgraph(nodes).eids is None
    assert all(len(rows) == 0 for rows in op.node_subgraph({"item": nodes["item"]}).rows.values())


def test_pairs_that_are_no_edges() -> None:
    graph = typed_graph(30, 12, 60, 1)
    sampler = sampler_of(graph, edge_dir="out", seed=4)
    sampler.lazy_init_neg_sampler()
    for edge_type in EDGE_TYPES:
        pairs = sampler.neg_sampler(edge_type).sample(20)
        edges = set(map(tuple, graph.edges[edge_type].t().tolist()))
        assert pairs.size(1) > 0
        assert not edges & set(map(tuple, pairs.t().tolist()))
    with pytest.raises(InvalidArgumentError, match="etype: unknown edge type"):
        sampler.neg_sampler(("a", "b", "c"))


# --- one partition's rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["range", "random"])
@pytest.mark.parametrize("with_weight", [False, True])
def test_parts_of_a_hop_make_the_whole(tmp_path: Path, kind: str, with_weight: bool) -> None:
    """Each owner is asked for its own nodes; stitched, the answers are the draws of the whole graph."""
    graph = with_weights(random_graph(40, 400, 3, explicit_edge_ids=True), 3, some_zero=False)
    seeds = torch.randint(0, 40, (60,), generator=torch.Generator().manual_seed(0))
    whole = sampler_of(graph, [3], with_edge=True, with_weight=with_weight, seed=5)
    expected = whole.sample_one_hop(seeds, 3, index=2)
    parts, edges = [], Counter[Any]()
    for dataset in load_partitions(write_partitions(graph, tmp_path, kind, 3, "in"), 3):
        shared = Graph.from_ipc_handle(dataset.graph.share_ipc())
        for local in (dataset.graph, shared):
            sampler = NeighborSampler(local, [3], edge_dir="in", with_edge=True, with_weight=with_weight, seed=5)
            positions = (dataset.node_pb[seeds] == dataset.partition_idx).nonzero().view(-1)
            output = RpcSamplingCallee(sampler).call(seeds[positions], 3, index=2)
        parts.append(PartialNeighborOutput(positions, output))
        edges += edges_among(*RpcSubGraphCallee(sampler).call(seeds, with_edge=True))
        others = seeds[dataset.node_pb[seeds] != dataset.partition_idx][:1]
        with pytest.raises(UnknownIdError, match=str(int(others))):
            sampler.sample_one_hop(others, 3)
        for call in (sampler.lazy_init_sampler, sampler.lazy_init_neg_sampler):
            with pytest.raises(InvalidArgumentError, match="graph: expected all rows, got one partition's"):
                call()
        with pytest.raises(InvalidArgumentError, match="DistNeighborSampler samples from all of them"):
            sampler.sample_from_nodes(NodeSamplerInput(seeds))
    stitched = stitch_outputs(parts)
    assert torch.equal(stitched.nbr, expected.nbr)
    assert torch.equal(stitched.nbr_num, expected.nbr_num)
    assert stitched.edge is not None
    assert torch.equal(stitched.edge, expected.edge)  # type: ignore[arg-type]
    assert edges == edges_among(*whole.subgraph_op.node_subgraph(seeds, with_edge=True))
    with pytest.raises(InvalidArgumentError, match="parts: expected each of"):
        stitch_outputs([*parts, parts[0]])
