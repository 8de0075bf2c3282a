"""Data sets of both kinds, features by id, and splits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data import Dataset, Feature, UnifiedTensor, random_split
from graphlearn_dist.data.reorder import sort_by_in_degree
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RangePartitionBook
from graphlearn_dist.typing import Split
from tests.support.graphs import EDGE_TYPES, Direction, analytic_edges, analytic_graph, make_dataset, typed_graph

A = torch.tensor


# --- data sets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_homogeneous(edge_dir: Direction) -> None:
    dataset = make_dataset(analytic_graph(10), edge_dir)
    schema = dataset.schema
    assert schema.is_homogeneous
    assert (schema.node_types, schema.edge_types, schema.num_nodes) == ((None,), (None,), (10,))
    assert schema.edge_specs == ((0, 0),)
    assert (dataset.get_node_types(), dataset.get_edge_types()) == ([], [])
    graph, feature, labels = dataset.get_graph(), dataset.get_node_feature(), dataset.get_node_label()
    assert graph is not None
    assert graph.topo.indices[:2].tolist() == ([1, 2] if edge_dir == "out" else [8, 9])
    assert feature is not None
    assert feature[A([3])].tolist() == [[3.0, 3.5]]
    assert labels is not None
    assert labels.tolist() == list(range(10))
    assert sorted(dataset.stores()) == ["edge_feature:0", "node_feature:0", "node_label:0"]
    assert dataset["graph"] is graph
    assert dataset.get_graph(EDGE_TYPES[0]) is None


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed(edge_dir: Direction) -> None:
    graph = typed_graph(12, 5, 40, 0)
    dataset = make_dataset(graph, edge_dir)
    schema = dataset.schema
    assert (schema.node_types, schema.edge_types) == (("item", "user"), tuple(sorted(EDGE_TYPES)))
    assert schema.num_nodes == (5, 12)
    rev, buys, knows = (0, 1), (1, 0), (1, 1)  # (source type, target type), in the order of the sorted edge types
    assert schema.edge_specs == ((rev, buys, knows) if edge_dir == "out" else (buys, rev, knows))
    for edge_type in EDGE_TYPES:
        held = dataset.get_graph(edge_type)
        assert held is not None
        source, target, _, _ = held.topo.to_coo()
        edges = graph.edges[edge_type].t().tolist()
        assert sorted(map(list, zip(source.tolist(), target.tolist(), strict=True))) == sorted(edges)
    assert sorted(dataset.stores()) == ["edge_feature:1", "node_feature:1", "node_label:0", "node_label:1"]
    assert dataset.get_node_feature("item") is None
    assert schema.node_type_index("user") == 1
    with pytest.raises(InvalidArgumentError, match=r"unknown node type 'nobody'.*item, user"):
        schema.node_type_index("nobody")


@pytest.mark.parametrize("threads", [1, 3])
def test_features_are_cast_and_found_by_id(threads: int) -> None:
    """Stored as ``dtype``, given as ``out_dtype``, in the rows that ``id2idx`` names; batches alike, with any threads,
    from the data set and from the one partition made of it."""
    edges, rows = analytic_edges(6), torch.arange(12.0).view(6, 2) / 4
    backwards = np.arange(6)[::-1].copy()
    dataset = Dataset(edge_dir="out")
    dataset.init_graph(edges)
    dataset.init_node_features(
        rows.flip(0), backwards, sort_by_in_degree, dtype=torch.float16, num_threads=threads, out_dtype=torch.float32
    )
    dataset.init_edge_features(torch.arange(edges.size(1)).view(-1, 1).to(torch.int8), out_dtype=torch.float64)
    nodes, held = dataset.get_node_feature(), dataset.get_edge_feature()
    assert nodes is not None
    assert held is not None
    assert (nodes.feature_tensor.dtype, nodes.dtype, nodes.num_threads) == (torch.float16, torch.float32, threads)
    assert torch.equal(nodes[A([5, 0, 3])], rows[[5, 0, 3]])
    assert torch.equal(nodes.gather(A([5, 0, 3]), num_threads=2), rows[[5, 0, 3]])
    for whole in (dataset, DistDataset.from_dataset(dataset)):
        loader = NeighborLoader(whole, [2], A([4, 1]), batch_size=2, with_edge=True, num_threads=threads)
        batch = loader.batch(0, 0)
        assert torch.equal(batch.x, rows[batch.n_id])
        assert batch.edge_attr.dtype == torch.float64
        assert torch.equal(batch.edge_attr.view(-1), batch.e_id.double())


def test_bad_feature_options() -> None:
    typed = {"user": torch.zeros(3, 1)}
    for dataset_of in (Dataset().init_node_features, Dataset().init_node_labels):
        with pytest.raises(InvalidArgumentError, match="id2idx: unknown type None; expected some of"):
            dataset_of(typed, A([2, 1, 0]))
    with pytest.raises(InvalidArgumentError, match="out_dtype: expected a floating type"):
        Dataset().init_edge_features(torch.zeros(3, 1, dtype=torch.int64), out_dtype=torch.float32)
    dataset = Dataset()
    dataset.init_node_features(typed, {"user": [2, -1, 0]})
    with pytest.raises(UnknownIdError, match="id 1 has no feature row here"):
        dataset.node_features["user"][A([0, 1])]


def test_nodes_beyond_the_edges() -> None:
    """Counted where told, where features say so, and never less than the edges need."""
    by_number, by_features = Dataset(), Dataset()
    by_number.init_graph(analytic_edges(4), num_nodes=9)
    by_features.init_node_features(torch.zeros(9, 1))
    by_features.init_graph(analytic_edges(4))
    assert by_number.schema.num_nodes == by_features.schema.num_nodes == (9,)
    with pytest.raises(UnknownIdError, match="outside"):
        Dataset().init_graph(analytic_edges(4), num_nodes=3)
    typed = Dataset()
    typed.init_graph({EDGE_TYPES[0]: analytic_edges(4)}, num_nodes={"item": 7})
    assert typed.schema.num_nodes == (7, 4)


@pytest.mark.parametrize("layout", ["CSR", "CSC"])
def test_input_layouts(layout: str) -> None:
    topo = make_dataset(analytic_graph(6)).graph.topo
    first, second, ids, _ = topo.to_csr() if layout == "CSR" else topo.to_csc()
    dataset = Dataset()
    dataset.init_graph((first, second), ids, layout=layout)
    assert torch.equal(dataset.graph.topo.indices, topo.indices)
    assert torch.equal(dataset.graph.topo.edge_ids, topo.edge_ids)
    typed = Dataset()
    typed.init_graph({EDGE_TYPES[2]: (first, second)}, {EDGE_TYPES[2]: ids}, layout={EDGE_TYPES[2]: layout})
    assert torch.equal(typed.graph[EDGE_TYPES[2]].topo.indices, topo.indices)


def test_splits() -> None:
    dataset = make_dataset(analytic_graph(100))
    dataset.random_node_split(0.2, 30, seed=3)
    parts = [dataset.split_ids(split).tolist() for split in (Split.train, Split.valid, Split.test)]
    assert [len(part) for part in parts] == [50, 20, 30]
    assert sorted(sum(parts, start=[])) == list(range(100))  # noqa: RUF017
    again = random_split(100, 0.2, 30, seed=3)
    assert [part.tolist() for part in again] == parts
    assert random_split(100, 0.2, 30, seed=4)[0].tolist() != parts[0]
    typed = make_dataset(typed_graph(20, 10, 50, 0))
    typed.random_node_split(0.5, 0.1)
    assert [len(typed.split_ids(Split.valid, name)) for name in ("user", "item")] == [10, 5]
    with pytest.raises(InvalidArgumentError, match="no 'train' split"):
        make_dataset(analytic_graph(4)).split_ids(Split.train)
    for bad in ((0.6, 0.6), (-1, 0), (5, 6)):
        with pytest.raises(InvalidArgumentError, match="num_val, num_test"):
            random_split(10, *bad)


def test_directions() -> None:
    with pytest.raises(InvalidArgumentError, match=r"edge_dir: .*'both'"):
        Dataset(edge_dir="both")  # type: ignore[arg-type]


# --- features --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [A([4, 0, 4]), A([4, 0, 4], dtype=torch.int32)])
def test_feature_by_row(ids: torch.Tensor) -> None:
    feature = Feature(np.arange(10.0).reshape(5, 2), dtype=None)
    assert feature[ids].tolist() == [[8, 9], [0, 1], [8, 9]]
    assert feature.cpu_get(ids).dtype == feature.dtype == torch.float64
    assert (feature.shape, feature.size(0)) == ((5, 2), 5)
    assert Feature(A([[1, 2]]), dtype=torch.float16)[A([0])].dtype == torch.float16


@pytest.mark.parametrize("id2index", [A([2, -1, 0, 1]), [2, -1, 0, 1], A([2, -1, 0, 1], dtype=torch.int32)])
def test_feature_by_id(id2index: Any) -> None:
    feature = Feature(A([[10.0], [11.0], [12.0]]), id2index)
    assert feature[A([0, 3, 2, 0])].view(-1).tolist() == [12, 11, 10, 12]
    out = torch.zeros(4, 1)
    feature.gather_into(out, A([3, 1]), A([2, 0]))
    assert out.view(-1).tolist() == [0, 12, 0, 10]
    with pytest.raises(UnknownIdError, match="id 1 has no feature row"):
        feature[A([0, 1])]
    for bad in (-1, 4):
        with pytest.raises(UnknownIdError, match=f"{bad} is outside"):
            feature[A([0, bad])]
    assert feature[torch.empty(0, dtype=torch.int64)].shape == (0, 1)


def test_rows_by_the_ids_of_a_book() -> None:
    """A book's ``id2index`` computes rows, and has no length."""
    rows = RangePartitionBook([(0, 4), (4, 10)], 1).id2index
    dataset = Dataset()
    dataset.init_graph(analytic_edges(10))
    dataset.init_node_features(torch.arange(4.0, 10.0).view(-1, 1), id2idx=rows)
    dataset.init_edge_features(torch.arange(4.0, 10.0).view(-1, 1), id2idx=rows)
    dataset.init_node_labels(torch.arange(4, 10), id2idx=rows)
    ids = torch.tensor([9, 4])
    for store in dataset.stores().values():
        assert store[ids].flatten().tolist() == [9, 4]
    with pytest.raises(UnknownIdError, match="ids\\[0\\]=3: expected 4 <= id < 10"):
        dataset.node_features[torch.tensor([3])]
    with pytest.raises(InvalidArgumentError, match="hotness"):
        dataset.init_node_features(torch.ones(6, 1), id2idx=rows, hotness=torch.ones(6))


