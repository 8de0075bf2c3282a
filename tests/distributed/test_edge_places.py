"""Edge features lie with their edges unless another book is given: those of edges at hand are asked of nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from graphlearn_dist.partition import (
    OwnedEdgesBook,
    RandomPartitioner,
    RangePartitionBook,
    base,
    load_partition_layout,
    verify,
)
from graphlearn_dist.partition.layout import META_FILE, array_path
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from graphlearn_dist.typing import FeaturePartitionData
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import EDGE_TYPES, Direction, TestGraph, make_dataset, random_graph, typed_graph
from tests.support.oracle import assert_same, load_partitions, tensors_of, write_partitions

PARTS = 3
GRAPHS: dict[str, TestGraph] = {
    "homogeneous": random_graph(300, 3000, 8, explicit_edge_ids=True),
    "typed": typed_graph(200, 80, 1500, 9),
}
FEATURED = {"homogeneous": None, "typed": EDGE_TYPES[0]}
DIRECTIONS: tuple[Direction, ...] = ("in", "out")


def asked_for(peers: DirectPeers, store: str) -> torch.Tensor:
    """The ids that a store's rows were asked for."""
    ids = [query.ids_by_store().get(store) for query in peers.asked_as("rows")]
    return torch.cat([torch.empty(0, dtype=torch.int64), *(part for part in ids if part is not None)])


def range_books(kind: str) -> dict[str, Any]:
    graph = GRAPHS[kind]
    books = {key: RangePartitionBook.near_equal(len(rows), PARTS) for key, rows in graph.edge_features().items()}
    return {"edge_feat_pb": graph.unwrap(books)}


def write(kind: str, edge_dir: Direction, path: Path, **options: Any) -> Path:
    graph = GRAPHS[kind]
    return RandomPartitioner(
        path,
        PARTS,
        graph.unwrap(graph.num_nodes),
        graph.unwrap(graph.edges),
        edge_feat=graph.unwrap(graph.edge_features()),
        edge_assign_strategy="by_src" if edge_dir == "out" else "by_dst",
        edge_ids=graph.unwrap(graph.edge_ids),
        node_feat=graph.unwrap(graph.node_features()),
        node_feat_dtype=None,
        node_labels=graph.unwrap(graph.node_labels()),
        **options,
    ).partition()


def inputs_of(kind: str, task: SamplingType) -> Any:
    user = None if kind == "homogeneous" else "user"
    if task is not SamplingType.LINK:
        return NodeSamplerInput(torch.arange(120), user)
    pairs = GRAPHS[kind].edges[FEATURED[kind]][:, :80]
    negatives = NegativeSampling("binary", 1)
    return EdgeSamplerInput(pairs[0], pairs[1], input_type=FEATURED[kind], neg_sampling=negatives)


def make_all(batches: PartitionedBatches, peers: DirectPeers) -> list[tuple[Any, torch.Tensor]]:
    """Each batch, and the edge ids whose features it asked others for."""

    made: list[tuple[Any, torch.Tensor]] = []

    async def run() -> None:
        for index in range(batches.schedule.num_batches):
            peers.asked.clear()
            batch = await batches.make(0, index)
            store = next(i for i, rows in enumerate(batch.edge_features) if rows is not None)
            made.append((batch, asked_for(peers, f"edge_feature:{store}")))

    asyncio.run(run())
    return made


