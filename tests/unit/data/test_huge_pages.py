"""Large tensors that are read at random move into huge pages; what that would cost memory stays."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Feature, Graph, Topology, UnifiedTensor, huge_pages, shared_memory
from graphlearn_dist.data.huge_pages import HugePages
from graphlearn_dist.data.unified_tensor import view_rows

MIB = 1 << 20
DEADLINE_S = 60.0  # only ever reached by a hang


def in_small_pages(nbytes: int) -> torch.Tensor:
    """Written private memory which the system was told to have no huge pages by itself, but is not kept from any."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    tensor = torch.frombuffer(memory, dtype=torch.int64)
    torch.arange(tensor.numel(), out=tensor)
    memory.madvise(mmap.MADV_HUGEPAGE)  # from here on it may
    return tensor


def huge_bytes(tensor: torch.Tensor) -> int:
    """How much of the mappings that a tensor lies in is in huge pages; not all, where memory is in too many pieces."""
    begin, end, found, is_inside = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, 0, False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            name, _, value = line.partition(":")
            if name in ("AnonHugePages", "ShmemPmdMapped"):
                found += int(value.split()[0]) * 1024 if is_inside else 0
            elif "-" in line and line[0] in "0123456789abcdef":
                low, high = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split("-"))
                is_inside = low < end and begin < high
    return found


def _can_move() -> bool:
    if not _C.huge_page_bytes():
        return False
    tried = in_small_pages(8 * MIB)
    return _C.move_to_huge_pages(tried.data_ptr(), tried.nbytes) > 0


can_move = pytest.mark.skipif(not _can_move(), reason="the system moves no memory into huge pages (Linux 6.1 does)")


@pytest.fixture
def mover(monkeypatch: pytest.MonkeyPatch) -> Iterator[HugePages]:
    """That of this process, alone with what a test gives it."""
    made = HugePages()
    monkeypatch.setattr(huge_pages, "_of_process", made)
    yield made
    assert made.wait(DEADLINE_S)


@can_move
def test_rows_of_features_move(mover: HugePages) -> None:
    rows = in_small_pages(64 * MIB).view(-1, 32)
    address, expected = rows.data_ptr(), rows.clone()
    feature = Feature(rows, dtype=None)
    ids = torch.arange(0, len(rows), 7)
    assert huge_bytes(rows) == 0
    assert torch.equal(feature[ids], expected[ids])
    assert mover.wait(DEADLINE_S)
    assert huge_bytes(rows) > 0
    assert rows.data_ptr() == address
    assert torch.equal(rows, expected)
    assert torch.equal(feature[ids], expected[ids])


@can_move
def test_edges_move(mover: HugePages) -> None:
    indices = in_small_pages(40 * MIB)
    indices.remainder_(4)
    topo = Topology.from_arrays(
        torch.tensor([0, 1, 2, 3, indices.numel()]), indices, torch.arange(indices.numel()), layout="CSR", num_cols=4
    )
    graph = Graph(topo, "CPU")
    graph.lazy_init()
    assert mover.wait(DEADLINE_S)
    assert huge_bytes(topo.indices) > 0


@can_move
def test_shared_memory_moves_for_all_who_map_it(mover: HugePages) -> None:
    shared = shared_memory.share(torch.arange(5 * MIB + 3))  # 40 MiB, no whole number of pages
    handle = shared_memory.to_handle(shared)
    mapped = shared_memory.from_handle(handle)
    assert mover.wait(DEADLINE_S)
    assert torch.equal(mapped, torch.arange(5 * MIB + 3))
    assert huge_bytes(shared) > 0
    assert huge_bytes(mapped) > 0
    assert handle.shape == (5 * MIB + 3,)


@can_move
def test_memory_that_was_not_written_is_not_taken(mover: HugePages) -> None:
    memory = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.int64)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    tensor[:: 4 * mmap.PAGESIZE // 8] = 1  # a quarter of the pages
    memory.madvise(mmap.MADV_HUGEPAGE)
    huge_pages.read_at_random(tensor)
    assert mover.wait(DEADLINE_S)
    assert huge_bytes(tensor) == 0


def _share_by_fork(tensor: torch.Tensor, connection: Connection) -> None:
    moved = _C.move_to_huge_pages(tensor.data_ptr(), tensor.nbytes)
    connection.send(moved)
    connection.recv()  # the memory is shared until then


def _parent(connection: Connection) -> None:
    """What a process and its fork could move of memory that they share, and the process after the fork's end."""
    tensor = in_small_pages(16 * MIB)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_share_by_fork, args=(tensor, theirs))
    child.start()
    moved = [ours.recv(), _C.move_to_huge_pages(tensor.data_ptr(), tensor.nbytes)]
    ours.send(None)
    child.join()
    connection.send([*moved, _C.move_to_huge_pages(tensor.data_ptr(), tensor.nbytes)])


@can_move
def test_what_a_fork_shares_is_not_copied_for_each_process() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_parent, args=(theirs,))
    process.start()
    assert ours.poll(DEADLINE_S)
    in_child, in_parent, alone = ours.recv()
    process.join(DEADLINE_S)
    assert (in_child, in_parent) == (0, 0)
    assert alone > 0


@can_move
def test_values_that_are_written_meanwhile_stay() -> None:
    tensor = in_small_pages(32 * MIB)
    stopped, rounds = threading.Event(), []

    def write() -> None:
        while not stopped.is_set():
            tensor.add_(1)
            rounds.append(1)

    thread = threading.Thread(target=write)
    thread.start()
    assert _C.move_to_huge_pages(tensor.data_ptr(), tensor.nbytes) > 0
    stopped.set()
    thread.join()
    assert torch.equal(tensor, torch.arange(tensor.numel()) + len(rounds))


