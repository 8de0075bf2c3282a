"""Saved and loaded places: each batch is delivered once, with the same bits, whoever goes on and with how many."""

from __future__ import annotations

import io
import json
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.stateful import Stateful

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader, merge_states
from graphlearn_dist.loader.epochs import EpochLoader
from graphlearn_dist.loader.resume import Shard
from graphlearn_dist.sampler.epochs.fingerprint import Settings
from graphlearn_dist.sampler.epochs.schedule import BatchIndices
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.oracle import assert_same, pyg_tensors

MAX_BATCHES = 40


class Indices(EpochLoader):
    """Its batches are (epoch, index)."""

    def __init__(self, num_batches: int, shard: Shard | None = None) -> None:
        super().__init__(shard or Shard())
        self.count = num_batches

    @property
    def _num_batches(self) -> int:
        return self.count

    def _settings(self) -> Settings:
        return {"num_inputs": self.count, "batch_size": 1, "drop_last": 0}

    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        return iter([(index, (epoch, index)) for index in indices])


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """What a new process reads of it."""
    text = json.dumps(state)
    assert len(text) < 1024
    return dict(json.loads(text))


def take(iterator: Iterator[Any], count: int) -> list[Any]:
    return [batch for _, batch in zip(range(count), iterator, strict=False)]


# --- which batches ---------------------------------------------------------------------------------------------


def test_batches_that_remain() -> None:
    """``len`` is of a whole epoch; ``num_remaining`` of what comes: before, in and after a loop, left, and resumed."""
    loader = Indices(10, Shard(1, 3))  # batches 1, 4, 7
    assert (len(loader), loader.num_remaining) == (3, 3)
    iterator = iter(loader)
    assert [(next(iterator), loader.num_remaining)[1] for _ in range(3)] == [2, 1, 0]
    assert loader.num_remaining == 0
    assert list(iterator) == []
    assert loader.num_remaining == 3  # of the next epoch
    take(iter(loader), 1)
    assert loader.num_remaining == 2  # of the loop that was left, whose place state_dict() gives
    loader.set_epoch(5)
    assert loader.num_remaining == 3
    whole = Indices(10)
    take(iter(whole), 4)
    for num_shards, expected in ((1, [6]), (4, [2, 2, 1, 1])):
        job = [Indices(10, Shard(i, num_shards)) for i in range(num_shards)]
        for other in job:
            other.load_state_dict(through_json(whole.state_dict()))
        assert [other.num_remaining for other in job] == expected
        assert [len(list(other)) for other in job] == expected
        assert [other.num_remaining for other in job] == [len(other) for other in job]


@given(st.integers(0, MAX_BATCHES), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), max_size=5))
def test_shards_in_step_go_on_from_the_state_of_any(num_batches: int, phases: list[tuple[int, int]]) -> None:
    """Each phase has another number of shards, all of which take the same number of steps."""
    delivered, state = [], Indices(num_batches).state_dict()
    for num_shards, num_steps in phases:
        job = [Indices(num_batches, Shard(i, num_shards)) for i in range(num_shards)]
        for loader in job if state["epoch"] == 0 else ():
            loader.load_state_dict(through_json(state))
            delivered += take(iter(loader), num_steps)
        if state["epoch"] == 0:
            assert len({place(loader) for loader in job}) == 1
            state = job[-1].state_dict()
    last = Indices(num_batches)
    last.load_state_dict(state)
    delivered += list(last) if state["epoch"] == 0 else []
    assert sorted(delivered) == [(0, index) for index in range(num_batches)]


@given(st.integers(1, MAX_BATCHES), st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), max_size=4))
def test_shards_out_of_step_go_on_from_their_merged_states(num_batches: int, phases: list[list[int]]) -> None:
    """Each shard of each phase takes its own number of steps; at the end one shard takes what is left."""
    delivered, state = [], Indices(num_batches).state_dict()
    for steps in phases:
        job = [Indices(num_batches, Shard(i, len(steps))) for i in range(len(steps))]
        for loader, num_steps in zip(job, steps, strict=True):
            loader.load_state_dict(through_json(state))
            if state["epoch"] == 0:
                delivered += take(iter(loader), num_steps)
        state = merge_states([through_json(loader.state_dict()) for loader in reversed(job)])
    last = Indices(num_batches)
    last.load_state_dict(state)
    if state["epoch"] == 0:
        delivered += list(last)
    assert sorted(delivered) == [(0, index) for index in range(num_batches)]
    assert next(iter(last)) == (1, 0)


