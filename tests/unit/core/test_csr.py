"""Compressed rows: building, checking and taking them, against numpy."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler.strategies import METHODS

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3)}
Arrays = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def build(row: Any, col: Any, edge_ids: Any, num_rows: int, num_cols: int, num_threads: int = 1) -> Arrays:
    indptr, indices, ids = _C.build_csr(row, col, edge_ids, num_rows, num_cols, POOLS[num_threads])
    return to_tensor(indptr), to_tensor(indices), to_tensor(ids)


def oracle(row: np.ndarray, col: np.ndarray, ids: np.ndarray, num_rows: int) -> tuple[np.ndarray, ...]:
    order = np.lexsort((ids, col, row))
    counts = np.bincount(row, minlength=num_rows) if len(row) else np.zeros(num_rows, dtype=np.int64)
    return np.concatenate([[0], np.cumsum(counts)]), col[order], ids[order]


@st.composite
def coo(draw: st.DrawFn) -> tuple[Any, ...]:
    num_rows, num_cols = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    num_edges = draw(st.integers(0, 120))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    row, col = rng.integers(0, num_rows, num_edges), rng.integers(0, num_cols, num_edges)
    ids = rng.permutation(4 * num_edges)[:num_edges] if draw(st.booleans()) else None
    return num_rows, num_cols, row, col, ids


@given(edges=coo(), dtypes=st.tuples(*[st.sampled_from([torch.int32, torch.int64])] * 3), threads=st.integers(1, 3))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_build_equals_numpy(edges: Any, dtypes: Any, threads: int) -> None:
    num_rows, num_cols, row, col, ids = edges
    arrays = [None if a is None else torch.from_numpy(a).to(t) for a, t in zip((row, col, ids), dtypes, strict=True)]
    indptr, indices, edge_ids = build(*arrays, num_rows, num_cols, threads)
    expected = oracle(row, col, np.arange(len(row)) if ids is None else ids, num_rows)
    for actual, wanted in zip((indptr, indices, edge_ids), expected, strict=True):
        assert actual.tolist() == wanted.tolist()
    assert (indptr.dtype, indices.dtype, edge_ids.dtype) == (torch.int64, torch.int32, torch.int32)
    _C.Csr(indptr, indices, edge_ids, num_cols).validate(POOLS[threads])


def test_large_build_with_threads() -> None:
    """More rows than one thread takes at a time."""
    rng = np.random.default_rng(0)
    row, col = rng.integers(0, 10_000, 50_000), rng.integers(0, 300, 50_000)
    expected = oracle(row, col, np.arange(50_000), 10_000)
    for threads in POOLS:
        for actual, wanted in zip(
            build(torch.from_numpy(row), torch.from_numpy(col), None, 10_000, 300, threads), expected, strict=True
        ):
            assert np.array_equal(actual.numpy(), wanted)


@pytest.mark.parametrize(("num_rows", "num_cols"), [(0, 0), (3, 0), (0, 5), (4, 4)])
def test_graphs_without_edges(num_rows: int, num_cols: int) -> None:
    none = torch.empty(0, dtype=torch.int64)
    indptr, indices, edge_ids = build(none, none, None, num_rows, num_cols)
    assert indptr.tolist() == [0] * (num_rows + 1)
    assert indices.numel() == edge_ids.numel() == 0
    csr = _C.Csr(indptr, indices, edge_ids, num_cols)
    csr.validate(POOLS[1])
    assert (csr.num_rows, csr.num_cols, csr.num_edges) == (num_rows, num_cols, 0)
    taken = _C.take_csr_rows(indptr, indices, edge_ids, torch.arange(num_rows).flip(0), num_cols, POOLS[1])
    assert to_tensor(taken[0]).tolist() == [0] * (num_rows + 1)


def test_wide_ids_where_narrow_ones_do_not_fit() -> None:
    limit = 2**31 - 1
    row, col = torch.tensor([0, 0]), torch.tensor([5, 1])
    assert build(row, col, None, 1, limit - 1)[1].dtype == torch.int32
    assert build(row, col, None, 1, limit)[1].dtype == torch.int64
    assert build(row, col, torch.tensor([limit - 1, 0]), 1, 9)[2].dtype == torch.int32
    _, indices, edge_ids = build(row, torch.tensor([2**33, 1]), torch.tensor([limit, 2**40]), 1, 2**34)
    assert indices.tolist() == [1, 2**33]
    assert edge_ids.tolist() == [2**40, limit]


@given(edges=coo(), data=st.data(), implicit=st.booleans(), dtype=st.sampled_from([torch.int32, torch.int64]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_take_rows_equals_numpy(edges: Any, data: st.DataObject, implicit: bool, dtype: torch.dtype) -> None:
    """Any rows in any order, repeated or none; edge ids that were positions stay the positions of the whole."""
    num_rows, num_cols, row, col, ids = edges
    given_ids = None if ids is None else torch.from_numpy(ids)
    arrays = build(torch.from_numpy(row), torch.from_numpy(col), given_ids, num_rows, num_cols)
    indptr, indices, edge_ids = arrays
    edge_ids = torch.arange(len(indices)) if implicit else edge_ids
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=30))
    wanted = torch.tensor(rows, dtype=dtype)
    taken = _C.take_csr_rows(indptr, indices, None if implicit else edge_ids, wanted, num_cols, POOLS[2])
    out_indptr, out_indices, out_ids = map(to_tensor, taken)
    assert out_indices.dtype == indices.dtype
    for i, r in enumerate(rows):
        mine, whole = slice(out_indptr[i], out_indptr[i + 1]), slice(indptr[r], indptr[r + 1])
        assert out_indices[mine].tolist() == indices[whole].tolist()
        assert out_ids[mine].tolist() == edge_ids[whole].tolist()
    assert out_indptr[-1] == out_indices.numel() == out_ids.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@given(edges=coo(), data=st.data(), threads=st.integers(1, 3))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_weights_go_where_their_edges_go(dtype: torch.dtype, edges: Any, data: st.DataObject, threads: int) -> None:
    """Built and taken, with and without times, in any float dtype."""
    num_rows, num_cols, row, col, ids = edges
    n = len(row)
    ids = np.arange(n) if ids is None else ids
    weights = torch.rand(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    times = np.random.default_rng(n).integers(-3, 3, n) if data.draw(st.booleans()) else None
    inputs = [torch.from_numpy(array) for array in (row, col, ids)]
    given_times = None if times is None else torch.from_numpy(times)
    pool = POOLS[threads]
    built = [to_tensor(a) for a in _C.build_csr(*inputs, num_rows, num_cols, pool, given_times, weights)]
    order = np.lexsort((ids, col, np.zeros(n) if times is None else times, row))
    expected = [ids[order].tolist(), weights[torch.from_numpy(order)].tolist()]
    assert [built[2].tolist(), built[-1].tolist()] == expected
    assert built[-1].dtype == dtype
    rows = torch.tensor(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=10)), dtype=torch.int64)
    carried = (None if times is None else built[3], built[-1])
    taken = [to_tensor(a) for a in _C.take_csr_rows(*built[:3], rows, num_cols, pool, *carried)]
    assert [tensor.dtype for tensor in taken] == [tensor.dtype for tensor in built]
    spans = [slice(built[0][r], built[0][r + 1]) for r in rows.tolist()]
    for whole, part in zip(built[1:], taken[1:], strict=True):
        assert part.tolist() == [value for span in spans for value in whole[span].tolist()]


def test_offsets_beyond_32_bits() -> None:
    """A graph of 2^31 + 50 edges: one hub with nearly all of them, and neighbors, ids, times and weights of the last
    rows lie beyond what 32 bits count. The arrays are files with holes: only pages that are read exist."""
    num_edges, tail = 2**31 + 50, 40
    indptr = torch.tensor([0, num_edges - tail, num_edges - 10, num_edges])
    arrays = {dtype: _sparse(num_edges, dtype) for dtype in (torch.int32, torch.int64, torch.float64, torch.float16)}
    indices, times, sums = arrays[torch.int32], arrays[torch.int64], arrays[torch.float64]
    indices[-tail:] = torch.arange(tail)
    times[-tail:] = torch.cat([torch.arange(30), torch.arange(10)])
    weights = arrays[torch.float16]
    weights[-tail:] = 1
    sums[-tail:] = to_tensor(_C.sum_weights(torch.tensor([0, 30, 40]), weights[-tail:], POOLS[1])[0])
    csr = _C.Csr(indptr, indices, None, 100, times, weights, sums)
    assert csr.num_edges == num_edges
    first = num_edges - tail
    for method in METHODS:
        for rule in (_C.TimeRule.IGNORE, _C.TimeRule.BEFORE):
            how = _C.DrawMethod(method, False, rule)
            nodes, now = torch.tensor([2, 1]), torch.tensor([4, 7])
            found = _C.sample_neighbors(csr, nodes, None, 6, how, 1, True, POOLS[1], None, now)
            counts, neighbors, edges = map(to_tensor, found)
            assert counts.tolist() == ([6, 6] if rule == _C.TimeRule.IGNORE else [5, 6])
            assert (edges - first).tolist() == neighbors.tolist()
            assert all(v >= 30 for v in neighbors[: counts[0]].tolist())
            assert all(v < 30 for v in neighbors[counts[0] :].tolist())
    hub = _C.sample_neighbors(csr, torch.tensor([0]), None, 5, _C.DrawMethod(), 3, True, POOLS[1])
    picked = to_tensor(hub[2]).tolist()
    assert len(set(picked)) == 5
    assert max(picked) < first
    assert max(picked) > 2**29


def _sparse(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in a file with holes."""
    descriptor = os.memfd_create("sparse")
    os.ftruncate(descriptor, count * dtype.itemsize)
    mapping = mmap.mmap(descriptor, count * dtype.itemsize)
    os.close(descriptor)
    return torch.frombuffer(mapping, dtype=dtype, count=count)


