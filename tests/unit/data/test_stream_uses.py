"""What streams still read when its owner is dropped, with streams that only note what they are asked; ``tests/gpu``
has real ones. And copies of rows on a GPU that follow changes of the rows."""

from __future__ import annotations

import _thread
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Feature, feature
from graphlearn_dist.data.device.device_cache import DeviceCache
from graphlearn_dist.data.device.device_copies import HeldUntilDone
from graphlearn_dist.data.device.device_rows import DeviceRows, FollowedCopy
from graphlearn_dist.data.device.stream_uses import StreamUses, at_drop, wait_at_drop
from graphlearn_dist.data.handles import GpuHandle
from graphlearn_dist.sampler import SamplingType
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.device.padding import StaticShapes
from graphlearn_dist.sampler.device.static_batches import ask, new_request
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import HOST, config_for, link_graph, links_for, on_device, sample, seeds_for
from tests.support.graphs import make_dataset
from tests.support.static_batches import batches_of_kernels, loader_for
from tests.support.streams import GPU, Memory, Owner, Stream, replace_current
from tests.support.waiting import collect, wait_until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The current stream, to be changed."""
    return replace_current(monkeypatch)


def test_torch_keeps_the_memory_of_a_gpu_until_the_streams_are_done(current: SimpleNamespace) -> None:
    owner, memory, later = Owner(), [Memory(), Memory()], Memory()
    uses, first, second = StreamUses(owner, GPU, memory), current.stream, Stream(8)
    assert [uses.note(), uses.note()] == [7, 7]
    uses.add(later)
    current.stream = second
    assert uses.note() == 8
    assert not any(one.streams for one in (*memory, later))
    del owner
    assert all(one.streams == [first, second] for one in (*memory, later))
    assert first.num_waits == second.num_waits == 0


def test_memory_of_another_process_is_waited_for(current: SimpleNamespace) -> None:
    """Torch there takes it back when it is dropped here, and knows nothing of streams here."""
    owner, received = Owner(), Memory()
    handle = GpuHandle(described=(lambda: received, ()))  # type: ignore[arg-type, return-value]
    StreamUses(owner, GPU, [Memory(), handle.open()]).note()
    del owner
    wait_until(lambda: current.stream.num_waits == 1)
    assert not received.streams


def test_page_locked_memory_is_waited_for(current: SimpleNamespace) -> None:
    owner = Owner()
    StreamUses(owner, GPU, [Memory(), Memory(is_cuda=False)]).note()
    del owner
    wait_until(lambda: current.stream.num_waits == 1)
    other = Owner()
    wait_at_drop(other, GPU).note()
    del other
    wait_until(lambda: current.stream.num_waits == 2)


def test_another_thread_waits_than_the_one_that_drops(current: SimpleNamespace) -> None:
    """The stream may wait for what that one does. What it reads stays until it is done, and no longer."""
    owner, kept = Owner(), Owner()
    alive, memory = weakref.ref(kept), Memory(is_cuda=False)
    alive_memory = weakref.ref(memory)
    current.stream.is_stuck = True
    StreamUses(owner, GPU, [memory], keeping=[kept]).note()
    del kept, memory
    del owner
    assert alive() is not None
    assert alive_memory() is not None
    current.stream.is_stuck = False
    wait_until(lambda: alive() is None and alive_memory() is None)


@pytest.mark.parametrize("what_fails", ["thread", "event"])
def test_what_nobody_can_wait_for_stays(
    what_fails: str, current: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> bool:
        raise RuntimeError("there is none")

    if what_fails == "thread":
        monkeypatch.setattr(_thread, "start_new_thread", fail)
    else:
        monkeypatch.setattr(current.stream, "record_event", lambda: SimpleNamespace(query=fail))
    copies, owner, read = HeldUntilDone(), Owner(), [Owner(), Owner()]
    alive = [weakref.ref(of) for of in read]
    copies.hold(read[0], current.stream.record_event())
    StreamUses(owner, GPU, [Memory(is_cuda=False)], keeping=[read[1]]).note()
    at_drop(owner, copies.leave)
    del read, owner, copies
    collect()
    assert None not in [of() for of in alive]
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("there is none",)] * 2


def test_nobody_waits_for_a_stream_that_is_done(current: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(_thread, "start_new_thread", lambda *_: pytest.fail("it is done"))
    monkeypatch.setattr(current.stream, "record_event", lambda: done)
    owner, kept = Owner(), Owner()
    alive = weakref.ref(kept)
    StreamUses(owner, GPU, [Memory(is_cuda=False)], keeping=[kept]).note()
    del kept, owner
    assert alive() is None


AT_EXIT = """
import torch
from tests.support.streams import GPU, Memory, Owner, Stream
from graphlearn_dist.data.device.stream_uses import StreamUses, at_drop
from graphlearn_dist.utils.system import lifetime as threads

