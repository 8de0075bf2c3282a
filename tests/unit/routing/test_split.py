"""Split, stitch and scatter against plain Python."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

from_dlpack = torch.utils.dlpack.from_dlpack


def split(book: _C.PartitionBook, ids: torch.Tensor, pool: _C.ThreadPool | None = None) -> list[torch.Tensor]:
    return [from_dlpack(x) for x in _C.split_by_owner(book, ids, pool)]


def stitch(
    positions: torch.Tensor, offsets: torch.Tensor, parts: list[object], pool: _C.ThreadPool | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    counts, neighbors, edge_ids = _C.stitch_neighbors(positions, offsets, parts, pool)
    return from_dlpack(counts), from_dlpack(neighbors), None if edge_ids is None else from_dlpack(edge_ids)


@given(
    num_ids=st.integers(1, 500),
    parts=st.integers(1, 40),
    length=st.integers(0, 300),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=60, deadline=None)
def test_split_is_a_stable_bucket_sort(num_ids: int, parts: int, length: int, seed: int, dtype: torch.dtype) -> None:
    book = _C.PartitionBook.permuted(num_ids, parts, seed)
    ids = torch.randint(0, num_ids, (length,), generator=torch.Generator().manual_seed(seed)).to(dtype)
    owners, all_rows = map(from_dlpack, book.locate(ids))
    order = torch.argsort(owners, stable=True)
    bucketed, rows, positions, offsets = split(book, ids)
    assert torch.equal(positions, order)
    assert torch.equal(bucketed, ids.long()[order])
    assert torch.equal(rows, all_rows[order])
    sizes = torch.bincount(owners.long(), minlength=parts)
    assert offsets.tolist() == [0, *sizes.cumsum(0).tolist()]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_split_does_not_depend_on_threads(parts: int) -> None:
    book = _C.PartitionBook.permuted(1000, parts, 1)
    ids = torch.randint(0, 1000, (60_000,), generator=torch.Generator().manual_seed(0))
    expected = split(book, ids)
    for num_threads in (1, 2, 3):
        got = split(book, ids, _C.ThreadPool(num_threads))
        assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))


def test_split_refuses_unknown_ids() -> None:
    for parts in (1, 3):
        book = _C.PartitionBook.permuted(10, parts, 0)
        with pytest.raises(UnknownIdError, match=r"ids\[1\]=10: no such id; expected 0 <= id < 10"):
            _C.split_by_owner(book, torch.tensor([0, 10]))


@given(
    parts=st.integers(1, 6),
    length=st.integers(0, 60),
    seed=st.integers(0, 10_000),
    narrow=st.lists(st.booleans(), min_size=6, max_size=6),
    with_edge_ids=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_stitch_restores_the_order(parts: int, length: int, seed: int, narrow: list[bool], with_edge_ids: bool) -> None:
    # Id v has v % 4 neighbors: v*10, v*10+1, ...; their edge ids are 1000 more.
    book = _C.PartitionBook.permuted(50, parts, seed)
    ids = torch.randint(0, 50, (length,), generator=torch.Generator().manual_seed(seed))
    bucketed, _, positions, offsets = split(book, ids)
    answers: list[object] = []
    for p in range(parts):
        mine = bucketed[offsets[p] : offsets[p + 1]].tolist()
        dtype = torch.int32 if narrow[p] else torch.int64
        neighbors = torch.tensor([v * 10 + j for v in mine for j in range(v % 4)], dtype=dtype)
        counts = torch.tensor([v % 4 for v in mine], dtype=dtype)
        skip = not mine and seed % 2
        answers.append(None if skip else (counts, neighbors, neighbors + 1000 if with_edge_ids else None))
    counts, neighbors, edge_ids = stitch(positions, offsets, answers)
    expected = [v * 10 + j for v in ids.tolist() for j in range(v % 4)]
    assert counts.tolist() == [v % 4 for v in ids.tolist()]
    assert counts.dtype == torch.int64
    assert neighbors.tolist() == expected
    if edge_ids is not None:
        assert edge_ids.tolist() == [x + 1000 for x in expected]
    assert (edge_ids is not None) or not with_edge_ids or length == 0
    if expected:
        sent = [a[1] for a in answers if a is not None and len(a[1])]  # type: ignore[index]
        assert neighbors.dtype == (torch.int32 if all(x.dtype == torch.int32 for x in sent) else torch.int64)


def test_stitch_does_not_depend_on_threads() -> None:
    book = _C.PartitionBook.permuted(5000, 3, 9)
    ids = torch.randint(0, 5000, (40_000,), generator=torch.Generator().manual_seed(3))
    bucketed, _, positions, offsets = split(book, ids)
    answers = []
    for p in range(3):
        mine = bucketed[offsets[p] : offsets[p + 1]]
        counts = mine % 5
        values = torch.repeat_interleave(mine, counts)
        answers.append((counts, values, None))
    expected = torch.repeat_interleave(ids, ids % 5)
    for num_threads in (1, 2, 3):
        counts, neighbors, edge_ids = stitch(positions, offsets, answers, _C.ThreadPool(num_threads))
        assert torch.equal(counts, ids % 5)
        assert torch.equal(neighbors, expected)
        assert edge_ids is None


def test_stitch_refuses_what_does_not_add_up() -> None:
    positions, offsets = torch.tensor([1, 0, 2]), torch.tensor([0, 1, 3])
    one, two = torch.tensor([1]), torch.tensor([1, 1])
    good = [(one, one, None), (two, two, None)]
    assert stitch(positions, offsets, good)[0].tolist() == [1, 1, 1]
    cases: list[tuple[list[object], str]] = [
        ([good[0], (one, one, None)], "partition 1 was asked for 2 ids and answered for 1"),
        ([good[0], (two, one, None)], "partition 1 sent 1 neighbors, its counts add up to 2"),
        ([good[0], (two, two, one)], "partition 1 sent 1 edge ids for 2 neighbors"),
        ([good[0], (two, two, two)], "partition 0 sent none, others did"),
        ([good[0], None], "no answer from partition 1 for its 2 ids"),
        ([good[0], (torch.tensor([0, -1]), two, None)], r"counts\[1\]=-1"),
        (
            [good[0], (torch.tensor([2**63 - 1, 1]), two, None)],
            r"counts\[0\]=9223372036854775807: expected 0 <= count <= 2",
        ),
        ([good[0]], "expected 2 entries for 1 parts, got 3"),
        ([good[0], (two, two)], r"parts\[1\]: expected \(counts, neighbors"),
        ([good[0], 5], r"parts\[1\]: expected \(counts, neighbors, .* got int"),
        ([good[0], (two.double(), two, None)], r"parts\[1\].counts: expected dtype int32 or int64, got float64"),
        ([good[0], (two, two.double(), None)], r"parts\[1\].neighbors: expected dtype int32 or int64"),
        ([good[0], (two, two, two.double())], r"parts\[1\].edge_ids: expected dtype int32 or int64"),
        ([good[0], (two.to("meta"), two, None)], r"parts\[1\].counts: expected a tensor with numbers in memory"),
    ]
    for parts, text in cases:
        with pytest.raises(InvalidArgumentError, match=text):
            _C.stitch_neighbors(positions, offsets, parts)
    assert _C.stitch_neighbors(positions, offsets, good, None, 1)
    with pytest.raises(InvalidArgumentError, match=r"parts\[0\].counts\[0\]=1: partition 0 was asked for at most 0"):
        _C.stitch_neighbors(positions, offsets, good, None, 0)
    with pytest.raises(InvalidArgumentError, match="got none for 0"):
        _C.stitch_neighbors(torch.tensor([1, 1, 2]), offsets, good)
    with pytest.raises(InvalidArgumentError, match=r"positions\[2\]=3"):
        _C.stitch_neighbors(torch.tensor([1, 0, 3]), offsets, good)
    with pytest.raises(InvalidArgumentError, match="run from 0"):
        _C.stitch_neighbors(positions, torch.tensor([0, 1, 2]), good)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_scatter_rows(dtype: torch.dtype, shape: tuple[int, ...], index_dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    out = torch.randint(0, 2, (9000, *shape), generator=generator).to(dtype)
    rows = torch.randint(0, 2, (6000, *shape), generator=generator).to(dtype)
    positions = torch.randperm(9000, generator=generator)[:6000]
    expected = out.clone()
    expected[positions] = rows
    _C.scatter_rows(out, positions.to(index_dtype), rows, _C.ThreadPool(2))
    assert torch.equal(out, expected)


@given(ids=st.lists(st.integers(0, 96), max_size=300), asked=st.sets(st.integers(0, 4)), threads=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_located_rows_lie_at_hand_or_in_the_answer(ids: list[int], asked: set[int], threads: int) -> None:
    """Rows of those at hand as the book has them, of the others as they stand in the list that is asked for."""
    book = _C.PartitionBook.permuted(97, 5, 3)
    whole = torch.tensor(ids, dtype=torch.int64)
    pool = _C.ThreadPool(threads) if threads else None
    owners, rows, wanted, positions, offsets = map(
        from_dlpack, _C.locate_rows(book, whole, [p in asked for p in range(5)], pool)[:5]
    )
    expected_owners, expected_rows = map(from_dlpack, book.locate(whole))
    assert torch.equal(owners, expected_owners)
    assert torch.equal(wanted, whole[positions])
    for p in range(5):
        places = torch.nonzero(owners == p).flatten()
        bucket = slice(int(offsets[p]), int(offsets[p + 1]))
        assert positions[bucket].tolist() == (places.tolist() if p in asked else [])
        here = torch.arange(len(places)) if p in asked else expected_rows[places]
        assert torch.equal(rows[places], here)


@given(
    ids=st.lists(st.integers(0, 96), max_size=300),
    copied=st.sets(st.integers(0, 96), min_size=1),
    is_turned=st.booleans(),
    threads=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_nobody_is_asked_for_what_is_copied(ids: list[int], copied: set[int], is_turned: bool, threads: int) -> None:
    """Copies of rows at hand are not looked at, those of others have the number of partitions as their owner."""
    book = _C.PartitionBook.permuted(97, 5, 3)
    asked = [False, True, True, False, True]
    whole, pool = torch.tensor(ids, dtype=torch.int64), _C.ThreadPool(threads) if threads else None
    kept = torch.tensor(sorted(copied))
    rows_of_copies = torch.arange(len(kept)).flip(0) if is_turned else None
    copies = _C.SortedIds(kept), rows_of_copies
    plain_owners = from_dlpack(book.locate(whole)[0])
    is_copy = torch.tensor(asked)[plain_owners.long()] & torch.isin(whole, kept)
    expected = torch.where(is_copy, 5, plain_owners)
    places = torch.searchsorted(kept, whole[is_copy])
    for found in (
        _C.locate_rows(book, whole, asked, pool, *copies),
        _C.locate_owned(
            plain_owners, whole, [None if a else _every(book, p) for p, a in enumerate(asked)], pool, *copies
        ),
    ):
        owners, rows, wanted, positions, offsets = map(from_dlpack, found[:5])
        assert torch.equal(owners, expected.int())
        assert torch.equal(rows[is_copy], len(kept) - 1 - places if is_turned else places)
        assert torch.equal(wanted, whole[positions])
        assert offsets.tolist() == [int((expected[positions] < p).sum()) for p in range(6)]
        is_asked = torch.tensor([*asked, False])[expected.long()]
        assert sorted(positions.tolist()) == torch.nonzero(is_asked).flatten().tolist()
        assert torch.equal(wanted[rows[is_asked] + offsets[expected[is_asked].long()]], whole[is_asked])
    assert torch.equal(plain_owners, from_dlpack(book.locate(whole)[0]))  # those that are known are not written to


@given(
    lists=st.lists(st.lists(st.integers(0, 96), max_size=80), min_size=1, max_size=5), asked=st.sets(st.integers(0, 4))
)
@settings(max_examples=60, deadline=None)
def test_lookups_ask_together_for_each_id_once(lists: list[list[int]], asked: set[int]) -> None:
    """In the order in which ids first come; what lies at hand stays where it is."""
    book = _C.PartitionBook.permuted(97, 5, 3)
    found = [
        tuple(
            map(
                from_dlpack,
                _C.locate_rows(book, torch.tensor(ids, dtype=torch.int64), [p in asked for p in range(5)])[:5],
            )
        )
        for ids in lists
    ]
    before = [rows.clone() for _, rows, *_ in found]
    rows_of, ids, offsets = _C.ask_once([lookup[1:] for lookup in found])
    together, bounds = from_dlpack(ids), from_dlpack(offsets).tolist()
    wanted = [each for ids in lists for each in ids]
    for p in range(5):
        own = [
            each
            for each in dict.fromkeys(wanted)
            if p in asked and int(from_dlpack(book.locate(torch.tensor([each]))[0])) == p
        ]
        assert together[bounds[p] : bounds[p + 1]].tolist() == own
    for ids, (owners, old, *_), rows, unchanged in zip(lists, found, map(from_dlpack, rows_of), before, strict=True):
        for i, owner in enumerate(owners.tolist()):
            expected = together[bounds[owner] + int(rows[i])] if owner in asked else old[i]
            assert (ids[i] if owner in asked else int(rows[i])) == int(expected)
        assert torch.equal(old, unchanged)


def test_what_is_no_lookup_is_not_asked() -> None:
    def vector(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    good = vector(0, 0), vector(5), vector(1), vector(0, 1)
    _C.ask_once([good])
    for bad, message in (
        ((good[0], good[1], vector(2), good[3]), r"positions\[0\]: 2 is outside \[0, 2\)"),
        ((good[0], good[1], vector(-1), good[3]), r"positions\[0\]: -1 is outside"),
        ((good[0], good[1], vector(), good[3]), "positions"),
        ((good[0], good[1], good[2], vector(0, 2)), "offsets: expected to run from 0 to the number of ids, 1"),
        ((good[0], good[1], good[2], vector(0, 3, 1)), "offsets"),
        ((good[0].int(), *good[1:]), "rows"),
        ((good[0], vector(-1), *good[2:]), "ids: expected none below 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            _C.ask_once([good, bad])
    with pytest.raises(InvalidArgumentError, match="lookups"):
        _C.ask_once([])


def _every(book: _C.PartitionBook, partition: int) -> _C.SortedIds:
    return _C.SortedIds(from_dlpack(book.global_ids(partition)).sort().values)


def test_locate_rows_checks() -> None:
    book = _C.PartitionBook.permuted(10, 2, 3)
    with pytest.raises(InvalidArgumentError, match="is_asked: expected one entry for each of 2 partitions, got 1"):
        _C.locate_rows(book, torch.tensor([1]), [True])
    with pytest.raises(UnknownIdError):
        _C.locate_rows(book, torch.tensor([1, 10]), [True, False])
    with pytest.raises(InvalidArgumentError, match="copy_rows"):
        _C.locate_rows(
            book, torch.tensor([1]), [True, False], None, _C.SortedIds(torch.tensor([1, 2])), torch.tensor([0])
        )


def test_scatter_rows_checks() -> None:
    out = torch.zeros(4, 3)
    with pytest.raises(UnknownIdError, match=r"positions\[0\]=4: expected 0 <= position < 4"):
        _C.scatter_rows(out, torch.tensor([4]), torch.zeros(1, 3))
    with pytest.raises(UnknownIdError, match=r"positions\[0\]=-1"):
        _C.scatter_rows(out, torch.tensor([-1]), torch.zeros(1, 3))
    with pytest.raises(InvalidArgumentError, match="dtype of out, float32, got float64"):
        _C.scatter_rows(out, torch.tensor([1]), torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(InvalidArgumentError, match="shape of out"):
        _C.scatter_rows(out, torch.tensor([1]), torch.zeros(1, 2))
    with pytest.raises(InvalidArgumentError, match="expected 2 rows"):
        _C.scatter_rows(out, torch.tensor([1, 2]), torch.zeros(1, 3))
