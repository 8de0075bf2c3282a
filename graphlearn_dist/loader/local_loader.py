"""What all loaders of a data set in this process share: prefetching, PyG objects."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..data.dataset import Dataset
from ..data.device_copies import Copy, DeviceCopies
from ..errors import InvalidArgumentError
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from ..sampler.batches import LocalBatches, with_own_times
from ..sampler.convert import to_pyg_v1
from ..sampler.fingerprint import Settings, config_settings, input_settings
from ..sampler.inputs import resolve_input
from ..sampler.padding import StaticShapes
from ..sampler.schedule import BatchIndices
from ..sampler.static_batches import StaticBatches, ask, make_static_batches, new_request
from .epochs import EpochLoader
from .prefetch import check_prefetch, made_ahead
from .resume import Shard
from .transform import padded_to_pyg, to_pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Transform = Callable[[Any], Any]


class LocalLoader(EpochLoader):
    """Mini-batches from a data set held in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the input and the config. Several iterations may be
    under way at once; each is an epoch of its own.

    Args:
        data: graph, features and labels.
        sampler_input: seeds or links.
        config: how to sample.
        device: where batches go; None leaves them on the host. Background threads begin the copies to a GPU, from
            pinned memory on a stream of their own; the caller's current stream waits for that of the batch it is given.
        transform: called with each batch, in the thread that iterates.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them. Without them the loader
            may also be used in a fork of its process, such as a worker of a torch ``DataLoader``.
        as_pyg_v1: yield (batch size, ids, layers) instead of PyG objects.
        static_shapes: whether all batches have tensors of the same shapes, and which.

    Raises:
        InvalidArgumentError: static shapes of what has none, or that do not fit the data set.
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
        static_shapes: StaticShapes | bool = False,
    ) -> None:
        super().__init__(Shard())
        self.data = data
        self.config = config
        self._input = resolve_input(sampler_input, data)
        self._resolved = with_own_times(config, self._input, data)
        self.batches = LocalBatches(data, self._input, self._resolved, num_threads)
        self._schema = data.schema
        self._constants = data.constants if config.collect_features else {}
        self._copies = DeviceCopies(device)
        self._transform = transform
        self._prefetch = check_prefetch(prefetch)
        self._as_pyg_v1 = as_pyg_v1
        self.static_batches = self._make_static_batches(static_shapes)

    def _make_static_batches(self, shapes: StaticShapes | bool) -> StaticBatches | None:
        if shapes is False:
            return None
        if self._as_pyg_v1 or not isinstance(self._input, NodeSamplerInput):
            raise InvalidArgumentError("static_shapes: expected a loader of nodes that yields PyG objects")
        sizes = StaticShapes() if shapes is True else shapes
        return make_static_batches(self.data, self._input, self._resolved, self.batches, sizes)

    def check_process(self) -> None:
        """Raises ``ForkedProcessError`` in a fork of the loader's process; not where it has no threads of its own."""
        if self._prefetch > 0:
            super().check_process()

    @property
    def _num_batches(self) -> int:
        return self.batches.schedule.num_batches

    @functools.cached_property
    def _fingerprint(self) -> Settings:
        return config_settings(self.config, self._schema) | input_settings(self._input)

    def _settings(self) -> Settings:
        return self._fingerprint

    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        made = made_ahead(lambda place: self._make(epoch, indices[place]), len(indices), self._prefetch)
        with contextlib.closing(made):
            for index, batch in zip(indices, made, strict=True):
                yield index, self._finish(batch)
        self.check()

    def check(self) -> None:
        """Waits for the batches of static shapes that a GPU makes; at the end of an epoch the loader does so itself.

        Raises:
            BatchOverflowError: one of them did not fit, and was empty: all of it was padding. It is told once.
        """
        if self.static_batches is not None:
            self.static_batches.check()

    def batch(self, epoch: int, index: int) -> Data | HeteroData:
        """One batch by its name, for example to look at "batch 4711 of epoch 3"."""
        return self._finish(self._make(epoch, index))

    def batch_of(self, request: torch.Tensor) -> Data | HeteroData:
        """The batch of static shapes that a request on its device names; see ``sampler.static_batches``."""
        batch = self._make_static(request)
        is_there = self._copies.device in (None, batch.edge_stores[0].edge_index.device)
        return self._finish(Copy(batch) if is_there else self._copies.begin(batch))

    def _make_static(self, request: torch.Tensor) -> Data | HeteroData:
        if self.static_batches is None:
            raise InvalidArgumentError("static_shapes: expected a loader with static shapes")
        padded = self.static_batches.sample(request)
        return padded_to_pyg(padded, self._schema, self._constants)

    def _make(self, epoch: int, index: int) -> Copy:
        """A batch on its way to the device: what background threads do."""
        with self._copies.current():
            if self.static_batches is not None:
                request = new_request(self.config.seed, self.static_batches.device)
                ask(request, epoch, self.batches.schedule.check_index(index))
                return self._copies.begin(self._make_static(request))
            batch = self.batches.make(epoch, index)
            if self._as_pyg_v1:
                return Copy(to_pyg_v1(batch))
            return self._copies.begin(to_pyg(batch, self._schema, self._constants))

    def _finish(self, copy: Copy) -> Any:
        batch = self._copies.finish(copy)
        return batch if self._transform is None else self._transform(batch)
