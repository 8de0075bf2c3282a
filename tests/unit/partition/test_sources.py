"""From PyG data and .npz files to data sets and partition directories; the commands for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from graphlearn_dist.cli import main
from graphlearn_dist.data import GraphSource
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, StorageError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import partition_pyg, partition_source, verify

EDGES = torch.tensor([[0, 1, 2, 3, 3], [1, 2, 0, 0, 3]])


def homogeneous() -> Data:
    train = torch.tensor([True, True, False, False, False])
    return Data(
        x=torch.arange(10.0).view(5, 2), y=torch.arange(5), edge_index=EDGES, train_mask=train, test_mask=~train
    )


def whole(directory: Path) -> DistDataset:
    dataset = DistDataset()
    dataset.load(directory, 0)
    return dataset


def test_pyg_data_as_data_set_and_as_partition_give_the_same_batch(tmp_path: Path) -> None:
    data = homogeneous()
    local = GraphSource.from_pyg(data).to_dataset()
    stored = whole(partition_pyg(data, tmp_path / "p", num_parts=1))
    first, second = (
        NeighborLoader(dataset, [-1], torch.arange(5), batch_size=5, with_edge=True).batch(0, 0)
        for dataset in (local, stored)
    )
    for key in ("n_id", "edge_index", "e_id", "x", "y"):
        assert torch.equal(first[key], second[key]), key
    assert {tuple(pair) for pair in first.n_id[first.edge_index].t().tolist()} == {tuple(p) for p in EDGES.t().tolist()}
    assert stored.train_idx.tolist() == [0, 1]
    assert stored.test_idx.tolist() == [2, 3, 4]
    assert stored.val_idx is None


def test_hetero_pyg_data(tmp_path: Path) -> None:
    data = HeteroData()
    data["user"].x = torch.arange(6.0).view(3, 2)
    data["item"].num_nodes = 4
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1, 2], [3, 0, 1]])
    data["item", "rev_buys", "user"].edge_index = torch.tensor([[3, 0, 1], [0, 1, 2]])
    stored = whole(partition_pyg(data, tmp_path / "p", num_parts=1))
    batch = NeighborLoader(stored, [-1, -1], ("user", torch.tensor([2])), batch_size=1).batch(0, 0)
    assert batch["item"].n_id.tolist() == [1]
    assert batch["user"].x.tolist() == [[4.0, 5.0]]
    assert "x" not in batch["item"]


def test_weights_and_times_of_pyg_data(tmp_path: Path) -> None:
    """Of edges and of nodes, in memory and from a directory: the edges keep what they had, by edge id."""
    weights, edge_times, node_times = torch.arange(5.0) + 0.5, torch.arange(5) * 3, torch.tensor([4, 3, 9, 1, 0])
    data = homogeneous()
    data.edge_weight, data.edge_time, data.time = weights, edge_times, node_times
    plain = GraphSource.from_pyg(data)
    assert (plain.edge_weights, plain.edge_times, plain.node_times) == (None, None, None)
    for attr, expected in (("edge_time", edge_times), ("time", node_times[EDGES[0]])):  # in-neighbors are sources
        source = GraphSource.from_pyg(data, weight_attr="edge_weight", time_attr=attr)
        target = partition_pyg(data, tmp_path / attr, num_parts=1, weight_attr="edge_weight", time_attr=attr)
        for dataset in (source.to_dataset(), whole(target)):
            topo = dataset.get_graph().topo
            assert torch.equal(topo.edge_weights, weights[topo.edge_ids.long()])
            assert torch.equal(topo.edge_times, expected[topo.edge_ids.long()])
            time = torch.full((5,), 3)
            loader = NeighborLoader(dataset, [-1], torch.arange(5), batch_size=5, with_edge=True, input_time=time)
            assert sorted(loader.batch(0, 0).e_id.tolist()) == (expected <= 3).nonzero().view(-1).tolist()


def test_weights_and_times_of_typed_pyg_data() -> None:
    """Some types may lack them."""
    data, buys, sold = HeteroData(), ("user", "buys", "item"), ("item", "sold", "user")
    data["user"].num_nodes, data["item"].num_nodes = 3, 2
    data["user"].time = torch.tensor([5, 6, 7])
    for name in (buys, sold):
        data[name].edge_index = torch.tensor([[0, 1], [1, 0]])
    data[buys].edge_weight = torch.tensor([1.0, 2.0])
    data[sold].when = torch.tensor([3, 4])
    of_nodes = GraphSource.from_pyg(data, weight_attr="edge_weight", time_attr="time").to_dataset()
    assert of_nodes.get_graph(buys).topo.edge_times.tolist() == [6, 5]  # of the users they come from, by item
    assert of_nodes.get_graph(buys).topo.edge_weights.tolist() == [2.0, 1.0]
    assert of_nodes.get_graph(sold).topo.edge_times is None
    of_edges = GraphSource.from_pyg(data, time_attr="when").to_dataset()
    assert of_edges.get_graph(sold).topo.edge_times.tolist() == [4, 3]
    data["user"].when = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InvalidArgumentError, match="time_attr: expected times of nodes or of edges, got 'when' for"):
        GraphSource.from_pyg(data, time_attr="when")
    for argument in ("weight_attr", "time_attr"):
        with pytest.raises(InvalidArgumentError, match=f"{argument}: no attribute 'cost'; the data has"):
            GraphSource.from_pyg(data, **{argument: "cost"})


def test_masks_of_typed_pyg_data(tmp_path: Path) -> None:
    """Of some types, and some splits of these."""
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes, data["shop"].num_nodes = 3, 4, 2
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1, 2], [3, 0, 1]])
    data["item", "in", "shop"].edge_index = torch.tensor([[3, 0, 1], [0, 1, 1]])
    data["user"].train_mask = torch.tensor([True, False, True])
    data["user"].test_mask = ~data["user"].train_mask
    data["item"].train_mask = torch.tensor([False, False, True, True])
    local = GraphSource.from_pyg(data).to_dataset()
    for dataset in (local, whole(partition_pyg(data, tmp_path / "p", num_parts=1))):
        assert {key: ids.tolist() for key, ids in dataset.train_idx.items()} == {"user": [0, 2], "item": [2, 3]}
        assert {key: ids.tolist() for key, ids in dataset.test_idx.items()} == {"user": [1]}
        assert not dataset.val_idx
    parts = {"user": torch.tensor([1])}, torch.tensor([1]), None
    with pytest.raises(InvalidArgumentError, match="node_split: expected each part to be a dictionary by node type"):
        partition_source(dataclasses.replace(GraphSource.from_pyg(data), node_split=parts), tmp_path / "q", num_parts=1)


def test_masks_with_a_column_for_each_split(tmp_path: Path) -> None:
    data = homogeneous()
    masks = torch.rand(5, 3) < 0.5
    masks[:, 1] = data.train_mask
    data.train_mask, data.test_mask = masks, None
    assert GraphSource.from_pyg(data).to_dataset().train_idx is None
    assert GraphSource.from_pyg(data, split_index=1).to_dataset().train_idx.tolist() == [0, 1]
    partitioned = whole(partition_pyg(data, tmp_path / "p", num_parts=1, split_index=1))
    assert partitioned.train_idx.tolist() == [0, 1]
    with pytest.raises(InvalidArgumentError, match="split_index: expected 0 to 2"):
        GraphSource.from_pyg(data, split_index=3)
    data.train_mask = masks[:, 1:2]
    assert GraphSource.from_pyg(data).to_dataset().train_idx.tolist() == [0, 1]


def test_what_is_of_the_graph_is_not_taken_for_rows(tmp_path: Path) -> None:
    """A label of the whole graph, and features that need a gradient."""
    data = homogeneous()
    data.y, data.x = torch.tensor([1]), data.x.requires_grad_()
    for dataset in (GraphSource.from_pyg(data).to_dataset(), whole(partition_pyg(data, tmp_path / "p", num_parts=1))):
        assert dataset.node_labels is None
        batch = NeighborLoader(dataset, [-1], torch.arange(5), batch_size=5).batch(0, 0)
        assert torch.equal(batch.x, data.x.detach()[batch.n_id])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("edge_weight", torch.ones(4), "weight_attr: expected one weight for each edge"),
        ("edge_weight", torch.ones(5, 1), "weights: expected"),
        ("edge_weight", torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0]), "weight.*-1"),
        ("edge_weight", torch.full((5,), torch.nan), "weight.*nan"),
        ("edge_time", torch.rand(5), "times: expected"),
        ("time", torch.rand(5), "times: expected"),
        ("time", torch.arange(4), "time_attr: expected one time for each node or for each edge"),
        ("cost", None, "attr: no attribute 'cost'; the data has"),
    ],
)
def test_bad_weights_and_times(tmp_path: Path, name: str, values: torch.Tensor | None, message: str) -> None:
    """The error names the argument, whether a data set is made or partitions."""
    data = homogeneous()
    if values is not None:
        data[name] = values
    option = {"weight_attr" if name == "edge_weight" else "time_attr": name}
    with pytest.raises(InvalidArgumentError, match=message):
        GraphSource.from_pyg(data, **option).to_dataset()
    with pytest.raises(InvalidArgumentError, match=message):
        partition_pyg(data, tmp_path / "p", num_parts=2, **option)
    assert not (tmp_path / "p").exists()


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_by_split_codes_and_by_ids(tmp_path: Path) -> None:
    edges = EDGES.numpy()
    coded = GraphSource.from_npz(npz(tmp_path / "a.npz", edge_index=edges, split=np.array([0, 2, 1, 0, 2])))
    assert coded.num_nodes == 5
    assert coded.node_split is not None
    assert [part.tolist() for part in coded.node_split] == [[0, 3], [2], [1, 4]]
    listed = GraphSource.from_npz(
        npz(tmp_path / "b.npz", edge_index=edges, num_nodes=np.array([7]), val_idx=np.array([6]))
    )
    assert listed.num_nodes == 7
    assert listed.node_split is not None
    assert [None if part is None else part.tolist() for part in listed.node_split] == [None, [6], None]


def test_npz_with_weights_and_times(tmp_path: Path) -> None:
    """By the command, too."""
    edges, weights, times = EDGES.numpy(), np.arange(5, dtype=np.float64), np.arange(5)[::-1].copy()
    source = npz(tmp_path / "a.npz", edge_index=edges, edge_weight=weights, edge_time=times)
    target = tmp_path / "parts"
    assert main(["partition", "--data", str(source), "--out", str(target), "--parts", "1"]) == 0
    for dataset in (GraphSource.from_npz(source).to_dataset(), whole(target)):
        topo = dataset.get_graph().topo
        ids = topo.edge_ids.long()
        assert torch.equal(topo.edge_weights, torch.from_numpy(weights)[ids])
        assert torch.equal(topo.edge_times, torch.from_numpy(times)[ids])
    of_nodes = GraphSource.from_npz(npz(tmp_path / "b.npz", edge_index=edges, node_time=np.arange(6)))
    assert of_nodes.num_nodes == 6
    assert of_nodes.to_dataset("out").get_graph().topo.edge_times.tolist() == [1, 2, 0, 0, 3]
    bad = npz(tmp_path / "c.npz", edge_index=edges, edge_weight=-weights)
    assert main(["partition", "--data", str(bad), "--out", str(tmp_path / "no"), "--parts", "1"]) == 1
    assert not (tmp_path / "no").exists()


def test_npz_without_edges_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"expected an array edge_index, found \['x'\]"):
        GraphSource.from_npz(npz(tmp_path / "a.npz", x=np.zeros(3)))
    with pytest.raises(StorageError, match="edge_index: expected shape"):
        GraphSource.from_npz(npz(tmp_path / "b.npz", edge_index=np.zeros((3, 2), dtype=np.int64)))
    (tmp_path / "c.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(StorageError, match="cannot be read"):
        GraphSource.from_npz(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", edge_index=np.array([object()], dtype=object))
    with pytest.raises(StorageError, match="cannot be read"):
        GraphSource.from_npz(tmp_path / "d.npz")


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = npz(tmp_path / "graph.npz", edge_index=EDGES.numpy(), x=np.ones((5, 3), dtype=np.float16))
    target = tmp_path / "parts"
    assert main(["partition", "--data", str(source), "--out", str(target), "--parts", "2", "--seed", "3"]) == 0
    assert main(["verify", str(target)]) == 0
    account = capsys.readouterr().out
    assert "2 partitions, in-neighbors" in account
    assert account.count("good") == 2
    assert whole(target).node_features.dtype == torch.float16
    file = next(target.glob("part1/graph/indices.npy"))
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 0x40
    file.write_bytes(bytes(damaged))
    assert main(["verify", str(target)]) == 1
    assert "indices.npy" in capsys.readouterr().err


def test_verify_says_what_is_not_here(tmp_path: Path) -> None:
    target = partition_pyg(homogeneous(), tmp_path / "p", num_parts=2)
    for file in sorted((target / "part1").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (target / "part1").rmdir()
    assert "partition 1: not on this machine" in verify(target)


ARRAYS = ("t", "times", "weights", "ids", "indices", "indptr", "edge_ids", "cache_ids", "cache_x", "x.npy", "META")


@pytest.mark.parametrize("name", ARRAYS)
def test_attributes_may_have_the_names_of_other_arrays(name: str, tmp_path: Path) -> None:
    data = HeteroData({"user": {"num_nodes": 5, name: torch.rand(5, 2)}})
    data["user", "knows", "user"].update({"edge_index": EDGES, name: torch.rand(5, 3)})
    directory = partition_pyg(data, tmp_path / "p", num_parts=2)
    verify(directory)
    for batch in NeighborLoader(directory, [-1], "user", batch_size=2):
        users, edges = batch["user"], batch["user", "knows", "user"]
        assert torch.equal(users[name], data["user"][name][users.n_id])
        assert torch.equal(edges[name], data["user", "knows", "user"][name][edges.e_id])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_a_dtype_that_no_file_has_is_told_with_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    data = homogeneous()
    data.wave = torch.zeros(5, 2).to(dtype)
    with pytest.raises(
        StorageError, match=r"^part0/node_attr/wave\.npy: dtype: expected one of .*, got (complex|float8)"
    ):
        partition_pyg(data, tmp_path / "p", num_parts=2)
