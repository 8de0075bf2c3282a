"""Batches on their way to a device: in which order they are taken, and what is copied. Streams: ``tests/gpu``."""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from graphlearn_dist.data.device import device_copies
from graphlearn_dist.data.device.compressed_edges import CompressedEdges
from graphlearn_dist.data.device.device_copies import DeviceCopies, HeldUntilDone, OneAhead
from graphlearn_dist.distributed.producers.batch_producer import BatchProducer, BatchRequest
from graphlearn_dist.errors import ChannelClosedError, InvalidArgumentError, PeerLostError
from graphlearn_dist.messages import EndOfEpoch, SampledBatch, Subgraph
from graphlearn_dist.sampler.epochs.schedule import BatchIndices
from graphlearn_dist.telemetry import MadeStats
from graphlearn_dist.utils.tensor import tensors_in
from tests.support.waiting import wait_until


def test_an_item_that_is_there_is_taken_ahead_and_no_other() -> None:
    items: deque[Any] = deque("abc")
    taken: list[str] = []

    def take() -> str:
        if not items:
            raise StopIteration
        taken.append(items.popleft())
        return taken[-1]

    is_there = iter([True, False, True])
    ahead = OneAhead(take, lambda: next(is_there))
    assert (ahead.next(), taken) == ("a", ["a", "b"])
    assert (ahead.next(), taken) == ("b", ["a", "b"])
    assert (ahead.next(), taken) == ("c", ["a", "b", "c"])  # and the end, which was taken ahead
    items.append("d")
    with pytest.raises(StopIteration):
        ahead.next()


def test_an_error_comes_in_its_place_and_the_next_item_behind_it() -> None:
    items: deque[Any] = deque(["a", ValueError("b"), "c", "d"])

    def take() -> str:
        item = items.popleft()
        if isinstance(item, Exception):
            raise item
        return str(item)

    ahead = OneAhead(take, lambda: bool(items))
    assert ahead.next() == "a"
    with pytest.raises(ValueError, match="b"):
        ahead.next()
    assert [ahead.next(), ahead.next()] == ["c", "d"]


def make_batch() -> HeteroData:
    batch = HeteroData()
    batch["user"].n_id = batch["user"].node = torch.arange(4)
    batch["user"].x, batch["user"].num_sampled_nodes = torch.ones(4, 2), [1, 3]
    batch["user", "to", "user"].edge_index = torch.zeros(2, 3, dtype=torch.int64)
    return batch


def test_a_tensor_with_two_names_is_copied_once() -> None:
    batch = make_batch()
    found = device_copies._apply_once(batch, torch.clone)
    assert found["user"].n_id is found["user"].node
    assert torch.equal(found["user"].n_id, torch.arange(4))
    assert found["user"].num_sampled_nodes == [1, 3]
    assert len(device_copies._values(batch)) == 4


def test_what_is_copied_from_is_held_until_the_copy_is_done() -> None:
    held, done = HeldUntilDone(), {0: False, 1: False, 2: False}
    alive = []
    for number, what_is_done in enumerate([[], [], [0]]):
        done.update(dict.fromkeys(what_is_done, True))
        source = torch.zeros(1)
        held.hold(source, SimpleNamespace(query=lambda number=number: done[number]))
        alive.append(weakref.ref(source))
        del source
    assert [ref() is not None for ref in alive] == [False, True, True]
    assert len(held) == 2


