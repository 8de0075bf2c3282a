"""The names of ``graphlearn_torch.loader.transform``."""

from __future__ import annotations

from ...loader.transform import to_data, to_hetero_data

__all__ = [
    "to_data",
    "to_hetero_data",
]
