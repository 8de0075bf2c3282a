"""Background threads of loaders run on the cores that a program names, by the contexts of PyG's loaders."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader

RING = torch.stack([torch.arange(12), (torch.arange(12) + 1) % 12])


class Places:
    """A transform that notes on which cores the threads that call it may run."""

    def __init__(self) -> None:
        self.seen: dict[int, frozenset[int]] = {}

    def __call__(self, batch: Any) -> Any:
        self.seen[threading.get_ident()] = frozenset(os.sched_getaffinity(0))
        return batch


def make_loader(places: Places, **keywords: Any) -> NeighborLoader:
    return NeighborLoader(
        Data(x=torch.rand(12, 1), edge_index=RING),
        [1],
        batch_size=2,
        transform=places,
        filter_per_worker=True,
        **keywords,
    )


def test_threads_run_on_the_cores_that_are_named() -> None:
    mine = frozenset(os.sched_getaffinity(0))
    core, begun = max(mine), []
    places = Places()
    loader = make_loader(places, num_workers=1, worker_init_fn=begun.append)
    with loader.enable_cpu_affinity([core]):
        assert len(list(loader)) == 6
    assert set(places.seen.values()) == {frozenset([core])}
    assert begun == [0]
    assert frozenset(os.sched_getaffinity(0)) == mine  # that of the program stays
    places.seen.clear()
    list(loader)
    assert set(places.seen.values()) == {mine}


def test_cores_unless_named_are_the_first_ones() -> None:
    places = Places()
    loader = make_loader(places, num_workers=1)
    with loader.enable_cpu_affinity():
        list(loader)
    assert set(places.seen.values()) == {frozenset([min(os.sched_getaffinity(0))])}


def test_cores_that_cannot_be() -> None:
    loader = make_loader(Places(), num_workers=1)
    for wrong, message in (
        ([0, 0], "expected one for each of 1 threads, got 2"),
        ([1 << 20], "loader_cores: expected some"),
    ):
        with pytest.raises(InvalidArgumentError, match=message), loader.enable_cpu_affinity(wrong):
            pass
    with (
        pytest.raises(ValueError, match="background threads"),
        make_loader(Places(), num_workers=0).enable_cpu_affinity(),
    ):
        pass


def test_more_workers_than_cores_are_no_matter() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = make_loader(Places(), num_workers=64)
    assert (loader.num_workers, loader.drop_last, len(list(loader))) == (64, False, 6)


def test_threads_of_a_batch_are_an_argument() -> None:
    loader = make_loader(Places(), num_workers=1)
    with pytest.warns(UserWarning, match="enable_multithreading: without effect"), loader.enable_multithreading(2):
        assert len(list(loader)) == 6


def test_there_are_no_workers_whose_memory_is_logged() -> None:
    loader = make_loader(Places(), num_workers=1)
    with pytest.warns(UserWarning, match="enable_memory_log: without effect"), loader.enable_memory_log():
        assert len(list(loader)) == 6
