"""Orders that are found, partitions of their zones, and other numbers of partitions."""

from __future__ import annotations

import json
import random
import resource
import signal
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist import _C, cli
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.errors import InvalidArgumentError, MissingLibraryError, PartitionFormatError, StorageError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import (
    LDGPartitioner,
    RandomPartitioner,
    TablePartitioner,
    ZonePartitionBook,
    ZonePartitioner,
    load_partition_layout,
    partition_quality,
    repartition,
    save_node_order,
    verify,
)
from graphlearn_dist.partition.ordering import edge_stream, union_graph
from graphlearn_dist.partition.ordering import find_order as find_order_module
from graphlearn_dist.partition.ordering.find_order import _bisected, find_order, shape_of
from graphlearn_dist.partition.ordering.piles import Piles
from graphlearn_dist.partition.ordering.zone_graph import ZoneGraph, read_zone_graph, zone_graph
from graphlearn_dist.sampler import RandomNegativeSampler
from graphlearn_dist.utils.system.scratch import scratch_folder
from graphlearn_dist.utils.turns import far_apart
from tests.support.graphs import TestGraph, random_graph, typed_graph, with_node_times, with_times, with_weights
from tests.support.jobs import load
from tests.support.oracle import write_partitions
from tests.support.processes import ProcessFailure, start

NUM_CLUSTERS = 8
DEADLINE_S = 120.0
CLUSTER = 64


def clusters(seed: int = 0) -> torch.Tensor:
    """Edges of eight clusters, node v in cluster v % 8: nine in ten lie within one."""
    draw = torch.Generator().manual_seed(seed)
    count = NUM_CLUSTERS * CLUSTER
    rows = torch.arange(count).repeat_interleave(10)
    near = (rows + NUM_CLUSTERS * torch.randint(0, CLUSTER, (len(rows),), generator=draw)) % count
    far = torch.randint(0, count, (len(rows),), generator=draw)
    return torch.stack([rows, torch.where(torch.rand(len(rows), generator=draw) < 0.9, near, far)])


def clustered(partitioner: Any, directory: Path, parts: int, **options: Any) -> Path:
    seeds = torch.arange(0, NUM_CLUSTERS * CLUSTER, 3)
    inputs = {"node_feat": torch.arange(NUM_CLUSTERS * CLUSTER).float()[:, None], "node_split": (seeds, None, None)}
    return partitioner(directory, parts, NUM_CLUSTERS * CLUSTER, clusters(), **inputs, **options).partition()


# --- zones to partitions ------------------------------------------------------------------------------------------


def ring(num_zones: int, weights: torch.Tensor | None = None) -> ZoneGraph:
    edges = torch.zeros(num_zones, num_zones, dtype=torch.int64)
    for zone in range(num_zones):
        edges[zone, (zone + 1) % num_zones] = edges[(zone + 1) % num_zones, zone] = 5
    even = torch.ones(num_zones, 2, dtype=torch.int64)
    return ZoneGraph(edges, even if weights is None else weights)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 6, 8, 24])
