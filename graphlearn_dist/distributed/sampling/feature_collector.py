"""Feature lookup over partitions: one request per peer for all stores, then one pass over rows at hand and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ... import _C
from ...core import thread_pool, to_tensor
from ...data.columns import node_type_of
from ...data.disk_tier import Announced
from ...data.feature import counts_of_caches
from ...data.unified_tensor import row_stores
from ...errors import UnknownIdError
from ...messages import Subgraph
from ...partition import CachedRows, OwnedEdgesBook
from ...telemetry import DeviceCacheCounts
from ...utils.coroutines import run_local
from ..dist_dataset import DistDataset
from ..partitions.partition_peers import Peers
from ..partitions.partition_service import PartitionService
from .recent_rows import RecentRows, group_stores, keep_of
from .row_cache import CopyPlaces, RowCache, open_caches

Wanted: TypeAlias = Mapping[str, torch.Tensor]  # of a batch by store, which rows: int64 [n]
# Where rows are that lie with their edges: what ``_C.locate_owned`` gives, its arrays as tensors.
Places: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int]


@dataclass(frozen=True)
class RowPlan:
    """The rows that lookups want, and where those lie when they begin.

    Attributes:
        native: the same for the core, by groups of stores whose rows are looked up by the same ids.
        places: by store, its group, and its place among the stores of that.
        caches: the copies, by store.
    """

    native: _C.RowPlan
    places: Mapping[str, tuple[int, int]]
    caches: Mapping[str, RowCache]

    @property
    def first_stores(self) -> list[str]:
        """A store of each group."""
        return [name for name, (_, place) in self.places.items() if place == 0]


def _native(copies: CopyPlaces | None) -> tuple[_C.SortedIds | None, torch.Tensor | None]:
    return (None, None) if copies is None else (copies.ids, copies.rows)


class FeatureCollector:
    """Looks up rows of every store for a batch.

    ``start`` sends the requests, one a partition for any number of batches; or the exchange that samples batches does,
    as its last round, by a ``plan_of_nodes``. ``fill`` writes all rows into tensors that the caller chose: each row is
    written once, in its final place, from where it lies, be that a partition at hand, a cache or an answer.

    Args:
        dataset: this process's partition.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one lookup.

    Attributes:
        store_names: of the rows that it looks up.
        counts: int64 ``[3]``, ids of other partitions of which there was a copy, ids of which there was none (each once
            a batch for stores that have copies of the same ids), and bytes of rows that were copied. It adds up here;
            None where nobody wants to know.
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
        self._plans: dict[
            tuple[frozenset[str], bool], RowPlan | None
        ] = {}  # of nodes, as long as copies and such are these
        self._most_recent_bytes, self._kept_stores = 0, frozenset[str]()
        self.recent_bytes = 0
        self.counts: torch.Tensor | None = None
        self._peers = peers
        self._pool = thread_pool(num_threads)
        self._num_threads = num_threads
        self.store_names = frozenset(self._stores)
        self._row_bytes = {name: of.row_bytes for name, of in self._stores.items()}

    def reads_edges(self, stores: frozenset[str]) -> bool:
        """Whether ``places_in`` reads a batch's edges to find their rows of these stores."""
        return not stores.isdisjoint(self._edge_types)

    def use_copies(self, copies: Mapping[str, CachedRows]) -> None:
        """Lookups that start from now on use these copies too, by store, in place of those that were given before.

        Places that were found before must not be started after.
        """
        if len(self._services) < self._num_partitions:
            self._caches = open_caches(self._own_copies, copies)
            self._plans.clear()
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

        self._plans.clear()
        self._recent = keep_of(group_stores(stores & self._books.keys(), alike, describe, self._stores), nbytes)
        for recent in {id(recent): recent for recent in self._recent.values()}.values():
            first = recent.stores[0]
            recent.native.find_also(self._books[first], self._is_asked, *_native(self._copies_of(first)))

    def places_in(self, subgraph: Subgraph, wanted: Wanted) -> dict[str, Places]:
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

    def _places(self, wanted: Wanted, owners: Mapping[str, torch.Tensor]) -> dict[str, Places]:
        made: dict[tuple[int, int, int, int], Places] = {}  # stores of one type lie in the same places
        places = {}
        for name in wanted.keys() & owners.keys():
            copies = self._copies_of(name)
            key = self._edge_types[name], id(wanted[name]), id(owners[name]), id(copies)
            if key not in made:
                services = map(self._services.get, range(self._num_partitions))
                at_hand = [None if service is None else service.sorted_ids(name) for service in services]
                found = _C.locate_owned(owners[name], wanted[name], at_hand, self._pool, *_native(copies))
                a, b, c, d, e = map(to_tensor, found[:5])
                made[key] = a, b, c, d, e, found[5], found[6]
            places[name] = made[key]
        return places

    async def ask_places(self, wanted: Wanted) -> dict[str, Places]:
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
        self, wanted: Sequence[Wanted], places: Sequence[Mapping[str, Places]], *, repeats: bool = False
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
        plan, make = self._plan_of_ids(wanted, places, repeats=repeats)
        first = make()
        if not first.asks:
            return Lookup(self, wanted, plan, first.rows)
        begun = [first]
        under_way = self._peers.run(lambda: begun.pop() if begun else make())
        return Lookup(self, wanted, plan, under_way=under_way)

    def plan_of_nodes(self, stores: frozenset[str], *, repeats: bool = False) -> RowPlan | None:
        """What a ``_C.SampleExchange`` looks up of these stores for the nodes of its batches; see ``start``.

        None where there is nothing to ask for, or where edges have to be known.
        """
        key = stores, repeats
        if self._whole or not stores:
            return None
        if key not in self._plans:
            types = {name: number for name in sorted(stores) if (number := node_type_of(name)) is not None}
            self._plans[key] = None if len(types) < len(stores) else self._plan(types, types, repeats=repeats)
        return self._plans[key]

    def _plan_of_ids(
        self, wanted: Sequence[Wanted], places: Sequence[Mapping[str, Places]], *, repeats: bool
    ) -> tuple[RowPlan, Callable[[], _C.RowsExchange]]:
        """A plan of these ids, and what makes the exchange that looks them up."""
        known = [
            {**{name: ids for name, ids in of_batch.items() if name not in self._with_edges}, **of_edges}
            for of_batch, of_edges in zip(wanted, places, strict=True)
        ]
        names = dict.fromkeys(name for of_batch in known for name in of_batch)
        plan = self._plan({name: tuple(id(of.get(name)) for of in known) for name in names}, repeats=repeats)
        by_group = [[of_batch.get(name) for name in plan.first_stores] for of_batch in known]
        return plan, lambda: _C.RowsExchange(plan.native, by_group, self._pool)

    def _plan(
        self, alike: Mapping[str, Hashable], node_types: Mapping[str, int] | None = None, *, repeats: bool
    ) -> RowPlan:
        """A plan of stores; ``alike`` is equal for those whose rows are looked up by the same ids."""
        groups: dict[Hashable, list[str]] = {}
        for name, same in alike.items():
            recent = self._recent_of(name, alike)
            key = same, id(self._books.get(name)), id(self._copies_of(name)), id(recent)
            groups.setdefault(key, []).append(name)
        native = []
        places: dict[str, tuple[int, int]] = {}
        for group, names in enumerate(groups.values()):
            recent = self._recent_of(names[0], alike)
            if recent is not None and set(recent.stores) == set(names):
                names, kept = list(recent.stores), recent.native
            else:  # rows are kept of all of these stores alike, or of none
                kept = None
            places |= {name: (group, place) for place, name in enumerate(names)}
            first = names[0]
            copies = _native(self._copies_of(first))
            node_type = -1 if node_types is None else node_types[first]
            native.append((names, self._books.get(first), *copies, kept, node_type))
        return RowPlan(_C.RowPlan(native, self._is_asked, repeats), places, self._caches)

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
    def keeps_rows(self) -> bool:
        """Whether lookups keep rows that they were answered."""
        return bool(self._recent)

    @property
    def device_cache(self) -> DeviceCacheCounts | None:
        """Of rows that a GPU gathers (``gather_each``); None without such caches. Waits for the GPU."""
        return counts_of_caches(self._stores)

    @property
    def reads_disk(self) -> bool:
        """Whether rows of partitions at hand are read from files, past their mappings."""
        return any(service.disk_tier(name) for service in self._services.values() for name in self.store_names)

    def announce(self, wanted: Wanted, places: Mapping[str, Places]) -> Announced:
        """Tells those who read rows from files of a lookup that will come; see ``start`` for the arguments."""
        if self._whole:
            found = ((self._stores[name].disk_tier, ids) for name, ids in wanted.items())
            return Announced((tier, rows) for tier, rows in found if tier is not None)
        plan, make = self._plan_of_ids([wanted], [places], repeats=False)
        rows = make().rows
        located = [tuple(map(to_tensor, rows.located(0, group))) for group in range(len(plan.first_stores))]
        return Announced(
            (tier, located[group][1][located[group][0] == partition])
            for partition, service in self._services.items()
            for name, (group, _) in plan.places.items()
            if (tier := service.disk_tier(name)) is not None
        )

    def _copies_of(self, name: str) -> CopyPlaces | None:
        return self._caches[name].places if name in self._caches else None

    def _recent_of(self, name: str, wanted: Collection[str]) -> RecentRows | None:
        """What a store's rows are kept in, where all that share it are wanted."""
        recent = self._recent.get(name)
        return recent if recent is not None and all(store in wanted for store in recent.stores) else None

    def count(self, plan: RowPlan, rows: _C.RowLookup, batch: int, wanted: Wanted) -> None:
        """Adds a batch of a lookup to ``counts``, where somebody wants to know, and to ``recent_bytes``."""
        by_group = [
            rows.counts(batch, group) if name in wanted else (0, 0, 0) for group, name in enumerate(plan.first_stores)
        ]
        if self.counts is not None:
            for copied, recent, asked in by_group:
                self.counts[:2] += torch.tensor([copied, asked + recent])
        for name, (group, _) in plan.places.items():
            copied, recent, _ = by_group[group]
            self.recent_bytes += recent * self._row_bytes[name]
            if self.counts is not None and name in plan.caches:
                self.counts[2] += copied * plan.caches[name].row_bytes

    def held(self, name: str, plan: RowPlan) -> list[_C.RowStore | None]:
        """The rows of a store by partition at hand, None for the others; then its copies, or None."""
        services = map(self._services.get, range(self._num_partitions))
        rows = [None if service is None else service.rows(name) for service in services]
        cache = plan.caches.get(name)
        return row_stores([*rows, None if cache is None else cache.tensor])

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


