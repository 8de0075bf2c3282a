"""What ranks that partition a graph together agree on, send to each other, and keep of what they get."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...errors import InvalidArgumentError, NotInitializedError, RpcError, UnknownIdError
from ...partition.assembly import RowsFile
from ...partition.attributes import attr_path
from ...partition.edge_book import EdgeBook
from ...partition.layout import AnyBook, EdgeKey, NodeKey
from ...partition.partition_book import RangePartitionBook
from ...partition.partitioner import random_book
from ...partition.storage import ArrayFile
from ...rpc.wire.failures import pack_failure, read_failure
from ...utils.values import label_of
from .. import rpc
from .edge_directory import OWNER_DTYPE, EdgeDirectory

_MAX_UNANSWERED = 4  # chunks on their way from one rank
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoreName:
    """Which rows a store has: ``group`` is the folder of their files, ``column`` the file's name, or an attribute's."""

    group: str
    key: Any
    column: str

    @property
    def of_edges(self) -> bool:
        """Whether ``key`` is an edge type."""
        return self.group.startswith("edge_")

    def __str__(self) -> str:
        """For messages."""
        if self.group.endswith("_attr"):
            return f"{label_of(f'{self.group}s', self.key)}: {self.column}"
        return label_of(self.group, self.key)

    @property
    def ids_label(self) -> str:
        """The rows' ids, for messages."""
        return label_of(f"{self.group}_ids", self.key)

    def path(self, partition_idx: int) -> str:
        """Where a partition's rows lie."""
        return attr_path(self.group, self.key, self.column, partition_idx)


@dataclass(frozen=True)
class EdgeSlice:
    """A rank's edges of one type, int32 or int64 ``[n]`` each; ``data``: ``weights`` and ``times``, if given."""

    sources: torch.Tensor
    targets: torch.Tensor
    edge_ids: torch.Tensor
    data: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RowSlice:
    """A rank's rows of one store, ``[n, ...]``, of ``ids`` (int ``[n]``); stored as ``dtype``."""

    ids: torch.Tensor
    rows: torch.Tensor
    dtype: torch.dtype

    def describe(self) -> tuple[int, int, torch.dtype, tuple[int, ...]]:
        """How many there are, what their ids are below, and what a row is."""
        return len(self.ids), _end(self.ids), self.dtype, tuple(self.rows.shape[1:])


@dataclass(frozen=True)
class Slices:
    """Everything that one rank brings."""

    num_nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, EdgeSlice]
    rows: Mapping[StoreName, RowSlice]
    constants: Mapping[Any, Mapping[str, Any]]

    def describe(self) -> dict[str, Any]:
        """What the others have to know of it."""
        return {
            "num_nodes": dict(self.num_nodes),
            "edges": [
                (key, len(edges.edge_ids), _end(edges.edge_ids), {name: x.dtype for name, x in edges.data.items()})
                for key, edges in self.edges.items()
            ],
            "rows": [(store.group, store.key, store.column, *rows.describe()) for store, rows in self.rows.items()],
            "constants": [(key, name, value) for key, named in self.constants.items() for name, value in named.items()],
        }


def _end(ids: torch.Tensor) -> int:
    return int(ids.max()) + 1 if len(ids) else 0


@dataclass(frozen=True)
class StoreSpec:
    """Rows of one store over all ranks, one for each id, and what a row is."""

    name: StoreName
    dtype: torch.dtype
    row_shape: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """What all ranks know after they have described what they bring; the same everywhere.

    Attributes:
        num_parts: number of partitions, and of ranks.
        node_books: who owns which node, by type.
        id_ranges: by edge type, which rank knows of an edge id whose it is; of edges with features, each row has one.
        end_edge_ids: edge ids are below this, by type.
        edge_data: dtypes of ``weights`` and ``times``, where edges have them, by type.
        stores: of features, labels and attributes.
        workers: names of the ranks, by partition.
    """

    num_parts: int
    node_books: Mapping[NodeKey, AnyBook]
    id_ranges: Mapping[EdgeKey, RangePartitionBook]
    end_edge_ids: Mapping[EdgeKey, int]
    edge_data: Mapping[EdgeKey, Mapping[str, torch.dtype]]
    stores: tuple[StoreSpec, ...]
    workers: tuple[str, ...]

    @property
    def node_stores(self) -> list[StoreSpec]:
        """Stores of nodes of all types."""
        return [store for store in self.stores if not store.name.of_edges]

    def edge_stores(self, key: EdgeKey) -> list[StoreSpec]:
        """Stores of edges of a type."""
        return [store for store in self.stores if store.name.of_edges and store.name.key == key]


