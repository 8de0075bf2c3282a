"""The names of ``graphlearn_torch.utils.device``."""

from __future__ import annotations

from ...utils.device import assign_device, ensure_device, get_available_device

__all__ = [
    "assign_device",
    "ensure_device",
    "get_available_device",
]
