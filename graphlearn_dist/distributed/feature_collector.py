"""Feature lookup over partitions: one request per peer for all stores, the rows at hand meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from .. import _C
from ..core import thread_pool, to_tensor
from ..data.unified_tensor import gather_located
from ..messages import FeatureReply, FeatureRequest
from .dist_dataset import DistDataset
from .partition_service import LOOKUP, PartitionService
from .partitioned_sampler import OwnerSplit, Peers, split_by_owner
from .row_cache import CacheHits, RowCache

Located = tuple[torch.Tensor, torch.Tensor]  # owners int32 [n], rows at the owner int64 [n]
Made = TypeVar("Made")


@dataclass(frozen=True)
class RowSpec:
    """Shape and dtype of the rows that a lookup will give."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class FeatureCollector:
    """Looks up rows of every store for a batch.

    ``start`` sends the requests, ``fill`` writes all rows into tensors the caller chose: each row is written once, in
    its final place.

    Args:
        dataset: this process's partition.
        services: the partitions at hand, this process's own among them.
        peers: the other partitions.
        num_threads: threads of one lookup.
    """

    def __init__(
        self, dataset: DistDataset, services: Sequence[PartitionService], peers: Peers, num_threads: int = 1
    ) -> None:
        self._services = {service.partition_idx: service for service in services}
        self._num_partitions = dataset.num_partitions
        self._whole = dataset.is_whole
        self._stores = dataset.stores()
        self._books = {name: book.native for name, book in dataset.store_books().items()}
        # Where all partitions are at hand, a copy of their rows is no closer than the rows.
        caches = dataset.row_caches() if len(self._services) < self._num_partitions else {}
        self._caches = {name: RowCache(rows) for name, rows in caches.items() if len(rows.ids)}
        self._peers = peers
        self._pool = thread_pool(num_threads)
        self.store_names = frozenset(self._stores)

    def start(self, wanted: Mapping[str, torch.Tensor]) -> Lookup:
        """Begins a lookup of ids (int64, any order, duplicates allowed) by store; asks the peers."""
        if self._whole:
            return Lookup(self, wanted)
        if len(self._services) == self._num_partitions:
            return Lookup(self, wanted, located=self._locate(wanted))
        splits = self._split(wanted)
        hits = {}
        for name in splits.keys() & self._caches.keys():
            splits[name], hits[name] = self._caches[name].take(splits[name])
        asked = {}
        for partition in range(self._num_partitions):
            names = tuple(name for name, split in splits.items() if split.count(partition))
            if partition not in self._services and names:
                ids = tuple(splits[name].part(splits[name].ids, partition) for name in names)
                asked[partition] = names, self._peers.ask(partition, LOOKUP, FeatureRequest(names, ids))
        return Lookup(self, wanted, splits=splits, asked=asked, cached=hits)

    def _split(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, OwnerSplit]:
        return self._once_per_ids(wanted, lambda book, ids: split_by_owner(book, ids, self._pool))

    def _locate(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, Located]:
        def locate(book: _C.PartitionBook, ids: torch.Tensor) -> Located:
            owners, rows = book.locate(ids, self._pool)
            return to_tensor(owners), to_tensor(rows)

        return self._once_per_ids(wanted, locate)

    def _once_per_ids(
        self, wanted: Mapping[str, torch.Tensor], make: Callable[[_C.PartitionBook, torch.Tensor], Made]
    ) -> dict[str, Made]:
        """By store, what is made of its book and its ids; stores of one type share both, and so the result."""
        made: dict[tuple[int, int], Made] = {}
        by_store = {}
        for name, ids in wanted.items():
            key = id(ids), id(self._books[name])
            if key not in made:
                made[key] = make(self._books[name], ids)
            by_store[name] = made[key]
        return by_store

    def spec(self, name: str, ids: torch.Tensor) -> RowSpec:
        """What the rows of ``ids`` in a store will look like."""
        rows = self._stores[name]
        return RowSpec((ids.numel(), *rows.shape[1:]), rows.dtype)

    def gather_at_hand(self, name: str, split: OwnerSplit, out: torch.Tensor) -> None:
        """Writes the rows of the partitions at hand to their places."""
        for partition, service in self._services.items():
            if split.count(partition):
                positions, rows = split.part(split.positions, partition), split.part(split.rows, partition)
                service.gather_rows(name, rows, positions, out)

    def gather_located(self, name: str, located: Located, out: torch.Tensor) -> None:
        """Writes the rows that stand in these places of the partitions, all of which are at hand."""
        tensors = [self._services[partition].rows(name) for partition in range(self._num_partitions)]
        gather_located(tensors, located, out, self._pool)

    def gather_cached(self, name: str, hits: CacheHits, out: torch.Tensor) -> None:
        """Writes rows of other partitions that this one keeps copies of."""
        self._caches[name].gather_into(out, hits)

    def gather_whole(self, name: str, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the rows of ``ids`` in their order; only where this partition is the whole data set."""
        self._stores[name].unified.gather_all(out, ids)

    def scatter(self, split: OwnerSplit, partition: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Writes rows that a peer answered to their places."""
        _C.scatter_rows(out, split.part(split.positions, partition), rows, self._pool)


@dataclass(frozen=True)
class Lookup:
    """A lookup under way; see ``FeatureCollector``."""

    collector: FeatureCollector
    wanted: Mapping[str, torch.Tensor]
    located: Mapping[str, Located] = field(default_factory=dict)
    splits: Mapping[str, OwnerSplit] = field(default_factory=dict)
    asked: Mapping[int, tuple[tuple[str, ...], Any]] = field(default_factory=dict)
    cached: Mapping[str, CacheHits] = field(default_factory=dict)

    def specs(self) -> dict[str, RowSpec]:
        """By store, what the rows will look like."""
        return {name: self.collector.spec(name, ids) for name, ids in self.wanted.items()}

    async def fill(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Writes every row into ``outputs`` (by store, of the shapes and dtypes that ``specs`` gave)."""
        for name, ids in self.wanted.items():
            if name in self.located:
                self.collector.gather_located(name, self.located[name], outputs[name])
            elif name in self.splits:
                self.collector.gather_at_hand(name, self.splits[name], outputs[name])
            else:
                self.collector.gather_whole(name, ids, outputs[name])
        for name, hits in self.cached.items():
            self.collector.gather_cached(name, hits, outputs[name])
        for partition, (names, answer) in self.asked.items():
            reply: FeatureReply = await answer
            for name, rows in zip(names, reply.rows, strict=True):
                self.collector.scatter(self.splits[name], partition, rows, outputs[name])
