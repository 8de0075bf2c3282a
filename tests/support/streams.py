"""Streams, memory and its owners, for tests of what happens to memory that streams still read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphlearn_dist.data.device import stream_uses

GPU = torch.device("cuda", 0)


class Stream:
    """A stream that has something to do yet when it is asked first, and counts who asked again until it was done."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.num_waits = 0
        self.is_stuck = False

    def record_event(self) -> Event:
        return Event(self)


class Event:
    """What such a stream reaches."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._num_asked = 0

    def query(self) -> bool:
        if self._stream.is_stuck:
            return False
        self._num_asked += 1
        self._stream.num_waits += self._num_asked == 2
        return self._num_asked > 1


class Memory:
    """A tensor that notes which streams it was told of."""

    def __init__(self, *, is_cuda: bool = True) -> None:
        self.is_cuda = is_cuda
        self._storage = torch.empty(1).untyped_storage()
        self.streams: list[Any] = []

    def untyped_storage(self) -> torch.UntypedStorage:
        return self._storage

    def record_stream(self, stream: Any) -> None:
        self.streams.append(stream)


class Owner:
    """Whoever holds memory."""


def replace_current(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Has torch say that the current stream is ``stream`` of what is returned, number 7 at first."""
    found = SimpleNamespace(stream=Stream(7))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found.stream)
    monkeypatch.setattr(stream_uses, "_received", set())  # by address, which memory of a later test may have again
    return found
