"""Partition books: formulas (ranges, permuted ranges) where an assignment has one, tables where it has not."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .. import _C
from ..core import check_index_vector
from ..data import shared_memory
from ..data.zone_order import ZoneOrder
from ..errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ..utils.shown import shown
from ..utils.tensor import convert_to_tensor, host_tensor
from .tensor_use import OwnersAsTensor, ids_at, plain

if TYPE_CHECKING:
    from typing_extensions import Self


class PartitionBook(OwnersAsTensor):
    """Which partition owns an id, and where it stands among that partition's rows.

    Ids are global, in ``[0, num_ids)``. ``book[ids]`` gives owners. A book is immutable; it is seen from one
    partition, ``partition_idx``, and ``for_partition`` gives the view of another over the same memory.

    Where a program reads a tensor of owners, a book will do: it has the length, shape, comparisons and methods of one,
    and torch functions take it.
    """

    def __getitem__(self, indices: Any) -> torch.Tensor:
        """Owners of ids (int32 or int64 ``[n]``), as int64 ``[n]``; UnknownIdError for an id outside the book.

        Whatever else indexes a tensor ``[num_ids]`` (an int, a slice, a mask, ids of another shape) does here too.
        """
        ids, shape = ids_at(indices, self.num_ids)
        owners = self._owners_of(check_index_vector(ids, "ids"))
        return owners if shape is None else owners.reshape(shape)

    def _owners_of(self, ids: torch.Tensor) -> torch.Tensor:
        owners, _ = self.native.locate(ids)
        return torch.utils.dlpack.from_dlpack(owners).long()

    def as_tensor(self) -> torch.Tensor:
        """The owner of each id, int64 ``[num_ids]``, made anew."""
        return self._owners_of(torch.arange(self.num_ids))

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
    def tables(self) -> tuple[torch.Tensor, ...]:
        """What ``from_dict`` needs beside the description: vectors by id, none where the book is a formula."""
        return ()

    def share_tables(self) -> None:
        """Moves the tables to memory that other processes can map."""

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
        raise InvalidArgumentError(f"partition_idx: expected 0 to {num_partitions - 1}, got {shown(partition_idx)}")
    return partition_idx


class OffsetId2Index:
    """Maps the ids ``[offset, offset + size)`` to ``[0, size)``; ``size=None`` leaves the end open."""

    def __init__(self, offset: int, size: int | None = None) -> None:
        self.offset = offset
        self.size = size

    def is_identity_of(self, num_rows: int) -> bool:
        """Whether the ids of all of so many rows are their numbers."""
        return self.offset == 0 and (self.size is None or self.size >= num_rows)

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """Local rows of ``ids``, in their dtype; UnknownIdError for an id outside the range."""
        rows = ids - self.offset
        least, most = (0, -1) if 0 in rows.shape else (int(rows.min()), int(rows.max()))
        if least < 0 or (self.size is not None and most >= self.size):
            wrong = rows < 0 if self.size is None else (rows < 0) | (rows >= self.size)
            position = int(wrong.nonzero()[0, 0])
            end = "" if self.size is None else f" < {self.offset + self.size}"
            raise UnknownIdError(f"ids[{position}]={int(ids[position])}: expected {self.offset} <= id{end}")
        return rows

    def to(self, device: torch.device | str) -> OffsetId2Index:
        """Itself: there is nothing to move."""
        return self


class BookId2Index:
    """Maps ids of a book's own partition to local rows."""

    def __init__(self, book: PartitionBook) -> None:
        self.book = book

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        """Local rows int64 ``[n]``; UnknownIdError, naming the owner, for an id of another partition."""
        rows = self.book.native.local_rows(ids.contiguous(), self.book.partition_idx)
        return torch.utils.dlpack.from_dlpack(rows)

    def to(self, device: torch.device | str) -> BookId2Index:
        """Itself: lookups happen on the host."""
        return self


class _NativeBook(PartitionBook):
    """A book that makes its native form on first use and leaves it behind when pickled."""

    def __init__(self, num_partitions: int, partition_idx: int) -> None:
        self._num_partitions = num_partitions
        self._partition_idx = check_partition_idx(partition_idx, num_partitions)
        self._native: Any = None

    @abstractmethod
    def _make_native(self) -> Any:
        """The ``_C.PartitionBook`` of this book."""

    @property
    def native(self) -> Any:
        if self._native is None:
            self._native = self._make_native()
        return self._native

    @property
    def partition_idx(self) -> int:
        return self._partition_idx

    @property
    def num_partitions(self) -> int:
        return self._num_partitions

    def for_partition(self, partition_idx: int) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._partition_idx = check_partition_idx(partition_idx, self._num_partitions)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_dict()}, partition_idx={self.partition_idx})"


