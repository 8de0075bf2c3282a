"""Batches grown hop by hop: relabeling in its two forms, stamps that run out, and errors."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support.graphs import random_edges

DENSE_LIMIT = 1 << 28  # csrc/sampling/relabel_table.h
POOL = _C.ThreadPool(1)


def builder(num_nodes: int) -> Any:
    return _C.BatchBuilder([num_nodes], [(0, 0)])


def start(build: Any, seeds: torch.Tensor, max_new_nodes: int, with_edge_ids: bool) -> None:
    build.begin(seeds.numel(), max_new_nodes, with_edge_ids)
    build.add_seeds(0, seeds)


def flat(arrays: Any) -> list[list[int]]:
    nodes, edge_index, edge_ids, num_nodes, num_edges, _ = arrays
    tensors = [to_tensor(nodes[0]), *to_tensor(edge_index[0]), to_optional_tensor(edge_ids[0])]
    return [[] if tensor is None else tensor.tolist() for tensor in tensors] + [num_nodes[0], num_edges[0]]


def added(build: Any, csr: Any, seeds: torch.Tensor, fanouts: list[int], key: int, bound: int = -1) -> list[list[int]]:
    """A batch sampled outside and added hop by hop, as a partitioned sampler does."""
    start(build, seeds, bound, True)
    for hop, fanout in enumerate(fanouts):
        frontier = to_tensor(build.frontier(0)[0])
        counts, neighbors, edges = map(
            to_tensor, _C.sample_neighbors(csr, frontier, None, fanout, _C.DrawMethod(), key + hop, True, POOL)
        )
        build.add_hop(0, counts, neighbors, edges)
        build.next_hop()
    return flat(build.finish())


def small_csr(num_nodes: int = 600, num_edges: int = 6000) -> Any:
    row, col = random_edges(num_nodes, num_nodes, num_edges, 4)
    return _C.Csr(*map(to_tensor, _C.build_csr(row, col, None, num_nodes, num_nodes, POOL)), num_nodes)


def test_hash_form_equals_dense_form() -> None:
    """Graphs of more than 2^28 nodes relabel by hashing; many batches in a row on one builder, of changing size."""
    csr = small_csr()
    dense, hashed = builder(600), builder(DENSE_LIMIT + 1)
    draw = torch.Generator().manual_seed(0)
    for batch in range(40):
        seeds = torch.randint(0, 600, (1 + 13 * (batch % 7),), generator=draw)
        expected = added(dense, csr, seeds, [4, 3], batch)
        assert added(hashed, csr, seeds, [4, 3], batch) == expected
        assert added(hashed, csr, seeds, [4, 3], batch, bound=len(seeds) * 16) == expected


def test_hash_form_grows() -> None:
    """More nodes than the first table holds: 100,000 of them, each twice, spread over the whole range of ids."""
    build = builder(DENSE_LIMIT * 4)
    ids = torch.arange(100_000) * 10_007
    start(build, torch.tensor([5]), -1, False)
    build.add_hop(0, torch.tensor([200_000]), torch.cat([ids, ids.flip(0)]), None)
    build.next_hop()
    nodes, rows, *_ = flat(build.finish())
    assert nodes == [5, *ids.tolist()]
    assert rows == [*range(1, 100_001), *range(100_000, 0, -1)]


@pytest.mark.parametrize("num_nodes", [1 << 22, DENSE_LIMIT + 1])
def test_batches_do_not_see_each_other(num_nodes: int) -> None:
    """Entries are told from those of older batches by a stamp. Here a batch leaves it 9 bits, so that it runs out every
    511 batches; each batch reaches the very nodes that the batch with its stamp reached one round before."""
    build = builder(num_nodes)
    for batch in range(1100):
        reached = torch.arange(4) + 1 + 4 * (batch % 511)
        reached = reached.flip(0) if batch // 511 % 2 else reached
        start(build, torch.tensor([0]), -1, False)
        build.add_hop(0, torch.tensor([5]), torch.cat([reached, reached[:1]]), None)
        build.next_hop()
        nodes, rows, *_ = flat(build.finish())
        assert nodes == [0, *reached.tolist()], f"batch {batch}"
        assert rows == [1, 2, 3, 4, 1], f"batch {batch}"


def test_batches_of_changing_size_do_not_see_each_other() -> None:
    """The number of bits of a local id changes from batch to batch, and with it the layout of the table's entries."""
    csr = small_csr()
    reused = builder(600)
    for batch, (size, bound) in enumerate(
        itertools.islice(itertools.cycle([(1, 30), (500, 599), (40, -1), (3, 90)]), 60)
    ):
        seeds = (torch.arange(size) * 7 + batch) % 600
        fanouts = [2, 3] if size < 500 else [2]
        assert added(reused, csr, seeds, fanouts, batch, bound) == added(builder(600), csr, seeds, fanouts, batch)


