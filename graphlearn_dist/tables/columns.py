"""Columns of a chunk as arrays, each value checked: what is wrong is named with its place, or its row is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..errors import TableError
from ..utils.tensor import from_array
from .sources import Chunk

Array: TypeAlias = "np.ndarray[Any, Any]"
# int64 [n], or an Arrow array of large strings.
Ids: TypeAlias = Any


class CheckedChunk:
    """A chunk whose rows are checked column by column; ``kept`` leaves the dropped ones out.

    Args:
        chunk: the rows.
        drop: reasons for which a row is left out; for any other, a TableError is raised.
        counts: how many rows were left out, by reason, is added to these.
    """

    def __init__(self, chunk: Chunk, drop: frozenset[str], counts: Counter[str] | None = None) -> None:
        self.chunk = chunk
        self._drop = drop
        self._counts = counts
        self._dropped: Array | None = None

    def reject(self, bad: Array, reason: str, column: str, message: Callable[[int], str]) -> None:
        """Drops the rows where ``bad`` (bool ``[n]``) holds, or raises the ``message`` of the first of them."""
        if self._dropped is not None:
            bad = bad & ~self._dropped
        if not bad.any():
            return
        if reason not in self._drop:
            first = int(bad.argmax())
            raise TableError(f"{self.chunk.place.of(first, column)}: {message(first)}")
        if self._counts is not None:
            self._counts[reason] += int(bad.sum())
        self._dropped = bad if self._dropped is None else self._dropped | bad

    def leave_out(self, rows: Array) -> None:
        """Drops rows (bool ``[n]``) that nothing is wrong with."""
        self._dropped = rows if self._dropped is None else self._dropped | rows

    def leave_out_kept(self, rows: Array) -> None:
        """The same of rows that are kept so far, a bool for each of those."""
        if self._dropped is None:
            self._dropped = rows
        else:
            self._dropped[~self._dropped] = rows

    def kept_place(self, row: int, column: str) -> str:
        """The place of a row that is kept, given its number among those."""
        return self.chunk.place.of(row if self.keep is None else int(np.flatnonzero(self.keep)[row]), column)

    @property
    def keep(self) -> Array | None:
        """bool ``[n]``: the rows that are kept; None: all."""
        return None if self._dropped is None else ~self._dropped

    def kept(self, rows: Any) -> Any:
        """Those of ``rows`` (an array ``[n, ...]``, or ids) whose row is kept."""
        if self._dropped is None:
            return rows
        return rows.filter(pa.array(self.keep)) if isinstance(rows, pa.Array) else rows[self.keep]

    # --- columns -----------------------------------------------------------------------------------------------

    def ids(self, column: str) -> Ids:
        """Ids of all rows; a null's is 0 or empty."""
        array = self.chunk.columns[column]
        self._reject_nulls(array, column, "an id")
        return as_ids(array, lambda text, row: TableError(f"{self.chunk.place.of(row, column)}: {text}"))

    def times(self, column: str) -> Array:
        """int64 ``[n]``; timestamps and dates in their own unit."""
        array = self.chunk.columns[column]
        self._reject_nulls(array, column, "a time")
        if pa.types.is_date32(array.type):  # which Arrow turns to integers of as many bits only
            array = array.cast(pa.int32())
        elif pa.types.is_date64(array.type):
            array = array.view(pa.int64())
        place = self.chunk.place
        return as_integers(array, lambda i: TableError(f"{place.of(i, column)}: expected a time, got {array[i]}"))

    def weights(self, column: str) -> Array:
        """Floats ``[n]``, finite and at least 0; whole numbers become float32."""
        array = self.chunk.columns[column]
        self._reject_nulls(array, column, "a weight")
        weights = _numpy(array) if pa.types.is_floating(array.type) else floats(array, np.float32)
        self.reject(~np.isfinite(weights), "nonfinite", column, lambda i: f"expected a finite weight, got {weights[i]}")
        negative = weights < 0
        if self._dropped is not None:
            negative &= ~self._dropped
        if negative.any():
            first = int(negative.argmax())
            raise TableError(f"{self.chunk.place.of(first, column)}: expected a weight >= 0, got {weights[first]}")
        return weights

    def matrix(self, columns: Sequence[str], widths: Sequence[int], dtype: Any, stored: torch.dtype) -> Array:
        """Numbers ``[n, sum(widths)]`` of columns of numbers, or of lists of as many numbers in each row; finite, also
        in the dtype in which they will be stored.
        """
        out = np.empty((self.chunk.num_rows, sum(widths)), dtype)
        begin = 0
        for column, width in zip(columns, widths, strict=True):
            self._fill(out[:, begin : begin + width], column, width, stored)
            begin += width
        return out

    def _fill(self, out: Array, column: str, width: int, stored: torch.dtype) -> None:
        array = self.chunk.columns[column]
        self._reject_nulls(array, column, "numbers")
        if is_list(array.type):
            valid = _numpy(array.is_valid())
            lengths = _numpy(pc.fill_null(pc.list_value_length(array), width))
            wrong = lengths != width
            if wrong.any():
                first = int(wrong.argmax())
                raise TableError(
                    f"{self.chunk.place.of(first, column)}: expected {width} numbers, as in the first row, got "
                    f"{lengths[first]}"
                )
            flat = (array.filter(array.is_valid()) if array.null_count else array).flatten()
            if flat.null_count:
                holes = np.zeros(len(array), np.bool_)
                holes[valid] = ~_numpy(flat.is_valid()).reshape(-1, width).all(axis=1)
                self.reject(holes, "nulls", column, lambda i: f"expected numbers, got {array[i].as_py()!r:.200}")
            out[valid] = floats(flat, out.dtype).reshape(int(valid.sum()), width)
            out[~valid] = 0
        else:
            out[:, 0] = floats(array, out.dtype)
            if array.null_count:
                out[~_numpy(array.is_valid()), 0] = 0
        finite = _is_finite(out, stored)

        def message(row: int) -> str:
            number = out[row][~finite[row]][0]
            stored_as = f", which is infinite as {str(stored).split('.')[1]}" if np.isfinite(number) else ""
            return f"expected finite numbers, got {number}{stored_as}"

        self.reject(np.logical_not(finite.all(axis=1)), "nonfinite", column, message)

    def _reject_nulls(self, array: Any, column: str, what: str) -> None:
        if array.null_count:
            self.reject(~_numpy(array.is_valid()), "nulls", column, lambda i: f"expected {what}, got null")


