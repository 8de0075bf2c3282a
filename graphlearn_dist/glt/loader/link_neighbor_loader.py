"""``LinkNeighborLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from ...loader import link_neighbor_loader
from .link_loader import LinkLoader

__all__ = [
    "LinkNeighborLoader",
]


class LinkNeighborLoader(link_neighbor_loader.LinkNeighborLoader, LinkLoader):
    """``graphlearn_dist.loader.LinkNeighborLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Binary negatives are no edges of the graph, see ``glt.sampler.NegativeSampling``. Links run from target to source
    where out-neighbors are sampled, see ``in_glt_form``. Arguments are the same.
    """