def agree(said: Mapping[str, Mapping[str, Any]]) -> Agreement:
    """Puts the descriptions of all ranks (by name) together.

    Raises:
        InvalidArgumentError: they contradict each other; the same error on every rank.
        UnknownIdError: an edge id has no edge feature.
    """
    first_name, first = next(iter(said.items()))
    for name, other in said.items():
        for field in ("num_nodes", "num_parts", "seed", "edge_dir"):
            if other[field] != first[field]:
                raise InvalidArgumentError(f"{field}: {name} has {other[field]!r}, {first_name} {first[field]!r}")
        if not _are_alike(first["constants"], other["constants"]):
            raise InvalidArgumentError(f"constants: {name} has others than {first_name}")
    num_parts, num_nodes = first["num_parts"], first["num_nodes"]
    holders = {other["partition_idx"]: name for name, other in said.items()}
    if sorted(holders) != list(range(num_parts)) or len(said) != num_parts:
        indices = [other["partition_idx"] for other in said.values()]
        raise InvalidArgumentError(
            f"num_parts, current_partition_idx: expected each of {num_parts} partitions on one rank, got {indices}"
        )
    node_books = {key: random_book(count, num_parts, first["seed"], key) for key, count in num_nodes.items()}
    row_totals = _row_totals(said)
    end_ids, edge_data = _edge_facts(said)
    id_ranges: dict[EdgeKey, RangePartitionBook] = {}
    for key, end in end_ids.items():
        total = row_totals.get(StoreName("edge_feat", key, "x"))
        count = end if total is None else total.count
        if end > count:
            raise UnknownIdError(f"{label_of('edge_ids', key)}: id {end - 1}: expected 0 <= id < {count}, the features")
        id_ranges[key] = RangePartitionBook.near_equal(count, num_parts)
    for store, total in row_totals.items():
        _check_total(store, total, (id_ranges if store.of_edges else node_books)[store.key].num_ids)
    stores = tuple(StoreSpec(store, total.dtype, total.row_shape) for store, total in row_totals.items())
    workers = tuple(holders[p] for p in range(num_parts))
    return Agreement(num_parts, node_books, id_ranges, end_ids, edge_data, stores, workers)


def _are_alike(constants: Sequence[Sequence[Any]], others: Sequence[Sequence[Any]]) -> bool:
    """Whether two ranks give the same, in any order; numbers of tensors bit for bit."""

    def by_name(entries: Sequence[Sequence[Any]]) -> dict[Any, Any]:
        return {(key, name): value for key, name, value in entries}

    def same(value: Any, other: Any) -> bool:
        if not (isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)):
            return type(value) is type(other) and bool(value == other)
        bits, other_bits = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (value, other))
        return (value.dtype, value.shape) == (other.dtype, other.shape) and torch.equal(bits, other_bits)

    mine, theirs = by_name(constants), by_name(others)
    return mine.keys() == theirs.keys() and all(same(value, theirs[place]) for place, value in mine.items())


@dataclass(frozen=True)
class _RowTotal:
    """Rows of one store over some ranks: ``count`` of them, of ids below ``end``."""

    count: int
    end: int
    dtype: torch.dtype
    row_shape: tuple[int, ...]


def _row_totals(said: Mapping[str, Mapping[str, Any]]) -> dict[StoreName, _RowTotal]:
    totals: dict[StoreName, _RowTotal] = {}
    for name, other in said.items():
        for group, key, column, count, end, dtype, row_shape in other["rows"]:
            store = StoreName(group, key, column)
            before = totals.get(store, _RowTotal(0, 0, dtype, row_shape))
            expected = [before.dtype, before.row_shape]
            kind = [dtype, row_shape] if count else expected
            if before.count and kind != expected:
                raise InvalidArgumentError(
                    f"{store}: {name} has rows {dtype} {list(row_shape)}, others {before.count} of {expected}"
                )
            totals[store] = _RowTotal(before.count + count, max(before.end, end), *kind)
    return totals


