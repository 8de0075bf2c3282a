"""Which rows were answered lately: a ring of blocks, of which the oldest is used again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.dlpack import from_dlpack

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError

NUM_IDS = 97
PARTITIONS = 3
ASKED = [False, True, True]
BOOK = _C.PartitionBook.permuted(NUM_IDS, PARTITIONS, 3)


@given(
    calls=st.lists(st.lists(st.integers(0, NUM_IDS - 1), max_size=40), max_size=8),
    block_rows=st.integers(1, 9),
    num_blocks=st.integers(1, 4),
    copied=st.sets(st.integers(0, NUM_IDS - 1)),
    threads=st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_what_is_kept(calls: list[list[int]], block_rows: int, num_blocks: int, copied: set[int], threads: int) -> None:
    """Few slots for many ids, and many: both tables; nobody is asked for what is kept."""
    recent = _C.RecentIds(NUM_IDS, block_rows, num_blocks)
    copies = _C.SortedIds(torch.tensor(sorted(copied), dtype=torch.int64)) if copied else None
    pool = _C.ThreadPool(threads) if threads else None
    kept: dict[tuple[int, int], int] = {}
    filled: list[int] = []  # blocks, as they were begun
    for ids in calls:
        missing = [each for each in dict.fromkeys(ids) if each not in kept.values()]
        was_full, num_new = len(filled) > num_blocks, 0
        for block, first, is_begun, which in recent.keep(torch.tensor(ids, dtype=torch.int64)):
            if is_begun:
                kept = {place: each for place, each in kept.items() if place[0] != block}
                filled.append(block)
            for row, source in enumerate(from_dlpack(which).tolist()):
                assert (block, first + row) not in kept  # what a block holds is never overwritten
                assert ids[source] not in kept.values()
                kept[block, first + row] = ids[source]
                num_new += 1
        assert len(set(kept.values())) == len(kept)
        assert filled == [at % num_blocks for at in range(len(filled))]  # the oldest goes first
        if not was_full:  # then all get a place
            assert min(len(missing), block_rows * num_blocks) <= num_new <= block_rows * num_blocks
        every = torch.arange(NUM_IDS)
        *found, num_copied, num_recent = _C.locate_rows(BOOK, every, ASKED, pool, copies, None, recent)
        owners, rows, wanted, positions, offsets = map(from_dlpack, found)
        of_partition = from_dlpack(BOOK.locate(every)[0]).tolist()
        seen, places = [0, 0], {each: place for place, each in kept.items()}
        for each, (owner, row) in enumerate(zip(owners.tolist(), rows.tolist(), strict=True)):
            place = places.get(each)
            if not ASKED[of_partition[each]]:
                assert owner == of_partition[each]
            elif each in copied:
                assert (owner, row) == (PARTITIONS, sorted(copied).index(each))
                seen[0] += 1
            elif place is not None:
                assert (owner, row) == (PARTITIONS + 1 + place[0], place[1])
                seen[1] += 1
            else:
                assert (owner, int(wanted[offsets[owner] + row])) == (of_partition[each], each)
        assert [num_copied, num_recent] == seen
        assert torch.equal(wanted, every[positions])


def test_once_full_few_are_kept_of_many() -> None:
    """And some of what is asked for again and again."""
    recent = _C.RecentIds(10_000, 50, 4)
    recent.keep(torch.arange(200))
    recent.keep(torch.arange(200, 201))  # begins the oldest block anew
    taken = [sum(len(from_dlpack(which)) for *_, which in recent.keep(torch.arange(1000, 2000))) for _ in range(40)]
    assert all(0 <= count <= 150 for count in taken)
    assert 20 * 40 < sum(taken) < 80 * 40  # a block in each call, of what is not there yet


def test_ids_that_are_none_are_refused_and_nothing_is_kept() -> None:
    recent = _C.RecentIds(NUM_IDS, 4, 2)
    for wrong in (-1, NUM_IDS):
        with pytest.raises(InvalidArgumentError, match=rf"ids\[1\]={wrong}: expected 0 <= id < {NUM_IDS}"):
            recent.keep(torch.tensor([5, wrong]))
    assert len(recent.keep(torch.tensor([5]))) == 1
    with pytest.raises(InvalidArgumentError, match="ids"):
        recent.keep(torch.tensor([5.0]))
    with pytest.raises(UnknownIdError):
        _C.locate_rows(BOOK, torch.tensor([NUM_IDS]), ASKED, None, None, None, recent)
    with pytest.raises(InvalidArgumentError, match="recent: expected rows of 97 ids, as the book has, got 96"):
        _C.locate_rows(BOOK, torch.tensor([1]), ASKED, None, None, None, _C.RecentIds(96, 4, 2))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [((-1, 1, 1), "num_ids"), ((9, 0, 1), "block_rows"), ((9, 1, 0), "num_blocks"), ((9, 1 << 30, 4), "num_blocks")],
)
def test_sizes_that_are_none(wrong: tuple[int, int, int], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}: "):
        _C.RecentIds(*wrong)
