"""Bounded queues of messages between those who sample and the loader."""

from .base import ChannelBase, QueueTimeoutError, SampleMessage
from .mp_channel import MpChannel
from .shm_channel import ShmChannel

__all__ = ["ChannelBase", "MpChannel", "QueueTimeoutError", "SampleMessage", "ShmChannel"]
