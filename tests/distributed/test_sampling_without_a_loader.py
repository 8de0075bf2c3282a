"""The parts of distributed sampling that a program may use without a loader."""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing as mp
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.channel import ShmChannel
from graphlearn_dist.data import Feature
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    ConcurrentEventLoop,
    DistCollocatedSamplingProducer,
    DistDataset,
    DistFeature,
    DistGraph,
    DistMpSamplingProducer,
    DistNeighborSampler,
    MpDistSamplingWorkerOptions,
    init_rpc,
    init_worker_group,
    rpc_register,
    rpc_request,
    rpc_request_async,
    rpc_sync_data_partitions,
    shutdown_rpc,
    wrap_torch_future,
)
from graphlearn_dist.distributed.dist_neighbor_sampler import (
    PartialNeighborOutput,
    RpcSamplingCallee,
    RpcSubGraphCallee,
    stitch_outputs,
)
from graphlearn_dist.distributed.rpc import RpcDataPartitionRouter
from graphlearn_dist.errors import InvalidArgumentError, NotInitializedError, SamplingWorkerError, UnknownIdError
from graphlearn_dist.messages import SampledBatch, WorkerFailure
from graphlearn_dist.partition import GLTPartitionBook, RangePartitionBook
from graphlearn_dist.partition.edge_book import OwnedEdgesBook
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.graphs import analytic_graph, make_dataset
from tests.support.jobs import NUM_NODES, load, make_partitions
from tests.support.oracle import GRAPHS, assert_same, load_partitions, tensors_of, write_partitions
from tests.support.processes import run_processes

pytestmark = pytest.mark.usefixtures("one_fork_server")

HERE = "tests.distributed.test_sampling_without_a_loader"
DEADLINE_S = 60.0  # only ever reached by a hang
IDS = torch.arange(NUM_NODES)
CONFIG = SamplingConfig(SamplingType.NODE, [3, 2], 16, True, False, True, True, False, False, "in", 7)
MP = MpDistSamplingWorkerOptions(channel_size="16MB")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("one"), 1)


def expected_batches(directory: Path, epoch: int) -> list[dict[str, Any]]:
    batches = LocalBatches(load(directory), NodeSamplerInput(IDS), CONFIG)
    return [tensors_of(batches.make(epoch, index)) for index in range(batches.schedule.num_batches)]


# --- the loop --------------------------------------------------------------------------------------------------


async def answer(value: Any) -> Any:
    return value


async def fail() -> None:
    raise ValueError("no")


def test_tasks_of_a_loop() -> None:
    loop = ConcurrentEventLoop(2)
    with pytest.raises(NotInitializedError, match="start it first"):
        loop.run_task(answer(1))
    loop.start_loop()
    try:
        assert loop.run_task(answer(1)) == 1
        with pytest.raises(ValueError, match="no"):
            loop.run_task(fail())
        with pytest.raises(TimeoutError):
            loop.run_task(asyncio.Event().wait(), timeout=0.01)
        got: list[int] = []
        for value in range(20):
            loop.add_task(answer(value), got.append)
        loop.wait_all(DEADLINE_S)
        assert sorted(got) == list(range(20))
        loop.add_task(fail())
        with pytest.raises(ValueError, match="no"):
            loop.wait_all(DEADLINE_S)
        loop.wait_all(DEADLINE_S)  # an error comes out once
    finally:
        loop.shutdown_loop()
        loop.shutdown_loop()


def test_no_more_tasks_at_once_than_allowed() -> None:
    loop = ConcurrentEventLoop(2)
    loop.start_loop()
    gates = [threading.Event() for _ in range(3)]
    started: list[int] = []

    async def wait_for(index: int) -> None:
        started.append(index)
        await asyncio.get_running_loop().run_in_executor(None, gates[index].wait, DEADLINE_S)

    adding = threading.Thread(target=lambda: [loop.add_task(wait_for(index)) for index in range(3)])
    try:
        adding.start()
        adding.join(0.2)
        assert adding.is_alive()
        assert 2 not in started
        gates[1].set()
        adding.join(DEADLINE_S)
        assert not adding.is_alive()
        with pytest.raises(TimeoutError, match="still in flight"):
            loop.wait_all(0.01)
    finally:
        for gate in gates:
            gate.set()
        loop.wait_all(DEADLINE_S)
        loop.shutdown_loop()
    assert sorted(started) == [0, 1, 2]