def test_unknown_ids_are_errors_and_never_row_0() -> None:
    for bad in (-1, 5, 1 << 40):
        with pytest.raises(UnknownIdError, match=str(bad)):
            Feature(torch.zeros(5, 2))[A([0, bad])]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((A(1.0),), "feature_tensor"),
        ((torch.zeros(2, 2), None, 0.5), "split_ratio"),
        ((torch.zeros(2, 2), None, 0.0, None, 99), "device"),
        ((["a"],), "feature_tensor"),
    ],
)
def test_feature_refuses(arguments: Any, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        Feature(*arguments)


@pytest.mark.parametrize("ids", [[0], A([0.0]), A([[0]]), A([True])])
def test_feature_refuses_what_is_not_ids(ids: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="ids"):
        Feature(torch.zeros(2, 2))[ids]


def test_unified_tensor() -> None:
    pieces = [torch.arange(6).view(3, 2), torch.empty(0, 2, dtype=torch.int64), torch.arange(6, 10).view(2, 2)]
    unified = UnifiedTensor(dtype=torch.int64, num_threads=2)
    assert unified.shape == [0, 0]
    with pytest.raises(NotInitializedError, match="no rows yet"):
        unified[A([0])]
    unified.init_from(pieces, [-1, -1, -1])
    assert (unified.shape, unified.size(1), unified.numel, unified.stride(0)) == ([5, 2], 2, 10, 2)
    assert unified[A([4, 0, 2])].tolist() == [[8, 9], [0, 1], [4, 5]]
    unified.append_cpu_tensor(A([[70, 80]]))
    assert unified[A([5])].tolist() == [[70, 80]]
    out = torch.zeros(2, 2, dtype=torch.int64)
    unified.gather_into(out, A([1, 0]), A([0, 5]))
    assert out.tolist() == [[70, 80], [0, 1]]
    unified.gather_all(out, A([3, 3]))
    assert out.tolist() == [[6, 7], [6, 7]]
    assert [len(part) for part in unified.parts] == [3, 0, 2, 1]
    for bad, match in ((lambda: unified.append_cpu_tensor(torch.zeros(1, 2)), "dtype"),
                       (lambda: unified.append_cpu_tensor(A(1)), "scalar"),
                       (lambda: unified.init_from(pieces, [-1]), "tensor_devices"),
                       (lambda: unified.init_from(pieces[:1], [0]), "tensor_devices"),
                       (lambda: unified.append_shared_tensor(None), "needs a GPU")):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=match):
            bad()
    with pytest.raises(UnknownIdError, match="6"):
        unified[A([6])]
