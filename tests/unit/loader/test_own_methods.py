"""Loaders with a ``collate_fn`` or ``filter_fn`` of a program's own, and attributes that a program sets later."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from graphlearn_dist.data.device import device_copies
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, local_loader
from graphlearn_dist.sampler import NegativeSampling as StrictNegatives
from graphlearn_dist.utils.tensor import tensors_in
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


def test_an_own_filter_reads_what_a_gpu_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Background threads have a stream of theirs, on which rows may be gathered yet: that of the filter waits for it,
    and what it leaves out is nobody else's before it is done."""
    done: list[tuple[str, Any]] = []
    of_thread = threading.local()

    def stream(name: str) -> Any:
        return SimpleNamespace(
            record_event=lambda: done.append((name, "records")) or name,
            wait_event=lambda event: done.append((name, event)),
            wait_stream=lambda other: None,
        )

    class Reading(NeighborLoader):
        def filter_fn(self, out: Any) -> Any:
            done.append(("filter_fn", len(kept)))
            return super().filter_fn(out)

    training, making, kept = stream("training"), SimpleNamespace(stream=stream("making")), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: getattr(of_thread, "current", training))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(of_thread, "current", stream))
    monkeypatch.setattr(device_copies, "record_uses", lambda tensors, stream: kept.extend(tensors))
    loader = Reading(make_dataset(random_graph(NUM_NODES, 90, 3), "in"), [3], torch.arange(6), batch_size=6)
    copies = loader._copies
    copies._making, copies._stream = making, stream("copying")  # type: ignore[assignment]
    monkeypatch.setattr(copies, "begin", lambda batch: device_copies.Copy(batch))
    there = {"is_cuda": True, "device": copies.device, "layout": torch.strided}
    on_gpu = lambda sampled: [SimpleNamespace(**there, place=of.data_ptr()) for of in tensors_in(sampled)]  # noqa: E731
    monkeypatch.setattr(local_loader, "tensors_in", on_gpu)
    (batch,) = loader
    assert done[:2] == [("making", "records"), ("training", "making")]
    assert done[2] == ("filter_fn", len(kept))
    assert {batch.n_id.data_ptr(), batch.x.data_ptr()} <= {tensor.place for tensor in kept}


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


@pytest.mark.parametrize("filter_per_worker", [None, True, False])
def test_what_a_collation_gives(filter_per_worker: bool | None) -> None:
    """Batches, as in PyG, unless a program says that ``filter_fn`` is called after it."""

    class Marked(NeighborLoader):
        def collate_fn(self, index: torch.Tensor | Sequence[int]) -> Any:
            out = super().collate_fn(index)
            if filter_per_worker is not False:
                out.mark = out.x[:, 0]
            return out

    loader = Marked(DATA, [3], batch_size=5, filter_per_worker=filter_per_worker)
    gives_batches = filter_per_worker is not False
    assert loader.filter_per_worker == gives_batches
    assert isinstance(loader.collate_fn([0, 1]), Data) == gives_batches
    assert [isinstance(batch, Data) for batch in (*loader, loader([1]), loader.batch(0, 0))] == [True] * 6
    assert all(("mark" in batch) == gives_batches for batch in loader)
    if gives_batches:
        again = torch.utils.data.DataLoader(loader.dataset, batch_size=5, collate_fn=loader.collate_fn)  # type: ignore[arg-type]
        assert all("mark" in batch for batch in again)


def test_transforms_are_called_once() -> None:
    seen = []
    for options in ({}, {"filter_per_worker": True}, {"filter_per_worker": False}, {"num_workers": 0}):
        for kind in (NeighborLoader, Masked, Halved):
            loader = open_loader(kind, "PyG's data", transform=lambda batch: seen.append(1) or batch, **options)
            seen.clear()
            assert len(list(loader)) == len(seen) == 4
            loader([0, 1])
            assert len(seen) == 5


@pytest.mark.parametrize("name", ["collate_fn", "filter_fn"])
def test_a_method_that_is_set_in_the_loop(name: str) -> None:
    """Batches that were made ahead pass what they would have passed, each once."""
    loader = NeighborLoader(DATA, [3], batch_size=2, num_workers=2)
    loader.transform = lambda batch: batch.update({"passed": getattr(batch, "passed", 0) + 1})
    given = getattr(loader, name)
    for batch in loader:
        setattr(loader, name, lambda what: given(what))
        assert batch.passed == 1


def test_a_collation_that_raises_stop_iteration() -> None:
    """It does not end the loop as if there were no more batches."""

    def stop(index: Any) -> Any:
        raise StopIteration

    loader = NeighborLoader(DATA, [3], sampler=torch.utils.data.SequentialSampler(range(NUM_NODES)))
    loader.collate_fn = stop
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    for name in ("filter_fn", "transform", "transform_sampler_output"):
        loader = NeighborLoader(DATA, [3], batch_sampler=[[0], [1], [2]], num_workers=0, filter_per_worker=True)
        setattr(loader, name, stop)
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(loader)