def test_torch_futures_can_be_awaited() -> None:
    good: torch.futures.Future[int] = torch.futures.Future()
    bad: torch.futures.Future[Any] = torch.futures.Future()

    async def run() -> int:
        waiting = wrap_torch_future(good)
        threading.Timer(0.01, good.set_result, (5,)).start()
        bad.set_exception(UnknownIdError("lost"))
        with pytest.raises(UnknownIdError, match="lost"):
            await wrap_torch_future(bad)
        return await waiting

    assert asyncio.run(run()) == 5


# --- producers -------------------------------------------------------------------------------------------------


def test_a_producer_with_subprocesses(whole: Path) -> None:
    with ShmChannel(4, "8MB") as channel:
        producer = DistMpSamplingProducer(load(whole), NodeSamplerInput(IDS), CONFIG, MP, channel)
        with pytest.raises(NotInitializedError, match="init"):
            producer.produce_all()
        producer.init()
        try:
            assert not producer.is_all_sampling_completed()
            for epoch in range(2):
                producer.produce_all()
                expected = expected_batches(whole, epoch)
                for wanted in expected[:-1]:
                    assert not producer.is_all_sampling_completed_and_consumed()
                    assert_same(tensors_of(channel.recv(timeout_ms=1000 * DEADLINE_S)), wanted)
                assert_same(tensors_of(channel.recv(timeout_ms=1000 * DEADLINE_S)), expected[-1])
                while not producer.is_all_sampling_completed():
                    threading.Event().wait(0.001)
                assert producer.is_all_sampling_completed_and_consumed()
        finally:
            producer.shutdown()
            producer.shutdown()


def test_a_producer_that_is_stopped_and_one_that_fails(whole: Path) -> None:
    """A full channel holds nobody up; what goes wrong stands in the channel."""
    dataset = load(whole)
    with ShmChannel(1, "8MB") as channel:
        options = dataclasses.replace(MP, max_restarts=0)
        many = NodeSamplerInput(IDS.repeat(50))  # more than the channel and all slots hold: some are to be made yet
        producer = DistMpSamplingProducer(dataset, many, CONFIG, options, channel)
        producer.init()
        producer.produce_all()
        producer.produce_all()
        running = producer._producer
        assert running is not None
        assert isinstance(channel.recv(timeout_ms=1000 * DEADLINE_S), SampledBatch)
        for handle in running._producer._workers:
            os.kill(handle.pid, signal.SIGKILL)
        items = []
        while not isinstance(items[-1] if items else None, WorkerFailure):
            items.append(channel.recv(timeout_ms=1000 * DEADLINE_S))
        assert "killed by SIGKILL" in items[-1].message
        with pytest.raises(SamplingWorkerError, match="SIGKILL"):
            running.recv()
        producer.shutdown()


def test_a_collocated_producer(whole: Path) -> None:
    producer = DistCollocatedSamplingProducer(load(whole), NodeSamplerInput(IDS), CONFIG)
    with pytest.raises(NotInitializedError, match="init"):
        producer.sample()
    producer.init()
    try:
        for wanted in expected_batches(whole, 0)[:3]:
            assert_same(tensors_of(producer.sample()), wanted)
        producer.reset()
        for wanted in expected_batches(whole, 1):
            assert_same(tensors_of(producer.sample()), wanted)
        with pytest.raises(StopIteration):
            producer.sample()
    finally:
        producer.shutdown()


# --- the sampler -----------------------------------------------------------------------------------------------


def sampler_of(dataset: Any, **changes: Any) -> DistNeighborSampler:
    arguments = {"with_edge": True, "edge_dir": "in", "collect_features": True, "seed": 7}
    return DistNeighborSampler(dataset, [3, 2], **{**arguments, **changes})