def test_a_ring_is_cut_once_for_each_partition(num_parts: int) -> None:
    graph = ring(24)
    owners = graph.owners(num_parts)
    assert owners.bincount(minlength=num_parts).tolist() == [24 // num_parts] * num_parts
    assert graph.balance(owners, num_parts) == (1.0, 1.0)
    assert graph.cut(owners) == (num_parts / 24 if num_parts > 1 else 0)
    assert torch.equal(owners, graph.owners(num_parts))


@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_partitions_are_pieces_of_the_order_by_the_numbers_of_their_trainers(num_parts: int) -> None:
    turns = far_apart(num_parts)  # the stretch of each trainer
    pieces = ring(24).owners(num_parts).view(num_parts, -1)
    assert pieces.tolist() == [[turns.index(stretch)] * (24 // num_parts) for stretch in range(num_parts)]


def test_pieces_of_a_bad_order_are_not_taken() -> None:
    """A ring in which each zone's neighbors are as far away as can be."""
    graph = ring(24)
    mixed = torch.arange(24).view(2, 12).T.reshape(-1)
    graph = ZoneGraph(graph.edges[mixed][:, mixed].contiguous(), graph.weights)
    assert graph.cut(graph.owners(2)) == 2 / 24


def test_no_partition_is_empty_because_of_a_large_zone() -> None:
    weights = torch.ones(8, 2, dtype=torch.int64)
    weights[0] = 7
    assert ring(8, weights).owners(4).unique().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("num_parts", "most"), [(5, 0.135), (8, 0.2)])
def test_weights_that_allow_hardly_any_single_move(num_parts: int, most: float) -> None:
    """A grid of 16 x 16 zones; bytes grow to the one side and seeds to the other. A search that only moves one zone
    after the other within the limits cuts 0.144 and 0.225."""
    draw, ids = torch.Generator().manual_seed(0), torch.arange(256)
    x, y = ids % 16, ids // 16
    joined = ((x[:, None] - x).abs() + (y[:, None] - y).abs()) == 1
    weights = [torch.randint(20, 60, (256,), generator=draw) * (1 + along) for along in (x, y)]
    graph = ZoneGraph(joined * 10, torch.stack(weights, 1))
    owners = graph.owners(num_parts)
    assert max(graph.balance(owners, num_parts)) <= 1.03
    assert graph.cut(owners) < most
    assert torch.equal(owners, graph.owners(num_parts))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_zones_of_nothing(num_parts: int) -> None:
    graph = ZoneGraph(torch.zeros(4, 4, dtype=torch.int64), torch.zeros(4, 2, dtype=torch.int64))
    assert bool((graph.owners(num_parts) < num_parts).all())


def test_both_weights_are_balanced() -> None:
    """Training seeds lie in one half of the ring, so that the halves may not be the partitions."""
    weights = torch.ones(24, 2, dtype=torch.int64)
    weights[12:, 1] = 0
    graph = ring(24, weights)
    assert graph.balance(graph.owners(2), 2) == (1.0, 1.0)


def test_more_partitions_than_zones() -> None:
    with pytest.raises(InvalidArgumentError, match="num_parts: expected 1 to 3, the number of zones"):
        ring(3).owners(4)
    with pytest.raises(InvalidArgumentError, match="num_parts: expected 1 to 3"):
        _C.zone_parts(torch.zeros(3, 3, dtype=torch.int64), torch.ones(3, 1, dtype=torch.int64), 4, 0.03, 1, 0)
    with pytest.raises(InvalidArgumentError, match=r"weights: expected int64 \[3, num_constraints\]"):
        _C.zone_parts(torch.zeros(3, 3, dtype=torch.int64), torch.ones(3, dtype=torch.int64), 2, 0.03, 1, 0)


# --- streaming ------------------------------------------------------------------------------------------------------


def test_streamed_blocks_are_balanced_and_within_their_groups() -> None:
    edges = torch.cat([clusters(), clusters().flip(0)], 1)
    rows, order = edges[0].sort(stable=True)
    offsets = torch.nn.functional.pad(rows.bincount().cumsum(0), (1, 0))
    count = len(offsets) - 1
    groups = (torch.arange(count) % 2).int()
    weights = torch.full((count,), 3)
    blocks = to_tensor(_C.stream_blocks(offsets, edges[1][order].int(), weights, groups, 2, 4, 4, 0.05))
    assert torch.equal(blocks // 4, groups)
    assert int(blocks.bincount(minlength=8).max()) <= 1.05 * count / 8
    with pytest.raises(InvalidArgumentError, match=r"groups\[1\]=1: expected 0 <= group < 1"):
        _C.stream_blocks(offsets, edges[1].int(), weights, groups, 1, 4, 1, 0.05)


# --- orders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_nodes", "shape"), [(1, (1, 1)), (40, (8, 8)), (1000, (8, 128)), (10**6, (8, 512))])
def test_small_graphs_have_few_zones(num_nodes: int, shape: tuple[int, int]) -> None:
    assert shape_of(num_nodes) == shape


def test_the_union_has_each_edge_once_from_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of buckets and chunks."""
    graph = typed_graph(40, 16, 300, 1)
    directory = write_partitions(graph, tmp_path, "random", 3, "in")
    stream = edge_stream.stream_of_directory(load_partition_layout(directory))
    starts = union_graph.first_ids({key: node.count for key, node in stream.nodes.items()})
    expected = set()
    for (source, _, target), (rows, cols) in graph.edges.items():
        ends = list(zip((rows + starts[source]).tolist(), (cols + starts[target]).tolist(), strict=True))
        expected |= {(a, b) for a, b in ends if a != b} | {(b, a) for a, b in ends if a != b}
    for bucket in (1 << 24, 100):
        monkeypatch.setattr(union_graph, "_BUCKET_PAIRS", bucket)
        monkeypatch.setattr(edge_stream, "CHUNK_EDGES", 64)
        made = union_graph.union_graph(stream, torch.ones(56, dtype=torch.int64), tmp_path)
        found = [pair for rows, cols in union_graph.edges_of(made) for pair in torch.stack([rows, cols], 1).tolist()]
        assert found == sorted(map(list, expected))


@pytest.mark.parametrize("by", ["kaminpar", "ldg"])
def test_an_order_finds_the_clusters(by: Any, tmp_path: Path) -> None:
    if by == "kaminpar":
        pytest.importorskip("kaminpar")
    stream = edge_stream.stream_of_directory(load_partition_layout(clustered(RandomPartitioner, tmp_path / "r", 3)))
    found, again = (find_order(stream, by, seed=1, scratch_dir=tmp_path) for _ in range(2))
    order = found.orders[None]
    assert torch.equal(order.place, again.orders[None].place)
    assert (order.num_groups, order.num_zones) == shape_of(NUM_CLUSTERS * CLUSTER)
    cut = found.graph.cut(found.graph.owners(4))
    assert cut < (0.15 if by == "kaminpar" else 0.6)  # 0.075 at best, 0.75 at random
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_what_is_asked_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = edge_stream.stream_of_directory(load_partition_layout(clustered(RandomPartitioner, tmp_path / "r", 2)))
    with pytest.raises(InvalidArgumentError, match=r"by: expected one of \['kaminpar', 'ldg'\], got 'metis'"):
        find_order(stream, "metis")  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "kaminpar", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'graphlearn_dist\[partition\]'"):
        find_order(stream, "kaminpar")


# --- partitioners -----------------------------------------------------------------------------------------------------


def test_a_partitioner_writes_its_order(tmp_path: Path) -> None:
    directory = clustered(LDGPartitioner, tmp_path / "zones", 4)
    verify(directory)
    layout = load_partition_layout(directory)
    book, order = layout.nodes[None].book, layout.nodes[None].order
    assert isinstance(book, ZonePartitionBook)
    assert order is not None
    for p in range(4):
        ids = book.local_ids(p)
        assert bool((order.place[ids].diff() > 0).all())
        assert torch.equal(layout.open_partition(p).node_feats[None].view(-1).long(), ids)
    graph, owners = read_zone_graph(layout, order.num_zones), book.owners.long()
    assert graph is not None
    found = zone_graph(edge_stream.stream_of_directory(layout), {None: order})
    assert torch.equal(found.edges, graph.edges)
    quality = partition_quality(directory)
    assert quality.cut == pytest.approx(graph.cut(owners))
    assert quality.seeds_balance == pytest.approx(graph.balance(owners, 4)[1])
    assert quality.cut < partition_quality(clustered(RandomPartitioner, tmp_path / "r", 4)).cut


# --- repartitioning -----------------------------------------------------------------------------------------------


def same_data(directory: Path, other: Path) -> None:
    """What two directories say of each node and of each edge."""
    found = [everything(path) for path in (directory, other)]
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        assert torch.equal(values, found[1][name]), name


def everything(directory: Path) -> dict[str, torch.Tensor]:
    layout, said = load_partition_layout(directory), {}
    parts = [layout.open_partition(p, verify=True) for p in range(layout.num_parts)]
    for key, info in layout.nodes.items():
        ids = torch.cat([info.book.local_ids(p) for p in range(layout.num_parts)])
        feat_ids = torch.cat([info.feature_book.local_ids(p) for p in range(layout.num_parts)])
        arrays = {"feats": (feat_ids, [part.node_feats.get(key) for part in parts])}
        arrays["labels"] = (ids, [part.node_labels.get(key) for part in parts])
        arrays["times"] = (ids, [part.node_times.get(key) for part in parts])
        for name, (of, rows) in arrays.items():
            if rows[0] is not None:
                said[f"{key} {name}"] = torch.cat(rows)[of.argsort()]
        said.update({f"{key} {name}": values for name, values in info.split.items()})
        said[f"{key} earliest"] = torch.tensor([-1 if info.earliest is None else info.earliest])
    for key, edges in layout.edges.items():
        row_ids = torch.cat([layout.nodes[layout.row_type(key)].book.local_ids(p) for p in range(layout.num_parts)])
        graphs = [part.graphs[key] for part in parts]
        degrees = torch.cat([graph.indptr.diff() for graph in graphs])
        rows, ids = row_ids.repeat_interleave(degrees), torch.cat([graph.edge_ids for graph in graphs])
        by_row = torch.argsort(rows, stable=True)
        said[f"{key} rows"], said[f"{key} ids"] = rows[by_row], ids[by_row]
        for name in ("indices", "weights", "times"):
            if getattr(graphs[0], name) is not None:
                said[f"{key} {name}"] = torch.cat([getattr(graph, name) for graph in graphs])[by_row]
        feats = [part.edge_feats.get(key) for part in parts]
        if feats[0] is not None:
            of = torch.cat([edges.feature_book.local_ids(p) for p in range(layout.num_parts)])
            kept = torch.isin(of, ids)
            said[f"{key} feats"] = torch.cat(feats)[kept][of[kept].argsort()]
    return said


def graphs() -> list[tuple[TestGraph, Any]]:
    homogeneous = with_times(with_weights(random_graph(300, 2000, 1, explicit_edge_ids=True), 2, some_zero=True), 3)
    return [(homogeneous, "out"), (with_node_times(typed_graph(200, 80, 700, 4, explicit_edge_ids=True), 7), "in")]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("own_feature_books", [False, True])
def test_repartition_of_random_partitions_and_of_zones(
    number: int, own_feature_books: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphlearn_dist.partition.ordering.piles.PILE_BYTES", 400)  # many, and some with one row
    monkeypatch.setattr("graphlearn_dist.partition.ordering.repartition._ROWS_AT_ONCE", 17)
    graph, edge_dir = graphs()[number]
    first = write_partitions(graph, tmp_path, "random", 3, edge_dir, own_feature_books=own_feature_books)
    with pytest.raises(InvalidArgumentError, match="root_dir: expected a data set with an order"):
        repartition(first, tmp_path / "four", num_parts=4)
    done = repartition(first, tmp_path / "four", num_parts=4, by="ldg")
    assert (done.moved_zones, done.moved_share) == (done.num_zones, 1.0)
    previous = first
    for num_parts in (4, 6, 1, 3):
        directory = tmp_path / str(num_parts)
        repartition(tmp_path / "four" if previous == first else previous, directory, num_parts=num_parts)
        verify(directory)
        same_data(first, directory)
        previous = directory


def test_piles_miss_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlearn_dist.partition.ordering.piles.PILE_BYTES", 10)
    piles = Piles(tmp_path / "piles", [3, 2], 5, lambda ids: (ids // 3, ids % 3))  # two rows in each
    piles.put(torch.tensor([4, 0, 2]), {"x": torch.tensor([[4.0], [0.0], [2.0]])})
    piles.put(torch.tensor([3]), {"x": torch.tensor([[3.0]])})
    with pytest.raises(PartitionFormatError, match="partition 0: expected rows 0 to 2 once each, got 1"):
        list(piles.take(0))
    found = [columns["x"][order].view(-1).tolist() for order, columns in piles.take(1)]
    assert found == [[3.0, 4.0]]


def test_zones_stay_where_they_can(tmp_path: Path) -> None:
    four = clustered(LDGPartitioner, tmp_path / "4", 4)
    again = repartition(four, tmp_path / "again", num_parts=4)
    assert (again.moved_zones, again.moved_share) == (0, 0.0)
    six = repartition(four, tmp_path / "6", num_parts=6)
    before, after = (load_partition_layout(path).nodes[None].book for path in (four, tmp_path / "6"))
    assert isinstance(before, ZonePartitionBook)
    assert isinstance(after, ZonePartitionBook)
    assert six.moved_zones == int((before.owners != after.owners).sum())
    assert 0.3 < six.moved_share < 0.7  # a third at least has to go to the two that are new
    with pytest.raises(InvalidArgumentError, match="num_parts: expected 1 to 128"):
        repartition(four, tmp_path / "none", num_parts=129)
    assert not (tmp_path / "none").exists()


def rewritten(directory: Path, name: str, values: torch.Tensor, *, has_checksum: bool) -> None:
    """Writes other values into an array; META.json has their checksum, or still that of those before."""
    path = directory / name
    array = np.load(path)
    array[:] = values.numpy()
    np.save(path, array)
    meta = json.loads((directory / "META.json").read_text())
    if has_checksum:
        next(file for file in meta["files"] if file["path"] == name)["crc32"] = f"{zlib.crc32(path.read_bytes()):08x}"
    (directory / "META.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("has_checksum", [True, False])
def test_damaged_partitions_are_not_moved(has_checksum: bool, tmp_path: Path) -> None:
    """Offsets that are not in order are found even where the checksum is right; nothing is left of the result."""
    directory, name = clustered(LDGPartitioner, tmp_path / "4", 4), "part1/graph/indptr.npy"
    offsets = torch.from_numpy(np.load(directory / name))
    offsets[5] = offsets[-1] + 7
    rewritten(directory, name, offsets, has_checksum=has_checksum)
    expected = "part1/graph: expected offsets of rows .* in order" if has_checksum else "altered: expected CRC-32"
    with pytest.raises(PartitionFormatError, match=expected):
        repartition(directory, tmp_path / "6", num_parts=6)
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


@pytest.mark.parametrize("kind", [LDGPartitioner, RandomPartitioner])
def test_rows_that_a_partition_lacks(kind: Any, tmp_path: Path) -> None:
    """Features of a partition may come later, but not after its rows have moved."""
    directory = clustered(kind, tmp_path / "4", 4)
    meta = json.loads((directory / "META.json").read_text())
    meta["files"] = [file for file in meta["files"] if file["path"] != "part1/node_feat/x.npy"]
    (directory / "META.json").write_text(json.dumps(meta))
    said = "part1/node_feat/x.npy: .* found no file" if kind is LDGPartitioner else "expected rows .* once each"
    with pytest.raises(PartitionFormatError, match=said):
        repartition(directory, tmp_path / "6", num_parts=6, by="ldg")
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_a_shape_that_no_file_has(tmp_path: Path) -> None:
    """Bytes of rows are weighed by what META.json says before the rows are opened."""
    directory = clustered(RandomPartitioner, tmp_path / "4", 4)
    meta = json.loads((directory / "META.json").read_text())
    next(file for file in meta["files"] if file["path"] == "part1/node_feat/x.npy")["shape"][0] = 1 << 62
    (directory / "META.json").write_text(json.dumps(meta))
    with pytest.raises(PartitionFormatError, match=r"part1/node_feat/x.npy: expected \d+ rows, found"):
        repartition(directory, tmp_path / "1", num_parts=1, by="ldg")
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("zones/weights.npy", -1, "zones: expected counts from 0 on"),
        ("zones/edges.npy", 1 << 62, "zones: expected counts from 0 on, of edges symmetric"),
        ("order/place.npy", 7, "partition book"),
    ],
)
def test_damaged_zones_are_not_moved(name: str, wrong: int, said: str, tmp_path: Path) -> None:
    directory = clustered(LDGPartitioner, tmp_path / "4", 4)
    values = torch.from_numpy(np.load(directory / name))
    values.view(-1)[1:3] = wrong
    rewritten(directory, name, values, has_checksum=True)
    with pytest.raises(PartitionFormatError, match=said):
        repartition(directory, tmp_path / "6", num_parts=6)
    assert [path.name for path in tmp_path.iterdir()] == ["4"]


def test_orders_and_edges_are_looked_at_before_zones_are_joined(tmp_path: Path) -> None:
    """Of partitions by another partitioner, whose order was added."""
    directory = clustered(RandomPartitioner, tmp_path / "r", 2)
    count = NUM_CLUSTERS * CLUSTER
    save_node_order(directory, ZoneOrder.of_zones(torch.arange(count) % 8))
    for name, said in (
        ("order/place.npy", "expected of each node type a permutation"),
        ("part0/graph/indices.npy", "exp"),
    ):
        kept = (directory / name).read_bytes(), (directory / "META.json").read_bytes()
        values = torch.from_numpy(np.load(directory / name))
        values[3] = count + 5
        rewritten(directory, name, values, has_checksum=True)
        with pytest.raises(PartitionFormatError, match=said):
            repartition(directory, tmp_path / "6", num_parts=6)
        (directory / name).write_bytes(kept[0])
        (directory / "META.json").write_bytes(kept[1])
    rewritten(directory, "part0/graph/indices.npy", values, has_checksum=True)
    with pytest.raises(PartitionFormatError, match="part0/graph: expected neighbors from 0 to 511, found 0 to 517"):
        partition_quality(directory)


@pytest.mark.parametrize("partitioner", [LDGPartitioner, ZonePartitioner])
def test_one_partition_is_a_whole_data_set(partitioner: Any, tmp_path: Path) -> None:
    """Its rows are in the order of the ids, and local loaders have it; as it is with those that others made."""
    zones = {"orders": ZoneOrder.of_zones(torch.arange(NUM_CLUSTERS * CLUSTER) * 5 % 8), "zone_owners": [0] * 8}
    options = zones if partitioner is ZonePartitioner else {}
    one = clustered(partitioner, tmp_path / "1", 1, **options)
    verify(one)
    assert load_partition_layout(one).nodes[None].order is not None
    batch = next(iter(NeighborLoader(load(one), [-1], torch.arange(0, 500, 7), locality=4, batch_size=72)))
    cols, rows = batch.n_id[batch.edge_index[0]], batch.n_id[batch.edge_index[1]]
    assert {*zip(rows.tolist(), cols.tolist(), strict=True)} <= {*zip(*clusters().tolist(), strict=True)}
    assert len(rows) >= 72
    repartition(one, tmp_path / "3", num_parts=3)
    repartition(tmp_path / "3", tmp_path / "again", num_parts=1)
    same_data(one, tmp_path / "3")
    same_data(one, tmp_path / "again")
    assert load(tmp_path / "again").is_whole
    assert (tmp_path / "1/part0/graph/indices.npy").read_bytes() == (
        tmp_path / "again/part0/graph/indices.npy"
    ).read_bytes()


def test_one_partition_by_a_table_is_a_whole_data_set(tmp_path: Path) -> None:
    owners = torch.zeros(NUM_CLUSTERS * CLUSTER, dtype=torch.int64)
    directory = clustered(TablePartitioner, tmp_path / "1", 1, node_owners=owners)
    save_node_order(directory, ZoneOrder.of_zones(torch.arange(len(owners)) % NUM_CLUSTERS, NUM_CLUSTERS))
    data = load(directory)
    assert data.is_whole
    batch = next(iter(NeighborLoader(data, [-1], torch.arange(0, 500, 7), locality=4, batch_size=72)))
    assert torch.equal(batch.x.view(-1).long(), batch.n_id)
    cols, rows = batch.n_id[batch.edge_index[0]], batch.n_id[batch.edge_index[1]]
    assert {*zip(rows.tolist(), cols.tolist(), strict=True)} <= {*zip(*clusters().tolist(), strict=True)}


class _BackToFront(RandomPartitioner):
    """A partitioner of a program's own."""

    def _partition_node(self, ntype: Any = None) -> tuple[None, ZonePartitionBook]:
        count = self.nodes[ntype].count
        order = ZoneOrder(torch.arange(count).flip(0), torch.tensor([0, count]))
        return None, ZonePartitionBook(order, torch.tensor([0]), 1)


def test_local_loaders_refuse_rows_in_another_order(tmp_path: Path) -> None:
    """They would take a row for that of the node of its number."""
    data = load(clustered(_BackToFront, tmp_path / "1", 1))
    with pytest.raises(InvalidArgumentError, match="data: expected a data set that is held whole"):
        NeighborLoader(data, [2], torch.arange(9))
    with pytest.raises(InvalidArgumentError, match="graph: expected a data set that is held whole"):
        RandomNegativeSampler(data.graph)


def test_wrong_arguments_are_named_before_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_order_module, "union_graph", None)  # the search would end here
    directory = clustered(RandomPartitioner, tmp_path / "r", 2)
    for wrong in (0, -1, 129, 2.0, True, "2", None):
        with pytest.raises(InvalidArgumentError, match="num_parts: expected 1 to 128"):
            repartition(directory, tmp_path / "x", num_parts=wrong, by="ldg")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="num_parts: expected 1 to 128"):
        clustered(LDGPartitioner, tmp_path / "x", 200)
    with pytest.raises(InvalidArgumentError, match="by: expected one of"):
        repartition(directory, tmp_path / "x", num_parts=2, by="metis")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="seed: expected an int, got '1'"):
        repartition(directory, tmp_path / "x", num_parts=2, by="ldg", seed="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [1 << 10, 1 << 14])
def test_files_that_cannot_be_written(limit: int, tmp_path: Path) -> None:
    """Of orders, of what is on the way, and of results: the error says why, and nothing is left."""
    directory = clustered(RandomPartitioner, tmp_path / "r", 2)
    whole = clustered(LDGPartitioner, tmp_path / "z", 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        for root, by in ((directory, "ldg"), (whole, None)):
            with pytest.raises(StorageError, match="cannot be written: File too large"):
                repartition(root, tmp_path / "x", num_parts=3, by=by)  # type: ignore[arg-type]
        if limit == 1 << 10:
            with pytest.raises(StorageError, match="cannot be written: File too large"):
                save_node_order(directory, ZoneOrder.of_zones(torch.arange(NUM_CLUSTERS * CLUSTER) % 8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "z"]
    assert sorted(path for path in directory.rglob("*") if path.is_file()) == files


@pytest.mark.parametrize("by", ["ldg", None])
@pytest.mark.parametrize("has_files", [False, True])
def test_whoever_is_killed_leaves_no_wrong_directory(by: Any, has_files: bool, tmp_path: Path) -> None:
    """And what is left of it is gone after the next run, which ends with the same data."""
    kind = RandomPartitioner if by == "ldg" else LDGPartitioner
    first, reference = clustered(kind, tmp_path / "first", 2), tmp_path / "reference"
    repartition(first, reference, num_parts=3, by=by)
    files = {path.relative_to(reference): path.read_bytes() for path in reference.rglob("*") if path.is_file()}
    total = die(first, tmp_path / "whole", None, by)
    places = random.Random(7).sample(range(1, total), 5)
    for number, at in enumerate([*places, total - 1, total]):
        directory = tmp_path / f"g{number}"
        if has_files:
            directory.mkdir()
            (directory / "notes.txt").write_text("a file that was there")
        with pytest.raises(ProcessFailure, match="ended with -9"):
            die(first, directory, at, by)
        if (directory / "META.json").exists():  # it was killed after its last file had its name
            verify(directory)
            continue
        if any(directory.glob("part*")):
            with pytest.raises(InvalidArgumentError, match=r"output_dir: .* without partitions"):
                repartition(first, directory, num_parts=3, by=by)
            continue
        repartition(first, directory, num_parts=3, by=by)
        assert all((directory / path).read_bytes() == data for path, data in files.items())
        assert not list(tmp_path.glob(".*"))


def die(root: Path, directory: Path, at: int | None, by: Any) -> int:
    arguments = {"root": str(root), "directory": str(directory), "at": at, "by": by}
    with start("tests.unit.partition.dying_repartition.run", **arguments) as it:
        return int(it.wait(DEADLINE_S))


def test_what_another_process_writes_stays(tmp_path: Path) -> None:
    directory = clustered(LDGPartitioner, tmp_path / "4", 4)
    with scratch_folder(tmp_path, ".6.partial-") as theirs:
        (theirs / "notes.txt").write_text("on the way")
        (tmp_path / ".6.partial-1-0").mkdir()
        repartition(directory, tmp_path / "6", num_parts=6)
        assert [path.name for path in theirs.iterdir()] == ["notes.txt"]
        assert not (tmp_path / ".6.partial-1-0").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "6"]


def test_commands_say_what_to_expect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = clustered(LDGPartitioner, tmp_path / "4", 4)
    assert cli.main(["repartition", str(directory), "--parts", "2", "--out", str(tmp_path / "2")]) == 0
    said = capsys.readouterr().out
    quality = partition_quality(tmp_path / "2")
    assert "moved " in said
    assert f"cut {quality.cut:.2%} of edges" in said
    assert "50% of seeds from everywhere" in said
    assert replace(quality, cut=0.5).remote_share(2) == 0.5  # of two random partitions
    assert replace(quality, cut=0.25).remote_share(2) == 0.375  # 3/4 * 1/4 there, 1/4 * 3/4 stay there
    assert replace(quality, num_parts=3, cut=0.5).remote_share(2) == pytest.approx(0.625)
    assert replace(quality, num_parts=1, cut=0.0).remote_share(2) == 0.0


def test_halves_and_quarters_of_an_order_are_near() -> None:
    """A path of eight, whose vertices are numbered in another order: each half and quarter is a piece of it."""
    numbers = torch.tensor([3, 6, 0, 5, 1, 7, 4, 2])
    edges = torch.zeros(8, 8, dtype=torch.int64)
    edges[numbers[:-1], numbers[1:]] = edges[numbers[1:], numbers[:-1]] = 1
    places = torch.argsort(numbers)[_bisected(edges)]
    for size in (4, 2):
        for piece in places.split(size):
            assert int(piece.max() - piece.min()) == size - 1