@given(st.integers(1, MAX_BATCHES), st.integers(1, 4), st.data())
def test_shards_out_of_step_go_on_each_from_its_own(num_batches: int, num_shards: int, data: st.DataObject) -> None:
    delivered = []
    for index in range(num_shards):
        state = Indices(num_batches, Shard(index, num_shards)).state_dict()
        for num_steps in data.draw(st.lists(st.integers(0, 6), max_size=4)):
            loader = Indices(num_batches, Shard(index, num_shards))
            loader.load_state_dict(through_json(state))
            delivered += take(iter(loader), num_steps)
            state = loader.state_dict()
        last = Indices(num_batches, Shard(index, num_shards))
        last.load_state_dict(state)
        delivered += list(last) if state["epoch"] == 0 else []
    assert sorted(index for epoch, index in delivered if epoch == 0) == [*range(num_batches)]


def test_states_that_belong_to_no_job() -> None:
    first, second = (Indices(9, Shard(i, 2)) for i in range(2))
    with pytest.raises(InvalidArgumentError, match="states: expected one for each shard, got none"):
        merge_states([])
    for states in ([first], [first, first], [first, second, Indices(9)]):
        with pytest.raises(InvalidArgumentError, match="states: expected one of each shard of a job"):
            merge_states([loader.state_dict() for loader in states])
    with pytest.raises(InvalidArgumentError, match="num_inputs was 8 and is 9"):
        merge_states([first.state_dict(), Indices(8, Shard(1, 2)).state_dict()])
    for _ in range(2):
        next(iter(first))
    with pytest.raises(InvalidArgumentError, match="states: expected at most one epoch in progress"):
        merge_states([first.state_dict(), second.state_dict()])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_shards": 10**15}, "states: expected one of each shard of a job"),
        ({"num_shards": 0}, "shard: expected"),
        ({"batch_size": 0}, "batch_size: expected"),
        ({"num_inputs": -1}, "num_inputs: expected"),
        ({"next_batch": 10**15}, "expected a place in an epoch"),
    ],
)
def test_states_of_wrong_numbers(changes: dict[str, Any], message: str) -> None:
    """Nothing is made as large as a number says before it is known to be right."""
    with pytest.raises(InvalidArgumentError, match=message):
        merge_states([Indices(9).state_dict() | changes])


# --- when ------------------------------------------------------------------------------------------------------


def place(loader: EpochLoader) -> tuple[int, int]:
    state = loader.state_dict()
    return state["epoch"], state["next_batch"]


def test_an_epoch_begins_with_its_first_batch() -> None:
    loader = Indices(3)
    unused, used = iter(loader), iter(loader)
    assert (loader.epoch, place(loader)) == (-1, (0, 0))
    assert next(used) == (0, 0)
    assert (loader.epoch, place(loader)) == (0, (0, 1))
    iter(loader)
    assert [next(used), *used] == [(0, 1), (0, 2)]
    assert next(unused) == (1, 0)  # it begins only now


def test_states_over_the_life_of_a_loader() -> None:
    loader = Indices(3)
    places = [place(loader)]
    for _ in loader:
        places.append(place(loader))
    places.append(place(loader))
    assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 0)]
    for _ in loader:
        break
    assert place(loader) == (1, 1)  # of the loop that was left, until another begins
    iterator = iter(loader)
    assert place(loader) == (1, 1)
    next(iterator)
    assert place(loader) == (2, 1)


def test_a_state_loaded_during_an_iteration_is_for_the_next() -> None:
    loader, other = Indices(4), Indices(4)
    take(iter(other), 3)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(other.state_dict())
    assert place(loader) == (0, 3)
    assert list(iterator) == [(0, 1), (0, 2), (0, 3)]
    assert place(loader) == (0, 3)
    iter(loader)  # begins nothing
    assert list(loader) == [(0, 3)]
    assert list(loader) == [(1, index) for index in range(4)]


def test_a_state_of_the_end_is_one_of_the_next_epoch() -> None:
    loader = Indices(2)
    assert len(list(loader)) == 2
    later = Indices(2)
    later.load_state_dict(loader.state_dict())
    assert list(later) == [(1, 0), (1, 1)]
    empty = Indices(0)
    assert list(empty) == list(empty) == []
    assert place(empty) == (2, 0)


def test_epochs_chosen_from_outside() -> None:
    loader = Indices(3)
    loader.set_epoch(4)
    assert place(loader) == (4, 0)
    assert take(iter(loader), 2) == [(4, 0), (4, 1)]
    state = loader.state_dict()
    loader.set_epoch(5)
    assert list(loader) == [(5, index) for index in range(3)]
    loader.load_state_dict(state)
    loader.set_epoch(4)  # which it is in: what is left of it
    assert list(loader) == [(4, 2)]
    with pytest.raises(InvalidArgumentError, match="epoch: expected an integer of at least 0, got -1"):
        loader.set_epoch(-1)
    with pytest.raises(InvalidArgumentError, match="epoch: expected an int of 64 bits"):
        loader.set_epoch(1 << 63)


