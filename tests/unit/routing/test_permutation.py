"""The keyed bijection against a plain Python Feistel network, and how well it mixes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 70001]


def permute(ids: torch.Tensor, n: int, key: int, **options: object) -> torch.Tensor:
    return torch.utils.dlpack.from_dlpack(_C.permute(ids, n, key, **options))


def mix(value: int) -> int:
    value = value * 0x9E3779B1 & MASK32
    value ^= value >> 15
    value = value * 0x85EBCA77 & MASK32
    return value ^ value >> 13


def oracle(i: int, n: int, key: int) -> int:
    """The definition in permutation.h, written down a second time."""
    bits = (n - 1).bit_length()
    right_bits = bits - bits // 2
    left_mask, right_mask = (1 << bits // 2) - 1, (1 << right_bits) - 1
    keys = []
    for r in range(1, 9):
        z = key + r * 0x9E3779B97F4A7C15 & MASK64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
        keys.append((z ^ z >> 31) >> 32)
    while True:
        left, right = i >> right_bits, i & right_mask
        for r in range(0, 8, 2):
            left ^= mix(right ^ keys[r]) & left_mask
            right ^= mix(left ^ keys[r + 1]) & right_mask
        i = left << right_bits | right
        if i < n:
            return i


@pytest.mark.parametrize("n", SIZES)
def test_is_a_bijection_with_an_inverse(n: int) -> None:
    ids = torch.arange(n)
    places = permute(ids, n, key=11)
    assert torch.equal(places.sort().values, ids)
    assert torch.equal(permute(places, n, 11, inverse=True), ids)


@given(n=st.integers(1, 1 << 62), key=st.integers(0, MASK64), data=st.data())
@settings(max_examples=60, deadline=None)
def test_equals_the_definition(n: int, key: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    places = permute(torch.tensor(ids), n, key)
    assert places.tolist() == [oracle(i, n, key) for i in ids]
    assert permute(places, n, key, inverse=True).tolist() == ids


def test_golden_values_never_change() -> None:
    # Partition directories on users' disks depend on these numbers.
    assert permute(torch.arange(10), 10, 7).tolist() == [0, 1, 4, 6, 3, 7, 2, 8, 9, 5]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_threads_and_dtypes_agree(num_threads: int, dtype: torch.dtype) -> None:
    n = 40_000
    expected = permute(torch.arange(n), n, 5)
    got = permute(torch.arange(n, dtype=dtype), n, 5, pool=_C.ThreadPool(num_threads))
    assert got.dtype == torch.int64
    assert torch.equal(got, expected)


@pytest.mark.parametrize("n", [10, 33, 100])
def test_first_places_are_uniform_over_keys(n: int) -> None:
    # Chi-square of the place of id 3 over 20,000 keys: mean n-1, deviation sqrt(2(n-1)). Six deviations: under one
    # false alarm in a million; the keys are fixed anyway.
    num_keys = 20_000
    probe = torch.tensor([3])
    counts = torch.zeros(n)
    for key in range(num_keys):
        counts[permute(probe, n, key)] += 1
    chi2 = float(((counts - num_keys / n) ** 2 / (num_keys / n)).sum())
    assert chi2 < n - 1 + 6 * (2 * (n - 1)) ** 0.5


def test_neighboring_ids_scatter() -> None:
    # Consecutive ids land in independent halves: 4 sigma of a fair coin.
    n = 1 << 17
    upper = permute(torch.arange(n), n, 99) >= n // 2
    agreement = float((upper[1:] == upper[:-1]).double().mean())
    assert abs(agreement - 0.5) < 4 * 0.5 / n**0.5


def test_refuses_what_is_outside() -> None:
    with pytest.raises(UnknownIdError, match=r"indices\[1\]=10: .*0 <= id < 10"):
        _C.permute(torch.tensor([3, 10]), 10, 0)
    with pytest.raises(UnknownIdError, match=r"indices\[0\]=-1"):
        _C.permute(torch.tensor([-1]), 10, 0)
    with pytest.raises(InvalidArgumentError, match="n: expected 0 to"):
        _C.permute(torch.tensor([0]), -1, 0)
    with pytest.raises(InvalidArgumentError, match="int32 or int64"):
        _C.permute(torch.tensor([0.5]), 10, 0)
