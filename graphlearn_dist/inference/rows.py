"""Rows of all nodes of the types: what a layer has made, and the next one reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..data.unified_tensor import view_rows
from ..errors import InvalidArgumentError

_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


class LayerRows:
    """Rows of all nodes of one type by id, and which blocks of them are there.

    Args:
        num_nodes: of the type.
        num_blocks: in which they are computed.
        dtype: float32 or float16.
        path: where to keep them; None keeps them in memory.
        name: of the files.
    """

    def __init__(self, num_nodes: int, num_blocks: int, dtype: torch.dtype, path: Path | None, name: str) -> None:
        self._num_nodes, self._dtype = num_nodes, dtype
        self._path = None if path is None else path / f"{name}.npy"
        self._rows: torch.Tensor | None = None
        self.done: np.ndarray = np.zeros(num_blocks, np.uint8)
        if path is None:
            return
        marks = path / f"{name}.done"
        if marks.exists() and marks.stat().st_size == num_blocks and self._path is not None and self._path.exists():
            self._rows = torch.from_numpy(np.lib.format.open_memmap(self._path, mode="r+"))
        else:
            marks.write_bytes(bytes(num_blocks))
        self.done = np.memmap(marks, np.uint8, mode="r+") if num_blocks else self.done

    @property
    def is_there(self) -> bool:
        """Whether the layer has given rows of this type."""
        return self._rows is not None

    @property
    def tensor(self) -> torch.Tensor:
        """``[num_nodes, width]``."""
        assert self._rows is not None
        return self._rows

    def write(self, block: int, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """The rows of a block; then it is done. The first call comes alone."""
        if rows.dim() != 2 or len(rows) != len(ids):
            raise InvalidArgumentError(f"model: expected [{len(ids)}, width] of a layer, got {list(rows.shape)}")
        if self._rows is None:
            self._rows = self._make(rows.size(1))
        if rows.size(1) != self._rows.size(1):
            raise InvalidArgumentError(f"model: expected rows of {self._rows.size(1)} numbers, got {rows.size(1)}")
        first = int(ids[0])
        if int(ids[-1]) - first == len(ids) - 1 and bool((ids.diff() == 1).all()):
            self._rows[first : first + len(ids)] = rows
        else:
            self._rows[ids] = rows.to(self._dtype)
        self.done[block] = 1

    def _make(self, width: int) -> torch.Tensor:
        if self._path is None:
            return torch.empty(self._num_nodes, width, dtype=self._dtype)
        shape = (self._num_nodes, width)
        temporary = self._path.with_suffix(".new")
        np.lib.format.open_memmap(temporary, mode="w+", dtype=_NUMPY[self._dtype], shape=shape).flush()
        temporary.rename(self._path)
        return torch.from_numpy(np.lib.format.open_memmap(self._path, mode="r+"))

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 ``[n, width]``, rows of ids."""
        found = torch.empty(len(ids), self.tensor.size(1))
        view_rows(self.tensor).gather_all(found, ids)
        return found

    def whole(self) -> torch.Tensor | None:
        """All rows, where no cast is needed."""
        return self.tensor if self._dtype == torch.float32 else None
