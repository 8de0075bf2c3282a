"""``DistNeighborSampler`` as ``graphlearn_torch.distributed.dist_neighbor_sampler`` has it."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ...channel.base import ChannelBase
from ...distributed import dist_neighbor_sampler
from ...distributed.dist_dataset import DistDataset
from ...distributed.dist_neighbor_sampler import PartialNeighborOutput, RpcSamplingCallee, RpcSubGraphCallee
from ...distributed.session.trainer_seeds import loader_seed
from ...typing import NumNeighbors
from ...utils.no_effect import warn_no_effect
from ..channel.sample_message import to_sample_message
from ..sampler.neighbor_sampler import num_hops
from .event_loop import ConcurrentEventLoop

__all__ = [
    "DistNeighborSampler",
    "PartialNeighborOutput",
    "RpcSamplingCallee",
    "RpcSubGraphCallee",
]


class DistNeighborSampler(dist_neighbor_sampler.DistNeighborSampler, ConcurrentEventLoop):
    """``graphlearn_dist.distributed.DistNeighborSampler`` in another order of arguments; batches are sample messages.

    ``shutdown_loop`` waits for what is under way, at most for ``rpc_timeout`` of the worker options. Labels are in
    every message. Without a seed, each worker of a group has one of its own, see ``docs/sampling.md``.
    """

    def __init__(
        self,
        data: DistDataset,
        num_neighbors: NumNeighbors | None = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] | None = None,
        collect_features: bool = False,
        channel: ChannelBase | None = None,
        use_all2all: bool = False,
        concurrency: int = 1,
        device: torch.device | None = None,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        if use_all2all:
            warn_no_effect("use_all2all", "the rows of a batch come in one request a partition already")
        super().__init__(
            data,
            num_neighbors,
            with_edge,
            with_neg,
            with_weight,
            edge_dir,
            collect_features,
            channel,
            concurrency,
            device,
            loader_seed(seed, None),
            **{"collect_labels": True, **others},
        )
        self._schema, self.shutdown_timeout_s = data.schema, self._options.rpc_timeout
        self.data, self.num_neighbors, self.num_hops = data, num_neighbors, num_hops(num_neighbors)
        self.with_edge, self.with_neg, self.with_weight = with_edge, with_neg, with_weight
        self.edge_dir = data.edge_dir if edge_dir is None else edge_dir
        self.collect_features, self.channel, self.concurrency = collect_features, channel, concurrency
        self.device, self.seed, self.edge_types = torch.device("cpu"), self._config.seed, data.get_edge_types()

    async def _make(self, *args: Any) -> Any:
        return to_sample_message(await super()._make(*args), self._schema)