@pytest.mark.parametrize("task", [SamplingType.NODE, SamplingType.LINK, SamplingType.SUBGRAPH])
@pytest.mark.parametrize("edge_dir", DIRECTIONS)
@pytest.mark.parametrize("kind", GRAPHS)
def test_only_features_of_edges_elsewhere_are_asked_for(
    kind: str, edge_dir: Direction, task: SamplingType, tmp_path: Path
) -> None:
    """The same bits as in process, whichever book there is; each edge elsewhere is asked for once, and no other."""
    graph, inputs = GRAPHS[kind], inputs_of(kind, task)
    with_neg = task is SamplingType.LINK
    config = SamplingConfig(task, [4, 3], 30, True, False, True, True, with_neg, False, edge_dir, 7, False)
    local = LocalBatches(make_dataset(graph, edge_dir), inputs, config)
    for placing, options in (("with edges", {}), ("ranges", range_books(kind))):
        directory = write(kind, edge_dir, tmp_path / placing, **options)
        datasets = load_partitions(directory, PARTS)
        services = [PartitionService(dataset) for dataset in datasets]
        peers = DirectPeers(services)
        batches = PartitionedBatches(datasets[1], inputs, config, [services[1]], peers)
        for index, (batch, asked) in enumerate(make_all(batches, peers)):
            expected = local.make(0, index)
            assert_same(tensors_of(batch), tensors_of(expected))
            schema, sampled = datasets[1].schema, batch.subgraph
            edge_type = schema.edge_types.index(FEATURED[kind])
            nodes = sampled.nodes[schema.edge_specs[edge_type][0]][sampled.cols[edge_type]]
            is_elsewhere = datasets[1].row_books()[edge_type][nodes] != 1
            if placing == "with edges":
                assert torch.equal(asked.sort().values, sampled.edge_ids[edge_type][is_elsewhere].sort().values)
            assert len(asked)


@pytest.mark.parametrize("kind", GRAPHS)
def test_neighbors_of_own_nodes_have_their_features_at_hand(kind: str, tmp_path: Path) -> None:
    """One hop from a partition's nodes asks nobody for edge features; by a book of ranges it asks for two thirds."""
    shares = {}
    for placing, options in (("with edges", {}), ("ranges", range_books(kind))):
        datasets = load_partitions(write(kind, "out", tmp_path / placing, **options), PARTS)
        services = [PartitionService(dataset) for dataset in datasets]
        peers, user = DirectPeers(services), None if kind == "homogeneous" else "user"
        books = datasets[1].node_pb
        own = (books if user is None else books[user]).local_ids(1)
        config = SamplingConfig(SamplingType.NODE, [4], 20, True, False, True, True, False, False, "out", 7, False)
        batches = PartitionedBatches(datasets[1], NodeSamplerInput(own, user), config, [services[1]], peers)
        made = make_all(batches, peers)
        place = datasets[1].schema.edge_types.index(FEATURED[kind])
        drawn = sum(batch.subgraph.rows[place].numel() for batch, _ in made)
        shares[placing] = sum(len(asked) for _, asked in made) / drawn
    assert shares["with edges"] == 0
    assert 0.5 < shares["ranges"] < 0.8


@pytest.mark.parametrize("edge_dir", DIRECTIONS)
@pytest.mark.parametrize("kind", GRAPHS)
def test_features_lie_with_their_edges(kind: str, edge_dir: Direction, tmp_path: Path) -> None:
    directory, edge_type = write(kind, edge_dir, tmp_path / "g"), FEATURED[kind]
    assert "good" in verify(directory)
    layout, features = load_partition_layout(directory), GRAPHS[kind].edge_features()[edge_type]
    owners = torch.full((len(features),), -1)
    for p in range(PARTS):
        arrays = layout.open_partition(p)
        book = layout.edge_feature_book(edge_type, p)
        assert isinstance(book, OwnedEdgesBook)
        ids = book.local_ids()
        assert torch.equal(ids, arrays.graphs[edge_type].edge_ids.sort().values.long())
        assert torch.equal(arrays.edge_feats[edge_type], features[ids])
        owners[ids] = p
    assert not list(directory.glob("edge_book/**/*.npy"))
    have = (owners >= 0).nonzero().flatten()
    for dataset in load_partitions(directory, PARTS):  # all partitions are on this machine
        books = dataset.edge_pb
        book = books if edge_type is None else books[edge_type]
        assert torch.equal(book[have], owners[have])
        with pytest.raises(UnknownIdError, match=rf"ids\[1\]: no partition has an edge {len(features)}"):
            book[torch.tensor([int(have[0]), len(features)])]


