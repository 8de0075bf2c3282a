"""Segments of a message that are put into shared memory: all but those that are still to be written."""

from __future__ import annotations

import numpy
import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError


def test_segments_lie_at_multiples_of_64_and_some_are_left_out() -> None:
    segments = [torch.arange(n, dtype=torch.uint8) + 1 for n in (5, 64, 0, 65, 1)]
    views = [memoryview(each.numpy()) for each in segments]
    memory = bytearray(b"\xff" * 320)
    assert _C.copy_segments(views, memory, [segments[3].data_ptr(), 7, segments[1].data_ptr()]) == [128, -1, 64]
    expected = numpy.full(320, 255, numpy.uint8)
    expected[:5], expected[256] = [1, 2, 3, 4, 5], 1
    assert memory == expected.tobytes()


def test_memory_that_is_too_small() -> None:
    with pytest.raises(InvalidArgumentError, match="destination: expected at least 65 bytes, got 64"):
        _C.copy_segments([b"1", b"2"], bytearray(64), [])
