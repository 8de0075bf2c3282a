"""``LinkLoader`` as ``graphlearn_torch.loader`` has it."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgumentError
from ...loader import link_loader
from ...sampler.inputs import get_edge_label_index, to_remote_link_input
from ...utils.shown import shown
from ..sampler.own_defaults import NegativeSampling
from .local_loader import LocalLoader
from .own_sampler import is_own_sampler

__all__ = [
    "LinkLoader",
    "get_edge_label_index",
]


class LinkLoader(link_loader.LinkLoader, LocalLoader):
    """``graphlearn_dist.loader.LinkLoader`` with batches in the form of GraphLearn-for-PyTorch.

    Binary negatives are no edges of the graph, see ``glt.sampler.NegativeSampling``.

    Args:
        data: graph, features and labels.
        link_sampler: its settings and its seed are the loader's. A program's own is called for each batch, one after
            the other: its ``sample_from_edges`` takes an ``EdgeSamplerInput`` and draws the negatives, see
            ``NodeLoader``.
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
        if not is_own_sampler(data, link_sampler, "sample_from_edges"):
            super().__init__(data, link_sampler, edge_label_index, edge_label, strict, *args, **kwargs)
            return
        self.link_sampler, self.edge_label_index, self.neg_sampling = link_sampler, edge_label_index, strict
        links = to_remote_link_input(edge_label_index, edge_label, strict)
        self._open_links(data, link_sampler, links, *args, **kwargs)

    def _open_links(
        self, data: Any, link_sampler: Any, links: Any, device: Any = None, edge_dir: Any = None, **kwargs: Any
    ) -> None:
        if edge_dir not in (None, data.edge_dir):
            raise InvalidArgumentError(
                f"edge_dir: the data set holds {data.edge_dir!r}-neighbors, got {shown(edge_dir)}"
            )
        self._open_own(data, link_sampler.sample_from_edges, links, device, **kwargs)
