"""How many messages a batch costs where partitions are asked over the RPC, counted by the endpoints that are asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.distributed.partitions.partition_peers import EndpointPeers, PartitionHolders
from graphlearn_dist.distributed.partitions.partition_service import SERVICE, PartitionService
from graphlearn_dist.distributed.partitions.rounds import AnyExchange
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches, place_in_pool
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.calls.remote import remote_functions
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batch_maker import with_rows
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.oracle import assert_same, load_partitions, tensors_of, write_partitions

NUM_PARTS = 3
FANOUTS = ([3, 3, 3], [3, 0, 3], [2, 2, 0], [0, 0])
SETTINGS = RpcSettings(request_timeout_s=60.0)
GRAPHS = {"one type": (random_graph(400, 3000, 5), None), "typed": (typed_graph(200, 150, 2000, 3), "user")}


class ServingEndpoint:
    """Serves one partition, and knows what it was asked since this was last asked."""

    def __init__(self, service: PartitionService, stack: ExitStack) -> None:
        self._service = service
        self._seen: Counter[str] = Counter()
        self.endpoint = stack.enter_context(Endpoint("server", service.partition_idx, settings=SETTINGS))
        self.endpoint.register_all(remote_functions(service))
        self.endpoint.answer_queries(SERVICE, service.native)

    def asked(self) -> Counter[str]:
        """How often it was asked what."""
        before, self._seen = (
            self._seen,
            Counter({kind: count for kind, (count, _, _) in self._service.native.answered.items()}),
        )
        return self._seen - before


@pytest.mark.parametrize("fanouts", FANOUTS, ids=str)
@pytest.mark.parametrize("kind", sorted(GRAPHS))
def test_messages_of_a_batch(kind: str, fanouts: list[int], tmp_path: Path) -> None:
    """One per peer and hop whatever the number of edge types, and one per peer for the rows of all stores; none for a
    hop that takes no neighbors, nor for those behind it, which nobody has reached. Batches made together share them."""
    num_asked = [*fanouts, 0].index(0)
    graph, seed_type = GRAPHS[kind]
    seeds = NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)
    config = SamplingConfig(
        SamplingType.NODE, fanouts, 40, True, False, True, True, False, False, "in", 7, False
    )  # fmt: skip
    local = LocalBatches(make_dataset(graph, "in"), seeds, config)
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    with ExitStack() as stack:
        others = {part.partition_idx: ServingEndpoint(PartitionService(part), stack) for part in parts[1:]}
        asker = stack.enter_context(Endpoint("sampling_worker", 0, settings=SETTINGS, listen_host=None))
        holders = PartitionHolders({partition: other.endpoint.address for partition, other in others.items()})

        async def make_all() -> None:
            peers = EndpointPeers(asker, holders, SETTINGS.request_timeout_s)
            batches = PartitionedBatches(parts[0], seeds, config, [PartitionService(parts[0])], peers)
            for index in range(batches.schedule.num_batches):
                batch = await batches.make(0, index)
                assert_same(tensors_of(batch), tensors_of(local.make(0, index)))
                for other in others.values():
                    assert other.asked() == +Counter({"hop": num_asked, "rows": 1})
            indices = range(batches.schedule.num_batches)
            for index, made in zip(indices, await batches.make_in(1, indices, 0, place_in_pool), strict=True):
                assert_same(tensors_of(with_rows(*made)), tensors_of(local.make(1, index)))
            for other in others.values():
                assert other.asked() == +Counter({"hop": num_asked, "rows": 1})

        asyncio.run(make_all())
        sent = asker.stats().requests_sent
        assert sent == (local.schedule.num_batches + 1) * len(others) * (num_asked + 1)


@pytest.mark.parametrize("way", ["whole", "in place", "asked"])
def test_edges_of_large_batches_are_written_where_they_are_wanted(way: str, tmp_path: Path) -> None:
    """Not before: that would be a pass more over the largest part of a batch without rows."""
    graph = random_graph(2000, 60_000, 5)
    seeds = NodeSamplerInput(torch.arange(2000))
    config = SamplingConfig(
        SamplingType.NODE, [25, 25], 2000, True, False, False, False, False, False, "in", 7, False
    )  # fmt: skip
    expected = LocalBatches(make_dataset(graph, "in"), seeds, config).make(0, 0)
    assert expected.subgraph.edge_index[0].size(1) > 1 << 15
    num_parts = 1 if way == "whole" else 2
    parts = load_partitions(write_partitions(graph, tmp_path, "random", num_parts, "in"), num_parts)
    services = [PartitionService(part) for part in (parts[:1] if way == "asked" else parts)]
    with ExitStack() as stack:
        others = [ServingEndpoint(PartitionService(part), stack) for part in parts[len(services) :]]
        asker = stack.enter_context(Endpoint("sampling_worker", 0, settings=SETTINGS, listen_host=None))
        holders = PartitionHolders({i: other.endpoint.address for i, other in enumerate(others, len(services))})

        async def make() -> None:
            batches = PartitionedBatches(parts[0], seeds, config, services, EndpointPeers(asker, holders, 60.0))
            (sampled,) = await batches.sample(0, [0], 0)
            assert [runs is not None for runs in sampled.subgraph.unwritten] == [True]
            assert_same(tensors_of(await batches.make(0, 0)), tensors_of(expected))

        asyncio.run(make())


@pytest.mark.parametrize("disjoint", [False, True])
def test_no_row_is_asked_for_twice_of_batches_that_are_made_together(disjoint: bool, tmp_path: Path) -> None:
    """Of one that repeats its nodes, as a tree for each seed does, neither; and the batches are the same."""
    graph, seed_type = GRAPHS["typed"]
    seeds = NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)
    config = SamplingConfig(
        SamplingType.NODE, [3, 3], 20, True, False, True, True, False, False, "in", 7, False, disjoint=disjoint
    )  # fmt: skip
    local = LocalBatches(make_dataset(graph, "in"), seeds, config)
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    services = [PartitionService(part) for part in parts]

    async def make(together: int) -> list[torch.Tensor]:
        peers = DirectPeers(services)
        batches = PartitionedBatches(parts[0], seeds, config, services[:1], peers)
        for first in range(0, batches.schedule.num_batches, together):
            indices = range(first, min(first + together, batches.schedule.num_batches))
            for index, made in zip(indices, await batches.make_in(0, indices, 0, place_in_pool), strict=True):
                assert_same(tensors_of(with_rows(*made)), tensors_of(local.make(0, index)))
        return [ids for query in peers.asked_as("rows") for ids in query.ids_by_store().values()]

    alone, together = asyncio.run(make(1)), asyncio.run(make(5))
    assert all(ids.unique().numel() == ids.numel() for ids in [*alone, *together])
    assert 0 < sum(map(len, together)) < sum(map(len, alone))


def test_rows_of_batches_that_are_asked_for_at_once_are_written_part_by_part(tmp_path: Path) -> None:
    """The same rows, counted once, however they are divided; and nobody is asked once they are there."""
    graph, seed_type = GRAPHS["typed"]
    seeds = NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)
    config = SamplingConfig(
        SamplingType.NODE, [3, 3], 20, True, False, True, True, False, False, "in", 7, False
    )  # fmt: skip
    local = LocalBatches(make_dataset(graph, "in"), seeds, config)
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    services = [PartitionService(part) for part in parts]
    peers = DirectPeers(services)
    batches = PartitionedBatches(parts[0], seeds, config, services[:1], peers, recent_bytes=1 << 20)

    async def make(parts: list[range]) -> None:
        begun = await batches.ask(0, range(5), 0)
        num_asked = len(peers.asked)
        for part in parts:
            for index, made in zip(part, await batches.write(begun, place_in_pool, part), strict=True):
                assert_same(tensors_of(with_rows(*made)), tensors_of(local.make(0, index)))
        assert len(peers.asked) == num_asked

    asyncio.run(make([range(2), range(2, 4), range(4, 5)]))
    sums = batches.counts.sums()
    assert sums.batches == 5
    assert sums.sample_ns > 0
    assert sums.recent_bytes == 0
    asyncio.run(make([range(5)]))  # by rows that were kept
    again = batches.counts.sums()
    assert (again.batches, again.row_bytes) == (2 * sums.batches, 2 * sums.row_bytes)
    assert again.recent_bytes > 0


class CountingPeers(DirectPeers):
    """Knows how many exchanges were begun."""

    num_exchanges = 0

    def run(self, make: Callable[[], AnyExchange]) -> Awaitable[AnyExchange]:
        self.num_exchanges += 1
        return super().run(make)


@pytest.mark.parametrize("kind", sorted(GRAPHS))
@pytest.mark.parametrize("sampling", [SamplingType.NODE, SamplingType.SUBGRAPH])
@pytest.mark.parametrize("edges_too", [False, True])
def test_rows_are_asked_for_with_the_last_hop(
    kind: str, sampling: SamplingType, edges_too: bool, tmp_path: Path
) -> None:
    """Python has no step between the hops and the rows; but for features of edges, which lie where these were sampled.

    Induced edges are asked for by themselves.
    """
    graph, seed_type = GRAPHS[kind]
    seeds = NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)
    config = SamplingConfig(
        sampling, [3, 3], 20, True, False, False, edges_too, False, False, "in", 7, collect_labels=True
    )
    local = LocalBatches(make_dataset(graph, "in"), seeds, replace(config, collect_features=True))
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    services = [PartitionService(part) for part in parts]
    peers = CountingPeers(services)
    batches = PartitionedBatches(parts[0], seeds, config, services[:1], peers)
    for together in ((0,), (1, 2, 3)):
        peers.num_exchanges = 0
        made = asyncio.run(batches.make_in(0, together, 0, place_in_pool))
        num_induced = len(together) if sampling is SamplingType.SUBGRAPH else 0
        assert peers.num_exchanges == (2 if edges_too else 1) + num_induced
        for index, batch in zip(together, made, strict=True):
            expected, found = tensors_of(local.make(0, index)), tensors_of(with_rows(*batch))
            names = [
                name for name in expected if edges_too or name[0] == "y" or name.startswith(("nodes", "rows", "c"))
            ]
            assert_same({name: found[name] for name in names}, {name: expected[name] for name in names})


def test_queries_of_hgt_samples(tmp_path: Path) -> None:
    """One a peer and iteration for neighbors along all edge types, one for rows, one for edges between the nodes."""
    graph, seed_type = GRAPHS["typed"]
    seeds = NodeSamplerInput(torch.arange(graph.num_nodes[seed_type]), seed_type)
    config = SamplingConfig(
        SamplingType.HGT, None, 20, True, False, False, False, False, False, "in", 7,
        collect_labels=True, num_samples=[10, 10, 10],
    )  # fmt: skip
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    services = [PartitionService(part) for part in parts]
    peers = DirectPeers(services)
    batches = PartitionedBatches(parts[0], seeds, config, services[:1], peers)
    asyncio.run(batches.make_in(0, (0,), 0, place_in_pool))
    asked = Counter((query.partition, query.kind) for query in peers.asked)
    assert asked == {(p, kind): n for p in range(1, NUM_PARTS) for kind, n in (("hop", 3), ("rows", 1), ("induced", 1))}


@pytest.mark.parametrize("kind", sorted(GRAPHS))
@pytest.mark.parametrize("sampling", [SamplingType.NODE, SamplingType.SUBGRAPH, SamplingType.HGT])
def test_rows_of_seeds_that_come_twice(kind: str, sampling: SamplingType, tmp_path: Path) -> None:
    """HGT's batches have them twice, which their sampled nodes, whose rows were asked for, do not."""
    graph, seed_type = GRAPHS[kind]
    seeds, is_hgt = NodeSamplerInput(torch.arange(40) // 2, seed_type), sampling is SamplingType.HGT
    config = SamplingConfig(
        sampling, None if is_hgt else [3], 20, False, False, False, False, False, False, "in", 7,
        collect_labels=True, num_samples=[10, 10] if is_hgt else None,
    )  # fmt: skip
    local = LocalBatches(make_dataset(graph, "in"), seeds, replace(config, collect_features=True))
    parts = load_partitions(write_partitions(graph, tmp_path, "random", NUM_PARTS, "in"), NUM_PARTS)
    services = [PartitionService(part) for part in parts]
    batches = PartitionedBatches(parts[0], seeds, config, services[:1], DirectPeers(services))
    for together in ((0,), (0, 1)):
        for index, made in zip(together, asyncio.run(batches.make_in(0, together, 0, place_in_pool)), strict=True):
            assert torch.equal(made[0].input_positions, torch.arange(20 * index, 20 * index + 20))
            expected, found = tensors_of(local.make(0, index)), tensors_of(with_rows(*made))
            names = [name for name in expected if name.startswith(("nodes", "rows", "cols", "y"))]
            assert_same({name: found[name] for name in names}, {name: expected[name] for name in names})
