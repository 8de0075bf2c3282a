"""A data set whose partitions are asked as one, wherever they are: on servers, or in a directory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import torch

from ...sampler.plan import SamplingPlan
from ...sampler.tasks import HostGraph
from ...typing import EdgeType
from ..dist_dataset import DistDataset
from .feature_collector import FeatureCollector


class AskedDataset(DistDataset):
    """What ``pyg_stores`` and ``pyg_sampler`` need of a data set that is in several places."""

    _collector: FeatureCollector

    def look_up(self, wanted: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Rows of stores, from all places at once: of servers one request for each partition that owns some of the ids.

        Args:
            wanted: by store (see ``data.dataset.store_name``) ids int64 ``[n]``, any order, duplicates allowed.

        Returns:
            By store ``[n, ...]``, rows in the order of the ids.

        Raises:
            UnknownIdError: an id is outside the data set.
            DeadlineExceededError, PeerLostError: a server did not answer.
        """
        return self._collector.look_up(wanted)

    @abstractmethod
    def edge_index(self, edge_type: EdgeType | None) -> torch.Tensor:
        """All edges of a type, int64 ``[2, num_edges]``, sources and targets, in no particular order."""

    @abstractmethod
    def graph_access(self, plan: SamplingPlan, num_threads: int = 1) -> HostGraph:
        """The graph as batches are made from it. It never waits in a coroutine."""
