"""Distributed loaders of one process take PyG's data, or the directory of a single partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from graphlearn_dist.data import GraphSource
from graphlearn_dist.distributed import DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
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


EDGE_TYPE = ("a", "to", "b")


def local_stores(*, is_typed: bool, edge_ids: torch.Tensor, row_ids: torch.Tensor, node_ids: torch.Tensor) -> Any:
    """PyG's own local stores of 20 nodes; the features of an edge are its id and its ends, of node ``v`` ``v``."""
    pairs = random_edges(20, 20, len(edge_ids), 3)
    order = torch.tensor([edge_ids.tolist().index(row) for row in row_ids.tolist()])
    edge_attr, x = torch.cat([edge_ids[None], pairs]).t()[order], node_ids.view(-1, 1)
    if is_typed:
        nodes, rows = {"a": node_ids, "b": node_ids}, {"a": x, "b": x}
        features = LocalFeatureStore.from_hetero_data(
            nodes, rows, edge_id_dict={EDGE_TYPE: row_ids}, edge_attr_dict={EDGE_TYPE: edge_attr}
        )
        counts = {"a": 20, "b": 20}
        return features, LocalGraphStore.from_hetero_data({EDGE_TYPE: edge_ids}, {EDGE_TYPE: pairs}, counts)
    features = LocalFeatureStore.from_data(node_id=node_ids, x=x, edge_id=row_ids, edge_attr=edge_attr)
    return features, LocalGraphStore.from_data(edge_ids, pairs, 20)


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("ids", ["range", "no range"])
def test_rows_of_local_stores_are_found_by_the_ids_of_edges(ids: str, is_typed: bool) -> None:
    edge_ids = torch.arange(60) if ids == "range" else 7 * (37 * torch.arange(60) % 60) + 5
    nodes = torch.arange(20)
    pair = local_stores(is_typed=is_typed, edge_ids=edge_ids, row_ids=edge_ids.sort().values, node_ids=nodes)
    seeds = ("b", nodes) if is_typed else nodes
    distributed = DistNeighborLoader(pair, [-1], seeds, batch_size=8, collect_features=True)
    for loader in (distributed, NeighborLoader(pair, [-1], seeds, batch_size=8)):
        found = []
        for batch in loader:
            edges = batch[EDGE_TYPE] if is_typed else batch
            source, target = (batch["a"], batch["b"]) if is_typed else (batch, batch)
            row, col = edges.edge_index
            assert torch.equal(edges.edge_attr[:, 1], source.n_id[row])
            assert torch.equal(edges.edge_attr[:, 2], target.n_id[col])
            assert torch.equal(target.x.view(-1), target.n_id)
            found += edges.edge_attr[:, 0].tolist()
        assert sorted(found) == sorted(edge_ids.tolist())


def test_rows_of_local_stores_are_found_by_the_ids_of_nodes() -> None:
    nodes, edges = 7 * torch.arange(20) % 20, torch.arange(60)
    pair = local_stores(is_typed=False, edge_ids=edges, row_ids=edges, node_ids=nodes)
    for batch in DistNeighborLoader(pair, [2], torch.arange(20), batch_size=8, collect_features=True):
        assert torch.equal(batch.x.view(-1), batch.n_id)


def test_edges_without_rows() -> None:
    edges = torch.arange(60)
    pair = local_stores(is_typed=False, edge_ids=edges, row_ids=edges[10:], node_ids=torch.arange(20))
    with pytest.raises(InvalidArgumentError, match=r"data: expected rows .* all 60 edges .* got none for 10 of them"):
        DistNeighborLoader(pair, [2], torch.arange(20))


