"""Rows that a GPU gathers, from its own memory, from that of its peers, and from pinned memory of the host."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from ... import _C
from ...errors import UnknownIdError
from ...utils.device import as_current, device_number
from ...utils.device_exchange import Reading, moved
from .device_cache import DeviceCache
from .pinned_memory import PinnedTensor, pin
from .stream_uses import StreamUses


class FollowedCopy:
    """Rows in host memory, copied to a GPU, and copied again where they were changed in place. Thread-safe.

    Changes are those that torch counts (``Tensor._version``): not those by way of numpy, or of another process.

    Args:
        rows: in host memory.
        device: where the copy is.

    Attributes:
        copy: the copy.
    """

    def __init__(self, rows: torch.Tensor, device: torch.device) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self._version = self._version_now()
        self.copy = rows.to(device, copy=True)

    def _version_now(self) -> int:
        return 0 if self._rows.is_inference() else self._rows._version

    def follow(self) -> None:
        """Brings the copy up to date, and waits for that; does nothing where no row was changed."""
        if self._version_now() == self._version:
            return
        with self._lock:  # others wait for a copy under way
            version = self._version_now()  # before the copy: what changes meanwhile is copied once more
            if version != self._version:
                self.copy.copy_(self._rows)
                self._version = version


class DeviceRows:
    """One logical tensor in pieces, gathered in one launch on the caller's current stream.

    Args:
        parts: the pieces in row order, at most 16. Those in host memory are pinned where they lie, or copied to pinned
            memory where that cannot be.
        device: the GPU. On the CPU device pieces stay where they are and the host runs the kernels' bodies.
        row_of_id: int ``[num_ids]``, the row of each id, -1 for none; None: ids are rows.
        cache: of the last piece, on the GPU; None has none.
        followed: what pieces are copies by, whose sources are looked at before each gather.

    Attributes:
        memories: by piece, where the GPU reads it.
        cache: as given.
    """

    def __init__(
        self,
        parts: Sequence[torch.Tensor],
        device: torch.device,
        row_of_id: torch.Tensor | None = None,
        cache: DeviceCache | None = None,
        followed: Sequence[FollowedCopy] = (),
    ) -> None:
        self.device = device
        self.cache = cache
        self._followed = followed
        self._row_shape = parts[0].shape[1:]
        self._num_rows = sum(part.size(0) for part in parts)
        self._row_of_id = None if row_of_id is None else row_of_id.contiguous().to(device)
        self._pinned = [self._readable(part) for part in parts]
        self.memories = [_memory_of(pinned) for pinned in self._pinned]
        read = [pinned.tensor for pinned in self._pinned if pinned.tensor.numel()]
        self._uses = StreamUses(
            self, device, read if self._row_of_id is None else [*read, self._row_of_id], keeping=self._pinned
        )
        self._native = _C.DeviceRowStore(
            [pinned.tensor for pinned in self._pinned], device_number(device), self._row_of_id
        )

    def gather(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows of ``ids`` (int ``[n]``, on any device) as a new ``[n, ...]`` tensor on the GPU, cast on the way.

        Raises:
            UnknownIdError: an id is outside, or has no row.
        """
        out = torch.empty((ids.numel(), *self._row_shape), dtype=dtype, device=self.device)
        self.gather_into(out, None, ids)
        return out

    def gather_or_zeros(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As ``gather``, but rows of ids that are outside (as -1 is) are zeros, and nobody waits.

        Args:
            ids: int64 ``[n]``, on the GPU.
            dtype: of the rows that are given.
        """
        return self.begin_gather(ids, dtype, torch.full((1,), -1, dtype=torch.int64, device=self.device))

    def begin_gather(self, ids: torch.Tensor, dtype: torch.dtype, status: torch.Tensor) -> torch.Tensor:
        """As ``gather_or_zeros``; ``status`` is that of ``launch``, of which ``fault`` tells more."""
        out = torch.empty((ids.numel(), *self._row_shape), dtype=dtype, device=self.device)
        self.launch(out, None, ids, status)
        return out

    def gather_into(self, out: torch.Tensor, positions: torch.Tensor | None, ids: torch.Tensor) -> None:
        """Writes the row of ``ids[i]`` to ``out[positions[i]]``, or to ``out[i]``; waits for it.

        Raises:
            UnknownIdError: an id is outside, or has no row, or a position is outside ``out``.
        """
        wanted = moved(ids.contiguous(), self.device)
        places = None if positions is None else moved(positions.contiguous(), self.device)
        status = torch.full((1,), -1, dtype=torch.int64, device=self.device)
        self.launch(out, places, wanted, status)
        (bad,) = Reading(status).wait()
        if bad >= 0:
            place = None if places is None else int(places[bad])
            raise UnknownIdError(f"ids[{bad}]: {self.fault(int(wanted[bad]), place, out.size(0))}")

    def launch(
        self, out: torch.Tensor, positions: torch.Tensor | None, ids: torch.Tensor, status: torch.Tensor
    ) -> None:
        """As ``gather_into``, of tensors on the device, and nothing is waited for.

        ``status``, int64 ``[1]``, is -1 beforehand, and afterwards the first i whose id, row or position does not
        exist, if there is one; rows that do not are zeros. All tensors must live until the stream has done it.
        """
        with as_current(self.device):
            for copy in self._followed:
                copy.follow()
            stream = self._uses.note()
            if self.cache is None:
                self._native.gather(ids, positions, out, status, stream)
            else:
                self.cache.gather(self._native, out, positions, ids, status)

    def fault(self, wanted: int, place: int | None = None, num_places: int = 0) -> str:
        """What is wrong with an id that has no row, or with its place."""
        num_ids = self._num_rows if self._row_of_id is None else self._row_of_id.numel()
        if not 0 <= wanted < num_ids:
            return f"row {wanted} is outside [0, {num_ids})"
        if place is not None and not 0 <= place < num_places:
            return f"position {place} outside [0, {num_places})"
        return f"id {wanted} has no feature row here"

    def _readable(self, part: torch.Tensor) -> PinnedTensor:
        if part.is_cuda or self.device.type == "cpu":
            return PinnedTensor(part)
        return pin(part, device_number(self.device))


def _memory_of(pinned: PinnedTensor) -> str:
    if pinned.tensor.is_cuda:
        return f"memory of GPU {pinned.tensor.device.index}"
    return "host memory, copied and pinned" if pinned.is_copy else "host memory"