stream, owner, dropped = Stream(7), Owner(), Owner()
stream.is_stuck = True
torch.cuda.current_stream = lambda device: stream
StreamUses(dropped, GPU, [Memory(is_cuda=False)]).note()
del dropped
stream.record_event = lambda: print("asked")
StreamUses(owner, GPU, [Memory(is_cuda=False)]).note()
at_drop(owner, lambda: print("done"))
threads._LEAVE_S = 1e9
"""


def test_at_exit_nobody_waits() -> None:
    """All memory goes with the process, locked or not; nor does the end wait for who waits for a stream."""
    command = [sys.executable, "-c", AT_EXIT]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_nobody_waits_for_what_was_not_used(current: SimpleNamespace) -> None:
    owner, memory = Owner(), Memory()
    StreamUses(owner, GPU, [memory])
    wait_at_drop(owner, HOST).note()
    del owner
    assert memory.streams == []
    assert current.stream.num_waits == 0


# --- who notes -----------------------------------------------------------------------------------------------------


class Noted:
    """Stands for ``StreamUses``: by owner, what it holds, and how often it was used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[str, list[torch.Tensor]] = {}
        self.count: dict[str, int] = {}
        make, note, add = StreamUses.__init__, StreamUses.note, StreamUses.add

        def made(uses: Any, owner: object, device: torch.device, memory: Any = (), keeping: Any = ()) -> None:
            uses.owner = type(owner).__name__
            self.memory.setdefault(uses.owner, []).extend(memory := list(memory))
            make(uses, owner, device, memory, keeping)

        def noted(uses: Any) -> int:
            self.count[uses.owner] = self.count.get(uses.owner, 0) + 1
            return note(uses)

        def added(uses: Any, *memory: Any) -> None:
            self.memory[uses.owner].extend(memory)
            add(uses, *memory)

        monkeypatch.setattr(StreamUses, "__init__", made)
        monkeypatch.setattr(StreamUses, "note", noted)
        monkeypatch.setattr(StreamUses, "add", added)

    def holds(self, owner: str, *tensors: torch.Tensor) -> bool:
        held = {tensor.data_ptr() for tensor in self.memory[owner]}
        return all(tensor.data_ptr() in held for tensor in tensors)


def test_gathers_note_their_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, rows, table = Noted(monkeypatch), torch.randn(50, 3), torch.arange(50)
    cache = DeviceCache(rows, 0, 8 * 50 + 10 * 20, HOST)
    gathered = DeviceRows([rows], HOST, table, cache)
    for count in (1, 2):
        gathered.gather(torch.tensor([1, 2]), torch.float32)
        assert noted.count == {"DeviceRows": count, "DeviceCache": count}
    assert noted.holds("DeviceRows", rows, table)
    assert noted.holds("DeviceCache", cache._rows, cache._use_counts, cache._slot_rows, cache._counts)


