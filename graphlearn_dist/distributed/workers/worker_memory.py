"""How a sampling worker's part of a loader's memory is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dist_options import recent_rows_bytes
from ..sampling.recent_rows import AskedRows, most_used

_SMALLEST_BYTES = 128 << 10
_SHARE_OF_RING = 8  # one part in so many


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes of shared memory, which is committed as it is used, and of rows.

    Attributes:
        region: for batches.
        ring: for those that find no room in the region.
        recent_rows: for rows that other partitions answered lately.
    """

    region: int
    ring: int
    recent_rows: int = 0

    @classmethod
    def divide(
        cls, nbytes: int, recent_rows: int | None = None, asked: Sequence[AskedRows] | None = ()
    ) -> WorkerMemory:
        """Divides what a worker is given.

        Args:
            nbytes: that may be used, and 128 KiB if it is less.
            recent_rows: bytes wished for such rows; None has them follow from ``nbytes``.
            asked: all rows that others may be asked for; None: nobody knows how many.
        """
        nbytes = max(nbytes, _SMALLEST_BYTES)
        recent = min(recent_rows_bytes(recent_rows, nbytes), nbytes - _SMALLEST_BYTES)
        if asked is not None:
            recent = most_used(asked, recent)
        ring = (nbytes - recent) // _SHARE_OF_RING
        return cls(nbytes - recent - ring, ring, recent)

    @property
    def largest_batch(self) -> int:
        """Bytes of a message with a batch in the ring: one passes alone whatever there is room for."""
        return self.region + self.ring
