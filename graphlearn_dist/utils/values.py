"""Checks of the numbers that users give: the first that makes no sense is named, with its place."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from ..errors import InvalidArgumentError
from .shown import shown

_BYTES_AT_ONCE = 1 << 24


def label_of(name: str, key: object) -> str:
    """``name``, or ``name[type]`` where types have names."""
    return name if key is None else f"{name}[{key!r}]"


def is_whole(value: object) -> bool:
    """Whether this is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether this is an integer or a float."""
    return isinstance(value, float) or is_whole(value)


def to_count(name: str, value: object) -> int:
    """The value as an int where it is an integer, of NumPy too, of at least 1; else InvalidArgumentError."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name}: expected an integer, got {shown(value)}")
    count = int(value)
    if not 1 <= count < 1 << 63:
        limit = "at least 1" if count < 1 else "an int of 64 bits"
        raise InvalidArgumentError(f"{name}: expected {limit}, got {count}")
    return count


def to_flag(name: str, value: object) -> bool:
    """The value as True or False; None and 0 are False, 1 is True, and others an InvalidArgumentError."""
    if value is None or isinstance(value, (bool, np.bool_)) or (is_whole(value) and value in (0, 1)):
        return bool(value)
    raise InvalidArgumentError(f"{name}: expected True or False, got {shown(value)}")


def check_callable(name: str, value: object) -> None:
    """InvalidArgumentError unless this can be called, or is None."""
    if value is not None and not callable(value):
        raise InvalidArgumentError(f"{name}: expected something to call or None, got {type(value).__name__}")


def check_seed(name: str, value: object) -> None:
    """InvalidArgumentError unless this is an integer of 64 bits, of which all draws are functions."""
    if not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgumentError(f"{name}: expected an int of 64 bits, got {shown(value)}")


def check_distinct(name: str, ids: torch.Tensor) -> None:
    """InvalidArgumentError, with two positions, unless all ids differ."""
    ordered = ids.sort().values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if repeated.numel():
        first = int(repeated[0])
        positions = (ids == first).nonzero().flatten()[:2].tolist()
        raise InvalidArgumentError(f"{name}: expected distinct ids, got {first} at positions {positions}")


def check_disjoint(name: str, parts: Mapping[str, torch.Tensor]) -> None:
    """InvalidArgumentError, with an id, where two of several lists of ids share one, or one is no list of ids."""
    for part, ids in parts.items():
        if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
            raise InvalidArgumentError(
                f"{name}: expected ids of {part} as int32 or int64 [n], got {ids.dtype} {list(ids.shape)}"
            )
    for (one, ids), (other, others) in itertools.combinations(parts.items(), 2):
        shared = torch.isin(ids, others).nonzero()
        if shared.numel():
            raise InvalidArgumentError(
                f"{name}: expected no node in two parts, got node {int(ids[shared[0, 0]])} in {one} and in {other} "
                f"({len(shared):,} such nodes)"
            )


def check_weights(name: str, weights: torch.Tensor) -> None:
    """InvalidArgumentError, with a position, unless all weights ``[n]`` are finite and at least 0."""
    bad = ~((weights >= 0) & (weights < torch.inf))
    if bool(bad.any()):
        position = int(bad.nonzero()[0])
        raise InvalidArgumentError(f"{name}[{position}]: expected a finite number >= 0, got {float(weights[position])}")


def check_rows(name: str, rows: torch.Tensor, allow_nonfinite: bool) -> None:
    """InvalidArgumentError unless these are rows ``[n, ...]``, of finite numbers where no others are allowed."""
    if rows.dim() == 0:
        raise InvalidArgumentError(f"{name}: expected rows [n, ...], got one number")
    if not allow_nonfinite:
        check_finite(name, rows)


def check_finite(name: str, rows: torch.Tensor) -> None:
    """InvalidArgumentError, with a row, unless all numbers of ``[n, ...]`` are finite."""
    row = next(_not_finite(rows), None)
    if row is not None:
        values = rows[row].reshape(-1)
        raise InvalidArgumentError(
            f"{name}: expected finite numbers, got {float(values[~values.isfinite()][0])} in row {row}; "
            "allow_nonfinite=True takes them as they are, without a look at them"
        )


def count_not_finite(rows: torch.Tensor) -> int:
    """How many rows ``[n, ...]`` hold a number that is infinite or none."""
    return sum(1 for _ in _not_finite(rows))


def _not_finite(rows: torch.Tensor) -> Iterator[int]:
    if not rows.is_floating_point() or rows.element_size() == 1 or rows.numel() == 0:
        return  # floats of 8 bits have no isfinite()
    at_once = max(1, _BYTES_AT_ONCE // max(1, rows[0].numel() * rows.element_size()))
    for begin in range(0, len(rows), at_once):
        finite = rows[begin : begin + at_once].isfinite()
        if not bool(finite.all()):
            yield from (begin + (~finite).reshape(len(finite), -1).any(1).nonzero().view(-1)).tolist()
