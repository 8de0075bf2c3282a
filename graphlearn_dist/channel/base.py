"""What every channel of sampled messages can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch

from ..errors import ChannelTimeoutError

SampleMessage: TypeAlias = dict[str, torch.Tensor]

QueueTimeoutError = ChannelTimeoutError
"""GraphLearn-for-PyTorch's name for a receive that found nothing in time."""


class ChannelBase(ABC):
    """A first-in first-out queue of messages between those who sample and the loader."""

    @abstractmethod
    def send(self, msg: SampleMessage, **kwargs: Any) -> None:
        """Put a message at the end; waits for room where the channel is bounded."""

    @abstractmethod
    def recv(self, **kwargs: Any) -> SampleMessage:
        """Take the message at the front; waits until there is one."""
