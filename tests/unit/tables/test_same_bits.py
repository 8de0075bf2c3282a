"""What is built from tables is, bit for bit, what a partitioner makes of the same graph in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.partition import LDGPartitioner, RandomPartitioner, RangePartitioner, load_partition_layout, verify
from graphlearn_dist.tables import IdMap, build, ids, sorting
from graphlearn_dist.tables.buckets import Budget

from .shop import AMPLE, BOUGHT, BUYS, SCARCE, STRATEGY, Shop, arrays_of, assert_same_graph, make, meta_of

PARTITIONERS = {"random": RandomPartitioner, "range": RangePartitioner, "ldg": LDGPartitioner}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("parts", [1, 3])
def test_typed_graph(tmp_path: Path, parts: int, edge_dir: str) -> None:
    """Texts and sparse integers as ids, weights, times, features of edges, reverse edges."""
    shop = Shop.make()
    reference = shop.partitioner(tmp_path / "reference", parts, edge_dir).partition()
    runs = [(1, 1000, AMPLE, 2), (1, 1000, SCARCE, 2), (5, 17, AMPLE, 1), (5, 17, SCARCE, 1)]
    built = []
    for files, group, working, threads in runs:
        folder = tmp_path / f"tables-{files}"
        shop.write(folder, files=files, group=group)
        out = tmp_path / f"built-{files}-{working}"
        make(shop.config(folder), out, parts=parts, edge_dir=edge_dir, working=working, threads=threads)
        assert_same_graph(out, reference)
        built.append(arrays_of(out))
    assert all(found == built[0] for found in built)  # splits, too
    verify(tmp_path / f"built-5-{SCARCE}")


def homogeneous(folder: Path, num_nodes: int = 40, num_edges: int = 300) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(5)
    ends = random.integers(0, num_nodes, (2, num_edges))
    ends[1, :20] = ends[0, :20]  # self loops
    pq.write_table(pa.table({"a": ends[0], "b": ends[1]}), folder / "edges.parquet", row_group_size=37)
    edges = {"source_id_col": "a", "dest_id_col": "b", "files": f"{folder}/edges.parquet"}
    return {"nodes": [{"num_nodes": num_nodes}], "edges": [edges]}, ends


@pytest.mark.parametrize("kind", ["random", "range", "ldg"])
@pytest.mark.parametrize("working", [AMPLE, SCARCE])
def test_homogeneous_graph_of_dense_ids(tmp_path: Path, kind: str, working: int) -> None:
    config, ends = homogeneous(tmp_path / "tables")
    partitioner = PARTITIONERS[kind]
    reference = partitioner(tmp_path / "r", 3, 40, torch.from_numpy(ends), edge_assign_strategy="by_dst").partition()
    out = make(config, tmp_path / "built", parts=3, kind=kind, working=working)
    assert_same_graph(out, reference)
    assert not (out / "node_map").exists()


@pytest.mark.parametrize(
    ("keys", "edges_of"),
    [
        ({"reverse": True}, lambda e: np.concatenate([e, e[::-1]], axis=1)),
        ({"self_loops": "remove"}, lambda e: e[:, e[0] != e[1]]),
        ({"self_loops": "add"}, lambda e: np.concatenate([e, [np.arange(40)] * 2], axis=1)),
        (
            {"self_loops": "add", "reverse": True},
            lambda e: np.concatenate([e, e[::-1], [np.arange(40)] * 2], axis=1),
        ),
    ],
)
@pytest.mark.parametrize("working", [AMPLE, SCARCE])
def test_reverse_edges_and_loops(tmp_path: Path, keys: dict[str, Any], edges_of: Any, working: int) -> None:
    config, ends = homogeneous(tmp_path / "tables")
    config["edges"][0] |= keys
    config["nodes"][0]["degree"] = True
    edge_index = torch.from_numpy(np.ascontiguousarray(edges_of(ends)))
    reference = RandomPartitioner(tmp_path / "r", 2, 40, edge_index, edge_assign_strategy="by_dst").partition()
    out = make(config, tmp_path / "built", working=working)
    assert_same_graph(out, reference)
    layout = load_partition_layout(out)
    degrees = np.bincount(edge_index[1], minlength=40)
    for p in range(2):
        found = layout.open_partition(p).node_attrs[None]["degree"]
        assert found.tolist() == degrees[layout.nodes[None].book.local_ids(p)].tolist()


def test_partitions_of_one_node_and_one_edge(tmp_path: Path) -> None:
    """Records of one row and of fields of several widths."""
    pq.write_table(pa.table({"a": [0, 1], "b": [1, 0], "w": [0.5, 2.0], "t": [7, 8]}), tmp_path / "edges.parquet")
    pq.write_table(pa.table({"id": [0, 1], "f": [0.25, 4.0], "y": [1, 0]}), tmp_path / "nodes.parquet")
    nodes = {"files": "nodes.parquet", "node_id_col": "id", "labels": [{"label_col": "y"}]}
    nodes["features"] = [{"feature_col": "f", "out_dtype": "float32"}]
    edges = {"files": "edges.parquet", "source_id_col": "a", "dest_id_col": "b", "weight_col": "w", "time_col": "t"}
    reference = RangePartitioner(
        tmp_path / "r", 2, 2, torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0.25], [4.0]]),
        edge_weights=torch.tensor([0.5, 2.0], dtype=torch.float64), edge_times=torch.tensor([7, 8]),
        node_labels=torch.tensor([1, 0]), edge_assign_strategy="by_dst",
    ).partition()  # fmt: skip
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"nodes": [nodes], "edges": [edges]}))
    assert_same_graph(make(config, tmp_path / "built", kind="range"), reference)


@pytest.mark.parametrize("times", [[0], [0, 2**63 - 1], [-(2**63), 5, 6]])
@pytest.mark.parametrize("reverse", [False, True])
def test_row_of_edges_that_are_alike(
    tmp_path: Path, times: list[int], reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that no memory holds is sorted by parts though most of its edges have one time, and one neighbor."""
    random, count = np.random.default_rng(4), 1500
    ends = np.stack([np.where(random.random(count) < 0.7, 3, random.integers(0, 9, count)), np.full(count, 3)])
    given = random.choice(np.array(times), count)
    pq.write_table(pa.table({"a": ends[0], "b": ends[1], "t": given}), tmp_path / "e.parquet")
    edges = {"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.parquet", "time_col": "t"}
    config = {"nodes": [{"num_nodes": 9}], "edges": [edges | {"reverse": reverse}]}
    both, copies = (np.concatenate([ends, ends[::-1]], axis=1), 2) if reverse else (ends, 1)
    reference = RandomPartitioner(
        tmp_path / "r",
        2,
        9,
        torch.from_numpy(both),
        edge_times=torch.from_numpy(np.tile(given, copies)),
        edge_assign_strategy="by_dst",
    ).partition()
    sizes: list[int] = []
    whole = sorting.BucketSorter._sorted

    def counted(self: Any, records: Any, num_rows: int, continues: bool = False) -> Any:
        sizes.append(len(records))
        return whole(self, records, num_rows, continues)

    monkeypatch.setattr(sorting.BucketSorter, "_sorted", counted)
    assert_same_graph(make(config, tmp_path / "built", working=SCARCE), reference)
    assert max(sizes) <= SCARCE // 16 // 20  # bytes of a record


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_symmetric_edges_carry_their_features(tmp_path: Path, edge_dir: str) -> None:
    config, ends = homogeneous(tmp_path / "tables")
    feature = np.arange(300, dtype=np.float32)
    table = pq.read_table(tmp_path / "tables" / "edges.parquet").append_column("f", pa.array(feature))
    pq.write_table(table, tmp_path / "tables" / "edges.parquet", row_group_size=91)
    config["edges"][0] |= {"reverse": True, "features": [{"feature_col": "f"}]}
    reference = RandomPartitioner(
        tmp_path / "r",
        2,
        40,
        torch.from_numpy(np.concatenate([ends, ends[::-1]], axis=1)),
        edge_feat=torch.from_numpy(np.concatenate([feature, feature])[:, None]),
        edge_assign_strategy=STRATEGY[edge_dir],
    ).partition()
    assert_same_graph(make(config, tmp_path / "built", edge_dir=edge_dir), reference)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("working", [AMPLE, SCARCE])
