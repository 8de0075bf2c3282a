"""Copies of other partitions' rows that a process keeps for who samples on its host.

That is a server for the sampling workers of its loaders, or a trainer for a loader of its own.

Filled in a thread, while batches are made: who samples uses the copies when all are there. A batch does not depend on
them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Protocol

import torch

from ... import _C
from ...config import row_cache as row_cache_setting
from ...data import shared_memory
from ...data.columns import EDGE_COLUMN, NODE_COLUMN
from ...data.schema import EDGE_FEATURE, NODE_FEATURE, NODE_LABEL
from ...errors import GraphLearnError, InvalidArgumentError, NotInitializedError, ProtocolError, SystemLimitError
from ...partition import CachedRows, OwnedEdgesBook, PartitionBook
from ...rpc import Endpoint
from ...rpc.engine.threads import WorkerThreads, post
from ...telemetry import Metric
from ...utils.message_types import register_message
from ...utils.units import parse_share_or_size
from ..dist_dataset import DistDataset
from ..partitions.dataset_handle import CacheHandle, cache_handle
from ..partitions.partition_peers import PartitionHolders
from ..partitions.partition_service import PartitionService
from ..workers.row_counts import NUM_COUNTS, RowCounts
from .partition_asker import AskerClosed, PartitionAsker
from .row_chances import Announcement, RowChances, estimate_chances

ORDERS = ("loader", "degree")
_ID_BYTES = 8
_MOST_BYTES = 1 << 62  # that are compared with others in integers of 64 bits
_BLOCK_BYTES = 4 << 20  # of rows in one answer
_FIND_S = 10.0  # for servers that are not there yet; tried again for as long as a partition may be out of reach
_RETRY_S = 0.5
_NODE_KINDS, _EDGE_KINDS = (NODE_FEATURE, NODE_LABEL, NODE_COLUMN), (EDGE_FEATURE, EDGE_COLUMN)

_logger = logging.getLogger(__name__)


@register_message
@dataclass(frozen=True)
class RowCacheStats:
    """What a process's copies of other partitions' rows are good for, since they were first wanted.

    Attributes:
        budget_bytes: most bytes of copies; 0 where there are to be none.
        nbytes: of the copies that there are.
        rows: ids of which there are copies, counted once for stores that have copies of the same ids.
        hits: ids that batches looked up, of other partitions, whose rows were copied; counted like ``rows``.
        misses: such ids of which there was none; those that batches made together have in common are asked for once.
        bytes_saved: bytes of rows that were copied, for each batch.
        is_filling: whether copies are being fetched.
    """

    budget_bytes: int = 0
    nbytes: int = 0
    rows: int = 0
    hits: int = 0
    misses: int = 0
    bytes_saved: int = 0
    is_filling: bool = False

    def metrics(self, labels: Mapping[str, str]) -> Iterator[Metric]:
        """The same for a monitoring system."""
        yield Metric("row_cache_bytes", "Copies of other partitions' rows.", self.nbytes, labels)
        yield Metric("row_cache_hits_total", "Looked-up rows of others that were copied.", self.hits, labels)
        yield Metric("row_cache_misses_total", "Looked-up rows of others that were not copied.", self.misses, labels)
        yield Metric("row_cache_saved_bytes_total", "Bytes that others did not have to send.", self.bytes_saved, labels)


@dataclass(frozen=True)
class StoreGroup:
    """Stores that have rows of the same ids in the same places.

    Attributes:
        kind: ``"node"`` or ``"edge"``.
        type_index: of the nodes or edges.
        book: where the rows lie.
        stores: their names.
        item_bytes: of the rows of one id, and the id.
    """

    kind: str
    type_index: int
    book: PartitionBook
    stores: tuple[str, ...]
    item_bytes: int


def store_groups(dataset: DistDataset) -> list[StoreGroup]:
    """The stores that batches have rows of."""
    stores, books, copied = dataset.stores(), dataset.store_books(), dataset.row_caches()
    found: dict[tuple[str, int, int, str], list[str]] = {}
    for name in sorted(stores):
        kind, number = name.split(":")[:2]
        if kind in _NODE_KINDS or kind in _EDGE_KINDS:
            of = "node" if kind in _NODE_KINDS else "edge"
            # Of what the directory has copies of, others are fetched than of the same ids' other rows.
            found.setdefault((of, int(number), id(books[name]), name if name in copied else ""), []).append(name)
    return [
        StoreGroup(of, number, books[names[0]], tuple(names), _ID_BYTES + sum(stores[n].row_bytes for n in names))
        for (of, number, *_), names in found.items()
    ]


def budget_of(row_cache: float | str | None, dataset: DistDataset) -> int:
    """Bytes that ``row_cache`` of ``init_server``, or of worker options, means; ``GLD_ROW_CACHE`` where that is None.

    Raises:
        InvalidArgumentError: it is neither a share of the rows nor a size.
    """
    if row_cache is None:
        setting = row_cache_setting()
        asked = 0 if setting is None else parse_share_or_size(setting, name="environment variable GLD_ROW_CACHE")
    else:
        asked = parse_share_or_size(row_cache, name="row_cache")
    if dataset.num_partitions == 1:
        return 0
    if isinstance(asked, float):
        return int(asked * sum(group.book.num_ids * group.item_bytes for group in store_groups(dataset)))
    return min(asked, _MOST_BYTES)


class CopiesUser(Protocol):
    """Who samples for a loader."""

    async def use_copies(self, copies: tuple[CacheHandle, ...], /) -> None:
        """There are these now; called on the loop of the job's endpoint."""


