"""The names of ``graphlearn_torch.utils.mixin``."""

from __future__ import annotations

from ...utils.mixin import CastMixin

__all__ = [
    "CastMixin",
]
