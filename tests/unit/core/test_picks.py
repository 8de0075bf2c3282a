"""One hop: which neighbors are picked, bit by bit as the generator's definition says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support import reference

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3)}
I64 = st.integers(-(1 << 63), (1 << 63) - 1)


def ladder(degrees: list[int], num_cols: int = 10_000) -> Any:
    """Row v has ``degrees[v]`` neighbors, 0, 1, ...: a neighbor is its own position. Edge ids are 7 times positions."""
    indptr = torch.tensor([0, *degrees]).cumsum(0)
    indices = torch.cat([torch.arange(degree) for degree in degrees])
    dtype = torch.int32 if num_cols < 2**31 else torch.int64
    return _C.Csr(indptr, indices.to(dtype), 7 * torch.arange(len(indices)), num_cols)


def one_hop(
    csr: Any, ids: Any, fanout: int, key: int, *, replace: bool = False, rows: Any = None, threads: int = 1
) -> Any:
    counts, neighbors, edges = _C.sample_neighbors(
        csr, ids, rows, fanout, _C.DrawMethod(replace=replace), key, True, POOLS[threads]
    )
    return to_tensor(counts), to_tensor(neighbors), to_optional_tensor(edges)


@given(seed=I64, epoch=I64, batch=I64, hop=st.integers(0, 9), edge_type=st.integers(0, 99))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_keys(seed: int, epoch: int, batch: int, hop: int, edge_type: int) -> None:
    assert _C.draw_key(seed, epoch, batch, hop, edge_type) == reference.draw_key(seed, epoch, batch, hop, edge_type)


def test_golden_values_never_change() -> None:
    """A user's "seed 7, epoch 3, batch 4711" has to mean the same after every release."""
    key = _C.draw_key(7, 3, 4711, 0, 0)
    assert key == 13759201178127019374
    counts, neighbors, _ = one_hop(ladder([1000, 10, 3, 0]), torch.arange(4), 5, key)
    assert counts.tolist() == [5, 5, 3, 0]
    assert neighbors.tolist() == [313, 611, 895, 11, 818, 2, 1, 7, 6, 5, 0, 1, 2]


