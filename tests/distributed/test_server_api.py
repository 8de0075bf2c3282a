"""What clients can ask a server: every exposed method, by object or by name, waiting or not; and what they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphlearn_dist.channel.remote_channel import RemoteReceivingChannel
from graphlearn_dist.distributed import (
    DistServer,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    request_server,
)
from graphlearn_dist.distributed.copies.host_row_cache import RowCacheStats
from graphlearn_dist.distributed.dist_options import ProducerRequest
from graphlearn_dist.errors import (
    ChannelClosedError,
    ChannelError,
    InvalidArgumentError,
    ProducerGoneError,
    RemoteError,
    UnknownIdError,
)
from graphlearn_dist.messages import EndOfEpoch, SampledBatch
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.remote import remote_functions
from graphlearn_dist.sampler.base import (
    NodeSamplerInput,
    RemoteNodeSplitSamplerInput,
    SamplingConfig,
    SamplingType,
)
from graphlearn_dist.sampler.epochs.schedule import BatchIndices, BatchShare
from graphlearn_dist.telemetry import MadeStats
from graphlearn_dist.typing import Split
from tests.support.jobs import NUM_FEATURES, NUM_NODES, Job, make_partitions, running_servers, workers_of

HALF = NUM_NODES // 2
CONFIG = SamplingConfig(
    SamplingType.NODE,
    num_neighbors=[2],
    batch_size=10,
    shuffle=False,
    drop_last=False,
    with_edge=False,
    collect_features=True,
    with_neg=False,
    with_weight=False,
    edge_dir="in",
    seed=0,
)
OPTIONS = RemoteDistSamplingWorkerOptions(rpc_timeout=60)
TESTED: set[str] = set()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two servers; server 0 owns the nodes [0, 60) and the edges into them, server 1 the rest."""
    halves = make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2, splits=True)
    with running_servers(halves, halves) as job, job.client():
        yield job