class RangePartitionBook(_NativeBook):
    """Contiguous ranges of ids.

    Args:
        partition_ranges: ``(begin, end)`` of each partition; they must follow one another from 0 on.
        partition_idx: the partition it is seen from.
    """

    def __init__(self, partition_ranges: Sequence[tuple[int, int]], partition_idx: int) -> None:
        if not partition_ranges:
            raise InvalidArgumentError("partition_ranges: expected at least one range, got none")
        end_before = 0
        for p, (begin, end) in enumerate(partition_ranges):
            if begin != end_before or end < begin:
                raise InvalidArgumentError(
                    f"partition_ranges[{p}]: expected to begin at {end_before} and not to end before it begins, "
                    f"got ({begin}, {end})"
                )
            end_before = int(end)
        super().__init__(len(partition_ranges), partition_idx)
        self._bounds = torch.tensor([0, *(int(end) for _, end in partition_ranges)])

    @classmethod
    def from_bounds(cls, bounds: Sequence[int], partition_idx: int = 0) -> RangePartitionBook:
        """From ``[0, end of partition 0, end of partition 1, ...]``."""
        return cls(list(pairwise(bounds)), partition_idx)

    @classmethod
    def near_equal(cls, num_ids: int, num_partitions: int, partition_idx: int = 0) -> RangePartitionBook:
        """``num_partitions`` ranges whose sizes differ by at most one, larger ones first."""
        size, extra = divmod(num_ids, num_partitions)
        return cls.from_bounds([p * size + min(p, extra) for p in range(num_partitions + 1)], partition_idx)

    def _make_native(self) -> Any:
        return _C.PartitionBook.range(self._bounds)

    @property
    def partition_bounds(self) -> torch.Tensor:
        """int64 ``[num_partitions + 1]``: 0, and where each partition ends."""
        return self._bounds

    @property
    def partition_ranges(self) -> list[tuple[int, int]]:
        """``(begin, end)`` of each partition."""
        bounds = self._bounds.tolist()
        return list(pairwise(bounds))

    @property
    def device(self) -> torch.device:
        """The host."""
        return self._bounds.device

    @property
    def offset(self) -> int:
        return int(self._bounds[self.partition_idx])

    @property
    def id2index(self) -> OffsetId2Index:
        return OffsetId2Index(self.offset, self.partition_size())

    def id_filter(self, node_pb: PartitionBook, partition_idx: int) -> torch.Tensor:
        """Ids that ``node_pb`` gives to ``partition_idx``, int64."""
        return node_pb.local_ids(partition_idx)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "range", "bounds": self._bounds.tolist()}


class PermutedPartitionBook(_NativeBook):
    """A random assignment without a table: near-equal ranges of a keyed bijection of ``[0, num_ids)``.

    Args:
        num_ids: number of ids.
        num_partitions: number of partitions; their sizes differ by at most one.
        key: any integer in ``[0, 2**64)``; the same key gives the same assignment everywhere and for ever.
        partition_idx: the partition it is seen from.
    """

    def __init__(self, num_ids: int, num_partitions: int, key: int, partition_idx: int = 0) -> None:
        if not 0 <= key < 1 << 64:
            raise InvalidArgumentError(f"key: expected 0 <= key < 2**64, got {key}")
        super().__init__(num_partitions, partition_idx)
        self._num_ids = int(num_ids)
        self.key = int(key)
        self._native = self._make_native()  # cheap, and checks the sizes

    def _make_native(self) -> Any:
        return _C.PartitionBook.permuted(self._num_ids, self._num_partitions, self.key)

    def to_dict(self) -> dict[str, Any]:
        # As text, because JSON readers elsewhere lose the low bits of 64-bit numbers.
        return {
            "kind": "permuted",
            "num_ids": self._num_ids,
            "num_partitions": self._num_partitions,
            "key": f"{self.key:#018x}",
        }


