"""The names of ``graphlearn_torch.channel.shm_channel``."""

from __future__ import annotations

from ...channel.shm_channel import ShmChannel

__all__ = [
    "ShmChannel",
]