def ask(rank: int, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Asks in all four ways: the answers must be the same."""
    TESTED.add(method.__qualname__)
    answer = request_server(rank, method, *args, **kwargs)
    others = [
        request_server(rank, method.__qualname__, *args, **kwargs),
        async_request_server(rank, method, *args, **kwargs).wait(),
        async_request_server(rank, method.__qualname__, *args, **kwargs).wait(),
    ]
    for other in others:
        assert torch.equal(other, answer) if isinstance(answer, torch.Tensor) else other == answer
    return answer


def test_meta(job: Job) -> None:
    for rank in range(2):
        num_partitions, partition_idx, node_types, edge_types = ask(rank, DistServer.get_dataset_meta)
        assert (num_partitions, partition_idx, list(node_types), list(edge_types)) == (2, rank, [], [])


def test_copies_that_nobody_asked_for(job: Job) -> None:
    for rank in range(2):
        assert ask(rank, DistServer.get_row_cache_stats) == RowCacheStats()


def test_outline(job: Job) -> None:
    TESTED.add("DistServer.get_outline")
    for rank in range(2):
        outline = request_server(rank, DistServer.get_outline)
        (nodes,), (edges,) = outline.nodes, outline.edges
        assert (outline.edge_dir, nodes.count, nodes.features.shape, nodes.labels.shape) == (
            "in",
            NUM_NODES,
            (0, NUM_FEATURES),
            (0,),
        )
        assert nodes.book.description == {"kind": "range", "bounds": [0, HALF, NUM_NODES]}
        assert (nodes.book.tables, edges.features, edges.weights, edges.times) == ((), None, None, None)


@pytest.mark.parametrize("rank", [0, 1])
def test_nodes_of_a_partition(job: Job, rank: int) -> None:
    ids = torch.tensor([5, 3, 59, 3]) + rank * HALF  # any order, duplicates
    foreign = (HALF + 7) if rank == 0 else 7
    owners = ask(rank, DistServer.get_node_partition_id, None, torch.tensor([0, 59, 60, 119]))
    assert owners.tolist() == [0, 0, 1, 1]
    rows = ask(rank, DistServer.get_node_feature, None, ids)
    assert torch.equal(rows, ids.float()[:, None].repeat(1, NUM_FEATURES))
    assert torch.equal(ask(rank, DistServer.get_node_label, None, index=ids), ids)
    assert ask(rank, DistServer.get_tensor_size, None) == [HALF, NUM_FEATURES]
    for method in (DistServer.get_node_feature, DistServer.get_node_label):
        assert len(ask(rank, method, None, torch.empty(0, dtype=torch.int64))) == 0
        with pytest.raises(UnknownIdError, match=rf"\b{foreign}\b"):
            request_server(rank, method, None, torch.tensor([ids[0], foreign]))
        with pytest.raises(UnknownIdError, match=r"-1\b"):
            request_server(rank, method, None, torch.tensor([-1]))
        with pytest.raises(InvalidArgumentError, match=r"expected dtype int64 or int32, got torch\.float32"):
            request_server(rank, method, None, torch.tensor([0.0]))
    with pytest.raises(UnknownIdError, match=r"\b120\b"):
        request_server(rank, DistServer.get_node_partition_id, None, torch.tensor([120]))


@pytest.mark.parametrize("rank", [0, 1])
def test_edges_of_a_partition(job: Job, rank: int) -> None:
    source, target = ask(rank, DistServer.get_edge_index, None, "coo")
    own = torch.arange(HALF) + rank * HALF
    expected = {(int(v + hop) % NUM_NODES, int(v)) for v in own for hop in (1, 2, 3, 4)}
    assert set(zip(source.tolist(), target.tolist(), strict=True)) == expected
    assert ask(rank, DistServer.get_edge_size, None, "coo") == len(expected) == source.numel()
    with pytest.raises(InvalidArgumentError, match="layout: expected 'coo', got 'csr'"):
        request_server(rank, DistServer.get_edge_index, None, "csr")


@pytest.mark.parametrize(
    ("method", "arguments", "name"),
    [
        (DistServer.get_node_partition_id, (torch.tensor([0]),), "node_type"),
        (DistServer.get_node_feature, (torch.tensor([0]),), "node_type"),
        (DistServer.get_node_label, (torch.tensor([0]),), "node_type"),
        (DistServer.get_tensor_size, (), "node_type"),
        (DistServer.get_edge_index, ("coo",), "edge_type"),
        (DistServer.get_edge_size, ("coo",), "edge_type"),
    ],
)
def test_unknown_types(job: Job, method: Any, arguments: tuple[Any, ...], name: str) -> None:
    unknown = "paper" if name == "node_type" else ("paper", "cites", "paper")
    with pytest.raises(InvalidArgumentError, match=f"{name}: .*paper"):
        request_server(0, method, unknown, *arguments)


def test_what_an_input_names(job: Job) -> None:
    """The seeds of a split that a server's own partition holds."""
    TESTED.add("DistServer.find_input")
    train = RemoteNodeSplitSamplerInput(Split.test)  # [60, 120)
    assert [request_server(rank, DistServer.find_input, train).node.tolist() for rank in range(2)] == [
        [],
        list(range(60, 120)),
    ]


def seeds_of(batch: SampledBatch) -> list[int]:
    return list(batch.input_positions.tolist())


def test_a_producer_by_hand(job: Job) -> None:
    """Open, begin an epoch, fetch by index in any order, close; what does not fit is refused by name."""
    TESTED.update(
        f"DistServer.{name}"
        for name in (
            "open_producer",
            "create_sampling_producer",
            "start_new_epoch_sampling",
            "fetch_batch",
            "grant_batches",
            "destroy_sampling_producer",
            "get_producer_stats",
            "holds_producer",
            "withdraw_producer",
        )
    )
    request = ProducerRequest(
        num_workers=1, concurrency=1, num_threads=1, buffer_bytes=1 << 20, request_timeout_s=60.0, key=5
    )
    train = RemoteNodeSplitSamplerInput(Split.train)
    info = request_server(0, DistServer.open_producer, train, CONFIG, request)
    assert info.num_batches == 5  # 50 nodes
    producer = info.producer_id
    assert request_server(0, DistServer.get_producer_stats, producer) == MadeStats("1 process", num_workers=1)
    assert request_server(0, DistServer.holds_producer, producer)
    assert not request_server(0, DistServer.holds_producer, producer + 1)
    with pytest.raises(InvalidArgumentError, match=r"indices: expected batches in \[0, 5\), got 1, 3, 5"):
        request_server(0, DistServer.start_new_epoch_sampling, producer, 0, 1, BatchShare(BatchIndices(1, 7, 2)))
    request_server(0, DistServer.start_new_epoch_sampling, producer, 0, 1, BatchShare(BatchIndices(1, 5, 2)))
    pending = [async_request_server(0, DistServer.fetch_batch, producer, 1, index) for index in (3, 1)]
    assert [future.wait().index for future in pending] == [3, 1]
    for index, message in ((0, "index: expected one of 1, 3, got 0"), (-1, "index: .* got -1")):
        with pytest.raises(InvalidArgumentError, match=message):
            request_server(0, DistServer.fetch_batch, producer, 1, index)
    with pytest.raises(InvalidArgumentError, match="run: expected the current run 1, got 2"):
        request_server(0, DistServer.fetch_batch, producer, 2, 1)
    with pytest.raises(InvalidArgumentError, match="run: expected more than 1, got 1"):
        request_server(0, DistServer.start_new_epoch_sampling, producer, 0)
    for run, credit in ((2, -1), (2, 1 << 63), (1 << 63, 1)):
        with pytest.raises(InvalidArgumentError, match=f"run, credit_bytes: .* got {run}, {credit}"):
            request_server(0, DistServer.start_new_epoch_sampling, producer, 0, run, None, credit)
    assert request_server(0, DistServer.fetch_batch, producer, 1, 5) == EndOfEpoch(1, 0, 5)
    request_server(0, DistServer.start_new_epoch_sampling, producer, 0, 2, None, 1)  # one batch at a time
    pending = [async_request_server(0, DistServer.fetch_batch, producer, 2, index, 0) for index in range(3)]
    for index, future in enumerate(pending):
        request_server(0, DistServer.grant_batches, producer, 2, index)
        assert future.wait().index == index
    request_server(0, DistServer.destroy_sampling_producer, producer)
    request_server(0, DistServer.destroy_sampling_producer, producer)
    assert workers_of(job.servers[0].pid) == []
    with pytest.raises(InvalidArgumentError, match=rf"producer_id: there is no producer {producer} \(any more\)"):
        request_server(0, DistServer.fetch_batch, producer, 1, 1)
    again = request_server(0, DistServer.open_producer, train, CONFIG, request).producer_id
    request_server(0, DistServer.withdraw_producer, 4)
    assert request_server(0, DistServer.holds_producer, again)
    for _ in range(2):
        request_server(0, DistServer.withdraw_producer, 5)
        assert workers_of(job.servers[0].pid) == []
    with pytest.raises(ProducerGoneError, match=r"key: expected one that .*client_0 .* has not closed, got 5"):
        request_server(0, DistServer.open_producer, train, CONFIG, request)


def test_a_producer_of_another_client(job: Job) -> None:
    """It can be neither read, nor begun anew, nor ended, and its owner goes on."""
    inputs = NodeSamplerInput(torch.arange(20))
    producer = request_server(0, DistServer.create_sampling_producer, inputs, CONFIG, OPTIONS)
    request_server(0, DistServer.start_new_epoch_sampling, producer, 0)
    requests = {
        DistServer.start_new_epoch_sampling: (producer, 1),
        DistServer.fetch_batch: (producer, 1, 0),
        DistServer.fetch_one_sampled_message: (producer,),
        DistServer.destroy_sampling_producer: (producer,),
    }
    with Endpoint("client", 7) as other:
        other.join("127.0.0.1", job.port)
        assert not other.call(("server", 0), DistServer.holds_producer.__qualname__, producer)
        whose = f"expected one that client-7 .* has opened, got {producer}, which is .*client_0 .*'s"
        for method, arguments in requests.items():
            with pytest.raises(InvalidArgumentError, match=f"producer_id: {whose}"):
                other.call(("server", 0), method.__qualname__, *arguments)
    for index in range(2):
        assert request_server(0, DistServer.fetch_batch, producer, 1, index).index == index
    request_server(0, DistServer.destroy_sampling_producer, producer)


def test_a_producer_of_everything(job: Job) -> None:
    inputs = NodeSamplerInput(torch.arange(55, 75))
    producer = request_server(1, DistServer.create_sampling_producer, inputs, CONFIG, OPTIONS)
    request_server(1, DistServer.start_new_epoch_sampling, producer, 0)
    for index in range(2):
        batch = request_server(1, DistServer.fetch_batch, producer, 1, index)
        assert isinstance(batch, SampledBatch)
        assert (batch.epoch, batch.index) == (0, index)
    request_server(1, DistServer.destroy_sampling_producer, producer)


def receive_all(channel: RemoteReceivingChannel) -> list[SampledBatch]:
    """What comes until the end of the epoch."""
    came = []
    while True:
        try:
            came.append(channel.recv())
        except StopIteration:
            return came


def test_batches_that_are_not_named(job: Job) -> None:
    """Whatever comes next, by turns from both servers, whose inputs are of different lengths; epoch after epoch."""
    TESTED.add("DistServer.fetch_one_sampled_message")
    seeds = [torch.arange(55, 75), torch.arange(34)]
    producers = [
        request_server(rank, DistServer.create_sampling_producer, NodeSamplerInput(seeds[rank]), CONFIG, OPTIONS)
        for rank in range(2)
    ]
    with pytest.raises(InvalidArgumentError, match="no epoch was begun"):
        request_server(0, DistServer.fetch_one_sampled_message, producers[0])
    request_server(0, DistServer.start_new_epoch_sampling, producers[0], 0)
    for index in range(2):
        batch, is_end = request_server(0, DistServer.fetch_one_sampled_message, producers[0])
        assert (batch.index, is_end) == (index, False)
        assert torch.equal(batch.node_features[0][: len(batch.input_positions), 0], seeds[0][batch.input_positions])
    assert request_server(0, DistServer.fetch_one_sampled_message, producers[0]) == (None, True)
    channel = RemoteReceivingChannel([0, 1], producers, prefetch_size=2)
    with pytest.raises(ChannelError, match=r"send: this channel only receives, from servers \[0, 1\]"):
        channel.send({})
    for epoch in (1, 2, 3):
        for rank in range(2):
            request_server(rank, DistServer.start_new_epoch_sampling, producers[rank], epoch)
        channel.reset()
        if epoch == 2:  # left half-way: nothing of it comes in the next
            channel.recv()
            continue
        came = receive_all(channel)
        assert [(batch.epoch, batch.index) for batch in came] == [(epoch, index) for index in (0, 0, 1, 1, 2, 3)]
        assert [seeds_of(batch) for batch in came[4:]] == [list(range(20, 30)), list(range(30, 34))]
        with pytest.raises(StopIteration):
            channel.recv()
    channel.close()
    with pytest.raises(ChannelClosedError):
        channel.recv()
    together = BatchShare(BatchIndices(0, 2), 2)
    request_server(0, DistServer.start_new_epoch_sampling, producers[0], 4, None, together)
    with pytest.raises(InvalidArgumentError, match="share: expected batches one by one, got groups of 2"):
        request_server(0, DistServer.fetch_one_sampled_message, producers[0])
    for rank in range(2):
        request_server(rank, DistServer.destroy_sampling_producer, producers[rank])


def test_functions_that_are_not_exposed(job: Job) -> None:
    with pytest.raises(InvalidArgumentError, match=r"func: 'DistServer.shutdown' is not registered; only functions"):
        request_server(0, DistServer.shutdown)
    with pytest.raises(InvalidArgumentError, match=r"func: .*<lambda>.* is not registered"):
        async_request_server(0, lambda: None)
    with pytest.raises(InvalidArgumentError, match=r"function: 'os.system' is not registered on _default_server_0"):
        request_server(0, "os.system", "true")
    with pytest.raises(RemoteError, match=r"TypeError on _default_server_0: .*unexpected keyword argument 'depth'"):
        request_server(0, DistServer.get_dataset_meta, depth=1)
    with pytest.raises(InvalidArgumentError, match="server_rank: expected 0 to 1, got 2"):
        request_server(2, DistServer.get_dataset_meta)
    with pytest.raises(InvalidArgumentError, match="server_rank: expected 0 to 1, got -1"):
        async_request_server(-1, DistServer.get_dataset_meta)


def test_every_exposed_method_was_tested(job: Job) -> None:
    """Runs last, and ends the servers: ``client_done`` has no effect on servers with an open number of clients."""
    TESTED.update(("DistServer.client_done", "DistServer.exit"))
    if "DistServer.get_edge_size" in TESTED and "DistServer.fetch_batch" in TESTED:  # the whole module ran
        assert set(remote_functions(DistServer)) == TESTED
    for rank in (1, 0):
        assert request_server(rank, DistServer.client_done) is None
        assert request_server(rank, DistServer.get_dataset_meta)[1] == rank
        assert request_server(rank, DistServer.exit) is True
    assert [server.wait(30.0) for server in job.servers] == [0, 0]
