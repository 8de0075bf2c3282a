"""Rows larger than memory: read from their file, behind a cache of bounded size that is told what comes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from .. import _C
from ..utils.message_types import register_message
from . import shared_memory


def bytes_of_row(rows: torch.Tensor) -> int:
    """Bytes of one of the rows of a tensor that has some."""
    return rows[0].numel() * rows.element_size()


class DiskTier:
    """The rows of a tensor that is mapped from a file, read past the mapping (``csrc/feature/disk_rows.h``).

    Each process that reads has a cache of its own, which is made when it first reads, and so has a fork of it. What is
    written to the mapping from then on is not seen.

    Args:
        rows: ``[num_rows, ...]``, mapped from a file.
        memory_bytes: for cached rows, and the tables that find them.

    Raises:
        StorageError: the rows lie in private memory.
    """

    def __init__(self, rows: torch.Tensor, memory_bytes: int) -> None:
        self.rows = rows
        self.memory_bytes = memory_bytes
        self._place = shared_memory.to_handle(rows)
        self._inode = shared_memory.inode(rows)
        self._opened: dict[int, tuple[_C.DiskRows, _C.RowStore]] = {}  # by process

    def _open(self) -> tuple[_C.DiskRows, _C.RowStore]:
        opened = self._opened.get(os.getpid())
        if opened is None:
            path, offset, row_bytes = self._place.path, self._place.offset, bytes_of_row(self.rows)
            disk = _C.DiskRows(path, self._inode, offset, len(self.rows), row_bytes, self.memory_bytes)
            # Of several threads that come at once all get what the first has made; a lock might be held in a fork.
            opened = self._opened.setdefault(os.getpid(), (disk, _C.RowStore([self.rows], disk)))
        return opened

    @property
    def native(self) -> _C.DiskRows:
        """The cache of this process."""
        return self._open()[0]

    @property
    def store(self) -> _C.RowStore:
        """The rows, as native code gathers them."""
        return self._open()[1]

    @property
    def counts(self) -> dict[str, int]:
        """``hits`` and ``misses`` of rows asked for, ``rows_ahead`` and ``bytes`` read, by this process so far."""
        return self.native.counts


class Announced:
    """What was announced of one batch, until its rows were looked up.

    Args:
        wanted: rows (int ``[n]``) by the tier that reads them.
    """

    def __init__(self, wanted: Iterable[tuple[DiskTier, torch.Tensor]]) -> None:
        self._uses: list[tuple[_C.DiskRows, int]] = []
        try:
            for tier, rows in wanted:
                disk = tier.native
                self._uses.append((disk, disk.announce(rows)))
        except BaseException:
            self.finish()
            raise

    def finish(self) -> None:
        """The rows were looked up, or will not be. Idempotent."""
        uses, self._uses = self._uses, []
        for disk, use in uses:
            disk.finish(use)


@register_message
@dataclass(frozen=True)
class FeatureMemory:
    """Memory for rows of features that lie in files.

    Attributes:
        total_bytes: of all processes that read the same files; who maps a file shares its pages with the others.
        own_bytes: of one process, or of those that divide it.
    """

    total_bytes: int
    own_bytes: int

    def part(self, numerator: int, denominator: int) -> FeatureMemory:
        """The memory of one of several."""
        return replace(self, own_bytes=self.own_bytes * numerator // denominator)
