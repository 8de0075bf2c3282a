"""Edges given as ``adj_t``, a sparse tensor of torch: loaders sample them, and batches have their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import RandomLinkSplit, ToSparseTensor
from torch_geometric.utils import coalesce

from graphlearn_dist.data import GraphSource
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader
from tests.support.graphs import random_edges

NUM_NODES = 60
LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
PAPER, WRITES = "paper", ("author", "writes", "paper")


def edges(num_sources: int = NUM_NODES) -> torch.Tensor:
    """Edges of which none occurs twice, in no order."""
    found = coalesce(random_edges(num_sources, NUM_NODES, 500, 3))
    return found[:, torch.randperm(found.size(1), generator=torch.Generator().manual_seed(1))]


def with_adj_t(data: Any, layout: torch.layout, **options: Any) -> Any:
    made = ToSparseTensor(layout=torch.sparse_coo if layout is torch.sparse_coo else torch.sparse_csr, **options)(data)
    if layout is torch.sparse_csc:
        for store in made.edge_stores:
            store.adj_t = store.adj_t.to_sparse_csc()
    return made


def homogeneous(**others: Any) -> Data:
    index = edges()
    weight = torch.arange(1.0, 1 + index.size(1))
    data = Data(x=torch.rand(NUM_NODES, 4), edge_index=index, edge_attr=weight.clone(), edge_weight=weight, **others)
    data.num_nodes = NUM_NODES
    return data


def entries(adj_t: torch.Tensor) -> set[tuple[int, int, float]]:
    """Source, target and value of each."""
    dense = adj_t.to_dense()
    return {(source, target, dense[target, source].item()) for target, source in dense.nonzero().tolist()}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("settings", [{}, {"subgraph_type": "induced"}, {"disjoint": True}])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_batches_have_the_sampled_part(layout: torch.layout, settings: dict[str, Any]) -> None:
    plain = homogeneous()
    weight_of = {(s, t): w for (s, t), w in zip(plain.edge_index.t().tolist(), plain.edge_weight.tolist(), strict=True)}
    data = with_adj_t(homogeneous(), layout, attr="edge_weight")
    assert "edge_index" not in data
    in_order = plain.edge_index[:, torch.argsort(plain.edge_index[1] * NUM_NODES + plain.edge_index[0])]
    for batch in NeighborLoader(data, [3, 2], batch_size=7, seed=2, **settings):
        assert "edge_index" not in batch
        assert batch.adj_t.layout is layout
        assert batch.adj_t.shape == (batch.num_nodes, batch.num_nodes)
        ends = in_order[:, batch.e_id].tolist()
        drawn = {(s, t, weight_of[s, t]) for s, t in zip(*ends, strict=True)}
        found = [(int(batch.n_id[s]), int(batch.n_id[t]), value) for s, t, value in entries(batch.adj_t)]
        assert len(found) == len(batch.e_id) > 0
        assert set(found) == drawn
        # In the order of the rows: what convolutions take beside ``adj_t`` belongs to its entries.
        assert batch.edge_attr.tolist() == [weight_of[s, t] for s, t in zip(*ends, strict=True)]
        rows = batch.adj_t.to_sparse_csr()
        assert rows.values().tolist() == batch.edge_attr.tolist()
        assert SAGEConv(4, 2)(batch.x, batch.adj_t).shape == (batch.num_nodes, 2)
        if not settings:
            counts = batch.num_sampled_edges
            first = torch.arange(len(batch.e_id)) < counts[0]
            targets = torch.repeat_interleave(rows.crow_indices().diff())
            assert torch.equal(targets < batch.batch_size, first)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_draws_are_those_of_the_same_edges_as_edge_index(layout: torch.layout) -> None:
    order = torch.argsort((index := edges())[1] * NUM_NODES + index[0])
    plain = Data(x=torch.rand(NUM_NODES, 4), edge_index=index[:, order])
    data = with_adj_t(plain.clone(), layout)
    for batch, expected in zip(
        NeighborLoader(data, [3, 2], batch_size=20, seed=5),
        NeighborLoader(plain, [3, 2], batch_size=20, seed=5),
        strict=True,
    ):
        assert torch.equal(batch.n_id, expected.n_id)
        assert sorted(batch.e_id.tolist()) == sorted(expected.e_id.tolist())


def typed() -> HeteroData:
    data = HeteroData()
    data[PAPER].x, data["author"].x = torch.rand(NUM_NODES, 4), torch.rand(30, 4)
    data[WRITES].edge_index = edges(30)
    data[PAPER, "rev", "author"].edge_index = data[WRITES].edge_index.flip(0)
    return data


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_typed_graphs(layout: torch.layout) -> None:
    data, pairs = with_adj_t(typed(), layout), set(map(tuple, edges(30).t().tolist()))
    seen = 0
    for batch in NeighborLoader(data, [4, 2], PAPER, batch_size=7):
        adj_t = batch[WRITES].adj_t
        assert adj_t.shape == (batch[PAPER].num_nodes, batch["author"].num_nodes)
        found = {(int(batch["author"].n_id[s]), int(batch[PAPER].n_id[t])) for s, t, _ in entries(adj_t)}
        assert found <= pairs
        assert len(found) == len(batch[WRITES].e_id)
        SAGEConv((4, 4), 2)((batch["author"].x, batch[PAPER].x), adj_t)
        seen += len(found)
    assert seen > 100
    links = LinkNeighborLoader(data, [2], WRITES, neg_sampling="binary", batch_size=len(pairs))
    (batch,) = links
    ends = batch[WRITES].edge_label_index[:, : len(pairs)]
    given = torch.stack([batch["author"].n_id[ends[0]], batch[PAPER].n_id[ends[1]]])
    assert set(map(tuple, given.t().tolist())) == pairs


def test_a_split_of_links_beside_it() -> None:
    """Labels of a split, by which PyG counts edges here, are none of rows of edges."""
    data = homogeneous()
    del data.edge_attr, data.edge_weight
    train, _, _ = RandomLinkSplit(num_val=0.3, num_test=0.2, add_negative_train_samples=False)(data)
    links = train.edge_label_index
    train = with_adj_t(train, torch.sparse_csr)
    for batch in LinkNeighborLoader(train, [3], links, edge_label=train.edge_label, batch_size=50):
        assert torch.equal(batch.n_id[batch.edge_label_index], links[:, batch.input_id])
    (batch,) = NeighborLoader(train, [-1], batch_size=NUM_NODES)
    assert torch.equal(batch.edge_label_index, links)
    assert batch.adj_t._nnz() == train.adj_t._nnz()


def test_sources_of_graphs_read_it() -> None:
    index = edges()
    data = with_adj_t(Data(x=torch.rand(NUM_NODES, 2), edge_index=index), torch.sparse_csr)
    read = GraphSource.from_pyg(data)
    assert set(map(tuple, read.edge_index.t().tolist())) == set(map(tuple, index.t().tolist()))


def test_edges_that_the_tensor_has_once_but_their_attributes_more_often() -> None:
    data = homogeneous()
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :3]], dim=1)
    data.edge_attr = torch.rand(data.edge_index.size(1))
    del data.edge_weight
    with pytest.raises(InvalidArgumentError, match=r"adj_t: expected .* as edge_attr has"):
        NeighborLoader(with_adj_t(data, torch.sparse_csr), [2])
    with pytest.raises(InvalidArgumentError, match="expected edges as edge_index, or as adj_t"):
        NeighborLoader(Data(x=torch.rand(3, 1), adj_t="another"), [2])
