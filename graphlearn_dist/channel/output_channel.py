"""Sending to a channel that the user made, of whatever kind."""

from __future__ import annotations

from .base import ChannelBase
from .mp_channel import MpChannel
from .shm_channel import ShmChannel

SEND_WAIT_S = 0.5  # how long one attempt to send into a full channel lasts; whoever wants to end waits at most so long


def send_for(channel: ChannelBase, item: object, timeout_s: float) -> None:
    """Sends to a channel of any kind; ``ChannelTimeoutError`` where one that is bounded stays full."""
    match channel:
        case ShmChannel():
            channel.send(item, timeout_ms=timeout_s * 1000)  # type: ignore[arg-type]  # any message that has a codec
        case MpChannel():
            channel.send(item, timeout=timeout_s)  # type: ignore[arg-type]
        case _:
            channel.send(item)  # type: ignore[arg-type]
