"""The ring in shared memory: order, room, deadlines, closing, and what is left when a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.errors import (
    ChannelClosedError,
    ChannelError,
    ChannelTimeoutError,
    InvalidArgumentError,
    MessageTooLargeError,
)

DEADLINE_S = 60.0  # only ever reached by a hang
PAGE = 4096


def fill(index: int, size: int) -> bytes:
    """Bytes that depend on both arguments, so that a shifted or torn message is noticed."""
    return (index * 2654435761 % 2**64).to_bytes(8, "little") * (size // 8) + bytes([index % 251]) * (size % 8)


def receive(ring: _C.ShmRing, timeout_s: float = DEADLINE_S) -> bytes:
    with ring.recv(timeout_s) as message:
        blob = bytearray(len(message))
        message.copy_to(blob)
    return bytes(blob)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait(DEADLINE_S)
        if child.stdout is not None:
            child.stdout.close()


def spawn(children: list[subprocess.Popen[bytes]], code: str, *args: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE)
    children.append(child)
    return child


PRODUCER = """
import sys
from graphlearn_dist import _C
ring, tag, count = _C.ShmRing.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for i in range(count):
    ring.send([bytes([tag]), i.to_bytes(4, "little"), bytes([tag ^ i % 256]) * (i * 37 % 900)], 20.0)
