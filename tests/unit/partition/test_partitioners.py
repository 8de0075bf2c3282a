"""What partitioners write, read back and compared with the input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist.errors import InvalidArgumentError, StorageError, UnknownIdError
from graphlearn_dist.partition import (
    PartitionerBase,
    RandomPartitioner,
    RangePartitioner,
    TablePartitioner,
    load_partition,
    load_partition_layout,
    verify,
)

from .graphs import EDGE_TYPES, NUM_NODES, hetero_inputs, homo_inputs


def owners_of(num_nodes: Any, parts: int) -> Any:
    if isinstance(num_nodes, dict):
        return {key: owners_of(count, parts) for key, count in num_nodes.items()}
    return torch.arange(num_nodes).flip(0) * 7 % parts


def make(kind: str, directory: Path, parts: int, inputs: dict[str, Any], **options: Any) -> PartitionerBase:
    if kind == "random":
        return RandomPartitioner(directory, parts, **inputs, **options)
    if kind == "range":
        return RangePartitioner(directory, parts, **inputs, **options)
    return TablePartitioner(directory, parts, node_owners=owners_of(inputs["num_nodes"], parts), **inputs, **options)


def neighbor_lists(directory: Path, etype: Any) -> dict[int, list[tuple[int, int]]]:
    """Row id -> [(neighbor, edge id)] over all partitions, in stored order; checks that no row comes twice."""
    layout = load_partition_layout(directory)
    rows: dict[int, list[tuple[int, int]]] = {}
    for p in range(layout.num_parts):
        graph = layout.open_partition(p).graphs[etype]
        bounds = graph.indptr.tolist()
        pairs = list(zip(graph.indices.tolist(), graph.edge_ids.tolist(), strict=True))
        for local, node in enumerate(layout.nodes[layout.row_type(etype)].book.local_ids(p).tolist()):
            assert node not in rows
            rows[node] = pairs[bounds[local] : bounds[local + 1]]
    return rows


def expected_lists(edge_index: torch.Tensor, num_rows: int, direction: str, ids: torch.Tensor | None = None) -> Any:
    rows: dict[int, list[tuple[int, int]]] = {node: [] for node in range(num_rows)}
    sources, targets = edge_index.tolist()
    for position, (source, target) in enumerate(zip(sources, targets, strict=True)):
        edge = position if ids is None else int(ids[position])
        row, col = (source, target) if direction == "by_src" else (target, source)
        rows[row].append((col, edge))
    return {node: sorted(pairs) for node, pairs in rows.items()}


@pytest.mark.parametrize("kind", ["random", "range", "table"])
@pytest.mark.parametrize("direction", ["by_src", "by_dst"])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_union_of_partitions_is_the_graph(tmp_path: Path, kind: str, direction: str, parts: int) -> None:
    inputs = homo_inputs()
    make(kind, tmp_path / "g", parts, inputs, edge_assign_strategy=direction, chunk_size=7).partition()
    expected = expected_lists(inputs["edge_index"], inputs["num_nodes"], direction)
    assert neighbor_lists(tmp_path / "g", None) == expected
    layout = load_partition_layout(tmp_path / "g")
    assert layout.edge_dir == ("out" if direction == "by_src" else "in")
    for p in range(parts):
        arrays = layout.open_partition(p)
        ids = layout.node_book(None, p).local_ids()
        assert torch.equal(arrays.node_feats[None], inputs["node_feat"][ids])
        assert torch.equal(arrays.node_labels[None], inputs["node_labels"][ids])
        edge_ids = layout.edge_feature_book(None, p).local_ids()
        assert torch.equal(arrays.edge_feats[None], inputs["edge_feat"][edge_ids])
        graph = arrays.graphs[None]
        assert graph.weights is not None
        assert torch.equal(graph.weights, inputs["edge_weights"][graph.edge_ids.long()])
        assert graph.indices.dtype == graph.edge_ids.dtype == torch.int32
    split = layout.nodes[None].split
    assert split.keys() == {"train", "val"}
    assert torch.equal(split["train"], inputs["node_split"][0])


@pytest.mark.parametrize("kind", ["random", "range", "table"])
@pytest.mark.parametrize("direction", ["by_src", "by_dst"])
def test_hetero(tmp_path: Path, kind: str, direction: str) -> None:
    inputs = hetero_inputs()
    make(kind, tmp_path / "g", 3, inputs, edge_assign_strategy=direction).partition()
    layout = load_partition_layout(tmp_path / "g")
    assert layout.is_hetero
    assert layout.node_types == list(NUM_NODES)
    assert layout.edge_types == EDGE_TYPES
    for etype in EDGE_TYPES:
        num_rows = NUM_NODES[etype[0 if direction == "by_src" else 2]]
        expected = expected_lists(inputs["edge_index"][etype], num_rows, direction)
        assert neighbor_lists(tmp_path / "g", etype) == expected
        assert layout.open_partition(0).graphs[etype].num_cols == NUM_NODES[etype[2 if direction == "by_src" else 0]]
    for p in range(3):
        arrays = layout.open_partition(p)
        assert arrays.node_feats.keys() == {"user"}
        assert arrays.node_labels.keys() == {"item"}
        assert arrays.edge_feats.keys() == {EDGE_TYPES[0]}
        assert [key for key, graph in arrays.graphs.items() if graph.weights is not None] == [EDGE_TYPES[2]]
        items = layout.node_book("item", p).local_ids()
        assert torch.equal(arrays.node_labels["item"], inputs["node_labels"]["item"][items])
    assert layout.nodes["user"].split["test"].tolist() == list(range(5, 37))
    assert layout.nodes["item"].split == {}


@given(
    num_nodes=st.integers(1, 40),
    num_edges=st.integers(0, 120),
    parts=st.integers(1, 6),
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["random", "range", "table"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_graph_round_trips(
    tmp_path_factory: pytest.TempPathFactory, num_nodes: int, num_edges: int, parts: int, seed: int, kind: str
) -> None:
    directory = tmp_path_factory.mktemp("any") / "g"
    inputs = homo_inputs(num_nodes, num_edges, seed)
    make(kind, directory, parts, inputs, seed=seed).partition()
    assert neighbor_lists(directory, None) == expected_lists(inputs["edge_index"], num_nodes, "by_src")
    total = sum(len(load_partition(directory, p)[2].eids) for p in range(parts))
    assert total == num_edges


def test_glt_tuple_homogeneous(tmp_path: Path) -> None:
    inputs = homo_inputs()
    make("random", tmp_path / "g", 3, inputs).partition()
    edges = []
    for p in range(3):
        num_parts, index, graph, node_feat, edge_feat, node_pb, edge_pb = load_partition(tmp_path / "g", p)
        assert (num_parts, index) == (3, p)
        assert torch.equal(torch.stack(graph.edge_index), inputs["edge_index"][:, graph.eids])
        assert torch.equal(graph.weights, inputs["edge_weights"][graph.eids])
        assert bool((node_pb[graph.edge_index[0]] == p).all())
        assert torch.equal(node_feat.feats, inputs["node_feat"][node_feat.ids])
        assert torch.equal(edge_feat.feats, inputs["edge_feat"][edge_feat.ids])
        assert bool((edge_pb[edge_feat.ids] == p).all())
        edges.append(graph.eids)
    assert torch.equal(torch.cat(edges).sort().values, torch.arange(400))


def test_glt_tuple_hetero_by_dst(tmp_path: Path) -> None:
    inputs = hetero_inputs()
    make("range", tmp_path / "g", 2, inputs, edge_assign_strategy="by_dst").partition(with_feature=False)
    _, _, graphs, node_feat, edge_feat, node_pb, edge_pb = load_partition(tmp_path / "g", 1)
    assert node_feat is None
    assert edge_feat is None
    assert edge_pb.keys() == graphs.keys() == set(EDGE_TYPES)
    for etype, graph in graphs.items():
        assert torch.equal(torch.stack(graph.edge_index), inputs["edge_index"][etype][:, graph.eids])
        assert bool((node_pb[etype[2]][graph.edge_index[1]] == 1).all())


@pytest.mark.parametrize("direction", ["by_src", "by_dst"])
def test_given_edge_ids(tmp_path: Path, direction: str) -> None:
    inputs = homo_inputs()
    ids = torch.randperm(900, generator=torch.Generator().manual_seed(3))[:400]
    inputs["edge_feat"] = torch.arange(900)[:, None].float()
    make("random", tmp_path / "g", 2, inputs, edge_ids=ids, edge_assign_strategy=direction).partition()
    assert neighbor_lists(tmp_path / "g", None) == expected_lists(inputs["edge_index"], 53, direction, ids)
    position = {int(edge): i for i, edge in enumerate(ids)}
    for p in range(2):
        graph = load_partition_layout(tmp_path / "g").open_partition(p).graphs[None]
        assert graph.weights is not None
        assert graph.weights.tolist() == [position[int(edge)] / 2 for edge in graph.edge_ids]


def test_ids_beyond_int32_are_kept(tmp_path: Path) -> None:
    ids = torch.tensor([5, 1 << 40])
    RangePartitioner(tmp_path / "g", 1, 2, torch.tensor([[0, 1], [1, 0]]), edge_ids=ids).partition()
    graph = load_partition_layout(tmp_path / "g").open_partition(0).graphs[None]
    assert graph.edge_ids.tolist() == [5, 1 << 40]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool, torch.float64])
def test_feature_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    feat = torch.randint(0, 2, (6, 2, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    edge_index = torch.zeros(2, 0, dtype=torch.int64)
    RandomPartitioner(tmp_path / "g", 2, 6, edge_index, node_feat=feat, node_feat_dtype=None).partition()
    layout = load_partition_layout(tmp_path / "g")
    for p in range(2):
        assert torch.equal(layout.open_partition(p).node_feats[None], feat[layout.node_book(None, p).local_ids()])


def test_seed_and_threads(tmp_path: Path) -> None:
    def written(name: str, **options: Any) -> Any:
        make("random", tmp_path / name, 3, homo_inputs(num_edges=20_000), **options).partition()
        return json.loads((tmp_path / name / "META.json").read_text())

    base = written("a", seed=1)
    assert written("b", seed=1, num_threads=3) == base  # checksums included
    other = written("c", seed=2)
    assert other["nodes"][0]["book"] != base["nodes"][0]["book"]


def test_numpy_and_memory_mapped_input(tmp_path: Path) -> None:
    feat = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.save(tmp_path / "feat.npy", feat)
    mapped = np.load(tmp_path / "feat.npy", mmap_mode="r")
    RandomPartitioner(tmp_path / "g", 2, 6, np.array([[0, 1], [1, 2]]), node_feat=mapped).partition()
    layout = load_partition_layout(tmp_path / "g")
    got = torch.cat([layout.open_partition(p).node_feats[None] for p in range(2)])
    ids = torch.cat([layout.node_book(None, p).local_ids() for p in range(2)])
    assert torch.equal(got, torch.from_numpy(feat)[ids])


def test_given_ranges(tmp_path: Path) -> None:
    inputs = homo_inputs()
    RangePartitioner(tmp_path / "g", 2, partition_ranges=[(0, 50), (50, 53)], **inputs).partition()
    assert load_partition_layout(tmp_path / "g").node_book(None, 1).local_ids().tolist() == [50, 51, 52]
    with pytest.raises(InvalidArgumentError, match="end at num_nodes=53, got 52"):
        RangePartitioner(tmp_path / "h", 2, partition_ranges=[(0, 50), (50, 52)], **inputs).partition()
    with pytest.raises(InvalidArgumentError, match="expected 3 ranges"):
        RangePartitioner(tmp_path / "h", 3, partition_ranges=[(0, 50), (50, 53)], **inputs).partition()
    with pytest.raises(
        InvalidArgumentError, match=r"partition_ranges: expected \(begin, end\) of each .*, got \[0, 50\]"
    ):
        RangePartitioner(tmp_path / "h", 2, partition_ranges=[0, 50], **inputs).partition()
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


ONE_EDGE = torch.tensor([[0], [1]])
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_parts": 0}, InvalidArgumentError, "num_parts: expected an int >= 1, got 0"),
    ({"num_parts": True}, InvalidArgumentError, "num_parts: expected an int >= 1, got True"),
    ({"num_parts": 1 << 40}, InvalidArgumentError, "num_parts: expected at most 2147483647, got 1099511627776"),
    ({"num_nodes": -1}, InvalidArgumentError, "num_nodes: expected an int >= 0, got -1"),
    ({"num_nodes": {1: 4}, "edge_index": {}}, InvalidArgumentError, "num_nodes: expected texts as names .*, got 1"),
    ({"num_nodes": {"": 4}, "edge_index": {}}, InvalidArgumentError, "num_nodes: expected texts as names .*, got ''"),
    ({"num_nodes": {"a": 4}, "edge_index": {("a", 1, "a"): ONE_EDGE}}, InvalidArgumentError, r"got \('a', 1, 'a'\)"),
    ({"num_nodes": {"a": 4}, "edge_index": {("a", "r", "a"): None}}, InvalidArgumentError, "'r'.*, got NoneType"),
    ({"edge_index": torch.tensor(3)}, InvalidArgumentError, r"edge_index: expected \[2, num_edges\]"),
    ({"num_nodes": 2.0}, InvalidArgumentError, "num_nodes"),
    ({"chunk_size": 0}, InvalidArgumentError, "chunk_size"),
    ({"edge_assign_strategy": "x"}, InvalidArgumentError, "by_src or by_dst, got 'x'"),
    ({"edge_index": torch.tensor([[0, 4], [1, 1]])}, UnknownIdError, r"edge_index\[0\]\[1\]=4: expected 0 <= id < 4"),
    ({"edge_index": torch.tensor([[0, 1], [1, -2]])}, UnknownIdError, r"edge_index\[1\]\[1\]=-2"),
    ({"edge_index": torch.zeros(2, 3)}, InvalidArgumentError, "int32 or int64"),
    ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, InvalidArgumentError, "first extent of 3"),
    ({"edge_index": (torch.tensor([0]), torch.tensor([0, 1]))}, InvalidArgumentError, "got 1 and 2"),
    ({"edge_index": "ab"}, InvalidArgumentError, "torch.Tensor or a numpy.ndarray, got str"),
    ({"edge_index": None}, InvalidArgumentError, "edge_index"),
    ({"edge_index": {("a", "b", "c"): ONE_EDGE}}, InvalidArgumentError, "homogeneous"),
    ({"node_feat": torch.zeros(3, 2)}, InvalidArgumentError, r"node_feat: expected 4 rows, one for each node, got"),
    ({"node_feat": {"a": torch.zeros(4)}}, InvalidArgumentError, "node_feat: got a dictionary"),
    ({"node_labels": torch.tensor(3)}, InvalidArgumentError, "node_labels: expected 4 rows"),
    ({"edge_feat": torch.zeros(2, 2)}, InvalidArgumentError, "edge_feat: expected 1 rows"),
    ({"edge_weights": torch.zeros(2)}, InvalidArgumentError, "edge_weights: expected 1 rows"),
    ({"edge_weights": torch.zeros(1, 2)}, InvalidArgumentError, "edge_weights"),
    ({"edge_ids": torch.tensor([-1])}, UnknownIdError, r"edge_ids\[0\]=-1"),
    ({"edge_ids": torch.tensor([1]), "edge_feat": torch.zeros(1)}, UnknownIdError, r"edge_ids\[0\]=1: expected 0 <="),
    (
        {"edge_index": torch.tensor([[0, 1], [1, 0]]), "edge_ids": torch.tensor([7, 7])},
        InvalidArgumentError,
        r"distinct ids, got 7 at positions \[0, 1\]",
    ),
    ({"node_split": (torch.tensor([0, 4]), None, None)}, UnknownIdError, r"node_split.train\[1\]=4"),
    ({"node_split": torch.tensor([0])}, InvalidArgumentError, r"node_split: expected \(train, val, test\)"),
    ({"num_nodes": {"a": 4}}, InvalidArgumentError, "edge_index: expected a dictionary by edge type"),
    ({"num_nodes": {"a": 4}, "edge_index": {("a", "r", "b"): ONE_EDGE}}, InvalidArgumentError, "types of num_nodes"),
    (
        {"num_nodes": {"a": 4}, "edge_index": {("a", "r", "a"): ONE_EDGE}, "node_feat": {"b": torch.zeros(4)}},
        InvalidArgumentError,
        "node_feat: unknown type 'b'",
    ),
    (
        {"num_nodes": {"a": 4}, "edge_index": {("a", "r", "a"): torch.tensor([[0], [9]])}},
        UnknownIdError,
        r"edge_index\[\('a', 'r', 'a'\)\]\[1\]\[0\]=9: expected 0 <= id < 4 \(nodes\['a'\]\)",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "text"), BAD)
def test_input_is_checked(tmp_path: Path, wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments = {"num_parts": 2, "num_nodes": 4, "edge_index": ONE_EDGE, **wrong}
    with pytest.raises(error, match=text):
        RandomPartitioner(tmp_path / "g", **arguments)
    assert not list(tmp_path.iterdir())


def test_does_not_overwrite(tmp_path: Path) -> None:
    inputs = homo_inputs()
    (tmp_path / "g").mkdir()
    make("random", tmp_path / "g", 2, inputs).partition()  # an empty directory will do
    with pytest.raises(InvalidArgumentError, match=r"output_dir: .*/g, which has META\.json, part0, part1; nothing is"):
        make("random", tmp_path / "g", 2, inputs)
    (tmp_path / "file").touch()
    for path in ("", None, b"g", "g\0"):
        with pytest.raises(InvalidArgumentError, match="output_dir: expected a path, got"):
            make("random", path, 2, inputs)  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=rf"{'x' * 255}.*: cannot be written: File name too long"):
        make("random", tmp_path / ("x" * 255), 2, inputs).partition()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(InvalidArgumentError, match="output_dir: expected a directory, got the file"):
        make("random", tmp_path / "file", 2, inputs)


def test_into_a_directory_with_files(tmp_path: Path) -> None:
    """The partitions lie beside what is there, which stays; files that would be overwritten are an error."""
    inputs, directory = homo_inputs(), tmp_path / "g"
    (directory / "raw").mkdir(parents=True)
    (directory / "raw" / "labels.txt").write_text("1")
    make("random", directory, 2, inputs).partition()
    assert {path.name for path in directory.iterdir()} > {"META.json", "part0", "part1", "raw"}
    assert (directory / "raw" / "labels.txt").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
    verify(directory)
    other = tmp_path / "other"
    partitioner = make("random", other, 2, inputs)
    (other / "part1").mkdir(parents=True)  # meanwhile
    with pytest.raises(InvalidArgumentError, match=r"output_dir: .*/other, which has part1"):
        partitioner.partition()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "other"]
    assert [path.name for path in other.iterdir()] == ["part1"]


def test_a_failing_run_leaves_nothing(tmp_path: Path) -> None:
    partitioner = make("random", tmp_path / "g", 2, homo_inputs())
    partitioner.node_feat_dtype = torch.complex64  # a dtype that the format has not
    with pytest.raises(Exception, match="complex64"):
        partitioner.partition()
    assert not list(tmp_path.iterdir())


KILLED = """
import os, sys, torch
from graphlearn_dist.partition import RandomPartitioner, partitioner
real, calls = partitioner.write_tensor, []
def dying(*arguments):
    calls.append(1)
    if len(calls) == 4:
        os._exit(9)
    return real(*arguments)
partitioner.write_tensor = dying
RandomPartitioner(sys.argv[1], 3, 9, torch.tensor([[0, 1], [1, 2]])).partition()
"""


def test_a_killed_run_is_no_partition(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "g")], timeout=60, check=False)
    assert done.returncode == 9
    assert not (tmp_path / "g").exists()
    assert not list(tmp_path.rglob("META.json"))