@dataclass(frozen=True)
class _Loader:
    """For whom the copies were chosen; ``announced`` tells loaders apart that read alike."""

    announced: object
    user: weakref.ref[CopiesUser]


@dataclass(frozen=True)
class CopiesJob:
    """What a process knows of the job that it has joined.

    Attributes:
        endpoint: its own, which is open.
        find_holders: finds who serves the other partitions, within so many seconds; see ``ServerHolders.find``.
        users: of the copies, which may change.
    """

    endpoint: Endpoint
    find_holders: Callable[[float], Future[PartitionHolders]]
    users: Iterable[CopiesUser]


class HostRowCache:
    """See above. Its methods are for one thread, a server's loop, unless they say otherwise.

    Args:
        dataset: the partition that is held here.
        service: the same for others.
        budget_bytes: most bytes of copies; 0 for none.
        order: ``"loader"``: what the first loader is likely to look up, chosen when it is opened (and again for
            another, when that is closed); ``"degree"``: what most nodes have edges to, chosen at the start.
    """

    def __init__(self, dataset: DistDataset, service: PartitionService, budget_bytes: int, order: str = "loader"):
        if order not in ORDERS:
            raise InvalidArgumentError(f"row_cache_by: expected one of {ORDERS}, got {order!r}")
        self._dataset = dataset
        self._service = service
        self.budget_bytes = budget_bytes
        self.order = order
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._counts: set[RowCounts] = set()
        self._past = torch.zeros(NUM_COUNTS, dtype=torch.int64)
        self._copies: dict[str, CachedRows] = {}
        self._loader: _Loader | None = None
        # Who was opened while copies were fetched, as long as they are open: what they read goes with them.
        self._waiting: weakref.WeakKeyDictionary[CopiesUser, tuple[object, Callable[[], Announcement]]]
        self._waiting = weakref.WeakKeyDictionary()
        self._make: Callable[[], Announcement] | None = None  # for whom copies are about to be chosen
        self._is_filling = False
        self._job: CopiesJob | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._threads = WorkerThreads(1, "row-cache")
        self.handles: tuple[CacheHandle, ...] = ()

    # --- loaders ------------------------------------------------------------------------------------------------

    def new_counts(self, num_workers: int) -> RowCounts | None:
        """Where the workers of a new loader count; None where there are no copies."""
        if not self.budget_bytes:
            return None
        counts = RowCounts(num_workers, self._end_counts)
        with self._lock:
            self._counts.add(counts)
        return counts

    def _end_counts(self, counts: RowCounts) -> None:
        """On any thread."""
        with self._lock:
            if counts in self._counts:
                self._counts.remove(counts)
                self._past += counts.sums()

    def announce(self, user: CopiesUser, announced: object, make: Callable[[], Announcement]) -> None:
        """A loader was opened: copies are chosen for it, unless there are some for another that is open.

        Args:
            user: who samples for it.
            announced: tells loaders apart that read alike.
            make: says what its batches are like; called in a thread.
        """
        if not self.budget_bytes or self.order != "loader" or self._job is None:
            return
        last = self._loader
        if self._is_filling:
            self._waiting[user] = announced, make
        elif last is None or (last.announced != announced and last.user() not in [*self._job.users]):
            self._loader = _Loader(announced, weakref.ref(user))
            self._begin(make)

    def _go_on(self, *, failed: bool) -> None:
        """Copies are there, or are not to be: those of the last who was opened meanwhile, and is open, may be next."""
        self._is_filling = False
        if failed:  # they were chosen for nobody
            self._loader = None
        waiting = [*self._waiting.items()]
        self._waiting.clear()
        users = [] if self._job is None else [*self._job.users]
        for user, (announced, make) in reversed(waiting):
            if user in users:
                return self.announce(user, announced, make)

    def _begin(self, make: Callable[[], Announcement]) -> None:
        self._make, self._is_filling = make, True
        try:
            self._threads.submit(self._fill)
        except SystemLimitError as error:
            self._make, self._loader, self._is_filling = None, None, False
            _logger.warning("row_cache: there are no copies: %s", error)

    def attach(self, job: CopiesJob) -> None:
        """The process has joined a job."""
        self._job = job
        if self.budget_bytes and self.order == "degree":
            self._begin(lambda: Announcement.of_nobody(self._dataset.schema))

    # --- reading ------------------------------------------------------------------------------------------------

    def stats(self) -> RowCacheStats:
        """What was counted."""
        with self._lock:
            sums = self._past + sum((counts.sums() for counts in self._counts), torch.zeros_like(self._past))
            copies = dict(self._copies)
        ids = {id(copy.ids): copy.ids for copy in copies.values()}.values()
        nbytes = sum(tensor.nbytes for tensor in [*ids, *(copy.feats for copy in copies.values())])
        rows = sum(len(one) for one in ids)
        hits, misses, saved = sums.tolist()
        return RowCacheStats(self.budget_bytes, nbytes, rows, hits, misses, saved, self._is_filling)

    def close(self) -> None:
        """Whatever is under way ends, and copies go. From any thread."""
        with self._lock:
            self._closed.set()
            self._copies, self.handles = {}, ()
        self._threads.close(0.0)
        self._is_filling = False  # what had not begun never does
        self._job = self._make = None
        self._waiting.clear()

    # --- filling, in the thread ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        job, failed = self._job, True
        if job is None:
            return
        try:
            asker = PartitionAsker(self._service, job.endpoint, self._find_holders, self._closed)
            copies = self._fetch(asker)
            handles = tuple(cache_handle(store, kept) for store, kept in copies.items())
            with self._lock:
                if self._closed.is_set():
                    return
                self._copies, self.handles = copies, handles
            failed = bool(asker.lost)
            _on_loop_of(job, self._tell_users)
            stats = self.stats()
            _logger.info("row_cache: copies of %d rows, %d MiB", stats.rows, stats.nbytes >> 20)
        except AskerClosed:
            pass
        except GraphLearnError as error:
            _logger.warning("row_cache: there are no copies: %s", error)
        except Exception:  # such as that there are no files left: the next loader may have more luck
            _logger.exception("row_cache: there are no copies")
        finally:
            self._make = None
            if not _on_loop_of(job, partial(self._go_on, failed=failed)):
                self._is_filling = False

    def _find_holders(self) -> PartitionHolders:
        job = self._job
        if job is None:
            raise AskerClosed
        found = job.find_holders(_FIND_S)
        while not self._closed.is_set():
            try:
                return found.result(_RETRY_S)
            except FutureTimeoutError:
                if found.done():  # by now, or that is its error
                    return found.result()
        raise AskerClosed

    def _tell_users(self) -> None:
        """On the endpoint's loop."""
        for user in [] if self._job is None else [*self._job.users]:
            task = asyncio.get_running_loop().create_task(user.use_copies(self.handles))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def _announced(self) -> Announcement:
        """What the batches are like that copies are chosen for; once, as what it is made from is not to be kept."""
        make, self._make = self._make, None
        if make is None:
            raise AskerClosed
        return make()

    def _fetch(self, asker: PartitionAsker) -> dict[str, CachedRows]:
        # Rows that lie on this host are read in place.
        asked = sorted(asker.holders.addresses.keys() - asker.holders.shared.keys())
        if not asked:
            return {}
        groups = store_groups(self._dataset)
        if not groups:
            return {}
        smallest = min(group.item_bytes for group in groups)
        if self.budget_bytes < smallest:
            _logger.warning(
                "row_cache: expected at least the %d bytes of a row, got %d: there are no copies",
                smallest,
                self.budget_bytes,
            )
            return {}
        with_edges = sorted({group.type_index for group in groups if group.kind == "edge"})
        chances = estimate_chances(self._dataset, self._announced(), with_edges, asker)
        chosen = choose_rows(self._dataset, groups, chances, asked, self.budget_bytes)
        copies: dict[str, CachedRows] = {}
        for group, by_partition in zip(groups, chosen, strict=True):
            ids = self._edges_of(group, by_partition, asker) if group.kind == "edge" else by_partition
            copies |= self._fetch_group(group, ids, asker)
        return copies

    def _edges_of(
        self, group: StoreGroup, nodes: Mapping[int, torch.Tensor], asker: PartitionAsker
    ) -> dict[int, torch.Tensor]:
        """Ids of all edges of these nodes (by owner), by where their rows lie."""
        found: dict[int, list[torch.Tensor]] = {partition: [] for partition in nodes}
        for requests in rounds_of(nodes, 1 << 14):
            hops = {partition: _all_edges(group.type_index, ids) for partition, ids in requests.items()}
            for partition, (_, _, edge_ids) in asker.query(hops, 3).items():
                if edge_ids is not None:
                    found[partition].append(edge_ids.long())
        ids = {partition: torch.unique(torch.cat(parts)) for partition, parts in found.items() if parts}
        if isinstance(group.book, OwnedEdgesBook) or not ids:
            return ids
        every = torch.cat([*ids.values()])
        owners = group.book[every]
        return {partition: torch.unique(every[owners == partition]) for partition in nodes}

    def _fetch_group(
        self, group: StoreGroup, by_partition: Mapping[int, torch.Tensor], asker: PartitionAsker
    ) -> dict[str, CachedRows]:
        """Rows of these ids (by partition), in the order of the ids."""
        known = self._dataset.row_caches().get(group.stores[0])
        wanted = {p: ids if known is None else ids[~torch.isin(ids, known.ids)] for p, ids in by_partition.items()}
        wanted = {partition: ids for partition, ids in wanted.items() if ids.numel()}
        if not wanted:
            return {}
        ids = torch.cat([*wanted.values()]).sort().values
        stores = self._dataset.stores()
        rows = [
            shared_memory.share(torch.empty(len(ids), *stores[n].shape[1:], dtype=stores[n].stored_dtype))
            for n in group.stores
        ]
        for requests in rounds_of(wanted, max(1, _BLOCK_BYTES // group.item_bytes)):
            num_stores = len(group.stores)
            lookups = {p: _C.rows_query(group.stores, [some] * num_stores) for p, some in requests.items()}
            for partition, answer in asker.query(lookups, num_stores).items():
                places = torch.searchsorted(ids, requests[partition])
                for name, out, part in zip(group.stores, rows, answer, strict=True):
                    shape = (len(places), *out.shape[1:])
                    if part is None or part.shape != shape or part.dtype != out.dtype:
                        came = None if part is None else f"{part.dtype} {list(part.shape)}"
                        raise ProtocolError(
                            f"answer: expected rows {out.dtype} {list(shape)} of {name} from partition {partition}, "
                            f"got {came}"
                        )
                    out[places] = part
        if lost := [wanted[partition] for partition in asker.lost & wanted.keys()]:
            is_there = ~torch.isin(ids, torch.cat(lost))
            ids, rows = ids[is_there], [shared_memory.share(part[is_there]) for part in rows]
        shared = shared_memory.share(ids)
        return {name: CachedRows(shared, part) for name, part in zip(group.stores, rows, strict=True)}


def _on_loop_of(job: CopiesJob, function: Callable[[], None]) -> bool:
    """Has the loop of the process's endpoint call this, unless the process has left the job."""
    try:
        return post(job.endpoint.loop, function)
    except NotInitializedError:
        return False


def choose_rows(
    dataset: DistDataset, groups: list[StoreGroup], chances: RowChances, asked: list[int], budget_bytes: int
) -> list[dict[int, torch.Tensor]]:
    """The likeliest rows of some partitions that have room: by group and partition ids of nodes, ascending.

    Of edges, the nodes all of whose edges are taken: those are equally likely. A row is worth its bytes times its
    chance and costs its bytes, so its size does not matter.
    """
    candidates, likely, costs = [], [], []
    for group in groups:
        if group.kind == "node":
            book, of_ids = group.book, chances.nodes[group.type_index]
            cost = torch.full((len(of_ids),), float(group.item_bytes), dtype=torch.float64)
        else:
            book, of_ids = dataset.row_books()[group.type_index], chances.edges[group.type_index]
            cost = chances.degrees[group.type_index].double() * group.item_bytes
        for partition in asked:
            ids = book.local_ids(partition).long().sort().values
            ids = ids[(of_ids[ids] > 0) & (cost[ids] > 0) & (cost[ids] <= budget_bytes)]
            candidates.append(ids)
            likely.append(of_ids[ids])
            costs.append(cost[ids])
    cost = torch.cat(costs)
    order = cost.sort(stable=True).indices  # of equally likely ones the cheap come first: no large one takes all room
    order = order[torch.cat(likely)[order].sort(descending=True, stable=True).indices]
    takes = torch.zeros(len(order), dtype=torch.bool)
    takes[order] = cost[order].cumsum(0) <= budget_bytes
    parts = iter(
        [ids[take] for ids, take in zip(candidates, torch.split(takes, [len(ids) for ids in candidates]), strict=True)]
    )
    return [{partition: next(parts) for partition in asked} for _ in groups]


def rounds_of(by_partition: Mapping[int, torch.Tensor], block: int) -> Iterator[dict[int, torch.Tensor]]:
    """Ids in blocks, one of each partition at a time."""
    blocks = [torch.split(ids, block) for ids in by_partition.values()]
    for round_ in zip_longest(*blocks):
        found = zip(by_partition, round_, strict=True)
        yield {partition: ids for partition, ids in found if ids is not None and ids.numel()}


def _all_edges(edge_type: int, ids: torch.Tensor) -> _C.EncodedQuery:
    return _C.hop_query([(edge_type, ids, -1, _C.DrawMethod(), 0, None, None)], True)
