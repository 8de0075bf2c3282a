"""What columns may hold, at the ends of their ranges: stored as docs/tables.md says, or refused with the place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from graphlearn_dist.errors import (
    GraphLearnError,
    InvalidArgumentError,
    PartitionFormatError,
    StorageError,
    TableError,
)
from graphlearn_dist.partition import load_partition_layout, verify
from graphlearn_dist.tables import IdMap, ids

from .shop import make

TINY = np.float32(1e-45)  # subnormal


class Tables:
    """A ring of nodes 0, 1, 2; columns of nodes and edges as a test gives them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, **columns: Any) -> str:
        pq.write_table(pa.table(columns), self.folder / name)
        return str(self.folder / name)

    def edges(self, **keys: Any) -> dict[str, Any]:
        columns = {name: keys.pop(name) for name in list(keys) if isinstance(keys[name], pa.Array)}
        columns = {"s": pa.array([0, 1, 2]), "d": pa.array([1, 2, 0])} | columns
        return {"source_id_col": "s", "dest_id_col": "d", "files": self.write("e.parquet", **columns)} | keys

    def nodes(self, **keys: Any) -> dict[str, Any]:
        columns = {name: keys.pop(name) for name in list(keys) if isinstance(keys[name], pa.Array)}
        columns = {"id": pa.array([0, 1, 2])} | columns
        return {"node_id_col": "id", "files": self.write("n.parquet", **columns)} | keys

    def build(self, config: dict[str, Any], **more: Any) -> Path:
        return make(config, self.folder / "g", parts=1, **more)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


@pytest.mark.parametrize("dtype", [pa.date32(), pa.date64(), pa.timestamp("us", "Europe/Paris"), pa.uint64()])
def test_times(tables: Tables, dtype: Any) -> None:
    days = pa.array([3, 1, 2], pa.date32())
    given = pa.array([3, 1, 2], dtype) if pa.types.is_integer(dtype) else days.cast(dtype)
    expected = np.array([3, 1, 2]) * (86400 * 10**6 if pa.types.is_timestamp(dtype) else 1)
    out = tables.build({"edges": [tables.edges(t=given, time_col="t")]})
    graph = load_partition_layout(out).open_partition(0).graphs[None]
    assert graph.times is not None
    assert graph.times[graph.edge_ids.long().argsort()].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "dtype", [pa.float16(), pa.float32(), pa.float64(), pa.decimal128(24, 1), pa.int8(), pa.bool_()]
)
def test_weights(tables: Tables, dtype: Any) -> None:
    weights = np.array([1, 0, 1], np.float16)
    given = pa.array(weights).cast(pa.float32()).cast(dtype) if dtype != pa.float16() else pa.array(weights)
    out = tables.build({"edges": [tables.edges(w=given, weight_col="w")]})
    graph = load_partition_layout(out).open_partition(0).graphs[None]
    assert graph.weights is not None
    assert graph.weights[graph.edge_ids.long().argsort()].tolist() == [1, 0, 1]
    expected = {pa.float16(): torch.float16, pa.float64(): torch.float64}.get(dtype, torch.float32)
    assert graph.weights.dtype == expected


def features_of(tables: Tables, dtype: str, *columns: Any, **keys: Any) -> Any:
    names = [f"f{i}" for i in range(len(columns))]
    given: dict[str, Any] = dict(zip(names, columns, strict=True))
    nodes = tables.nodes(features=[{"feature_col": names, "out_dtype": dtype}], **given, **keys)
    return tables.build({"nodes": [nodes], "edges": [tables.edges(drop=["unknown_ids"])]})


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        ("float16", 65520.0, "got 65520.0, which is infinite as float16"),
        ("bfloat16", 3.4e38, "which is infinite as bfloat16"),
        ("float32", 1e39, "got inf"),
        ("int8", 1e39, "got inf"),
    ],
)
def test_number_that_becomes_infinite(tables: Tables, dtype: str, value: float, words: str) -> None:
    with pytest.raises(TableError, match=f"row group 0, row 1, column 'f0': expected finite numbers, .*{words}"):
        features_of(tables, dtype, pa.array([1.0, value, 2.0]))
    out = features_of(tables, dtype, pa.array([1.0, value, 2.0]), drop=["nonfinite"])
    assert load_partition_layout(out).columns["nodes"][None]["dropped"] == {"nonfinite": 1}


