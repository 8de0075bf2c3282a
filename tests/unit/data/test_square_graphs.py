"""A homogeneous graph has one set of nodes: rows and columns count alike, however the graph is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset, Graph, Topology
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput, RandomNegativeSampler
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.ppr import personalized_pagerank
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import config_for, local_and_device
from tests.support.oracle import pyg_tensors

A = torch.tensor
CSR = (A([0, 1, 2, 2, 3, 3, 3]), A([1, 2, 0]))  # 0 -> 1 -> 2, 3 -> 0: nodes 4 and 5 have no edge at all
COO = A([[0, 1, 3], [1, 2, 5]])  # node 5 is a target only, node 4 has no edge
LAYOUTS: Any = [("CSR", "out"), ("CSC", "in")]


def test_rows_without_edges_at_the_end_are_kept() -> None:
    made = Topology(CSR, input_layout="CSR")
    assert (made.row_count, made.num_cols) == (6, 3)
    assert Topology(CSR, input_layout="CSR", layout="CSC").num_cols == 6
    assert Topology(CSR[::-1], input_layout="CSC", layout="CSC").row_count == 6
    assert Topology(CSR, input_layout="CSR", num_nodes=(8, 8)).row_count == 8
    with pytest.raises(InvalidArgumentError, match="num_nodes: expected at least the 6 rows of edge_index, got 4"):
        Topology(CSR, input_layout="CSR", num_nodes=(4, 4))


@pytest.mark.parametrize("indptr", [A([0, 1, 2]), A([1, 2, 3]), A([0, 2, 1, 3]), A([], dtype=torch.int64)])
def test_offsets_are_checked(indptr: torch.Tensor) -> None:
    for layout, pair in (("CSR", (indptr, CSR[1])), ("CSC", (CSR[1], indptr))):
        with pytest.raises(InvalidArgumentError, match=r"edge_index: expected offsets of rows .* 3, got"):
            Topology(pair, input_layout=layout)


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
@pytest.mark.parametrize("rows", [None, 40], ids=["edges alone", "features"])
def test_data_sets_of_compressed_rows(layout: str, rows: int | None) -> None:
    dataset = Dataset()
    if rows is not None:
        dataset.init_node_features(torch.arange(rows).float()[:, None])
    dataset.init_graph(CSR if layout == "CSR" else CSR[::-1], layout=layout)
    assert dataset.schema.num_nodes == (rows or 6,)
    assert (dataset.graph.row_count, dataset.graph.col_count) == (rows or 6,) * 2


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_a_sampler_of_a_bare_graph(layout: Any) -> None:
    """Samples, induced edges, one hop, probabilities and negatives: the last node is one like any other."""
    graph = Graph(Topology(COO, layout=layout), "CPU")
    sampler = NeighborSampler(graph, [-1, -1], edge_dir="out" if layout == "CSR" else "in", with_edge=True)
    seeds = A([5, 4, 3])
    out = sampler.sample_from_nodes(NodeSamplerInput(seeds))
    assert (graph.row_count, graph.col_count) == (6, 6)
    assert out.node.tolist()[:3] == [5, 4, 3]
    assert out.num_sampled_edges == [1, 0]
    assert sampler.sample_one_hop(seeds, -1).nbr_num.tolist() == ([0, 0, 1] if layout == "CSR" else [1, 0, 0])
    assert sampler.subgraph(NodeSamplerInput(seeds)).row.numel() == 1
    assert sampler.subgraph_op.node_subgraph(A([3, 5])).rows.numel() == 1
    found = sampler.sample_prob(NodeSamplerInput(seeds), 6)
    assert isinstance(found, torch.Tensor)
    assert found.shape == (6,)
    drawn = sampler.neg_sampler().sample(500)
    assert drawn.max(1).values.tolist() == [5, 5]


def test_what_takes_a_bare_graph_takes_one_set_of_nodes() -> None:
    assert RandomNegativeSampler(Graph(Topology(COO)), seed=1).sample(500).max(1).values.tolist() == [5, 5]
    given = Graph(Topology(COO, num_nodes=(4, 6)))  # told so: sources and targets are two types
    assert RandomNegativeSampler(given, seed=1).sample(500).max(1).values.tolist() == [3, 5]
    found = personalized_pagerank(Graph(Topology(COO)), A([5, 3]))
    assert found.nodes.tolist()[0] == 5
    sent = Graph(Topology(COO), "CPU")
    received = Graph.from_ipc_handle(sent.share_ipc())
    assert RandomNegativeSampler(received, seed=1).sample(500).max(1).values.tolist() == [5, 5]


def test_graphs_of_one_data_set_agree_about_their_nodes() -> None:
    """Two edge types that have seen different items, and features of more users than have edges."""
    buys, of = ("user", "buys", "item"), ("item", "of", "user")
    graphs = {buys: Graph(Topology(A([[0, 1], [3, 7]])), "CPU"), of: Graph(Topology(A([[9, 2], [0, 4]])), "CPU")}
    out: Any = NeighborSampler(graphs, [-1, -1]).sample_from_nodes(NodeSamplerInput(A([0, 4]), "user"))
    assert out.node["user"].tolist() == [0, 4]
    assert out.node["item"].tolist() == [3]
    assert [(g.row_count, g.col_count) for g in graphs.values()] == [(5, 10), (10, 5)]
    dataset = Dataset(graph=Graph(Topology(COO), "CPU"))
    dataset.init_node_features(torch.arange(9).float()[:, None])
    batch = next(iter(NeighborLoader(dataset, [2], A([8, 3]), batch_size=2)))
    assert batch.x.flatten().tolist() == [8, 3, 5]


@pytest.mark.parametrize(("layout", "edge_dir"), LAYOUTS)
def test_the_same_batches_in_every_way(layout: Any, edge_dir: Any) -> None:
    """Of a graph held whole, as one partition, and by the device's kernels."""
    dataset = Dataset(graph=Graph(Topology(COO, layout=layout), "CPU"), edge_dir=edge_dir)
    whole = DistDataset.from_dataset(Dataset(graph=Graph(Topology(COO, layout=layout), "CPU"), edge_dir=edge_dir))
    assert whole.schema.num_nodes == (6,)
    for loader in (NeighborLoader, SubGraphLoader):
        one, other = (
            loader(data, input_nodes=torch.arange(6), num_neighbors=[2, 2], batch_size=4) for data in (dataset, whole)
        )
        for a, b in zip(one, other, strict=True):
            first, second = pyg_tensors(a), pyg_tensors(b)
            assert all(torch.equal(torch.as_tensor(first[key]), torch.as_tensor(second[key])) for key in first)
    fresh = Dataset(graph=Graph(Topology(COO, layout=layout), "CPU"), edge_dir=edge_dir)
    config = config_for([2, 2], {"edge_dir": edge_dir})
    inputs = NodeSamplerInput(torch.arange(6))
    local, device = local_and_device(fresh, config)
    made = [run_local(BatchMaker(graph, fresh.schema, inputs, config).make(0, 0)).subgraph for graph in (local, device)]
    assert torch.equal(made[0].nodes[0], made[1].nodes[0])
    assert torch.equal(made[0].rows[0], made[1].rows[0])
    assert made[0].num_edges == 3
