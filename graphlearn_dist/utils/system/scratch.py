"""Folders for what is on the way: those of processes that were killed are removed by the next one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(parent: Path | None, prefix: str) -> Iterator[Path]:
    """A new folder that is gone at the end, unless it has another name by then.

    Its process holds its lock, which ends with the process: folders of this prefix that nobody holds are removed first.

    Args:
        parent: made where it is not there; None: where the system has such.
        prefix: of its name.
    """
    where = Path(tempfile.gettempdir()) if parent is None else parent.absolute()
    where.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(where):
        if name.startswith(prefix):
            _remove_left(where / name)
    number = f"{os.getpid()}-{secrets.token_hex(4)}"
    unlocked, folder = where / f".unlocked-{number}", where / f"{prefix}{number}"
    unlocked.mkdir()  # under a name that no other process removes, until it is locked
    descriptor = os.open(unlocked, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then others cannot lock it either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(unlocked, folder)
        yield folder
    finally:
        os.close(descriptor)
        for each in (unlocked, folder):  # the first where it could not be renamed
            shutil.rmtree(each, ignore_errors=True)


def _remove_left(folder: Path) -> None:
    """Removes a folder, unless a process holds its lock."""
    with contextlib.suppress(OSError):  # another process removes it, or it is another user's
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(descriptor)