def test_one_partition_has_features_by_id(tmp_path: Path) -> None:
    dataset = load_partitions(write_partitions(GRAPHS["homogeneous"], tmp_path, "random", 1, "in"), 1)[0]
    assert dataset.is_whole
    assert isinstance(dataset.edge_pb, RangePartitionBook)


def test_a_partition_alone_says_what_it_does_not_know(tmp_path: Path) -> None:
    dataset = load_partitions(write("homogeneous", "in", tmp_path / "g"), PARTS)[0]
    own = dataset.edge_pb.local_ids(0)
    others = dataset.edge_pb.local_ids(2)
    same = DistDataset.from_ipc_handle(dataset.share_ipc())
    assert torch.equal(same.edge_pb[own[:5]], torch.zeros(5, dtype=torch.int64))
    assert torch.equal(same.edge_features[own[:5]], dataset.edge_features[own[:5]])
    with pytest.raises(InvalidArgumentError, match=r"in none of the partitions on this machine, and \[1, 2\]"):
        same.edge_pb[others[:1]]
    with pytest.raises(UnknownIdError, match=rf"edge {int(others[0])} is not one of partition 0"):
        same.edge_features[others[:1]]


def test_directories_of_version_1_are_read(tmp_path: Path) -> None:
    """As they were written before: ranges of edge ids, whoever has the edge."""
    directory = write("homogeneous", "in", tmp_path / "g", **range_books("homogeneous"))
    meta = json.loads((directory / META_FILE).read_text())
    assert meta["version"] == 2
    (directory / META_FILE).write_text(json.dumps({**meta, "version": 1}))
    assert "good" in verify(directory)
    features = GRAPHS["homogeneous"].edge_features()[None]
    for dataset in load_partitions(directory, PARTS):
        ids = dataset.edge_pb.local_ids()
        assert torch.equal(dataset.edge_features[ids], features[ids])
        assert isinstance(dataset.edge_pb, RangePartitionBook)


@pytest.mark.parametrize("way", ["build", "pieces"])
def test_features_that_come_later(way: str, tmp_path: Path) -> None:
    """Files equal to those of a partitioner that had them at once."""
    graph = GRAPHS["homogeneous"]
    features, expected = graph.edge_features()[None], load_partition_layout(write("homogeneous", "in", tmp_path / "a"))
    ids, owned = graph.ids_of(None), expected.edge_feature_book(None, 0)
    partitioner = RandomPartitioner(
        tmp_path / "b", PARTS, 300, graph.edges[None], edge_feat=features, edge_ids=ids, edge_assign_strategy="by_dst"
    )
    root = partitioner.partition(with_feature=False)
    for p in range(PARTS):
        if way == "build":
            base.build_partition_feature(root, p, edge_feat=features)
        else:
            own = owned.local_ids(p).flip(0)
            base.save_feature_partition(root, p, FeaturePartitionData(features[own], own), "edge_feat")
    made = load_partition_layout(root)
    assert "good" in verify(root)
    for p in range(PARTS):
        for name in ("x", "ids"):
            path = array_path("edge_feat", None, name, p)
            assert made.files[path] == expected.files[path]


def test_ids_beside_features_that_are_not_the_edges(tmp_path: Path) -> None:
    directory = write("homogeneous", "in", tmp_path / "g")
    paths = [directory / array_path("edge_feat", None, "ids", p) for p in (0, 1)]
    data = bytearray(paths[0].read_bytes())
    data[-4] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(PartitionFormatError, match=r"ids\.npy"):
        load_partition_layout(directory).open_partition(0)
    paths[1].unlink()
    with pytest.raises(PartitionFormatError, match=r"ids\.npy"):
        load_partition_layout(directory).open_partition(1)
