"""The names of ``graphlearn_torch.channel.base``."""

from __future__ import annotations

from ...channel.base import ChannelBase, QueueTimeoutError, SampleMessage

__all__ = [
    "ChannelBase",
    "QueueTimeoutError",
    "SampleMessage",
]
