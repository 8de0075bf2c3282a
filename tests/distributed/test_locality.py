"""Batches of near seeds over partitions and servers: the bits of one process, made where most of their seeds lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.producers.remote_producer import RemoteProducer
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import save_node_order
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches
from graphlearn_dist.sampler.epochs.locality import order_of_seeds
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import make_dataset, random_graph
from tests.support.jobs import NUM_NODES, Job, load, make_partitions, running_servers, same_batches
from tests.support.oracle import assert_same, load_partitions, orders_of, tensors_of, write_partitions

pytestmark = pytest.mark.usefixtures("one_fork_server")

PLACE = (torch.arange(NUM_NODES) * 7) % NUM_NODES  # near places are owned by everybody
NEAR = torch.arange(NUM_NODES)  # near places are owned by one
SEEDS = torch.randperm(NUM_NODES, generator=torch.Generator().manual_seed(1))[:110]
SETTINGS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "locality": 4}


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("kind", ["random", "range"])
def test_any_number_of_partitions(tmp_path: Path, kind: str, num_parts: int) -> None:
    graph = random_graph(300, 2400, 2)
    config = SamplingConfig(
        SamplingType.NODE, [4, 3], 17, True, False, True, True, False, False, "in", 5, locality=8
    )  # fmt: skip
    seeds = NodeSamplerInput(torch.randperm(300, generator=torch.Generator().manual_seed(2))[:250])
    whole = make_dataset(graph, "in")
    whole.init_order(orders_of(graph))
    local = LocalBatches(whole, seeds, config)
    datasets = load_partitions(write_partitions(graph, tmp_path, kind, num_parts, "in", with_order=True), num_parts)
    services = [PartitionService(dataset, 1) for dataset in datasets]
    for dataset, service in zip(datasets, services, strict=True):
        near = order_of_seeds(config, seeds, dataset)
        batches = PartitionedBatches(dataset, seeds, config, [service], DirectPeers(services), near=near)
        for index, batch in enumerate(make_all(batches, 3)):
            assert_same(tensors_of(batch), tensors_of(local.make(3, index)))
    with pytest.raises(InvalidArgumentError, match="locality: expected an order of the seeds with it"):
        PartitionedBatches(
            datasets[0], seeds, replace(config, locality=None), [services[0]], DirectPeers([]), near=near
        )


# --- servers -------------------------------------------------------------------------------------------------------


def open_local(whole: Path, **changes: Any) -> Any:
    return NeighborLoader(load(whole), [3, 2], SEEDS, seed=1, **{**SETTINGS, **changes})


def open_remote(
    server_rank: list[int] | None = None, together: int | None = None, **changes: Any
) -> DistNeighborLoader:
    options = RemoteDistSamplingWorkerOptions(server_rank, rpc_timeout=60, batches_per_message=together)
    arguments = {**SETTINGS, "edge_dir": "in", "collect_features": True, "random_seed": 1, **changes}
    return DistNeighborLoader(None, [3, 2], SEEDS, worker_options=options, **arguments)


def test_servers_without_an_order(tmp_path: Path) -> None:
    directory = make_partitions(tmp_path / "graph", 1)
    with (
        running_servers(directory) as servers,
        servers.client(),
        pytest.raises(InvalidArgumentError, match="locality: expected a data set with an order of its nodes, got one"),
    ):
        open_remote()


@pytest.fixture(scope="module", params=[PLACE, NEAR], ids=["scattered", "near"])
def place(request: pytest.FixtureRequest) -> torch.Tensor:
    order: torch.Tensor = request.param
    return order


def ordered(directory: Path, num_parts: int, place: torch.Tensor) -> Path:
    made = make_partitions(directory, num_parts)
    save_node_order(made, ZoneOrder(place, torch.tensor([0, NUM_NODES])))
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, place: torch.Tensor) -> Path:
    return ordered(tmp_path_factory.mktemp("whole") / "graph", 1, place)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, place: torch.Tensor) -> Iterator[Job]:
    """A client of three servers of three partitions."""
    thirds = ordered(tmp_path_factory.mktemp("thirds") / "graph", 3, place)
    with running_servers(thirds, thirds, thirds) as servers, servers.client():
        yield servers


def asked_servers(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, int], set[int]]:
    """By index, the server that is asked for each batch from now on; and how many are asked for at once."""
    asked: dict[int, int] = {}
    counts: set[int] = set()
    ask = RemoteProducer._ask

    def ask_and_note(self: RemoteProducer, request: Any) -> Any:
        counts.add(len(request.positions))
        for position in request.positions:
            asked[self._indices[position]] = self._server_of(position).rank
        return ask(self, request)

    monkeypatch.setattr(RemoteProducer, "_ask", ask_and_note)
    return asked, counts


@pytest.mark.parametrize("together", [1, 3])
def test_batches_come_from_those_who_own_the_most_of_their_seeds(
    job: Job, whole: Path, place: torch.Tensor, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_remote(together=together) as loader:  # servers are not named: all are used
        asked, at_once = asked_servers(monkeypatch)
        for epoch in range(2):
            made = list(loader)
            same_batches(made, [open_local(whole).batch(epoch, index) for index in range(len(loader))])
            assert sorted(asked) == list(range(len(made)))
            for turn in range(4):
                owners = torch.cat([SEEDS[batch.input_id] for batch in made[turn::4]]) * 3 // NUM_NODES
                counts = owners.bincount(minlength=3)
                for index in range(turn, len(made), 4):
                    assert counts[asked[index]] == counts.max()
            if place is NEAR:
                assert set(asked.values()) == {0, 1, 2}
            assert max(at_once) == together
            asked.clear()


def test_servers_that_are_not_needed_open_nothing(job: Job, whole: Path, place: torch.Tensor) -> None:
    """Of six stretches, those with the turns 2, 5, 2, ... are the middle third of the order."""
    if place is not NEAR:
        pytest.skip("everybody owns seeds of each stretch")
    local = open_local(whole, locality=6)
    with open_remote(locality=6, shard=(2, 3)) as loader:
        same_batches(list(loader), [local.batch(0, index) for index in range(2, len(local), 3)])
        assert isinstance(loader._producer, RemoteProducer)
        servers = {server.rank for server in loader._producer._servers if server.info is not None}
        made = {loader._producer._servers[place].rank for place in loader._producer._makers.busy}
        assert len(made) < 3
        assert servers == made | {0}  # the client's own, which says who owns what


def test_servers_that_own_nothing_of_a_batch_make_it_all_the_same(job: Job, whole: Path) -> None:
    expected = [open_local(whole).batch(0, index) for index in range(len(open_local(whole)))]
    for ranks in ([1], [2, 0]):
        with open_remote(ranks, together=2) as loader:
            same_batches(list(loader), expected)


@pytest.mark.parametrize("num_trainers", [1, 2, 3, pytest.param(5, marks=pytest.mark.thorough)])
def test_any_number_of_trainers_and_modes(job: Job, whole: Path, num_trainers: int) -> None:
    """A trainer's shard is what it is without locality: every so many-th batch, whoever makes it."""
    expected = [open_local(whole).batch(0, index) for index in range(len(open_local(whole)))]
    for index in range(num_trainers):
        shard = (index, num_trainers)
        for together in (1, 2, 5):
            with open_remote(shard=shard, together=together) as loader:
                same_batches(list(loader), expected[index::num_trainers])
        arguments = {**SETTINGS, "edge_dir": "in", "collect_features": True, "random_seed": 1, "shard": shard}
        options = CollocatedDistSamplingWorkerOptions()
        with DistNeighborLoader(load(whole), [3, 2], SEEDS, worker_options=options, **arguments) as loader:
            same_batches(list(loader), expected[index::num_trainers])


def test_going_on_elsewhere_in_the_middle(job: Job, whole: Path) -> None:
    local = open_local(whole)
    seen = [batch.input_id for batch in itertools.islice(local, 5)]
    with open_remote(together=3) as loader:
        loader.load_state_dict(local.state_dict())
        seen += [batch.input_id for batch in itertools.islice(loader, 4)]
        state = loader.state_dict()
    left = open_local(whole)
    left.load_state_dict(state)
    seen += [batch.input_id for batch in left]
    assert sorted(torch.cat(seen).tolist()) == list(range(len(SEEDS)))
    with open_remote(locality=2) as other, pytest.raises(InvalidArgumentError, match="locality was 4 and is 2"):
        other.load_state_dict(state)


def test_batches_are_asked_for_without_a_deadline(job: Job) -> None:
    """A reader may do other things for longer than any request may take; its own wait has a deadline."""
    with open_remote() as loader:
        assert isinstance(loader._producer, RemoteProducer)
        assert loader._producer._timeout_s == 60
        for server in loader._producer._servers:
            assert server.remote._timeout_s == 60
            assert server.making._timeout_s is not None
            assert server.making._timeout_s > 24 * 3600