class TablePartitionBook(_NativeBook):
    """Any assignment.

    Args:
        owners: uint8, uint16 or int32 ``[num_ids]``; borrowed, may be memory-mapped.
        rows: int32 or int64 ``[num_ids]``, dense and distinct within each partition; borrowed likewise.
        num_partitions: number of partitions.
        partition_idx: the partition it is seen from.
    """

    def __init__(self, owners: torch.Tensor, rows: torch.Tensor, num_partitions: int, partition_idx: int = 0) -> None:
        super().__init__(num_partitions, partition_idx)
        self.owners = owners
        self.rows = rows
        self._native = self._make_native()  # reads the table once and checks it

    @classmethod
    def from_owners(
        cls, owners: torch.Tensor, num_partitions: int, partition_idx: int = 0, *, name: str = "owners"
    ) -> TablePartitionBook:
        """From the owner of each id (any integer dtype ``[num_ids]``), called ``name`` in errors; rows in the order of
        the ids."""
        owners = host_tensor(owners, name)
        if owners.dim() != 1 or owners.dtype.is_floating_point or owners.dtype.is_complex or owners.dtype == torch.bool:
            raise InvalidArgumentError(f"{name}: expected an integer vector, got {owners.dtype} {tuple(owners.shape)}")
        wide = owners.long()
        wrong = (wide < 0) | (wide >= num_partitions)
        if bool(wrong.any()):
            node = int(wrong.nonzero()[0, 0])
            raise InvalidArgumentError(f"{name}[{node}]={int(wide[node])}: expected 0 <= owner < {num_partitions}")
        order = torch.argsort(wide, stable=True)
        counts = torch.bincount(wide, minlength=num_partitions)
        starts = counts.cumsum(0) - counts
        rows = torch.empty(len(wide), dtype=torch.int32 if len(wide) < 1 << 31 else torch.int64)
        rows[order] = (torch.arange(len(wide)) - starts.repeat_interleave(counts)).to(rows.dtype)
        small = torch.uint8 if num_partitions <= 1 << 8 else torch.uint16 if num_partitions <= 1 << 16 else torch.int32
        return cls(wide.to(small), rows, num_partitions, partition_idx)

    @property
    def is_by_id(self) -> bool:
        """Whether one partition has all rows, in the order of the ids; reads all of them."""
        if self._num_partitions > 1:
            return False
        return torch.equal(self.rows, torch.arange(len(self.rows), dtype=self.rows.dtype))

    def _make_native(self) -> Any:
        return _C.PartitionBook.table(self.owners, self.rows, self._num_partitions)

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """``(owners, rows)``."""
        return self.owners, self.rows

    def share_tables(self) -> None:
        self.owners, self.rows = shared_memory.share(self.owners), shared_memory.share(self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "table", "num_ids": len(self.owners), "num_partitions": self._num_partitions}


class ZonePartitionBook(_NativeBook):
    """Zones of an order of the nodes: each has one owner, so that zones move where the number of partitions changes.

    Rows of a partition are in the order of the places.

    Args:
        order: the places of the ids and the bounds of the zones; borrowed, may be memory-mapped.
        owners: the partition of each zone, integers ``[num_zones]``.
        num_partitions: number of partitions.
        partition_idx: the partition it is seen from.
    """

    def __init__(self, order: ZoneOrder, owners: torch.Tensor, num_partitions: int, partition_idx: int = 0) -> None:
        super().__init__(num_partitions, partition_idx)
        self.order = order
        self.owners = check_index_vector(owners, "owners")
        self._native = self._make_native()  # reads the places once and checks them

    def _make_native(self) -> Any:
        return _C.PartitionBook.zones(self.order.place, self.order.bounds, self.owners, self._num_partitions)

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """``(place,)``."""
        return (self.order.place,)

    def share_tables(self) -> None:
        self.order = self.order.share_memory()

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "zones",
            "num_partitions": self._num_partitions,
            "num_groups": self.order.num_groups,
            "bounds": self.order.bounds.tolist(),
            "owners": self.owners.tolist(),
        }


def book_of_zones(order: ZoneOrder, owners: torch.Tensor, num_parts: int) -> ZonePartitionBook | RangePartitionBook:
    """The book of partitions that have whole zones; see ``ZonePartitionBook``.

    A partition that has all has its rows in the order of the ids: so it is a whole data set to whoever samples from it.
    """
    book = ZonePartitionBook(order, owners, num_parts)  # which checks the owners
    return book if num_parts > 1 else RangePartitionBook.near_equal(book.num_ids, 1)


class _TensorBookType(ABCMeta, torch._C._TensorMeta):
    """The type of a book that is a tensor too: each of the two has a metaclass."""


