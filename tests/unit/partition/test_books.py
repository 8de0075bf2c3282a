"""Python partition books."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from graphlearn_dist.partition import (
    GLTPartitionBook,
    OffsetId2Index,
    PartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
)
from graphlearn_dist.partition.partition_book import from_dict

OWNERS = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(5))
ORDER = ZoneOrder(
    torch.randperm(60, generator=torch.Generator().manual_seed(6)).int(), torch.tensor([0, 9, 9, 30, 41, 60])
)
MAKERS: dict[str, Callable[[int], PartitionBook]] = {
    "range": lambda p: RangePartitionBook([(0, 10), (10, 10), (10, 60)], p),
    "permuted": lambda p: PermutedPartitionBook(60, 3, 12345, p),
    "table": lambda p: TablePartitionBook.from_owners(OWNERS, 3, p),
    "zones": lambda p: ZonePartitionBook(ORDER, torch.tensor([2, 0, 1, 2, 0]), 3, p),
    "glt": lambda p: GLTPartitionBook(OWNERS, p),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_owners_rows_and_local_ids_agree(kind: str) -> None:
    everything = torch.arange(60)
    owners = MAKERS[kind](0)[everything]
    assert owners.dtype == torch.int64
    seen = []
    for p in range(3):
        book = MAKERS[kind](p)
        assert (book.partition_idx, book.num_partitions, book.num_ids) == (p, 3, 60)
        ids = book.local_ids()
        assert len(ids) == book.partition_size()
        assert torch.equal(ids.sort().values, everything[owners == p])
        assert torch.equal(book.id2index[ids], torch.arange(len(ids)))
        assert torch.equal(MAKERS[kind](0).for_partition(p).local_ids(), ids)
        assert torch.equal(MAKERS[kind](0).local_ids(p), ids)
        seen.append(ids)
    assert torch.equal(torch.cat(seen).sort().values, everything)


@pytest.mark.parametrize("kind", MAKERS)
def test_survives_pickle(kind: str) -> None:
    book = MAKERS[kind](2)
    _ = book.native
    copy = pickle.loads(pickle.dumps(book))
    assert type(copy) is type(book)
    assert copy.partition_idx == 2
    assert torch.equal(copy.local_ids(), book.local_ids())


@pytest.mark.parametrize("kind", ["range", "permuted", "table", "zones"])
def test_description_gives_the_book_back(kind: str) -> None:
    book = MAKERS[kind](1)
    copy = from_dict(book.to_dict(), 1, book.tables)
    assert type(copy) is type(book)
    assert torch.equal(copy.local_ids(), book.local_ids())


@pytest.mark.parametrize("kind", ["range", "permuted", "table"])
def test_unknown_ids_are_errors(kind: str) -> None:
    book = MAKERS[kind](0)
    for wrong in (-1, 60):
        with pytest.raises(UnknownIdError, match=rf"ids\[1\]={wrong}"):
            book[torch.tensor([0, wrong])]
    foreign = book.local_ids(2)[:1]
    with pytest.raises(UnknownIdError, match=rf"ids\[0\]={int(foreign)}"):
        book.id2index[foreign]


@given(num_ids=st.integers(0, 200), parts=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_near_equal_ranges(num_ids: int, parts: int) -> None:
    sizes = [end - begin for begin, end in RangePartitionBook.near_equal(num_ids, parts).partition_ranges]
    assert sum(sizes) == num_ids
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_range_book_as_in_glt() -> None:
    book = RangePartitionBook([(0, 10), (10, 20), (20, 30)], 1)
    assert book[torch.tensor([0, 9, 10, 29])].tolist() == [0, 0, 1, 2]
    assert isinstance(book.id2index, OffsetId2Index)
    assert book.id2index[torch.tensor([10, 19])].tolist() == [0, 9]
    assert book.offset == 10
    assert book.device == torch.device("cpu")
    assert torch.equal(book.id_filter(book, 2), torch.arange(20, 30))
    for wrong in (9, 20):
        with pytest.raises(UnknownIdError, match=rf"ids\[0\]={wrong}: expected 10 <= id < 20"):
            book.id2index[torch.tensor([wrong])]


@pytest.mark.parametrize("offset", [0, 10])
def test_rows_of_an_offset_are_a_tensor_of_their_own(offset: int) -> None:
    index = OffsetId2Index(offset, 20)
    ids = torch.tensor([offset + 3, offset + 19])
    rows = index[ids]
    rows += 100
    assert ids.tolist() == [offset + 3, offset + 19]
    assert index[ids.numpy()].tolist() == [3, 19]
    assert index[ids[:0]].tolist() == []
    assert OffsetId2Index(offset)[ids + 1000].tolist() == [1003, 1019]


def test_glt_book_is_a_tensor() -> None:
    book = GLTPartitionBook(torch.tensor([1, 0, 1, 2]))
    assert isinstance(book, torch.Tensor)
    assert book[torch.tensor([0, 3])].tolist() == [1, 2]
    assert type(book[:2]) is torch.Tensor
    assert book.local_ids(1).tolist() == [0, 2]


def test_table_uses_the_smallest_dtypes() -> None:
    assert TablePartitionBook.from_owners(torch.tensor([0, 255]), 256).owners.dtype == torch.uint8
    book = TablePartitionBook.from_owners(torch.tensor([0, 256]), 257)
    assert (book.owners.dtype, book.rows.dtype) == (torch.uint16, torch.int32)
    assert book[torch.tensor([0, 1])].tolist() == [0, 256]


def test_bad_arguments() -> None:
    with pytest.raises(InvalidArgumentError, match=r"partition_ranges\[1\]: expected to begin at 10"):
        RangePartitionBook([(0, 10), (11, 20)], 0)
    with pytest.raises(InvalidArgumentError, match="at least one range"):
        RangePartitionBook([], 0)
    with pytest.raises(InvalidArgumentError, match="partition_idx: expected 0 to 1, got 2"):
        RangePartitionBook([(0, 10), (10, 20)], 2)
    with pytest.raises(InvalidArgumentError, match="key"):
        PermutedPartitionBook(10, 2, -1)
    with pytest.raises(InvalidArgumentError, match=r"owners\[1\]=2: expected 0 <= owner < 2"):
        TablePartitionBook.from_owners(torch.tensor([0, 2]), 2)
    with pytest.raises(InvalidArgumentError, match="integer vector"):
        TablePartitionBook.from_owners(torch.tensor([0.5]), 2)
    for description in ({"kind": "odd"}, {"kind": "permuted"}, {}, {"kind": "table", "num_partitions": 2}):
        with pytest.raises(PartitionFormatError, match="partition book"):
            from_dict(description)


def test_rows_of_zones_are_in_the_order_of_places() -> None:
    by_place = torch.argsort(ORDER.place)
    book = ZonePartitionBook(ORDER, torch.tensor([2, 0, 1, 2, 0]), 3)
    zones = [by_place[begin:end] for begin, end in pairwise(ORDER.bounds.tolist())]
    assert torch.equal(book.local_ids(0), torch.cat([zones[1], zones[4]]))
    assert torch.equal(book.local_ids(1), zones[2])
    assert torch.equal(book.local_ids(2), torch.cat([zones[0], zones[3]]))


@pytest.mark.parametrize(
    ("place", "bounds", "owners", "message"),
    [
        ([0, 1, 1], [0, 3], [0], r"place\[2\]=1: expected a permutation"),
        ([0, 1, 3], [0, 3], [0], r"place\[2\]=3: expected 0 <= place < 3"),
        ([0, 1, 2], [0, 2, 3], [0, 2], r"owners\[1\]=2: expected 0 <= owner < 2"),
        ([0, 1, 2], [0, 2, 3], [0], r"bounds: expected 2 of 1 zones"),
    ],
)
def test_bad_zones(place: list[int], bounds: list[int], owners: list[int], message: str) -> None:
    order = ZoneOrder(torch.tensor(place), torch.tensor(bounds))
    with pytest.raises(InvalidArgumentError, match=message):
        ZonePartitionBook(order, torch.tensor(owners), 2)
