"""Directories put together piece by piece are the ones that partitioners write."""

from __future__ import annotations

import fcntl
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError, StorageError, UnknownIdError
from graphlearn_dist.partition import (
    GLTPartitionBook,
    RandomPartitioner,
    RangePartitionBook,
    RangePartitioner,
    TablePartitioner,
    base,
    load_partition_layout,
    verify,
)
from graphlearn_dist.partition.piece_store import PIECES, PieceStore
from graphlearn_dist.typing import FeaturePartitionData, GraphPartitionData
from graphlearn_dist.utils.system import directory_lock
from graphlearn_dist.utils.system.directory_lock import locked_directory

from .graphs import EDGE_TYPES, NUM_NODES, hetero_inputs, homo_inputs

Call = Callable[[Path], None]
PARTS = 3


def owners_of(count: int) -> torch.Tensor:
    return torch.arange(count) * 7 % PARTS


def graph_pieces(pair: torch.Tensor, weights: Any, owners: torch.Tensor, end: int) -> list[GraphPartitionData]:
    """By partition the edges whose source (end 0) or target (end 1) it owns, in no order of its own."""
    pieces = []
    for p in range(PARTS):
        eids = (owners[pair[end]] == p).nonzero().flatten().flip(0)
        weight = None if weights is None else weights[eids]
        pieces.append(GraphPartitionData((pair[0][eids], pair[1][eids]), eids, weight))
    return pieces


def rows_of(rows: torch.Tensor, owners: torch.Tensor, p: int) -> FeaturePartitionData:
    ids = (owners == p).nonzero().flatten().flip(0)
    return FeaturePartitionData(rows[ids], ids)


def homo_calls(inputs: dict[str, Any], end: int = 0) -> list[Call]:
    """What a program of GraphLearn-for-PyTorch does to save the graph of ``inputs``."""
    owners, edge_owners = owners_of(inputs["num_nodes"]), owners_of(inputs["edge_index"].shape[1])
    graphs = graph_pieces(inputs["edge_index"], inputs["edge_weights"], owners, end)
    calls: list[Call] = [
        lambda root: base.save_meta(root, PARTS),
        lambda root: base.save_node_pb(root, GLTPartitionBook(owners)),
        lambda root: base.save_edge_pb(root, edge_owners),
        lambda root: base.save_graph_cache(root, graphs),
    ]
    for p in range(PARTS):
        calls.append(lambda root, p=p: base.save_feature_partition(root, p, rows_of(inputs["node_feat"], owners, p)))
        calls.append(
            lambda root, p=p: base.save_feature_partition(
                root, p, rows_of(inputs["edge_feat"], edge_owners, p), group="edge_feat"
            )
        )
        calls.append(
            lambda root, p=p: base.save_feature_partition(
                root, p, rows_of(inputs["node_labels"], owners, p), group="node_label"
            )
        )
    return calls


def assert_same(left: Path, right: Path, *, edge_books: bool = True) -> None:
    """All arrays of two directories are equal, bit by bit."""
    one, other = load_partition_layout(left), load_partition_layout(right)
    assert (one.edge_dir, one.data_cls, one.num_parts) == (other.edge_dir, other.data_cls, other.num_parts)
    assert one.nodes.keys() == other.nodes.keys()
    assert one.edges.keys() == other.edges.keys()
    for key in one.nodes:
        ids = torch.arange(one.nodes[key].count)
        assert torch.equal(one.node_book(key, 0)[ids], other.node_book(key, 0)[ids])
    wanted = {path: (file.dtype, file.shape, file.crc32) for path, file in other.files.items()}
    if not edge_books:
        wanted = {path: entry for path, entry in wanted.items() if "edge_feat" not in path}
    found = {path: (file.dtype, file.shape, file.crc32) for path, file in one.files.items() if path in wanted}
    assert found == wanted


