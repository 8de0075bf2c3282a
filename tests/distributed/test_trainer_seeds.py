"""Trainers of a group that are given neither shard nor seed draw other batches; a split of named servers is theirs."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_worker_group,
    shutdown_client,
)
from graphlearn_dist.distributed.dist_context import _reset_context
from graphlearn_dist.distributed.session.trainer_seeds import loader_seed
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader, SubGraphLoader
from graphlearn_dist.typing import Split
from tests.support.jobs import Job, load, make_partitions, running_servers, same_batches
from tests.support.oracle import assert_same, pyg_tensors
from tests.support.processes import start

pytestmark = pytest.mark.usefixtures("one_fork_server")

NUM_TRAINERS = 2
COMMON: dict[str, Any] = {"batch_size": 8, "shuffle": True, "collect_features": True}
LINKS = torch.stack([torch.arange(50), torch.arange(50).flip(0)])
KINDS: dict[str, Callable[..., Any]] = {
    "node": lambda data, **options: DistNeighborLoader(data, [2, 2], Split.train, **options),
    "link": lambda data, **options: DistLinkNeighborLoader(
        data, [2, 2], edge_label_index=LINKS, neg_sampling="binary", **options
    ),
    "subgraph": lambda data, **options: DistSubGraphLoader(data, Split.train, [2], **options),
}
MODES: dict[str, Any] = {
    "collocated": None,
    "collocated, ahead": CollocatedDistSamplingWorkerOptions(prefetch_size=3),
    "mp": MpDistSamplingWorkerOptions(channel_size="16MB"),
    "remote": RemoteDistSamplingWorkerOptions(rpc_timeout=60),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1, splits=True)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Server 0 owns the nodes below 60: all for training and validation; server 1 the others, for the test."""
    return make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2, splits=True)


@pytest.fixture(scope="module")
def job(halves: Path) -> Iterator[Job]:
    with running_servers(halves, halves) as servers:
        yield servers


@contextlib.contextmanager
def trainer(job: Job, mode: str, rank: int) -> Iterator[None]:
    """This process as one of the trainers."""
    if mode != "remote":
        init_worker_group(NUM_TRAINERS, rank)
    else:
        init_client(2, NUM_TRAINERS, rank, "127.0.0.1", job.port, is_dynamic=True)
    try:
        yield
    finally:
        shutdown_client()
        _reset_context()


def open_loader(whole: Path, kind: str, mode: str, **changes: Any) -> Any:
    data = None if mode == "remote" else load(whole)
    return KINDS[kind](data, worker_options=MODES[mode], edge_dir="in", **{**COMMON, **changes})


def epoch(job: Job, whole: Path, kind: str, mode: str, rank: int, **changes: Any) -> tuple[list[Any], dict[str, Any]]:
    with trainer(job, mode, rank), open_loader(whole, kind, mode, **changes) as loader:
        return [pyg_tensors(batch) for batch in loader], loader.state_dict()


def assert_same_epochs(one: list[Any], other: list[Any]) -> None:
    for batch, wanted in zip(one, other, strict=True):
        assert_same(batch, wanted)


@pytest.mark.parametrize(("kind", "mode"), list(itertools.product(KINDS, MODES)))
def test_trainers_draw_other_batches(job: Job, whole: Path, kind: str, mode: str) -> None:
    """Of the same inputs, each once; rank 0 those of a single process; the state names the seed, which gives them."""
    with open_loader(whole, kind, "collocated") as loader:
        alone = [pyg_tensors(batch) for batch in loader]
    first, first_state = epoch(job, whole, kind, mode, 0)
    assert_same_epochs(first, alone)
    second, state = epoch(job, whole, kind, mode, 1)
    order = [torch.cat([batch["input_id."] for batch in batches]).tolist() for batches in (first, second)]
    assert order[0] != order[1]
    assert sorted(order[0]) == sorted(order[1]) == list(range(50))
    assert first_state["seed"] == 0 != state["seed"]
    again, _ = epoch(job, whole, kind, mode, 1)
    assert_same_epochs(again, second)
    named, _ = epoch(job, whole, kind, mode, 0, random_seed=state["seed"])
    assert_same_epochs(named, second)


@pytest.mark.parametrize("changes", [{"random_seed": 3}, {"shard": (0, 1)}])
@pytest.mark.parametrize("mode", MODES)
def test_a_seed_or_a_shard_holds(job: Job, whole: Path, mode: str, changes: dict[str, Any]) -> None:
    """Trainers that are given one draw alike: shards have to, that they are one epoch."""
    first, _ = epoch(job, whole, "node", mode, 0, **changes)
    second, _ = epoch(job, whole, "node", mode, 1, **changes)
    assert_same_epochs(first, second)


def test_neighbors_differ_without_shuffle_too(job: Job, whole: Path) -> None:
    first, second = (epoch(job, whole, "node", "collocated", rank, shuffle=False)[0] for rank in range(2))
    seeds = [[batch["input_id."].tolist() for batch in batches] for batches in (first, second)]
    assert seeds[0] == seeds[1]
    assert [batch["n_id."].tolist() for batch in first] != [batch["n_id."].tolist() for batch in second]