def test_handed_out_batches_stay_what_they_were() -> None:
    csr = small_csr()
    build = builder(600)
    kept = []
    for batch in range(20):
        start(build, torch.arange(50) + batch, -1, True)
        kept.append(build.sample([csr], [[5], [5]], [_C.DrawMethod()], True, [0, 0, batch], POOL))
    again = builder(600)
    for batch, arrays in enumerate(kept):
        start(again, torch.arange(50) + batch, -1, True)
        assert flat(arrays) == flat(again.sample([csr], [[5], [5]], [_C.DrawMethod()], True, [0, 0, batch], POOL))


def test_take_all_from_one_hub() -> None:
    """One seed reaches every node at once: outputs grow far beyond their first capacity."""
    num_nodes = 50_000
    ids = torch.arange(num_nodes)
    csr = _C.Csr(*map(to_tensor, _C.build_csr(torch.zeros_like(ids), ids, None, num_nodes, num_nodes, POOL)), num_nodes)
    for threads in (1, 2):
        build = builder(num_nodes)
        start(build, torch.tensor([0]), -1, True)
        nodes, rows, cols, edges, *counts = flat(
            build.sample([csr], [[-1], [-1]], [_C.DrawMethod()], True, [0, 0, 0], _C.ThreadPool(threads))
        )
        assert nodes == rows == edges == ids.tolist()
        assert cols == [0] * num_nodes
        assert counts == [[1, num_nodes - 1, 0], [num_nodes, 0]]


A = torch.tensor


@pytest.mark.parametrize(
    ("counts", "neighbors", "edges", "error", "match"),
    [
        (A([1]), A([1]), A([0]), InvalidArgumentError, r"counts: expected int64 \[2\]"),
        (A([1, 1], dtype=torch.int32), A([1, 1]), A([0, 0]), InvalidArgumentError, "counts: expected int64"),
        (A([1, 2]), A([1, 1]), A([0, 0]), InvalidArgumentError, "neighbors: expected 3 entries"),
        (A([1, 1]), A([1, 9]), A([0, 0]), UnknownIdError, r"neighbors: node id 9 .*\[0, 9\)"),
        (A([1, 1]), A([1, -1]), A([0, 0]), UnknownIdError, "neighbors: node id -1"),
        (A([1, 1]), A([1, 1]), None, InvalidArgumentError, "edge_ids: expected"),
        (A([1, 1]), A([1, 1]), A([1]), InvalidArgumentError, "edge_ids: expected"),
        (A([3, -1]), A([1, 1]), A([0, 0]), InvalidArgumentError, r"counts\[0\]: 3 is outside \[0, 2\]"),
        (A([2, -1]), A([1, 1]), A([0, 0]), InvalidArgumentError, r"counts\[1\]: -1 is outside"),
    ],
)
def test_add_hop_refuses(counts: Any, neighbors: Any, edges: Any, error: type[Exception], match: str) -> None:
    build = builder(9)
    start(build, A([0, 1]), -1, True)
    with pytest.raises(error, match=match):
        build.add_hop(0, counts, neighbors, edges)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_add_hop_takes_ids_of_four_bytes(dtype: torch.dtype) -> None:
    build = builder(9)
    start(build, A([0, 1]), -1, True)
    build.add_hop(0, A([2, 1]), A([1, 5, 1], dtype=dtype), A([7, 0, 8], dtype=dtype))
    build.next_hop()
    nodes, rows, cols, edge_ids, *_ = flat(build.finish())
    assert (nodes, rows, cols, edge_ids) == ([0, 1, 5], [1, 2, 1], [0, 0, 1], [7, 0, 8])


@pytest.mark.parametrize("bad", [-1, 9])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_begin_refuses_unknown_seeds_and_recovers(bad: int, dtype: torch.dtype) -> None:
    build = builder(9)
    with pytest.raises(UnknownIdError, match=f"node id {bad} is outside"):
        start(build, A([4, bad], dtype=dtype), -1, False)
    start(build, A([4, 4], dtype=dtype), -1, False)
    assert to_tensor(build.frontier(0)[0]).tolist() == [4, 4]


def test_types_and_graphs_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgumentError, match="edge_types"):
        _C.BatchBuilder([3], [(0, 1)])
    with pytest.raises(InvalidArgumentError, match="num_nodes"):
        _C.BatchBuilder([-1], [])
    build = builder(9)
    for call in (lambda: build.add_seeds(1, A([0])), lambda: build.frontier(-1)):
        with pytest.raises(InvalidArgumentError, match="type"):
            call()
    start(build, A([0]), -1, False)
    with pytest.raises(InvalidArgumentError, match="csr: expected 9 rows"):
        build.sample([small_csr()], [[1]], [_C.DrawMethod()], False, [0, 0, 0], POOL)