def test_states_know_strict_negatives() -> None:
    def loader_of(strict: bool) -> LinkNeighborLoader:
        neg_sampling = StrictNegatives("binary", strict=strict)
        return LinkNeighborLoader(DATA, [3], EDGES[:, :9], neg_sampling=neg_sampling, batch_size=5, seed=1)

    strict, other = loader_of(True), loader_of(False)
    with pytest.raises(InvalidArgumentError, match="neg_sampling"):
        other.load_state_dict(strict.state_dict())
    other.link_sampler.strict_negatives = True
    other.load_state_dict(strict.state_dict())
    for batch, expected in zip(strict, other, strict=True):
        assert_same(pyg_tensors(batch), pyg_tensors(expected))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_other_subgraphs_in_the_loop(num_workers: int) -> None:
    """A batch is of one kind or the other: induced ones have no counts by hop."""
    kinds = {}
    for kind in ("induced", "directional"):
        kinds[kind] = [
            batch.edge_index
            for batch in NeighborLoader(DATA, [3, 3], batch_size=2, seed=1, num_workers=num_workers, subgraph_type=kind)
        ]
    loader = NeighborLoader(DATA, [3, 3], batch_size=2, seed=1, num_workers=num_workers)
    for at, batch in enumerate(loader):
        loader.node_sampler.subgraph_type = ["induced", "directional"][at % 2]
        counts = batch.num_sampled_edges if "num_sampled_edges" in batch else None
        assert counts is None or sum(counts) == batch.edge_index.size(1)
        assert torch.equal(batch.edge_index, kinds["induced" if counts is None else "directional"][at])
    with pytest.raises(InvalidArgumentError, match="filter_per_worker: expected True or False"):
        loader.filter_per_worker = "no"


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


def test_what_may_not_be_set() -> None:
    nodes = NeighborLoader(DATA, [3], torch.arange(5), batch_size=5)
    links = LinkNeighborLoader(DATA, [3], batch_size=5, neg_sampling="binary")
    wrong: list[tuple[Any, str, Any, str]] = [
        (nodes, "input_data", None, "expected NodeSamplerInput of 5 seeds.*got NoneType"),
        (nodes, "input_data", links.input_data, "expected NodeSamplerInput"),
        (nodes, "input_data", NeighborLoader(DATA, [3], torch.arange(4)).input_data, "got NodeSamplerInput of 4"),
        (nodes, "data", HeteroData(), "same kind"),
        (nodes, "filter_fn", "x", "expected something to call"),
        (nodes, "collate_fn", None, "expected something to call"),
        (nodes, "transform", 3, "expected something to call"),
        (nodes, "custom_cls", 3, "expected something to call"),
        (links, "neg_sampling", StrictNegatives("binary", strict=True), "not strict"),
    ]
    for loader, name, value, match in wrong:
        with pytest.raises(InvalidArgumentError, match=f"{name}: .*{match}"):
            setattr(loader, name, value)
    static = open_loader(NeighborLoader, "a data set", static_shapes=True)
    with pytest.raises(InvalidArgumentError, match="filter_fn: expected none"):
        static.filter_fn = lambda out: out
    assert [batch.n_id.numel() > 0 for batch in (*nodes, next(iter(links)))] == [True] * 2


def test_data_that_are_a_property() -> None:
    class Other(NeighborLoader):
        @property
        def data(self) -> Any:
            return self._other

        @data.setter
        def data(self, data: Any) -> None:
            object.__setattr__(self, "_other", data)

    loader = Other(DATA, [3], batch_size=5)
    loader.data = Data(x=-1 - DATA.x, edge_index=EDGES)
    assert all(bool((batch.x < 0).all()) for batch in loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_negatives_that_change_in_the_loop(num_workers: int) -> None:
    """Those that were sampled before come as they were."""
    loader = LinkNeighborLoader(DATA, [3], batch_size=5, neg_sampling="binary", num_workers=num_workers)
    kinds = []
    for at, batch in enumerate(loader):
        kinds.append("dst_neg_index" in batch)
        loader.neg_sampling = [NegativeSampling("triplet"), None][at % 2]
    assert len(kinds) == 18
    assert not kinds[0]
    assert any(kinds) or num_workers


@pytest.mark.parametrize(
    ("name", "value", "differs"),
    [("num_neighbors", [5], "num_neighbors"), ("replace", True, "replace"), ("disjoint", True, "disjoint"),
     ("subgraph_type", "induced", "induced")],
)  # fmt: skip
def test_states_know_settings_of_the_sampler_that_were_set_later(name: str, value: Any, differs: str) -> None:
    loader, other = (NeighborLoader(DATA, [3], batch_size=5, seed=1) for _ in range(2))
    loader.state_dict()
    setattr(loader.node_sampler, name, value)
    with pytest.raises(InvalidArgumentError, match=differs):
        other.load_state_dict(loader.state_dict())
    setattr(other.node_sampler, name, value)
    other.load_state_dict(loader.state_dict())
    for batch, expected in zip(loader, other, strict=True):
        assert_same(pyg_tensors(batch), pyg_tensors(expected))
    made = NeighborLoader(DATA, **{"num_neighbors": [3], name: value}, batch_size=5, seed=1)
    assert_same(pyg_tensors(loader.batch(0, 1)), pyg_tensors(made.batch(0, 1)))
