"""Partitions carry edge weights and times: each row is that of the whole data set, and is drawn from alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError
from graphlearn_dist.partition import (
    RandomPartitioner,
    load_partition,
    load_partition_layout,
    save_graph_partition,
    save_meta,
    save_node_pb,
)
from graphlearn_dist.partition.sources import verify
from graphlearn_dist.sampler.strategies import METHODS
from graphlearn_dist.typing import GraphPartitionData
from tests.support.graphs import EDGE_TYPES, Direction, TestGraph, random_graph, typed_graph, with_times, with_weights
from tests.support.hops import POOLS, native_draw
from tests.support.reference import Draw

A = torch.tensor
STRATEGY = {"in": "by_dst", "out": "by_src"}


def timed_graph(typed: bool) -> TestGraph:
    """Weights in a dtype that a conversion would show."""
    plain = typed_graph(30, 12, 90, 1) if typed else random_graph(40, 300, 1, explicit_edge_ids=True)
    return with_times(with_weights(plain, 2, some_zero=True, dtype=torch.float64), 3)


def partition(graph: TestGraph, path: Path, parts: int, edge_dir: Direction, **options: Any) -> Path:
    given = {"edge_weights": graph.unwrap(graph.weights), "edge_times": graph.unwrap(graph.times)}
    ids = graph.unwrap(graph.edge_ids)
    edges, counts = graph.unwrap(graph.edges), graph.unwrap(graph.num_nodes)
    strategy = STRATEGY[edge_dir]
    return RandomPartitioner(
        str(path), parts, counts, edges, edge_assign_strategy=strategy, edge_ids=ids, **{**given, **options}
    ).partition()


def one_hop(graph: Any, ids: torch.Tensor, rows: torch.Tensor, draw: Draw) -> list[Any]:
    how, times = native_draw(draw), ids % 20
    found = _C.sample_neighbors(graph.weighted_handler, ids, rows, 3, how, 5, True, POOLS[1], None, times)
    counts, neighbors, edges = map(to_tensor, found)
    split = zip(neighbors.split(counts.tolist()), edges.split(counts.tolist()), strict=True)
    return [(n.tolist(), e.tolist()) for n, e in split]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("typed", [False, True])
def test_rows_are_those_of_the_whole(tmp_path: Path, typed: bool, parts: int, edge_dir: Direction) -> None:
    graph = timed_graph(typed)
    whole = Dataset(edge_dir=edge_dir)
    whole.init_graph(
        graph.unwrap(graph.edges), graph.unwrap(graph.edge_ids), graph.unwrap(graph.weights),
        num_nodes=graph.unwrap(graph.num_nodes), edge_times=graph.unwrap(graph.times),
    )  # fmt: skip
    root = partition(graph, tmp_path / "parts", parts, edge_dir)
    assert "good" in verify(root)
    for index in range(parts):
        dataset = DistDataset()
        dataset.load(root, index)
        dataset.validate()
        for book, edge_type in zip(dataset.row_books(), dataset.schema.edge_types, strict=True):
            mine, all_rows = dataset.get_graph(edge_type), whole.get_graph(edge_type)
            assert mine is not None
            assert all_rows is not None
            owned = book.local_ids()
            for name in ("indices", "edge_ids", "edge_weights", "edge_times"):
                spans = zip(all_rows.topo.indptr[owned], all_rows.topo.indptr[owned + 1], strict=True)
                assert mine.topo[name].dtype == all_rows.topo[name].dtype
                assert mine.topo[name].tolist() == [v for b, e in spans for v in all_rows.topo[name][b:e].tolist()]
            for draw in (*map(Draw, METHODS), Draw("weighted", True, "before"), Draw(times="latest")):
                expected = one_hop(all_rows, owned, owned, draw)
                assert one_hop(mine, owned, torch.arange(len(owned)), draw) == expected


def test_node_times_are_those_of_the_edges_that_lead_there(tmp_path: Path) -> None:
    graph = timed_graph(typed=True)
    item_times = torch.arange(12) * 7 % 20
    knows = {EDGE_TYPES[2]: graph.times[EDGE_TYPES[2]]}
    root = partition(graph, tmp_path / "parts", 2, "out", edge_times=knows, node_times={"item": item_times})
    arrays = load_partition_layout(root).open_partition(1)
    assert {key for key, rows in arrays.graphs.items() if rows.times is not None} == {EDGE_TYPES[0], EDGE_TYPES[2]}
    rows = arrays.graphs[EDGE_TYPES[0]]
    assert rows.times is not None
    assert torch.equal(rows.times, item_times[rows.indices.long()])
    with pytest.raises(InvalidArgumentError, match=r"edge_times\[.*buys.*: expected None beside node_times"):
        partition(graph, tmp_path / "other", 2, "out", node_times={"item": item_times})


def test_pieces_of_a_directory_make_the_same_directory(tmp_path: Path) -> None:
    """Read as COO, shuffled and saved piece by piece: the same arrays again."""
    root = partition(timed_graph(typed=False), tmp_path / "parts", 2, "in")
    again = tmp_path / "again"
    save_meta(again, 2, edge_assign_strategy="by_dst")
    for index in range(2):
        _, _, edges, _, _, node_pb, _ = load_partition(root, index)
        if index == 0:
            save_node_pb(again, node_pb)
        order = torch.randperm(len(edges.eids), generator=torch.Generator().manual_seed(index))
        ends = tuple(end[order] for end in edges.edge_index)
        shuffled = GraphPartitionData(ends, edges.eids[order], edges.weights[order], edges.times[order])
        save_graph_partition(again, index, shuffled)
    for index in range(2):
        first, second = (load_partition_layout(path).open_partition(index).graphs[None] for path in (root, again))
        for name in ("indptr", "indices", "edge_ids", "weights", "times"):
            assert torch.equal(getattr(first, name), getattr(second, name)), name


def test_coo_of_a_partition_has_its_weights(tmp_path: Path) -> None:
    graph = timed_graph(typed=False)
    root = partition(graph, tmp_path / "parts", 2, "in")
    weight_of = dict(zip(graph.edge_ids[None].tolist(), graph.weights[None].tolist(), strict=True))
    edges = load_partition(root, 1)[2]
    assert edges.weights.tolist() == [weight_of[edge] for edge in edges.eids.tolist()]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"edge_weights": A([1.0, -1.0])}, r"edge_weights\[1\]"),
        ({"edge_times": A([1.0, 2.0])}, "edge_times: expected int64 or int32"),
        ({"edge_times": A([1])}, "edge_times: expected 2 rows"),
        ({"edge_times": A([[1], [2]])}, r"edge_times: expected \[num_edges\]"),
        ({"node_times": A([1])}, "node_times: expected 3 rows"),
        ({"node_times": A([1.0, 2.0, 3.0])}, "node_times: expected int64 or int32"),
        ({"node_times": A([1, 2, 3]), "edge_times": A([1, 2])}, "edge_times: expected None beside node_times"),
    ],
)
def test_refuses(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        RandomPartitioner(str(tmp_path / "parts"), 2, 3, A([[0, 1], [1, 2]]), **options).partition()
    assert not (tmp_path / "parts").exists()


def test_a_directory_whose_weights_are_not_weights(tmp_path: Path) -> None:
    """A data set made by another tool."""
    root = partition(timed_graph(typed=False), tmp_path / "parts", 1, "out")
    meta = root / "META.json"
    text = meta.read_text().replace("graph/weights", "graph/unused").replace("graph/edge_ids", "graph/weights")
    meta.write_text(text.replace("graph/unused", "graph/edge_ids"))
    for name, other in (("weights", "unused"), ("edge_ids", "weights"), ("unused", "edge_ids")):
        (root / f"part0/graph/{name}.npy").rename(root / f"part0/graph/{other}.npy")
    with pytest.raises(PartitionFormatError, match=r"edge_ids\.npy: expected int32 or int64"):
        load_partition_layout(root).open_partition(0)
