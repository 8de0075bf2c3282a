"""Where the rows of a lookup will be found, before anybody was asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ... import _C
from ...core import to_tensor
from .row_cache import CopyPlaces


@dataclass(frozen=True)
class LocatedRows:
    """The places of a list of ids.

    Attributes:
        owners: int32 ``[n]``, the partition of each, in the order of the list; their number for a copy.
        rows: int64 ``[n]``, its row there where the partition is at hand, or of the copy, else its place in the answer.
        ids: int64 ``[m]``, those to be asked for, grouped by owner.
        positions: int64 ``[m]``, where each of them stands in the list.
        offsets: int64 ``[num_partitions + 1]``, bounds of the groups.
        bounds: the same as a list.
    """

    owners: torch.Tensor
    rows: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor
    offsets: torch.Tensor
    bounds: list[int]

    @property
    def asked(self) -> list[int]:
        """The partitions that have to be asked."""
        return [at for at, (first, end) in enumerate(pairwise(self.bounds)) if first < end]

    def asked_of(self, partition: int) -> torch.Tensor:
        """The ids to ask a partition for."""
        return self.ids[self.bounds[partition] : self.bounds[partition + 1]]


def locate_rows(
    book: _C.PartitionBook,
    ids: torch.Tensor,
    is_asked: Sequence[bool],
    pool: _C.ThreadPool,
    copies: CopyPlaces | None = None,
) -> LocatedRows:
    """Finds the places of ids; ``is_asked`` says by partition whether it must be asked, unless there are copies.

    Raises:
        UnknownIdError: an id is outside the book.
    """
    owners, rows, asked, positions, offsets = map(
        to_tensor, _C.locate_rows(book, ids, is_asked, pool, *_native(copies))
    )
    return LocatedRows(owners, rows, asked, positions, offsets, offsets.tolist())


def locate_owned(
    owners: torch.Tensor,
    ids: torch.Tensor,
    at_hand: Sequence[_C.SortedIds | None],
    pool: _C.ThreadPool,
    copies: CopyPlaces | None = None,
) -> LocatedRows:
    """The same of ids whose owners (int32 ``[n]``) are known.

    Args:
        at_hand: by partition, its ids in the order of its rows; None where it must be asked.

    Raises:
        UnknownIdError: an id is not of its owner.
    """
    found = _C.locate_owned(owners, ids, at_hand, pool, *_native(copies))
    owners, rows, asked, positions, offsets = map(to_tensor, found)
    return LocatedRows(owners, rows, asked, positions, offsets, offsets.tolist())


def _native(copies: CopyPlaces | None) -> tuple[_C.SortedIds | None, torch.Tensor | None]:
    return (None, None) if copies is None else (copies.ids, copies.rows)