def test_a_sampler_in_one_process(whole: Path) -> None:
    """Call n is batch n of the loader with the same seeds; with a channel as without."""
    dataset = load(whole)
    batches = LocalBatches(dataset, NodeSamplerInput(IDS), CONFIG)
    inputs = [NodeSamplerInput(IDS[batches.schedule.positions(0, index)]) for index in range(5)]
    expected = [tensors_of(batches.make(0, index)) for index in range(5)]
    sampler = sampler_of(dataset)
    with pytest.raises(NotInitializedError, match="start_loop"):
        sampler.sample_from_nodes(inputs[0])
    sampler.start_loop()
    try:
        for seeds, wanted in zip(inputs, expected, strict=True):
            assert_same_batch(sampler.sample_from_nodes(seeds), wanted)
        assert_same_batch(sampler.sample_from_nodes(inputs[2], index=2), expected[2])
        with pytest.raises(UnknownIdError, match="120"):
            sampler.sample_from_nodes(NodeSamplerInput(torch.tensor([120])))
    finally:
        sampler.shutdown_loop()
    with ShmChannel(8, "8MB") as channel:
        sampler = sampler_of(dataset, channel=channel, concurrency=3)
        sampler.start_loop()
        try:
            for seeds in inputs:
                assert sampler.sample_from_nodes(seeds) is None
            sampler.wait_all(DEADLINE_S)
            came = {item.index: item for item in (channel.recv(timeout_ms=1000 * DEADLINE_S) for _ in inputs)}
            for index, wanted in enumerate(expected):
                assert_same_batch(came[index], wanted)
        finally:
            sampler.shutdown_loop()


def assert_same_batch(batch: Any, expected: dict[str, Any]) -> None:
    """Equal but for the seeds' positions, which are their own where no loader counts them."""
    assert isinstance(batch, SampledBatch)
    actual = tensors_of(batch)
    assert torch.equal(actual.pop("input_positions[0]"), torch.arange(len(batch.input_positions)))
    assert_same(actual, {name: value for name, value in expected.items() if name != "input_positions[0]"})


# --- over several workers --------------------------------------------------------------------------------------


def work(rank: int, port: int, directory: str) -> list[Any]:
    """A worker of 2: samples by itself, and looks up features that are spread otherwise than the graph."""
    init_worker_group(2, rank)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S)
    graph, dataset = GRAPHS["typed"](), load_partitions(Path(directory), 2)[rank]
    config = SamplingConfig(SamplingType.NODE, [4, 3], 32, False, False, True, True, False, False, "out", 3)
    seeds = NodeSamplerInput(torch.arange(20, 100), "user")
    local = LocalBatches(make_dataset(graph, "out"), seeds, config)
    options = CollocatedDistSamplingWorkerOptions(rpc_timeout=DEADLINE_S)
    sampler = DistNeighborSampler(
        dataset, [4, 3], with_edge=True, collect_features=True, seed=3, worker_options=options
    )
    sampler.start_loop()
    for index in range(3):
        part = seeds[local.schedule.positions(0, index)]
        assert_same_batch(sampler.sample_from_nodes(part), tensors_of(local.make(0, index)))
    sampler.shutdown_loop()
    looked_up = [look_up(rank, by_table) for by_table in (False, True)]
    look_up_edges(rank, dataset)
    sample_by_hand(rank, dataset)
    shutdown_rpc()
    return looked_up


