"""What is done beside the capture of a CUDA graph, with streams that only note what they are asked; ``tests/gpu`` has
real ones."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data.device import own_streams, stream_uses
from graphlearn_dist.data.device.device_copies import DeviceCopies
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.data.device.own_streams import OwnStream
from graphlearn_dist.data.device.stream_uses import (
    StreamUses,
    at_drop,
    capturing,
    record_uses,
    wait_at_drop,
)
from graphlearn_dist.loader import CapturedStep, StaticShapes
from tests.support.device_batches import HOST, graph_for
from tests.support.graphs import make_dataset
from tests.support.static_batches import batches_of_kernels, loader_for
from tests.support.streams import GPU, Memory, Owner, Stream, replace_current
from tests.support.waiting import collect, wait_until

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60.0  # only ever reached by a hang


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The current stream, to be changed."""
    return replace_current(monkeypatch)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Somebody waits for a capture, or to begin one."""
    found, sleep = threading.Event(), time.sleep

    def look_again(seconds: float) -> None:
        found.set()
        sleep(seconds)

    monkeypatch.setattr(stream_uses, "time", SimpleNamespace(sleep=look_again))
    return found


@contextmanager
def captured_elsewhere() -> Iterator[None]:
    """Another thread captures meanwhile."""
    began, ended = threading.Event(), threading.Event()

    def capture() -> None:
        with capturing():
            began.set()
            assert ended.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as thread:
        captured = thread.submit(capture)
        try:
            assert began.wait(DEADLINE_S)
            yield
        finally:
            ended.set()
        captured.result(DEADLINE_S)


def test_uses_are_told_after_a_capture(current: SimpleNamespace, waits: threading.Event) -> None:
    """Torch forgets what it is told while any thread captures."""
    memory, held, began, ended = Memory(), Memory(), threading.Event(), threading.Event()

    def capture() -> list[Any]:
        with capturing():
            began.set()
            assert ended.wait(DEADLINE_S)
            return list(memory.streams)

    with ThreadPoolExecutor(2) as threads:
        captured = threads.submit(capture)
        try:
            assert began.wait(DEADLINE_S)
            owner = Owner()
            StreamUses(owner, GPU, [held]).note()
            del owner  # the garbage collector may do that, and waits for no capture
            told_of_dropped = list(held.streams)
            told = threads.submit(record_uses, [memory], current.stream)
            assert waits.wait(DEADLINE_S)
        finally:
            ended.set()
        assert captured.result(DEADLINE_S) == told_of_dropped == []
        told.result(DEADLINE_S)
    assert memory.streams == held.streams == [current.stream]
    assert current.stream.num_waits == 0


def test_what_is_dropped_by_whoever_captures_stays_until_the_capture_has_ended(current: SimpleNamespace) -> None:
    owner, held, batch = Owner(), Memory(), Memory()
    StreamUses(owner, GPU, [held]).note()
    with capturing():
        del owner
        with capturing():
            record_uses([batch], current.stream)  # whoever captures may hand out batches
        assert not held.streams
    assert held.streams == batch.streams == [current.stream]


def test_whoever_captures_waits_for_no_stream(current: SimpleNamespace) -> None:
    """CUDA would fail the capture. Pages stay locked until the stream that reads them is done."""
    owner, locked = Owner(), Owner()
    alive = weakref.ref(locked)
    uses = StreamUses(owner, GPU, [Memory(is_cuda=False)], keeping=[locked])
    uses.note()
    del locked, uses
    copies, waits = Owner(), [0]
    at_drop(copies, lambda: waits.append(1))
    with capturing():
        del owner, copies
        assert current.stream.num_waits == 0
        assert waits == [0]
        assert alive() is not None
    assert waits == [0, 1]
    wait_until(lambda: current.stream.num_waits == 1 and alive() is None)


def test_copies_of_batches_are_not_waited_for_in_a_capture() -> None:
    copies, asked = DeviceCopies(None), list[bool]()
    done = SimpleNamespace(query=lambda: asked.append(capturing_now) or True)
    copies._sources.hold("memory", done)
    capturing_now = True
    with capturing():
        del copies
        capturing_now = False
    assert asked == [False]


def test_nobody_collects_garbage_while_a_graph_is_captured() -> None:
    assert gc.isenabled()
    with capturing():
        with capturing():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with capturing():
            pass
        assert not gc.isenabled()  # as whoever captures had it
    finally:
        gc.enable()


def test_streams_are_nobody_elses_while_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch deals out 32, in turn."""
    numbers = iter(range(1, 100))
    monkeypatch.setattr(own_streams, "_free", defaultdict(deque))
    monkeypatch.setattr(_C, "cuda_is_built", lambda: True)
    monkeypatch.setattr(_C, "new_stream", lambda number: 1000 * number + next(numbers))
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: Stream(handle))
    one, other = torch.device("cuda", 1), torch.device("cuda", 2)
    streams = [OwnStream(one) for _ in range(40)]
    handles = {own.stream.cuda_stream for own in streams}
    assert handles == {1000 + number for number in range(1, 41)}
    assert OwnStream(other).stream.cuda_stream == 2041
    dropped = streams.pop().stream.cuda_stream
    assert OwnStream(one).stream.cuda_stream == dropped
    assert OwnStream(one).stream.cuda_stream == dropped  # given back once more
    side = OwnStream(one, for_captures=True)  # what was made there is used on others
    handle = side.stream.cuda_stream
    del side
    assert handle not in {own.stream.cuda_stream for own in [OwnStream(one) for _ in range(3)]}
    assert OwnStream(one, for_captures=True).stream.cuda_stream == handle


