"""Rows that a GPU gathers, from its own memory and from pinned memory of the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _C
from ..errors import UnknownIdError
from ..utils.device import device_number, stream_handle


class DeviceRows:
    """One logical tensor in pieces, gathered in one launch on the caller's current stream.

    Args:
        parts: the pieces in row order, at most 16. Those in host memory are copied to pinned memory, unless they lie
            there already.
        device: the GPU. On the CPU device pieces stay where they are and the host runs the kernels' bodies.
    """

    def __init__(self, parts: Sequence[torch.Tensor], device: torch.device) -> None:
        self.device = device
        self._row_shape = parts[0].shape[1:]
        self._num_rows = sum(part.size(0) for part in parts)
        self._native = _C.DeviceRowStore([self._readable(part) for part in parts], device_number(device))

    def gather(self, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Rows ``ids`` (int ``[n]``, on any device) as a new ``[n, ...]`` tensor on the GPU, cast on the way.

        Raises:
            UnknownIdError: an id is outside.
        """
        out = torch.empty((ids.numel(), *self._row_shape), dtype=dtype, device=self.device)
        self.gather_into(out, None, ids)
        return out

    def gather_into(self, out: torch.Tensor, positions: torch.Tensor | None, ids: torch.Tensor) -> None:
        """Writes row ``ids[i]`` to ``out[positions[i]]``, or to ``out[i]``; waits for it.

        Raises:
            UnknownIdError: an id is outside the rows, or a position outside ``out``.
        """
        rows = ids.contiguous().to(self.device)
        places = None if positions is None else positions.contiguous().to(self.device)
        status = torch.full((1,), -1, dtype=torch.int64, device=self.device)
        self._native.gather(rows, places, out, status, stream_handle(self.device))
        bad = int(status)  # waits for the stream
        if bad >= 0:
            where = "" if places is None else f", or position {int(places[bad])} outside [0, {out.size(0)})"
            raise UnknownIdError(f"ids[{bad}]: row {int(rows[bad])} is outside [0, {self._num_rows}){where}")

    def _readable(self, part: torch.Tensor) -> torch.Tensor:
        if part.is_cuda or self.device.type == "cpu" or part.numel() == 0:
            return part
        return part.pin_memory()
