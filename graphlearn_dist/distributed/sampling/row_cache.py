"""Rows that other partitions own, of which this one keeps copies."""

from __future__ import annotations

import torch

from ...data.unified_tensor import UnifiedTensor
from ...partition import CachedRows
from .row_lookup import LocatedRows


class RowCache:
    """Finds cached rows by id, in the memory of the ids: they are few, compared with the ids of the graph.

    Args:
        cached: ids and rows.

    Attributes:
        tensor: the rows.
    """

    def __init__(self, cached: CachedRows) -> None:
        self._ids, self._rows = cached.ids.sort()
        self.tensor = UnifiedTensor(0, cached.feats.dtype)
        self.tensor.append_cpu_tensor(cached.feats)

    def take(self, located: LocatedRows, owner: int) -> LocatedRows:
        """The same places, but that ids which are cached are not asked for: their rows are those of ``owner``."""
        if len(self._ids) == 0:
            return located
        places = torch.searchsorted(self._ids, located.ids).clamp_(max=len(self._ids) - 1)
        is_hit = self._ids[places] == located.ids
        hits, left = located.positions[is_hit], located.positions[~is_hit]
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), (~is_hit).cumsum(0)])
        offsets = counts[located.offsets]
        owners, rows = located.owners.clone(), located.rows.clone()  # other stores of the type share them
        owners[hits], rows[hits] = owner, self._rows[places[is_hit]]
        rows[left] = torch.arange(len(left)) - offsets[owners[left].long()]
        return LocatedRows(owners, rows, located.ids[~is_hit], left, offsets, offsets.tolist())
