"""The order of the nodes in a partition directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError
from graphlearn_dist.partition import load_partition_layout, save_node_order, verify
from tests.support.graphs import typed_graph
from tests.support.jobs import NUM_NODES, load, make_partitions
from tests.support.oracle import write_partitions

ORDER = ZoneOrder(torch.arange(NUM_NODES).flip(0).int(), torch.arange(0, NUM_NODES + 1, 15), 4)


def test_it_is_read_with_each_partition(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "graph", 3)
    assert load(directory).node_orders == {}
    save_node_order(directory, ORDER)
    for partition in range(3):
        dataset = load(directory, partition)
        found = dataset.node_orders[None]
        assert torch.equal(found.place, ORDER.place)
        assert torch.equal(found.bounds, ORDER.bounds)
        assert found.num_groups == 4
    verify(directory)
    with pytest.raises(InvalidArgumentError, match="root_dir: expected nodes without an order"):
        save_node_order(directory, ORDER)


def test_types_have_orders_of_their_own(tmp_path: Path) -> None:
    graph = typed_graph(40, 16, 100, 1)
    directory = write_partitions(graph, tmp_path, "random", 2, "in")
    users = ZoneOrder(torch.randperm(40, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 40]))
    save_node_order(directory, {"user": users})
    dataset = DistDataset()
    dataset.load(directory, 1)
    assert list(dataset.node_orders) == ["user"]
    assert torch.equal(dataset.node_orders["user"].place, users.place)
    with pytest.raises(InvalidArgumentError, match="order: unknown node type 'shop'"):
        save_node_order(directory, {"shop": users})
    with pytest.raises(InvalidArgumentError, match=r"order\['item'\]: expected places of 16 nodes, got 40"):
        save_node_order(directory, {"item": users})


def test_damaged_orders(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "graph", 1)
    save_node_order(directory, ORDER)
    path = directory / "order" / "place.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + b"\1\0\0\0")
    with pytest.raises(PartitionFormatError, match=r"place\.npy: altered"):
        load_partition_layout(directory)
    path.write_bytes(whole[:-4])
    with pytest.raises(PartitionFormatError, match=r"place\.npy: expected"):
        load_partition_layout(directory, verify=False)
    path.write_bytes(whole)
    meta = directory / "META.json"
    text = meta.read_text()
    for wrong in ('"num_groups": 0', '"num_groups": 3', '"groups": 4'):
        meta.write_text(text.replace('"num_groups": 4', wrong))
        with pytest.raises(PartitionFormatError, match="num_groups"):
            load_partition_layout(directory)
