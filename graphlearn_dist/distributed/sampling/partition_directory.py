"""All partitions of a directory in one process, as one data set: nothing is asked of anybody, nothing is copied."""

from __future__ import annotations

from pathlib import Path

import torch

from ...partition import load_partition_layout
from ...sampler.local_graph import LocalGraph
from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph
from ...typing import EdgeType
from ..dist_dataset import DistDataset
from ..partitions.partition_service import PartitionService
from .asked_dataset import AskedDataset
from .batches import NoPeers
from .feature_collector import FeatureCollector
from .partitioned_sampler import PartitionedGraph


class DirectoryDataset(AskedDataset):
    """A partition directory, whose files are all on this machine, mapped into this process.

    Args:
        root_dir: what a partitioner wrote.
        verify: see ``DistDataset.load``.

    Raises:
        PartitionFormatError: the directory is foreign, truncated or damaged.
    """

    def __init__(self, root_dir: str | Path, *, verify: bool | None = None) -> None:
        super().__init__()
        self.load(root_dir, 0, verify=verify)
        self._others = []
        for partition in range(1, load_partition_layout(root_dir, verify=False).num_parts):
            other = DistDataset()
            other.load(root_dir, partition, verify=verify)
            self._others.append(other)
        self._services = [PartitionService(one) for one in self.partitions]
        self._collector = FeatureCollector(self, self._services, NoPeers())

    @property
    def partitions(self) -> tuple[DistDataset, ...]:
        """Every partition, in the order of their numbers."""
        return (self, *self._others)

    def edge_index(self, edge_type: EdgeType | None) -> torch.Tensor:
        """See ``AskedDataset``."""
        return torch.cat([torch.stack(one.edges(edge_type)[1:]) for one in self.partitions], dim=1)

    def graph_access(self, plan: SamplingPlan, num_threads: int = 1) -> HostGraph:
        """See ``AskedDataset``."""
        if self.is_whole:
            return LocalGraph(self, plan, num_threads)
        return PartitionedGraph(self, plan, self._services, NoPeers(), num_threads)
