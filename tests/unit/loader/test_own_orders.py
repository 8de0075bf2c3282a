"""A program's own ``sampler`` or ``batch_sampler``, as torch's ``DataLoader`` has them: asked as batches are made, to
its end, whatever its length says, if it has one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler
from torch_geometric.data import Data

from graphlearn_dist.data.sources import GraphSource
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader, merge_states
from graphlearn_dist.telemetry.samples import collect

NUM_NODES = 50
PAIRS = torch.randperm(NUM_NODES**2, generator=torch.Generator().manual_seed(1))[:200]
DATA = Data(x=torch.randn(NUM_NODES, 4), edge_index=torch.stack([PAIRS // NUM_NODES, PAIRS % NUM_NODES]))


class Endless(Sampler[int]):
    """Positions without an end, or some; counts what it was asked for."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count
        self.num_asked = 0

    def __iter__(self) -> Iterator[int]:
        for number in itertools.count() if self._count is None else range(self._count):
            self.num_asked += 1
            yield number % NUM_NODES


class Sized(Endless):
    """The same, with a length that it says."""

    def __init__(self, count: int | None, said: int) -> None:
        super().__init__(count)
        self._said = said

    def __len__(self) -> int:
        return self._said


def loader_of(**keywords: Any) -> NeighborLoader:
    return NeighborLoader(DATA, [2], **{"seed": 3, **keywords})


