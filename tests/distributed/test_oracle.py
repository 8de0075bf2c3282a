"""The single-process sampler is the oracle: every partitioned and every remote mode gives the same bits."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.distributed import (
    DistDataset,
)
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.messages import SampledBatch
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.direct_peers import AskedQuery, DirectPeers
from tests.support.graphs import (
    Case,
    Direction,
    TestGraph,
    analytic_graph,
    cases,
    make_dataset,
    random_graph,
    typed_graph,
    with_weights,
)
from tests.support.oracle import (
    PARTITIONERS,
    assert_same,
    load_partitions,
    tensors_of,
    write_partitions,
)
from tests.support.queries import ask

HERE = "tests.distributed.test_oracle"
DEADLINE_S = 120.0  # only ever reached by a hang


# --- helpers ---------------------------------------------------------------------------------------------------


def config_of(case: Case, *, with_edge: bool = True) -> SamplingConfig:
    return SamplingConfig(
        SamplingType.NODE, case.fanouts, case.batch_size, case.shuffle, False, with_edge, True, False, False,
        case.edge_dir, case.seed, case.replace,
    )  # fmt: skip


def make_all(batches: PartitionedBatches, epoch: int, count: int | None = None) -> list[SampledBatch]:
    """The first ``count`` batches of an epoch, or all."""
    made = []

    async def run() -> None:
        for index in range(batches.schedule.num_batches if count is None else count):
            made.append(await batches.make(epoch, index))

    asyncio.run(run())  # returns nothing: what it returns is printed, for an error that Python's enum drops
    return made


def check_partitioned(
    case: Case,
    kind: str,
    num_parts: int,
    num_threads: int,
    *,
    with_edge: bool,
    own_feature_books: bool = False,
    graph_caching: bool = False,
    recent_bytes: int = 0,
) -> list[DirectPeers]:
    """Batches of every partition equal those of the whole, made twice where rows are kept that were answered."""
    config = config_of(case, with_edge=with_edge)
    seeds = NodeSamplerInput(case.seeds, case.seed_type)
    local = LocalBatches(make_dataset(case.graph, case.edge_dir), seeds, config)
    expected = [tensors_of(local.make(case.epoch, i)) for i in range(local.schedule.num_batches)]
    asked = []
    with tempfile.TemporaryDirectory() as root:
        directory = write_partitions(
            case.graph, Path(root), kind, num_parts, case.edge_dir, own_feature_books=own_feature_books
        )
        datasets = load_partitions(directory, num_parts, graph_caching=graph_caching)
        if graph_caching:  # what another process of the host would map
            datasets = [DistDataset.from_ipc_handle(dataset.share_ipc()) for dataset in datasets]
        services = [PartitionService(dataset, num_threads) for dataset in datasets]
        for dataset, service in zip(datasets, services, strict=True):
            peers = DirectPeers(services)
            asked.append(peers)
            batches = PartitionedBatches(
                dataset, seeds, config, [service], peers, num_threads, recent_bytes=recent_bytes
            )
            for _ in range(2 if recent_bytes else 1):
                for actual, wanted in zip(make_all(batches, case.epoch), expected, strict=True):
                    assert_same(tensors_of(actual), wanted)
    return asked


# --- one process, other partitions asked directly ---------------------------------------------------------------


@pytest.mark.parametrize("typed", [False, True])
@given(data=st.data(), kind=st.sampled_from(sorted(PARTITIONERS)), num_parts=st.integers(1, 3))
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_partitioned_batches_equal_local_ones(typed: bool, data: st.DataObject, kind: str, num_parts: int) -> None:
    case = data.draw(cases(typed=typed))
    num_threads, with_edge, own = data.draw(st.integers(1, 2)), data.draw(st.booleans()), data.draw(st.booleans())
    check_partitioned(
        case, kind, num_parts, num_threads, with_edge=with_edge, own_feature_books=own,
        recent_bytes=data.draw(st.sampled_from([0, 500, 3000, 1 << 30])),
    )  # fmt: skip


class GenerousPeers(DirectPeers):
    """Peers that answer with a neighbor too many for each node."""

    def altered(self, query: AskedQuery) -> AskedQuery:
        if query.kind != "hop":
            return query
        parts, with_edge_ids = query.arguments
        more = [(edge_type, ids, fanout + 1, *rest) for edge_type, ids, fanout, *rest in parts]
        return replace(query, arguments=(more, with_edge_ids))


def test_a_peer_that_answers_with_more_neighbors_than_asked_for(tmp_path: Path) -> None:
    case = large_case(random_graph(3000, 60_000, 2), None, "in")
    directory = write_partitions(case.graph, tmp_path, "range", 2, "in")
    datasets = load_partitions(directory, 2)
    services = [PartitionService(dataset, 1) for dataset in datasets]
    seeds = NodeSamplerInput(case.seeds, case.seed_type)
    batches = PartitionedBatches(datasets[0], seeds, config_of(case), services[:1], GenerousPeers(services), 1)
    with pytest.raises(InvalidArgumentError, match=r"parts\[1\].counts\[\d+\]=8: partition 1 was asked for at most 7"):
        make_all(batches, case.epoch)


def large_case(graph: TestGraph, seed_type: Any, edge_dir: Direction) -> Case:
    seeds = torch.randint(0, graph.num_nodes[seed_type], (500,), generator=torch.Generator().manual_seed(1))
    return Case(graph, edge_dir, [7, 100, 3], seed_type, seeds, 300, 11, False, True, epoch=2)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("kind", sorted(PARTITIONERS))
def test_larger_batches_with_several_threads(kind: str, edge_dir: Direction) -> None:
    """Large enough that every parallel loop has more than one piece, and fan-outs beyond the scan limit."""
    homogeneous = random_graph(3000, 60_000, 5, explicit_edge_ids=True)
    peers = check_partitioned(large_case(homogeneous, None, edge_dir), kind, 3, 3, with_edge=True)
    assert all({query.partition for query in peer.asked} == {0, 1, 2} - {i} for i, peer in enumerate(peers))
    check_partitioned(large_case(typed_graph(800, 300, 9000, 6), "user", edge_dir), kind, 2, 2, with_edge=True)


def test_one_request_per_peer_and_hop_and_none_for_nothing() -> None:
    """All edge types travel in one request, all stores in another; who owns nothing is not asked."""
    graph = typed_graph(40, 20, 200, 3)
    case = Case(graph, "out", [2, 2], "user", torch.arange(40), 40, 0, False, False, 0)
    for peers in check_partitioned(case, "random", 3, 1, with_edge=True):
        per_peer = Counter((query.partition, query.kind) for query in peers.asked)
        assert all(ids.numel() for query in peers.asked for ids in query.ids())
        assert max(count for (_, kind), count in per_peer.items() if kind == "hop") <= 2
        assert all(count == 1 for (_, kind), count in per_peer.items() if kind == "rows")
    alone = Case(analytic_graph(30), "out", [2], None, torch.arange(3), 3, 0, False, False, 0)
    first, *_ = check_partitioned(alone, "range", 3, 1, with_edge=False)
    assert first.asked == []  # seeds 0..2 and neighbors up to 4 all lie in the first range


@pytest.mark.parametrize("kind", sorted(PARTITIONERS))
def test_with_all_graphs_at_hand_only_features_are_asked_for(kind: str) -> None:
    graph = with_weights(typed_graph(60, 30, 400, 3), 1, some_zero=False)
    for case in (
        Case(graph, "in", [3, 2], "user", torch.arange(60), 25, 4, False, True, 1),
        Case(random_graph(90, 500, 2), "out", [3, 2], None, torch.arange(90), 25, 4, True, False, 0),
    ):
        for peers in check_partitioned(case, kind, 3, 1, with_edge=True, graph_caching=True):
            assert {query.kind for query in peers.asked} == {"rows"}


def test_service_refuses_what_it_does_not_hold(tmp_path: Path) -> None:
    graph = analytic_graph(10)
    service = PartitionService(load_partitions(write_partitions(graph, tmp_path, "range", 2, "out"), 2)[0])

    def hop(ids: list[int], edge_type: int = 0, fanout: int = 2) -> Any:
        query = _C.hop_query([(edge_type, torch.tensor(ids), fanout, _C.DrawMethod(), 1, None, None)], False)
        return ask(service, query, 3)[1]

    def rows(ids: list[int], store: str = "node_feature:0") -> Any:
        return ask(service, _C.rows_query([store], [torch.tensor(ids)]), 1)[0]

    assert hop([4, 0]).tolist() == [5, 6, 1, 2]
    assert rows([4, 0])[:, 0].tolist() == [4, 0]
    for bad in ([5], [10], [-1]):  # another partition's, beyond the graph, negative
        with pytest.raises(UnknownIdError, match=str(bad[0])):
            hop(bad)
        with pytest.raises(UnknownIdError, match=str(bad[0])):
            rows(bad)
    with pytest.raises(InvalidArgumentError, match="edge_types"):
        hop([0], edge_type=1)
    with pytest.raises(InvalidArgumentError, match="num_neighbors"):
        hop([0], fanout=-2)
    with pytest.raises(InvalidArgumentError, match="node_feature:7"):
        rows([0], "node_feature:7")


def test_whole_dataset_as_one_partition() -> None:
    """``DistDataset.from_dataset`` gives what the data set gives, rows of an ``id2index`` included."""
    graph = random_graph(30, 100, 2)
    dataset = make_dataset(graph)
    backwards = torch.arange(29, -1, -1)
    dataset.init_node_features(torch.arange(30).float()[:, None], id2idx=backwards)
    dataset.init_node_labels(torch.arange(30), id2idx=backwards)
    case = Case(graph, "out", [3, 3], None, torch.arange(30), 8, 0, False, False, 0)
    seeds, config = NodeSamplerInput(case.seeds), config_of(case)
    local = LocalBatches(dataset, seeds, config)
    whole = DistDataset.from_dataset(dataset)
    batches = PartitionedBatches(whole, seeds, config, [PartitionService(whole)], DirectPeers([]))
    for index, batch in enumerate(make_all(batches, 0)):
        assert_same(tensors_of(batch), tensors_of(local.make(0, index)))
        assert batch.node_features[0] is not None
        assert torch.equal(batch.node_features[0].view(-1), 29.0 - batch.subgraph.nodes[0])
