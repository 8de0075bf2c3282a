"""The rows of a feature as GPUs gather them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from ... import _C
from ...telemetry import DeviceCacheCounts
from ..handles import GpuHandle
from .device_cache import DeviceCache
from .device_group import group_of
from .device_rows import DeviceRows
from .row_placement import RowPlacement


def put_on_gpu(rows: torch.Tensor, gpu: int) -> torch.Tensor:
    """The rows in the memory of a GPU."""
    return rows.to(torch.device("cuda", gpu))


class PlacedRows:
    """Hot rows in the memory of GPUs, a copy for each group of them, and the others in pinned memory. Thread-safe.

    Nothing is placed before a GPU of the group gathers, or its handles are asked for.

    Args:
        rows: ``[num_rows, ...]``, in host memory.
        placement: which rows go where.
        groups: GPUs of each group; none: each GPU that gathers is a group of its own.
        id2index: int ``[num_ids]``, rows of ids, -1 for none; None where ids are rows.
        received: hot rows that another process has placed, by group.
        put: brings rows to a GPU; ``put_on_gpu`` unless given.
        cache_bytes: of each GPU that gathers, for a ``DeviceCache`` of the rows in pinned memory; None makes none.
    """

    def __init__(
        self,
        rows: torch.Tensor,
        placement: RowPlacement,
        groups: Sequence[Sequence[int]] = (),
        id2index: torch.Tensor | None = None,
        received: Mapping[tuple[int, ...], Sequence[GpuHandle]] | None = None,
        put: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self._rows = rows
        self._placement = placement
        self._groups = groups
        self._id2index = id2index
        self._put = put or put_on_gpu
        self._cache_bytes = cache_bytes
        self._lock = threading.RLock()
        self._handles = {group: tuple(handles) for group, handles in (received or {}).items()}
        self._placed: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._gathers: dict[torch.device, DeviceRows] = {}
        self._caches: dict[torch.device, DeviceCache] = {}

    def on(self, device: torch.device) -> DeviceRows:
        """The rows as a GPU gathers them, by id.

        Raises:
            InvalidArgumentError: the GPU is in none of the groups, or cannot read the memory of one in its group.
        """
        with self._lock:
            if device not in self._gathers:
                group = group_of(device.index, self._groups, _C.cuda_can_access_peer)
                table = self._placement.row_of_id(len(group), self._id2index)
                parts = self.parts(group)
                self._gathers[device] = DeviceRows(parts, device, table, self._cache_on(device, parts))
            return self._gathers[device]

    def _cache_on(self, device: torch.device, parts: Sequence[torch.Tensor]) -> DeviceCache | None:
        """Of the rows in pinned memory: one for each GPU, wherever these rows move."""
        if self._cache_bytes is None or self._placement.num_hot == self._placement.num_rows:
            return None
        if device not in self._caches:
            first_row = sum(map(len, parts[:-1]))
            self._caches[device] = DeviceCache(parts[-1], first_row, self._cache_bytes, device)
        return self._caches[device]

    @property
    def cache_counts(self) -> DeviceCacheCounts:
        """Of the caches of all GPUs that gather; waits for them."""
        with self._lock:
            caches = list(self._caches.values())
        return sum((cache.counts for cache in caches), DeviceCacheCounts())

    def move(self, rows: torch.Tensor) -> None:
        """Goes on with the same rows elsewhere in host memory; what lies on GPUs stays there, caches too."""
        with self._lock:
            if rows is not self._rows:
                self._rows = rows
                self._gathers.clear()

    def share(self, gpu: int) -> dict[tuple[int, ...], tuple[GpuHandle, ...]]:
        """Handles of the hot rows on each GPU of each group, all placed now; without groups, of those on one GPU."""
        if not self._placement.num_hot:
            return {}
        with self._lock:
            for group in [tuple(group) for group in self._groups] or [(gpu,)]:
                if group not in self._handles:
                    self._handles[group] = tuple(map(GpuHandle, self._place(group)))
            return dict(self._handles)

    def parts(self, group: tuple[int, ...]) -> list[torch.Tensor]:
        """The list of rows that the GPUs of a group see, in its pieces."""
        on_host = self._rows[self._placement.on_host]
        with self._lock:
            parts = [*self._place(group), on_host]
        return [part for part in parts if part.numel()] or [on_host]

    def _place(self, group: tuple[int, ...]) -> list[torch.Tensor]:
        if group not in self._placed:
            if group in self._handles:
                pieces = [handle.open() for handle in self._handles[group]]
            else:
                shares = [self._placement.share(place, len(group)) for place in range(len(group))]
                pieces = [self._put(self._rows[share], gpu) for share, gpu in zip(shares, group, strict=True)]
            self._placed[group] = pieces
        return self._placed[group]
