"""Files that are written through a mapping, and what a full disk does to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import GraphLearnError, StorageError


def map_new_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap[Any, Any]:
    """A new ``.npy`` file, mapped to be written.

    The disk's blocks are taken at once: a write to a mapping whose block cannot be had kills the process.

    Raises:
        StorageError: the disk is full, or the file cannot be made; nothing is left of it.
    """
    with disk_errors(path):
        try:
            mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
    return mapped


@contextmanager
def disk_errors(folder: Path, help_text: str = "") -> Iterator[None]:
    """Turns what the system raises for a full or failing disk into a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, GraphLearnError):
            raise
        where = error.filename2 or error.filename or folder  # of a renaming, the name that cannot be given
        raise StorageError(f"{where}: cannot be written: {error.strerror or error}{help_text}") from error
