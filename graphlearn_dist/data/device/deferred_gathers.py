"""Rows that a GPU gathers for the batches that it makes, and of which the host hears later whether they were there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...errors import UnknownIdError
from ...utils.device_exchange import Reading
from .device_rows import DeviceRows


@dataclass(frozen=True)
class Gathered:
    """The gathers of one batch.

    Attributes:
        batch: which one, for people.
        asked: by store, the rows and the ids that were asked for.
        status: of each the first position of an id without a row, -1 where all have one.
    """

    batch: str
    asked: dict[str, tuple[DeviceRows, torch.Tensor]]
    status: Reading

    def raise_fault(self) -> None:
        """Waits for them; an ``UnknownIdError`` where a row is missing."""
        for (name, (rows, ids)), bad in zip(self.asked.items(), self.status.wait(), strict=True):
            if bad >= 0:
                raise UnknownIdError(f"{self.batch}: {name}: ids[{bad}]: {rows.fault(int(ids[bad]))}")


class DeferredGathers:
    """Gathers the rows of batches on the caller's current stream, without waiting. Thread-safe.

    A row that is not there comes as zeros, and as an error from ``check``, which whoever reads the batches calls:
    batches may be made ahead by threads whose errors nobody takes any more. Each error is raised once, and names its
    batch. The ids of a batch, and so the memory that they lie in, are held until then.

    Args:
        rows: by store, with the dtype that they are given in; on ``device``.
        device: the GPU. On the CPU device the host runs the kernels' bodies.
    """

    def __init__(self, rows: Mapping[str, tuple[DeviceRows, torch.dtype]], device: torch.device) -> None:
        self._rows = dict(rows)
        self._device = device
        self._lock = threading.Lock()
        self._open: deque[Gathered] = deque()

    def gather(self, wanted: Mapping[str, torch.Tensor], batch: str) -> dict[str, torch.Tensor]:
        """The rows of a batch, of those stores that are gathered here.

        Args:
            wanted: by store ids (int ``[n]``) on the device.
            batch: its name in errors.
        """
        found, gathered = self.begin(wanted, batch)
        if gathered is not None:
            with self._lock:
                self._open.append(gathered)
        return found

    def begin(self, wanted: Mapping[str, torch.Tensor], batch: str) -> tuple[dict[str, torch.Tensor], Gathered | None]:
        """As ``gather``, for who asks what it gives for faults, and not ``check``; None where nothing is gathered."""
        asked = {name: (self._rows[name][0], ids) for name, ids in wanted.items() if name in self._rows}
        if not asked:
            return {}, None
        status = torch.full((len(asked),), -1, dtype=torch.int64, device=self._device)
        found = {
            name: rows.begin_gather(ids, self._rows[name][1], status[number : number + 1])
            for number, (name, (rows, ids)) in enumerate(asked.items())
        }
        return found, Gathered(batch, asked, Reading(status))

    def check(self, *, wait: bool = True) -> None:
        """Looks at what the GPU is past; waits for all of them, where it is to.

        Raises:
            UnknownIdError: a batch has asked for an id without a row.
        """
        while True:
            with self._lock:
                if not self._open or not (wait or self._open[0].status.is_there()):
                    return
                first = self._open.popleft()
            first.raise_fault()