@dataclass
class Lookup:
    """A lookup under way, for some batches; see ``FeatureCollector``.

    Attributes:
        collector: whose it is.
        wanted: by batch and store, the ids.
        plan: which rows these are; None where this partition is the whole data set.
        rows: them, when nobody is asked any more.
        under_way: until then, those who are asked.
    """

    collector: FeatureCollector
    wanted: Sequence[Wanted]
    plan: RowPlan | None = None
    rows: _C.RowLookup | None = None
    under_way: Awaitable[_C.RowsExchange] | None = None

    async def end(self) -> None:
        """Waits until all who are asked have answered."""
        if self.under_way is not None:
            self.rows, self.under_way = (await self.under_way).rows, None

    async def fill(self, outputs: Sequence[Mapping[str, torch.Tensor]], first: int = 0) -> None:
        """Writes the rows of all batches, or of some of them from one on, in turn; what is kept is, with the last.

        Args:
            outputs: by batch and store, as ``FeatureCollector.unwritten`` makes them.
            first: the batch that the first of them is of.
        """
        await self.end()
        rows, plan = self.rows, self.plan
        held: dict[str, list[_C.RowStore | None]] = {}
        for batch, of_batch in enumerate(outputs, first):
            wanted = self.wanted[batch]
            for name, ids in wanted.items():
                if ids.numel() == 0:
                    continue
                if plan is None or rows is None:
                    self.collector.gather_whole(name, ids, of_batch[name])
                    continue
                if name not in held:
                    held[name] = self.collector.held(name, plan)
                rows.gather(batch, *plan.places[name], held[name], of_batch[name])
            if plan is not None and rows is not None:
                self.collector.count(plan, rows, batch, wanted)
        if rows is not None and first + len(outputs) == len(self.wanted):
            rows.keep()
