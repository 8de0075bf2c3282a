"""Native partition books against a brute-force map from id to (owner, row)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

from_dlpack = torch.utils.dlpack.from_dlpack


def table_book(owners: torch.Tensor, parts: int, row_dtype: torch.dtype = torch.int64) -> _C.PartitionBook:
    rows = torch.zeros(len(owners), dtype=row_dtype)
    for p in range(parts):
        mine = owners.long() == p
        rows[mine] = torch.arange(int(mine.sum()), dtype=row_dtype)
    return _C.PartitionBook.table(owners, rows, parts)


def check_book(book: _C.PartitionBook, num_ids: int) -> None:
    """Every id has one owner and row, and global_ids, size, locate and local_rows agree."""
    assert book.num_ids == num_ids
    owners, rows = map(from_dlpack, book.locate(torch.arange(num_ids)))
    assert owners.dtype == torch.int32
    assert rows.dtype == torch.int64
    total = 0
    for p in range(book.num_partitions):
        ids = from_dlpack(book.global_ids(p))
        assert len(ids) == book.size(p)
        assert torch.equal(owners[ids], torch.full((len(ids),), p, dtype=torch.int32))
        assert torch.equal(rows[ids], torch.arange(len(ids)))
        assert torch.equal(from_dlpack(book.local_rows(ids, p)), torch.arange(len(ids)))
        assert torch.equal(from_dlpack(book.local_rows(ids.int(), p)), torch.arange(len(ids)))
        total += len(ids)
    assert total == num_ids


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=70))
@settings(max_examples=60, deadline=None)
def test_range(sizes: list[int]) -> None:
    bounds = torch.tensor([0, *sizes]).cumsum(0)
    book = _C.PartitionBook.range(bounds)
    check_book(book, sum(sizes))
    expected = [p for p, size in enumerate(sizes) for _ in range(size)]
    assert from_dlpack(book.locate(torch.arange(sum(sizes)))[0]).tolist() == expected


@given(num_ids=st.integers(0, 3000), parts=st.integers(1, 70), key=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_permuted(num_ids: int, parts: int, key: int) -> None:
    book = _C.PartitionBook.permuted(num_ids, parts, key)
    check_book(book, num_ids)
    assert [book.size(p) for p in range(parts)] == [num_ids // parts + (p < num_ids % parts) for p in range(parts)]
    places = from_dlpack(_C.permute(torch.arange(num_ids), num_ids, key))
    starts = torch.tensor([book.size(p) for p in range(parts)]).cumsum(0)
    expected = torch.bucketize(places, starts, right=True)
    assert torch.equal(from_dlpack(book.locate(torch.arange(num_ids))[0]).long(), expected)


@pytest.mark.parametrize("owner_dtype", [torch.uint8, torch.uint16, torch.int32])
@pytest.mark.parametrize("row_dtype", [torch.int32, torch.int64])
def test_table(owner_dtype: torch.dtype, row_dtype: torch.dtype) -> None:
    owners = torch.randint(0, 5, (10_000,), generator=torch.Generator().manual_seed(1)).to(owner_dtype)
    book = table_book(owners, 5, row_dtype)
    check_book(book, len(owners))
    assert torch.equal(from_dlpack(book.locate(torch.arange(10_000))[0]), owners.int())


def test_table_outlives_the_tensors_it_borrows() -> None:
    book = table_book(torch.tensor([1, 0, 1], dtype=torch.uint8), 2)
    _ = [torch.full((3,), 9) for _ in range(100)]
    assert from_dlpack(book.locate(torch.arange(3))[1]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("parts", [1, 4, 40])
def test_threads_agree(parts: int) -> None:
    n = 30_000
    ids = torch.randint(0, n, (50_000,), generator=torch.Generator().manual_seed(2))
    owners = torch.arange(n).remainder(parts).to(torch.uint8)
    for book in (_C.PartitionBook.permuted(n, parts, 3), table_book(owners, parts)):
        expected = [from_dlpack(x) for x in book.locate(ids)]
        pool = _C.ThreadPool(3)
        assert all(torch.equal(from_dlpack(x), y) for x, y in zip(book.locate(ids, pool), expected, strict=True))
        assert torch.equal(from_dlpack(book.global_ids(0, pool)), from_dlpack(book.global_ids(0)))


def test_permuted_owners_look_random() -> None:
    # Chi-square of (owner of v, owner of v+1) over 16 cells: 15 degrees of freedom; 50 has p about 1e-5, key fixed.
    n, parts = 100_000, 4
    owners = from_dlpack(_C.PartitionBook.permuted(n, parts, 42).locate(torch.arange(n))[0]).long()
    cells = torch.bincount(owners[:-1] * parts + owners[1:], minlength=16).double()
    expected = (n - 1) / 16
    assert float(((cells - expected) ** 2 / expected).sum()) < 50


def test_unknown_ids_are_errors() -> None:
    book = _C.PartitionBook.range(torch.tensor([0, 4, 10]))
    with pytest.raises(UnknownIdError, match=r"ids\[2\]=10: no such id; expected 0 <= id < 10"):
        book.locate(torch.tensor([0, 9, 10]))
    with pytest.raises(UnknownIdError, match=r"ids\[0\]=-1"):
        book.locate(torch.tensor([-1], dtype=torch.int32))
    with pytest.raises(UnknownIdError, match=r"ids\[1\]=7: belongs to partition 1, not to partition 0"):
        book.local_rows(torch.tensor([3, 7]), 0)
    with pytest.raises(UnknownIdError, match=r"ids\[5000\]=-3"):
        book.locate(torch.cat([torch.zeros(5000, dtype=torch.int64), torch.tensor([-3])]))


def test_arguments_are_checked() -> None:
    make = _C.PartitionBook
    bad_bounds = [([1, 2], "bounds\\[0\\]"), ([0, 5, 4], "ascending"), ([0], "num_partitions"), ([], "num_partitions")]
    for bounds, text in bad_bounds:
        with pytest.raises(InvalidArgumentError, match=text):
            make.range(torch.tensor(bounds, dtype=torch.int64))
    with pytest.raises(InvalidArgumentError, match="num_ids"):
        make.permuted(-1, 2, 0)
    with pytest.raises(InvalidArgumentError, match="num_partitions"):
        make.permuted(10, 0, 0)
    with pytest.raises(InvalidArgumentError, match="expected 0 <= partition < 2, got 2"):
        make.permuted(10, 2, 0).size(2)
    with pytest.raises(InvalidArgumentError, match="one-dimensional"):
        make.permuted(10, 2, 0).locate(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(InvalidArgumentError, match="int32 or int64"):
        make.permuted(10, 2, 0).locate(torch.zeros(2))


def test_damaged_tables_are_refused() -> None:
    def table(owners: list[int], rows: list[int]) -> _C.PartitionBook:
        return _C.PartitionBook.table(torch.tensor(owners, dtype=torch.uint8), torch.tensor(rows), 2)

    with pytest.raises(InvalidArgumentError, match=r"owners\[1\]=2: expected 0 <= owner < 2"):
        table([0, 2], [0, 0])
    with pytest.raises(InvalidArgumentError, match=r"rows\[1\]=0: partition 0 has another id"):
        table([0, 0], [0, 0])
    with pytest.raises(InvalidArgumentError, match=r"rows\[0\]=2: expected 0 <= row < 2"):
        table([0, 0], [2, 0])
    with pytest.raises(InvalidArgumentError, match="as long as rows"):
        table([0, 0], [0])
    with pytest.raises(InvalidArgumentError, match="uint8, uint16 or int32"):
        _C.PartitionBook.table(torch.zeros(1), torch.zeros(1, dtype=torch.int64), 1)
