"""A partition put together in memory gives the batches of a partition directory: those of the loader in one process."""

from __future__ import annotations

import copy
import functools
import os
import pickle
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Feature, Graph, Topology
from graphlearn_dist.data.schema import bare
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    barrier,
    init_client,
    init_server,
    init_worker_group,
    shutdown_client,
    shutdown_rpc,
    wait_and_shutdown_server,
)
from graphlearn_dist.distributed.dist_dataset import rebuild_dist_dataset, reduce_dist_dataset
from graphlearn_dist.distributed.partitions.host_partitions import has_books
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.distributed.workers.fork_server import hold_fork_server
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from graphlearn_dist.utils import id2idx
from graphlearn_dist.utils.system.ports import reserved_port
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import Direction, TestGraph, make_dataset
from tests.support.in_memory import WAYS, assemble
from tests.support.oracle import (
    GRAPHS,
    SAMPLINGS,
    assert_same,
    compare_epochs,
    graph_of,
    open_loader,
    oracle_epochs,
    tensors_of,
)
from tests.support.processes import assert_nothing_left, start
from tests.support.waiting import collect

HERE = "tests.distributed.test_partitions_in_memory"
DEADLINE_S = 300.0  # only ever reached by a hang
PARTS = 3
FEW = 4  # batches, which reach most nodes of these graphs


def config_of(edge_dir: Direction) -> SamplingConfig:
    return SamplingConfig(SamplingType.NODE, [4, 3], 37, True, False, True, True, False, False, edge_dir, 5)


def seeds_of(graph: TestGraph) -> NodeSamplerInput:
    seed_type = None if graph.is_homogeneous else "user"
    return NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)


def expected_batches(graph: TestGraph, edge_dir: Direction) -> list[dict[str, Any]]:
    """All batches of an epoch, of the graph as a whole."""
    local = LocalBatches(make_dataset(graph, edge_dir), seeds_of(graph), config_of(edge_dir))
    return [tensors_of(local.make(0, i)) for i in range(local.schedule.num_batches)]


@functools.cache
def expected_of(name: str, edge_dir: Direction) -> list[dict[str, Any]]:
    return expected_batches(graph_of(name), edge_dir)


def check_batches(
    name: str, edge_dir: Direction, datasets: list[DistDataset], *, few: bool = False
) -> list[DirectPeers]:
    """All batches of each partition, or a few, the others asked without a network; gives what was asked."""
    expected = expected_of(name, edge_dir)
    return check_batches_of(graph_of(name), edge_dir, datasets, expected[:FEW] if few else expected)


def check_batches_of(
    graph: TestGraph, edge_dir: Direction, datasets: list[Any], expected: list[dict[str, Any]] | None = None
) -> list[DirectPeers]:
    """That of any graph; all batches, where the first are not given."""
    expected = expected_batches(graph, edge_dir) if expected is None else expected
    services = [PartitionService(dataset, 2) for dataset in datasets]
    asked = []
    for dataset, service in zip(datasets, services, strict=True):
        asked.append(DirectPeers(services))
        batches = PartitionedBatches(dataset, seeds_of(graph), config_of(edge_dir), [service], asked[-1], 2)
        for actual, wanted in zip(make_all(batches, 0, len(expected)), expected, strict=True):
            assert_same(tensors_of(actual), wanted)
    return asked


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("edge_dir", ["out", "in"])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_batches_are_those_of_the_whole(name: str, edge_dir: Direction, way: str) -> None:
    """So are those of what another process would map, of what multiprocessing sends, and of copies."""
    given = [assemble(graph_of(name), PARTS, p, edge_dir, way) for p in range(PARTS)]
    asked = check_batches(name, edge_dir, given)
    kinds = {query.kind for peers in asked for query in peers.asked}
    assert kinds == ({"rows"} if way == "graph at hand" else {"hop", "rows"})
    if edge_dir == "in":
        check_batches(name, edge_dir, [pickle.loads(pickle.dumps(dataset)) for dataset in given], few=True)
        check_batches(name, edge_dir, [copy.deepcopy(dataset) for dataset in given], few=True)
    mapped = [DistDataset.from_ipc_handle(dataset.share_ipc()) for dataset in given]
    check_batches(name, edge_dir, mapped)
    check_batches(name, edge_dir, given, few=True)  # whose memory has moved
    rebuild, arguments = reduce_dist_dataset(mapped[0])
    assert rebuild is rebuild_dist_dataset
    check_batches(name, edge_dir, [rebuild(*arguments), *given[1:]], few=True)