A = torch.tensor


@pytest.mark.parametrize(
    ("row", "col", "ids", "error", "match"),
    [
        (A([0, -1]), A([0, 0]), None, UnknownIdError, r"row\[1\]: node id -1 .*\[0, 3\)"),
        (A([0, 3]), A([0, 0]), None, UnknownIdError, r"row\[1\]: node id 3 "),
        (A([0, 0]), A([4, 0]), None, UnknownIdError, r"col\[0\]: node id 4 .*\[0, 4\)"),
        (A([0, 0]), A([0, 0]), A([1, -7]), UnknownIdError, r"edge_ids\[1\]: edge id -7"),
        (A([0, 0]), A([0]), None, InvalidArgumentError, "col: .* 2, got 1"),
        (A([0, 0]), A([0, 0]), A([1]), InvalidArgumentError, "edge_ids: .* 2 edges, got 1"),
        (A([0.0]), A([0]), None, InvalidArgumentError, "row: expected"),
        (A([[0]]), A([0]), None, InvalidArgumentError, "row: expected"),
        (A([0]), A([0], dtype=torch.int16), None, InvalidArgumentError, "col: expected"),
        (A([0, 1, 2, 0])[::2], A([0, 0]), None, InvalidArgumentError, "row: expected a contiguous"),
        ([0], A([0]), None, InvalidArgumentError, "row: expected a tensor, got list"),
    ],
)
def test_build_refuses(row: Any, col: Any, ids: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        build(row, col, ids, 3, 4)


@pytest.mark.parametrize(
    ("indptr", "indices", "ids", "match"),
    [
        (A([0, 1], dtype=torch.int32), A([0]), None, "indptr: expected dtype int64"),
        (A([], dtype=torch.int64), A([0]), None, "indptr: expected at least one"),
        (A([1, 1]), A([0]), None, "indptr: expected to run from 0"),
        (A([0, 2]), A([0]), None, "indptr: expected to run from 0"),
        (A([0, 1]), A([0]), A([0, 1]), "edge_ids: expected one id"),
    ],
)
def test_csr_refuses(indptr: torch.Tensor, indices: torch.Tensor, ids: Any, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        _C.Csr(indptr, indices, ids, 3)


@pytest.mark.parametrize(
    ("indptr", "indices", "ids", "error", "match"),
    [
        (A([0, 2, 1, 3]), A([0, 1, 0]), None, InvalidArgumentError, "got 2 before 1 at row 1"),
        (A([0, 1, 3]), A([0, 1, 3]), None, UnknownIdError, r"indices\[2\]: node id 3 "),
        (A([0, 1, 3]), A([0, -1, 2]), None, UnknownIdError, r"indices\[1\]: node id -1 "),
        (A([0, 1, 3]), A([0, 2, 1]), None, InvalidArgumentError, "row 1 is not sorted"),
        (A([0, 1, 3]), A([0, 2, 2]), A([0, 2, 1]), InvalidArgumentError, "row 1 is not sorted"),
    ],
)
def test_validate_refuses(indptr: Any, indices: Any, ids: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        _C.Csr(indptr, indices, ids, 3).validate(POOLS[2])


@pytest.mark.parametrize("bad", [-1, 3])
def test_take_refuses_unknown_rows(bad: int) -> None:
    arrays = build(A([0, 1]), A([0, 0]), None, 3, 1)
    with pytest.raises(UnknownIdError, match=rf"rows\[1\]: node id {bad} "):
        _C.take_csr_rows(*arrays, A([0, bad]), 1, POOLS[1])


def test_memory_that_is_not_to_be_had_says_for_what() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for num_rows in (2**45, 2**62):
        with pytest.raises(MemoryError, match=rf"no memory for a tensor int64 \[{num_rows + 1}\]"):
            build(none, none, None, num_rows, 4)
