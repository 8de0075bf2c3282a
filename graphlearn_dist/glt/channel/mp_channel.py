"""The names of ``graphlearn_torch.channel.mp_channel``."""

from __future__ import annotations

from ...channel.mp_channel import MpChannel

__all__ = [
    "MpChannel",
]
