"""Copies of many buffers into one, as the shared-memory arena makes them."""

from __future__ import annotations

import numpy
import pytest

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError


@pytest.mark.parametrize("sizes", [[], [0, 5], [1, 64, 100_000], [3, 1 << 20, 64, (1 << 21) + 7]])
def test_parts_lie_one_behind_the_other(sizes: list[int]) -> None:
    parts = [numpy.arange(size, dtype=numpy.uint32).astype(numpy.uint8) + index for index, size in enumerate(sizes)]
    total = sum(sizes)
    target = numpy.full(total + 9, 77, dtype=numpy.uint8)
    _C.copy_parts([memoryview(part.tobytes()) for part in parts], target)
    assert numpy.array_equal(target[:total], numpy.concatenate([*parts, numpy.empty(0, numpy.uint8)]))
    assert (target[total:] == 77).all()


def test_there_must_be_room() -> None:
    with pytest.raises(InvalidArgumentError, match="destination: expected at least 6 bytes, got 5"):
        _C.copy_parts([b"abc", b"def"], bytearray(5))
    with pytest.raises(InvalidArgumentError, match=r"parts\[1\]: expected a contiguous buffer"):
        _C.copy_parts([b"abc", "def"], bytearray(5))
    with pytest.raises(InvalidArgumentError, match="destination: expected one contiguous dimension"):
        _C.copy_parts([b"abc"], numpy.zeros(10, dtype=numpy.uint8)[::2])