def grouped_stores(time_of: str) -> tuple[MyFeatureStore, MyGraphStore]:
    """Stores of a homogeneous graph whose attributes are in a group that has a name, as in PyG's own tests.

    Edge ``e`` and node ``v`` have the times ``e`` and ``v``.
    """
    features, graph = MyFeatureStore(), MyGraphStore()
    features.put_tensor(torch.arange(4), group_name="default", attr_name="x", index=None)
    features.put_tensor(torch.arange(4), group_name="default", attr_name=time_of, index=None)
    pairs = torch.tensor([[0, 3, 0, 2], [1, 1, 2, 3]])
    graph.put_edge_index((pairs[0], pairs[1]), edge_type=None, layout="coo", is_sorted=True, size=(4, 4))
    return features, graph


@pytest.mark.parametrize("make", [NeighborLoader, DistNeighborLoader])
def test_groups_of_homogeneous_stores_have_any_names(make: Any) -> None:
    options: dict[str, Any] = {"collect_features": True} if make is DistNeighborLoader else {}
    [batch] = make(grouped_stores("time"), [-1], torch.tensor([1]), batch_size=1, **options)
    assert isinstance(batch, Data)
    assert batch.n_id.tolist() == batch.x.tolist() == [1, 0, 3]


@pytest.mark.parametrize(("time_attr", "sources"), [("time", [0]), ("edge_time", [0, 3])])
@pytest.mark.parametrize("make", [NeighborLoader, DistNeighborLoader])
def test_times_of_homogeneous_stores_are_found_by_name(make: Any, time_attr: str, sources: list[int]) -> None:
    options = {"input_time": torch.tensor([2]), "time_attr": time_attr, "batch_size": 1}
    [batch] = make(grouped_stores(time_attr), [-1], torch.tensor([1]), **options)
    assert batch.n_id[batch.edge_index[0]].tolist() == sources


def test_times_of_homogeneous_stores_in_pygs_sampler() -> None:
    features, graph = grouped_stores("time")
    sampler = PyGSampler((features, graph), [-1], time_attr="time")
    seed = NodeSamplerInput(None, torch.tensor([1]), torch.tensor([2]))
    assert sampler.sample_from_nodes(seed).node.tolist() == [1, 0]
    features.put_tensor(torch.arange(4), group_name="other", attr_name="time", index=None)
    with pytest.raises(InvalidArgumentError, match="time_attr: expected one attribute 'time', got some of groups"):
        PyGSampler((features, graph), [-1], time_attr="time")


@pytest.mark.parametrize("is_typed", [False, True])
def test_pairs_of_stores_are_partitioned(is_typed: bool, tmp_path: Path) -> None:
    edges = 3 * (37 * torch.arange(60) % 60)
    pair = local_stores(is_typed=is_typed, edge_ids=edges, row_ids=edges.sort().values, node_ids=torch.arange(20))
    partition_pyg(pair, tmp_path, num_parts=2)
    for batch in NeighborLoader(tmp_path, [-1], "b" if is_typed else None, batch_size=8):
        of_edges = batch[EDGE_TYPE] if is_typed else batch
        targets = (batch["b"] if is_typed else batch).n_id[of_edges.edge_index[1]]
        assert torch.equal(of_edges.edge_attr[:, 2], targets)
    assert GraphSource.from_pyg(grouped_stores("time"), time_attr="time").node_times.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("given", [(1, 2), None, torch.zeros(2, 3)])
def test_what_is_no_data_of_pygs(given: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"data: expected PyG's Data, HeteroData or \(FeatureStore, .* got"):
        partition_pyg(given, tmp_path, num_parts=1)


