"""A job that goes on in another mode, with other numbers of servers, workers and trainers: the same bits, each once."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistLinkNeighborLoader,
    DistLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    init_client,
)
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader, merge_states
from graphlearn_dist.typing import Split
from tests.support.jobs import Job, load, make_partitions, running_servers
from tests.support.oracle import assert_same, pyg_tensors
from tests.support.processes import start

pytestmark = pytest.mark.usefixtures("one_fork_server")

HERE = "tests.distributed.test_resume_modes"
LINKS = torch.stack([torch.arange(50), torch.arange(50).flip(0)])
BATCH, NUM_BATCHES = 6, 9  # 50 inputs
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "with_edge": True}
MODES: dict[str, Any] = {
    "collocated": CollocatedDistSamplingWorkerOptions(prefetch_size=3),
    "mp": MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB"),
    "remote": RemoteDistSamplingWorkerOptions(rpc_timeout=60),  # both servers
    "one server": RemoteDistSamplingWorkerOptions(server_rank=0, prefetch_size=1, rpc_timeout=60),  # all these seeds
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1, splits=True)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A client of two servers of two partitions, which agree on the training nodes but not on those for validation."""
    root = tmp_path_factory.mktemp("halves")
    halves = make_partitions(root / "graph", 2, splits=True)
    other = make_partitions(root / "other", 2, splits=True, valid=range(59, 49, -1))
    with running_servers(halves, other) as servers, servers.client():
        yield servers


def open_local(whole: Path, kind: str) -> Any:
    data, options = load(whole), {**SETTINGS, "seed": 1}
    if kind == "links":
        return LinkNeighborLoader(data, [3, 2], edge_label_index=LINKS, neg_sampling="binary", **options)
    if kind == "subgraph":
        return SubGraphLoader(data, Split.train, [3], **options)
    return NeighborLoader(data, [3, 2], Split.train, **options)


def open_loader(whole: Path, kind: str, mode: str, shard: tuple[int, int] = (0, 1)) -> Any:
    if mode == "local":
        return open_local(whole, kind)
    data = None if isinstance(MODES[mode], RemoteDistSamplingWorkerOptions) else load(whole)
    options: dict[str, Any] = {
        **SETTINGS, "edge_dir": "in", "collect_features": True, "random_seed": 1, "worker_options": MODES[mode],
        "shard": shard,
    }  # fmt: skip
    if kind == "links":
        return DistLinkNeighborLoader(data, [3, 2], edge_label_index=LINKS, neg_sampling="binary", **options)
    # The seeds are named: a server looks them up, and still they are the same inputs.
    if kind == "subgraph":
        return DistSubGraphLoader(data, Split.train, [3], **options)
    return DistNeighborLoader(data, [3, 2], Split.train, **options)


def close(loader: Any) -> None:
    if isinstance(loader, DistLoader):
        loader.shutdown()


# What is taken by a loader of each mode, one after the other.
PIECES: dict[str, list[tuple[str, int]]] = {
    "node": [("local", 2), ("remote", 3), ("mp", 5), ("collocated", 4), ("one server", 1), ("local", 4)],
    "links": [("collocated", 8), ("remote", 10), ("local", 1)],
    "subgraph": [("mp", 4), ("local", 5), ("one server", 10)],
}


@pytest.mark.parametrize("kind", PIECES)
def test_every_mode_goes_on_where_another_stopped(job: Job, whole: Path, kind: str) -> None:
    """Two epochs and a bit, in pieces, each by a new loader of another mode, with batches under way when it ends."""
    oracle = open_local(whole, kind)
    names = itertools.product(range(3), range(NUM_BATCHES))
    state = None
    for mode, count in PIECES[kind]:
        loader = open_loader(whole, kind, mode)
        assert (len(loader), loader.epoch) == (NUM_BATCHES, -1)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        for batch, name in zip(itertools.islice(epochs, count), names, strict=False):
            assert_same(pyg_tensors(batch), pyg_tensors(oracle.batch(*name)))
            assert loader.epoch == name[0]
        state = json.dumps(loader.state_dict())
        close(loader)
        assert json.dumps(loader.state_dict()) == state  # of a loader that was shut down, too
    assert next(names) == (2, 1)
    saved = json.loads(state)
    assert (saved["epoch"], saved["next_batch"]) == (2, 1)


def delivered(batches: list[Any]) -> list[int]:
    return [position for batch in batches for position in batch.input_id.tolist()]