# --- what goes wrong -----------------------------------------------------------------------------------------------


class Failing(Stream):
    """One that nobody can wait for."""

    def record_event(self) -> Any:
        def query() -> bool:
            asked.append(1)
            if len(asked) > 1:  # by whoever waits
                raise RuntimeError("a CUDA error")
            return False

        asked: list[int] = []
        return SimpleNamespace(query=query)


def dropped_after(stream: Stream, current: SimpleNamespace, *keeping: object) -> Owner:
    """Whose drop waits for a stream."""
    owner, before, current.stream = Owner(), current.stream, stream
    StreamUses(owner, GPU, [Memory(is_cuda=False)], keeping=keeping).note()
    current.stream = before
    return owner


def test_what_was_put_off_and_fails_is_logged_and_keeps_nothing_else_from_being_done(
    current: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever captures, or hands out a batch, has nothing to do with it. What the stream may still read stays."""
    stream, read = Stream(8), Owner()
    still_read = weakref.ref(read)
    owners = [dropped_after(Failing(9), current, read), dropped_after(stream, current)]
    del read
    with capturing():
        owners.clear()
    wait_until(lambda: stream.num_waits == 1 and caplog.records)
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("a CUDA error",)]
    collect()
    assert still_read() is not None


def test_handing_out_a_batch_that_fails_leaves_nothing_undone(current: SimpleNamespace) -> None:
    stream = Stream(8)
    owners = [dropped_after(stream, current)]

    class Lost(Memory):
        def record_stream(self, stream: Any) -> None:
            with capturing():
                owners.clear()
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        record_uses([Lost()], current.stream)
    wait_until(lambda: stream.num_waits == 1)


@pytest.mark.parametrize("step", ["isenabled", "disable", "enable"])
def test_an_interrupt_leaves_captures_possible(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Any:
        getattr(gc, step)()
        raise KeyboardInterrupt  # as the interpreter does where a signal came meanwhile

    steps: dict[str, Callable[[], Any]] = {name: getattr(gc, name) for name in ("isenabled", "disable", "enable")}
    monkeypatch.setattr(stream_uses, "gc", SimpleNamespace(**{**steps, step: interrupted}))
    with pytest.raises(KeyboardInterrupt), capturing():
        pass
    assert gc.isenabled()
    monkeypatch.undo()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(record_uses, [], None).result(DEADLINE_S)
    with captured_elsewhere():
        pass
    assert gc.isenabled()


# --- who waits for whom --------------------------------------------------------------------------------------------


def test_what_a_dropped_object_waits_for_holds_nobody_up(current: SimpleNamespace) -> None:
    """The stream may wait for what another thread will do with its batch, or in a capture. Neither waits, nor is what
    the stream reads let go of meanwhile: its end comes when no graph is captured."""
    stream, memory, locked = Stream(8), Memory(), Owner()
    alive = weakref.ref(locked)
    stream.is_stuck = True
    owners = [dropped_after(stream, current, locked)]
    del locked
    owners.clear()
    record_uses([memory], current.stream)
    assert memory.streams == [current.stream]
    with capturing():
        stream.is_stuck = False
        wait_until(lambda: stream_uses._deferred)
        assert alive() is not None
    wait_until(lambda: alive() is None)
    assert stream.num_waits == 1


def test_who_checks_static_shapes_waits_for_captures(monkeypatch: pytest.MonkeyPatch, waits: threading.Event) -> None:
    """It waits for all of a GPU, which fails the captures of others."""
    batches = batches_of_kernels(loader_for("homogeneous", static_shapes=True), StaticShapes(), HOST)
    batches.device = GPU
    found: list[int | None] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.append(stream_uses._captures.capturer))
    with ThreadPoolExecutor(1) as thread:
        with captured_elsewhere():
            checked = thread.submit(batches.check)
            assert waits.wait(DEADLINE_S)
            assert not found
        checked.result(DEADLINE_S)
    assert found == [None]


def test_graphs_in_pieces_that_are_dropped_in_a_capture_stay_until_it_is_over() -> None:
    """Their end waits for all of a GPU."""
    topo = make_dataset(graph_for("homogeneous", {})).graph.topo
    placed = DeviceTopology(topo, "CUDA", HOST, group=(0, 1))
    placed.handler(weighted=False)
    pieces = [weakref.ref(of) for of in placed._placed.values()]
    with capturing():
        del placed
        assert all(of() is not None for of in pieces)
    assert [of() for of in pieces] == [None] * len(pieces)
    assert pieces


FORK = """
import gc, os, sys
from types import SimpleNamespace
import torch
from graphlearn_dist.data.device.stream_uses import StreamUses, record_uses
from tests.support.streams import GPU, Memory, Owner, Stream
from tests.unit.data.test_captures import captured_elsewhere

stream, memory, owner, asked = Stream(7), Memory(), Owner(), []
stream.record_event = lambda: asked.append(1) or SimpleNamespace(query=lambda: True)
torch.cuda.current_stream = lambda device: stream
StreamUses(owner, GPU, [Memory(is_cuda=False)]).note()
with captured_elsewhere():
    child = os.fork()
    if child == 0:
        record_uses([memory], stream)
        del owner
        os._exit(0 if gc.isenabled() and len(memory.streams) == 1 and asked == [] else 2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    del owner
    assert asked == []
print(code, len(asked))
"""


def test_a_fork_beside_a_capture_is_as_if_there_were_none() -> None:
    """In a process of few threads: what others hold is held for ever in a fork. What is dropped there waits for
    nothing, and keeps what it holds: a fork can ask CUDA for nothing."""
    command = [sys.executable, "-c", FORK]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "0 1\n"), ended.stderr


def num_of(kind: type) -> int:
    """How many there are."""
    return sum(type(found) is kind for found in gc.get_objects())


@pytest.mark.parametrize("is_cycle", [False, True])
def test_what_a_step_uses_outlives_it_while_replays_are_under_way(current: SimpleNamespace, is_cycle: bool) -> None:
    """Also where it holds the step itself: nothing keeps that from its end."""

    class Model:
        """Whose parameters replays write."""

        def __call__(self, batch: Any) -> Any:
            return batch

    collect()
    assert num_of(CapturedStep) == 0

    class Transform(Model):
        """Whose tensors they read."""

    model, current.stream.is_stuck = Model(), True
    steps = CapturedStep(loader_for("homogeneous", static_shapes=True, transform=Transform()), model)
    if is_cycle:
        model.steps = steps  # type: ignore[attr-defined]
    steps._replays = wait_at_drop(steps, GPU)
    steps._replays.note()
    steps._graph = SimpleNamespace()  # type: ignore[assignment]
    del steps, model
    collect()
    # Weak references to garbage are gone before it is kept.
    assert [num_of(kind) for kind in (Model, Transform, CapturedStep)] == [1, 1, int(is_cycle)]
    current.stream.is_stuck = False
    wait_until(lambda: collect() or num_of(Model) == num_of(Transform) == num_of(CapturedStep) == 0)


# --- captures that fail --------------------------------------------------------------------------------------------


def test_a_capture_that_fails_leaves_streams_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch does not, and nobody knows what state its stream is in: it is given to nobody, and another one is used."""
    numbers = iter(range(1, 100))

    class Handle(Stream):
        def __init__(self, handle: int, device: torch.device = GPU) -> None:
            super().__init__(handle)
            self.device = device

    @contextmanager
    def use(stream: Handle) -> Iterator[None]:
        before, now[0] = now[0], stream
        try:
            yield
        finally:
            now[0] = before

    @contextmanager
    def graph_on(graph: object, *, stream: Handle, capture_error_mode: str) -> Iterator[None]:
        now[0] = stream
        yield
        raise RuntimeError("operation failed due to a previous error during capture")

    now = [Handle(0)]
    monkeypatch.setattr(own_streams, "_free", defaultdict(deque))
    monkeypatch.setattr(_C, "cuda_is_built", lambda: True)
    monkeypatch.setattr(_C, "new_stream", lambda number: next(numbers))
    for name, value in {
        "ExternalStream": Handle, "stream": use, "graph": graph_on, "CUDAGraph": object, "device": nullcontext,
        "current_stream": lambda device: now[0],
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    steps = CapturedStep(loader_for("homogeneous", static_shapes=True), lambda batch: batch)
    side = OwnStream(GPU, for_captures=True)
    monkeypatch.setattr(steps, "_make", lambda: None)
    with pytest.raises(RuntimeError, match="previous error"):
        steps._capture(side)
    assert now[0].cuda_stream == 0
    assert steps._side is not None
    assert steps._side.stream.cuda_stream not in (0, side.stream.cuda_stream)
    handle = side.stream.cuda_stream
    del side
    assert handle not in own_streams._free[0, True]
