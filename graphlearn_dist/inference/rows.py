"""Rows of all nodes of the types: what a layer has made, and the next one reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from .. import _C
from ..data.unified_tensor import view_rows
from ..errors import InvalidArgumentError, StorageError
from ..utils.system.disk import map_new_array

_NUMPY = {torch.float32: np.float32, torch.float16: np.float16}


class LayerRows:
    """Rows of all nodes of one type by id, or of those of one partition in its order; and which blocks are there.

    Args:
        num_nodes: of the type, or of the partition.
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
            self._rows = _mapped(self._path)
            if self._rows.dim() != 2 or len(self._rows) != num_nodes or self._rows.dtype != dtype:
                raise StorageError(
                    f"{self._path}: expected {num_nodes} rows of {dtype}, found {self._rows.dtype} "
                    f"{list(self._rows.shape)}; without resume=True it begins anew"
                )
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

    def write(self, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Rows, and where they go. The first block comes alone."""
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

    def finish(self, block: int) -> None:
        """All rows of a block are written, if the layer gives any of this type."""
        self.done[block] = self._rows is not None

    def _make(self, width: int) -> torch.Tensor:
        if self._path is None:
            return torch.empty(self._num_nodes, width, dtype=self._dtype)
        shape = (self._num_nodes, width)
        temporary = self._path.with_suffix(".new")
        map_new_array(temporary, _NUMPY[self._dtype], shape).flush()
        temporary.rename(self._path)
        return _mapped(self._path)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """float32 ``[n, width]``, rows of ids."""
        found = torch.empty(len(ids), self.tensor.size(1))
        view_rows(self.tensor).gather_all(found, ids)
        return found

    def whole(self) -> torch.Tensor | None:
        """All rows, where no cast is needed."""
        return self.tensor if self._dtype == torch.float32 else None


def _mapped(path: Path) -> torch.Tensor:
    """Rows in a file, read without their surroundings: the next layer wants those of neighbors, which lie anywhere."""
    try:
        rows = torch.from_numpy(np.lib.format.open_memmap(path, mode="r+"))
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path}: cannot be read ({error}); without resume=True it begins anew") from error
    _C.read_at_random(rows)
    return rows


class Rows(Protocol):
    """Rows of all nodes of a type by id, wherever they are."""

    @property
    def num_rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def read(self, first: int, last: int) -> torch.Tensor:
        """``[last - first, width]``."""


class RowsHere:
    """``Rows`` of one tensor ``[n, width]``."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows
        self.num_rows, self.width, self.dtype = len(rows), rows.size(1), rows.dtype

    def read(self, first: int, last: int) -> torch.Tensor:
        """See ``Rows``."""
        return self._rows[first:last]


class LayerResult(Protocol):
    """Rows that a layer has made of all nodes, by node type (its number); types that it gave none of are left out."""

    def gather(self, wanted: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """float32 rows of ids."""

    def whole(self, node_type: int) -> torch.Tensor | None:
        """All rows by id, where they lie here as float32."""

    def rows(self) -> dict[int, Rows]:
        """All of them, as they are stored."""

    def close(self) -> None:
        """Nobody reads them any more."""


class LayerAlone:
    """A ``LayerResult`` that lies in this process, by node type."""

    def __init__(self, rows: Mapping[int, LayerRows]) -> None:
        self._rows = rows

    def gather(self, wanted: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """See ``LayerResult``."""
        return {i: self._rows[i].gather(ids) for i, ids in wanted.items() if i in self._rows}

    def whole(self, node_type: int) -> torch.Tensor | None:
        """See ``LayerResult``."""
        return self._rows[node_type].whole()

    def rows(self) -> dict[int, Rows]:
        """See ``LayerResult``."""
        return {i: RowsHere(rows.tensor) for i, rows in self._rows.items()}

    def close(self) -> None:
        """See ``LayerResult``."""
