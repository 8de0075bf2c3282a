"""Rows that other partitions own, of which this one keeps copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ... import _C
from ...data.unified_tensor import UnifiedTensor
from ...partition import CachedRows


@dataclass(frozen=True)
class CopyPlaces:
    """Where copies lie.

    Attributes:
        ids: of which rows there are copies.
        rows: int64, where the copy of each id of that list lies; None where copies lie in the order of the list.
        count: how many there are.
    """

    ids: _C.SortedIds
    rows: torch.Tensor | None
    count: int

    @classmethod
    def of(cls, parts: Sequence[torch.Tensor]) -> CopyPlaces:
        """Of copies of these ids (int64, none twice), one part behind the other."""
        ids = parts[0] if len(parts) == 1 else torch.cat([*parts])
        if bool((ids[1:] > ids[:-1]).all()):
            return cls(_C.SortedIds(ids, with_bits=True), None, ids.numel())
        ordered, rows = ids.sort()
        return cls(_C.SortedIds(ordered, with_bits=True), rows, ids.numel())


@dataclass(frozen=True)
class RowCache:
    """Copies of the rows of one store.

    Attributes:
        places: where the row of an id lies; one object for stores of the same ids.
        tensor: the rows.
        row_bytes: of one of them.
    """

    places: CopyPlaces
    tensor: UnifiedTensor
    row_bytes: int


def open_caches(*layers: Mapping[str, CachedRows]) -> dict[str, RowCache]:
    """By store, the copies of all layers together, in which no id is twice."""
    places: dict[tuple[tuple[int, int], ...], CopyPlaces] = {}
    caches = {}
    for store in {store for layer in layers for store in layer}:
        parts = [layer[store] for layer in layers if store in layer and len(layer[store].ids)]
        if not parts:
            continue
        key = tuple((part.ids.data_ptr(), len(part.ids)) for part in parts)
        if key not in places:
            places[key] = CopyPlaces.of([part.ids for part in parts])
        rows = parts[0].feats
        tensor = UnifiedTensor(0, rows.dtype)
        for part in parts:
            tensor.append_cpu_tensor(part.feats)
        caches[store] = RowCache(places[key], tensor, rows[0].numel() * rows.element_size())
    return caches
