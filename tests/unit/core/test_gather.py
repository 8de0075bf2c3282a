"""Rows gathered from one or several pieces of memory, against indexing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import pooled_empty, to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3)}
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip


def rows_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=torch.Generator().manual_seed(seed)).to(
        dtype
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row_shape", [(), (1,), (7,), (3, 5), (300,)], ids=str)
def test_every_dtype_and_row_shape(dtype: torch.dtype, row_shape: tuple[int, ...]) -> None:
    whole = rows_of(dtype, 50, *row_shape)
    ids = torch.tensor([3, 3, 49, 0, 17, 3])
    store = _C.RowStore(list(whole.split([20, 0, 29, 1])))
    actual = to_tensor(store.gather(ids, POOLS[1]))
    assert actual.dtype == dtype
    assert torch.equal(actual, whole[ids])


@given(
    parts=st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    picks=st.lists(st.integers(0, 1 << 20), max_size=40),
    index=st.sampled_from([torch.int32, torch.int64]),
    width=st.integers(0, 4),
    threads=st.integers(1, 3),
    data=st.data(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_several_parts(
    parts: list[int], picks: list[int], index: torch.dtype, width: int, threads: int, data: st.DataObject
) -> None:
    whole = rows_of(torch.float32, sum(parts), width)
    store = _C.RowStore(list(whole.split(parts)))
    assert store.num_rows == len(whole)
    ids = torch.tensor([pick % len(whole) for pick in picks], dtype=index)
    assert torch.equal(to_tensor(store.gather(ids, POOLS[threads])), whole[ids.long()])
    out = torch.full((len(ids) + 3, width), -1.0)
    positions = torch.tensor(data.draw(st.permutations(range(len(ids) + 3))), dtype=torch.int64)[: len(ids)]
    expected = out.clone()
    expected[positions] = whole[ids.long()]
    assert store.gather(ids, POOLS[threads], positions, out) is None
    assert torch.equal(out, expected)  # and what nobody asked for is untouched


@pytest.mark.parametrize("threads", sorted(POOLS))
def test_many_rows_into_place(threads: int) -> None:
    """More rows than one thread takes at a time."""
    draw = torch.Generator().manual_seed(1)
    whole = rows_of(torch.float32, 4000, 33)
    ids, positions = torch.randint(0, 4000, (9000,), generator=draw), torch.randperm(9000, generator=draw)
    store = _C.RowStore(list(whole.split([1000, 2500, 500])))
    assert torch.equal(to_tensor(store.gather(ids, POOLS[threads])), whole[ids])
    out = pooled_empty((9000, 33), torch.float32)
    store.gather(ids, POOLS[threads], positions, out)
    assert torch.equal(out[positions], whole[ids])
    store.gather(ids, POOLS[threads], None, out)
    assert torch.equal(out, whole[ids])


def test_the_result_outlives_the_store_and_the_store_its_tensors() -> None:
    store = _C.RowStore([torch.arange(1000.0)[:, None].clone()])
    rows = to_tensor(store.gather(torch.tensor([999, 1]), POOLS[1]))
    del store
    assert rows.view(-1).tolist() == [999.0, 1.0]


A = torch.tensor
ROWS = torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("ids", "positions", "out", "error", "match"),
    [
        (A([0, 4]), None, None, UnknownIdError, r"row 4 is outside \[0, 4\)"),
        (A([-1]), None, None, UnknownIdError, "row -1 is outside"),
        (A([1 << 40]), None, None, UnknownIdError, f"row {1 << 40} is outside"),
        (A([0.0]), None, None, InvalidArgumentError, "rows: expected"),
        (A([[0]]), None, None, InvalidArgumentError, "rows: expected"),
        (A([0], dtype=torch.uint8), None, None, InvalidArgumentError, "rows: expected"),
        (torch.arange(4)[::2], None, None, InvalidArgumentError, "rows: expected a contiguous"),
        (A([0]), A([0, 1]), ROWS, InvalidArgumentError, "positions: expected int64"),
        (A([0]), A([0], dtype=torch.int32), ROWS, InvalidArgumentError, "positions: expected int64"),
        (A([0]), A([4]), ROWS, InvalidArgumentError, r"positions\[0\]: 4 is outside \[0, 4\)"),
        (A([0]), A([-1]), ROWS, InvalidArgumentError, r"positions\[0\]: -1 is outside"),
        (A([0, 0, 0, 0, 0]), None, ROWS, InvalidArgumentError, "4 is outside"),
        (A([0]), None, torch.zeros(4, 3), InvalidArgumentError, "out: expected"),
        (A([0]), None, torch.zeros(4, 2).double(), InvalidArgumentError, "out: expected"),
        (A([0]), None, torch.zeros(2, 4).t(), InvalidArgumentError, "out: expected a contiguous"),
        ([0], None, None, InvalidArgumentError, "rows: expected a tensor, got list"),
    ],
)
def test_gather_refuses(ids: Any, positions: Any, out: Any, error: type[Exception], match: str) -> None:
    for pool in POOLS.values():
        with pytest.raises(error, match=match):
            _C.RowStore([ROWS.clone()]).gather(ids, pool, positions, out)


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ([], "expected at least one"),
        ([torch.tensor(1.0)], "got a scalar"),
        ([ROWS, ROWS.double()], r"tensors\[1\]: dtype and row shape differ"),
        ([ROWS, torch.zeros(4, 3)], r"tensors\[1\]: dtype and row shape differ"),
        ([torch.zeros(2, 4).t()], "contiguous"),
    ],
)
def test_store_refuses(parts: list[torch.Tensor], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        _C.RowStore(parts)