# --- loaders in one process ------------------------------------------------------------------------------------


def open_loader(kind: str, prefetch: int = 2, **changes: Any) -> Any:
    dataset = make_dataset(typed_graph(75, 30, 300, 3) if kind == "typed" else random_graph(80, 600, 1))
    options: dict[str, Any] = {"batch_size": 9, "shuffle": True, "with_edge": True, "seed": 3, "prefetch": prefetch}
    options |= changes
    if kind == "links":
        return LinkNeighborLoader(dataset, [3, 2], neg_sampling="binary", **options)
    if kind == "subgraph":
        return SubGraphLoader(dataset, torch.arange(80), [3], **options)
    return NeighborLoader(
        dataset, [3, 2], ("user", torch.arange(75)) if kind == "typed" else torch.arange(80), **options
    )


def same(batches: list[Any], expected: list[Any]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert_same(pyg_tensors(batch), pyg_tensors(other))


KINDS = ["node", "typed", "links", "subgraph"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_read", [0, 1, 4, 7])
def test_a_new_loader_goes_on_with_the_same_bits(kind: str, num_read: int) -> None:
    """Whatever was made ahead: the state counts what the loop was given."""
    oracle, loader = open_loader(kind, 0), open_loader(kind)
    iterator = iter(loader)
    take(iterator, num_read)
    if num_read == 1:  # in the second epoch, for once
        take(iterator := iter(loader), 1)
    state = through_json(loader.state_dict())
    later = open_loader(kind, prefetch=1, num_threads=2)
    later.load_state_dict(state)
    epoch = state["epoch"]
    assert (epoch, state["next_batch"]) == (1 if num_read == 1 else 0, num_read)
    same(list(later), [oracle.batch(epoch, index) for index in range(num_read, len(oracle))])
    same(take(iter(later), 2), [oracle.batch(epoch + 1, index) for index in range(2)])
    del iterator


def test_a_batch_that_failed_was_not_delivered() -> None:
    broken = threading.Event()

    def fail(batch: Any) -> Any:
        if broken.is_set():
            raise KeyError("no such attribute")
        return batch

    loader = open_loader("node", transform=fail)
    iterator = iter(loader)
    take(iterator, 3)
    broken.set()
    with pytest.raises(KeyError):
        next(iterator)
    assert list(iterator) == []  # as after every exception; but it is not the end of the epoch
    assert place(loader) == (0, 3)


# --- wherever states go ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_small_and_plain(kind: str) -> None:
    loader = open_loader(kind)
    next(loader)
    state = loader.state_dict()
    assert all(type(key) is str and type(value) in (int, str) for key, value in state.items())
    assert len(json.dumps(state)) < 1024
    assert len(pickle.dumps(state)) < 1024
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state == json.loads(json.dumps(state))


def test_many_edge_types_fit_as_well() -> None:
    """Long settings are cut, and still compared whole."""
    loader, other = open_loader("node"), open_loader("node")
    fanouts = {("a_node_type_with_a_long_name", f"relation_{i}", "another_node_type"): [15, 10, 5] for i in range(50)}
    loader.config = replace(loader.config, num_neighbors=fanouts)
    other.config = replace(other.config, num_neighbors={**fanouts, ("a", "to", "b"): [1, 1, 1]})
    through_json(loader.state_dict())
    with pytest.raises(InvalidArgumentError, match=r"num_neighbors was .*\.\.\. \w{16}. and is .*\.\.\. \w{16}.$"):
        other.load_state_dict(loader.state_dict())


def test_distributed_checkpoints_of_torch(tmp_path: Path) -> None:
    loader, later = open_loader("node"), open_loader("node")
    assert isinstance(loader, Stateful)
    take(iter(loader), 4)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": later}, checkpoint_id=tmp_path, no_dist=True)
    assert later.state_dict() == loader.state_dict()
    same(take(iter(later), 1), [loader.batch(0, 4)])


def test_nodes_of_torchdata() -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    loader = nodes.Loader(nodes.IterableWrapper(open_loader("node")))
    oracle = open_loader("node", 0)
    take(iter(loader), 4)
    state = json.loads(json.dumps(loader.state_dict()))
    later = nodes.Loader(nodes.IterableWrapper(open_loader("node")))
    later.load_state_dict(state)
    same(list(later), [oracle.batch(0, index) for index in range(4, len(oracle))])
    same(list(later), [oracle.batch(1, index) for index in range(len(oracle))])


# --- states that do not fit ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 8}, "batch_size was 8 and is 9"),
        ({"seed": 4}, "seed was 4 and is 3; give it the seed of the state, or the state of its own trainer"),
        ({"shuffle": False, "drop_last": True}, "shuffle was 0 and is 1; drop_last was 1 and is 0"),
        ({"replace": True}, "replace was 1 and is 0"),
        ({"strategy": "labor"}, "strategy was 'labor' and is 'random'"),
        ({"disjoint": True}, "disjoint was 1 and is 0"),
    ],
)
def test_other_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match=f"^state_dict: it was saved by a loader of other batches: {message}$"
    ):
        open_loader("node").load_state_dict(open_loader("node", **changes).state_dict())


