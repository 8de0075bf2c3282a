"""How often the host waits for a GPU that makes batches, and what it hears later; the host runs the kernels' bodies."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, Graph, UnifiedTensor, unified_tensor
from graphlearn_dist.data import graph as graph_module
from graphlearn_dist.data.device.deferred_gathers import DeferredGathers
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.errors import ForkedProcessError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.sampler import batches
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from graphlearn_dist.utils import device_exchange
from graphlearn_dist.utils.device_exchange import Reading
from tests.support.device_batches import HOST, assert_same_data, graph_for
from tests.support.graphs import make_dataset

KINDS = ["homogeneous", "typed"]
READS = [getattr(torch.Tensor, name) for name in ("tolist", "item", "cpu", "numpy", "nonzero", "__int__", "__bool__")]
LABELS = "node_label:0"


class OnDevice(torch.Tensor):
    """Stands for a tensor in the memory of a GPU, as do all that are made of it: counts when the host reads of them."""

    num_reads = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        OnDevice.num_reads += func in READS or func is torch.nonzero
        return super().__torch_function__(func, types, args, kwargs)


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs as on a GPU, in memory of the host."""
    monkeypatch.setattr(batches, "device_of", lambda _: HOST)
    monkeypatch.setattr(Graph, "on_device", lambda self: DeviceTopology(self.topo, "CUDA", HOST))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> type[OnDevice]:
    """Counts the reads of tensors that a GPU samples; of what it says later none is there before it is waited for."""
    empty = DeviceGraph._empty
    monkeypatch.setattr(DeviceGraph, "_empty", lambda self, size: empty(self, size).as_subclass(OnDevice))
    monkeypatch.setattr(Reading, "is_there", lambda self: False)
    monkeypatch.setattr(OnDevice, "num_reads", 0)
    return OnDevice


def put_features_on_gpu(dataset: Dataset, table: torch.Tensor | None = None) -> None:
    """All node features as if a GPU had them, and rows of ids by a table."""
    features = dataset.node_features
    for feature in features.values() if isinstance(features, dict) else [features]:
        rows = DeviceRows([feature.feature_tensor], HOST, table)
        feature._placed = SimpleNamespace(on=lambda _, rows=rows: rows)


