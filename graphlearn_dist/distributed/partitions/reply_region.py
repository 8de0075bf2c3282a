"""Messages that are written once, where their reader will find them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy
import torch

from ...rpc.shm.arena import SendingArena
from ...rpc.wire.codec import byte_array, encode
from ...rpc.wire.encoded import Encoded, SharedRegion, padded

REPLY_REGION_BYTES = 1 << 30  # for the rows that other processes ask one partition for; committed as it is used


def place_segments(encoded: Encoded, slot: memoryview, unwritten: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Copies a message's segments into a slot, but for those that are still to be written.

    Args:
        encoded: the message.
        slot: ``encoded.nbytes`` of memory.
        unwritten: tensors of the message whose values do not matter yet.

    Returns:
        For each of them that is not empty, by its address, a tensor of its shape and dtype in its place in the slot.
    """
    by_address = {tensor.data_ptr(): tensor for tensor in unwritten if tensor.numel()}
    views = {}
    at = 0
    for segment in encoded.segments:
        source = byte_array(segment)
        tensor = by_address.get(source.ctypes.data)
        if tensor is None:
            numpy.copyto(byte_array(slot[at : at + segment.nbytes]), source)
        else:
            view = torch.frombuffer(slot, dtype=tensor.dtype, count=tensor.numel(), offset=at)
            views[tensor.data_ptr()] = view.reshape(tensor.shape)
        at += padded(segment.nbytes)
    return views


class ReplyRegion:
    """Shared memory for large answers: written there, lent to whoever asked. Thread-safe.

    Args:
        capacity_bytes: its size; committed as it is used.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._arena = SendingArena(capacity_bytes)
        self._region = SharedRegion(self._arena.path, self._arena.capacity_bytes, self._arena.nonce)
        self._lock = threading.Lock()

    def place(self, message: Any, unwritten: Iterable[torch.Tensor]) -> tuple[Encoded, dict[int, torch.Tensor]] | None:
        """Gives a message a place here, with ``place_segments``; None where there is no room.

        The caller writes the tensors that it gets, then sends the encoded message.
        """
        encoded = encode(message)
        with self._lock:
            offset = self._arena.reserve(encoded.nbytes) if encoded.nbytes else None
        if offset is None:
            return None
        slot = self._arena.view(offset, encoded.nbytes)
        views = place_segments(encoded, slot, unwritten)

        def on_released() -> None:
            with self._lock:
                self._arena.release(offset)

        return Encoded(encoded.head, (slot,), encoded.nbytes, on_released, (self._region, offset)), views
