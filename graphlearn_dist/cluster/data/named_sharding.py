"""Workers laid out on a grid whose axes have names: plain values, nothing runs here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import InvalidArgumentError, UnknownIdError

IntArray = npt.NDArray[np.int64]


class NamedSharding:
    """Worker ids in an n-dimensional grid with named axes.

    Args:
        layout: worker ids ``[size of axis 0, size of axis 1, …]``: nested sequences or an array; whole numbers as
            floats are taken. Each id stands in it once.
        names: one name for each axis.

    Raises:
        InvalidArgumentError: the layout is ragged, empty, holds something that is no whole number or an id twice, or
            the names do not fit.
    """

    def __init__(self, layout: Sequence[Any] | npt.NDArray[Any], names: Sequence[str]) -> None:
        self._layout = _as_grid(layout)
        self._names = list(names)
        if len(self._names) != self._layout.ndim:
            raise InvalidArgumentError(
                f"names: expected {self._layout.ndim}, one for each axis of the layout, got {self._names}"
            )
        if len(set(self._names)) != len(self._names):
            raise InvalidArgumentError(f"names: expected different ones, got {self._names}")
        self._coords = {
            int(worker): dict(zip(self._names, map(int, position), strict=True))
            for position, worker in np.ndenumerate(self._layout)
        }
        if len(self._coords) != self._layout.size:
            raise InvalidArgumentError(f"layout: expected each worker id once, got {self._layout.tolist()}")

    @property
    def shape(self) -> dict[str, int]:
        """Size of each axis by name."""
        return dict(zip(self._names, self._layout.shape, strict=True))

    @property
    def names(self) -> list[str]:
        """The axes in order; a copy."""
        return list(self._names)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self._layout.ndim)

    @property
    def size(self) -> int:
        """Number of workers."""
        return int(self._layout.size)

    @property
    def layout(self) -> IntArray:
        """The worker ids, int64; a copy."""
        return self._layout.copy()

    def get_worker_coords(self, worker_id: int) -> dict[str, int]:
        """Where a worker stands, by axis.

        Raises:
            InvalidArgumentError: there is no such worker.
        """
        if worker_id not in self._coords:
            raise InvalidArgumentError(f"worker_id: expected one of {sorted(self._coords)}, got {worker_id}")
        return dict(self._coords[worker_id])

    def get_ranks_by_coord(self, **coords: int) -> list[int]:
        """Workers whose position has these coordinates, ascending; none where a coordinate lies outside the grid.

        Raises:
            InvalidArgumentError: an axis of that name does not exist.
        """
        self.check_axes("coords", coords)
        return sorted(
            worker for worker, at in self._coords.items() if all(at[axis] == value for axis, value in coords.items())
        )

    def get_ranks(self, **indices: int) -> NamedSharding | int:
        """What is left of the grid when some axes are fixed: a smaller grid, or one worker where all axes are.

        Raises:
            InvalidArgumentError: an axis of that name does not exist.
            UnknownIdError: an index lies outside its axis (an ``IndexError``).
        """
        self.check_axes("indices", indices)
        for axis, index in indices.items():
            if not 0 <= index < self.shape[axis]:
                raise UnknownIdError(f"{axis}: expected an index from 0 to {self.shape[axis] - 1}, got {index}")
        part = self._layout[tuple(indices.get(name, slice(None)) for name in self._names)]
        if len(indices) == self.ndim:
            return int(part)
        return NamedSharding(part, [name for name in self._names if name not in indices])

    def get_axis_index(self, name: str) -> int:
        """Position of an axis.

        Raises:
            InvalidArgumentError: it does not exist.
        """
        self.check_axes("name", [name])
        return self._names.index(name)

    def get_axis_size(self, name: str) -> int:
        """Size of an axis.

        Raises:
            InvalidArgumentError: it does not exist.
        """
        return int(self._layout.shape[self.get_axis_index(name)])

    def check_axes(self, argument: str, axes: Iterable[str]) -> None:
        """Raises ``InvalidArgumentError``, which names ``argument``, where an axis does not exist."""
        unknown = [axis for axis in axes if axis not in self._names]
        if unknown:
            raise InvalidArgumentError(f"{argument}: expected axes of {self._names}, got {unknown}")

    @staticmethod
    def is_axis_zero(coords: Mapping[str, int], axes: Iterable[str]) -> bool:
        """Whether a position is 0 on all these axes; axes that it does not have do not count."""
        return all(coords.get(axis, 0) == 0 for axis in axes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedSharding):
            return NotImplemented
        return self._names == other._names and np.array_equal(self._layout, other._layout)

    def __hash__(self) -> int:
        return hash((tuple(self._names), self._layout.shape, self._layout.tobytes()))

    def __repr__(self) -> str:
        return f"NamedSharding(shape={self.shape}, names={self._names}, layout={self._layout.tolist()})"


def _as_grid(layout: Sequence[Any] | npt.NDArray[Any]) -> IntArray:
    """The layout as int64, or an error that says why it is none."""
    try:
        grid = np.array(layout)
    except ValueError as error:
        raise InvalidArgumentError(f"layout: expected rows of one length, got {layout!r}") from error
    if grid.ndim == 0 or grid.size == 0:
        raise InvalidArgumentError(f"layout: expected at least one worker in a list, got {layout!r}")
    if not (np.issubdtype(grid.dtype, np.integer) or np.issubdtype(grid.dtype, np.floating)):
        raise InvalidArgumentError(f"layout: expected whole numbers, got {layout!r}")
    with np.errstate(invalid="ignore"):  # NaN and infinity, found just below
        whole = grid.astype(np.int64)
    if not np.array_equal(whole, grid):
        raise InvalidArgumentError(f"layout: expected whole numbers, got {layout!r}")
    return whole