@pytest.fixture
def inputs() -> dict[str, Any]:
    return {key: value for key, value in homo_inputs().items() if key != "node_split"}


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("order", ["given", "reversed", "features first"])
def test_pieces_in_any_order_make_the_partitioners_directory(
    tmp_path: Path, inputs: dict[str, Any], order: str, end: int
) -> None:
    calls = homo_calls(inputs, end)
    match order:
        case "reversed":
            calls.reverse()
        case "features first":
            calls = [*calls[4:], *calls[:4]]
    for number, call in enumerate(calls):
        assert number == 0 or order == "given" or not (tmp_path / "g" / "META.json").exists()
        call(tmp_path / "g")
    assert "3 partitions" in verify(tmp_path / "g")
    assert not (tmp_path / "g" / PIECES).exists()
    strategy = ["by_src", "by_dst"][end]
    node_owners = owners_of(inputs["num_nodes"])
    TablePartitioner(
        tmp_path / "t", PARTS, node_owners=node_owners, edge_assign_strategy=strategy, **inputs
    ).partition()
    assert_same(tmp_path / "g", tmp_path / "t", edge_books=False)
    layout = load_partition_layout(tmp_path / "g")
    for p in range(PARTS):
        ids = layout.edge_feature_book(None, p).local_ids()
        assert torch.equal(ids, (owners_of(400) == p).nonzero().flatten())
        assert torch.equal(layout.open_partition(p).edge_feats[None], inputs["edge_feat"][ids])


