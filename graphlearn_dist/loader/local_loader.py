"""What all loaders of a data set in this process share: epochs, prefetching, PyG objects."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..data.dataset import Dataset
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from ..sampler.batches import LocalBatches
from ..sampler.convert import to_pyg_v1
from ..sampler.inputs import resolve_input
from .prefetch import check_prefetch, made_ahead
from .transform import to_pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Transform = Callable[[Any], Any]


class LocalLoader:
    """Mini-batches from a data set held in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the input and the config. Each ``iter()`` starts the
    next epoch, from 0, and carries nothing over from the one before; ``next(loader)`` goes on in the latest.

    Args:
        data: graph, features and labels.
        sampler_input: seeds or links.
        config: how to sample.
        device: where batches go; None leaves them on the host.
        transform: called with each batch, in the thread that iterates.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        as_pyg_v1: yield (batch size, ids, layers) instead of PyG objects.
    """

    def __init__(
        self,
        data: Dataset,
        sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput,
        config: SamplingConfig,
        *,
        device: torch.device | None = None,
        transform: Transform | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        as_pyg_v1: bool = False,
    ) -> None:
        self.data = data
        self.config = config
        self.batches = LocalBatches(data, resolve_input(sampler_input, data), config, num_threads)
        self.epoch = -1
        self._schema = data.schema
        self._device = device
        self._transform = transform
        self._prefetch = check_prefetch(prefetch)
        self._as_pyg_v1 = as_pyg_v1
        self._latest: weakref.ref[Iterator[Any]] | None = None  # weak: a loop that is left ends its threads
        self._own: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Batches of one epoch."""
        return self.batches.schedule.num_batches

    def __iter__(self) -> Iterator[Data | HeteroData]:
        self.epoch += 1
        iterator = self._iterate(self.epoch)
        self._latest, self._own = weakref.ref(iterator), None
        return iterator

    def __next__(self) -> Data | HeteroData:
        """The next batch of the epoch that ``iter()`` began last, where that is still held; else of a new one."""
        latest = self._latest() if self._latest is not None else None
        if latest is None:
            latest = iter(self)
            self._own = latest
        return next(latest)

    def _iterate(self, epoch: int) -> Generator[Any, None, None]:
        made = made_ahead(lambda index: self._make(epoch, index), len(self), self._prefetch)
        with contextlib.closing(made):
            for batch in made:
                yield self._finish(batch)

    def batch(self, epoch: int, index: int) -> Data | HeteroData:
        """One batch by its name, for example to look at "batch 4711 of epoch 3"."""
        return self._finish(self._make(epoch, index))

    def _make(self, epoch: int, index: int) -> Any:
        batch = self.batches.make(epoch, index)
        return to_pyg_v1(batch) if self._as_pyg_v1 else to_pyg(batch, self._schema, with_edge_ids=self.config.with_edge)

    def _finish(self, batch: Any) -> Any:
        if self._device is not None and not self._as_pyg_v1:
            batch = batch.to(self._device)
        return batch if self._transform is None else self._transform(batch)
