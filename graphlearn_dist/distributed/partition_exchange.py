"""What ranks that partition a graph together agree on, send to each other, and keep of what they get."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from ..errors import InvalidArgumentError, NotInitializedError, RpcError, UnknownIdError
from ..partition.assembly import RowsFile
from ..partition.layout import AnyBook, EdgeKey, NodeKey, array_path
from ..partition.partition_book import RangePartitionBook
from ..partition.partitioner import random_book
from ..partition.storage import ArrayFile
from ..rpc.failures import pack_failure, read_failure
from ..utils.values import label_of
from . import rpc

_MAX_UNANSWERED = 4  # chunks on their way from one rank
_Result = TypeVar("_Result")
_RowTotal: TypeAlias = "tuple[int, torch.dtype, tuple[int, ...]]"


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


@dataclass(frozen=True)
class Slices:
    """Everything that one rank brings. ``rows`` by group (``node_feat``, ``node_label``, ``edge_feat``) and type."""

    num_nodes: Mapping[NodeKey, int]
    edges: Mapping[EdgeKey, EdgeSlice]
    rows: Mapping[tuple[str, Any], RowSlice]

    def describe(self) -> dict[str, Any]:
        """What the others have to know of it."""
        return {
            "num_nodes": dict(self.num_nodes),
            "edges": [
                (key, len(edges.edge_ids), _end(edges.edge_ids), {name: x.dtype for name, x in edges.data.items()})
                for key, edges in self.edges.items()
            ],
            "rows": [
                (group, key, len(rows.ids), rows.dtype, tuple(rows.rows.shape[1:]))
                for (group, key), rows in self.rows.items()
            ],
        }


def _end(ids: torch.Tensor) -> int:
    return int(ids.max()) + 1 if len(ids) else 0


@dataclass(frozen=True)
class StoreSpec:
    """Rows of one store over all ranks: who gets which, and what a row is."""

    group: str
    key: Any
    book: AnyBook
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """For messages."""
        return label_of(self.group, self.key)


@dataclass(frozen=True)
class Agreement:
    """What all ranks know after they have described what they bring; the same everywhere.

    Attributes:
        num_parts: number of partitions, and of ranks.
        node_books, feature_books: who owns which node, which edge feature; by type.
        end_edge_ids: edge ids are below this, by type.
        edge_data: dtypes of ``weights`` and ``times``, where edges have them, by type.
        stores: feature and label stores.
        workers: names of the ranks, by partition.
    """

    num_parts: int
    node_books: Mapping[NodeKey, AnyBook]
    feature_books: Mapping[EdgeKey, AnyBook]
    end_edge_ids: Mapping[EdgeKey, int]
    edge_data: Mapping[EdgeKey, Mapping[str, torch.dtype]]
    stores: tuple[StoreSpec, ...]
    workers: tuple[str, ...]


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
    feature_books: dict[EdgeKey, AnyBook] = {}
    for key, end in end_ids.items():
        count = row_totals.get(("edge_feat", key), (end,))[0]
        if end > count:
            raise UnknownIdError(f"{label_of('edge_ids', key)}: id {end - 1}: expected 0 <= id < {count}, the features")
        feature_books[key] = RangePartitionBook.near_equal(count, num_parts)
    stores = []
    for (group, key), (count, dtype, row_shape) in row_totals.items():
        book = feature_books[key] if group == "edge_feat" else node_books[key]
        if count != book.num_ids:
            raise InvalidArgumentError(
                f"{label_of(group, key)}: expected {book.num_ids} rows over all ranks, one for each id, got {count}"
            )
        stores.append(StoreSpec(group, key, book, dtype, row_shape))
    workers = tuple(holders[p] for p in range(num_parts))
    return Agreement(num_parts, node_books, feature_books, end_ids, edge_data, tuple(stores), workers)


def _row_totals(
    said: Mapping[str, Mapping[str, Any]],
) -> dict[tuple[str, Any], tuple[int, torch.dtype, tuple[int, ...]]]:
    totals: dict[tuple[str, Any], tuple[int, torch.dtype, tuple[int, ...]]] = {}
    for name, other in said.items():
        for group, key, count, dtype, row_shape in other["rows"]:
            total, *kind = totals.get((group, key), (0, dtype, row_shape))
            if total and count and kind != [dtype, row_shape]:
                raise InvalidArgumentError(
                    f"{label_of(group, key)}: {name} has rows {dtype} {list(row_shape)}, others {total} of {kind}"
                )
            totals[group, key] = (total + count, *((dtype, row_shape) if count else kind))
    return totals


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
    """What comes for this rank's partition: rows go to their files at once, edges of one type wait in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._edges: list[tuple[torch.Tensor, ...]] = []
        self._ids: list[torch.Tensor] = []
        self._files: list[tuple[RowsFile, Any, str]] | None = None

    def open(self, root: Path, agreement: Agreement, partition_idx: int) -> None:
        """Makes the files of this partition's rows in ``root``."""
        files = []
        for store in agreement.stores:
            path = array_path(store.group, store.key, "y" if store.group == "node_label" else "x", partition_idx)
            shape = (store.book.partition_size(partition_idx), *store.row_shape)
            to_row = store.book.for_partition(partition_idx).id2index
            files.append((RowsFile(root, path, store.dtype, shape), to_row, f"{store.name} ids"))
        self._files = files

    def close(self) -> None:
        """Refuses what may still come."""
        self._files = None
        self._edges, self._ids = [], []

    def call(self, kind: str, *arguments: Any) -> None:
        """Takes a chunk: ``edges`` with their tensors, ``ids`` of edges to compare, or ``rows`` of a store."""
        with self._lock:
            if self._files is None:
                raise NotInitializedError("partition: this rank does not partition (any more)")
            match kind, arguments:
                case "edges", tensors:
                    # copies, as what came is a view into the memory of the whole message
                    self._edges.append(tuple(tensor.clone() for tensor in tensors))
                case "ids", (ids,):
                    self._ids.append(ids.clone())
                case "rows", (number, ids, rows):
                    file, to_row, name = self._files[number]
                    file.put(to_row[ids].long(), rows, name)
                case _:
                    raise InvalidArgumentError(f"kind: expected edges, ids or rows, got {kind!r}")

    def take_edges(self, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
        """The edges that came since the last call, as tensors of these dtypes, in any order."""
        chunks, self._edges = self._edges, []
        if not chunks:
            return [torch.empty(0, dtype=dtype) for dtype in dtypes]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]

    def check_ids(self, name: str) -> None:
        """Compares the edge ids that came; InvalidArgumentError names one that two edges have."""
        chunks, self._ids = self._ids, []
        if chunks:
            ordered = torch.cat(chunks).sort().values
            repeated = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(repeated):
                raise InvalidArgumentError(f"{name}: expected distinct ids, got {int(repeated[0])} twice")

    def close_files(self) -> list[ArrayFile]:
        """Ends the files of rows; every row has come, as the numbers were right and none came twice."""
        return [file.close() for file, _, _ in self._files or ()]


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

    def split(self, kind: str, owners: torch.Tensor, *arguments: Any) -> None:
        """Sends to each owner its part of the tensors among ``arguments`` (``[n, ...]``); the rest goes as it is."""
        order = owners.argsort(stable=True)
        begin = 0
        for partition, count in enumerate(torch.bincount(owners, minlength=len(self._workers)).tolist()):
            mine = order[begin : begin + count]
            begin += count
            if count:
                self._send(partition, kind, [a[mine] if isinstance(a, torch.Tensor) else a for a in arguments])

    def _send(self, partition: int, kind: str, arguments: list[Any]) -> None:
        if partition == self._own:
            self._inbox.call(kind, *arguments)
            return
        if len(self._unanswered) >= _MAX_UNANSWERED:
            self._unanswered.popleft().wait()
        worker = self._workers[partition]
        # All ranks were there a step ago: one that cannot be reached is gone.
        answer = rpc.rpc_request_async(worker, self._callee_id, (kind, *arguments), fail_fast=True)
        self._unanswered.append(answer)

    def flush(self) -> None:
        """Returns when everything has arrived; raises what the first that failed raised."""
        while self._unanswered:
            self._unanswered.popleft().wait()


def chunks_of(num_rows: int, chunk_size: int) -> Iterator[slice]:
    """``[0, num_rows)`` in pieces."""
    return (slice(begin, begin + chunk_size) for begin in range(0, num_rows, chunk_size))


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
        if own is not None:
            raise own from None
        raise
    if own is not None:
        raise own
    for name, (failure, _) in answers.items():
        if failure is not None:
            raise read_failure(name, failure)
    return {name: answer for name, (_, answer) in answers.items()}
