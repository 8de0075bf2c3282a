"""Numbers that make no sense are refused wherever they come in, with their name and place; types are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.data import Dataset, GraphSource
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, StorageError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RandomPartitioner, partition_source, verify
from graphlearn_dist.partition.base import build_partition_feature
from graphlearn_dist.utils.values import count_not_finite

A = torch.tensor
EDGES = A([[0, 1, 2, 3], [1, 2, 3, 0]])
ITEM, LIKES = "item", ("item", "likes", "item")
NAN, INF = float("nan"), float("inf")


def dataset_of(typed: bool, **given: Any) -> Dataset:
    """A cycle of four nodes."""

    def wrap(name: str) -> Any:
        value = given.get(name)
        return value if value is None or not typed else {LIKES if name.startswith("edge") else ITEM: value}

    dataset = Dataset(edge_dir="in")
    edges = {LIKES: EDGES} if typed else EDGES
    dataset.init_graph(edges, edge_ids=wrap("edge_ids"), edge_weights=wrap("edge_weights"), num_nodes=wrap("num_nodes"))
    dataset.init_node_features(wrap("node_feat"))
    dataset.init_edge_features(wrap("edge_feat"))
    if "node_split" in given:
        parts = given["node_split"]
        dataset.init_node_split(tuple({ITEM: part} for part in parts) if typed else parts)
    return dataset


def partition_of(path: Path, typed: bool, **given: Any) -> None:
    def wrap(name: str, key: Any, value: Any) -> Any:
        return {key: value} if typed else value

    options = {name: wrap(name, LIKES if name.startswith("edge") else ITEM, value) for name, value in given.items()}
    RandomPartitioner(path, 2, {ITEM: 4} if typed else 4, {LIKES: EDGES} if typed else EDGES, **options).partition()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"edge_weights": A([1, NAN, 1, 1])}, r"edge_weights{edge}\[1\]: expected a finite number >= 0, got nan"),
    ({"edge_weights": A([1.0, 1, -2, 1])}, r"edge_weights{edge}\[2\]: .* got -2.0"),
    ({"edge_ids": A([0, 1, 0, 2])}, r"edge_ids{edge}: expected distinct ids, got 0 at positions \[0, 2\]"),
    ({"node_feat": A([[1.0], [2], [INF], [NAN]])}, "node_feat.*{node}: expected finite numbers, got inf in row 2"),
    ({"edge_feat": A([[1.0], [NAN], [1], [1]]).half()}, "edge_feat.*{edge}: expected finite numbers, got nan in row 1"),
    (
        {"node_split": (A([0, 1]), A([2]), A([3, 1]))},
        "node_split{node}: expected no node in two parts, got node 1 in train and in test",
    ),
]


@pytest.mark.parametrize("typed", [False, True], ids=["homogeneous", "typed"])
@pytest.mark.parametrize(("given", "match"), BAD, ids=[next(iter(given)) + str(i) for i, (given, _) in enumerate(BAD)])
def test_refused_by_data_sets_and_partitioners(given: dict[str, Any], match: str, typed: bool, tmp_path: Path) -> None:
    match = match.format(edge=r"\[\('item', 'likes', 'item'\)\]" if typed else "", node=r"\['item'\]" if typed else "")
    doors: list[Callable[[], Any]] = [
        lambda: dataset_of(typed, **given),
        lambda: partition_of(tmp_path / "parts", typed, **given),
    ]
    for door in doors:
        with pytest.raises(InvalidArgumentError, match=match):
            door()


def test_numbers_that_are_not_finite_are_taken_where_that_is_said(tmp_path: Path) -> None:
    """And counted by verify; other dtypes are never looked at."""
    features = A([[1.0, INF], [NAN, NAN], [0, 0], [-INF, 1]])
    source = GraphSource(4, EDGES, node_features=features, edge_features=A([[1], [2], [3], [4]]))
    with pytest.raises(InvalidArgumentError, match="row 0"):
        source.to_dataset()
    kept = source.to_dataset(allow_nonfinite=True).node_features[torch.arange(4)]
    assert torch.equal(kept.nan_to_num(7.0), features.nan_to_num(7.0))
    with pytest.raises(InvalidArgumentError, match=r"node_feat: .* row 0"):
        partition_source(source, tmp_path / "a", num_parts=1)
    root = partition_source(source, tmp_path / "b", num_parts=1, allow_nonfinite=True)
    assert "node_feat: 3 of 4 rows hold numbers that are not finite" in verify(root)
    plain = partition_source(GraphSource(4, EDGES, node_features=A([[1.0]] * 4)), tmp_path / "c", num_parts=1)
    assert "not finite" not in verify(plain)


def test_rows_are_counted_beyond_what_is_looked_at_at_once() -> None:
    rows = torch.zeros(200_000, 40)
    rows[[5, 150_000, 199_999], 3] = NAN
    with pytest.raises(InvalidArgumentError, match="row 5;"):
        Dataset().init_node_features(rows)
    rows[5] = 0
    with pytest.raises(InvalidArgumentError, match="row 150000;"):
        Dataset().init_node_features(rows)
    assert count_not_finite(rows) == 2


def test_features_that_come_later_are_looked_at(tmp_path: Path) -> None:
    partitioner = RandomPartitioner(tmp_path / "g", 1, 4, EDGES)
    partitioner.partition()
    bad = A([[1.0], [NAN], [1], [1]])
    with pytest.raises(InvalidArgumentError, match=r"node_feat: .* nan in row 1"):
        build_partition_feature(tmp_path / "g", 0, node_feat=bad)
    build_partition_feature(tmp_path / "g", 0, node_feat=bad, allow_nonfinite=True)
    assert "1 of 4 rows" in verify(tmp_path / "g")


@pytest.mark.parametrize("features", [A([[2**24 + 1]] * 4), A([[1 + 2.0**-40]] * 4, dtype=torch.float64)])
def test_features_keep_their_type(features: torch.Tensor, tmp_path: Path) -> None:
    """In partitions as in data sets, unless another is asked for."""
    RandomPartitioner(tmp_path / "kept", 1, 4, EDGES, node_feat=features, edge_feat=features).partition()
    dataset = DistDataset()
    dataset.load(str(tmp_path / "kept"), 0)
    for store in (dataset.node_features, dataset.edge_features):
        assert torch.equal(store[torch.arange(4)], features)
    options = {"node_feat_dtype": torch.float32, "edge_feat_dtype": torch.float16}
    RandomPartitioner(tmp_path / "asked", 1, 4, EDGES, node_feat=features, edge_feat=features, **options).partition()
    dataset = DistDataset()
    dataset.load(str(tmp_path / "asked"), 0)
    assert dataset.node_features[A([0])].dtype == torch.float32
    assert dataset.edge_features[A([0])].dtype == torch.float16


@pytest.mark.parametrize("length", [0, 3, 5])
def test_masks_have_an_entry_for_each_node(length: int) -> None:
    """Also those that select no node that is not there."""
    mask = torch.zeros(length, dtype=torch.bool)
    mask[:2] = True
    with pytest.raises(InvalidArgumentError, match=rf"input_nodes: expected a mask \[4\], got \[{length}\]"):
        NeighborLoader(dataset_of(False), [1], mask)
    with pytest.raises(InvalidArgumentError, match=rf"input_nodes: expected a mask \[4\], got \[{length}\]"):
        NeighborLoader(dataset_of(True), [1], (ITEM, mask))
    good = NeighborLoader(dataset_of(False), [1], A([True, False, False, True]), batch_size=2)
    assert next(iter(good)).batch_size == 2


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **{"edge_index": EDGES.numpy(), **arrays})
    return path


def test_masks_of_npz_files_are_masks(tmp_path: Path) -> None:
    mask = np.array([True, False, True, False])
    source = GraphSource.from_npz(npz(tmp_path / "a.npz", train_idx=mask, val_idx=~mask, num_nodes=4))
    assert source.node_split is not None
    assert [None if part is None else part.tolist() for part in source.node_split] == [[0, 2], [1, 3], None]
    source = GraphSource.from_npz(npz(tmp_path / "pyg.npz", train_mask=mask, test_mask=~mask))
    assert source.node_split is not None
    assert [None if part is None else part.tolist() for part in source.node_split] == [[0, 2], None, [1, 3]]
    wide = {"edge_index": EDGES.numpy().astype(np.uint32), "train_idx": np.array([3], dtype=np.uint8)}
    source = GraphSource.from_npz(npz(tmp_path / "b.npz", **wide, other=np.array(["a"])))
    assert source.edge_index.dtype == torch.int64
    assert source.node_split is not None
    assert source.node_split[0].tolist() == [3]


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"edge_index": EDGES.numpy() + 0.5}, "edge_index: expected integers, found float64"),
        ({"train_idx": np.array([0.0, 1.0])}, "train_idx: expected integers or booleans, found float64"),
        ({"val_idx": np.array([True])}, r"val_idx: expected a mask \[4\], found \[1\]"),
        ({"val_mask": np.array([1, 0, 0, 0])}, "val_mask: expected booleans, found int64"),
        ({"test_mask": np.array([True] * 4), "test_idx": np.array([1])}, "expected one of test_idx and test_mask"),
        ({"split": np.array([0.0, 1, 2, 0])}, "split: expected integers, found float64"),
        ({"split": np.array([0, 1]), "num_nodes": 4}, r"split: expected \[4\], found \[2\]"),
        ({"num_nodes": np.array(4.5)}, "num_nodes: expected integers, found float64"),
        ({"num_nodes": np.array([4, 4])}, "num_nodes: expected one number"),
        ({"x": np.array([["a"]] * 4)}, "x: expected booleans or integers or floating-point numbers, found <U1"),
        ({"edge_time": np.ones(4)}, "edge_time: expected integers, found float64"),
        ({"edge_weight": np.ones(4, dtype=bool)}, "edge_weight: expected integers or floating-point numbers"),
        ({"edge_index": np.full((2, 1), 2**63, dtype=np.uint64)}, r"edge_index: expected integers below 2\^63"),
    ],
)
def test_npz_files_with_other_numbers(arrays: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=match):
        GraphSource.from_npz(npz(tmp_path / "a.npz", **arrays))


def test_features_of_text(tmp_path: Path) -> None:
    text = np.array([["a"], ["b"], ["c"], ["d"]])
    with pytest.raises(InvalidArgumentError, match="node_feature_data: expected an array of numbers, got dtype <U1"):
        Dataset().init_node_features(text)
    with pytest.raises(InvalidArgumentError, match="node_feat: expected an array of numbers, got dtype <U1"):
        RandomPartitioner(tmp_path / "g", 1, 4, EDGES, node_feat=text)


def test_one_number_is_no_rows() -> None:
    for take in (Dataset().init_node_features, Dataset().init_edge_features, Dataset().init_node_labels):
        with pytest.raises(InvalidArgumentError, match=r"_data: expected rows \[n, ...\], got one number"):
            take(A(1.0))
    with pytest.raises(InvalidArgumentError, match=r"node_label_data\['item'\]: expected rows"):
        Dataset().init_node_labels({ITEM: A(1)})


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("part", [A([True, False]), A([0.0, 1.0]), A([[0, 1]])])
def test_splits_are_ids(part: torch.Tensor, typed: bool) -> None:
    with pytest.raises(InvalidArgumentError, match=r"node_split.*: expected ids of valid as int32 or int64 \[n\], got"):
        dataset_of(typed, node_split=(A([0]), part, A([3])))
