"""Feature lookup over partitions: one request per peer for all stores, then one pass over rows at hand and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from ... import _C
from ...core import thread_pool, to_tensor
from ...data.disk_tier import Announced
from ...data.feature import counts_of_caches
from ...data.unified_tensor import UnifiedTensor, gather_located, row_stores
from ...errors import InvalidArgumentError, UnknownIdError
from ...messages import Subgraph
from ...partition import CachedRows, OwnedEdgesBook
from ...telemetry import DeviceCacheCounts
from ...utils.coroutines import run_local
from ..dist_dataset import DistDataset
from ..partitions.partition_peers import Peers
from ..partitions.partition_service import PartitionService
from .recent_rows import Blocks, RecentRows, group_stores, keep_of, row_bytes
from .row_cache import CopyPlaces, RowCache, open_caches

Wanted: TypeAlias = Mapping[str, torch.Tensor]  # of a batch by store, which rows: int64 [n]
Sources: TypeAlias = Sequence[_C.RowStore | None]  # by `LocatedRows.owners`, where the rows of a store lie


@dataclass(frozen=True)
class LocatedRows:
    """The places of a list of ids.

    Attributes:
        owners: int32 ``[n]``, the partition of each, in the order of the list; their number for a copy, above that
            1 + the block of a recent row.
        rows: int64 ``[n]``, its row there where the partition is at hand, or of the copy, else its place in the answer.
        ids: int64 ``[m]``, those to be asked for, grouped by owner; also for other lists, see ``ask_once``.
        positions: int64 ``[m]``, where each of them stands in the list; None where they are for others, too.
        offsets: int64 ``[num_partitions + 1]``, bounds of the groups.
        bounds: the same as a list.
        num_copied: how many are copies.
        num_recent: how many are recent rows.
    """

    owners: torch.Tensor
    rows: torch.Tensor
    ids: torch.Tensor
    positions: torch.Tensor | None
    offsets: torch.Tensor
    bounds: list[int]
    num_copied: int = 0
    num_recent: int = 0

    @classmethod
    def of(cls, found: Sequence[Any]) -> LocatedRows:
        """Of what ``_C.locate_rows`` and ``_C.locate_owned`` give."""
        owners, rows, ids, positions, offsets = map(to_tensor, found[:5])
        return cls(owners, rows, ids, positions, offsets, offsets.tolist(), *found[5:])

    @property
    def asked(self) -> list[int]:
        """The partitions that have to be asked."""
        return [at for at, (first, end) in enumerate(pairwise(self.bounds)) if first < end]

    def asked_of(self, partition: int) -> torch.Tensor:
        """The ids to ask a partition for."""
        return self.ids[self.bounds[partition] : self.bounds[partition + 1]]


def ask_once(located: Sequence[Mapping[str, LocatedRows]]) -> list[dict[str, LocatedRows]]:
    """The same places, by batch and store, where all lists of a store ask together, for each id once."""
    found: list[dict[str, LocatedRows]] = [{} for _ in located]
    made: dict[tuple[int, ...], list[LocatedRows]] = {}  # stores of one type lie in the same places
    for name in dict.fromkeys(name for of_batch in located for name in of_batch):
        having = [batch for batch, of_batch in enumerate(located) if name in of_batch]
        lists = [located[batch][name] for batch in having]
        key = tuple(map(id, lists))
        if key not in made:
            rows, *asked = _C.ask_once([(each.rows, each.ids, each.positions, each.offsets) for each in lists])
            ids, offsets = map(to_tensor, asked)
            bounds = offsets.tolist()
            made[key] = [
                replace(each, rows=to_tensor(places), ids=ids, positions=None, offsets=offsets, bounds=bounds)
                for each, places in zip(lists, rows, strict=True)
            ]
        for batch, places in zip(having, made[key], strict=True):
            found[batch][name] = places
    return found


def _native(copies: CopyPlaces | None) -> tuple[_C.SortedIds | None, torch.Tensor | None]:
    return (None, None) if copies is None else (copies.ids, copies.rows)


class FeatureCollector:
    """Looks up rows of every store for a batch.

    ``start`` sends the requests, one a partition for any number of batches; ``fill`` writes all rows into tensors that
    the caller chose: each row is written once, in its final place, from where it lies, be that a partition at hand, a
    cache or an answer.

    Args:
        dataset: this process's partition.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one lookup.

    Attributes:
        store_names: of the rows that it looks up.
        counts: int64 ``[3]``, ids of other partitions of which there was a copy, ids of which there was none (each once
            a batch, however many stores have rows of it), and bytes of rows that were copied. It adds up here.
        recent_bytes: of rows that were kept of earlier answers, by what batches looked up; it adds up.
    """

    def __init__(
        self, dataset: DistDataset, services: Sequence[PartitionService], peers: Peers, num_threads: int = 1
    ) -> None:
        self._services = {service.partition_idx: service for service in services}
        self._num_partitions = dataset.num_partitions
        self._is_asked = [partition not in self._services for partition in range(self._num_partitions)]
        self._whole = dataset.is_whole
        self._stores = dataset.stores()
        books = dataset.store_books()
        self._with_edges = frozenset(name for name, book in books.items() if isinstance(book, OwnedEdgesBook))
        self._books = {name: book.native for name, book in books.items() if name not in self._with_edges}
        specs, row_books = dataset.schema.edge_specs, dataset.row_books()
        # Features and columns of edges that lie with these: by store the edge type, and by that the type of the nodes
        # in whose rows those are, and the book of these.
        self._edge_types = {name: int(name.split(":")[1]) for name in self._with_edges & self._stores.keys()}
        self._row_ends = {i: (specs[i][0], row_books[i].native) for i in self._edge_types.values()}
        # Where all partitions are at hand, a copy of their rows is no closer than the rows.
        self._own_copies = dataset.row_caches() if len(self._services) < self._num_partitions else {}
        self._caches = open_caches(self._own_copies)
        self._recent: dict[str, RecentRows] = {}  # by store; those of one type have one
        self._most_recent_bytes, self._kept_stores = 0, frozenset[str]()
        self.recent_bytes = 0
        self.counts = torch.zeros(3, dtype=torch.int64)
        self._peers = peers
        self._pool = thread_pool(num_threads)
        self._num_threads = num_threads
        self.store_names = frozenset(self._stores)
        self._row_bytes = {name: row_bytes(of) for name, of in self._stores.items()}

    def reads_edges(self, stores: frozenset[str]) -> bool:
        """Whether ``places_in`` reads a batch's edges to find their rows of these stores."""
        return not stores.isdisjoint(self._edge_types)

    def use_copies(self, copies: Mapping[str, CachedRows]) -> None:
        """Lookups that start from now on use these copies too, by store, in place of those that were given before.

        Places that were found before must not be started after.
        """
        if len(self._services) < self._num_partitions:
            self._caches = open_caches(self._own_copies, copies)
            self.keep_recent(self._kept_stores, self._most_recent_bytes)

    def keep_recent(self, stores: frozenset[str], nbytes: int) -> None:
        """Lookups that start from now on keep the rows that they were answered, in place of what was kept before.

        None where too little of what may be asked for finds room (see ``recent_rows.keep_of``), nor features and
        columns of edges that lie with these.

        Args:
            stores: those that are always looked up together.
            nbytes: that they may take; 0 keeps none.
        """
        self._most_recent_bytes, self._kept_stores = nbytes, stores
        asked = [partition for partition, is_asked in enumerate(self._is_asked) if is_asked]

        def describe(name: str) -> tuple[int, int]:
            book, copies = self._books[name], self._copies_of(name)
            return book.num_ids, sum(map(book.size, asked)) - (0 if copies is None else copies.count)

        def alike(name: str) -> tuple[int, int]:
            return id(self._books[name]), id(self._copies_of(name))

        self._recent = keep_of(group_stores(stores & self._books.keys(), alike, describe, self._stores), nbytes)

    def places_in(self, subgraph: Subgraph, wanted: Mapping[str, torch.Tensor]) -> dict[str, LocatedRows]:
        """For stores of edge features that lie with their edges, the places of a batch's edges (``wanted``).

        An edge's features lie with the node that it was sampled for, which no request is needed to know.
        """
        owners: dict[int, torch.Tensor] = {}
        if not self._edge_types:
            return {}
        for edge_type in {self._edge_types[name] for name in wanted.keys() & self._with_edges}:
            seed_type, book = self._row_ends[edge_type]
            cols = subgraph.cols[edge_type]
            # Many edges share a node; those that nothing was sampled for come last.
            seeds = subgraph.nodes[seed_type][: int(cols.max()) + 1 if cols.numel() else 0]
            owners[edge_type] = to_tensor(book.locate(seeds, self._pool)[0])[cols]
        return self._places(wanted, {name: owners[i] for name, i in self._edge_types.items() if i in owners})

    def _places(self, wanted: Mapping[str, torch.Tensor], owners: Mapping[str, torch.Tensor]) -> dict[str, LocatedRows]:
        made: dict[tuple[int, int, int, int], LocatedRows] = {}  # stores of one type lie in the same places
        places = {}
        for name in wanted.keys() & owners.keys():
            copies = self._copies_of(name)
            key = self._edge_types[name], id(wanted[name]), id(owners[name]), id(copies)
            if key not in made:
                services = map(self._services.get, range(self._num_partitions))
                at_hand = [None if service is None else service.sorted_ids(name) for service in services]
                made[key] = LocatedRows.of(
                    _C.locate_owned(owners[name], wanted[name], at_hand, self._pool, *_native(copies))
                )
            places[name] = made[key]
        return places

    async def ask_places(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, LocatedRows]:
        """The same where no more is known of edges than their ids (by store): every partition is asked which it has.

        Raises:
            UnknownIdError: no partition has an edge of such an id.
        """
        names = tuple(sorted(wanted.keys() & self._with_edges))
        if not names:
            return {}
        others = [p for p in range(self._num_partitions) if p not in self._services]
        query = _C.owned_query(names, [wanted[name] for name in names])
        lengths = [wanted[name].numel() for name in names]
        under_way = self._peers.run(lambda: _C.SingleRound([(p, query, lengths) for p in others])) if others else None
        owned = {p: [service.owned(name, wanted[name]) for name in names] for p, service in self._services.items()}
        if under_way is not None:
            for partition, answer in zip(others, (await under_way).answers(), strict=True):
                owned[partition] = [to_tensor(each) for each in answer]
        owners = {name: torch.full((wanted[name].numel(),), -1, dtype=torch.int32) for name in names}
        for partition, of_partition in owned.items():
            for name, is_owned in zip(names, of_partition, strict=True):
                owners[name][is_owned.to(torch.bool)] = partition
        for name, found in owners.items():
            if found.numel() and int(found.min()) < 0:
                place = int(found.argmin())
                raise UnknownIdError(f"ids[{place}]: no partition has an edge {int(wanted[name][place])}")
        return self._places(wanted, owners)

    def start(
        self, wanted: Sequence[Wanted], places: Sequence[Mapping[str, LocatedRows]], *, repeats: bool = False
    ) -> Lookup:
        """Begins a lookup of the ids (int64, any order, duplicates allowed) of some batches by store; asks the peers.

        Args:
            wanted: by batch and store, the ids.
            places: by batch, those of ``places_in`` or ``ask_places``.
            repeats: it pays to look for ids that a batch has more than once. What several batches have is asked for
                once in any case.
        """
        if self._whole:
            return Lookup(self, wanted)
        located = [{**self._locate(of_batch), **of_edges} for of_batch, of_edges in zip(wanted, places, strict=True)]
        for of_batch in located:
            self._count(of_batch)
        if (repeats or len(wanted) > 1) and any(of.ids.numel() for of_batch in located for of in of_batch.values()):
            located = ask_once(located)
        together = {name: of for of_batch in located for name, of in of_batch.items()}
        asked: list[list[str]] = [[] for _ in range(self._num_partitions)]
        for name, of in together.items():
            for partition in of.asked:
                asked[partition].append(name)
        kept = {name: self._recent[name].blocks(name) for name in together if name in self._recent}
        if not any(asked):
            return Lookup(self, wanted, located, caches=self._caches, kept=kept)
        questions = []
        for partition, names in enumerate(asked):
            if names:
                ids = [together[name].asked_of(partition) for name in names]
                questions.append((partition, _C.rows_query(names, ids), [one.numel() for one in ids]))
        under_way = self._peers.run(lambda: _C.SingleRound(questions))
        return Lookup(self, wanted, located, asked, under_way, self._caches, kept, together)

    def unwritten(self, wanted: Sequence[Wanted]) -> list[dict[str, torch.Tensor]]:
        """By batch and store, tensors for the rows. Large ones are address space only as long as nobody writes them."""
        return [
            {
                name: torch.empty((ids.numel(), *self._stores[name].shape[1:]), dtype=self._stores[name].dtype)
                for name, ids in of_batch.items()
            }
            for of_batch in wanted
        ]

    def look_up(self, wanted: Wanted) -> dict[str, torch.Tensor]:
        """Rows by store, in the order of the ids, for who has no event loop; peers must never wait in a coroutine."""
        lookup = self.start([wanted], [run_local(self.ask_places(wanted))])
        (found,) = self.unwritten([wanted])
        run_local(lookup.fill([found]))
        return found

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """Of rows that a GPU gathers (``gather_each``); None without such caches. Waits for the GPU."""
        return counts_of_caches(self._stores)

    @property
    def reads_disk(self) -> bool:
        """Whether rows of partitions at hand are read from files, past their mappings."""
        return any(service.disk_tier(name) for service in self._services.values() for name in self.store_names)

    def announce(self, wanted: Mapping[str, torch.Tensor], places: Mapping[str, LocatedRows]) -> Announced:
        """Tells those who read rows from files of a lookup that will come; see ``start`` for the arguments."""
        if self._whole:
            found = ((self._stores[name].disk_tier, ids) for name, ids in wanted.items())
            return Announced((tier, rows) for tier, rows in found if tier is not None)
        located = self._locate(wanted)
        return Announced(
            (tier, of.rows[of.owners == partition])
            for partition, service in self._services.items()
            for name, of in {**located, **places}.items()
            if (tier := service.disk_tier(name)) is not None
        )

    def _copies_of(self, name: str) -> CopyPlaces | None:
        return self._caches[name].places if name in self._caches else None

    def _count(self, located: Mapping[str, LocatedRows]) -> None:
        """Adds to ``counts``, where there are copies."""
        if not self._caches:
            return
        for of in {id(of): of for of in located.values()}.values():  # places, which stores share
            self.counts[:2] += torch.tensor([of.num_copied, of.ids.numel() + of.num_recent])
        for name in located.keys() & self._caches.keys():
            self.counts[2] += located[name].num_copied * self._caches[name].row_bytes

    def _locate(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, LocatedRows]:
        """Where rows lie, but for those that lie with their edges."""
        # Stores of one type share ids, book and copies, and so the places.
        made: dict[tuple[int, int, int, int], LocatedRows] = {}
        located = {}
        for name, ids in wanted.items():
            if name in self._with_edges:
                continue
            copies, recent = self._copies_of(name), self._recent_of(name, wanted)
            key = id(ids), id(self._books[name]), id(copies), id(recent)
            if key not in made:
                kept = None if recent is None else recent.ids
                made[key] = LocatedRows.of(
                    _C.locate_rows(self._books[name], ids, self._is_asked, self._pool, *_native(copies), kept)
                )
            located[name] = made[key]
        return located

    def _recent_of(self, name: str, wanted: Mapping[str, torch.Tensor]) -> RecentRows | None:
        """What a store's rows are kept in, where all that share it are wanted."""
        recent = self._recent.get(name)
        return recent if recent is not None and recent.stores <= wanted.keys() else None

    def sources(self, name: str, answers: Mapping[int, torch.Tensor], cache: RowCache | None, kept: Blocks) -> Sources:
        """Where the rows of a store lie, by ``LocatedRows.owners``; given the copies, and what partitions answered."""
        sources: list[UnifiedTensor | torch.Tensor | None] = [None] * self._num_partitions
        for partition, service in self._services.items():
            sources[partition] = service.rows(name)
        own = self._stores[name]
        for partition, rows in answers.items():
            if rows.dtype != own.dtype or rows.shape[1:] != own.shape[1:]:
                raise InvalidArgumentError(
                    f"{name}: partition {partition} has rows of {rows.dtype} {list(rows.shape[1:])}, another one of "
                    f"{own.dtype} {list(own.shape[1:])}"
                )
            sources[partition] = rows
        return row_stores([*sources, None if cache is None else cache.tensor, *kept])

    def gather(self, sources: Sources, located: LocatedRows, out: torch.Tensor) -> None:
        """Writes the rows of a store."""
        gather_located(sources, located.owners, located.rows, out, self._pool)

    def count_recent(self, located: Mapping[str, LocatedRows]) -> None:
        """Adds to ``recent_bytes`` what a batch was given."""
        self.recent_bytes += sum(of.num_recent * self._row_bytes[name] for name, of in located.items())

    def keep(self, located: Mapping[str, LocatedRows], answers: Mapping[str, Mapping[int, torch.Tensor]]) -> None:
        """Keeps the rows that partitions answered, by store."""
        for recent in set(self._recent.values()):
            if not recent.stores <= answers.keys():
                continue
            places = {id(located[store]): located[store] for store in recent.stores}
            if len(places) == 1:
                (of,) = places.values()
                for partition in of.asked:
                    of_stores = {store: answers[store][partition] for store in recent.stores}
                    recent.keep(of.asked_of(partition), of_stores, self._pool)

    def gather_whole(self, name: str, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of ``ids`` in their order; only where this partition is the whole data set."""
        self._stores[name].unified.gather_all(out, ids)

    def gather_each(self, wanted: Wanted) -> dict[str, torch.Tensor]:
        """New tensors of rows by store: on a GPU those that it gathers, the others where the ids lie; likewise."""
        found = {}
        for name, ids in wanted.items():
            store = self._stores[name]
            if store.gathers_on_gpu:
                found[name] = store.gather(ids, num_threads=self._num_threads)
            else:  # rows are in the order of ids
                found[name] = store.unified.gather(ids, dtype=store.out_dtype, num_threads=self._num_threads)
        return found


@dataclass(frozen=True)
class Lookup:
    """A lookup under way, for some batches; see ``FeatureCollector``."""

    collector: FeatureCollector
    wanted: Sequence[Wanted]
    located: Sequence[Mapping[str, LocatedRows]] = ()
    asked: Sequence[Sequence[str]] = ()
    under_way: Awaitable[_C.SingleRound] | None = None
    caches: Mapping[str, RowCache] = field(default_factory=dict)
    kept: Mapping[str, Blocks] = field(default_factory=dict)
    together: Mapping[str, LocatedRows] = field(default_factory=dict)

    async def fill(self, outputs: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Writes every row into ``outputs`` (by batch and store, as ``FeatureCollector.unwritten`` makes them)."""
        answers: dict[str, dict[int, torch.Tensor]] = {}
        if self.under_way is not None:
            answered = iter((await self.under_way).answers())
            for partition, names in enumerate(self.asked):
                for name, rows in zip(names, next(answered) if names else (), strict=True):
                    answers.setdefault(name, {})[partition] = to_tensor(rows)
        sources: dict[str, Sources] = {}
        for batch, wanted in enumerate(self.wanted):
            for name, ids in wanted.items():
                out = outputs[batch][name]
                if ids.numel() == 0:
                    continue
                if self.located and name in self.located[batch]:
                    if name not in sources:
                        found, cache = answers.get(name, {}), self.caches.get(name)
                        sources[name] = self.collector.sources(name, found, cache, self.kept.get(name, ()))
                    self.collector.gather(sources[name], self.located[batch][name], out)
                else:
                    self.collector.gather_whole(name, ids, out)
        if self.kept:
            for located in self.located:
                self.collector.count_recent(located)
        if answers:
            self.collector.keep(self.together, answers)
