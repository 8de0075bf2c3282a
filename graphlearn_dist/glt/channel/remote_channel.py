"""The names of ``graphlearn_torch.channel.remote_channel``."""

from __future__ import annotations

from ...channel.remote_channel import RemoteReceivingChannel

__all__ = [
    "RemoteReceivingChannel",
]