def look_up(rank: int, by_table: bool) -> int:
    """Rows of a typed feature, whose partition 1 holds none of the items."""
    users = torch.arange(50).float()[:, None].repeat(1, 3)
    owner = torch.arange(50) % 2
    book: Any = GLTPartitionBook(owner, rank) if by_table else RangePartitionBook([(0, 10), (10, 50)], rank)
    items: Any = (
        GLTPartitionBook(torch.zeros(8, dtype=torch.int64)) if by_table else RangePartitionBook([(0, 8), (8, 8)], rank)
    )
    mine = book.local_ids(rank)
    rows = torch.full((50,), -1, dtype=torch.int64)
    rows[mine] = torch.arange(len(mine))
    local = {"user": Feature(users[mine], rows)}
    if rank == 0:
        local["item"] = Feature(torch.arange(8).half()[:, None], dtype=None)
    feature = DistFeature(2, rank, local, {"user": book, "item": items})
    ids = torch.tensor([49, 0, 3, 3, 12, 49, 1])
    future = feature.async_get(ids, "user")
    assert torch.equal(future.wait(), users[ids])
    assert torch.equal(feature["item", torch.tensor([7, 7, 2])], torch.tensor([[7.0], [7.0], [2.0]]).half())
    assert (feature["user", ids[:0]].shape, feature["item", ids[:0]].shape) == ((0, 3), (0, 1))
    assert torch.equal(feature.local_get(mine[:2], "user"), users[mine[:2]])
    with pytest.raises(UnknownIdError, match="50"):
        feature.async_get(torch.tensor([50]), "user")
    with pytest.raises(InvalidArgumentError, match=r"input_type: expected one of .*'tag'"):
        feature["tag", ids]
    theirs = book.local_ids(1 - rank)[:1]
    with pytest.raises(UnknownIdError):
        feature.local_get(theirs, "user")
    alone = DistFeature(2, rank, local, {"user": book}, local_only=True)
    assert torch.equal(alone["user", mine], users[mine])
    with pytest.raises(InvalidArgumentError, match="local_only"):
        alone["user", theirs]
    router = RpcDataPartitionRouter(rpc_sync_data_partitions(2, rank))
    liar = DistFeature(2, rank, {"user": Feature(users[:1], rows)}, {"user": book}, rpc_router=router)
    with pytest.raises(InvalidArgumentError):  # the remote error, as its own class
        liar["user", book.local_ids(1 - rank)]
    return int(future.wait().sum())


def look_up_edges(rank: int, dataset: DistDataset) -> None:
    """Rows of edges that lie with their nodes, by the edge ids of all partitions, and by those of the own one alone."""
    edge_type = ("user", "buys", "item")
    whole = make_dataset(GRAPHS["typed"](), "out").get_edge_feature(edge_type)
    book = dataset.edge_feat_pb[edge_type]
    assert isinstance(book, OwnedEdgesBook)
    own = {rank: book.local_ids(rank)}
    apart = OwnedEdgesBook(book.num_ids, [book.partition_size(p) for p in range(2)], rank, own)
    ids = torch.arange(book.num_ids).flip(0)[:90].repeat(2)
    for given in (book, apart):
        feature = DistFeature(2, rank, dataset.edge_features, {edge_type: given})
        assert torch.equal(feature[edge_type, ids], whole[ids])
        assert torch.equal(feature[edge_type, own[rank][:3]], whole[own[rank][:3]])
        assert feature[edge_type, ids[:0]].shape == (0, whole.shape[1])
        with pytest.raises(UnknownIdError, match=rf"ids\[1\]: no partition has an edge {book.num_ids}"):
            feature[edge_type, torch.tensor([0, book.num_ids])]
        alone = DistFeature(2, rank, dataset.edge_features, {edge_type: given}, local_only=True)
        with pytest.raises(InvalidArgumentError, match="local_only"):
            alone[edge_type, ids]


def sample_by_hand(rank: int, dataset: DistDataset) -> None:
    """One hop, and the edges among nodes, with callees of a program's own: the whole graph's."""
    edge_type = ("user", "buys", "item")
    sampler = NeighborSampler(dataset.graph, edge_dir="out", with_edge=True, seed=3)
    sampling, inducing = (rpc_register(callee(sampler)) for callee in (RpcSamplingCallee, RpcSubGraphCallee))
    router = RpcDataPartitionRouter(rpc_sync_data_partitions(2, rank))
    seeds = torch.arange(0, 100, 3)
    owners = dataset.node_pb["user"][seeds]
    asked, edges = [], 0
    for partition in range(2):
        worker, index = router.get_to_worker(partition), (owners == partition).nonzero().view(-1)
        future = rpc_request_async(worker, sampling, (seeds[index], 2, edge_type), {"index": 5})
        asked.append((index, future))
        nodes, rows, cols, eids = rpc_request(worker, inducing, ({"user": seeds},), {"with_edge": True})
        assert (nodes["user"].tolist(), eids.keys(), rows.keys()) == (seeds.tolist(), cols.keys(), cols.keys())
        edges += sum(part.numel() for part in eids.values())
    stitched = stitch_outputs([PartialNeighborOutput(index, future.wait()) for index, future in asked])
    whole = NeighborSampler(make_dataset(GRAPHS["typed"](), "out").graph, with_edge=True, seed=3)
    expected = whole.sample_one_hop(seeds, 2, edge_type, index=5)
    for name in ("nbr", "nbr_num", "edge"):
        assert torch.equal(getattr(stitched, name), getattr(expected, name))
    assert edges == sum(part.numel() for part in whole.subgraph_op.node_subgraph({"user": seeds}).rows.values())


