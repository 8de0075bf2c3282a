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


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def awkward_values(dtype: torch.dtype) -> torch.Tensor:
    """All values of the types of 8 and 16 bits; of the others, those where rounding to fewer bits is decided."""
    if dtype in (torch.int8, torch.uint8):
        return torch.arange(256).to(dtype)
    halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    if dtype in (torch.float16, torch.bfloat16):
        return halves.view(dtype)
    exact = torch.cat([halves.view(torch.float16).double(), halves.view(torch.bfloat16).double()])
    exact = torch.unique(exact[exact.isfinite()])
    middles = (exact[1:] + exact[:-1]) / 2  # ties, and by a bit of float32 either side of them
    near = torch.cat([exact, middles, middles * (1 + 2.0**-23), middles * (1 - 2.0**-23)])
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.99, 65520.0, 1e-45, -1e-45, 3.4e38])
    return torch.cat([near, special.double()]).to(dtype)


@pytest.mark.parametrize("stored", [*FLOATS, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("wanted", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [1, 16, 37])
def test_casts_are_those_of_torch(stored: torch.dtype, wanted: torch.dtype, columns: int) -> None:
    values = awkward_values(stored)
    whole = values[: len(values) // columns * columns].reshape(-1, columns)
    ids = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    name = str(wanted).removeprefix("torch.")
    actual = to_tensor(_C.RowStore(list(whole.split(100))).gather(ids, POOLS[2], dtype=name))
    expected = whole[ids].to(wanted)
    assert actual.dtype == wanted
    assert torch.equal(actual.isnan(), expected.isnan())
    known = ~expected.isnan()  # which NaN it is, torch itself leaves open
    assert torch.equal(actual.view(BITS[wanted])[known], expected.view(BITS[wanted])[known])


def test_casts_into_place() -> None:
    whole = rows_of(torch.int8, 3000, 20)
    ids = torch.randint(0, 3000, (5000,), generator=torch.Generator().manual_seed(1))
    positions = torch.randperm(5000, generator=torch.Generator().manual_seed(2))
    for threads, pool in POOLS.items():
        out = torch.full((5000, 20), -1.0, dtype=torch.bfloat16)
        _C.RowStore([whole]).gather(ids, pool, positions, out, "bfloat16")
        assert torch.equal(out[positions], whole[ids].to(torch.bfloat16)), threads


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(torch.int32, "float32"), (torch.bool, "float32"), (torch.float32, "int8"), (torch.float32, "int64")],
    ids=str,
)
def test_other_casts_are_refused(stored: torch.dtype, wanted: str) -> None:
    store = _C.RowStore([rows_of(stored, 4, 2)])
    with pytest.raises(InvalidArgumentError, match=f"cannot be cast to {wanted}"):
        store.gather(torch.tensor([0]), POOLS[1], dtype=wanted)
    with pytest.raises(InvalidArgumentError, match="float33"):
        store.gather(torch.tensor([0]), POOLS[1], dtype="float33")
    with pytest.raises(InvalidArgumentError, match="out: expected rows of float16"):
        _C.RowStore([rows_of(torch.float32, 4, 2)]).gather(
            torch.tensor([0]), POOLS[1], None, torch.empty(1, 2), "float16"
        )


@pytest.mark.parametrize("width", [1, 4, 8, 16, 31, 32, 64, 65, 100, 128, 400, 1000, 1024, 1087, 1088, 2000, 4096])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_every_way_of_copying(width: int, index: torch.dtype) -> None:
    """Widths that are copied in different ways, few rows and many, from and to places that no vector is aligned to."""
    source = rows_of(torch.uint8, 700 * width + 1, seed=width)[1:].reshape(700, width)
    for count in (0, 1, 3, 255, 256, 257, 5000):
        ids = torch.randint(0, 700, (count,), generator=torch.Generator().manual_seed(count)).to(index)
        out = torch.full((count * width + 2,), 7, dtype=torch.uint8)
        _C.RowStore([source]).gather(ids, POOLS[1], None, out[1:-1].reshape(count, width))
        assert torch.equal(out[1:-1].reshape(count, width), source[ids.long()])
        assert out[0] == out[-1] == 7


@pytest.mark.parametrize("width", [112, 128, 400, 512, 1024])
def test_outputs_larger_than_the_caches(width: int) -> None:
    """These are written past them: in order, and to places where rows are whole lines."""
    count = (17 << 20) // width
    source = rows_of(torch.uint8, 500, width)
    ids = torch.randint(0, 500, (count,), generator=torch.Generator().manual_seed(0))
    positions = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    for pool in (POOLS[1], POOLS[3]):
        out = pooled_empty((count, width), torch.uint8)
        store = _C.RowStore([source])
        store.gather(ids, pool, None, out)
        assert torch.equal(out, source[ids])
        out.zero_()
        store.gather(ids, pool, positions, out)
        assert torch.equal(out[positions], source[ids])


@pytest.mark.parametrize("width", [8, 64, 128])
@pytest.mark.parametrize("bad", [-1, 700])
def test_a_bad_row_far_behind_is_found(width: int, bad: int) -> None:
    source = rows_of(torch.uint8, 700, width)
    for at in (0, 4095, 4096, 4999):
        ids = torch.zeros(5000, dtype=torch.int64)
        ids[at] = bad
        for pool in POOLS.values():
            with pytest.raises(UnknownIdError, match=f"row {bad} is outside"):
                _C.RowStore([source]).gather(ids, pool)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    picks=st.lists(st.integers(0, 1 << 20), max_size=300),
    width=st.sampled_from([0, 1, 3, 100, 256]),
    threads=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_rows_located_in_partitions(
    sizes: list[int], picks: list[int], width: int, threads: int, dtype: torch.dtype
) -> None:
    """Each partition a store of one or two parts, the output of the stores' dtype or cast to."""
    parts = [rows_of(torch.float32, size, width, seed=p) for p, size in enumerate(sizes)]
    stores = [_C.RowStore(list(part.split([p % len(part), len(part) - p % len(part)]))) for p, part in enumerate(parts)]
    located = [(pick % len(sizes), pick // 7 % sizes[pick % len(sizes)]) for pick in picks]
    owners = torch.tensor([owner for owner, _ in located], dtype=torch.int32)
    rows = torch.tensor([row for _, row in located], dtype=torch.int64)
    out = torch.full((len(picks), width), -1.0, dtype=dtype)
    _C.gather_located(stores, owners, rows, out, POOLS[threads])
    expected = [parts[owner][row] for owner, row in located]
    assert torch.equal(out, torch.stack(expected).to(dtype) if expected else out)


@pytest.mark.parametrize(
    ("owners", "rows", "match"),
    [
        ([0, 2], [0, 0], r"owners\[1\]: there is no store of owner 2"),
        ([0, 3], [0, 0], r"owners\[1\]: there is no store of owner 3"),
        ([0, -1], [0, 0], r"owners\[1\]: there is no store of owner -1"),
        ([0, 1], [0, 4], r"row 4 is outside \[0, 4\)"),
        ([0, 1], [-1, 0], r"row -1 is outside \[0, 3\)"),
        ([0], [0, 1], "owners, rows"),
    ],
)
def test_places_that_no_partition_has(owners: list[int], rows: list[int], match: str) -> None:
    stores = [_C.RowStore([torch.ones(3, 2)]), _C.RowStore([torch.ones(4, 2)]), None]
    out = torch.empty(2, 2)
    with pytest.raises((InvalidArgumentError, UnknownIdError), match=match):
        _C.gather_located(stores, torch.tensor(owners, dtype=torch.int32), torch.tensor(rows), out, POOLS[1])


def test_partitions_that_differ() -> None:
    stores = [_C.RowStore([torch.ones(3, 2)]), _C.RowStore([torch.ones(4, 3)])]
    owners, rows = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InvalidArgumentError, match="stores: expected one dtype and one row shape"):
        _C.gather_located(stores, owners, rows, torch.empty(1, 2), POOLS[1])
    with pytest.raises(InvalidArgumentError, match="out"):
        _C.gather_located(stores[:1], owners, rows, torch.empty(1, 3), POOLS[1])
