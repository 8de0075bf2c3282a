"""``LinkLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from typing import Any

from ...loader import link_loader
from ...sampler.inputs import get_edge_label_index
from ..sampler.own_defaults import NegativeSampling
from .local_loader import LocalLoader

__all__ = [
    "LinkLoader",
    "get_edge_label_index",
]


class LinkLoader(link_loader.LinkLoader, LocalLoader):
    """``graphlearn_dist.loader.LinkLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Binary negatives are no edges of the graph, see ``glt.sampler.NegativeSampling``.

    Args:
        data: graph, features and labels.
        link_sampler: its settings and its seed are the loader's.
        edge_label_index: links.
        edge_label: labels of the links, or None.
        neg_sampling: which negatives are drawn.
        *args: those that follow there, in the same order.
        **kwargs: likewise.
    """

    def __init__(
        self,
        data: Any,
        link_sampler: Any,
        edge_label_index: Any = None,
        edge_label: Any = None,
        neg_sampling: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        strict = NegativeSampling.cast(neg_sampling)
        super().__init__(data, link_sampler, edge_label_index, edge_label, strict, *args, **kwargs)