@pytest.mark.parametrize("mode", MODES)
def test_each_trainer_goes_on_from_its_own_state(job: Job, whole: Path, mode: str) -> None:
    expected, _ = epoch(job, whole, "node", mode, 1)
    with trainer(job, mode, 1), open_loader(whole, "node", mode) as loader:
        for _ in itertools.islice(loader, 3):
            pass
        saved = json.dumps(loader.state_dict())
    with trainer(job, mode, 1), open_loader(whole, "node", mode) as loader:
        loader.load_state_dict(json.loads(saved))
        assert_same_epochs([pyg_tensors(batch) for batch in loader], expected[3:])
    seed = json.loads(saved)["seed"]
    with trainer(job, mode, 0), open_loader(whole, "node", mode) as loader:
        with pytest.raises(InvalidArgumentError, match=f"seed was {seed} and is 0; give it the seed of the state"):
            loader.load_state_dict(json.loads(saved))
    local = NeighborLoader(load(whole), [2, 2], Split.train, batch_size=8, shuffle=True, seed=seed)
    local.load_state_dict(json.loads(saved))
    assert_same_epochs([pyg_tensors(batch) for batch in local], expected[3:])


def test_seeds_of_ranks(tmp_path: Path) -> None:
    """All different; of ``torch.distributed`` where the process is in no group."""
    try:
        seeds = []
        for rank in range(1000):
            init_worker_group(1000, rank)
            seeds.append(loader_seed(None, None))
            assert (loader_seed(None, (1, 2)), loader_seed(7, None), loader_seed(7, (1, 2))) == (0, 7, 7)
    finally:
        _reset_context()
    assert seeds[0] == loader_seed(None, None) == 0
    assert len(set(seeds)) == 1000
    assert min(seeds[1:]) > 1 << 40  # none that a program would give
    store = dist.FileStore(str(tmp_path / "store"), 2)
    dist.init_process_group("fake", store=store, rank=1, world_size=2)
    try:
        assert loader_seed(None, None) == seeds[1]
    finally:
        dist.destroy_process_group()


# --- splits of named servers -----------------------------------------------------------------------------------


def seeds_of(servers: Any, split: Split, kind: type = DistNeighborLoader) -> list[int]:
    options = RemoteDistSamplingWorkerOptions(server_rank=servers, rpc_timeout=60)
    with kind(None, input_nodes=split, num_neighbors=[2], batch_size=7, worker_options=options) as loader:
        found = [batch.n_id[: batch.batch_size] for batch in loader]
        return torch.cat(found).tolist() if found else []


def spread(directory: Path) -> Path:
    """Two partitions with seeds of every split in both."""
    return make_partitions(directory, 2, splits=True, valid=[58, 59, *range(90, 95)])


@pytest.mark.parametrize("kind", [DistNeighborLoader, DistSubGraphLoader])
def test_a_split_of_named_servers_is_what_they_own(halves: Path, job: Job, kind: type) -> None:
    with job.client():
        assert seeds_of(None, Split.train, kind) == list(range(50))
        assert seeds_of(0, Split.train, kind) == list(range(50))
        assert seeds_of([1], Split.train, kind) == []
        assert seeds_of(1, Split.test, kind) == list(range(60, 120))


def test_splits_of_several_named_servers(tmp_path: Path) -> None:
    """In the order of the servers; a partition that two of them hold counts once."""
    data = spread(tmp_path / "graph")
    with running_servers(data, data, data, partitions=[0, 1, 1]) as job, job.client():
        assert seeds_of([0, 1], Split.valid) == [58, 59, *range(90, 95)]
        assert seeds_of([1, 0], Split.valid) == [*range(90, 95), 58, 59]
        assert seeds_of([2, 0, 1], Split.valid) == [*range(90, 95), 58, 59]
        assert seeds_of(1, Split.valid) == seeds_of([2], Split.valid) == list(range(90, 95))
        assert seeds_of(None, Split.valid) == [58, 59, *range(90, 95)]


def test_named_servers_that_come_back_have_their_seeds(tmp_path: Path) -> None:
    """A server is killed in an epoch, and started again with another split even: the epoch is what it was."""
    data = spread(tmp_path / "graph")
    other = make_partitions(tmp_path / "other", 2, splits=True, valid=range(50, 60))
    wanted = torch.tensor([*range(90, 95), 58, 59])
    whole = load(make_partitions(tmp_path / "whole", 1))
    oracle = NeighborLoader(whole, [2], wanted, batch_size=1, shuffle=True)
    with running_servers(data, data) as job, job.client(), contextlib.ExitStack() as stack:
        options = RemoteDistSamplingWorkerOptions([1, 0], rpc_timeout=60, prefetch_size=1)
        loader = DistNeighborLoader(None, [2], Split.valid, 1, True, collect_features=True, worker_options=options)
        iterator = iter(stack.enter_context(loader))
        seen = list(itertools.islice(iterator, 2))
        job.servers[1].kill()
        arguments = {"num_servers": 2, "num_clients": 0, "port": job.port, "fd": -1, "partition": -1}
        stack.enter_context(start("tests.support.jobs.serve", directory=str(other), rank=1, **arguments))
        seen += list(iterator)
        assert len(seen) == len(wanted)
        same_batches(seen, oracle)


def test_local_loaders_are_as_they_were(whole: Path) -> None:
    """No trainer's rank enters the loaders of one process."""
    dataset = load(whole)
    alone = list(SubGraphLoader(dataset, Split.train, [2], batch_size=8, shuffle=True))
    try:
        init_worker_group(2, 1)
        same_batches(SubGraphLoader(dataset, Split.train, [2], batch_size=8, shuffle=True), alone)
    finally:
        _reset_context()
