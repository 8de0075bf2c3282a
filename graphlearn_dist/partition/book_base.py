"""What every partition book can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch

from ..core import check_index_vector
from ..errors import InvalidArgumentError

if TYPE_CHECKING:
    from typing_extensions import Self

    from .partition_book import BookId2Index, OffsetId2Index


class PartitionBook(ABC):
    """Which partition owns an id, and where it stands among that partition's rows.

    Ids are global, in ``[0, num_ids)``. ``book[ids]`` gives owners. A book is immutable; it is seen from one
    partition, ``partition_idx``, and ``for_partition`` gives the view of another over the same memory.
    """

    def __getitem__(self, indices: torch.Tensor) -> torch.Tensor:
        """Owners of ids (int32 or int64 ``[n]``), as int64 ``[n]``; UnknownIdError for an id outside the book."""
        owners, _ = self.native.locate(check_index_vector(indices, "ids"))
        return torch.utils.dlpack.from_dlpack(owners).long()

    @property
    @abstractmethod
    def native(self) -> Any:
        """The ``_C.PartitionBook``, made on first use (it does not travel between processes)."""

    @property
    @abstractmethod
    def partition_idx(self) -> int:
        """The partition that this book is seen from."""

    @property
    @abstractmethod
    def num_partitions(self) -> int:
        """Number of partitions, empty ones included."""

    @abstractmethod
    def for_partition(self, partition_idx: int) -> Self:
        """The same book seen from another partition."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """A description in JSON's types; ``partition_book.from_dict`` reads it. Tables are not part of it."""

    @property
    def num_ids(self) -> int:
        """Number of ids over all partitions."""
        return int(self.native.num_ids)

    @property
    def offset(self) -> int:
        """What turns an id of this partition into a local row by subtraction; 0 where it takes more than that."""
        return 0

    @property
    def id2index(self) -> BookId2Index | OffsetId2Index:
        """Maps ids of this partition to local rows."""
        from .partition_book import BookId2Index

        return BookId2Index(self)

    def partition_size(self, partition_idx: int | None = None) -> int:
        """Number of ids of a partition (None: of this one)."""
        return int(self.native.size(self.partition_idx if partition_idx is None else partition_idx))

    def local_ids(self, partition_idx: int | None = None) -> torch.Tensor:
        """Ids of a partition (None: of this one) in the order of its local rows, int64 ``[size]``."""
        index = self.partition_idx if partition_idx is None else partition_idx
        return torch.utils.dlpack.from_dlpack(self.native.global_ids(index))


def check_partition_idx(partition_idx: int, num_partitions: int) -> int:
    """Returns ``partition_idx``, or raises InvalidArgumentError unless it lies in ``[0, num_partitions)``."""
    if not isinstance(partition_idx, int) or not 0 <= partition_idx < num_partitions:
        raise InvalidArgumentError(f"partition_idx: expected 0 to {num_partitions - 1}, got {partition_idx!r}")
    return partition_idx
