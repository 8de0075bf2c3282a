"""Distributed loaders of one process take PyG's data, or the directory of a single partition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from graphlearn_dist.data import GraphSource
from graphlearn_dist.distributed import DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.partition import partition_pyg
from tests.support.graphs import random_edges

NUM_NODES = 50


def homogeneous() -> Data:
    data = Data(x=torch.rand(NUM_NODES, 3), edge_index=random_edges(NUM_NODES, NUM_NODES, 400, 3))
    data.edge_weight = (torch.arange(400) % 3 == 0).float() + 1e-6
    data.time = torch.arange(NUM_NODES) % 11
    return data


def test_batches_are_those_of_the_local_loader_over_a_data_set() -> None:
    data = homogeneous()
    dataset = GraphSource.from_pyg(data, weight_attr="edge_weight").to_dataset()
    ours = DistNeighborLoader(
        data, [4, 2], torch.arange(20), batch_size=6, collect_features=True, random_seed=3, weight_attr="edge_weight"
    )
    expected = NeighborLoader(dataset, [4, 2], torch.arange(20), batch_size=6, seed=3, with_weight=True)
    for batch, wanted in zip(ours, expected, strict=True):
        assert torch.equal(batch.n_id, wanted.n_id)
        assert torch.equal(batch.edge_index, wanted.edge_index)
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_typed_data() -> None:
    data = HeteroData()
    data["a"].x, data["b"].x = torch.rand(20, 2), torch.rand(30, 2)
    data["a", "to", "b"].edge_index = random_edges(20, 30, 150, 1)
    pairs = set(map(tuple, data["a", "to", "b"].edge_index.t().tolist()))
    for batch in DistNeighborLoader(data, [3], "b", batch_size=7, collect_features=True):
        source, target = batch["a", "to", "b"].edge_index
        found = torch.stack([batch["a"].n_id[source], batch["b"].n_id[target]])
        assert set(map(tuple, found.t().tolist())) <= pairs
        assert torch.equal(batch["a"].x, data["a"].x[batch["a"].n_id])


def test_no_neighbor_is_later_than_its_seed() -> None:
    data, seen = homogeneous(), 0
    for batch in DistNeighborLoader(data, [5, 3], batch_size=10, input_nodes=None, time_attr="time"):
        times = data.time[batch.n_id]
        assert bool((times <= times[: batch.batch_size][batch.batch]).all())
        seen += batch.edge_index.size(1)
    assert seen > 100


def test_a_ratio_of_negatives_is_that_of_binary_ones() -> None:
    data = homogeneous()
    links = data.edge_index[:, :30]
    dataset = GraphSource.from_pyg(data).to_dataset()
    ours = DistLinkNeighborLoader(data, [2], 8, links, neg_sampling_ratio=1.5, random_seed=4)
    expected = LinkNeighborLoader(dataset, [2], None, links, neg_sampling=("binary", 1.5), batch_size=8, seed=4)
    for batch, wanted in zip(ours, expected, strict=True):
        assert torch.equal(batch.n_id[batch.edge_label_index], wanted.n_id[wanted.edge_label_index])
        assert torch.equal(batch.edge_label, wanted.edge_label)
        assert 0 in batch.edge_label.tolist()
    (batch,) = DistLinkNeighborLoader(data, [2], 30, links, neg_sampling_ratio=0.0)
    assert batch.n_id[batch.edge_label_index].equal(links)


def test_the_directory_of_one_partition(tmp_path: Path) -> None:
    data = homogeneous()
    partition_pyg(data, tmp_path / "one", num_parts=1)
    partition_pyg(data, tmp_path / "two", num_parts=2)
    for root in (tmp_path / "one", str(tmp_path / "one")):
        for batch in DistNeighborLoader(root, [2], torch.arange(9), batch_size=4, collect_features=True):
            assert torch.equal(batch.x, data.x[batch.n_id])
    with pytest.raises(InvalidArgumentError, match="data: expected the directory of one partition, got 2"):
        DistNeighborLoader(tmp_path / "two", [2], torch.arange(9))
    with pytest.raises(InvalidArgumentError, match="weight_attr: expected None unless data are PyG's"):
        DistNeighborLoader(tmp_path / "one", [2], torch.arange(9), weight_attr="edge_weight")


def test_induced_subgraphs() -> None:
    data = homogeneous()
    dataset = GraphSource.from_pyg(data, weight_attr="edge_weight").to_dataset()
    ours = DistSubGraphLoader(
        data, torch.arange(20), [3], batch_size=6, collect_features=True, random_seed=3, weight_attr="edge_weight"
    )
    expected = SubGraphLoader(dataset, torch.arange(20), [3], batch_size=6, seed=3, with_weight=True)
    for batch, wanted in zip(ours, expected, strict=True):
        assert torch.equal(batch.n_id, wanted.n_id)
        assert torch.equal(batch.edge_index, wanted.edge_index)
        assert torch.equal(batch.x, data.x[batch.n_id])


def stores_of(data: HeteroData, layout: str) -> tuple[MyFeatureStore, MyGraphStore]:
    """A pair of stores of the data, whose edges are in a layout."""
    features, graph = MyFeatureStore(), MyGraphStore()
    for node_type, store in data.node_items():
        for name, rows in store.items():
            features.put_tensor(rows, group_name=node_type, attr_name=name, index=None)
    for edge_type, store in data.edge_items():
        size = (data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes)
        pairs = store.edge_index
        if layout != "coo":
            major = 1 if layout == "csc" else 0
            pairs = pairs[:, pairs[major].argsort(stable=True)]
            offsets = torch._convert_indices_from_coo_to_csr(pairs[major], size[major])
            pair = (pairs[0], offsets) if layout == "csc" else (offsets, pairs[1])
        else:
            pair = (pairs[0], pairs[1])
        graph.put_edge_index(pair, edge_type=edge_type, layout=layout, size=size)
    return features, graph


def stored_edges(graph: MyGraphStore) -> torch.Tensor:
    """The edges in the order of the store, ``[2, num_edges]``."""
    row, col, _ = graph.coo([("a", "to", "b")])
    return torch.stack([row["a", "to", "b"], col["a", "to", "b"]])


@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
def test_pairs_of_stores(layout: str) -> None:
    data = HeteroData()
    data["a"].x, data["b"].x, data["b"].y = torch.rand(20, 2), torch.rand(30, 2), torch.arange(30)
    pairs = random_edges(20, 30, 150, 1)
    data["a", "to", "b"].edge_index = pairs
    pair = stores_of(data, layout)
    for batch in DistNeighborLoader(pair, [-1], "b", batch_size=7, collect_features=True, with_edge=True):
        source, target = batch["a", "to", "b"].edge_index
        found = torch.stack([batch["a"].n_id[source], batch["b"].n_id[target]])
        seeds = batch["b"].n_id[: batch["b"].batch_size]
        wanted = pairs[:, torch.isin(pairs[1], seeds)]
        assert sorted(found.t().tolist()) == sorted(wanted.t().tolist())
        assert torch.equal(stored_edges(pair[1])[:, batch["a", "to", "b"].e_id], found)
        assert torch.equal(batch["a"].x, data["a"].x[batch["a"].n_id])
        assert torch.equal(batch["b"].y, batch["b"].n_id)


def test_data_as_their_own_stores() -> None:
    data = homogeneous()
    for batch in DistNeighborLoader((data, data), [2], torch.arange(9), batch_size=5, collect_features=True):
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_data_without_edges() -> None:
    data = Data(x=torch.rand(5, 2))
    [batch] = DistNeighborLoader(data, [2], torch.tensor([3, 1]), batch_size=2, collect_features=True)
    assert (batch.n_id.tolist(), list(batch.edge_index.shape)) == ([3, 1], [2, 0])
    assert torch.equal(batch.x, data.x[batch.n_id])
    typed = HeteroData()
    typed["a"].x = torch.rand(3, 1)
    with pytest.raises(InvalidArgumentError, match="data: expected types of edges"):
        DistNeighborLoader(typed, [2], "a")
