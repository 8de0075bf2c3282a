"""Control groups (of version 1) that bound what processes have: memory, reads of a disk."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/sys/fs/cgroup/memory")
_BUSY_S = 10.0


def move(pid: int, group: Path) -> None:
    """Moves a process into a group, unless it has just ended."""
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid))


def remove(group: Path) -> None:
    """Moves out whoever is in a group, and removes it; those that just began or end keep it busy for a moment."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            move(pid, group.parent)
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A new group whose processes have so many bytes, pages of files included; the test is skipped where none can be.

    What a process has when it comes does not count. None may be left at the end of the block.
    """
    group = MEMORY / f"gld-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group (of version 1) can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield group
    finally:
        remove(group)


def enter(group: Path) -> None:
    """Moves this process into a group."""
    move(os.getpid(), group)


def peak_bytes(group: Path) -> int:
    """The most memory that it has had at once."""
    return int((group / "memory.max_usage_in_bytes").read_text())


def forget_pages(directory: Path) -> None:
    """Has the system keep nothing of the files below in memory, where it would count for whoever read them first."""
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
