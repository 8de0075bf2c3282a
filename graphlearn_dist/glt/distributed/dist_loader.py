"""Distributed loaders as ``graphlearn_torch.distributed`` has them: batches in its form, its attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...distributed import dist_loader
from ...distributed.dist_client import request_server
from ...distributed.dist_context import assign_server_by_order
from ...distributed.dist_dataset import DistDataset
from ...distributed.dist_options import (
    AllDistSamplingWorkerOptions,
    CollocatedDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from ...distributed.dist_server import DistServer
from ...errors import InvalidArgumentError
from ...loader.learned_rows import Embeddings
from ...sampler.base import (
    RemoteAllNodesSamplerInput,
    RemoteNodePathSamplerInput,
    SamplerInput,
    SamplingConfig,
    SamplingType,
)
from ...utils.device import get_available_device, parse_device
from ..data.graph import take_gpu
from ..loader.batch_form import in_glt_form
from ..loader.iteration import OwnNext

__all__ = [
    "DistLoader",
]


class DistLoader(OwnNext, dist_loader.DistLoader):
    """The loop of a distributed loader, with batches in the form of GraphLearn-for-PyTorch (see ``in_glt_form``).

    Labels are in every batch of nodes, without ``collect_features`` too, and in none of links. ``to_device=None`` is
    the current GPU where torch sees one.

    Args:
        data: this worker's partition; None where servers sample.
        input_data: seeds, or where they are found; a text for servers that is none of their node types is a path there.
        sampling_config: how to sample.
        to_device: where batches go.
        worker_options: where to sample.
        shard: the part of every epoch's batches that this loader gives; None for all of them.
        transform: called with each batch.
        embeddings: learned rows, see ``graphlearn_dist.loader``.

    Attributes:
        data, input_data, sampling_config, worker_options: as they were given.
        to_device: where batches go.
        sampling_type, num_neighbors, batch_size, shuffle, drop_last: those of the config.
        with_edge, with_weight, collect_features, edge_dir: likewise.
        num_data_partitions, data_partition_idx: of ``data``.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __init__(
        self,
        data: DistDataset | None,
        input_data: SamplerInput | list[SamplerInput],
        sampling_config: SamplingConfig,
        to_device: torch.device | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        shard: tuple[int, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        embeddings: Embeddings | None = None,
    ) -> None:
        if isinstance(worker_options, RemoteDistSamplingWorkerOptions):
            input_data = _with_paths(input_data, worker_options.server_rank)
        self.data, self.input_data = data, input_data
        collect_labels = sampling_config.sampling_type is not SamplingType.LINK
        self.sampling_config = replace(sampling_config, collect_labels=collect_labels)
        self.worker_options = worker_options or CollocatedDistSamplingWorkerOptions()
        self.to_device = get_available_device() if to_device is None else parse_device(to_device, "to_device")
        for name in _OF_THE_CONFIG:
            setattr(self, name, getattr(sampling_config, name))
        if data is not None:
            self.num_data_partitions, self.data_partition_idx = data.num_partitions, data.partition_idx
            is_here = isinstance(self.worker_options, CollocatedDistSamplingWorkerOptions)
            take_gpu(data, self.to_device, may_take=is_here and data.is_whole)
        self._own_transform = transform
        on_host = self.to_device.type == "cpu"
        super().__init__(
            data,
            input_data,
            self.sampling_config,
            None if on_host else self.to_device,
            worker_options,
            shard=shard,
            transform=self._finished,
            embeddings=embeddings,
        )

    def _collate_fn(self, msg: Any) -> Any:
        """The batch of what was received, which programs extend in loaders of their own; see ``in_glt_form``.

        Args:
            msg: a batch of ``graphlearn_dist``, not the message of GraphLearn-for-PyTorch.
        """
        edge_dir, with_edge = self._producer.schema.edge_dir, self.sampling_config.with_edge
        types = None if self.data is None else self.data.get_edge_types()
        return in_glt_form(msg, edge_dir, is_local=False, with_edge=with_edge, edge_types=types)

    def _finished(self, batch: Any) -> Any:
        made = self._collate_fn(batch)
        return made if self._own_transform is None else self._own_transform(made)


def _with_paths(
    input_data: SamplerInput | list[SamplerInput], server_rank: int | list[int] | None
) -> SamplerInput | list[SamplerInput]:
    """The input with a text that is no node type of the servers' data set as the path of a file of seeds there.

    Raises:
        InvalidArgumentError: the data set has named types, of which the text is none: a path has one beside it.
    """
    named = input_data if isinstance(input_data, list) else [input_data]
    if not any(isinstance(one, RemoteAllNodesSamplerInput) and one.input_type is not None for one in named):
        return input_data
    rank = assign_server_by_order() if server_rank is None else server_rank
    if rank == []:
        return input_data  # which is refused
    _, _, node_types, _ = request_server(rank if isinstance(rank, int) else rank[0], DistServer.get_dataset_meta)

    def with_path(one: SamplerInput) -> SamplerInput:
        text = one.input_type if isinstance(one, RemoteAllNodesSamplerInput) else None
        types = [node_type for node_type in node_types or () if node_type is not None]
        if text is not None and types and text not in types:
            raise InvalidArgumentError(
                f"input_nodes: expected one of the node types {types}, or (node type, path), got {text!r}"
            )
        return one if text is None or text in (node_types or ()) else RemoteNodePathSamplerInput(text)

    return [with_path(one) for one in input_data] if isinstance(input_data, list) else with_path(input_data)


_OF_THE_CONFIG = (
    "sampling_type",
    "num_neighbors",
    "batch_size",
    "shuffle",
    "drop_last",
    "with_edge",
    "with_weight",
    "collect_features",
    "edge_dir",
)