@given(
    degrees=st.lists(st.one_of(st.integers(0, 12), st.integers(90, 400)), min_size=1, max_size=6),
    fanout=st.sampled_from([-1, 1, 2, 5, 20, 95, 96, 97, 98, 200]),
    replace=st.booleans(),
    key=st.integers(0, (1 << 64) - 1),
    id_base=st.sampled_from([0, 1000, 1 << 40]),
    narrow=st.booleans(),
    threads=st.integers(1, 3),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_picks_equal_the_definition(
    degrees: list[int], fanout: int, replace: bool, key: int, id_base: int, narrow: bool, threads: int
) -> None:
    """Below and above the fan-out at which repeated picks are found another way (96), int32 and int64 storage, ids that
    are rows and ids that are not: one definition."""
    csr = ladder(degrees, 10_000 if narrow else 2**33)
    rows = torch.arange(len(degrees))
    ids = rows + id_base
    counts, neighbors, edges = one_hop(
        csr, ids, fanout, key, replace=replace, rows=rows if id_base else None, threads=threads
    )
    starts = torch.tensor([0, *degrees]).cumsum(0).tolist()
    expected = [reference.pick(key, int(v), d, fanout, replace) for v, d in zip(ids, degrees, strict=True)]
    assert counts.tolist() == [len(picks) for picks in expected]
    assert neighbors.tolist() == [position for picks in expected for position in picks]
    assert edges.tolist() == [7 * (starts[i] + p) for i, picks in enumerate(expected) for p in picks]
    assert neighbors.dtype == (torch.int32 if narrow else torch.int64)


@pytest.mark.parametrize("fanout", [1, 3, 50, 96, 97, 250])
def test_counts_and_distinctness(fanout: int) -> None:
    degrees = [0, 1, 2, 3, 40, 96, 97, 98, 250, 251, 900]
    csr, ids = ladder(degrees), torch.arange(len(degrees))
    for batch in range(20):
        key = _C.draw_key(0, 0, batch, 0, 0)
        counts, neighbors, _ = one_hop(csr, ids, fanout, key)
        assert counts.tolist() == [min(degree, fanout) for degree in degrees]
        for degree, picked in zip(degrees, neighbors.split(counts.tolist()), strict=True):
            assert len(set(picked.tolist())) == len(picked)
            assert all(0 <= position < degree for position in picked.tolist())
        counts, neighbors, _ = one_hop(csr, ids, fanout, key, replace=True)
        assert counts.tolist() == [fanout if degree else 0 for degree in degrees]
        assert all(p < d for d, t in zip(degrees, neighbors.split(counts.tolist()), strict=True) for p in t.tolist())
    counts, neighbors, _ = one_hop(csr, ids, -1, 5)
    assert counts.tolist() == degrees
    assert neighbors.tolist() == [p for degree in degrees for p in range(degree)]


@pytest.mark.parametrize("replace", [False, True])
def test_threads_storage_and_id_dtype_change_nothing(replace: bool) -> None:
    """More nodes than one thread takes at a time; seeds repeated and in no order."""
    draw = torch.Generator().manual_seed(0)
    degrees = torch.randint(0, 60, (3000,), generator=draw).tolist()
    ids = torch.randint(0, 3000, (5000,), generator=draw)
    expected = one_hop(ladder(degrees), ids, 9, 77, replace=replace)
    for csr in (ladder(degrees), ladder(degrees, 2**40)):
        for threads in POOLS:
            for dtype in (torch.int32, torch.int64):
                actual = one_hop(csr, ids.to(dtype), 9, 77, replace=replace, threads=threads)
                assert all(torch.equal(a.long(), e.long()) for a, e in zip(actual, expected, strict=True))


def test_nothing_asked_and_no_edge_ids() -> None:
    csr = ladder([3])
    counts, neighbors, edges = one_hop(csr, torch.empty(0, dtype=torch.int64), 2, 0)
    assert counts.numel() == neighbors.numel() == edges.numel() == 0
    assert _C.sample_neighbors(csr, torch.tensor([0]), None, 2, _C.DrawMethod(), 0, False, POOLS[1])[2] is None
    without_ids = _C.Csr(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1]), None, 2)
    assert one_hop(without_ids, torch.tensor([1]), -1, 0)[2].tolist() == [1, 2]  # an edge's id is its position


@pytest.mark.parametrize(
    ("ids", "rows", "fanout", "error", "match"),
    [
        (torch.tensor([0, 3]), None, 1, UnknownIdError, r"ids\[1\]: node id 3 .*\[0, 2\)"),
        (torch.tensor([-1]), None, 1, UnknownIdError, r"ids\[0\]: node id -1 "),
        (torch.tensor([50]), torch.tensor([2]), 1, UnknownIdError, r"ids\[0\]: node id 50 "),
        (torch.tensor([0]), None, -2, InvalidArgumentError, "num_neighbors: .* got -2"),
        (torch.tensor([0]), None, 1 << 62, InvalidArgumentError, "num_neighbors: expected at most 2147483647, got"),
        (torch.tensor([0.5]), None, 1, InvalidArgumentError, "ids: expected"),
        (torch.tensor([[0]]), None, 1, InvalidArgumentError, "ids: expected"),
        (torch.arange(4)[::2], None, 1, InvalidArgumentError, "ids: expected a contiguous"),
        (torch.tensor([0]), torch.tensor([0, 1]), 1, InvalidArgumentError, r"rows: expected int64 \[1\]"),
        (torch.tensor([0]), torch.tensor([0], dtype=torch.int32), 1, InvalidArgumentError, "rows: expected int64"),
    ],
)
def test_refuses(ids: Any, rows: Any, fanout: int, error: type[Exception], match: str) -> None:
    for threads in POOLS:  # an error of another thread comes back to the caller
        with pytest.raises(error, match=match):
            one_hop(ladder([2, 2]), ids, fanout, 0, rows=rows, threads=threads)
