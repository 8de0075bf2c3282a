"""Rows that other partitions answered lately, which batches that follow want again where they reach much of a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ... import _C
from ...data.feature import Feature

_NUM_BLOCKS = 8  # the oldest goes as a whole; each is a place more that every gather may read from
_MOST_ROWS = (1 << 31) - 1 - _NUM_BLOCKS  # that can be kept
# Of the rows that others own, how much there must be room for, that keeping those of late pays: where batches want rows
# evenly, looking for what is not there costs as much with less.
_LEAST_SHARE = 1 / 4
_BYTES_OF_A_PLACE = 40  # of each row that is kept: its id, and what finds it


@dataclass(frozen=True)
class RecentRows:
    """The rows that were kept last, of stores whose rows are looked up by the same ids.

    Attributes:
        stores: their names, in the order of the rows that ``native`` is given.
        native: them.
    """

    stores: tuple[str, ...]
    native: _C.RecentRows


@dataclass(frozen=True)
class AskedRows:
    """Rows that others are asked for, of stores whose rows are looked up by the same ids.

    Attributes:
        stores: their names.
        row_bytes: of a row of each of them together.
        num_ids: of the book of these stores.
        count: of the ids that others may be asked for.
    """

    stores: Sequence[str]
    row_bytes: int
    num_ids: int
    count: int

    @property
    def in_whole_blocks(self) -> int:
        """Rows of blocks that hold all of them, as all have the same size."""
        return -(-max(self.count, 0) // _NUM_BLOCKS) * _NUM_BLOCKS if self.row_bytes else 0


def group_stores(
    stores: Iterable[str],
    alike: Callable[[str], Hashable],
    describe: Callable[[str], tuple[int, int]],
    rows: Mapping[str, Feature],
) -> list[AskedRows]:
    """The rows of stores, where those that are ``alike`` are looked up by the same ids.

    Args:
        stores: their names.
        alike: has equal values for them.
        describe: of a store, ``num_ids`` and ``count``, see ``AskedRows``.
        rows: by store.
    """
    groups: dict[Hashable, list[str]] = {}
    for name in sorted(stores):
        groups.setdefault(alike(name), []).append(name)
    return [
        AskedRows(names, sum(rows[name].row_bytes for name in names), *describe(names[0])) for names in groups.values()
    ]


def keep_of(asked: Sequence[AskedRows], nbytes: int) -> dict[str, RecentRows]:
    """By store, what its rows are to be kept in: of all that are asked for the same share.

    Nothing where a quarter of them does not find room.

    Args:
        asked: the rows.
        nbytes: that they may take.
    """
    every = _bytes_of_all(asked)
    recent: dict[str, RecentRows] = {}
    for of in asked if most_used(asked, nbytes) else ():
        most = of.in_whole_blocks if nbytes >= every else of.in_whole_blocks * nbytes // every
        if block_rows := min(most, _MOST_ROWS) // _NUM_BLOCKS:
            native = _C.RecentRows(len(of.stores), of.num_ids, block_rows, _NUM_BLOCKS)
            recent |= dict.fromkeys(of.stores, RecentRows(tuple(of.stores), native))
    return recent


def most_used(asked: Sequence[AskedRows], nbytes: int) -> int:
    """Of so many bytes, how many ``keep_of`` has rows take at most."""
    every = _bytes_of_all(asked)
    return min(nbytes, every) if nbytes >= _LEAST_SHARE * every else 0


def _bytes_of_all(asked: Sequence[AskedRows]) -> int:
    return sum((of.row_bytes + _BYTES_OF_A_PLACE) * of.in_whole_blocks for of in asked)
