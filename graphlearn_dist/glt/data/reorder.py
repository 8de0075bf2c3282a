"""The names of ``graphlearn_torch.data.reorder``."""

from __future__ import annotations

from ...data.reorder import sort_by_in_degree

__all__ = [
    "sort_by_in_degree",
]
