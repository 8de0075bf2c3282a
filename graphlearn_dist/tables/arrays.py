"""What rows of a table become: features and attributes, in the dtype in which they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..errors import TableError
from .columns import Array, CheckedChunk, is_list, is_number
from .config import MAIN_FEATURE, FeatureSpec
from .sources import Table

_TORCH = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class FeatureArray:
    """One array ``[rows, width]`` of a type, from columns of its table.

    Attributes:
        spec: what was asked for.
        widths: numbers that each column has in a row.
    """

    spec: FeatureSpec
    widths: tuple[int, ...]

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return sum(self.widths)

    @property
    def raw_dtype(self) -> Any:
        """numpy's dtype on the way; float64 only where nothing else keeps the numbers."""
        return np.float64 if self.spec.dtype == "float64" else np.float32

    @property
    def stored_dtype(self) -> torch.dtype:
        """torch's dtype in the partition."""
        return _TORCH[self.spec.dtype]

    @property
    def is_main(self) -> bool:
        """Whether this is ``x``, and not an attribute."""
        return self.spec.name == MAIN_FEATURE

    def raw(self, chunk: CheckedChunk) -> Array:
        """The numbers of a chunk's rows, all of them; each is finite as it is stored, or its row is rejected."""
        return chunk.matrix(self.spec.columns, self.widths, self.raw_dtype, self.stored_dtype)

    def store(self, raw: Array, scale: Array | None) -> torch.Tensor:
        """Rows as they are stored: cast, or divided by the scale of their column and rounded, for int8."""
        if scale is not None:
            return torch.from_numpy(np.clip(np.rint(raw / scale), -127, 127).astype(np.int8))
        return torch.from_numpy(np.ascontiguousarray(raw)).to(self.stored_dtype)

    def describe(self, scale: Array | None) -> dict[str, Any]:
        """What META.json says."""
        named = [
            f"{c}[{i}]" if w > 1 else c for c, w in zip(self.spec.columns, self.widths, strict=True) for i in range(w)
        ]
        return {
            "name": self.spec.name,
            "width": self.width,
            "dtype": self.spec.dtype,
            "columns": named if self.width <= 256 else list(self.spec.columns),
            "widths": list(self.widths),
            **({"scale": scale.tolist()} if scale is not None else {}),
        }


class Scales:
    """The scale of each column of arrays that are stored as int8: the greatest magnitude is 127."""

    def __init__(self, arrays: Sequence[FeatureArray]) -> None:
        self._greatest = {
            i: np.zeros(array.width, np.float32) for i, array in enumerate(arrays) if array.spec.dtype == "int8"
        }

    def see(self, number: int, raw: Array) -> None:
        """Takes rows of the array of this number into account."""
        if number in self._greatest and len(raw):
            np.maximum(self._greatest[number], np.abs(raw).max(axis=0), out=self._greatest[number])

    def to_list(self) -> list[list[float]]:
        """For JSON: the scales in the order of the arrays that have one."""
        return [scale_of(greatest).tolist() for greatest in self._greatest.values()]


def scale_of(greatest: Array) -> Array:
    """Scales of columns with these greatest magnitudes; 1 for a column of zeros."""
    # A quotient that is subnormal has few bits, or none: multiples of it would be far from the numbers, or none.
    least = np.finfo(np.float32).tiny
    scale: Array = np.where(greatest > 0, np.maximum(greatest / np.float32(127), least), 1).astype(np.float32)
    return scale


def scales_by_array(arrays: Sequence[FeatureArray], scales: Sequence[Sequence[float]]) -> list[Array | None]:
    """``Scales.to_list`` as arrays, None for an array without."""
    left = iter(scales)
    return [np.asarray(next(left), np.float32) if array.spec.dtype == "int8" else None for array in arrays]


def feature_arrays(table: Table, specs: Sequence[FeatureSpec]) -> list[FeatureArray]:
    """The arrays that a table's columns make; TableError for a column that is no number and no list of numbers."""
    lists = [c for spec in specs for c in spec.columns if is_list(table.types[c])]
    found: dict[str, int] = {}
    for name in lists:
        fixed = getattr(table.types[name], "list_size", None)
        if fixed is not None:
            found[name] = int(fixed)
    open_ones = [name for name in lists if name not in found]
    if open_ones:
        for chunk in table.chunks(open_ones):
            for name in open_ones:
                full = chunk.columns[name].drop_null()
                if name not in found and len(full):
                    found[name] = len(full[0])
            if len(found) == len(set(lists)):
                break
    return [FeatureArray(spec, tuple(_width(table, column, found) for column in spec.columns)) for spec in specs]


def _width(table: Table, column: str, of_lists: dict[str, int]) -> int:
    dtype = table.types[column]
    if is_list(dtype) and is_number(dtype.value_type):
        return of_lists.get(column, 0)
    if not is_number(dtype):
        raise TableError(
            f"{table.files[0] if table.files else 'table'}, column {column!r}: expected numbers or lists of numbers as "
            f"features, found {dtype}"
        )
    return 1