def test_batches_note_their_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, graph = Noted(monkeypatch), link_graph("homogeneous", {})
    dataset, inputs = make_dataset(graph), links_for(graph, "triplet-weighted", {})
    config = config_for([3], {"with_neg": True}, SamplingType.LINK)
    device = on_device(dataset, config, HOST)
    sample(device, seeds_for(graph, {}), 0)
    assert noted.count == {"DeviceGraph": 1}
    assert noted.holds("DeviceGraph", dataset.graph.topo.indptr, dataset.graph.topo.indices)
    run_local(BatchMaker(device, dataset.schema, inputs, config).make(0, 0))
    assert noted.count["DeviceGraph"] > 2  # negatives, and the batch
    assert inputs.neg_sampling is not None
    assert len(noted.memory["DeviceGraph"]) > 3  # weights of negatives came there
    before = noted.count["DeviceGraph"]
    run_local(device.induced((torch.arange(9),)))
    assert noted.count["DeviceGraph"] == before + 1


def test_padded_batches_note_their_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    noted, loader = Noted(monkeypatch), loader_for("homogeneous", static_shapes=True)
    kernels, request = batches_of_kernels(loader, StaticShapes(), HOST), new_request(5, HOST)
    ask(request, 0, 0)
    kernels.sample(request)
    assert noted.count["DeviceStaticBatches"] == 1
    assert noted.holds("DeviceStaticBatches", kernels._inputs, kernels._failure, *kernels._hops.memory)
    assert noted.count["DeviceRows"] >= 1


# --- copies that follow --------------------------------------------------------------------------------------------


def test_a_copy_follows_changes_in_place() -> None:
    rows = torch.arange(12.0).view(6, 2)
    copied = FollowedCopy(rows, HOST)
    gathered, ids = DeviceRows([copied.copy], HOST, followed=[copied]), torch.tensor([5, 0])
    assert copied.copy.data_ptr() != rows.data_ptr()
    assert torch.equal(gathered.gather(ids, torch.float32), rows[ids])
    place = copied.copy.data_ptr()
    for change in (lambda: rows[5].fill_(-1), lambda: rows.view(-1).mul_(2), lambda: rows.copy_(torch.ones(6, 2))):
        change()
        assert torch.equal(gathered.gather(ids, torch.float32), rows[ids])
    assert copied.copy.data_ptr() == place  # who gathers holds it
    rows.numpy()[0] = 9  # not by way of torch
    assert not torch.equal(gathered.gather(ids, torch.float32), rows[ids])


def test_what_did_not_change_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = FollowedCopy(torch.zeros(3, 2), HOST)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda *_: pytest.fail("nothing has changed"))
    copied.follow()
    with torch.inference_mode():
        fixed = torch.zeros(3)
    FollowedCopy(fixed, HOST).follow()  # such tensors count no changes


def test_a_copy_is_up_to_date_when_it_was_made() -> None:
    """And not before: another thread would gather from it meanwhile."""
    rows = torch.zeros(3, 2)
    copied = FollowedCopy(rows, HOST)
    rows[0] = 1
    seen: list[bool] = []
    copied.copy = SimpleNamespace(copy_=lambda _: seen.append(copied._version == rows._version))  # type: ignore[assignment]
    for _ in range(2):
        copied.follow()
    assert seen == [False]
    assert copied._version == rows._version


def test_labels_on_a_gpu_follow_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are few are copied there; here the copy is the host's too."""
    labels = Feature(torch.arange(6), dtype=None)
    properties = SimpleNamespace(total_memory=100 * labels.feature_tensor.nbytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    made: list[Any] = []
    monkeypatch.setattr(feature, "FollowedCopy", lambda rows, device: made.append(FollowedCopy(rows, HOST)) or made[0])
    monkeypatch.setattr(feature, "DeviceRows", lambda parts, _, table, **more: DeviceRows(parts, HOST, table, **more))
    rows = labels.for_batches_on(GPU, pin=True)
    assert rows is not None
    labels.feature_tensor[3] = 33
    assert rows.gather(torch.tensor([3]), torch.int64).tolist() == [33]
    assert len(made) == 1
