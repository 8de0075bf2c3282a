"""The names of ``graphlearn_torch.utils.units``."""

from __future__ import annotations

from typing import Any

from ...utils import units
from ...utils.units import UNITS


def parse_size(sz: Any) -> int:
    """The number of bytes that ``sz`` means, such as ``"64MB"``; of a float its whole part."""
    return units.parse_size(int(sz) if isinstance(sz, float) else sz)


__all__ = [
    "UNITS",
    "parse_size",
]