@pytest.mark.parametrize("disjoint", [False, True], ids=["joint", "disjoint"])
@pytest.mark.parametrize("num_nodes", [1000, DENSE_LIMIT + 1], ids=["dense", "hash"])
def test_more_nodes_than_begin_was_told(num_nodes: int, disjoint: bool) -> None:
    """A peer that answers with more neighbors than asked for: an error, and the builder's next batches are right."""
    build, fresh = builder(num_nodes), builder(num_nodes)
    many = torch.randperm(900, generator=torch.Generator().manual_seed(0)) + 50
    build.begin(2, 4, False, disjoint)
    build.add_seeds(0, A([1, 2]))
    with pytest.raises(InvalidArgumentError, match="batch: expected at most 6 nodes of a type, got 902"):
        build.add_hop(0, A([450, 450]), many, None)
    for round in range(300):  # more than there are epochs in an entry's upper bits, were they spoiled
        seeds, neighbors = many[round : round + 2], many[round + 2 : round + 6]
        made = []
        for one in (build, fresh):
            one.begin(2, 4, False, disjoint)
            one.add_seeds(0, seeds)
            one.add_hop(0, A([2, 2]), neighbors, None)
            made.append(flat(one.finish()))
        assert made[0] == made[1]
        assert made[0][0] == [*seeds.tolist(), *neighbors.tolist()]


def test_fanouts_beyond_what_begin_was_told() -> None:
    csr = small_csr()
    for threads in (1, 3):
        start(build := builder(600), torch.arange(100), 20, False)
        with pytest.raises(InvalidArgumentError, match="batch: expected at most 120 nodes of a type"):
            build.sample([csr], [[5]], [_C.DrawMethod()], False, [0, 0, 0], _C.ThreadPool(threads))
        start(build, torch.arange(100), 500, False)
        build.sample([csr], [[5]], [_C.DrawMethod()], False, [0, 0, 0], _C.ThreadPool(threads))


@pytest.mark.parametrize("disjoint", [False, True], ids=["joint", "disjoint"])
def test_begin_refuses_a_bound_that_is_none(disjoint: bool) -> None:
    with pytest.raises(InvalidArgumentError, match="max_new_nodes: expected at least 0, or -1 for no bound, got -5"):
        builder(9).begin(0, -5, False, disjoint)


@pytest.mark.parametrize("replace", [False, True], ids=["without replacement", "with"])
@pytest.mark.parametrize("fanout", [1, 5, 96, 97], ids=str)
def test_whole_batches_equal_hops_added_by_threads_and_lanes(fanout: int, replace: bool) -> None:
    """Blocks in vector lanes, relabeled in turn, against nodes picked one by one; fan-outs around the limit."""
    csr = small_csr(num_edges=60_000)
    how, seeds = _C.DrawMethod(replace=replace), torch.arange(599, 0, -1)
    start(build := builder(600), seeds, -1, True)
    for hop in range(2):
        frontier, key = to_tensor(build.frontier(0)[0]), _C.draw_key(1, 2, 3, hop, 0)
        build.add_hop(0, *map(to_tensor, _C.sample_neighbors(csr, frontier, None, fanout, how, key, True, POOL)))
        build.next_hop()
    expected = flat(build.finish())
    for threads in (1, 2, 3, 8):
        start(build, seeds, -1, True)
        sampled = build.sample([csr], [[fanout]] * 2, [how], True, [1, 2, 3], _C.ThreadPool(threads))
        assert flat(sampled) == expected, threads


def test_batches_that_share_a_pool() -> None:
    """Neither waits for the other, and neither sees the other."""
    csr, pool = small_csr(num_edges=60_000), _C.ThreadPool(3)

    def batches(first: int) -> list[list[list[int]]]:
        build, made = builder(600), []
        for batch in range(first, first + 20):
            start(build, torch.arange(batch, batch + 200), -1, False)
            made.append(flat(build.sample([csr], [[7], [3]], [_C.DrawMethod()], False, [0, 0, batch], pool)))
        return made

    expected = [batches(first) for first in (0, 100, 200)]
    with ThreadPoolExecutor(3) as executor:
        assert list(executor.map(batches, (0, 100, 200), timeout=60)) == expected


def test_pieces_that_do_not_belong_to_the_book() -> None:
    book = _C.PartitionBook.range(torch.tensor([0, 250, 600]))
    csr = small_csr()
    with pytest.raises(InvalidArgumentError, match=r"pieces: expected one for each of 2 partitions, got 1"):
        _C.CsrPieces(book, [csr])
    with pytest.raises(InvalidArgumentError, match=r"pieces\[0\]: expected 250 rows"):
        _C.CsrPieces(book, [csr, csr])
    halves = [_C.Csr(torch.zeros(n + 1, dtype=torch.int64), torch.empty(0, dtype=t), None, 600)
              for n, t in ((250, torch.int32), (350, torch.int64))]  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=r"pieces\[1\]: .*index dtype"):
        _C.CsrPieces(book, halves)
