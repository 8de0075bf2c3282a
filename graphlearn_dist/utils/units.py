"""Sizes as people write them."""

from __future__ import annotations

import re

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
    if isinstance(sz, bool) or not isinstance(sz, (int, str)):
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
        num_bytes = sz
    if num_bytes < least:
        raise InvalidArgumentError(f"{name}: expected at least {'one byte' if least == 1 else least}, got {shown(sz)}")
    return num_bytes