def test_tensors_that_are_small_or_gone_are_left_out(mover: HugePages, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages._C, "huge_page_bytes", lambda: 2 * MIB)
    monkeypatch.setattr(huge_pages._C, "move_to_huge_pages", lambda *range_: moved.append(range_))
    huge_pages.read_at_random(None, torch.empty(0), torch.empty(32 * MIB - 1, dtype=torch.uint8))
    huge_pages.read_at_random(torch.empty(32 * MIB, dtype=torch.uint8)[:0])
    assert mover.wait(DEADLINE_S)
    assert moved == []
    kept = torch.empty(100 * MIB + 5, dtype=torch.uint8)
    huge_pages.read_at_random(kept, None)
    assert mover.wait(DEADLINE_S)
    assert moved[0][0] == kept.data_ptr()
    assert moved[-1][0] + moved[-1][1] == kept.data_ptr() + kept.nbytes
    assert all(one[0] + one[1] == next_[0] for one, next_ in itertools.pairwise(moved))
    assert all((begin + nbytes) % (2 * MIB) == 0 for begin, nbytes in moved[:-1])


def test_a_system_that_gives_nobody_huge_pages_is_not_asked(mover: HugePages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages._C, "huge_page_bytes", lambda: 0)
    monkeypatch.setattr(mover, "move", lambda tensor: pytest.fail("asked"))
    huge_pages.read_at_random(torch.empty(64 * MIB, dtype=torch.uint8))


def test_where_there_may_be_no_more_threads_pages_stay(mover: HugePages, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    rows = torch.empty(1)
    mover.move(rows)
    assert mover.wait(0)
    assert not mover._asked  # there may be one later


def test_memory_that_is_gone_or_a_file_stays_as_it_is(tmp_path: os.PathLike[str]) -> None:
    memory = mmap.mmap(-1, 8 * MIB)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    address = tensor.data_ptr()
    del tensor
    memory.close()
    assert _C.move_to_huge_pages(address, 8 * MIB) == 0
    path = os.path.join(tmp_path, "rows")
    torch.arange(MIB).numpy().tofile(path)
    rows = torch.from_file(path, shared=False, size=MIB, dtype=torch.int64)
    _C.move_to_huge_pages(rows.data_ptr(), rows.nbytes)
    assert torch.equal(rows, torch.arange(MIB))
    assert _C.move_to_huge_pages(0, 0) == 0


def test_a_tensor_is_moved_once_while_it_lives(mover: HugePages, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, int]] = []
    monkeypatch.setattr(huge_pages._C, "huge_page_bytes", lambda: 2 * MIB)
    monkeypatch.setattr(huge_pages._C, "move_to_huge_pages", lambda *range_: moved.append(range_))
    rows = torch.empty(32 * MIB // 16, 4)
    for _ in range(3):
        view_rows(rows)[torch.tensor([0])]
    assert mover.wait(DEADLINE_S)
    assert sum(nbytes for _, nbytes in moved) == rows.nbytes
    del rows
    assert not mover._asked
    moved.clear()
    others = [torch.empty(32 * MIB // 16, 4) for _ in range(2)]  # one of them lies there, perhaps
    huge_pages.read_at_random(*others)
    assert mover.wait(DEADLINE_S)
    assert sum(nbytes for _, nbytes in moved) == sum(other.nbytes for other in others)


def test_who_gives_a_tensor_up_in_mid_move_has_its_memory_back_at_once(
    mover: HugePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that moves has no reference: neither frees it later, nor at the end of the interpreter."""
    moves, may_end, calls = threading.Event(), threading.Event(), []

    def move(begin: int, nbytes: int) -> int:
        calls.append(nbytes)
        moves.set()
        assert may_end.wait(DEADLINE_S)
        return 0

    monkeypatch.setattr(huge_pages._C, "huge_page_bytes", lambda: 2 * MIB)
    monkeypatch.setattr(huge_pages._C, "move_to_huge_pages", move)
    rows = torch.empty(256 * MIB, dtype=torch.uint8)
    is_freed = weakref.ref(rows)
    huge_pages.read_at_random(rows)
    assert moves.wait(DEADLINE_S)
    del rows
    assert is_freed() is None
    may_end.set()
    assert mover.wait(DEADLINE_S)
    assert len(calls) == 1


_ENDS_IN_MID_MOVE = """
import torch
from graphlearn_dist.data import Feature

def main():
    Feature(torch.ones(128 << 20, 1))[torch.tensor([1])]

main()
"""


@can_move
def test_a_program_may_end_in_mid_move() -> None:
    for _ in range(3):
        ended = subprocess.run([sys.executable, "-c", _ENDS_IN_MID_MOVE], capture_output=True, timeout=DEADLINE_S)
        assert (ended.returncode, ended.stderr) == (0, b"")


@can_move
def test_rows_of_several_pieces_move(mover: HugePages) -> None:
    pieces = [in_small_pages(34 * MIB).view(-1, 4) for _ in range(2)]
    rows = UnifiedTensor(0, torch.int64)
    rows.init_from(pieces, [-1, -1])
    assert torch.equal(rows[torch.tensor([0, len(pieces[0])])], torch.stack([pieces[0][0], pieces[1][0]]))
    assert mover.wait(DEADLINE_S)
    assert all(huge_bytes(piece) > 0 for piece in pieces)
