"""The names of ``graphlearn_torch.utils.singleton``."""

from __future__ import annotations

from ...utils.singleton import singleton

__all__ = [
    "singleton",
]
