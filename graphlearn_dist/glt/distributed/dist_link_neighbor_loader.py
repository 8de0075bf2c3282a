"""``DistLinkNeighborLoader`` as ``graphlearn_torch.distributed`` has it."""

from __future__ import annotations

from typing import Any

import torch

from ...distributed import dist_link_neighbor_loader
from ...distributed.dist_dataset import DistDataset
from ...typing import NumNeighbors
from ..sampler.own_defaults import NegativeSampling
from .dist_loader import DistLoader

__all__ = [
    "DistLinkNeighborLoader",
]


class DistLinkNeighborLoader(dist_link_neighbor_loader.DistLinkNeighborLoader, DistLoader):
    """``graphlearn_dist.distributed.DistLinkNeighborLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Binary negatives are no edges of the graph (see ``glt.sampler.NegativeSampling``), wherever their rows lie. Links
    run from target to source where out-neighbors are sampled; see ``in_glt_form``. Arguments are the same; see
    ``glt.distributed.DistLoader`` for what else differs.
    """

    def __init__(
        self,
        data: DistDataset | None,
        num_neighbors: NumNeighbors,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        strict = NegativeSampling.cast(neg_sampling)
        super().__init__(data, num_neighbors, batch_size, edge_label_index, edge_label, strict, *args, **kwargs)
