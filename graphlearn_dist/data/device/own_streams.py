"""Streams of GPUs that belong to whoever asked for them.

Torch deals out 32 streams a GPU, one after the other: the 33rd that a program asks for is its first once more. What one
thread gives a stream would be part of the CUDA graph that another one captures on it.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque

import torch

from ... import _C
from ...utils.device import device_number

# By GPU, and whether they are for captures: handles. The garbage collector gives them back.
_free: defaultdict[tuple[int, bool], deque[int]] = defaultdict(deque)


class OwnStream:
    """A stream that nobody else is given while this object lives; one of torch's in builds without CUDA.

    Args:
        device: the GPU.
        for_captures: another one for captures gets the stream afterwards. What is made on such a stream, as the state
            of an optimizer, is used on others, and torch gives its memory to whoever has the stream: they have it wait
            for those first.

    Attributes:
        stream: torch's object for it. No weak reference may be made to that: it dies without a word to those.
    """

    def __init__(self, device: torch.device, *, for_captures: bool = False) -> None:
        if not _C.cuda_is_built():  # so that nothing is sampled or captured there
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            return
        number = device_number(device)
        free = _free[number, for_captures]
        try:
            handle = free.popleft()
        except IndexError:
            handle = _C.new_stream(number)
        self._giving_back = weakref.finalize(self, free.append, handle)
        self._giving_back.atexit = False
        self.stream = torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]

    def give_up(self) -> None:
        """Nobody is given the stream any more, of which is not known what state it is in."""
        self._giving_back.detach()
