"""Batches made ahead: the same ones, in their order, by threads that end with the loop."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.loader.prefetch import made_ahead
from tests.support.graphs import make_dataset, random_graph
from tests.support.waiting import collect, wait_until

HANG_S = 30.0  # generous: only a hang takes as long


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gld-prefetch")]


def threads_have_gone() -> None:
    """Threads end when the call they are in does; that is waited for, and fails where it takes too long."""
    for thread in prefetchers():
        thread.join(HANG_S)
    assert prefetchers() == []


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    collect()  # what other tests' errors hold of loops that were left
    yield
    threads_have_gone()


def loaders(prefetch: int, num_threads: int = 1) -> list[Any]:
    dataset = make_dataset(random_graph(80, 600, 1))
    options: dict[str, Any] = {"batch_size": 9, "shuffle": True, "with_edge": True}
    options |= {"prefetch": prefetch, "num_threads": num_threads}
    return [
        NeighborLoader(dataset, [3, 2], torch.arange(80), **options),
        LinkNeighborLoader(dataset, [3], neg_sampling="binary", **options),
        SubGraphLoader(dataset, torch.arange(80), [3], **options),
    ]


@pytest.mark.parametrize(("prefetch", "num_threads"), [(1, 1), (2, 3), (5, 2)])
def test_batches_do_not_depend_on_prefetching(prefetch: int, num_threads: int) -> None:
    for ahead, plain in zip(loaders(prefetch, num_threads), loaders(0), strict=True):
        for _ in range(2):
            for one, other in zip(ahead, plain, strict=True):
                assert one.to_dict().keys() == other.to_dict().keys()
                for name, value in one.to_dict().items():
                    assert torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_calls_come_back_in_their_order(num_threads: int) -> None:
    later = threading.Event()

    def make(index: int) -> int:
        if num_threads > 1:  # the first call ends after the second has begun: it was made by another thread meanwhile
            assert index != 0 or later.wait(HANG_S)
            if index == 1:
                later.set()
        return index * index

    assert list(made_ahead(make, range(20), num_threads)) == [i * i for i in range(20)]
    assert list(made_ahead(make, range(0), num_threads)) == []


def test_not_more_is_made_ahead_than_two_calls_a_thread() -> None:
    begun: list[int] = []
    calls = made_ahead(lambda index: begun.append(index), range(100), 2)
    next(calls)
    wait_until(lambda: len(begun) == 5)
    next(calls)
    wait_until(lambda: len(begun) == 6)
    calls.close()
    threads_have_gone()
    assert sorted(begun) == list(range(6))


def test_the_caller_waits_until_all_threads_have_begun() -> None:
    """What ``begin`` changes for a while, the caller does not see."""
    begun: list[int] = []

    def begin(number: int) -> None:
        for _ in range(1_000_000):  # so that a caller who does not wait is the first
            pass
        begun.append(number)

    def places() -> Iterator[int]:
        for place in range(3):
            yield place
            assert sorted(begun) == list(range(16))

    assert list(made_ahead(lambda index: index, places(), 16, begin=begin)) == [0, 1, 2]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_an_exception_comes_at_its_place(num_threads: int) -> None:
    def make(index: int) -> int:
        if index == 7:
            raise InvalidArgumentError("index: expected any but 7")
        return index

    seen: list[int] = []
    calls = made_ahead(make, range(20), num_threads)
    with pytest.raises(InvalidArgumentError, match="any but 7"):
        seen.extend(calls)
    assert seen == list(range(7))
    assert next(calls, None) is None
    threads_have_gone()  # although the iterator is still held


def test_threads_end_where_a_loop_is_left() -> None:
    loader = loaders(3)[0]
    for _ in loader:
        assert prefetchers()
        break
    threads_have_gone()


def test_threads_end_where_an_iterator_is_dropped() -> None:
    for loader in loaders(2):
        iterator = iter(loader)
        next(iterator)
        del iterator
        threads_have_gone()
    loader = loaders(2)[0]
    cycle: list[Any] = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)  # only the garbage collector finds it
    del cycle
    collect()
    threads_have_gone()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_goes_when_it_is_dropped(prefetch: int) -> None:
    """And not when the garbage collector comes, in whatever process: it may hold memory of a GPU."""
    for loader in loaders(prefetch):
        list(loader)  # also imports what batches need: the frames of an import live longer
    threads_have_gone()
    gc.disable()
    try:
        found = loaders(prefetch)
        for loader in found:
            list(loader)
        threads_have_gone()
        alive = [weakref.ref(of) for of in found]
        del loader, found
        assert [of() for of in alive] == [None] * 3
    finally:
        gc.enable()


def test_threads_end_where_a_transform_fails() -> None:
    def fail(_: Any) -> None:
        raise KeyError("no such attribute")

    dataset = make_dataset(random_graph(40, 100, 0))
    iterator = iter(NeighborLoader(dataset, [2], torch.arange(40), batch_size=4, transform=fail))
    with pytest.raises(KeyError):
        next(iterator)
    threads_have_gone()


def test_transform_runs_in_the_thread_that_iterates() -> None:
    dataset = make_dataset(random_graph(40, 100, 0))
    seen = set()

    def note(batch: Any) -> Any:
        seen.add(threading.get_ident())
        return batch

    assert len(list(NeighborLoader(dataset, [2], torch.arange(40), batch_size=4, transform=note))) == 10
    assert seen == {threading.get_ident()}


def test_next_of_a_loader_goes_on_in_the_latest_epoch() -> None:
    loader = loaders(1)[0]
    first = next(loader)
    assert torch.equal(first.input_id, loader.batch(0, 0).input_id)
    assert torch.equal(next(loader).input_id, loader.batch(0, 1).input_id)
    iterator = iter(loader)
    assert torch.equal(next(loader).input_id, loader.batch(1, 0).input_id)
    assert torch.equal(next(iterator).input_id, loader.batch(1, 1).input_id)
    assert sum(1 for _ in iterator) == len(loader) - 2
    with pytest.raises(StopIteration):
        next(loader)
    del iterator


def test_several_epochs_at_once() -> None:
    loader = loaders(2)[0]
    for index, (one, other) in enumerate(zip(loader, loader, strict=True)):
        assert torch.equal(one.input_id, loader.batch(0, index).input_id)
        assert torch.equal(other.input_id, loader.batch(1, index).input_id)


@pytest.mark.parametrize("prefetch", [-1, True, 1.5, None])
def test_refuses(prefetch: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="prefetch: expected a number of threads"):
        loaders(prefetch)
