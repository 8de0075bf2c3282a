"""Rows that other partitions own, of which this one keeps copies."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..data.unified_tensor import UnifiedTensor
from ..partition import CachedRows
from .partitioned_sampler import OwnerSplit


@dataclass(frozen=True)
class CacheHits:
    """Which cached rows (int64 ``[n]``) go to which positions (int64 ``[n]``) of a lookup's output."""

    positions: torch.Tensor
    rows: torch.Tensor


class RowCache:
    """Finds cached rows by id, in the memory of the ids: they are few, compared with the ids of the graph.

    Args:
        cached: ids and rows.
    """

    def __init__(self, cached: CachedRows) -> None:
        self._ids, self._rows = cached.ids.sort()
        self._feats = UnifiedTensor(0, cached.feats.dtype)
        self._feats.append_cpu_tensor(cached.feats)

    def take(self, split: OwnerSplit) -> tuple[OwnerSplit, CacheHits]:
        """The split without the ids that are cached, and where their rows go."""
        places = torch.searchsorted(self._ids, split.ids).clamp_(max=len(self._ids) - 1)
        is_hit = self._ids[places] == split.ids
        is_left = ~is_hit
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), is_left.cumsum(0)])
        offsets = counts[split.offsets]
        left = replace(
            split,
            ids=split.ids[is_left],
            rows=split.rows[is_left],
            positions=split.positions[is_left],
            offsets=offsets,
            bounds=offsets.tolist(),
        )
        return left, CacheHits(split.positions[is_hit], self._rows[places[is_hit]])

    def gather_into(self, out: torch.Tensor, hits: CacheHits) -> None:
        """Writes cached rows to their places."""
        self._feats.gather_into(out, hits.positions, hits.rows)