def _check_total(store: StoreName, total: _RowTotal, num_ids: int) -> None:
    if total.count != num_ids:
        raise InvalidArgumentError(
            f"{store}: expected {num_ids} rows over all ranks, one for each id, got {total.count}"
        )
    if total.end > num_ids:
        raise UnknownIdError(
            f"{store.ids_label}: id {total.end - 1}: expected 0 <= id < {num_ids}, the number of rows over all ranks"
        )


def _edge_facts(
    said: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[EdgeKey, int], dict[EdgeKey, dict[str, torch.dtype]]]:
    end_ids: dict[EdgeKey, int] = {}
    given: dict[EdgeKey, dict[str, torch.dtype]] = {}
    for name, other in said.items():
        for key, count, end, data in other["edges"]:
            end_ids[key] = max(end_ids.get(key, 0), end)
            if count and given.setdefault(key, data) != data:
                raise InvalidArgumentError(
                    f"{label_of('edge_weights, edge_times', key)}: {name} has {data}, others {given[key]}"
                )
    return end_ids, {key: given.get(key, {}) for key in end_ids}


class Inbox(rpc.RpcCalleeBase):
    """What comes for this rank: rows of its partition go to their file at once, edges of one type wait in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._edges: list[tuple[torch.Tensor, ...]] = []
        self._ids: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._directory: EdgeDirectory | None = None
        self._rows: tuple[RowsFile, Any, str] | None = None

    def open(self) -> None:
        """Takes what comes from now on."""
        self._is_open = True

    def close(self) -> None:
        """Refuses what may still come."""
        self._is_open = False
        self._edges, self._ids, self._directory, self._rows = [], [], None, None

    def call(self, kind: str, *arguments: Any) -> torch.Tensor | None:
        """Takes a chunk: ``edges`` with their tensors, ``ids`` of edges with their owners, or ``rows`` with their ids.

        ``owners`` asks for those of ids, for rows of a name.
        """
        with self._lock:
            if not self._is_open:
                raise NotInitializedError("partition: this rank does not partition (any more)")
            match kind, arguments:
                case "edges", tensors:
                    # copies, as what came is a view into the memory of the whole message
                    self._edges.append(tuple(tensor.clone() for tensor in tensors))
                case "ids", (ids, owners):
                    self._ids.append((ids.clone(), owners.clone()))
                case "owners", (name, ids) if self._directory is not None:
                    return self._directory.owners_of(name, ids)
                case "rows", (ids, rows) if self._rows is not None:
                    file, to_row, name = self._rows
                    file.put(to_row[ids].long(), rows, name)
                case _:
                    raise InvalidArgumentError(f"kind: expected a chunk of what is being sent, got {kind!r}")
        return None

    def take_edges(self, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        """The edges that came since the last call, as tensors of these dtypes, in any order."""
        chunks, self._edges = self._edges, []
        return _joined(chunks, dtypes)

    def take_ids(self, name: str, id_range: RangePartitionBook, *, keep: bool) -> None:
        """Compares the edge ids that came since the last call, and can say their owners from now on.

        Args:
            name: of the ids, for messages.
            id_range: the ranges of all ranks, seen from this one.
            keep: whether anybody will ask for owners.

        Raises:
            InvalidArgumentError: two edges have one id.
        """
        chunks, self._ids = self._ids, []
        ids, owners = _joined(chunks, [torch.int64, OWNER_DTYPE])
        directory = EdgeDirectory(ids, owners, id_range, name)
        self._directory = directory if keep else None

    def forget_ids(self) -> None:
        """Drops what owners are looked up in."""
        self._directory = None

    def open_rows(self, root: Path, store: StoreSpec, book: EdgeBook) -> None:
        """Makes the file of a store's rows; ``book`` is seen from this rank's partition."""
        shape = (book.partition_size(), *store.row_shape)
        file = RowsFile(root, store.name.path(book.partition_idx), store.dtype, shape)
        self._rows = (file, book.id2index, f"{store.name} ids")

    def close_rows(self) -> ArrayFile:
        """Ends the file; every row has come, as the numbers were right and none came twice."""
        assert self._rows is not None
        (file, _, _), self._rows = self._rows, None
        return file.close()


def _joined(chunks: Sequence[tuple[torch.Tensor, ...]], dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    if not chunks:
        return [torch.empty(0, dtype=dtype) for dtype in dtypes]
    return [torch.cat(parts) for parts in zip(*chunks, strict=True)]


class Outbox:
    """Sends chunks to the ranks of the partitions, a few at a time.

    Args:
        workers: names by partition.
        callee_id: of their inboxes.
        inbox: this rank's own, which needs no request.
        partition_idx: this rank's partition.
    """

    def __init__(self, workers: Sequence[str], callee_id: int, inbox: Inbox, partition_idx: int) -> None:
        self._workers, self._callee_id = workers, callee_id
        self._inbox, self._own = inbox, partition_idx
        self._unanswered: deque[torch.futures.Future[Any]] = deque()

    def split(self, kind: str, owners: torch.Tensor, *tensors: torch.Tensor) -> None:
        """Sends to each owner its part of the tensors (``[n, ...]``)."""
        for partition, mine in self._shares(owners):
            if partition == self._own:
                self._inbox.call(kind, *(tensor[mine] for tensor in tensors))
                continue
            if len(self._unanswered) >= _MAX_UNANSWERED:
                self._unanswered.popleft().wait()
            self._unanswered.append(self._request(partition, kind, *(tensor[mine] for tensor in tensors)))

    def ask_owners(self, holders: torch.Tensor, name: str, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Asks the ranks that know of the ids (int64 ``[n]``) of rows.

        Args:
            holders: int64 ``[n]``, the rank to ask for each.
            name: of the rows; each id may be asked for once.
            ids: of edges.

        Returns:
            What waits for the answers: owners int64 ``[n]``, -1 where there is no edge.
        """
        asked: list[tuple[torch.Tensor, Callable[[], Any]]] = []
        for partition, mine in self._shares(holders):
            question = ("owners", name, ids[mine])
            is_own = partition == self._own
            answer = partial(self._inbox.call, *question) if is_own else self._request(partition, *question).wait
            asked.append((mine, answer))

        def wait() -> torch.Tensor:
            owners = torch.empty_like(ids)
            for mine, answer in asked:
                owners[mine] = answer().long()
            return owners

        return wait

    def _shares(self, owners: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Partitions that own something, with the positions of it."""
        order = owners.argsort(stable=True)
        begin = 0
        for partition, count in enumerate(torch.bincount(owners, minlength=len(self._workers)).tolist()):
            if count:
                yield partition, order[begin : begin + count]
            begin += count

    def _request(self, partition: int, kind: str, *arguments: Any) -> torch.futures.Future[Any]:
        # All ranks were there a step ago: one that cannot be reached is gone.
        return rpc.rpc_request_async(self._workers[partition], self._callee_id, (kind, *arguments), fail_fast=True)

    def flush(self) -> None:
        """Returns when everything has arrived; raises what the first that failed raised."""
        while self._unanswered:
            self._unanswered.popleft().wait()


def chunks_of(num_rows: int, chunk_size: int) -> Iterator[slice]:
    """``[0, num_rows)`` in pieces."""
    return (slice(begin, begin + chunk_size) for begin in range(0, num_rows, chunk_size))


def one_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items, each when the one after it has been made too."""
    made: deque[_Item] = deque()
    for item in items:
        made.append(item)
        if len(made) > 1:
            yield made.popleft()
    yield from made


def step(work: Callable[[], _Result], timeout_s: float) -> dict[str, _Result]:
    """Does ``work`` on all ranks and waits for all of them; everybody's results by name.

    What one rank raises is raised on all of them, so that none goes on alone.

    Raises:
        DeadlineExceededError: a rank did not come in time.
        PeerLostError: a rank died, or left.
    """
    result, own = None, None
    try:
        result = work()
    except Exception as error:  # of any kind: the others wait, and must hear of it
        own = error
    failure = None if own is None else pack_failure(own)
    try:
        answers = rpc.all_gather((failure, result), timeout_s)
    except RpcError:
        if own is not None and not isinstance(own, NotInitializedError):
            raise own from None
        raise
    if own is not None and not isinstance(own, NotInitializedError):  # else a rank had given up: it says why
        raise own
    for name, (failure, _) in answers.items():
        if failure is not None:
            raise read_failure(name, failure)
    return {name: answer for name, (_, answer) in answers.items()}
