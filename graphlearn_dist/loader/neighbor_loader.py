"""The in-process loader: sampling and lookup in the training process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import SamplingConfig, SamplingType
from ..sampler.batches import LocalBatches
from ..sampler.inputs import resolve_input, to_sampler_input
from ..typing import NumNeighbors
from .transform import to_pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

Transform = Callable[[Any], Any]


class NeighborLoader:
    """Mini-batches of sampled neighborhoods from a data set held in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Each ``iter()`` starts
    the next epoch, from 0.

    Args:
        data: graph, features and labels.
        num_neighbors: fan-out per hop (-1: all neighbors), or a dict of such lists by edge type.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split``, or ``(node type, one of these)``.
        neighbor_sampler: must be None; the loader makes its own.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        with_edge: batches carry ``e_id``.
        with_weight: must be False; weighted sampling is not supported yet.
        strategy: ``"random"``.
        device: where batches go; None leaves them on the host.
        as_pyg_v1: must be False.
        seed: seed of the shuffle and of all draws; 0 unless given.
        replace: sample with replacement.
        transform: called with each batch.
        num_threads: threads of one batch; never changes it.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        input_nodes: Any,
        neighbor_sampler: None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        device: torch.device | None = None,
        as_pyg_v1: bool = False,
        seed: int | None = None,
        *,
        replace: bool = False,
        transform: Transform | None = None,
        num_threads: int = 1,
    ) -> None:
        if neighbor_sampler is not None or as_pyg_v1 or strategy != "random":
            raise InvalidArgumentError(
                "neighbor_sampler, as_pyg_v1, strategy: expected None, False and 'random'; others are not supported yet"
            )
        config = SamplingConfig(
            sampling_type=SamplingType.NODE,
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            collect_features=True,
            with_neg=False,
            with_weight=with_weight,
            edge_dir=data.edge_dir,
            seed=0 if seed is None else seed,
            replace=replace,
        )
        sampler_input = resolve_input(to_sampler_input(input_nodes), data)
        self.batches = LocalBatches(data, sampler_input, config, num_threads)
        self.epoch = -1
        self._schema = data.schema
        self._with_edge = with_edge
        self._device = device
        self._transform = transform

    def __len__(self) -> int:
        return self.batches.schedule.num_batches

    def __iter__(self) -> Iterator[Data | HeteroData]:
        self.epoch += 1
        return (self.batch(self.epoch, index) for index in range(len(self)))

    def batch(self, epoch: int, index: int) -> Data | HeteroData:
        """One batch by its name, for example to look at "batch 4711 of epoch 3"."""
        data = to_pyg(self.batches.make(epoch, index), self._schema, with_edge_ids=self._with_edge)
        if self._device is not None:
            data = data.to(self._device)
        return data if self._transform is None else self._transform(data)
