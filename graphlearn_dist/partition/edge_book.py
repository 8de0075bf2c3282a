"""Edge features that lie with their edges: no table of edge ids anywhere, and no formula of them either."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from .. import _C
from ..core import check_index_vector, to_tensor
from ..data import shared_memory
from ..errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from .partition_book import (
    PartitionBook,
    PermutedPartitionBook,
    RangePartitionBook,
    TablePartitionBook,
    ZonePartitionBook,
    check_partition_idx,
    from_dict,
)

if TYPE_CHECKING:
    from .partition_book import BookId2Index

OpenIds: TypeAlias = Callable[[int], "torch.Tensor | None"]


class _RowsOfOwnEdges:
    """Maps ids of a book's own partition to local rows."""

    def __init__(self, book: OwnedEdgesBook) -> None:
        self.book = book

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.book.rows_of(ids, self.book.partition_idx)

    def to(self, device: torch.device | str) -> _RowsOfOwnEdges:
        """Itself: lookups happen on the host."""
        return self


class OwnedEdgesBook(PartitionBook):
    """Each edge's features lie in the partition that has the edge: that of its source, or of its target.

    Who samples an edge knows where: the node book says who has the node in whose row it lies. From the edge id alone
    only those partitions can tell whose sorted edge ids are at hand, as this book's own are; of others ask them
    (``ServedDataset.look_up`` does). Rows of a partition are in the order of its edge ids, ascending.

    Args:
        num_ids: edge ids are below this; not each need be an edge's.
        sizes: number of edges of each partition.
        partition_idx: the partition that the book is seen from.
        ids: by partition, its edge ids, ascending int32 or int64 ``[size]``, as far as they are at hand.
        open_ids: gives those of a partition that is not in ``ids``, when first asked for; None where they are not here.
    """

    def __init__(
        self,
        num_ids: int,
        sizes: Sequence[int],
        partition_idx: int = 0,
        ids: Mapping[int, torch.Tensor] | None = None,
        open_ids: OpenIds | None = None,
    ) -> None:
        self._num_ids = num_ids
        self._sizes = tuple(sizes)
        self._partition_idx = check_partition_idx(partition_idx, len(self._sizes))
        self._ids: dict[int, torch.Tensor | None] = dict(ids or {})
        self._open_ids = open_ids
        self._lists: dict[int, _C.SortedIds] = {}

    @property
    def native(self) -> Any:
        """There is none: an id alone does not say where it lies."""
        raise InvalidArgumentError(
            "edge_pb: edge features lie with their edges; no formula and no table has owners, unless save_edge_pb or "
            "edge_feat_pb of a partitioner makes one"
        )

    @property
    def partition_idx(self) -> int:
        return self._partition_idx

    @property
    def num_partitions(self) -> int:
        return len(self._sizes)

    @property
    def num_ids(self) -> int:
        return self._num_ids

    @property
    def knows_all(self) -> bool:
        """Whether it counts the edges of all partitions, and not those of one alone, which knows of no others."""
        return self.num_partitions == 1 or sum(size > 0 for size in self._sizes) > 1

    def for_partition(self, partition_idx: int) -> OwnedEdgesBook:
        book = OwnedEdgesBook(self._num_ids, self._sizes, partition_idx, open_ids=self._open_ids)
        book._ids, book._lists = self._ids, self._lists
        return book

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "edges", "num_ids": self._num_ids, "sizes": list(self._sizes)}

    @property
    def id2index(self) -> BookId2Index:
        return _RowsOfOwnEdges(self)  # type: ignore[return-value]  # the same by another way

    def partition_size(self, partition_idx: int | None = None) -> int:
        return self._sizes[self._partition_idx if partition_idx is None else partition_idx]

    def ids_at_hand(self, partition_idx: int) -> torch.Tensor | None:
        """A partition's edge ids, ascending; None where they are not here."""
        if partition_idx not in self._ids:
            self._ids[partition_idx] = None if self._open_ids is None else self._open_ids(partition_idx)
        return self._ids[partition_idx]

    def share_ids(self) -> torch.Tensor | None:
        """Its own partition's ids, moved to memory that other processes can map; None where they are not here."""
        ids = self.ids_at_hand(self._partition_idx)
        if ids is not None:
            ids = self._ids[self._partition_idx] = shared_memory.share(ids)
            self._lists.pop(self._partition_idx, None)  # it reads the ids where they were
        return ids

    def local_ids(self, partition_idx: int | None = None) -> torch.Tensor:
        index = self._partition_idx if partition_idx is None else partition_idx
        ids = self.ids_at_hand(index)
        if ids is None:
            raise InvalidArgumentError(f"partition_idx: the edges of partition {index} are not on this machine")
        return ids.long()

    def rows_of(self, ids: torch.Tensor, partition_idx: int) -> torch.Tensor:
        """Local rows of ids (int ``[n]``), int64; ``UnknownIdError`` for one that is not the partition's."""
        rows = self._find(ids, partition_idx)
        if rows.numel() and int(rows.min()) < 0:
            place = int(rows.argmin())
            raise UnknownIdError(f"ids[{place}]: edge {int(ids[place])} is not one of partition {partition_idx}")
        return rows

    def owned(self, ids: torch.Tensor, partition_idx: int) -> torch.Tensor:
        """Whether a partition has each edge (int ``[n]``), bool."""
        return self._find(ids, partition_idx) >= 0

    def sorted_ids(self, partition_idx: int, pool: _C.ThreadPool | None = None) -> _C.SortedIds:
        """A partition's edge ids to be searched; an index of an eighth of their bytes is built when first asked for.

        Raises:
            InvalidArgumentError: they are not on this machine.
            PartitionFormatError: they do not ascend.
        """
        if partition_idx not in self._lists:
            own = self.ids_at_hand(partition_idx)
            if own is None:
                raise InvalidArgumentError(f"ids: the edges of partition {partition_idx} are not on this machine")
            self._lists[partition_idx] = _C.SortedIds(own, pool)
        return self._lists[partition_idx]

    def _find(self, ids: torch.Tensor, partition_idx: int) -> torch.Tensor:
        return to_tensor(self.sorted_ids(partition_idx).find(check_index_vector(ids, "ids")))

    def as_tensor(self) -> torch.Tensor:
        """The owner of each id, int64 ``[num_ids]``; -1 for those that are no edge's.

        Raises:
            InvalidArgumentError: the edges of some partition are not on this machine.
        """
        owners = torch.full((self._num_ids,), -1, dtype=torch.int64)
        for partition in range(self.num_partitions):
            owners[self.local_ids(partition)] = partition
        return owners

    def _owners_of(self, ids: torch.Tensor) -> torch.Tensor:
        """Owners of ids, from the partitions that are at hand.

        Raises:
            UnknownIdError: no partition has an edge of such an id.
            InvalidArgumentError: none of those at hand has, and others are not here.
        """
        owners, elsewhere = self.owners_at_hand(ids)
        left = (owners < 0).nonzero().view(-1)
        if left.numel():
            place = int(left[0])
            if elsewhere and 0 <= int(ids[place]) < self._num_ids:
                raise InvalidArgumentError(
                    f"ids[{place}]: edge {int(ids[place])} is in none of the partitions on this machine, and "
                    f"{elsewhere} are elsewhere: an edge lies with its source or target node, which the node book "
                    "knows; save_edge_pb makes a book of edge ids"
                )
            raise self.unknown(ids, place)
        return owners

    @staticmethod
    def unknown(ids: torch.Tensor, place: int) -> UnknownIdError:
        """The error where no partition has an edge of the id at a place."""
        return UnknownIdError(f"ids[{place}]: no partition has an edge {int(ids[place])}")

    def owners_at_hand(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """The owner of each id (int ``[n]``), int64, as far as partitions at hand have it, else -1; and which
        partitions are elsewhere, empty where all ids were found."""
        owners = torch.full((ids.numel(),), -1, dtype=torch.int64)
        others = [p for p in range(self.num_partitions) if p != self._partition_idx]
        elsewhere = []
        for partition in (self._partition_idx, *others):
            left = (owners < 0).nonzero().view(-1)
            if not left.numel():
                return owners, []
            if self.ids_at_hand(partition) is None:
                elsewhere.append(partition)
                continue
            owners[left[self.owned(ids[left], partition)]] = partition
        return owners, elsewhere if bool((owners < 0).any()) else []

    def __getstate__(self) -> dict[str, Any]:
        self.ids_at_hand(self._partition_idx)
        ids = {p: i for p, i in self._ids.items() if i is not None}
        return {**self.__dict__, "_open_ids": None, "_ids": ids, "_lists": {}}


EdgeBook: TypeAlias = (
    "RangePartitionBook | PermutedPartitionBook | TablePartitionBook | ZonePartitionBook | OwnedEdgesBook"
)


def edge_book_from_dict(
    description: Mapping[str, Any],
    partition_idx: int = 0,
    tables: tuple[torch.Tensor, ...] = (),
    *,
    ids: Mapping[int, torch.Tensor] | None = None,
    open_ids: OpenIds | None = None,
) -> EdgeBook:
    """The book of edge features that ``to_dict`` described; see ``from_dict`` and ``OwnedEdgesBook``.

    Raises:
        PartitionFormatError: the description is not one that this version knows.
    """
    if description.get("kind") != "edges":
        return from_dict(description, partition_idx, tables)
    try:
        sizes = [int(size) for size in description["sizes"]]
        return OwnedEdgesBook(int(description["num_ids"]), sizes, partition_idx, ids, open_ids)
    except (KeyError, TypeError, ValueError, InvalidArgumentError) as error:
        raise PartitionFormatError(f"partition book {dict(description)!r}: {error!r}") from error


def default_edge_book(num_ids: int, part_counts: Sequence[int], open_ids: OpenIds | None = None) -> EdgeBook:
    """Where edge features lie unless another book is given: with their edges. One partition has all ids in order."""
    if len(part_counts) == 1:
        return RangePartitionBook.near_equal(num_ids, 1)
    return OwnedEdgesBook(num_ids, part_counts, open_ids=open_ids)
