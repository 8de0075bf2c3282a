"""Inputs that servers look up: all edges of a type, a list with one for each server; the bits of the local loaders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    RemoteDistSamplingWorkerOptions,
    request_server,
)
from graphlearn_dist.distributed.dist_server import DistServer
from graphlearn_dist.distributed.partitions.partition_input import own_input
from graphlearn_dist.distributed.producers import remote_producer
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.partition import RandomPartitioner, ZonePartitionBook
from graphlearn_dist.sampler import EdgeSamplerInput, NodeSamplerInput
from graphlearn_dist.sampler.base import RemoteAllNodesSamplerInput, RemoteNodeSplitSamplerInput
from graphlearn_dist.sampler.inputs import RemoteAllEdgesSamplerInput
from graphlearn_dist.typing import Split
from tests.support.graphs import make_dataset, random_graph, with_times
from tests.support.jobs import Job, running_servers
from tests.support.oracle import GRAPHS, assert_same, pyg_tensors, write_partitions

GRAPH = with_times(GRAPHS["typed"](), 4)
EDGE_TYPE = ("user", "buys", "item")
NUM_EDGES = GRAPH.edges[EDGE_TYPE].shape[1]
SHARED: dict[str, Any] = {"batch_size": 100, "shuffle": True, "with_edge": True}
OPTIONS = RemoteDistSamplingWorkerOptions([0, 1], buffer_size="16MB")
FAR: dict[str, Any] = {
    "edge_dir": "in", "collect_features": True, "random_seed": 5, "worker_options": OPTIONS, **SHARED
}  # fmt: skip
LOCAL: dict[str, Any] = {"seed": 5, "prefetch": 0, **SHARED}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_partitions(GRAPH, tmp_path_factory.mktemp("graph"), "random", 2, "in")


@pytest.fixture(scope="module")
def job(directory: Path) -> Iterator[Job]:
    with running_servers(directory, directory) as job, job.client():
        yield job


def assert_same_batches(far: Any, local: Any) -> None:
    with far:
        assert len(far) == len(local) > 1
        for _ in range(2):
            for batch, expected in zip(far, local, strict=True):
                assert_same(pyg_tensors(batch), pyg_tensors(expected))


@pytest.mark.parametrize(
    "links",
    [
        {"neg_sampling": "binary", "edge_label": torch.arange(NUM_EDGES) % 3, "temporal_strategy": None},
        {"edge_label_time": torch.arange(NUM_EDGES) % 9, "temporal_strategy": "last"},
    ],
)
def test_all_edges_of_a_type(job: Job, links: dict[str, Any]) -> None:
    far = DistLinkNeighborLoader(None, [3, 2], edge_label_index=EDGE_TYPE, **links, **FAR)
    local = LinkNeighborLoader(make_dataset(GRAPH, "in"), [3, 2], edge_label_index=EDGE_TYPE, **links, **LOCAL)
    assert_same_batches(far, local)


class _BackToFront(RandomPartitioner):
    """Gives the last node the first row."""

    def _partition_node(self, ntype: Any = None) -> tuple[None, ZonePartitionBook]:
        count = self.nodes[ntype].count
        order = ZoneOrder(torch.arange(count).flip(0), torch.tensor([0, count]))
        return None, ZonePartitionBook(order, torch.tensor([0]), 1)


def test_all_edges_of_one_partition_with_rows_of_its_own_order(tmp_path: Path) -> None:
    """Rows that lie elsewhere than their ids say, and no other partition."""
    graph = random_graph(60, 400, 3, explicit_edge_ids=True)
    rows = _BackToFront(
        tmp_path / "g", 1, 60, graph.unwrap(graph.edges), edge_ids=graph.unwrap(graph.edge_ids)
    ).partition()  # fmt: skip
    dataset = DistDataset()
    dataset.load(rows, 0)
    assert not dataset.is_whole
    far = DistLinkNeighborLoader(dataset, [3], random_seed=5, collect_features=True, **SHARED)
    whole = make_dataset(graph)
    whole.node_features = whole.node_labels = whole.edge_features = None
    assert_same_batches(far, LinkNeighborLoader(whole, [3], **LOCAL))


def test_all_edges_that_do_not_fit(job: Job) -> None:
    with pytest.raises(InvalidArgumentError, match=r"edge_label_index: unknown edge type \('a', 'b', 'c'\)"):
        DistLinkNeighborLoader(None, [3], edge_label_index=("a", "b", "c"), **FAR)
    with pytest.raises(InvalidArgumentError, match="edge_label_index: unknown edge type None"):
        DistLinkNeighborLoader(None, [3], **FAR)
    with pytest.raises(InvalidArgumentError, match=f"edge_label: expected .* for each of {NUM_EDGES} links"):
        DistLinkNeighborLoader(None, [3], edge_label_index=EDGE_TYPE, edge_label=torch.arange(3), **FAR)
    both = [RemoteAllEdgesSamplerInput(EDGE_TYPE)] * 2
    with pytest.raises(InvalidArgumentError, match="all edges of a type are one input"):
        DistLinkNeighborLoader(None, [3], edge_label_index=both, **FAR)


def test_one_input_for_each_server(job: Job, directory: Path, tmp_path: Path) -> None:
    """Tensors and files in one list; all nodes; links; and induced subgraphs: each as the one list of all of them."""
    dataset, file = make_dataset(GRAPH, "in"), tmp_path / "ids.npy"
    ids, others = torch.arange(150, 30, -1), torch.arange(60).repeat(2)
    numpy.save(file, others.numpy().astype("uint16"))
    far = DistNeighborLoader(None, [3, 2], ("user", [ids, str(file)]), temporal_strategy=None, **FAR)
    local = {"temporal_strategy": None, **LOCAL}
    assert_same_batches(far, NeighborLoader(dataset, [3, 2], ("user", torch.cat([ids, others])), **local))
    owned = []
    for rank in range(2):
        part = DistDataset()
        part.load(directory, rank)
        owned.append(part.node_pb["user"].local_ids().sort().values)
    far = DistSubGraphLoader(None, ("user", [None, None]), [2], **FAR)
    assert_same_batches(far, SubGraphLoader(dataset, ("user", torch.cat(owned)), [2], **LOCAL))
    row, col = GRAPH.edges[EDGE_TYPE]
    links = [EdgeSamplerInput(row[part], col[part], input_type=EDGE_TYPE) for part in (slice(0, 90), slice(200, 290))]
    pairs = torch.cat([torch.stack([one.row, one.col]) for one in links], dim=1)
    far = DistLinkNeighborLoader(None, [3], edge_label_index=links, temporal_strategy=None, **FAR)
    assert_same_batches(far, LinkNeighborLoader(dataset, [3], edge_label_index=(EDGE_TYPE, pairs), **local))


@pytest.mark.parametrize("rank", [0, 1])
def test_of_one_input_for_each_server_a_client_takes_its_own(
    job: Job, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the options name no servers: as there are two clients, each of which has one of the two servers."""
    monkeypatch.setattr(remote_producer, "assign_server_by_order", lambda: [rank])
    parts = [torch.arange(120), torch.arange(150, 30, -1)]
    given = {**FAR, "worker_options": RemoteDistSamplingWorkerOptions(buffer_size="16MB"), "temporal_strategy": None}
    for inputs in (parts, [parts[rank]]):
        local = NeighborLoader(make_dataset(GRAPH, "in"), [3], ("user", parts[rank]), temporal_strategy=None, **LOCAL)
        assert_same_batches(DistNeighborLoader(None, [3], ("user", inputs), **given), local)
    with pytest.raises(InvalidArgumentError, match=rf"expected one input for each of the servers \[{rank}\], got 3"):
        DistNeighborLoader(None, [3], ("user", [*parts, parts[0]]), **given)


