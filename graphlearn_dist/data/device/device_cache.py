"""A cache of rows in the memory of a GPU, which learns from lookups which rows to keep."""

from __future__ import annotations

import threading
from math import prod

import torch

from ... import _C
from ...errors import InvalidArgumentError
from ...telemetry import DeviceCacheCounts
from .stream_uses import StreamUses

_WORD_BYTES = 8  # of a row: how often it was used, and where it is; of a slot: which row it has
_MOST_SLOTS = (1 << 31) - 2


class DeviceCache:
    """Room for rows that lie in host memory, see ``csrc/feature/cuda/row_cache.h``. Thread-safe.

    It never changes a lookup. Of all rows it counts how often they are looked up, older lookups counting less, and a
    row that counts for more takes the place of one that counts for less.

    Args:
        rows: ``[num_rows, ...]``, the rows in host memory; only their shape and dtype are looked at.
        first_row: the number that the first of them has in the tensor that is gathered from; those before, in the
            memory of GPUs, are not cached.
        nbytes: of the GPU's memory, for cached rows and the words by which they are found, 8 bytes for each of
            ``rows`` and for each cached row.
        device: the GPU. On the CPU device the host runs the kernels' bodies.

    Raises:
        InvalidArgumentError: there is room for no row.
    """

    def __init__(self, rows: torch.Tensor, first_row: int, nbytes: int, device: torch.device) -> None:
        self._row_bytes = prod(rows.shape[1:]) * rows.element_size()
        least = _WORD_BYTES * len(rows) + self._row_bytes + _WORD_BYTES
        if nbytes < least and len(rows):
            raise InvalidArgumentError(
                f"device_cache: expected at least {least} bytes for the words of {len(rows)} rows and one row of "
                f"{self._row_bytes} bytes, got {nbytes}"
            )
        room = max(nbytes - _WORD_BYTES * len(rows), 0) // (self._row_bytes + _WORD_BYTES)
        self.num_slots = min(room, len(rows), _MOST_SLOTS)
        self.device = device
        self._first_row = first_row
        self._rows = torch.empty((self.num_slots, *rows.shape[1:]), dtype=rows.dtype, device=device)
        self._use_counts = torch.zeros(len(rows), dtype=torch.int64, device=device)
        self._slot_rows = torch.full((self.num_slots,), -1, dtype=torch.int64, device=device)
        self._counts = torch.zeros(_C.DEVICE_CACHE_COUNTS, dtype=torch.int64, device=device)
        self._lock = threading.Lock()
        self._done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._num_gathers = 0
        self._uses = StreamUses(self, device, [self._rows, self._use_counts, self._slot_rows, self._counts])
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(device))

    def gather(
        self,
        store: _C.DeviceRowStore,
        out: torch.Tensor,
        positions: torch.Tensor | None,
        ids: torch.Tensor,
        status: torch.Tensor,
    ) -> None:
        """As ``DeviceRows.launch`` of ``store``, whose device is the current one.

        Gathers of several streams follow each other on the device.

        Raises:
            InvalidArgumentError: a CUDA graph is captured, whose replays other gathers could not follow.
        """
        if self.num_slots == 0:
            return store.gather(ids, positions, out, status, self._uses.note())
        if self._done is not None and torch.cuda.is_current_stream_capturing():
            raise InvalidArgumentError("device_cache: expected None of features that a captured step gathers")
        answers = torch.empty(ids.numel(), dtype=torch.int32, device=self.device)
        with self._lock:
            self._follow()
            self._num_gathers += 1
            arrays = self._rows, self._use_counts, self._slot_rows, self._counts, answers
            cache = (*arrays, self._first_row, self._num_gathers)
            try:
                store.gather(ids, positions, out, status, self._uses.note(), cache)
            except BaseException:  # slots may have been given to rows that were not put there
                self._use_counts.zero_()
                self._slot_rows.fill_(-1)
                raise
            finally:
                if self._done is not None:
                    self._done.record(torch.cuda.current_stream(self.device))

    def _follow(self) -> None:
        """Has the caller's current stream wait for the last gather, on whatever stream that was."""
        if self._done is not None:
            torch.cuda.current_stream(self.device).wait_event(self._done)

    @property
    def counts(self) -> DeviceCacheCounts:
        """Lookups until now of the rows in host memory; waits for the GPU."""
        with self._lock:
            self._follow()
            hits, misses = self._counts.view(2, -1).sum(dim=1).tolist()
        return DeviceCacheCounts(hits, misses, hits * self._row_bytes, self.num_slots)
