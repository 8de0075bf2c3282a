"""Sizes as people write them."""

from __future__ import annotations

import contextlib
import numbers
import re
from typing import Any

from ..errors import InvalidArgumentError
from .shown import shown

UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_FACTORS = {"": 1, **{unit[0]: factor for unit, factor in UNITS.items()}}
_SIZE = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<prefix>[KMGT]?)(I?B)?", re.IGNORECASE)


def parse_size(sz: int | str, *, name: str = "size", least: int = 1) -> int:
    """The number of bytes that ``sz`` means.

    Args:
        sz: bytes, or a text such as ``"64MB"``, ``"1.5 GiB"``, ``"4096"``. ``KB`` and ``KiB`` both mean 1024 bytes,
            and so on up to ``TB``; case does not matter.
        name: the argument's name, for the error.
        least: bytes that it has to be.

    Raises:
        InvalidArgumentError: where it is no size, or too small.
    """
    if isinstance(sz, bool) or not isinstance(sz, (numbers.Integral, str)):
        raise InvalidArgumentError(f"{name}: expected a number of bytes or a text such as '64MB', got {shown(sz)}")
    if isinstance(sz, str):
        match = _SIZE.fullmatch(sz.strip())
        if match is None:
            raise InvalidArgumentError(f"{name}: expected a size such as '64MB' or '1.5GiB', got {shown(sz)}")
        try:
            num_bytes = int(float(match["number"]) * _FACTORS[match["prefix"].upper()])
        except OverflowError:
            raise InvalidArgumentError(f"{name}: expected a size such as '64MB' or '1.5GiB', got {shown(sz)}") from None
    else:
        num_bytes = int(sz)
    if num_bytes < least:
        raise InvalidArgumentError(f"{name}: expected at least {'one byte' if least == 1 else least}, got {shown(sz)}")
    return num_bytes


def parse_share_or_size(given: Any, *, name: str) -> float | int:
    """A share of something, as a float, or bytes, as an int.

    1 is all of it, in whatever way it is written, and not a byte; 0 is nothing.

    Args:
        given: a float, bytes, or a text of either.
        name: the argument's name, for the error.

    Raises:
        InvalidArgumentError: where it is neither.
    """
    plain = _plain(given)
    share = _share_in(plain)
    if share is not None:
        return share
    with contextlib.suppress(InvalidArgumentError):
        num_bytes = parse_size(plain, least=0)
        if num_bytes != 1:  # which may mean all
            return num_bytes or 0.0
    raise InvalidArgumentError(f"{name}: expected a share from 0 to 1, or bytes such as '4GB', got {shown(given)}")


def _plain(given: Any) -> Any:
    """The number of a tensor or array that has no dimension; anything else as it is."""
    if getattr(given, "shape", None) == () and hasattr(given, "item"):
        with contextlib.suppress(RuntimeError):  # a tensor on no device has none
            return given.item()
    return given


def _share_in(given: Any) -> float | None:
    """The number from 0 to 1 that it is, or None."""
    if isinstance(given, bool) or not isinstance(given, (numbers.Number, str)):
        return None
    if isinstance(given, str) and "_" in given:
        return None
    try:
        value = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return value if 0 <= value <= 1 else None
