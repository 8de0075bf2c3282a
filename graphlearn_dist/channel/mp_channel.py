"""A channel over a queue of ``torch.multiprocessing``."""

from __future__ import annotations

import queue
from typing import Any

import torch.multiprocessing as mp

from ..errors import ChannelTimeoutError
from .base import ChannelBase, SampleMessage


class MpChannel(ChannelBase):
    """Messages over a multiprocessing queue: any picklable value; slower than ``ShmChannel``.

    Args:
        **kwargs: arguments of ``multiprocessing.Queue``, such as ``maxsize``.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._queue: mp.Queue[SampleMessage] = mp.get_context("spawn").Queue(**kwargs)

    def send(self, msg: SampleMessage, **kwargs: Any) -> None:
        """Put a message at the end.

        Args:
            msg: the message; the sending process must live until it is received.
            **kwargs: ``block`` and ``timeout`` (seconds) of ``Queue.put``.

        Raises:
            ChannelTimeoutError: there was no room in time.
        """
        try:
            self._queue.put(msg, **kwargs)
        except queue.Full:
            raise ChannelTimeoutError("send: no room in the queue within the deadline") from None

    def recv(self, **kwargs: Any) -> SampleMessage:
        """Take the message at the front.

        Args:
            **kwargs: ``block`` and ``timeout`` (seconds) of ``Queue.get``.

        Raises:
            ChannelTimeoutError: none came in time.
        """
        try:
            message: SampleMessage = self._queue.get(**kwargs)
        except queue.Empty:
            raise ChannelTimeoutError("recv: no message within the deadline") from None
        return message

    def empty(self) -> bool:
        """Whether no message waits, as far as this process can see."""
        return self._queue.empty()

    def close(self) -> None:
        """Gives this process's ends of the queue back, without waiting for unread messages. Idempotent."""
        self._queue.cancel_join_thread()
        self._queue.close()