def test_lists_that_do_not_fit(job: Job) -> None:
    ids = torch.arange(5)
    cases: list[tuple[Any, str]] = [
        (("user", [ids]), r"expected one input for each of the servers \[0, 1\], got 1 inputs"),
        (("user", [ids] * 3), "got 3 inputs"),
        ([], "got 0 inputs"),
        (
            [("user", ids), ("item", ids)],
            "expected inputs of one kind, got .*'user'.* at position 0 and .*'item'.* at 1",
        ),
        ([NodeSamplerInput(ids, "user", ids), ("user", ids)], "expected inputs of one kind, got .*'time'"),
        (("user", [ids, "nowhere.npy"]), r"node_path: expected a \.npy file"),
        (("user", [1, 2]), "expected a torch.Tensor of ids, got list of numbers"),
    ]
    for input_nodes, message in cases:
        with pytest.raises(InvalidArgumentError, match=message):
            DistNeighborLoader(None, [3], input_nodes, **FAR)
    with pytest.raises(InvalidArgumentError, match="input_time: expected None beside a list"):
        DistNeighborLoader(None, [3], ("user", [ids, ids]), input_time=ids, **FAR)
    whole = DistDataset.from_dataset(make_dataset(GRAPH, "in"))
    with pytest.raises(InvalidArgumentError, match="expected one input; a list has one for each server"):
        DistNeighborLoader(whole, [3], ("user", [ids, ids]), edge_dir="in")
    with pytest.raises(InvalidArgumentError, match="sampler_input: expected one that names seeds"):
        request_server(0, DistServer.find_input, NodeSamplerInput(ids, "user"))


def test_what_an_input_names_in_one_partition(directory: Path) -> None:
    """Of a split and of all nodes, those that the partition owns: together every node once."""
    train, found = torch.tensor([7, 3, 199, 50, 51, 52]), []
    for rank in range(2):
        part = DistDataset()
        part.load(directory, rank)
        part.init_node_split(({"user": train}, None, None))
        mine = part.node_pb["user"][train] == rank
        own = own_input(RemoteNodeSplitSamplerInput(Split.train, "user"), part)
        assert torch.equal(own.node, train[mine])
        found.append(own_input(RemoteAllNodesSamplerInput("item"), part).node)
    assert torch.equal(torch.cat(found).sort().values, torch.arange(GRAPH.num_nodes["item"]))