def test_a_batch_that_is_copied_holds_what_it_is_copied_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what PyG puts in its place, in the same batch: the memory is used again as soon as nobody holds it."""
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: None)
    stream = SimpleNamespace(record_event=lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(device_copies, "_pinned", torch.clone)  # a copy of the host stands for that of a GPU
    copies, batch = DeviceCopies("cpu"), make_batch()
    monkeypatch.setattr(copies, "_stream", stream)
    sources = [weakref.ref(tensor) for tensor in device_copies._tensors(device_copies._values(batch))]
    places = {tensor.data_ptr() for tensor in device_copies._tensors(device_copies._values(batch))}
    moved = copies.begin(batch).batch
    assert not places & {tensor.data_ptr() for tensor in device_copies._tensors(device_copies._values(moved))}
    assert all(source() is not None for source in sources)


def test_what_another_gpu_has_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches go elsewhere. Of matrices the parts are told to the stream that takes them: torch takes no others."""
    gpu, other = torch.device("cuda", 0), torch.device("cuda", 1)
    waited: list[Any] = []
    monkeypatch.setattr(device_copies, "wait_for_stream", waited.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=lambda: "made"))
    tensor = {"is_cuda": True, "layout": torch.strided}
    here, there = (SimpleNamespace(**tensor, device=device) for device in (gpu, other))
    copies = DeviceCopies("cpu")
    copies.device, copies._number = gpu, 0
    assert copies.made("batch", [here, there]) == device_copies.Copy("batch", "made", [here])  # type: ignore[list-item]
    assert waited == [other]
    assert DeviceCopies(None).made("batch", [here]).done is None  # type: ignore[list-item]
    assert waited == [other, gpu]
    assert copies.made("batch", [torch.ones(1)]).done is None
    matrix = torch.eye(3).to_sparse_csr()
    found = list(tensors_in([Data(adj_t=matrix, x=torch.ones(3)), {"ids": (torch.arange(2),)}]))
    assert len(found) == 3
    assert len(device_copies._tensors(found)) == 5


@pytest.fixture
def copies_here(monkeypatch: pytest.MonkeyPatch) -> tuple[DeviceCopies, list[torch.Tensor]]:
    """Copies to a GPU, for which the host stands, and what was copied to it."""
    stream = SimpleNamespace(record_event=lambda: SimpleNamespace(query=lambda: True))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    copies, copied = DeviceCopies("cpu"), list[torch.Tensor]()

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        copied.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(device_copies, "_pinned", copy)
    monkeypatch.setattr(copies, "_stream", stream)
    return copies, copied


def test_matrices_are_made_where_they_go(copies_here: tuple[DeviceCopies, list[torch.Tensor]]) -> None:
    """Of 4 bytes an entry, once, however many names they have."""
    copies, copied = copies_here
    assert copies.takes_parts
    assert not DeviceCopies(None).takes_parts
    offsets, cols = torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 2, 1], dtype=torch.int32)
    for weights in (None, torch.tensor([0.5, 1.0, 2.0])):
        edges = CompressedEdges(offsets, cols, weights, 4)
        batch = copies.begin(Data(adj_t=edges, again=edges, x=torch.ones(4, 2))).batch
        assert batch.adj_t is batch.again
        assert batch.adj_t.layout is torch.sparse_csr
        assert (batch.adj_t.shape, batch.adj_t.col_indices().dtype) == ((2, 4), torch.int64)
        expected = torch.zeros(2, 4)
        expected[[0, 0, 1], [0, 2, 1]] = torch.ones(3) if weights is None else weights
        assert torch.equal(batch.adj_t.to_dense(), expected)
        parts = [tensor.data_ptr() for tensor in copied if tensor.dim() == 1]
        assert sorted(parts) == sorted(part.data_ptr() for part in edges.tensors)
        copied.clear()