class GLTPartitionBook(PartitionBook, torch.Tensor, metaclass=_TensorBookType):  # type: ignore[override]
    """An owner table as a tensor: ``book[ids]`` is plain indexing. Rows are in the order of the ids.

    Made from an integer tensor ``[num_ids]``; ``book.native`` builds the row table on first use.
    """

    # Of what ``as_subclass`` makes of a tensor.
    _table: TablePartitionBook | None = None
    _partition_idx: int = 0

    # Results of operations are plain tensors, not books.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, data: torch.Tensor, partition_idx: int = 0) -> GLTPartitionBook:
        owners = data if isinstance(data, torch.Tensor) else torch.as_tensor(data)
        book = host_tensor(owners, "data").as_subclass(cls)
        book._partition_idx = partition_idx
        return book

    def __init__(self, data: torch.Tensor, partition_idx: int = 0) -> None:
        self._table = None
        self._partition_idx = partition_idx

    def __getitem__(self, indices: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)[indices]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (GLTPartitionBook, (self.as_subclass(torch.Tensor), self._partition_idx))

    def __deepcopy__(self, memo: dict[int, Any]) -> GLTPartitionBook:
        return GLTPartitionBook(self.as_tensor().clone(), self._partition_idx)

    def as_tensor(self) -> torch.Tensor:
        """The table itself, as a plain tensor."""
        return self.as_subclass(torch.Tensor)

    @property
    def num_ids(self) -> int:
        return int(self.as_tensor().numel())

    @property
    def native(self) -> Any:
        if self._table is None:
            owners = self.as_subclass(torch.Tensor)
            self._table = TablePartitionBook.from_owners(owners, self.num_partitions)
        return self._table.native

    @property
    def partition_idx(self) -> int:
        return self._partition_idx

    @property
    def num_partitions(self) -> int:
        owners = self.as_subclass(torch.Tensor)
        return max(int(owners.max()) + 1 if owners.numel() else 1, self._partition_idx + 1)

    def for_partition(self, partition_idx: int) -> GLTPartitionBook:
        return GLTPartitionBook(self.as_subclass(torch.Tensor), partition_idx)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "table", "num_ids": self.numel(), "num_partitions": self.num_partitions}


def as_book(value: Any, num_partitions: int, partition_idx: int = 0, *, name: str = "book") -> PartitionBook:
    """A partition book of ``num_partitions``, seen from one of them; the owner of each id will do.

    Args:
        value: a book, or integers ``[num_ids]``: rows of a partition are then in the order of the ids.
        num_partitions: how many there are.
        partition_idx: whose view.
        name: the argument's name, for errors.

    Raises:
        InvalidArgumentError: it is no book, or one of another number of partitions.
    """
    check_partition_idx(partition_idx, num_partitions)
    if isinstance(value, PartitionBook) and not isinstance(value, torch.Tensor):
        if value.num_partitions != num_partitions:
            raise InvalidArgumentError(
                f"{name}: expected a book of {num_partitions} partitions, got one of {value.num_partitions}"
            )
        return value if value.partition_idx == partition_idx else value.for_partition(partition_idx)
    if not isinstance(value, (torch.Tensor, np.ndarray, list)):
        raise InvalidArgumentError(
            f"{name}: expected a partition book, or the owner of each id as a tensor, got {type(value).__name__}"
        )
    owners = plain(value) if isinstance(value, PartitionBook) else convert_to_tensor(value, name=name)
    table = TablePartitionBook.from_owners(owners, num_partitions, partition_idx, name=name)
    # The owner is the only one: no table is needed to say so.
    return table if num_partitions > 1 else RangePartitionBook.near_equal(table.num_ids, 1)


def from_dict(
    description: Mapping[str, Any], partition_idx: int = 0, tables: tuple[torch.Tensor, ...] = ()
) -> RangePartitionBook | PermutedPartitionBook | TablePartitionBook | ZonePartitionBook:
    """The book that ``to_dict`` described; what has ``tables`` needs them.

    Raises:
        PartitionFormatError: the description is not one that this version knows.
    """
    try:
        match description["kind"]:
            case "range":
                return RangePartitionBook.from_bounds(description["bounds"], partition_idx)
            case "permuted":
                num_ids, num_partitions = description["num_ids"], description["num_partitions"]
                return PermutedPartitionBook(num_ids, num_partitions, int(description["key"], 16), partition_idx)
            case "table":
                owners, rows = tables
                return TablePartitionBook(owners, rows, description["num_partitions"], partition_idx)
            case "zones":
                (place,) = tables
                order = ZoneOrder(place, torch.tensor(description["bounds"]), description["num_groups"])
                owners = torch.tensor(description["owners"])
                return ZonePartitionBook(order, owners, description["num_partitions"], partition_idx)
    except (KeyError, TypeError, ValueError, InvalidArgumentError) as error:
        raise PartitionFormatError(f"partition book {dict(description)!r}: {error!r}") from error
    kinds = "range, permuted, table or zones"
    raise PartitionFormatError(f"partition book: expected kind {kinds}, got {shown(description['kind'])}")
