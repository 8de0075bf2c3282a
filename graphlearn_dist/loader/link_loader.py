"""Loaders whose seeds are the ends of links."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import BaseSampler, SamplingType
from ..sampler.inputs import get_edge_label_index, to_link_input
from .local_loader import LocalLoader, Transform
from .node_loader import check_sampler

__all__ = ["LinkLoader", "get_edge_label_index"]


class LinkLoader(LocalLoader):
    """Mini-batches around links, as a sampler's settings say.

    Args:
        data: graph, features and labels.
        link_sampler: a ``NeighborSampler``: its settings and its seed are the loader's.
        edge_label_index: links, see ``LinkNeighborLoader``.
        edge_label: ``[n, ...]``, labels of the links, or None.
        neg_sampling: which negatives are drawn, see ``LinkNeighborLoader``.
        device: where batches go; None leaves them on the host.
        edge_dir: None, or what the data set holds.
        batch_size: links of a batch.
        shuffle: permute the links in every epoch.
        drop_last: leave out an incomplete last batch.
        edge_label_time: int64 ``[n]``, times of the links; None where they have none.
        transform: called with each batch, in the thread that iterates.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: an end of a link is outside the graph.
    """

    def __init__(
        self,
        data: Dataset,
        link_sampler: BaseSampler,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: Any = None,
        device: torch.device | None = None,
        edge_dir: Literal["in", "out"] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        edge_label_time: torch.Tensor | None = None,
        transform: Transform | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
    ) -> None:
        if edge_dir not in (None, data.edge_dir):
            raise InvalidArgumentError(f"edge_dir: the data set holds {data.edge_dir!r}-neighbors, got {edge_dir!r}")
        links = get_edge_label_index(data, edge_label_index)
        sampler_input = to_link_input(links, edge_label, neg_sampling, edge_label_time)
        config = check_sampler(link_sampler, "link_sampler").config_of(
            SamplingType.LINK,
            timed=edge_label_time is not None,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            collect_features=True,
            with_neg=sampler_input.neg_sampling is not None,
        )
        super().__init__(
            data,
            sampler_input,
            config,
            device=device,
            transform=transform,
            num_threads=num_threads,
            prefetch=prefetch,
        )