@pytest.mark.parametrize("kind", [NeighborLoader, DistNeighborLoader])
def test_rows_of_nodes_are_found_by_their_ids(kind: Any) -> None:
    """In whatever order a store has them; a node without a row is an error."""
    options = {"collect_features": True} if kind is DistNeighborLoader else {}
    graph = LocalGraphStore.from_data(
        torch.arange(20), torch.stack([torch.arange(20), (torch.arange(20) + 1) % 20]), 20
    )
    for ids in (torch.arange(20), torch.arange(20) * 7 % 20, torch.arange(30).flip(0)):
        features = LocalFeatureStore.from_data(node_id=ids, x=ids.view(-1, 1).float())
        loader = kind((features, graph), [1], torch.tensor([4, 8]), batch_size=2, **options)
        for batch in loader:
            assert torch.equal(batch.x, batch.n_id.view(-1, 1).float())
    for ids in (torch.arange(0, 20, 2), torch.arange(20) + 1, torch.arange(20) // 2):
        features = LocalFeatureStore.from_data(node_id=ids, x=ids.view(-1, 1).float())
        with pytest.raises(InvalidArgumentError, match="data: expected rows of features"):
            list(kind((features, graph), [1], torch.arange(20), batch_size=20, **options))


# Without types, PyG takes times of another name than "time" for those of edges.
@pytest.mark.parametrize(("group", "time_attr"), [(None, "time"), ("a", "time"), ("a", "when")])
@pytest.mark.parametrize("ids", [torch.arange(5, -1, -1), torch.arange(9, -1, -1)], ids=["permuted", "more than nodes"])
def test_times_of_nodes_are_found_by_their_ids(ids: torch.Tensor, group: Any, time_attr: str) -> None:
    """No neighbor is of the future, and a batch says the times by which it was drawn."""
    features, graph = LocalFeatureStore(), LocalGraphStore()
    features.put_global_id(ids, group)
    features.put_tensor(ids * 10, group_name=group, attr_name=time_attr)  # node i has the time 10 i
    edge_type = None if group is None else ("a", "to", "a")
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [3] * 6])
    graph.put_edge_index(edges, edge_type=edge_type, layout="coo", size=(6, 6))
    graph.put_edge_id(torch.arange(6), edge_type=edge_type, layout="coo", size=(6, 6))
    seeds = torch.tensor([3]) if group is None else (group, torch.tensor([3]))
    for times in ({}, {"input_time": torch.tensor([30])}):
        (batch,) = NeighborLoader((features, graph), [-1] if group is None else {edge_type: [-1]}, seeds,
                                  time_attr=time_attr, **times)  # fmt: skip
        store = batch if group is None else batch[group]
        assert set(store.n_id.tolist()) == {0, 1, 2, 3}
        assert torch.equal(store[time_attr], store.n_id * 10)


def test_a_store_that_finds_rows_by_ids_itself() -> None:
    """PyG's loaders ask for rows by ids of nodes: programs make their own classes for it."""

    class ById(LocalFeatureStore):
        def _get_tensor(self, attr: Any) -> Any:
            if attr.index is None:
                return super()._get_tensor(attr)
            return self._feat[self.key(attr)][self._global_id_to_index[attr.group_name][attr.index]]

    ids = torch.arange(20) * 7 % 20
    features = ById()
    features.put_tensor(ids.float().view(-1, 1), group_name=None, attr_name="x")
    features.put_global_id(ids, None)
    graph = LocalGraphStore.from_data(torch.arange(60), random_edges(20, 20, 60, 1), 20)
    for batch in NeighborLoader((features, graph), [3], batch_size=4):
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)
    for batch in DistNeighborLoader((features, graph), [3], torch.arange(20), batch_size=4, collect_features=True):
        assert torch.equal(batch.x[:, 0].long(), batch.n_id)


def test_ids_of_rows_that_change_in_place() -> None:
    ids = torch.arange(20)
    x = ids.float().view(-1, 1).clone()
    features = LocalFeatureStore.from_data(node_id=ids, x=x, edge_id=torch.arange(60))
    features.put_tensor(torch.arange(60.0), group_name=(None, None), attr_name="edge_attr")
    graph = LocalGraphStore.from_data(torch.arange(60), random_edges(20, 20, 60, 1), 20)
    loader = NeighborLoader((features, graph), [3], batch_size=4)
    for _ in range(2):
        for batch in loader:
            assert torch.equal(batch.x[:, 0].long(), batch.n_id)
        ids.copy_(ids.flip(0).clone())
        x.copy_(ids.view(-1, 1))
        features.put_global_id(ids, None)
