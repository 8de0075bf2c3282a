"""Batches that programs ask for by positions: drawn anew each time, and the same in each run of a program."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import ZipLoader

from graphlearn_dist.loader import HGTLoader, LinkNeighborLoader, NeighborLoader
from graphlearn_dist.sampler.epochs import by_positions
from graphlearn_dist.sampler.epochs.by_positions import PlacesByPositions
from graphlearn_dist.sampler.epochs.schedule import batch_index
from tests.support.graphs import make_dataset, random_edges, random_graph

NUM_NODES = 200
DATA = Data(x=torch.arange(1.0 * NUM_NODES).view(-1, 1), edge_index=random_edges(NUM_NODES, NUM_NODES, 4000, 3))
TYPED = HeteroData({"a": {"x": DATA.x}, ("a", "to", "a"): {"edge_index": DATA.edge_index}})
POSITIONS = list(range(9))
KINDS: dict[str, Any] = {
    "nodes": lambda: NeighborLoader(DATA, [3], batch_size=50, seed=1),
    "links": lambda: LinkNeighborLoader(DATA, [3], neg_sampling="binary", batch_size=1000, seed=1),
    "HGT": lambda: HGTLoader(TYPED, [8], "a", batch_size=50, seed=1),
    "a data set": lambda: NeighborLoader(
        make_dataset(random_graph(NUM_NODES, 4000, 3), "in"), [3], torch.arange(NUM_NODES), batch_size=50, seed=1
    ),
}


def drawn(batch: Any) -> list[list[int]]:
    store = batch["a"] if isinstance(batch, HeteroData) else batch
    return [store.n_id.tolist(), *([batch.edge_label_index.tolist()] if "edge_label_index" in batch else [])]


@pytest.mark.parametrize("kind", KINDS)
def test_each_time_it_is_another_batch(kind: str) -> None:
    loader, again = KINDS[kind](), KINDS[kind]()
    first = [drawn(loader(POSITIONS)) for _ in range(3)]
    for parts in zip(*first, strict=True):
        assert all(one != other for one, other in itertools.combinations(parts, 2))
    assert first == [drawn(again(POSITIONS)) for _ in range(3)]
    loader.set_epoch(0)
    assert first == [drawn(loader(POSITIONS)) for _ in range(3)]
    place = 0, batch_index(torch.tensor(POSITIONS))
    assert first[0] == drawn(loader.filter_fn(loader._source.sample(torch.tensor(POSITIONS), place)))
    loader.set_epoch(7)
    assert first[0] != drawn(loader(POSITIONS))


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_iterations_know_nothing_of_it(kind: str) -> None:
    loader, plain = KINDS[kind](), KINDS[kind]()
    asked = []
    for epoch in range(2):
        for index, (batch, expected) in enumerate(zip(loader, plain, strict=True)):
            assert drawn(batch) == drawn(expected) == drawn(loader.batch(epoch, index))
            asked.append(drawn(loader(POSITIONS)))
        assert loader.state_dict() == plain.state_dict()
    assert len({str(one) for one in asked}) == len(asked) == 8
    plain.set_epoch(1)
    assert asked[4] == drawn(plain(POSITIONS))  # a new epoch counts anew


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_epochs_of_others_loaders_differ(num_workers: int) -> None:
    """In worker processes, too, which know nothing of each other."""

    def epochs() -> list[list[Any]]:
        torch.manual_seed(5)
        one, other = KINDS["nodes"](), KINDS["links"]()
        zipped = ZipLoader([one, other], batch_size=60, num_workers=num_workers)
        plain = DataLoader(one.dataset, batch_size=70, collate_fn=one.collate_fn, num_workers=num_workers)  # type: ignore[arg-type]
        found = [[[*drawn(first), *drawn(second)] for first, second in zipped] for _ in range(2)]
        return found + [[drawn(batch) for batch in plain] for _ in range(2)]

    found = epochs()
    for before, after in zip(found[0] + found[2], found[1] + found[3], strict=True):
        assert all(one != other for one, other in zip(before, after, strict=True))
    assert found == epochs()


def test_workers_that_stay_draw_anew() -> None:
    """Whichever of them a batch comes to, in whatever epoch."""
    loader = NeighborLoader(DATA, [4, 4], batch_size=1)
    plain = DataLoader(
        loader.dataset,  # type: ignore[arg-type]
        sampler=[5] * 20,
        collate_fn=loader.collate_fn,
        num_workers=2,
        persistent_workers=True,
    )
    found = [tuple(batch.n_id.tolist()) for _ in range(2) for batch in plain]
    assert len(set(found)) > 30  # of 40


def test_a_collation_asks_for_two_views() -> None:
    class Twice(NeighborLoader):
        def collate_fn(self, index: torch.Tensor | Sequence[int]) -> Any:
            return [super(Twice, self).collate_fn(index) for _ in range(2)]

    loader, plain = Twice(DATA, [3], batch_size=50, seed=1), KINDS["nodes"]()
    for epoch in range(2):
        for index, ((one, other), expected) in enumerate(zip(loader, plain, strict=True)):
            assert drawn(one) == drawn(expected) != drawn(other)
            assert [drawn(one), drawn(other)] == [drawn(view) for view in loader.batch(epoch, index)]


def test_memory_is_bounded_and_nothing_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_positions, "_MAX_COUNTED", 8)
    places = PlacesByPositions()
    found: list[tuple[int, int]] = []

    def ask() -> None:
        found.extend(places.next(torch.tensor([at % 20])) for at in range(500))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 2000
    assert len(places._counted.times) <= 8 + len(threads)  # each may have found room
    first = PlacesByPositions()
    assert [first.next(torch.tensor([at])) for at in range(8)] == [
        (0, batch_index(torch.tensor([at]))) for at in range(8)
    ]
    places.choose(3)
    assert places.next(torch.tensor([1])) == (3, batch_index(torch.tensor([1])))