def test_copies_are_not_asked_for() -> None:
    """Of rows that others own, those of which a partition keeps copies."""
    graph = graph_of("homogeneous")
    for way, fewer in (("tensors", False), ("copies", True)):
        asked = check_batches("homogeneous", "out", [assemble(graph, PARTS, p, "out", way) for p in range(PARTS)])
        ids = torch.cat([query.ids_by_store()["node_feature:0"] for query in asked[0].asked_as("rows")])
        owners = torch.as_tensor(assemble(graph, PARTS, 0, "out", way).node_pb)
        others = (owners != 0).nonzero().view(-1)
        assert bool(torch.isin(ids, others[0::3]).any()) is not fewer
        assert bool(torch.isin(ids, others).all())


def test_rows_in_order_are_not_copied() -> None:
    dataset = assemble(graph_of("homogeneous"), PARTS, 1, "out", "ranges")
    [held] = [feature for name, feature in dataset.stores().items() if name == "node_feature:0"]
    assert held.feature_tensor.data_ptr() == dataset.node_features.feature_tensor.data_ptr()
    assert dataset.graphs()[None].topo.indices.data_ptr() == dataset.graph.topo.indices.data_ptr()


def test_all_features_in_one_partition() -> None:
    """Which looks to that partition as if it kept copies of the others' rows, and to the others it does not."""
    graph = graph_of("homogeneous")
    rows, owners = graph.node_features()[None], torch.arange(graph.num_nodes[None]) % 2

    def of(p: int) -> DistDataset:
        whole = assemble(graph, 2, p, "out", "tensors")
        return DistDataset(
            2,
            p,
            whole.graph,
            Feature(rows if p == 0 else rows[:0], torch.full((len(rows),), -1) if p else None, dtype=None),
            whole.edge_features,
            whole.node_labels,
            whole.node_pb,
            whole.edge_pb,
            torch.zeros_like(owners),
        )

    datasets = [of(0), of(1)]
    check_batches("homogeneous", "out", datasets)
    assert not has_books(datasets[0], datasets[1])  # it is not read in place by who sees it otherwise
    assert has_books(datasets[1], datasets[1])


def test_built_step_by_step() -> None:
    """``init_graph`` and its like on a data set that has books alone."""
    graph = graph_of("homogeneous")
    datasets = []
    for p in range(PARTS):
        given = assemble(graph, PARTS, p, "in", "tensors")
        dataset = DistDataset(PARTS, p, node_pb=given.node_pb, edge_pb=given.edge_pb, edge_dir="in")
        source, target, ids, weights = given.graph.topo.to_coo()
        times = given.graph.topo.edge_times
        dataset.init_graph((source, target), ids, weights, graph_mode="CPU", edge_times=times)
        dataset.init_node_features(given.node_features.feature_tensor, given.node_features.id2index)
        dataset.init_edge_features(given.edge_features.feature_tensor, given.edge_features.id2index)
        dataset.init_node_labels(graph.node_labels()[None])
        datasets.append(dataset)
    check_batches("homogeneous", "in", datasets)
    labels = torch.arange(graph.num_nodes[None]) + 1000
    for dataset in datasets:
        dataset.init_node_labels(labels)
        assert torch.equal(dataset.labels_of(torch.tensor([7, 3])), torch.tensor([1007, 1003]))
        assert torch.equal(dataset.node_labels[torch.tensor([7, 3])], torch.tensor([1007, 1003]))