def positions(loader: NeighborLoader) -> list[list[int]]:
    return [batch.input_id.tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("said", [5, 12, 20, None])
def test_it_is_followed_to_its_end(said: int | None, num_workers: int) -> None:
    own = Endless(12) if said is None else Sized(12, said)
    expected = [part.tolist() for part in DataLoader(range(NUM_NODES), sampler=own, batch_size=5)]  # type: ignore[arg-type]
    loader = loader_of(sampler=own, batch_size=5, num_workers=num_workers)
    for epoch in range(3):
        assert positions(loader) == expected
        assert (loader.epoch, loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (epoch, epoch + 1, 0)
    assert loader.num_remaining == (0 if said is None else -(-said // 5))


def test_one_without_a_length() -> None:
    class Batches:
        def __iter__(self) -> Iterator[list[int]]:
            yield [1, 2]
            yield [3]

    loader = loader_of(batch_sampler=Batches())
    assert positions(loader) == [[1, 2], [3]]
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
    iterator = iter(loader)
    next(iterator)
    assert list(collect())  # whoever looks at loaders meanwhile sees no error
    assert [batch.input_id.tolist() for batch in iterator] == [[3]]


def test_one_without_an_end_is_asked_as_batches_are_made() -> None:
    own = Sized(None, NUM_NODES)
    batches = iter(loader_of(sampler=own, batch_size=5, num_workers=0))
    for count in range(1, 15):
        next(batches)
        assert own.num_asked == 5 * count
    ahead = Endless()
    batches = iter(loader_of(sampler=ahead, batch_size=5, num_workers=2, prefetch_factor=2))
    for _ in range(14):
        next(batches)
    assert ahead.num_asked <= 5 * (14 + 2 * 2)


def test_an_order_that_fails_ends_no_epoch() -> None:
    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            yield [1]
            raise ValueError("the program's")

    loader = loader_of(batch_sampler=Failing(), num_workers=0)
    batches = iter(loader)
    next(batches)
    with pytest.raises(ValueError, match="the program's"):
        next(batches)
    assert list(batches) == []
    assert (loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (0, 1)


def test_a_state_in_the_middle_of_an_order() -> None:
    """Of more batches than there are seeds, too."""
    own = [[number % NUM_NODES] for number in range(NUM_NODES + 20)]
    loader = loader_of(batch_sampler=own)
    batches = iter(loader)
    given = [next(batches).input_id.tolist() for _ in range(NUM_NODES + 5)]
    assert loader.num_remaining == 15
    state = loader.state_dict()
    other = loader_of(batch_sampler=own)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.num_remaining == 15
    assert given + positions(other) == own
    list(batches)
    other.load_state_dict(loader.state_dict())  # an epoch's begin says nothing of an order
    assert positions(other) == own


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_order_that_does_not_begin_as_it_did_is_refused(num_workers: int) -> None:
    """What was given before would come again, or never."""

    def loader_with(order: Any) -> NeighborLoader:
        return loader_of(batch_sampler=order, num_workers=num_workers)

    order = [[1, 2], [3], [4, 5], [6]]
    loader = loader_with(order)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    del batches  # errors would hold it by this frame, and it its threads
    for other in ([[1, 3], [2], [4, 5], [6]], [[1], [2, 3], [4, 5]], [[1, 2], [7], [8]], [[1, 2]], []):
        changed = loader_with(other)
        changed.load_state_dict(state)
        with pytest.raises(InvalidArgumentError, match="sampler, batch_sampler: expected an order that begins"):
            next(iter(changed))
        changed.set_epoch(state["epoch"] + 1)  # another epoch has another order
        assert positions(changed) == other
    again = loader_with([*order[:2], [8], [9]])  # what comes is the program's business
    again.load_state_dict(state)
    assert positions(again) == [[8], [9]]
    whole = loader_with([[7], [8]])
    whole.load_state_dict(state)
    whole.set_epoch(5)
    whole.set_epoch(state["epoch"])  # all of it
    assert positions(whole) == [[7], [8]]


def test_states_of_several_iterations_and_of_batches_that_fail() -> None:
    order = [[number] for number in range(8)]
    loader = loader_of(batch_sampler=order, num_workers=0)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    for _ in range(3):
        next(newer)
    next(older)
    state = loader.state_dict()
    other = loader_of(batch_sampler=order)
    other.load_state_dict(state)
    assert (state["epoch"], state["next_batch"]) == (1, 3)
    assert positions(other) == order[3:]


def test_one_whose_length_raises() -> None:
    """As that of PyG's ``DynamicBatchSampler`` does."""

    class Unsized:
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[1], [2]])

        def __len__(self) -> int:
            raise ValueError("undefined")

    dataset = GraphSource.from_pyg(DATA).to_dataset()
    for loader in (loader_of(batch_sampler=Unsized()), NeighborLoader(dataset, [2], None, batch_sampler=Unsized())):
        batches = iter(loader)
        next(batches)
        assert loader.num_remaining == 0
        assert loader.stats().batches == 1
        assert [status.remaining for status in loader.status()] == [0]
        assert "as its sampler gives them" in repr(loader) or loader.is_over_pyg
        assert len(list(batches)) == 1


def test_a_state_that_is_loaded_beside_an_iteration() -> None:
    source = loader_of(batch_sampler=[[1], [2], [3], [4]], num_workers=0)
    batches = iter(source)
    for _ in range(3):
        next(batches)
    state = source.state_dict()
    loader = loader_of(batch_sampler=[[11], [12], [13], [14], [15]], num_workers=0)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    loader.load_state_dict(state)
    next(batches)
    assert loader.state_dict() == state
    with pytest.raises(InvalidArgumentError, match="expected an order that begins"):
        next(iter(loader))


def test_the_last_batch_that_its_length_tells_of_ends_an_epoch() -> None:
    loader = loader_of(batch_sampler=[[1], [2], [3]], num_workers=0)
    for _ in zip(range(len(loader)), loader, strict=False):
        state = loader.state_dict()
    assert (state["epoch"], state["next_batch"]) == (1, 0)


def test_states_are_merged() -> None:
    loader = loader_of(batch_sampler=[[number % NUM_NODES] for number in range(NUM_NODES + 20)], num_workers=0)
    batches = iter(loader)
    for _ in range(NUM_NODES + 5):
        next(batches)
    assert merge_states([loader.state_dict()]) == loader.state_dict()
    with pytest.raises(InvalidArgumentError, match="state_dict: expected a place below batch"):
        loader.load_state_dict({**loader.state_dict(), "next_batch": 1 << 60})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_batches_may_be(num_workers: int) -> None:
    reused = torch.zeros(2, dtype=torch.int64)

    class Order:
        def __iter__(self) -> Iterator[Any]:
            yield {7}
            yield (number for number in (1, 2))
            yield np.array([3, 4], dtype=np.uint32)
            yield []
            for number in range(5):
                reused.fill_(number)
                yield reused

    expected = [[7], [1, 2], [3, 4], [], *([number] * 2 for number in range(5))]
    assert positions(loader_of(batch_sampler=Order(), num_workers=num_workers)) == expected
    with pytest.raises(InvalidArgumentError, match="expected the positions of each batch, got 3"):
        positions(loader_of(batch_sampler=[3], num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_an_order_gave_before_it_failed_is_handed_out(num_workers: int) -> None:
    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            yield from [[1], [2], [3]]
            raise ValueError("the program's")

    batches = iter(loader_of(batch_sampler=Failing(), num_workers=num_workers))
    assert [next(batches).input_id.tolist() for _ in range(3)] == [[1], [2], [3]]
    with pytest.raises(ValueError, match="the program's"):
        next(batches)