def as_ids(array: Any, error: Callable[[str, int], Exception]) -> Ids:
    """A column of ids as int64 ``[n]`` or large strings; ``error`` makes of a text and a row what is raised."""
    kind = id_kind(array.type)
    if kind is None:
        raise error(f"expected ids that are integers or texts, got {array.type}", 0)
    if kind == "text":
        return array.cast(pa.large_string()).fill_null("")
    return as_integers(array, lambda row: error(f"expected an id below 2**63, got {array[row]}", row))


def id_kind(dtype: Any) -> str | None:
    """``"int"`` or ``"text"``; None where a column of this type has no ids."""
    if pa.types.is_integer(dtype):
        return "int"
    is_text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)
    return "text" if is_text else None


def is_list(dtype: Any) -> bool:
    """Whether a column's rows are lists."""
    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype))


def is_number(dtype: Any) -> bool:
    """Whether a type's values are features as they are."""
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_floating(dtype)
        or pa.types.is_boolean(dtype)
        or pa.types.is_decimal(dtype)
    )


def is_time(dtype: Any) -> bool:
    """Whether a type's values are times: integers, timestamps, dates."""
    return bool(pa.types.is_integer(dtype) or pa.types.is_timestamp(dtype) or pa.types.is_date(dtype))


def native_ids(ids: Ids) -> Any:
    """Ids as the core takes them: int64 ``[n]``, or (offsets int64 ``[n + 1]``, bytes uint8)."""
    if not isinstance(ids, pa.Array):
        return from_array(ids, "ids")
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1] if len(ids) else np.zeros(1, "i8")
    text = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return from_array(ends, "ids"), from_array(text, "ids")


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over an array's memory."""
    return from_array(np.ascontiguousarray(array), "column")


def one_array(column: Any) -> Any:
    """A column of a table, in one piece."""
    joined = column.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def floats(array: Any, dtype: Any) -> Array:
    """Numbers as numpy's of a dtype of floats; a null is no number."""
    if pa.types.is_decimal(array.type) or pa.types.is_boolean(array.type):
        array = array.cast(pa.float64())
    with np.errstate(over="ignore"):  # infinite then, which is looked for
        return np.asarray(array.to_numpy(zero_copy_only=False), dtype)


def _is_finite(values: Array, stored: torch.dtype) -> Array:
    is_short = stored in (torch.float16, torch.bfloat16)
    found: Array = torch.from_numpy(values).to(stored).isfinite().numpy() if is_short else np.isfinite(values)
    return found


def as_integers(array: Any, error: Callable[[int], Exception]) -> Array:
    """int64 ``[n]``, with anything in the place of nulls; raises ``error`` of the first row that is 2**63 or more."""
    try:
        return _numpy(array.cast(pa.int64()))
    except pa.ArrowInvalid as reason:
        too_large = pc.greater(array, pa.scalar(np.iinfo(np.int64).max, array.type))
        raise error(pc.index(too_large, True).as_py()) from reason


def _numpy(array: Any) -> Array:
    """An array without nulls, or with any value in their place."""
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    found: Array = array.to_numpy(zero_copy_only=False)
    return found