def test_features_elsewhere_than_their_nodes(tmp_path: Path, inputs: dict[str, Any]) -> None:
    """A book of their own places node features, saved piece by piece, by a partitioner, or added to a directory."""
    owners, num_nodes = owners_of(inputs["num_nodes"]), inputs["num_nodes"]
    feat_owners = (owners + torch.arange(num_nodes) // 7) % PARTS
    books = {"node_feat_pb": feat_owners, "edge_feat_pb": owners_of(400)}
    TablePartitioner(tmp_path / "t", PARTS, node_owners=owners, **books, **inputs).partition()
    calls = homo_calls(inputs)
    calls.insert(1, lambda root: base.save_node_feat_pb(root, feat_owners))
    for p in range(PARTS):  # the node features' calls
        calls[5 + 3 * p] = lambda root, p=p: base.save_feature_partition(
            root, p, rows_of(inputs["node_feat"], feat_owners, p)
        )
    for call in calls:
        call(tmp_path / "g")
    bare = TablePartitioner(tmp_path / "b", PARTS, node_owners=owners, **books, **inputs)
    bare.partition(with_feature=False)
    for p in range(PARTS):
        base.build_partition_feature(tmp_path / "b", p, 10, inputs["node_feat"], None, inputs["edge_feat"], None)
    for other in ("g", "b"):
        assert "3 partitions" in verify(tmp_path / other)
        assert_same(tmp_path / other, tmp_path / "t")
    for p in range(PARTS):
        _, _, _, node_feat, edge_feat, node_pb, _ = base.load_partition(tmp_path / "t", p)
        assert torch.equal(node_feat.ids, (feat_owners == p).nonzero().flatten())
        assert torch.equal(node_feat.feats, inputs["node_feat"][node_feat.ids])
        assert torch.equal(edge_feat.feats, inputs["edge_feat"][edge_feat.ids])
        assert torch.equal(node_pb[torch.arange(num_nodes)], owners)
    with pytest.raises(InvalidArgumentError, match=r"features that it places are written already: part0/node_feat/x"):
        base.save_node_feat_pb(tmp_path / "g", feat_owners)
    with pytest.raises(InvalidArgumentError, match=rf"node_feat_pb: expected a book of {num_nodes} ids, got one of 3"):
        TablePartitioner(tmp_path / "n", PARTS, node_owners=owners, node_feat_pb=owners[:3], **inputs)


def test_typed(tmp_path: Path) -> None:
    inputs = {key: value for key, value in hetero_inputs().items() if key != "node_split"}
    TablePartitioner(
        tmp_path / "t",
        PARTS,
        node_owners={key: owners_of(count) for key, count in NUM_NODES.items()},
        edge_assign_strategy="by_dst",
        edge_feat_pb={EDGE_TYPES[0]: RangePartitionBook.near_equal(90, PARTS)},
        **inputs,
    ).partition()
    root = tmp_path / "g"
    for etype in EDGE_TYPES:
        weights = inputs["edge_weights"].get(etype)
        graphs = graph_pieces(inputs["edge_index"][etype], weights, owners_of(NUM_NODES[etype[2]]), 1)
        for p in reversed(range(PARTS)):
            base.save_graph_partition(root, p, graphs[p], etype)
    for p in range(PARTS):
        users, items = (owners_of(NUM_NODES[key]) for key in ("user", "item"))
        base.save_feature_partition(root, p, rows_of(inputs["node_feat"]["user"], users, p), "node_feat", "user")
        base.save_feature_partition(root, p, rows_of(inputs["node_labels"]["item"], items, p), "node_label", "item")
        book = RangePartitionBook.near_equal(90, PARTS, p)
        feats = inputs["edge_feat"][EDGE_TYPES[0]][book.local_ids()]
        base.save_feature_partition(root, p, FeaturePartitionData(feats, None), "edge_feat", EDGE_TYPES[0])
    base.save_edge_pb(root, RangePartitionBook.near_equal(90, PARTS), EDGE_TYPES[0])
    for key, count in NUM_NODES.items():
        base.save_node_pb(root, owners_of(count), key)
    base.save_meta(root, PARTS, "hetero", list(NUM_NODES), EDGE_TYPES)
    verify(root)
    assert_same(root, tmp_path / "t")
    loaded, wanted = (base.load_partition(directory, 1) for directory in (root, tmp_path / "t"))
    assert loaded[2].keys() == set(EDGE_TYPES)
    for etype in EDGE_TYPES:
        assert torch.equal(torch.stack(loaded[2][etype].edge_index), torch.stack(wanted[2][etype].edge_index))
    assert torch.equal(loaded[3]["user"].feats, wanted[3]["user"].feats)


def test_what_is_missing_is_named(tmp_path: Path, inputs: dict[str, Any]) -> None:
    root, calls = tmp_path / "g", homo_calls(inputs)
    calls[4](root)
    with pytest.raises(PartitionFormatError, match=r"meta \(save_meta\)"):
        verify(root)
    calls[0](root)
    with pytest.raises(PartitionFormatError, match=r"node_pb.*graph of partition 2.*rows \(node_feat\) of partition 0"):
        verify(root)
    with pytest.raises(PartitionFormatError, match="no \\(complete\\) partition directory"):
        load_partition_layout(root)
    calls[1](root)
    calls[3](root)
    verify(root)  # other partitions' features may never come
    calls[6](root)
    base.save_feature_partition_chunk(root, 1, FeaturePartitionData(torch.zeros(1, 2), torch.tensor([1])))
    with pytest.raises(PartitionFormatError, match=r"rows \(node_feat\) of partition 1, which waits"):
        verify(root)


def test_chunks_and_caches(tmp_path: Path, inputs: dict[str, Any]) -> None:
    root, owners, feats = tmp_path / "g", owners_of(53), inputs["node_feat"]
    for call in homo_calls(inputs)[:4]:
        call(root)
    for p in range(PARTS):
        whole = rows_of(feats, owners, p)
        for begin in range(0, len(whole.ids), 5):
            part = slice(begin, begin + 5)
            base.save_feature_partition_chunk(root, p, FeaturePartitionData(whole.feats[part], whole.ids[part]))
        cached = torch.tensor([40, 2, 3, 11])
        base.save_feature_partition_cache(root, p, FeaturePartitionData(None, None, feats[cached], cached))
    assert not (root / PIECES).exists()
    verify(root)
    for p in range(PARTS):
        _, _, _, rows, _, node_pb, _ = base.load_partition(root, p)
        assert torch.equal(rows.feats, feats[rows.ids])
        assert rows.cache_ids.tolist() == [v for v in (40, 2, 3, 11) if v * 7 % PARTS != p]
        assert torch.equal(rows.cache_feats, feats[rows.cache_ids])
        ratio, both, id2index, seen = base.cat_feature_cache(p, rows, node_pb)
        assert ratio == len(rows.cache_ids) / len(both)
        held = torch.cat([rows.ids, rows.cache_ids])
        assert torch.equal(both[id2index[held]], feats[held])
        assert bool((seen[held] == p).all())
        others = [v for v in range(53) if v not in held.tolist()]
        assert torch.equal(seen[torch.tensor(others)].long(), owners[others])
        again = base.load_feature_partition_data(root / f"part{p}" / "node_feat", "cpu")
        assert torch.equal(again.cache_feats, rows.cache_feats)


def test_cat_without_a_cache() -> None:
    book = RangePartitionBook([(0, 2), (2, 5)], 1)
    data = FeaturePartitionData(torch.eye(3), None)
    ratio, feats, id2index, seen = base.cat_feature_cache(1, data, book)
    assert (ratio, id2index.tolist(), seen) == (0.0, [-1, -1, 0, 1, 2], book)
    assert feats is data.feats


def test_features_later_and_from_whole_arrays(tmp_path: Path, inputs: dict[str, Any]) -> None:
    bare, whole, empty = tmp_path / "bare", tmp_path / "whole", tmp_path / "empty"
    RandomPartitioner(empty, PARTS, **inputs).partition(with_feature=False)
    RandomPartitioner(whole, PARTS, **inputs).partition()
    RandomPartitioner(bare, PARTS, **inputs).partition(with_feature=False)
    given = {"node_feat": inputs["node_feat"].numpy(), "edge_feat": inputs["edge_feat"]}
    with ThreadPoolExecutor(PARTS) as threads:  # each adds to META.json what it wrote
        list(threads.map(lambda p: base.build_partition_feature(bare, p, 7, **given), range(PARTS)))
    verify(bare)
    assert_same(bare, whole)
    with pytest.raises(InvalidArgumentError, match="is there already"):
        base.build_partition_feature(bare, 0, node_feat=inputs["node_feat"])
    with pytest.raises(InvalidArgumentError, match="node_feat: expected 53 rows"):
        base.build_partition_feature(empty, 0, node_feat=torch.zeros(52, 1))
    with pytest.raises(PartitionFormatError, match="not found"):
        base.build_partition_feature(tmp_path / "nothing", 0)


@pytest.mark.parametrize("rows", [torch.zeros(53, 2, dtype=torch.float64), torch.zeros(53, 3)])
def test_partitions_have_rows_of_one_kind(
    rows: torch.Tensor, tmp_path: Path, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = RandomPartitioner(tmp_path / "g", PARTS, **inputs).partition(with_feature=False)
    before = load_partition_layout(root)
    base.build_partition_feature(root, 0, node_feat=inputs["node_feat"])
    expected = r"expected rows float32 \[2\], as part0/node_feat/x.npy has, got float"
    with pytest.raises(InvalidArgumentError, match=f"^node_feat, node_feat_dtype: {expected}"):
        base.build_partition_feature(root, 1, node_feat=rows)
    own = before.node_feature_book(None, 1).local_ids(1)
    with pytest.raises(InvalidArgumentError, match=f"feats: {expected}"):
        base.save_feature_partition(root, 1, FeaturePartitionData(rows[own], own))
    with monkeypatch.context() as patch:  # two processes that build at the same time
        patch.setattr(base, "load_partition_layout", lambda *_: before)
        with pytest.raises(InvalidArgumentError, match=f"^part1/node_feat/x.npy: {expected}"):
            base.build_partition_feature(root, 1, node_feat=rows)
    base.build_partition_feature(root, 1, node_feat=rows[:, :2].float())
    base.build_partition_feature(root, 2, node_feat=rows[:, :2], node_feat_dtype=torch.float32)
    verify(root)


def test_one_type_of_one_partition(tmp_path: Path) -> None:
    inputs = hetero_inputs()
    RangePartitioner(tmp_path / "g", 2, **inputs).partition()
    _, _, graphs, nodes, edges, _, _ = base.load_partition(tmp_path / "g", 1)
    layout = load_partition_layout(tmp_path / "g")
    for etype in EDGE_TYPES:
        folder = next(path for path in layout.files if "part1/graph" in path and etype[1] in path.split("__"))
        data = base.load_graph_partition_data((tmp_path / "g" / folder).parent, torch.device("cpu"))
        assert torch.equal(torch.stack(data.edge_index), torch.stack(graphs[etype].edge_index))
        assert torch.equal(data.eids, graphs[etype].eids)
    data = base.load_feature_partition_data(tmp_path / "g/part1/node_feat/user", "cpu")
    assert torch.equal(data.feats, nodes["user"].feats)
    assert torch.equal(data.ids, nodes["user"].ids)
    data = base.load_feature_partition_data(tmp_path / "g/part1/edge_feat/user__buys__item", "cpu")
    assert torch.equal(data.feats, edges[EDGE_TYPES[0]].feats)
    assert base.load_feature_partition_data(tmp_path / "g/part1/node_feat/item", "cpu") is None
    with pytest.raises(PartitionFormatError, match="expected DIR/part<i>/<group>"):
        base.load_graph_partition_data(tmp_path / "g", "cpu")


def test_graph_caching_loads_the_whole_graph(tmp_path: Path, inputs: dict[str, Any]) -> None:
    RandomPartitioner(tmp_path / "g", PARTS, **inputs).partition(graph_caching=True)
    _, _, graph, node_feat, _, node_pb, _ = base.load_partition(tmp_path / "g", 1, graph_caching=True)
    order = graph.eids.argsort()
    assert torch.equal(torch.stack(graph.edge_index)[:, order], inputs["edge_index"])
    assert torch.equal(graph.weights[order], inputs["edge_weights"])
    assert torch.equal(node_feat.ids, node_pb.local_ids(1))


def bad_calls() -> list[tuple[Call, type[Exception], str]]:
    pair, no_ids = (torch.tensor([0]), torch.tensor([1])), torch.tensor([], dtype=torch.int64)
    ids, rows = torch.tensor([0, 3]), torch.zeros(2, 1)
    return [
        (lambda root: base.save_meta(root, 2), InvalidArgumentError, "save_meta: saved before"),
        (lambda root: base.save_meta(root, 0), InvalidArgumentError, "num_parts: expected an int >= 1"),
        (lambda root: base.save_meta(root, True), InvalidArgumentError, "num_parts: expected an int >= 1, got True"),
        (lambda root: base.save_meta(root, 2, "x"), InvalidArgumentError, "'homo' or 'hetero', got 'x'"),
        (lambda root: base.save_meta(root, 2, "hetero"), InvalidArgumentError, "node_types, edge_types"),
        (lambda root: base.save_node_pb(root, torch.tensor([0, 2])), InvalidArgumentError, r"owners\[1\]=2"),
        (lambda root: base.save_node_pb(root, [0]), InvalidArgumentError, "node_pb: expected a PartitionBook"),
        (lambda root: base.save_node_pb(root, torch.tensor([0]), "a"), InvalidArgumentError, "unknown type"),
        (
            lambda root: base.save_node_pb(root, RangePartitionBook([(0, 4)], 0)),
            InvalidArgumentError,
            "expected 2 partitions, got 1",
        ),
        (
            lambda root: base.save_graph_partition(root, 2, GraphPartitionData(pair, torch.tensor([0]))),
            InvalidArgumentError,
            "partition below 2",
        ),
        (
            lambda root: base.save_graph_partition(root, 0, GraphPartitionData(pair, no_ids)),
            InvalidArgumentError,
            "expected one length",
        ),
        (
            lambda root: base.save_feature_partition(root, 0, FeaturePartitionData(rows, ids), "x"),
            InvalidArgumentError,
            "group",
        ),
        (
            lambda root: base.save_feature_partition_chunk(root, 0, FeaturePartitionData(rows, None)),
            InvalidArgumentError,
            "ids of a chunk",
        ),
        (
            lambda root: base.save_feature_partition(root, 0, FeaturePartitionData(rows, ids[:1])),
            InvalidArgumentError,
            "expected 1 rows, one for each id",
        ),
    ]


@pytest.mark.parametrize("number", range(len(bad_calls())))
def test_a_wrong_piece_is_refused_and_forgotten(tmp_path: Path, number: int) -> None:
    call, error, text = bad_calls()[number]
    base.save_meta(tmp_path, 2)
    with pytest.raises(error, match=text):
        call(tmp_path)
    assert [path.name for path in (tmp_path / PIECES).iterdir()] == ["META.json"]


def test_pieces_that_contradict_each_other(tmp_path: Path) -> None:
    base.save_meta(tmp_path, 2)
    base.save_node_pb(tmp_path, torch.tensor([0, 0, 1, 1]))
    rows, ids = torch.zeros(2, 1), torch.tensor([0, 1])
    with pytest.raises(UnknownIdError, match="belongs to partition 1"):
        base.save_feature_partition(tmp_path, 0, FeaturePartitionData(rows, torch.tensor([0, 2])))
    with pytest.raises(InvalidArgumentError, match="distinct ids, got 0"):
        base.save_feature_partition(tmp_path, 0, FeaturePartitionData(rows, torch.tensor([0, 0])))
    with pytest.raises(InvalidArgumentError, match="expected 2 rows, got 1"):
        base.save_feature_partition(tmp_path, 0, FeaturePartitionData(rows[:1], ids[:1]))
    base.save_feature_partition(tmp_path, 0, FeaturePartitionData(rows, ids))
    with pytest.raises(InvalidArgumentError, match="all rows were saved before"):
        base.save_feature_partition(tmp_path, 0, FeaturePartitionData(rows, ids))
    edge = torch.tensor([0])
    base.save_graph_partition(tmp_path, 0, GraphPartitionData((edge, edge + 2), edge))
    with pytest.raises(InvalidArgumentError, match="sources and targets are both of other partitions"):
        base.save_graph_partition(tmp_path, 1, GraphPartitionData((edge, edge + 1), edge + 1))
    with pytest.raises(UnknownIdError):
        base.save_graph_partition(tmp_path, 1, GraphPartitionData((edge + 2, edge + 4), edge + 1))
    twice = torch.tensor([2, 2])
    with pytest.raises(InvalidArgumentError, match="distinct ids"):
        base.save_graph_partition(tmp_path, 1, GraphPartitionData((twice, twice), twice))
    base.save_graph_partition(tmp_path, 1, GraphPartitionData((edge + 2, edge), edge + 1))
    cached = torch.tensor([2])
    with pytest.raises(InvalidArgumentError, match=r"as the partition's own, got torch\.float64"):
        base.save_feature_partition_cache(tmp_path, 0, FeaturePartitionData(None, None, rows[:1].double(), cached))
    cache = FeaturePartitionData(None, None, rows[:1], cached)
    with pytest.raises(InvalidArgumentError, match="labels have no cache"):
        base.save_feature_partition_cache(tmp_path, 0, cache, "node_label")
    base.save_feature_partition_cache(tmp_path, 1, FeaturePartitionData(None, None, rows[:1], edge))
    with pytest.raises(PartitionFormatError, match=r"cache \(node_feat\) of partition 1, which waits"):
        verify(tmp_path)
    base.save_feature_partition(tmp_path, 1, FeaturePartitionData(rows, ids + 2))
    verify(tmp_path)
    assert load_partition_layout(tmp_path).open_partition(1).node_caches[None].ids.tolist() == [0]
    assert load_partition_layout(tmp_path).edge_dir == "out"


def test_a_directory_that_another_holds(tmp_path: Path) -> None:
    """Its lock is waited for up to a deadline, and comes free again after one who did not wait for it."""
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with (
        pytest.raises(StorageError, match=r"another process held its lock for 0\.1 s"),
        locked_directory(tmp_path, 0.1),
    ):
        pass
    entered = threading.Event()

    def enter() -> None:
        with PieceStore(tmp_path):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    assert not entered.is_set()
    os.close(held)
    waiting.join(60.0)
    assert entered.is_set()
    with locked_directory(tmp_path, 60.0):
        pass


def test_a_directory_that_its_holder_removes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waited for its lock has that of nothing, whatever has its name by then."""
    folder = tmp_path / "work"
    folder.mkdir()

    def wait(folder: Path, timeout_s: float) -> int:
        descriptor = os.open(folder, os.O_RDONLY)
        folder.rename(tmp_path / "gone")
        folder.mkdir()
        return descriptor

    monkeypatch.setattr(directory_lock, "_wait_for_lock", wait)
    with (
        locked_directory(folder, 0.1),
        pytest.raises(StorageError, match="work: the process that held its lock has removed it"),
        locked_directory(folder, 0.1),
    ):
        pass


def test_every_order_of_the_smallest_graph(tmp_path: Path) -> None:
    ids = torch.arange(3)
    calls: list[Call] = [
        lambda root: base.save_meta(root, 1),
        lambda root: base.save_node_pb(root, torch.zeros(3, dtype=torch.uint8)),
        lambda root: base.save_edge_pb(root, torch.zeros(3, dtype=torch.int64)),
        lambda root: base.save_graph_partition(root, 0, GraphPartitionData((ids, ids), ids)),
        lambda root: base.save_feature_partition(root, 0, FeaturePartitionData(torch.eye(3), ids)),
        lambda root: base.save_feature_partition(root, 0, FeaturePartitionData(torch.eye(3), ids), "edge_feat"),
    ]
    for number, order in enumerate(itertools.permutations(range(len(calls)))):
        if number % 11 == 0:
            root = tmp_path / str(number)
            for index in order:
                calls[index](root)
            verify(root)
            arrays = load_partition_layout(root).open_partition(0)
            assert arrays.graphs[None].indices.tolist() == [0, 1, 2]
            assert torch.equal(arrays.edge_feats[None], torch.eye(3))


def test_a_data_set_reads_a_directory_of_pieces(tmp_path: Path, inputs: dict[str, Any]) -> None:
    for call in homo_calls({**inputs, "edge_weights": None}):
        call(tmp_path)
    for p in range(PARTS):
        dataset = DistDataset()
        dataset.load(tmp_path, p)
        dataset.validate()
        edge_ids = (owners_of(400) == p).nonzero().flatten().flip(0)
        assert torch.equal(dataset.edge_features[edge_ids], inputs["edge_feat"][edge_ids])
        assert torch.equal(dataset.edge_pb[torch.arange(400)], owners_of(400))
        same = DistDataset.from_ipc_handle(dataset.share_ipc())
        assert torch.equal(same.edge_features[edge_ids], inputs["edge_feat"][edge_ids])
        assert torch.equal(same.edge_pb[edge_ids], torch.full((len(edge_ids),), p))
