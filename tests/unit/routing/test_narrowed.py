"""Vectors in fewer bytes, as messages carry them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.errors import InvalidArgumentError

LEAST, MOST = -(2**31), 2**31 - 1


def check_narrowed(values: list[int], capsule: Any, dtype: torch.dtype) -> None:
    """The values in another dtype; nothing where int64 has to stay."""
    narrow = to_optional_tensor(capsule)
    assert (narrow is None) == (dtype == torch.int64)
    assert narrow is None or (narrow.dtype, narrow.tolist()) == (dtype, values)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], torch.int32),
        ([0, 5, 255], torch.int32),
        ([LEAST, MOST], torch.int32),
        ([0, MOST + 1], torch.int64),
        ([LEAST - 1], torch.int64),
    ],
)
def test_ids_take_four_bytes_where_they_fit(values: list[int], dtype: torch.dtype) -> None:
    check_narrowed(values, _C.narrowed_ids(torch.tensor(values, dtype=torch.int64)), dtype)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([], torch.uint8),
        ([0, 255], torch.uint8),
        ([256], torch.int32),
        ([-1], torch.int32),
        ([MOST], torch.int32),
        ([MOST + 1, 0], torch.int64),
    ],
)
def test_counts_take_one_byte_where_they_fit(values: list[int], dtype: torch.dtype) -> None:
    check_narrowed(values, _C.narrowed_counts(torch.tensor(values, dtype=torch.int64)), dtype)


def test_a_slice_is_narrowed_alone() -> None:
    check_narrowed([3, 4], _C.narrowed_ids(torch.tensor([2**40, 3, 4, -(2**40)])[1:3]), torch.int32)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ids: expected int64 \[2\], got int32"):
        _C.narrowed_ids(torch.arange(2, dtype=torch.int32))
    with pytest.raises(InvalidArgumentError, match=r"counts: .*float32"):
        _C.narrowed_counts(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_counts_of_any_width_are_stitched_alike(dtype: torch.dtype) -> None:
    positions, offsets = torch.tensor([1, 2, 0]), torch.tensor([0, 2, 3])
    parts = [
        (torch.tensor([2, 0], dtype=dtype), torch.tensor([7, 8]), None),
        (torch.tensor([1], dtype=dtype), torch.tensor([9]), None),
    ]
    counts, neighbors, _ = _C.stitch_neighbors(positions, offsets, parts)
    assert to_tensor(counts).tolist() == [1, 2, 0]
    assert to_tensor(neighbors).tolist() == [9, 7, 8]


def test_damaged_bytes_of_counts_are_refused() -> None:
    positions, offsets = torch.tensor([0]), torch.tensor([0, 1])
    with pytest.raises(InvalidArgumentError, match=r"parts\[0\]\.counts\[0\]=200: expected 0 <= count <= 1"):
        _C.stitch_neighbors(positions, offsets, [(torch.tensor([200], dtype=torch.uint8), torch.tensor([4]), None)])
    with pytest.raises(InvalidArgumentError, match=r"parts\[0\]\.counts"):
        _C.stitch_neighbors(positions, offsets, [(torch.tensor([[1]], dtype=torch.uint8), torch.tensor([4]), None)])
