"""Loaders with a ``collate_fn`` or ``filter_fn`` of a program's own, and attributes that a program sets later."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader
from tests.support.graphs import make_dataset, random_graph
from tests.support.oracle import assert_same, pyg_tensors

NUM_NODES = 20
EDGES = torch.randint(NUM_NODES, (2, 90), generator=torch.Generator().manual_seed(1))
DATA = Data(x=torch.arange(2.0 * NUM_NODES).view(-1, 2), edge_index=EDGES)


class Masked(NeighborLoader):
    """Marks nodes, as programs do, and knows what it was asked."""

    threads: list[str]

    def filter_fn(self, out: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        batch = super().filter_fn(out)
        batch.mask = batch.n_id > 2
        return batch


class Halved(NeighborLoader):
    """Leaves out every second seed."""

    seen: list[Any]

    def collate_fn(self, index: torch.Tensor | Sequence[int]) -> Any:
        self.seen.append((index, threading.current_thread().name))
        return super().collate_fn(index[::2])


def open_loader(kind: Any, of: str, **options: Any) -> Any:
    data = DATA if of == "PyG's data" else make_dataset(random_graph(NUM_NODES, 90, 3), "in")
    loader = kind(data, [3, 3], torch.arange(NUM_NODES), batch_size=6, shuffle=True, seed=5, **options)
    loader.threads, loader.seen = [], []
    return loader


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"num_workers": 3}], ids=str)
@pytest.mark.parametrize("of", ["PyG's data", "a data set"])
def test_an_own_filter(of: str, options: dict[str, Any]) -> None:
    """Batches of an iteration pass it, in the thread that iterates, and are the same otherwise."""
    loader, plain = open_loader(Masked, of, **options), open_loader(NeighborLoader, of)
    for _ in range(2):
        batches = list(loader)
        for batch, expected in zip(batches, plain, strict=True):
            assert torch.equal(batch.mask, batch.n_id > 2)
            del batch.mask
            assert_same(pyg_tensors(batch), pyg_tensors(expected))
    assert set(loader.threads) == {threading.current_thread().name}
    assert "mask" in loader.batch(0, 1)
    assert "mask" in loader([0, 1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_own_filter_beside_the_sampling(num_workers: int) -> None:
    loader = open_loader(Masked, "PyG's data", num_workers=num_workers, filter_per_worker=True)
    assert ["mask" in batch for batch in loader] == [True] * 4
    here = threading.current_thread().name
    assert all((thread == here) == (num_workers == 0) for thread in loader.threads)


@pytest.mark.parametrize("of", ["PyG's data", "a data set"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 3}], ids=str)
def test_an_own_collation(of: str, options: dict[str, Any]) -> None:
    """It is given lists of positions, as torch gives them, and what it passes on is drawn as the batch's."""
    loader, plain = open_loader(Halved, of, **options), open_loader(NeighborLoader, of)
    for epoch in range(2):
        loader.seen = []
        batches = list(loader)
        positions = [plain._schedule.positions(epoch, index).tolist() for index in range(4)]
        assert [index for index, _ in loader.seen] == positions
        for index, batch in enumerate(batches):
            place = positions[index][::2], (epoch, index)
            expected = plain.filter_fn(plain._source.sample(torch.tensor(place[0]), place[1]))
            assert_same(pyg_tensors(batch), pyg_tensors(expected))
            assert_same(pyg_tensors(loader.batch(epoch, index)), pyg_tensors(expected))
    assert len({thread for _, thread in loader.seen} - {threading.current_thread().name}) == len(options)


def test_methods_that_are_set_on_a_loader() -> None:
    loader = open_loader(NeighborLoader, "PyG's data")
    filter_fn, collate_fn = loader.filter_fn, loader.collate_fn
    loader.collate_fn = lambda index: collate_fn(index[:1])
    loader.filter_fn = lambda out: (filter_fn(out), "marked")
    assert [(batch.batch_size, mark) for batch, mark in loader] == [(1, "marked")] * 4


def test_an_own_collation_with_a_filter_beside_it() -> None:
    class Both(Masked, Halved):
        pass

    loader = open_loader(Both, "PyG's data", num_workers=1, filter_per_worker=True)
    assert [(batch.batch_size, "mask" in batch) for batch in loader] == [(3, True)] * 3 + [(1, True)]
    assert len(loader.threads) == len(loader.seen) == 4


@pytest.mark.parametrize("kind", [Masked, Halved])
def test_static_shapes_pass_no_own_methods(kind: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="static_shapes: expected False with an own"):
        open_loader(kind, "a data set", static_shapes=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_data_later(num_workers: int) -> None:
    """Rows are those of the new data, edges those that the sampler has, as in PyG."""
    loader = NeighborLoader(DATA, [3], batch_size=5, num_workers=num_workers)
    before = next(iter(loader))
    loader.data = Data(x=-DATA.x, edge_index=EDGES[:, :1])
    after = loader.batch(0, 0)
    assert torch.equal(after.x, -before.x)
    assert torch.equal(after.edge_index, before.edge_index)
    with pytest.raises(InvalidArgumentError, match="data: expected PyG's"):
        loader.data = 3


def test_another_sampler_later() -> None:
    loader = NeighborLoader(DATA, [3], batch_size=5, seed=1)
    state = loader.state_dict()
    loader.node_sampler = PyGSampler(DATA, [0], seed=1)
    assert all(batch.edge_index.numel() == 0 for batch in loader)
    with pytest.raises(InvalidArgumentError, match="num_neighbors"):
        loader.load_state_dict(state)
    with pytest.raises(InvalidArgumentError, match="node_sampler: expected a sampler"):
        loader.node_sampler = "another"


def test_other_negatives_and_seeds_later() -> None:
    links = LinkNeighborLoader(DATA, [3], batch_size=5, neg_sampling="binary")
    assert next(iter(links)).edge_label.numel() == 10
    links.neg_sampling = NegativeSampling("binary", 2.0)
    assert next(iter(links)).edge_label.numel() == 15
    links.neg_sampling = None
    assert next(iter(links)).edge_label_index.size(1) == 5
    nodes = NeighborLoader(DATA, [3], torch.arange(5), batch_size=5)
    other = NeighborLoader(DATA, [3], torch.arange(10, 15), batch_size=5)
    nodes.input_data = other.input_data
    assert torch.equal(next(iter(nodes)).n_id[:5], torch.arange(10, 15))


@pytest.mark.parametrize("of", ["PyG's data", "a data set"])
@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_what_stays_as_it_is(of: str, name: str) -> None:
    loader = open_loader(NeighborLoader, of)
    with pytest.raises(ValueError, match=f"{name}: a loader that was made keeps it"):
        setattr(loader, name, 2)
    assert next(iter(loader)).batch_size == 6


def test_loaders_of_a_data_set_keep_it() -> None:
    loader = open_loader(NeighborLoader, "a data set")
    loader.data = loader.data  # the same
    for name in ("data", "node_sampler"):
        with pytest.raises(InvalidArgumentError, match=f"{name}: a loader of a data set keeps"):
            setattr(loader, name, object())
    loader.anything = 3
    assert loader.anything == 3
