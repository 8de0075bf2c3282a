"""Feature lookup over partitions: one request per peer for all stores, the rows at hand meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from ..core import thread_pool
from ..messages import FeatureReply, FeatureRequest
from .dist_dataset import DistDataset
from .partition_service import LOOKUP, PartitionService
from .partitioned_sampler import OwnerSplit, Peers, split_by_owner
from .row_cache import CacheHits, RowCache


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
            return Lookup(self, wanted, {}, {}, {})
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
        return Lookup(self, wanted, splits, asked, hits)

    def _split(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, OwnerSplit]:
        made: dict[tuple[int, int], OwnerSplit] = {}  # stores of one type share ids and book, and so the split
        splits = {}
        for name, ids in wanted.items():
            key = id(ids), id(self._books[name])
            if key not in made:
                made[key] = split_by_owner(self._books[name], ids, self._pool)
            splits[name] = made[key]
        return splits

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
    splits: Mapping[str, OwnerSplit]
    asked: Mapping[int, tuple[tuple[str, ...], Any]]
    cached: Mapping[str, CacheHits]

    def specs(self) -> dict[str, RowSpec]:
        """By store, what the rows will look like."""
        return {name: self.collector.spec(name, ids) for name, ids in self.wanted.items()}

    async def fill(self, outputs: Mapping[str, torch.Tensor]) -> None:
        """Writes every row into ``outputs`` (by store, of the shapes and dtypes that ``specs`` gave)."""
        for name, ids in self.wanted.items():
            if name in self.splits:
                self.collector.gather_at_hand(name, self.splits[name], outputs[name])
            else:
                self.collector.gather_whole(name, ids, outputs[name])
        for name, hits in self.cached.items():
            self.collector.gather_cached(name, hits, outputs[name])
        for partition, (names, answer) in self.asked.items():
            reply: FeatureReply = await answer
            for name, rows in zip(names, reply.rows, strict=True):
                self.collector.scatter(self.splits[name], partition, rows, outputs[name])
