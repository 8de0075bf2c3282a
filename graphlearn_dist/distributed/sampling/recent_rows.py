"""Rows that other partitions answered lately, which batches that follow want again where they reach much of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from ... import _C
from ...core import pooled_empty, to_tensor
from ...data.unified_tensor import UnifiedTensor, view_rows

_NUM_BLOCKS = 8  # the oldest goes as a whole; each is a place more that every gather may read from
MOST_ROWS = (1 << 31) - 1 - _NUM_BLOCKS  # that can be kept

Blocks: TypeAlias = Sequence[UnifiedTensor | None]  # None: no row has been kept in it


class RecentRows:
    """The rows that were kept last, of stores whose rows are looked up by the same ids. On one thread.

    Args:
        stores: their names.
        num_ids: of the book of these stores.
        most_rows: that are kept, one from each store; 1 to ``MOST_ROWS``.
    """

    def __init__(self, stores: Iterable[str], num_ids: int, most_rows: int) -> None:
        self.stores = frozenset(stores)
        self._num_ids = num_ids
        self._block_rows = -(-most_rows // _NUM_BLOCKS)
        self.forget()

    def forget(self) -> None:
        """Keeps nothing of what it has."""
        # First: should there be no memory for new ids, nobody finds rows by the old ones.
        self._tensors: dict[tuple[str, int], torch.Tensor] = {}
        self._views: dict[str, list[UnifiedTensor | None]] = {}
        self.ids = _C.RecentIds(self._num_ids, self._block_rows, _NUM_BLOCKS)

    def blocks(self, store: str) -> Blocks:
        """Where the rows lie that ``ids`` knows now. They stay there for whoever holds this."""
        return tuple(self._views.get(store, (None,) * _NUM_BLOCKS))

    def keep(self, ids: torch.Tensor, answers: Mapping[str, torch.Tensor], pool: _C.ThreadPool) -> None:
        """Keeps rows; none where there is no memory for them.

        Args:
            ids: int64 ``[n]``, each once.
            answers: by store the rows of the ids, ``[n, ...]``, in all calls of one dtype and shape.
            pool: whose threads copy them.
        """
        try:
            sources = {store: _C.RowStore([answers[store]]) for store in self.stores}
            for block, first, is_begun, which in self.ids.keep(ids):
                chosen = to_tensor(which)
                for store in self.stores:
                    if is_begun:
                        self._begin(store, block, answers[store])
                    out = self._tensors[store, block][first : first + chosen.numel()]
                    sources[store].gather(chosen, pool, out=out)
        except BaseException as error:
            self.forget()  # ids may have places where nothing was written
            if not isinstance(error, MemoryError):
                raise

    def _begin(self, store: str, block: int, like: torch.Tensor) -> None:
        rows = pooled_empty((self._block_rows, *like.shape[1:]), like.dtype)
        self._tensors[store, block] = rows
        views = list(self.blocks(store))
        views[block] = view_rows(rows)
        self._views[store] = views