def test_labels_in_an_order_of_their_own_are_shared() -> None:
    """Labels of this partition by id, not in the order of its book: the handle names memory that stays."""
    dataset = DistDataset(2, 1, node_pb=torch.arange(6) % 2)
    dataset.init_graph(torch.tensor([[1, 3, 5], [2, 4, 0]]), graph_mode="CPU")
    dataset.init_node_labels(torch.tensor([50, 30, 10]), id2idx=id2idx([5, 3, 1]))
    first = dataset.share_ipc()
    again, other = DistDataset.from_ipc_handle(first), DistDataset.from_ipc_handle(dataset.share_ipc())
    for one in (dataset, again, other, DistDataset.from_ipc_handle(first)):
        assert one.labels_of(torch.tensor([5, 1, 3])).tolist() == [50, 10, 30]


def test_one_partition_in_a_loader() -> None:
    graph = graph_of("typed")
    for way in ("tensors", "ranges"):
        dataset = assemble(graph, 1, 0, "out", way)
        assert dataset.is_whole
        with open_loader("typed", "out", ("node", "uniform"), dataset, None) as loader:
            assert compare_epochs(loader, oracle_epochs("typed", "out", ("node", "uniform"))) > 0


def test_rows_are_cast_as_the_features_say_in_every_process() -> None:
    dataset = DistDataset(1, 0, node_pb=torch.zeros(6, dtype=torch.int64), edge_dir="out")
    dataset.init_graph(torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), graph_mode="CPU")
    rows = torch.arange(12, dtype=torch.int8).view(6, 2)
    dataset.node_features = Feature(rows, dtype=None, out_dtype=torch.float32)
    dataset.edge_features = Feature(rows, dtype=None, out_dtype=torch.float16)
    received = DistDataset.from_ipc_handle(dataset.share_ipc())
    assert (received.node_features.dtype, received.edge_features.dtype) == (torch.float32, torch.float16)
    with hold_fork_server():
        for options in (CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions()):
            settings = {"batch_size": 3, "collect_features": True, "with_edge": True, "worker_options": options}
            with DistNeighborLoader(dataset, [2], torch.arange(6), edge_dir="out", **settings) as loader:
                for batch in loader:
                    assert batch.x.dtype == torch.float32
                    assert batch.edge_attr.dtype == torch.float16
                    assert torch.equal(batch.x, rows[batch.n_id].float())
                    assert torch.equal(batch.edge_attr, rows[batch.edge].half())


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("way", WAYS)
def test_a_handle_is_good_while_the_data_set_lives(name: str, way: str) -> None:
    """Describing it once more moves nothing: the memory of an earlier handle stays where it was, but for new labels."""
    graph = graph_of(name)
    dataset = assemble(graph, 2, 0, "in", way)
    first = dataset.share_ipc()
    again = [dataset.share_ipc(with_splits=False) for _ in range(3)]
    assert all(replace(handle, splits=first.splits, constants=first.constants) == first for handle in again)
    labels = {key: torch.arange(count) for key, count in graph.num_nodes.items()}
    dataset.init_node_labels(bare(labels))
    collect()
    later = dataset.share_ipc()
    assert later.caches == first.caches
    assert later.edges == first.edges
    mapped = DistDataset.from_ipc_handle(later)
    for store, rows in dataset.row_caches().items():
        assert torch.equal(mapped.row_caches()[store].feats, rows.feats)


# --- processes -----------------------------------------------------------------------------------------------------


@hold_fork_server()
def work(rank: int, port: int) -> int:
    """One worker of two: every way in both modes, partitions asked for and read in place."""
    meeting = {"master_addr": "127.0.0.1", "master_port": port, "rpc_timeout": DEADLINE_S}
    init_worker_group(2, rank)
    compared = 0
    os.environ["GLD_SHARE_PARTITIONS"] = "0"
    for in_place in (False, True):
        if in_place:  # nobody is told how to read a partition before all have asked each other
            barrier(DEADLINE_S)
            os.environ["GLD_SHARE_PARTITIONS"] = "1"
            barrier(DEADLINE_S)
        for name in sorted(GRAPHS):
            for number, way in enumerate(WAYS):
                dataset = assemble(graph_of(name), 2, rank, "in", way)
                sampling, place = list(SAMPLINGS)[number], {"part": (rank, 2)}
                for options in (
                    CollocatedDistSamplingWorkerOptions(**meeting),
                    MpDistSamplingWorkerOptions(**meeting, channel_size="32MB"),
                ):
                    with open_loader(name, "in", sampling, dataset, options, **place) as loader:
                        compared += compare_epochs(loader, oracle_epochs(name, "in", sampling, **place))
    shutdown_rpc()
    return compared