def test_sampler_and_features_over_two_workers(tmp_path: Path, port: int) -> None:
    directory = str(write_partitions(GRAPHS["typed"](), tmp_path, "random", 2, "out"))
    results = run_processes(
        [(f"{HERE}.work", {"rank": rank, "port": port, "directory": directory}) for rank in range(2)], DEADLINE_S
    )
    assert results == [[3 * 117] * 2] * 2


def test_a_graph_knows_who_holds_what(tmp_path: Path) -> None:
    typed = load_partitions(write_partitions(GRAPHS["typed"](), tmp_path, "random", 2, "out"), 2)[1]
    graph = DistGraph(2, 1, typed.graph, typed.node_pb, typed.edge_pb)
    assert graph.get_local_graph(("user", "buys", "item")) is typed.graph[("user", "buys", "item")]
    users = torch.arange(200)
    assert torch.equal(graph.get_node_partitions(users, "user"), typed.node_pb["user"][users])
    edges = torch.arange(30)
    edge_type = ("user", "buys", "item")
    assert torch.equal(graph.get_edge_partitions(edges, edge_type), typed.edge_pb[edge_type][edges])
    with pytest.raises(UnknownIdError, match="200"):
        graph.get_node_partitions(torch.tensor([200]), "user")
    for call in (lambda: graph.get_local_graph(), lambda: graph.get_node_partitions(users, "tag")):
        with pytest.raises(InvalidArgumentError, match="unknown"):
            call()
    with pytest.raises(InvalidArgumentError, match=r"node_pb\['user'\]: expected a book of 1 partitions, got one of 2"):
        DistGraph(1, 0, typed.graph, typed.node_pb)
    with pytest.raises(InvalidArgumentError, match="partition_idx: expected 0 to 1, got 2"):
        DistGraph(2, 2, typed.graph, typed.node_pb)


def test_the_channel_stands_where_glt_has_it() -> None:
    from graphlearn_dist.channel.remote_channel import RemoteReceivingChannel

    with pytest.raises(InvalidArgumentError, match="one producer for each server"):
        RemoteReceivingChannel([0, 1], [3])


# --- data sets for children ------------------------------------------------------------------------------------


def read_features(dataset: DistDataset, go: Any, results: Any) -> None:
    """A child with a data set that was pickled: what the parent writes afterwards, it sees."""
    results.put((dataset.num_partitions, dataset.graph.edge_count, dataset.train_idx.tolist()))
    go.get(timeout=DEADLINE_S)
    results.put(dataset.node_features[torch.tensor([3, 4])].tolist())


def share_with_child() -> None:
    """A parent whose child sees what it writes."""
    whole = make_dataset(analytic_graph(40))
    whole.init_node_split((torch.arange(5), torch.arange(5, 7), torch.arange(7, 9)))
    dataset = DistDataset.from_dataset(whole)
    context = mp.get_context("spawn")
    go, results = context.Queue(), context.Queue()
    child = context.Process(target=read_features, args=(dataset, go, results), daemon=True)
    child.start()
    try:
        assert results.get(timeout=DEADLINE_S) == (1, 80, list(range(5)))
        dataset.node_features.feature_tensor[3] = -8.0
        go.put(None)
        assert results.get(timeout=DEADLINE_S) == [[-8.0, -8.0], [4.0, 4.5]]
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_a_pickled_data_set_is_the_same_memory() -> None:
    run_processes([(f"{HERE}.share_with_child", {})], DEADLINE_S)