def loader_of(dataset: Dataset, **changes: Any) -> NeighborLoader:
    typed = dataset.schema.node_types != (None,)
    seeds: Any = ("user", torch.arange(48)) if typed else torch.arange(48)
    settings = {"batch_size": 16, "seed": 4, "shuffle": True, "prefetch": 0, **changes}
    return NeighborLoader(dataset, [4, 3], seeds, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("as_on_gpu")
def test_the_host_waits_once_a_batch(kind: str, reads: type[OnDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_for(kind, {})
    waits = []
    wait = Reading.wait
    monkeypatch.setattr(Reading, "wait", lambda self: waits.append(self) or wait(self))
    dataset = make_dataset(graph, edge_features=False)
    put_features_on_gpu(dataset)
    loader = loader_of(dataset)
    for count, _ in enumerate(loader, 1):
        assert reads.num_reads == len(waits) == count
    assert reads.num_reads == count  # a status lies in memory of its own
    assert len(waits) == 2 * count  # at the end of the epoch, those of the rows


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_for(kind, {})
    expected = loader_of(make_dataset(graph))
    monkeypatch.setattr(batches, "device_of", lambda _: HOST)
    monkeypatch.setattr(Graph, "on_device", lambda self: DeviceTopology(self.topo, "CUDA", HOST))
    dataset = make_dataset(graph)
    put_features_on_gpu(dataset)
    for one, other in zip(expected, loader_of(dataset), strict=True):
        assert_same_data(other, one)


# --- what the host hears later ---------------------------------------------------------------------------------------

ROWS = torch.arange(1.0, 21.0).view(10, 2)
TABLE = torch.tensor([3, -1, 0, 9])


def gathers() -> DeferredGathers:
    rows = {"x": DeviceRows([ROWS], HOST), "y": DeviceRows([ROWS], HOST, TABLE)}
    return DeferredGathers({name: (of, torch.float32) for name, of in rows.items()}, HOST)


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_an_error_waits_for_who_reads_and_names_its_batch() -> None:
    """Who makes batches ahead is not told: nobody may take what is made there."""
    deferred = gathers()
    found = deferred.gather({"x": ids(1, 2), "y": ids(2, 1, 3), "z": ids(1)}, "batch 7 of epoch 2")
    assert found.keys() == {"x", "y"}  # others are not gathered here
    assert torch.equal(found["x"], ROWS[1:3])
    assert torch.equal(found["y"], torch.stack([ROWS[0], torch.zeros(2), ROWS[9]]))
    assert torch.equal(deferred.gather({"x": ids(1)}, "batch 8 of epoch 2")["x"], ROWS[1:2])
    with pytest.raises(UnknownIdError, match=r"batch 7 of epoch 2: y: ids\[1\]: id 1 has no feature row here"):
        deferred.check(wait=False)
    assert torch.equal(deferred.gather({"x": ids(1)}, "batch 9 of epoch 2")["x"], ROWS[1:2])
    deferred.check()


def test_each_error_is_raised_once_whoever_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    deferred = gathers()
    monkeypatch.setattr(Reading, "is_there", lambda self: False)
    for index, bad in enumerate((10, 3, -2)):
        deferred.gather({"x": ids(0, bad)}, f"batch {index} of epoch 0")  # nobody waits
    with pytest.raises(UnknownIdError, match=r"batch 0 of epoch 0: x: ids\[1\]: row 10 is outside \[0, 10\)"):
        deferred.check()
    with pytest.raises(UnknownIdError, match=r"batch 2 of epoch 0: x: ids\[1\]: row -2 is outside \[0, 10\)"):
        deferred.check()
    deferred.check()


def loader_without_a_row(**changes: Any) -> NeighborLoader:
    dataset = make_dataset(graph_for("homogeneous", {}), edge_features=False)
    table = torch.arange(300)
    table[40] = -1  # a seed of one batch
    put_features_on_gpu(dataset, table)
    return loader_of(dataset, shuffle=False, **changes)


@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_end_of_an_epoch_tells(prefetch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "is_there", lambda self: False)
    loader, made = loader_without_a_row(prefetch=prefetch), []
    with pytest.raises(UnknownIdError, match=r"batch \d of epoch 0: node_feature:0: ids.*id 40 has no feature row"):
        made.extend(loader)
    assert len(made) == 3
    assert not made[2].x[(made[2].n_id == 40).nonzero().view(-1)].any()


@pytest.mark.usefixtures("as_on_gpu")
def test_a_loop_that_is_left_leaves_its_errors_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    is_there = Reading.is_there
    monkeypatch.setattr(Reading, "is_there", lambda self: False)
    loader = loader_without_a_row()
    epoch = iter(loader)
    for _ in range(3):
        next(epoch)
    del epoch
    monkeypatch.setattr(Reading, "is_there", is_there)
    with pytest.raises(UnknownIdError, match=r"of epoch 0: .*id 40 has no feature row here"):
        next(iter(loader))


@pytest.mark.usefixtures("as_on_gpu")
def test_a_batch_by_its_name_is_whole() -> None:
    loader = loader_without_a_row()
    with pytest.raises(UnknownIdError, match=r"batch 2 of epoch 5: .*id 40"):
        loader.batch(5, 2)


# --- numbers on their way --------------------------------------------------------------------------------------------


def test_numbers_are_sent_as_they_are_where_they_lie_there() -> None:
    numbers = [torch.arange(6)[::2], torch.arange(3, dtype=torch.int32)]
    found = device_exchange.sent(numbers, HOST)
    assert [part.tolist() for part in found] == [[0, 2, 4], [0, 1, 2]]
    assert found[0].is_contiguous()
    assert found[1] is numbers[1]
    assert device_exchange.moved(numbers[1], "cpu") is numbers[1]
    reading = Reading(found[0])
    assert reading.is_there()
    assert reading.wait() == [0, 2, 4]


@pytest.mark.usefixtures("as_on_gpu")
def test_a_program_that_collates_alone_holds_no_ids_and_is_told() -> None:
    """Torch's ``DataLoader`` over a loader's positions calls ``collate_fn`` and nothing else."""
    loader = loader_without_a_row()
    gathers_of = loader.batches._gathers
    assert gathers_of is not None
    for begin in range(0, 32, 4):
        loader.collate_fn(list(range(begin, begin + 4)))
        assert not gathers_of._open
    with pytest.raises(UnknownIdError, match="id 40 has no feature row here"):
        loader.collate_fn([40])
    loader.collate_fn([1])


# --- forks, and threads that come first at once --------------------------------------------------------------------


@pytest.mark.usefixtures("as_on_gpu")
def test_a_loader_that_uses_a_gpu_is_no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(graph_for("homogeneous", {}), edge_features=False)
    put_features_on_gpu(dataset)
    loader = loader_of(dataset, prefetch=0)
    loader.home._pid = -1
    for use in (iter, list, lambda one: one([3]), lambda one: one.collate_fn([3]), lambda one: one.batch(0, 0)):
        with pytest.raises(ForkedProcessError):
            use(loader)
    monkeypatch.undo()
    host = loader_of(make_dataset(graph_for("homogeneous", {}), edge_features=False), prefetch=0)
    host.home._pid = -1
    assert len(list(host)) == len(host)


def from_eight_threads(ask: Callable[[], Any]) -> list[Any]:
    together = threading.Barrier(8)

    def asked(_: int) -> Any:
        together.wait(30)
        return ask()

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(asked, range(8)))


def test_edges_and_rows_are_placed_once_whoever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    dataset = make_dataset(graph_for("homogeneous", {}))
    one, made = Graph(dataset.graph.topo, "CUDA", 0), []

    def place_edges(*arguments: Any) -> Any:
        assert one._placing.locked()
        made.append(arguments)
        return SimpleNamespace(group=(0,), share=dict)

    monkeypatch.setattr(graph_module, "DeviceTopology", place_edges)
    found = from_eight_threads(one.on_device)
    assert len(made) == 1
    assert all(each is found[0] for each in found)
    tensor = UnifiedTensor()
    tensor.append_cpu_tensor(ROWS)

    def place_rows(*arguments: Any) -> Any:
        assert tensor._placing.locked()
        made.append(arguments)
        return SimpleNamespace()

    monkeypatch.setattr(unified_tensor, "DeviceRows", place_rows)
    found = from_eight_threads(lambda: tensor._device_rows)
    assert len(made) == 2
    assert all(each is found[0] for each in found)
    for each in (one, tensor):
        assert not copy.deepcopy(each)._placing.locked()
        assert not pickle.loads(pickle.dumps(each))._placing.locked()
