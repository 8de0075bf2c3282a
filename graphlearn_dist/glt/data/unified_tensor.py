"""The names of ``graphlearn_torch.data.unified_tensor``."""

from __future__ import annotations

from ...data.unified_tensor import UnifiedTensor

__all__ = [
    "UnifiedTensor",
]