"""


# --- order and room ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, PAGE), min_size=1, max_size=60), held=st.integers(0, 4))
def test_fifo_across_wrap_around(sizes: list[int], held: int) -> None:
    ring = _C.ShmRing(2 * PAGE, 8)
    kept: list[tuple[_C.Message, bytes]] = []
    sent = received = 0

    def check_oldest() -> None:
        message, expected = kept.pop(0)
        with memoryview(message) as view:
            assert bytes(view) == expected
        message.release()

    while received < len(sizes):
        while sent < len(sizes):
            try:
                ring.send([fill(sent, sizes[sent])], 0.0)
            except ChannelTimeoutError:
                break
            sent += 1
        if sent > received:
            kept.append((ring.recv(0.0), fill(received, sizes[received])))
            received += 1
        while kept and (len(kept) > held or sent == received < len(sizes)):
            check_oldest()
    while kept:
        check_oldest()
    assert (ring.pending, ring.held) == (0, 0)


def test_parts_are_gathered_in_order_and_payloads_are_aligned() -> None:
    ring = _C.ShmRing(PAGE)
    ring.send([b"ab", bytearray(b""), memoryview(b"cde")], 0.0)
    ring.send([], 0.0)
    ring.send([b"x" * 65], 0.0)
    messages = [ring.recv(0.0) for _ in range(3)]
    assert [bytes(memoryview(message)) for message in messages] == [b"abcde", b"", b"x" * 65]
    assert ring.held == 3
    torch = pytest.importorskip("torch")
    view = torch.frombuffer(bytearray(messages[2]), dtype=torch.uint8)
    assert view.numel() == 65


def test_message_may_fill_the_ring_exactly_wherever_the_last_one_ended() -> None:
    ring = _C.ShmRing(PAGE)
    for size in (PAGE, 100, PAGE, 3000, PAGE):
        ring.send([fill(size, size)], 0.0)
        assert receive(ring, 0.0) == fill(size, size)


def test_max_messages_bounds_unread_and_held_together() -> None:
    ring = _C.ShmRing(1 << 20, 3)
    for _ in range(3):
        ring.send([b"x"], 0.0)
    message = ring.recv(0.0)
    with pytest.raises(ChannelTimeoutError, match="2 unread and 1 unreleased messages of at most 3"):
        ring.send([b"x"], 0.0)
    message.release()
    ring.send([b"x"], 0.0)
    assert (ring.pending, ring.pending_bytes) == (3, 3)


def test_held_messages_keep_their_bytes_and_are_freed_in_any_order() -> None:
    ring = _C.ShmRing(4 * PAGE)
    for i in range(4):
        ring.send([fill(i, PAGE)], 0.0)
    messages = [ring.recv(0.0) for _ in range(4)]
    messages[2].release()
    messages[1].release()
    with pytest.raises(ChannelTimeoutError):
        ring.send([b"x"], 0.0)  # the oldest is still held
    assert bytes(memoryview(messages[0])) == fill(0, PAGE)
    messages[0].release()
    ring.send([fill(9, 3 * PAGE)], 0.0)
    assert bytes(memoryview(messages[3])) == fill(3, PAGE)
    assert receive(ring) == fill(9, 3 * PAGE)


def test_release_is_idempotent_and_refused_while_views_exist() -> None:
    ring = _C.ShmRing(PAGE)
    ring.send([b"abc"], 0.0)
    message = ring.recv(0.0)
    view = memoryview(message)
    assert view.readonly
    with pytest.raises(BufferError):
        message.release()
    view.release()
    message.release()
    message.release()
    assert message.released
    assert len(message) == 0
    with pytest.raises(BufferError):
        memoryview(message)


def test_views_outlive_ring_and_message() -> None:
    ring = _C.ShmRing(PAGE)
    ring.send([b"abc"], 0.0)
    view = memoryview(ring.recv(0.0))
    ring.close()
    del ring
    assert bytes(view) == b"abc"


def test_memory_is_taken_when_it_is_used_and_reused_when_empty() -> None:
    ring = _C.ShmRing(1 << 40)
    assert ring.committed_bytes == 0
    for _ in range(20):
        ring.send([bytes(1 << 20)], 0.0)
        receive(ring)
    assert ring.committed_bytes <= 8 << 20


# --- refusals ---------------------------------------------------------------------------------------------------


def test_a_message_that_can_never_fit_is_refused_at_once() -> None:
    ring = _C.ShmRing(PAGE)
    with pytest.raises(MessageTooLargeError, match=r"4097 bytes.*4096 bytes"):
        ring.send([bytes(PAGE), b"x"], None)
    assert ring.pending == 0


def test_deadlines() -> None:
    ring = _C.ShmRing(PAGE)
    assert ring.try_recv() is None
    for timeout_s in (0.0, 0.15):
        with pytest.raises(ChannelTimeoutError):
            ring.recv(timeout_s)
    ring.send([bytes(PAGE)], 0.0)
    for timeout_s in (0.0, 0.15):
        with pytest.raises(ChannelTimeoutError):
            ring.send([b"x"], timeout_s)


@pytest.mark.parametrize(
    ("call", "pattern"),
    [
        (lambda: _C.ShmRing(0), "capacity_bytes"),
        (lambda: _C.ShmRing(1 << 62), "capacity_bytes"),
        (lambda: _C.ShmRing(1, 0), "max_messages"),
        (lambda: _C.ShmRing(1).recv(-1.0), "timeout_s"),
        (lambda: _C.ShmRing(1).recv(float("nan")), "timeout_s"),
        (lambda: _C.ShmRing(1).send(["text"], 0.0), r"parts\[0\].*str"),
        (lambda: _C.ShmRing(1).send([b"x", memoryview(b"abcd")[::2]], 0.0), r"parts\[1\]"),
    ],
)
def test_bad_arguments(call: object, pattern: str) -> None:
    with pytest.raises(InvalidArgumentError, match=pattern):
        call()  # type: ignore[operator]


def test_open_refuses_what_is_no_ring() -> None:
    with pytest.raises(ChannelError, match="cannot open"):
        _C.ShmRing.open(f"/proc/{os.getpid()}/fd/99999")
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 1 << 16)
        with pytest.raises(ChannelError, match="not a channel"):
            _C.ShmRing.open(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def test_the_system_has_no_memory_of_that_size() -> None:
    with pytest.raises(ChannelError, match="shared memory"):
        _C.ShmRing((1 << 62) - 1)


# --- closing ----------------------------------------------------------------------------------------------------


def test_close_refuses_sends_and_lets_the_reader_drain() -> None:
    ring = _C.ShmRing(PAGE)
    other = _C.ShmRing.open(ring.path)
    other.send([b"last"], 0.0)
    other.close()
    other.close()
    assert ring.closed
    with pytest.raises(ChannelClosedError):
        ring.send([b"x"], 0.0)
    assert receive(ring) == b"last"
    for call in (lambda: ring.recv(None), ring.try_recv):
        with pytest.raises(ChannelClosedError):
            call()


@pytest.mark.parametrize("side", ["send", "recv"])
def test_close_wakes_who_waits(side: str) -> None:
    ring = _C.ShmRing(PAGE)
    if side == "send":
        ring.send([bytes(PAGE)], 0.0)
    errors: list[BaseException] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            ring.send([b"x"], DEADLINE_S) if side == "send" else ring.recv(DEADLINE_S)
        except ChannelError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(DEADLINE_S)
    ring.close()
    thread.join(DEADLINE_S)
    assert [type(error) for error in errors] == [ChannelClosedError]


# --- other processes --------------------------------------------------------------------------------------------


def test_two_producer_processes_keep_their_own_order(children: list[subprocess.Popen[bytes]]) -> None:
    ring = _C.ShmRing(2 * PAGE, 16)
    count = 2000
    for tag in (1, 2):
        spawn(children, PRODUCER, ring.path, str(tag), str(count))
    next_index = {1: 0, 2: 0}
    for _ in range(2 * count):
        blob = receive(ring)
        tag, index = blob[0], int.from_bytes(blob[1:5], "little")
        assert index == next_index[tag]
        assert blob[5:] == bytes([tag ^ index % 256]) * (index * 37 % 900)
        next_index[tag] += 1
    assert [child.wait(DEADLINE_S) for child in children] == [0, 0]
    assert (ring.pending, ring.held) == (0, 0)


def test_producer_killed_mid_stream_leaves_no_half_message_and_no_lock(
    children: list[subprocess.Popen[bytes]],
) -> None:
    ring = _C.ShmRing(8 << 20)
    code = """
