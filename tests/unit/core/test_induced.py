"""Induced edges: values against plain Python, whatever way a row is searched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support.graphs import TestGraph, graphs

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3)}
A = torch.tensor


def csr_of(row: torch.Tensor, col: torch.Tensor, num_rows: int, num_cols: int, *, ids: Any = None) -> Any:
    return _C.Csr(*map(to_tensor, _C.build_csr(row, col, ids, num_rows, num_cols, POOLS[1])), num_cols)


def induced(
    csr: Any, ids: Any, members: Any, *, rows: Any = None, threads: int = 1
) -> tuple[list[int], list[int], list[int]]:
    counts, cols, edges = map(to_tensor, _C.induced_edges(csr, ids, rows, members, True, POOLS[threads]))
    assert counts.dtype == cols.dtype == edges.dtype == torch.int64
    return counts.tolist(), cols.tolist(), edges.tolist()


def expected(
    edges: list[tuple[int, int, int]], ids: list[int], members: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """From (row, neighbor, edge id) triples."""
    rows = [sorted((n, e) for r, n, e in edges if r == i and n in members) for i in ids]
    found = [entry for row in rows for entry in row]
    return [len(row) for row in rows], [members.index(n) for n, _ in found], [e for _, e in found]


@given(
    graph=graphs(typed=False),
    data=st.data(),
    threads=st.integers(1, 3),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_equals_plain_python(graph: TestGraph, data: st.DataObject, threads: int, dtype: torch.dtype) -> None:
    """Hubs, isolated nodes, self loops and multi-edges are in these graphs; members and ids repeat."""
    num_nodes, (row, col) = graph.num_nodes[None], graph.edges[None]
    csr = csr_of(row, col, num_nodes, num_nodes, ids=graph.ids_of(None))
    node = st.integers(0, num_nodes - 1)
    ids, members = data.draw(st.lists(node, max_size=20)), data.draw(st.lists(node, max_size=20))
    triples = list(zip(row.tolist(), col.tolist(), graph.ids_of(None).tolist(), strict=True))
    actual = induced(csr, torch.tensor(ids, dtype=dtype), torch.tensor(members, dtype=dtype), threads=threads)
    assert actual == expected(triples, ids, members)


@pytest.mark.parametrize("num_cols", [6000, 2**40])
def test_long_rows_are_searched_to_the_same_end(num_cols: int) -> None:
    """Row 0 holds every node up to 5000, each third twice: far more than the members. Row 1 is short."""
    neighbors = [v for v in range(5000) for _ in range(2 if v % 3 == 0 else 1)]
    row = A([0] * len(neighbors) + [1, 1])
    col = A([*neighbors, 4999, 3])
    csr = csr_of(row, col, 6000, num_cols)
    triples = list(zip(row.tolist(), col.tolist(), range(len(row)), strict=True))
    for members in ([4999], [0, 3], [5999], [3, 0, 3, 4999, 2500, 2501, 5100], [7] * 3):
        assert induced(csr, A([0, 1, 0, 2]), A(members)) == expected(triples, [0, 1, 0, 2], members)


def test_rows_sorted_by_time_are_not_halved() -> None:
    """Neighbors descend as time goes on: a long row whose neighbors do not ascend is read through."""
    neighbors = torch.arange(5000).flip(0)
    csr = _C.Csr(A([0, 5000]), neighbors, None, 5000, times=torch.arange(5000))
    assert induced(csr, A([0]), A([4990, 0, 17])) == ([3], [0, 2, 1], [9, 4982, 4999])
    assert to_tensor(_C.has_edges(csr, A([0, 0]), A([17, 4999]), POOLS[1])).tolist() == [1, 1]


def test_complete_graph_gives_all_pairs() -> None:
    row, col = torch.cartesian_prod(torch.arange(7), torch.arange(7)).T
    csr = csr_of(row.contiguous(), col.contiguous(), 7, 7)
    counts, cols, edges = induced(csr, torch.arange(7), A([6, 0, 3]))
    assert counts == [3] * 7
    assert cols == [1, 2, 0] * 7  # in the order of the row: 0, 3, 6
    assert edges == [7 * v + n for v in range(7) for n in (0, 3, 6)]


def test_threads_change_nothing() -> None:
    """More rows than one thread takes at a time, and all ways of searching one."""
    draw = torch.Generator().manual_seed(3)
    row = torch.cat([torch.randint(0, 3000, (40_000,), generator=draw), torch.zeros(30_000, dtype=torch.int64)])
    col = torch.randint(0, 3000, (70_000,), generator=draw)
    csr = csr_of(row, col, 3000, 3000)
    ids = torch.randperm(3000, generator=draw)
    for num_members in (20, 1500):
        members = torch.randint(0, 3000, (num_members,), generator=draw)
        one = induced(csr, ids, members)
        assert sum(one[0]) == len(one[1]) > 0
        assert induced(csr, ids, members, threads=2) == one == induced(csr, ids, members, threads=3)


def test_the_owner_of_some_rows_answers_for_them() -> None:
    """Rows 5 and 2 of a graph as a partition stores them, in its own order: ids are global, rows are not."""
    row, col = A([2, 2, 5, 5, 1]), A([5, 1, 2, 9, 2])
    whole = csr_of(row, col, 10, 10)
    part = csr_of(A([1, 1, 0, 0]), col[:4], 2, 10, ids=A([0, 1, 2, 3]))
    ids, members = A([2, 5, 2]), A([9, 5, 1])
    assert induced(part, ids, members, rows=A([1, 0, 1])) == induced(whole, ids, members)


def test_nothing_asked_for() -> None:
    csr = csr_of(A([0, 1]), A([1, 0]), 2, 2)
    none = torch.empty(0, dtype=torch.int64)
    assert induced(csr, none, A([0])) == ([], [], [])
    assert induced(csr, A([0, 1]), none) == ([0, 0], [], [])
    assert induced(csr_of(none, none, 3, 3), A([2, 0]), A([0, 1])) == ([0, 0], [], [])
    counts, cols, edges = _C.induced_edges(csr, A([0]), None, A([1]), False, POOLS[1])
    assert to_tensor(counts).tolist() == [1]
    assert to_tensor(cols).tolist() == [0]
    assert to_optional_tensor(edges) is None


@pytest.mark.parametrize(
    ("ids", "rows", "members", "error", "match"),
    [
        (A([0, 3]), None, A([0]), UnknownIdError, r"ids\[1\]: node id 3.*\[0, 3\)"),
        (A([-1]), None, A([0]), UnknownIdError, r"ids\[0\]: node id -1"),
        (A([70]), A([3]), A([0]), UnknownIdError, r"ids\[0\]: node id 70, row 3"),
        (A([0]), None, A([1, 4]), UnknownIdError, r"members\[1\]: node id 4 is outside \[0, 4\)"),
        (A([0]), None, A([-2]), UnknownIdError, r"members\[0\]: node id -2"),
        (A([0]), None, A([0.5]), InvalidArgumentError, "members: expected"),
        (A([[0]]), None, A([0]), InvalidArgumentError, "ids: expected"),
        (A([0]), A([0, 1]), A([0]), InvalidArgumentError, r"rows: expected int64 \[1\]"),
    ],
)
def test_refuses(ids: Any, rows: Any, members: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        induced(csr_of(A([0, 1]), A([1, 3]), 3, 4), ids, members, rows=rows)
