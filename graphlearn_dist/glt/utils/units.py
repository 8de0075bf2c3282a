"""The names of ``graphlearn_torch.utils.units``."""

from __future__ import annotations

from ...utils.units import UNITS, parse_size

__all__ = [
    "UNITS",
    "parse_size",
]