def test_least_columns_of_int8(tables: Tables) -> None:
    columns = [[TINY, -TINY, 0], [TINY * 180, -TINY * 180, 0], [0, 0, 0], [3e38, -3e38, 1], [2e-38, -2e-38, 0]]
    out = features_of(tables, "int8", *(pa.array(column, pa.float32()) for column in columns))
    layout = load_partition_layout(out)
    stored = layout.open_partition(0).node_feats[None]
    scale = torch.tensor(layout.columns["nodes"][None]["features"][0]["scale"])
    expected = torch.tensor(np.array(columns, np.float32)).T
    assert bool(((stored * scale - expected).abs() <= scale * 0.5001).all())


def test_null_in_a_list_is_a_null(tables: Tables) -> None:
    lists = pa.array([[1.0, 2.0], [3.0, None], None])
    with pytest.raises(TableError, match=r"row 2, column 'f0': expected numbers, got null"):
        features_of(tables, "float32", lists)
    with pytest.raises(TableError, match=r"row 1, column 'f0': expected numbers, got \[3.0, None\]"):
        features_of(tables, "float32", lists[:2], id=pa.array([0, 1]))
    out = features_of(tables, "float32", lists, drop=["nulls"])
    layout = load_partition_layout(out)
    assert layout.columns["nodes"][None]["dropped"] == {"nulls": 2}
    assert layout.open_partition(0).node_feats[None].tolist() == [[1.0, 2.0]]


def test_lists_of_nothing(tables: Tables) -> None:
    out = features_of(tables, "float32", pa.array([[], [], []], pa.list_(pa.float32())))
    assert load_partition_layout(out).open_partition(0).node_feats[None].shape == (3, 0)


def test_first_of_double_ids_decides_everything(tables: Tables) -> None:
    nodes = tables.nodes(
        id=pa.array([5, 1, 2, 5]),
        f=pa.array([1.0, 2.0, 3.0, 1000.0]),
        y=pa.array(["a", "b", "b", "other"]),
        part=pa.array(["train", "val", "test", "test"]),
        drop="double_ids",
        features=[{"feature_col": "f", "out_dtype": "int8"}],
        labels=[{"label_col": "y", "split_col": "part"}],
    )
    out = tables.build({"nodes": [nodes], "edges": [tables.edges(s=pa.array([1, 2, 5]), d=pa.array([5, 1, 2]))]})
    layout = load_partition_layout(out)
    about, arrays = layout.columns["nodes"][None], layout.open_partition(0)
    assert about["dropped"] == {"double_ids": 1}
    assert about["features"][0]["scale"] == [float(np.float32(3) / np.float32(127))]
    assert about["label"]["class_names"] == ["a", "b"]
    assert arrays.node_labels[None].tolist() == [1, 1, 0]
    assert {name: part.tolist() for name, part in layout.nodes[None].split.items()} == {
        "train": [2],
        "val": [0],
        "test": [1],
    }