def test_workers() -> None:
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        workers = [stack.enter_context(start(f"{HERE}.work", rank=rank, port=port)) for rank in range(2)]
        found = [worker.wait(DEADLINE_S) for worker in workers]
        assert_nothing_left(*(worker.pid for worker in workers))
    assert min(found) > 0


def serve(rank: int, port: int, name: str, way: str) -> None:
    init_server(2, 1, rank, assemble(graph_of(name), 2, rank, "out", way), "127.0.0.1", port)
    wait_and_shutdown_server()


@pytest.mark.parametrize(("name", "way"), [("homogeneous", "copies"), ("typed", "tensors"), ("typed", "elsewhere")])
def test_servers(name: str, way: str) -> None:
    sampling = ("node", "uniform")
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        arguments = {"port": port, "name": name, "way": way}
        servers = [stack.enter_context(start(f"{HERE}.serve", rank=rank, **arguments)) for rank in range(2)]
        init_client(2, 1, 0, "127.0.0.1", port)
        try:
            for ranks in ([0, 1], 1):
                options = RemoteDistSamplingWorkerOptions(ranks, num_workers=1, buffer_size="16MB")
                with open_loader(name, "out", sampling, None, options) as loader:
                    assert compare_epochs(loader, oracle_epochs(name, "out", sampling)) > 0
        finally:
            shutdown_client()
        for server in servers:
            server.wait(DEADLINE_S)


# --- what does not fit ---------------------------------------------------------------------------------------------


def a_graph() -> Graph:
    return Graph(Topology(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])), "CPU")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"graph_partition": a_graph()}, InvalidArgumentError, "node_pb: expected the book of graph"),
        (
            {"graph_partition": {("a", "to", "b"): a_graph()}, "node_pb": {"a": torch.zeros(4)}},
            InvalidArgumentError,
            r"node_pb\['a'\]: expected an integer vector",
        ),
        (
            {"graph_partition": {("a", "to", "b"): a_graph()}, "node_pb": {"a": torch.tensor([0, 1, 0, 1])}},
            InvalidArgumentError,
            r"node_pb\['b'\]: expected the book",
        ),
        (
            {"graph_partition": a_graph(), "node_pb": torch.tensor([0, 1, 2, 1])},
            InvalidArgumentError,
            r"node_pb\[2\]=2: expected 0 <= owner < 2",
        ),
        (
            {"graph_partition": a_graph(), "node_pb": torch.tensor([0, 1, 1])},
            InvalidArgumentError,
            "node_pb: expected the owner of each of 4 nodes that the graph has, got 3",
        ),
        (
            {"node_feature_partition": Feature(torch.zeros(2, 1)), "node_pb": torch.tensor([0, 1, 1, 0])},
            InvalidArgumentError,
            "node_features: expected a row for each id of the partition, got 2 rows, and none for id 3",
        ),
        (
            {
                "node_feature_partition": Feature(torch.zeros(2, 1), torch.tensor([0, 1, -1, -1])),
                "node_pb": torch.tensor([0, 1, 1, 0]),
            },
            UnknownIdError,
            "id 3 has no feature row",
        ),
        (
            {"whole_node_labels": torch.arange(3), "node_pb": torch.tensor([0, 1, 1, 0])},
            InvalidArgumentError,
            r"node_labels: expected labels of all nodes \[4, ...\], got \[3\]",
        ),
        ({"partition_idx": 2}, InvalidArgumentError, "partition_idx: expected 0 to 1, got 2"),
        ({"node_pb": "book"}, InvalidArgumentError, "node_pb: expected a partition book"),
    ],
)
def test_what_does_not_fit(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DistDataset(**{"num_partitions": 2, "partition_idx": 0, **arguments})


def test_a_loader_of_nothing() -> None:
    with pytest.raises(InvalidArgumentError, match="a data set with a graph"):
        DistNeighborLoader(DistDataset(2, 0, node_pb=torch.tensor([0, 1])), [2], torch.arange(2))
