"""What ``DistDataset.load`` can be told: all graphs at hand, labels from a file, where rows are put."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphlearn_dist.data import DeviceGroup
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader
from graphlearn_dist.distributed.dist_dataset import random_split
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError
from graphlearn_dist.loader import NeighborLoader
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.oracle import write_partitions

PARTS = 3


def loaded(directory: Path, partition_idx: int, **options: Any) -> DistDataset:
    dataset = DistDataset()
    dataset.load(directory, partition_idx, **options)
    return dataset


def test_all_graphs_at_hand(tmp_path: Path) -> None:
    """The other partitions' graphs are mapped and their rows are not; each must be on this machine."""
    graph = typed_graph(40, 20, 200, 3)
    directory = write_partitions(graph, tmp_path, "random", PARTS, "out")
    dataset, plain = loaded(directory, 1, graph_caching=True), loaded(directory, 1)
    assert plain.cached_graphs == ()
    assert [other.partition_idx for other in dataset.cached_graphs] == [0, 2]
    for edge_type in graph.edges:
        parts = [dataset, *dataset.cached_graphs]
        assert sum(part.get_graph(edge_type).edge_count for part in parts) == graph.edges[edge_type].shape[1]
    for other in dataset.cached_graphs:
        assert (other.stores(), other.num_partitions, other.schema) == ({}, PARTS, dataset.schema)
    assert dataset.stores().keys() == plain.stores().keys()
    shutil.rmtree(directory / "part2")
    loaded(directory, 1)
    with pytest.raises(PartitionFormatError, match="part2/graph"):
        loaded(directory, 1, graph_caching=True)


def test_labels_from_a_file(tmp_path: Path) -> None:
    """Each partition has those of all nodes, by id, which stand for the directory's; batches are a local loader's."""
    graph = random_graph(50, 300, 2)
    labels = torch.arange(100).view(50, 2) * 10
    path = tmp_path / "labels.npy"
    numpy.save(path, labels.numpy())
    directory = write_partitions(graph, tmp_path, "random", PARTS, "out")
    for p in range(PARTS):
        dataset = loaded(directory, p, whole_node_label_file=str(path))
        assert torch.equal(dataset.get_node_label(), labels)
        assert torch.equal(dataset.labels_of(torch.tensor([49, 0])), labels[[49, 0]])
        own = loaded(directory, p)
        assert torch.equal(own.get_node_label(), own.node_pb.local_ids())
        mapped = DistDataset.from_ipc_handle(dataset.share_ipc())
        assert torch.equal(mapped.get_node_label(), labels)
    (tmp_path / "one").mkdir()
    whole = loaded(write_partitions(graph, tmp_path / "one", "range", 1, "out"), 0, whole_node_label_file=path)
    local = make_dataset(graph)
    local.init_node_labels(labels)
    far = DistNeighborLoader(whole, [3], torch.arange(50), batch_size=16, collect_features=True)
    for batch, expected in zip(far, NeighborLoader(local, [3], torch.arange(50), batch_size=16), strict=True):
        assert torch.equal(batch.y, expected.y)
        assert torch.equal(batch.y, labels[batch.n_id])


def test_labels_of_some_types_from_files(tmp_path: Path) -> None:
    directory = write_partitions(typed_graph(40, 20, 200, 3), tmp_path, "range", 2, "out")
    numpy.save(tmp_path / "users.npy", numpy.arange(40))
    torch.save(torch.arange(40), tmp_path / "users.pt")
    plain = loaded(directory, 1)
    for file in ("users.npy", "users.pt"):
        dataset = loaded(directory, 1, whole_node_label_file={"user": tmp_path / file})
        assert torch.equal(dataset.get_node_label("user"), torch.arange(40))
        for node_type in {*plain.node_labels} - {"user"}:
            assert torch.equal(dataset.get_node_label(node_type), plain.get_node_label(node_type))


@pytest.mark.parametrize(
    ("content", "files", "message"),
    [
        (numpy.arange(39), {"user": "labels.npy"}, r"expected labels \[40, \.\.\.\], got \[39\] in .*labels\.npy"),
        (numpy.array(1), {"user": "labels.npy"}, r"expected labels \[40, \.\.\.\], got \[\]"),
        (numpy.array([{"user": 1}]), {"user": "labels.npy"}, r"expected a \.npy file .*got .*labels\.npy"),
        (numpy.arange(40), {"user": "nowhere.npy"}, r"expected a \.npy file .*got .*nowhere\.npy"),
        (torch.arange(39), {"user": "labels.pt"}, r"expected labels \[40, \.\.\.\], got \[39\] in .*labels\.pt"),
        ([torch.arange(40)], {"user": "labels.pt"}, r"expected one tensor in .*labels\.pt, got list"),
        (Path("user"), {"user": "labels.pt"}, r"expected a \.npy file .* or a \.pt file .*got .*labels\.pt"),
        (numpy.arange(40), {"paper": "labels.npy"}, "unknown node type 'paper'"),
        (numpy.arange(40), "labels.npy", "unknown node type None"),
    ],
)
def test_labels_that_do_not_fit(tmp_path: Path, content: Any, files: Any, message: str) -> None:
    """Files are arrays; objects, which would have to be unpickled, are refused."""
    directory = write_partitions(typed_graph(40, 20, 200, 3), tmp_path, "range", 1, "out")
    if isinstance(content, numpy.ndarray):
        numpy.save(tmp_path / "labels.npy", content)
    else:
        torch.save(content, tmp_path / "labels.pt")
    paths = {key: tmp_path / name for key, name in files.items()} if isinstance(files, dict) else tmp_path / files
    with pytest.raises(InvalidArgumentError, match=f"whole_node_label_file: {message}"):
        loaded(directory, 0, whole_node_label_file=paths)


def test_where_rows_are_put(tmp_path: Path) -> None:
    directory = write_partitions(random_graph(20, 60, 2), tmp_path, "range", 1, "out")
    dataset = loaded(
        directory, 0, graph_mode="CPU", input_layout="CSR", feature_with_gpu=False, device_group_list=[], verify=True
    )
    assert dataset.node_features.with_gpu is False
    missing = [DeviceGroup(0, [torch.device("cuda", torch.cuda.device_count())])]
    for options in ({"device_group_list": missing}, {"device": torch.cuda.device_count()}):
        (name,) = options
        with pytest.raises(InvalidArgumentError, match=f"{name}: .*GPU"):
            loaded(directory, 0, **options)
    with pytest.raises(InvalidArgumentError, match="mode: expected"):
        loaded(directory, 0, graph_mode="DISK")


def test_splits_of_ids() -> None:
    ids = torch.arange(100, 150)
    train, val, test = random_split(ids, 0.2, 5, seed=3)
    assert (len(train), len(val), len(test)) == (35, 10, 5)
    assert torch.equal(torch.cat([train, val, test]).sort().values, ids)
    assert all(torch.equal(part, part.sort().values) for part in (train, val, test))
    assert torch.equal(random_split(ids, 0.2, 5, seed=3)[1], val)
    with pytest.raises(InvalidArgumentError, match="expected parts of 50 ids"):
        random_split(ids, 40, 11)