def test_other_inputs_are_named() -> None:
    dataset = make_dataset(random_graph(80, 600, 1))
    seeds = torch.arange(80)

    def check(one: Any, other: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            one.load_state_dict(other.state_dict())

    loader = NeighborLoader(dataset, [3, 2], seeds)
    loader.load_state_dict(NeighborLoader(dataset, (3, 2), seeds).state_dict())  # type: ignore[arg-type]
    check(loader, NeighborLoader(dataset, [3], seeds), r"batches: num_neighbors was '\[3\]' and is '\[3, 2\]'$")
    check(
        loader,
        NeighborLoader(dataset, [3, 2], seeds.flip(0)),
        r"batches: inputs was '[0-9a-f]{16}' and is '[0-9a-f]{16}'$",
    )
    check(loader, NeighborLoader(dataset, [3, 2], seeds[1:]), "num_inputs was 79 and is 80; inputs was")
    check(loader, SubGraphLoader(dataset, seeds, [3, 2]), "sampling_type was 'subgraph' and is 'node'$")
    larger = make_dataset(random_graph(81, 600, 1))
    check(loader, NeighborLoader(larger, [3, 2], seeds), "num_nodes was '81' and is '80'$")
    links = torch.stack([seeds, seeds])
    labels = torch.arange(80) + 1

    def of(links: Any, **options: Any) -> Any:
        return LinkNeighborLoader(dataset, [3], edge_label_index=links, **options)

    check(of(links, edge_label=labels), of(links, edge_label=labels.flip(0)), "batches: inputs was")
    weighted = {"mode": "binary", "amount": 2, "weight": torch.rand(80)}
    plain = of(links, neg_sampling={"mode": "binary", "amount": 2})
    check(plain, of(links, neg_sampling=weighted), "neg_sampling was 'binary, 2, weight .*' and is 'binary, 2'$")
    of(links.to(torch.int32)).load_state_dict(of(links).state_dict())  # what integers ids are kept in does not matter


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "expected what state_dict"),
        ({}, "expected what state_dict"),
        ({"version": 3}, "expected version 2, got 3"),
        ({"version": "2"}, "expected version 2, got '2'"),
        ({"epoch": -1}, "epoch: expected an integer of at least 0, got -1"),
        ({"epoch": 1 << 63}, "epoch: expected an int of 64 bits, got 9223372036854775808"),
        ({"next_batch": "3"}, "next_batch: expected an integer of at least 0, got '3'"),
        ({"next_batch": 10}, "expected a place in an epoch of 9 batches"),
        ({"next_batch": 8, "ahead": "4"}, "expected a place in an epoch of 9 batches"),
        ({"ahead": "-1"}, "ahead: expected a hexadecimal number, got '-1'"),
        ({"batch_size": None}, "batch_size: expected an integer"),
        ({"unknown": 1}, "unknown was 1 and is None"),
    ],
)
def test_what_is_no_state(state: Any, message: str) -> None:
    loader = open_loader("node")
    whole = loader.state_dict() | state if state else state
    with pytest.raises(InvalidArgumentError, match=f"state_dict: .*{message}"):
        loader.load_state_dict(whole)
    assert next(iter(loader)).batch_size == 9


def test_states_of_releases_that_drew_other_batches() -> None:
    """They would be continued with inputs that were delivered before; an epoch's start is a place all the same."""
    loader = open_loader("node")
    old = loader.state_dict() | {"version": 1, "epoch": 3}
    for take_it in (loader.load_state_dict, lambda state: merge_states([state])):
        with pytest.raises(InvalidArgumentError, match=r"expected version 2, got 1: .* other batches .*set_epoch\(3\)"):
            take_it(old)
    assert loader.state_dict()["epoch"] == 0
    loader.set_epoch(old["epoch"])
    assert (loader.state_dict()["epoch"], loader.num_remaining) == (3, len(loader))
