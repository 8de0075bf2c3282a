"""One process at a time in a directory; the lock of a process goes with it, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from ...errors import StorageError


@contextlib.contextmanager
def locked_directory(folder: Path, timeout_s: float) -> Iterator[None]:
    """Holds a directory's lock; ``StorageError`` where another process holds it for longer than ``timeout_s``, or has
    removed the directory while this one waited: what is there by then is somebody else's.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        descriptor = _wait_for_lock(folder, timeout_s)
    try:
        if not _is_at(folder, descriptor):
            raise StorageError(f"{folder}: the process that held its lock has removed it")
        yield
    finally:
        os.close(descriptor)


def _is_at(folder: Path, descriptor: int) -> bool:
    """Whether a directory that was opened has its name still."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


def _wait_for_lock(folder: Path, timeout_s: float) -> int:
    """A descriptor that holds the lock. The system's wait for a lock has no deadline: a thread waits, and is left."""
    locked: Future[int] = Future()

    def wait() -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            os.close(descriptor)
            if locked.set_running_or_notify_cancel():
                locked.set_exception(error)
            return
        if locked.set_running_or_notify_cancel():
            locked.set_result(descriptor)
        else:  # nobody waits any more
            os.close(descriptor)

    threading.Thread(target=wait, name="directory lock", daemon=True).start()
    try:
        return locked.result(timeout_s)
    except BaseException as error:
        if not locked.cancel():  # it came at the last moment
            os.close(locked.result())
        if isinstance(error, TimeoutError):
            raise StorageError(f"{folder}: another process held its lock for {timeout_s:g} s") from None
        raise