def test_times_of_nodes_are_those_of_edges(tmp_path: Path, edge_dir: str, working: int) -> None:
    config, ends = homogeneous(tmp_path / "tables")
    times = np.random.default_rng(0).integers(0, 9, 40)
    order = np.random.default_rng(1).permutation(40)  # rows of nodes come in any order
    table = pa.table({"id": order, "t": pa.array(times[order]).cast(pa.timestamp("ms"))})
    pq.write_table(table, tmp_path / "tables" / "nodes.parquet")
    config["nodes"] = [{"node_id_col": "id", "files": f"{tmp_path}/tables/nodes.parquet", "time_col": "t"}]
    reference = RandomPartitioner(
        tmp_path / "r",
        2,
        40,
        torch.from_numpy(ends),
        node_times=torch.from_numpy(times),
        edge_assign_strategy=STRATEGY[edge_dir],
    ).partition()
    out = make(config, tmp_path / "built", edge_dir=edge_dir, working=working)
    assert_same_graph(out, reference)
    assert meta_of(out)["nodes"][0]["earliest"] == int(times.argmin())


def test_types_without_a_table_have_the_ids_that_edges_name(tmp_path: Path) -> None:
    shop = Shop.make()
    shop.write(tmp_path / "t")
    config = shop.config(tmp_path / "t")
    config = {"nodes": [], "edges": [{**config["edges"][0], "features": []}]}
    out = make(config, tmp_path / "built")
    names = sorted(set(shop.buys["user"].tolist()))
    assert IdMap(out, "user").original_ids(torch.arange(len(names))).to_pylist() == names
    codes = sorted(set(shop.buys["item"].tolist()))
    assert IdMap(out, "item").node_ids(codes).tolist() == list(range(len(codes)))
    assert load_partition_layout(out).edges[BUYS].count == len(shop.source)


