"""The names of ``graphlearn_torch.channel``."""

from __future__ import annotations

from . import base, mp_channel, remote_channel, shm_channel
from .base import ChannelBase, QueueTimeoutError, SampleMessage
from .mp_channel import MpChannel
from .remote_channel import RemoteReceivingChannel
from .shm_channel import ShmChannel

__all__ = [
    "ChannelBase",
    "MpChannel",
    "QueueTimeoutError",
    "RemoteReceivingChannel",
    "SampleMessage",
    "ShmChannel",
    "base",
    "mp_channel",
    "remote_channel",
    "shm_channel",
]