def test_a_matrix_for_which_there_is_no_memory(
    copies_here: tuple[DeviceCopies, list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyG takes what a copy raises for a value that cannot be copied."""
    copies, _ = copies_here

    def fail(edges: CompressedEdges) -> torch.Tensor:
        raise torch.OutOfMemoryError("none is left")

    monkeypatch.setattr(CompressedEdges, "matrix", fail)
    none = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(torch.OutOfMemoryError, match="none is left"):
        copies.begin(Data(adj_t=CompressedEdges(none, none[:0], None, 0)))


def test_what_a_gpu_has_made_stays_and_is_kept_for_who_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there when the stream is that made it; then its memory is the taker's stream's, too."""
    gpu, uses = torch.device("cuda", 0), deque[Any]()
    made_on, taker = (SimpleNamespace(name=name, waited=[]) for name in ("made on", "taker"))
    made_on.record_event, taker.wait_event = lambda: "made", taker.waited.append
    tensor = {"is_cuda": True, "device": gpu, "layout": torch.strided}
    tensors = [SimpleNamespace(**tensor, record_stream=uses.append) for _ in range(2)]
    monkeypatch.setattr(device_copies, "_values", lambda batch: tensors)
    copies, batch = DeviceCopies("cpu"), object()
    copies.device, copies._number, copies._stream = gpu, 0, made_on  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "current_stream", {0: made_on}.get)
    copy = copies.begin(batch)
    monkeypatch.setattr(torch.cuda, "current_stream", {0: taker}.get)
    assert copies.finish(copy) is batch
    assert taker.waited == ["made"]
    assert list(uses) == [taker, taker]
    assert len(copies._sources) == 0


class CopyUnderWay:
    """An event that is not there before it is told so."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


@pytest.mark.parametrize("last", [0, 1])
def test_what_a_dropped_loader_copies_from_stays_until_the_copies_are_done(last: int) -> None:
    """Threads hold what they copy in any order."""
    copies, sources = DeviceCopies(None), [torch.zeros(1), torch.zeros(1)]
    events = [CopyUnderWay() for _ in sources]
    alive = [weakref.ref(source) for source in sources]
    for event in events:
        copies._sources.hold(sources.pop(0), event)
    events[1 - last].is_done = True
    del copies
    assert None not in [ref() for ref in alive]
    events[last].is_done = True
    wait_until(lambda: [ref() for ref in alive] == [None, None])


def test_a_batch_of_which_only_some_copies_have_begun_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch()
    copies, event, begun = DeviceCopies("cpu"), CopyUnderWay(), []
    copies._stream = SimpleNamespace(record_event=lambda: event)  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())

    def no_memory(tensor: torch.Tensor) -> torch.Tensor:
        begun.append(tensor)
        if len(begun) == 2:
            raise torch.OutOfMemoryError("none is left")
        return tensor

    monkeypatch.setattr(device_copies, "_pinned", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        copies.begin(batch)
    assert len(copies._sources) == 1


def test_where_there_is_no_gpu_batches_stay() -> None:
    for device in (None, "cpu"):
        copies, batch = DeviceCopies(device), make_batch()
        assert copies.finish(copies.begin(batch))["user"].x.data_ptr() == batch["user"].x.data_ptr()
    if torch.cuda.device_count() == 0:
        with pytest.raises(InvalidArgumentError, match=r"device: expected .* 0 GPUs are usable, got 'cuda:0'"):
            DeviceCopies("cuda:0")


class Producer(BatchProducer):
    """Whose batches the test makes."""

    def __init__(self) -> None:
        super().__init__(2, 1.0)
        self.asked: list[Future[Any]] = []

    @property
    def input_settings(self) -> dict[str, Any]:
        return {}

    @property
    def where(self) -> str:
        return "here"

    def made(self) -> MadeStats:
        return MadeStats(self.where)

    def _begin(self, run: int, epoch: int, indices: BatchIndices) -> None:
        pass

    def _ask(self, request: BatchRequest) -> Future[Any]:
        self.asked.append(Future())
        return self.asked[-1]

    def _place_of(self, request: BatchRequest) -> str:
        return "here"

    def _release(self) -> None:
        pass


def test_a_window_says_whether_a_batch_is_there() -> None:
    nothing = Subgraph((), (), (), (), (), ())
    window = Producer()
    asked = window.asked
    window.start(1, 0, BatchIndices(0, 3))
    assert not window.is_ready()
    batches = [SampledBatch(1, 0, index, 0, torch.arange(1), nothing, (), (), ()) for index in range(3)]
    asked[1].set_result(batches[1])
    assert not window.is_ready()  # the first comes first
    asked[0].set_result(batches[0])
    assert window.is_ready()
    assert [window.recv(), window.recv()] == batches[:2]
    asked[2].set_exception(PeerLostError("server 0", "it died"))
    assert not window.is_ready()  # getting over an error may take time
    with pytest.raises(PeerLostError):
        window.recv()
    assert window.is_ready()
    assert isinstance(window.recv(), EndOfEpoch)
    window.close()
    assert not window.is_ready()
    with pytest.raises(ChannelClosedError):
        window.recv()