import sys
from graphlearn_dist import _C
ring = _C.ShmRing.open(sys.argv[1])
i = 0
while True:
    ring.send([i.to_bytes(8, "little") * (1 << 18)], 20.0)  # 2 MiB: mostly within the copy
    i += 1
"""
    for round_ in range(4):
        child = spawn(children, code, ring.path)
        for i in range(5 + round_):
            assert receive(ring) == i.to_bytes(8, "little") * (1 << 18)
        child.kill()
        assert child.wait(DEADLINE_S) == -signal.SIGKILL
        i = 5 + round_
        while (message := ring.try_recv()) is not None:  # whole messages or none
            assert bytes(memoryview(message)) == i.to_bytes(8, "little") * (1 << 18)
            del message
            i += 1
    ring.send([b"still usable"], DEADLINE_S)
    assert receive(ring) == b"still usable"


def test_producer_notices_that_the_consumer_is_gone(children: list[subprocess.Popen[bytes]]) -> None:
    code = """
import sys
from graphlearn_dist import _C
ring = _C.ShmRing(4096)
print(ring.path, flush=True)
ring.recv(20.0)
print("received", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    children.append(child)
    assert child.stdin is not None
    assert child.stdout is not None
    ring = _C.ShmRing.open(child.stdout.readline().decode().strip())
    ring.send([b"hello"], DEADLINE_S)
    assert child.stdout.readline() == b"received\n"
    ring.send([bytes(2048)], DEADLINE_S)
    child.kill()  # not yet waited for: a zombie counts as gone
    with pytest.raises(ChannelClosedError, match=f"pid {child.pid}.*gone"):
        ring.send([bytes(4096)], DEADLINE_S)
    child.stdin.close()


def test_consumer_may_be_another_process_than_the_creator(children: list[subprocess.Popen[bytes]]) -> None:
    ring = _C.ShmRing(PAGE)
    code = """
import sys
from graphlearn_dist import _C
ring = _C.ShmRing.open(sys.argv[1])
for _ in range(50):
    print(len(ring.recv(20.0)), flush=True)
"""
    child = spawn(children, code, ring.path)
    for i in range(50):
        ring.send([bytes(i * 80)], DEADLINE_S)
    assert child.stdout is not None
    assert [int(line) for line in child.stdout] == [i * 80 for i in range(50)]


def test_a_signal_ends_a_wait(children: list[subprocess.Popen[bytes]]) -> None:
    code = """
import signal
from graphlearn_dist import _C
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
ring = _C.ShmRing(4096)
try:
    print("ready", flush=True)
    ring.recv(None)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    child = spawn(children, code)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == b"interrupted\n"
    assert child.wait(DEADLINE_S) == 0


def test_nothing_is_left_open_or_mapped() -> None:
    def held() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            mapped = sum("graphlearn_dist.ring" in line for line in maps)
        return len(os.listdir("/proc/self/fd")), mapped

    before = held()
    for _ in range(50):
        ring = _C.ShmRing(1 << 20)
        other = _C.ShmRing.open(ring.path)
        other.send([bytes(1000)], 0.0)
        message = ring.recv(0.0)
        del ring, other, message
    assert held() == before


# --- threads ----------------------------------------------------------------------------------------------------


def test_stress_many_producers_and_messages_released_out_of_order() -> None:
    """Run under a thread sanitizer build (GLD_SANITIZE=thread), this is the race detector's work."""
    ring = _C.ShmRing(4 * PAGE, 12)
    producers, count = 3, 1500
    sums: list[int] = []

    def produce(tag: int) -> None:
        handle = _C.ShmRing.open(ring.path)
        for i in range(count):
            handle.send([bytes([tag + i % 64]) * (i * 13 % 2000 + 1)], DEADLINE_S)

    def consume() -> None:
        kept: list[_C.Message] = []
        total = 0
        while True:
            try:
                message = ring.recv(0.01)
            except ChannelTimeoutError:
                message = None
            except ChannelClosedError:
                break
            if message is not None:
                with memoryview(message) as view:
                    assert bytes(view) == bytes(view[:1]) * len(view)
                    total += view[0]
                kept.append(message)
            if message is None or len(kept) > 3:
                while kept:
                    kept.pop(total % len(kept)).release()
        for message in kept:
            message.release()
        sums.append(total)

    threads = [threading.Thread(target=produce, args=(tag,)) for tag in range(producers)]
    readers = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads + readers:
        thread.start()
    for thread in threads:
        thread.join(3 * DEADLINE_S)
    ring.close()
    for thread in readers:
        thread.join(DEADLINE_S)
    assert sum(sums) == sum(tag + i % 64 for tag in range(producers) for i in range(count))
    assert (ring.pending, ring.held) == (0, 0)