def test_original_ids_come_back(tmp_path: Path) -> None:
    shop = Shop.make()
    shop.write(tmp_path / "t", files=3)
    out = make(shop.config(tmp_path / "t"), tmp_path / "built")
    names = sorted(shop.users["name"].tolist())
    ids = torch.tensor([5, 0, 52, 5])
    assert IdMap(out, "user").original_ids(ids).to_pylist() == [names[i] for i in ids]
    assert IdMap(out, "user").node_ids([names[9], names[3]]).tolist() == [9, 3]
    layout = load_partition_layout(out)
    index = {name: i for i, name in enumerate(shop.users["name"].tolist())}
    for p in range(2):  # each node's row of features is that of the name that its id gives back
        owned = layout.nodes["user"].book.local_ids(p)
        named = IdMap(out, "user").original_ids(owned).to_pylist()
        ages = layout.open_partition(p).node_feats["user"][:, 0].tolist()
        assert ages == [shop.users["age"][index[name]] for name in named]


def test_splits_are_exact_shares_of_what_has_labels(tmp_path: Path) -> None:
    shop = Shop.make(num_users=1000)
    groups = shop.users["group"].astype(object)
    groups[::4] = None
    shop.users["group"] = groups
    shop.write(tmp_path / "t")
    out = make(shop.config(tmp_path / "t"), tmp_path / "built")
    layout = load_partition_layout(out)
    split = layout.nodes["user"].split
    assert {name: len(ids) for name, ids in split.items()} == {"train": 375, "val": 187, "test": 188}
    labels = torch.empty(1000, dtype=torch.int64)
    for p in range(2):
        labels[layout.nodes["user"].book.local_ids(p)] = layout.open_partition(p).node_labels["user"]
    together = torch.cat(list(split.values()))
    assert sorted(together.tolist()) == (labels >= 0).nonzero().view(-1).tolist()
    assert int((labels < 0).sum()) == 250


def test_split_column_and_integer_labels(tmp_path: Path) -> None:
    config, _ = homogeneous(tmp_path / "tables")
    parts = np.array(["train", "val", "test", "none"])[np.arange(40) % 4]
    table = pa.table({"id": np.arange(40), "y": np.arange(40) % 5, "part": parts})
    pq.write_table(table, tmp_path / "tables" / "nodes.parquet")
    config["nodes"] = [
        {
            "node_id_col": "id",
            "files": f"{tmp_path}/tables/nodes.parquet",
            "labels": [{"label_col": "y", "split_col": "part"}],
        }
    ]
    layout = load_partition_layout(make(config, tmp_path / "built", parts=1))
    assert layout.nodes[None].split["val"].tolist() == list(range(1, 40, 4))
    assert layout.open_partition(0).node_labels[None].tolist() == [i % 5 for i in range(40)]
    assert layout.columns["nodes"][None]["label"]["class_names"] == ["0", "1", "2", "3", "4"]


