"""The names of ``graphlearn_torch.utils.units``."""

from __future__ import annotations

from ...utils.units import parse_size

__all__ = [
    "parse_size",
]