HUGE = pa.array([0, 1, 2**63], pa.uint64())
REFUSED: list[tuple[Callable[[Tables], dict[str, Any]], str]] = [
    (
        lambda t: {"edges": [t.edges(d=HUGE)]},
        r"row 2, column 'd': expected an id below 2\*\*63, got 9223",
    ),
    (
        lambda t: {"edges": [t.edges(t=HUGE, time_col="t")]},
        "row 2, column 't': expected a time, got 9223",
    ),
    (
        lambda t: {"nodes": [t.nodes(y=HUGE, labels={"label_col": "y"})], "edges": [t.edges()]},
        r"row 2, column 'y': expected a class below 2\*\*63, got 9223",
    ),
    (
        lambda t: {
            "nodes": [t.nodes(y=pa.array([0, 1e39, 2]), labels={"label_col": "y", "task_type": "regression"})],
            "edges": [t.edges()],
        },
        "row 1, column 'y': expected a label that is finite as float32, got 1e[+]39",
    ),
    (
        lambda t: {
            "nodes": [t.nodes(part=pa.array([["train"], ["val"], None]), labels={"split_col": "part"})],
            "edges": [t.edges()],
        },
        "column 'part': expected texts or integers as parts, found list",
    ),
    (
        lambda t: {
            "edges": [
                t.edges(relation=["u", "a", "v"]),
                t.edges(relation=["u", "b", "v"]) | {"files": t.write("f.parquet", s=pa.array(["x"]), d=pa.array([1]))},
            ]
        },
        "nodes u: expected ids of one kind.*int64 in column 's' of edges u a v, string in column 's' of edges u b v",
    ),
    (
        lambda t: {"nodes": [t.nodes(id=pa.array([1, 0, 1]))], "edges": [t.edges()]},
        "each id once, got 1 again",
    ),
    (
        lambda t: {"edges": [t.edges(relation=["a__b", "c", "d"]), t.edges(relation=["a", "b__c", "d"])]},
        "expected other names than",
    ),
    (
        lambda t: {"edges": [t.edges(relation=["a b", "c", "d"]), t.edges(relation=["a", "b c", "d"])]},
        "expected other names than",
    ),
    (
        lambda t: (
            {"nodes": [t.nodes(degree="k", features=[{"feature_col": "id", "feature_name": "k"}])]}
            | {"edges": [t.edges()]}
        ),
        "degree: expected a name that no feature has, got 'k'",
    ),
    (lambda t: {"nodes": [t.nodes(num_nodes=50)], "edges": [t.edges()]}, "num_nodes: expected none beside files"),
    (
        lambda t: {"nodes": [t.nodes(node_id_col=None, drop="nulls")], "edges": [t.edges()]},
        "drop: expected node_id_col beside it",
    ),
    (lambda t: {"edges": [t.edges(database="x.db")]}, "database: expected none but beside query"),
    (lambda t: {"edges": [t.edges(storage_options={"a": {1, 2}})]}, "storage_options: expected texts"),
    (lambda t: {"edges": [t.edges(format={"name": "csv", "types": {"s": 5}})]}, "types: expected names of columns"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused(tables: Tables, number: int) -> None:
    config, words = REFUSED[number]
    with pytest.raises((TableError, InvalidArgumentError), match=words):
        tables.build(config(tables))
    assert not (tables.folder / "g").exists()


def test_maps_are_the_same_however_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers that are marked, or sorted since memory does not hold the marks; texts in groups of any size."""
    monkeypatch.setattr(ids, "_MAP_GROUP", 700)
    order = np.random.default_rng(0).permutation(4000)
    for name, given in (("dense", order), ("int", order * 3), ("text", np.char.mod("n%d", order))):
        found = []
        for working in (1 << 26, 1 << 12):
            tables = Tables(tmp_path / f"{name}{working}")
            tables.folder.mkdir()
            nodes, ends = tables.nodes(id=pa.array(given)), {"s": pa.array(given[:3]), "d": pa.array(given[3:6])}
            out = tables.build({"nodes": [nodes], "edges": [tables.edges(**ends)]}, working=working)
            found.append((out / "META.json").read_bytes())
            assert (out / "node_map").exists() == (name != "dense")
            assert IdMap(out).original_ids(torch.arange(4000)).to_pylist() == sorted(given.tolist())
        assert found[0] == found[1]


def test_groups_of_a_map_are_bounded_in_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a rule that does not know of pieces; a text that is longer than a group may be is alone in one."""
    monkeypatch.setattr(ids, "_MAP_GROUP", 4)
    monkeypatch.setattr(ids, "_MAP_GROUP_BYTES", 10)
    texts = ["", "a", "b", "c", "d", "e" * 7, "ff", "g" * 11, "h" * 10, "i" * 9, "j", "k"]
    wanted = [["", "a", "b", "c"], ["d", "e" * 7, "ff"], ["g" * 11], ["h" * 10], ["i" * 9, "j"], ["k"]]
    whole = pa.array(texts, pa.large_string())
    for cuts in ([], [1], [5, 6, 7], range(1, 12), [3, 3, 11]):
        ends = [0, *cuts, len(texts)]
        pieces = [whole[first:end] for first, end in itertools.pairwise(ends)]
        assert [group.to_pylist() for group in ids._in_groups(pieces, pa.large_string())] == wanted
    numbers = pa.array(range(9))
    assert [len(group) for group in ids._in_groups([numbers[:3], numbers[3:]], pa.int64())] == [4, 4, 1]
    tables = Tables(tmp_path / "long")
    tables.folder.mkdir()
    ends = {"s": pa.array(texts[:3]), "d": pa.array(texts[-3:])}
    out = tables.build({"nodes": [tables.nodes(id=pa.array(texts[::-1]))], "edges": [tables.edges(**ends)]})
    metadata = pq.read_metadata(out / "node_map" / "ids.parquet")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == list(map(len, wanted))
    assert IdMap(out).original_ids(torch.arange(12)).to_pylist() == texts
    assert IdMap(out).node_ids(texts).tolist() == list(range(12))


def test_long_ids_that_do_not_fit_into_memory(tmp_path: Path) -> None:
    """Sorting them takes memory in proportion: the error says how long they are, and what helps."""
    tables = Tables(tmp_path / "t")
    tables.folder.mkdir()
    nodes = tables.nodes(id=pa.array(["x" * 40_000 + f"{(i * 7919) % 4000}" for i in range(4000)]))
    edges = tables.edges(s=pa.array([], pa.string()), d=pa.array([], pa.string()))
    with pytest.raises(StorageError, match=r"ids cannot be sorted: .*; texts of 40,\d\d\d bytes need more --memory"):
        tables.build({"nodes": [nodes], "edges": [edges]}, working=1 << 12)


def test_map_that_is_damaged_or_lost(tables: Tables) -> None:
    out = tables.build({"edges": [tables.edges(s=pa.array([7, 50, 600]), d=pa.array([50, 600, 7]))]})
    verify(out)
    path = out / "node_map" / "ids.parquet"
    data = bytearray(path.read_bytes())
    data[10] ^= 255
    path.write_bytes(data)
    with pytest.raises(PartitionFormatError, match=r"ids.parquet: altered"):
        verify(out)
    path.unlink()
    with pytest.raises(PartitionFormatError, match=r"ids.parquet: cannot be read"):
        verify(out)
    with pytest.raises(TableError, match=r"ids.parquet: cannot be read"):  # ids are not their own numbers then
        IdMap(out)


def test_original_ids_of_dense_nodes(tables: Tables) -> None:
    known = IdMap(tables.build({"edges": [tables.edges()]}))
    assert known.node_ids([2, 0]).tolist() == [2, 0]
    bad: list[tuple[Any, type[GraphLearnError]]] = [
        (["anna"], InvalidArgumentError),
        ([1, "anna"], InvalidArgumentError),
        ([3], GraphLearnError),
        ([0, None], GraphLearnError),
    ]
    for given, error in bad:
        with pytest.raises(error, match="original_ids"):
            known.node_ids(given)
    with pytest.raises(GraphLearnError, match="node_ids: expected 0 <= id < 3, got 3 to 3"):
        known.original_ids(torch.tensor([3]))