def test_features_are_stored_in_fewer_bytes(tmp_path: Path) -> None:
    config, _ = homogeneous(tmp_path / "tables")
    rows = np.random.default_rng(2).normal(size=(40, 2)).astype(np.float32) * [1, 100]
    table = pa.table({"id": np.arange(40), "f": rows[:, 0], "g": rows[:, 1]})
    pq.write_table(table, tmp_path / "tables" / "nodes.parquet")
    features = [
        {"feature_col": ["f", "g"], "out_dtype": "int8"},
        {"feature_col": ["g", "f"], "feature_name": "half", "out_dtype": "float16"},
    ]
    config["nodes"] = [{"node_id_col": "id", "files": f"{tmp_path}/tables/nodes.parquet", "features": features}]
    layout = load_partition_layout(make(config, tmp_path / "built", parts=1))
    arrays, about = layout.open_partition(0), layout.columns["nodes"][None]["features"]
    scale = torch.tensor(about[0]["scale"])
    assert arrays.node_feats[None].dtype == torch.int8
    assert int(arrays.node_feats[None].abs().max()) == 127
    restored = arrays.node_feats[None] * scale
    assert bool(((restored - torch.from_numpy(rows)).abs() <= scale * 0.5001).all())
    expected = torch.from_numpy(rows[:, ::-1].astype(np.float32).copy()).half()
    assert torch.equal(arrays.node_attrs[None]["half"], expected)


def test_public_function_and_what_is_known_afterwards(tmp_path: Path) -> None:
    shop = Shop.make()
    shop.write(tmp_path / "t")
    told: list[Any] = []
    out = build(shop.config(tmp_path / "t"), tmp_path / "g", num_parts=2, memory="2GB", progress=told.append)
    from graphlearn_dist.distributed import DistDataset

    dataset = DistDataset()
    dataset.load(out, 1)
    assert dataset.schema.class_names("user") == ["high", "low", "middle"]
    with pytest.raises(InvalidArgumentError, match="node_type: no names of classes are known for 'item'"):
        dataset.schema.class_names("item")
    assert dataset.schema.feature_columns("user") == ["age", "taste[0]", "taste[1]", "taste[2]"]
    assert dataset.schema.feature_columns(BOUGHT) == ["stars"]
    from graphlearn_dist.distributed.partitions.partition_outline import outline_of
    from graphlearn_dist.rpc.wire.codec import decode, encode

    encoded = encode(outline_of(dataset))  # what a client is told by a server
    told_client = decode(encoded.head, bytearray(b"".join(encoded.payload_parts())))
    assert told_client.table_columns == dataset.table_columns
    assert DistDataset.from_ipc_handle(dataset.share_ipc()).schema.columns == dataset.schema.columns
    assert [one.stage for one in told if one.finished][-1] == f"write reverse edges {' '.join(BUYS)}"
    assert not list(tmp_path.glob(".*"))  # nothing is left of the build


def test_maps_that_do_not_fit_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are looked up in parts, a pass each; original ids come from many row groups."""
    monkeypatch.setattr(ids, "_MAP_GROUP", 8)
    monkeypatch.setattr(Budget, "table_bytes", 1)
    shop = Shop.make()
    shop.write(tmp_path / "t", files=2, group=100)
    reference = shop.partitioner(tmp_path / "reference", 2, "in").partition()
    out = make(shop.config(tmp_path / "t"), tmp_path / "built")
    assert_same_graph(out, reference)
    assert pq.read_metadata(out / "node_map" / "user" / "ids.parquet").num_row_groups == 7
    names = sorted(shop.users["name"].tolist())
    order = np.random.default_rng(0).permutation(53)
    assert IdMap(out, "user").original_ids(torch.from_numpy(order)).to_pylist() == [names[i] for i in order]
    assert IdMap(out, "user").node_ids([names[i] for i in order]).tolist() == order.tolist()