def check_three_go_on(whole: Path, mode: str, state: dict[str, Any], seen: list[int]) -> None:
    """Three trainers deliver what is left, and the next epoch."""
    later: list[int] = []
    for index in range(3):
        with open_loader(whole, "node", mode, (index, 3)) as loader:
            loader.load_state_dict(state)
            seen = seen + delivered(list(loader))
            later += delivered(list(loader))
            ended = loader.state_dict()
            assert (ended["epoch"], ended["next_batch"]) == (2, 0)
    assert sorted(seen) == sorted(later) == list(range(50))


@pytest.mark.parametrize("steps", [[2, 2], [1, 3]])
def test_another_number_of_trainers(whole: Path, steps: list[int]) -> None:
    """Two trainers, then three: every input once; out of step, their states are merged."""
    seen, states = [], []
    for index, count in enumerate(steps):
        with open_loader(whole, "node", "collocated", (index, 2)) as loader:
            seen += delivered(list(itertools.islice(loader, count)))
            states.append(loader.state_dict())
    state = json.loads(json.dumps(states[1] if steps[0] == steps[1] else merge_states(states)))
    check_three_go_on(whole, "collocated", state, seen)


def train(port: int, index: int, count: int) -> None:
    """One of several trainers; tells of each batch and then waits for a word."""
    init_client(2, 1 + count, 1 + index, "127.0.0.1", port, is_dynamic=True)
    loader = open_loader(Path(), "node", "remote", (index, count))
    for batch in loader:
        print(json.dumps([batch.input_id.tolist(), loader.state_dict()]), flush=True)
        sys.stdin.readline()


def test_trainers_that_are_killed(job: Job, whole: Path) -> None:
    """Two die in the middle of an epoch, out of step; three others go on from what they said last, on one server."""
    seen, states = [], []
    with ExitStack() as stack:
        places = [{"port": job.port, "index": index, "count": 2} for index in range(2)]
        trainers = [stack.enter_context(start(f"{HERE}.train", **place)) for place in places]
        for trainer, num_steps in zip(trainers, [1, 3], strict=True):
            for step in range(num_steps):
                ids, state = json.loads(trainer.readline())
                seen += ids
                if step + 1 < num_steps:
                    trainer.tell()
            states.append(state)
            trainer.send_signal(signal.SIGKILL)
    check_three_go_on(whole, "one server", merge_states(states), seen)


def test_iter_alone_begins_nothing_and_a_running_loop_is_not_touched(job: Job, whole: Path) -> None:
    oracle = open_local(whole, "node")
    with open_loader(whole, "node", "remote") as loader:
        unused, used = iter(loader), iter(loader)
        first = next(used)
        saved = loader.state_dict()
        iter(loader)
        second = next(used)
        loader.load_state_dict(saved)
        rest = [first, second, *used]
        for index, batch in enumerate(rest):
            assert_same(pyg_tensors(batch), pyg_tensors(oracle.batch(0, index)))
        again = [next(unused), *unused]
        assert [batch.n_id.tolist() for batch in again] == [batch.n_id.tolist() for batch in rest[1:]]
        assert loader.epoch == 0


def test_a_batch_that_failed(whole: Path) -> None:
    """It was not delivered, until the loop goes on to the next."""
    failing = iter([False, True, *[False] * (NUM_BATCHES - 2)])

    def fail(batch: Any) -> Any:
        if next(failing):
            raise KeyError("no such attribute")
        return batch

    options: dict[str, Any] = {"batch_size": BATCH, "edge_dir": "in", "worker_options": MODES["collocated"]}
    with DistNeighborLoader(load(whole), [3], Split.train, **options, transform=fail) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(KeyError):
            next(iterator)
        assert loader.state_dict()["next_batch"] == 1
        next(iterator)
        assert loader.state_dict()["next_batch"] == 3
        assert len(list(iterator)) == NUM_BATCHES - 3
        assert loader.state_dict()["epoch"] == 1


def test_other_settings_are_named(job: Job, whole: Path) -> None:
    with open_loader(whole, "node", "remote") as loader:
        links = open_local(whole, "links")
        with pytest.raises(InvalidArgumentError, match=r"sampling_type was 'link' and is 'node'; inputs was .*neg"):
            loader.load_state_dict(links.state_dict())


def test_servers_that_find_as_many_but_other_inputs(job: Job) -> None:
    with pytest.raises(InvalidArgumentError, match=r"same seeds, got .*0: '10 \((\w{16})\)', 1: '10 \((?!\1)"):
        DistNeighborLoader(None, [3], Split.valid, edge_dir="in", worker_options=MODES["remote"])
