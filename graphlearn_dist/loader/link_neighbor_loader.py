"""Mini-batches of links with the neighborhoods of their ends."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .link_loader import LinkLoader
from .local_loader import Transform


class LinkNeighborLoader(LinkLoader):
    """Mini-batches of links, and of negatives drawn for them, with the sampled neighborhoods of their ends.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Epochs follow
    each other from 0; one begins with its first batch, not with ``iter()``.

    Args:
        data: graph, features and labels.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        neighbor_sampler: sample with the settings of this one instead of those given here.
        edge_label_index: links, from source to target whatever the direction of sampling: int ``[2, n]``; or ``(edge
            type, that)``; or an edge type, for all its edges in the order of their ids; or None, for all edges of a
            homogeneous graph.
        edge_label: ``[n, ...]``, labels of the links, or None. With binary negatives, whose label is 0, labels that
            begin at 0 are raised by one, and links without labels have the label 1.
        neg_sampling: ``"binary"`` (pairs that are drawn) or ``"triplet"`` (targets that are drawn for each source), or
            a ``NegativeSampling`` with amount, weights and strictness, or a tuple or dict of its arguments.
        with_edge: batches carry ``e_id``.
        with_weight: sample by edge weight, along the edge types that have weights.
        batch_size: links of a batch.
        shuffle: permute the links in every epoch.
        drop_last: leave out an incomplete last batch.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        device: where batches go; None leaves them on the host.
        seed: seed of the shuffle and of all draws; 0 unless given.
        replace: sample with replacement.
        disjoint: both ends of each link grow trees of their own; ``batch`` says which link each node belongs to.
        edge_label_time: int64 ``[n]``, times of the links: no later edge is sampled for them, in disjoint batches.
            Where the data set has times, they are needed.
        temporal_strategy: of the edges that are not later, draw ``"uniform"``-ly or take the ``"last"`` ones.
            None looks at no times.
        transform: called with each batch, in the thread that iterates.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: an end of a link is outside the graph.
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        neighbor_sampler: NeighborSampler | None = None,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: Any = None,
        with_edge: bool = False,
        with_weight: bool = False,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        strategy: str = "random",
        device: torch.device | None = None,
        seed: int | None = None,
        *,
        replace: bool = False,
        disjoint: bool = False,
        edge_label_time: torch.Tensor | None = None,
        temporal_strategy: str | None = "uniform",
        transform: Transform | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
    ) -> None:
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler.of_dataset(
                data,
                check_num_neighbors(num_neighbors),
                with_edge=with_edge,
                with_weight=with_weight,
                strategy=strategy,
                seed=seed,
                replace=replace,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
            )
        super().__init__(
            data,
            neighbor_sampler,
            edge_label_index,
            edge_label,
            neg_sampling,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_label_time=edge_label_time,
            transform=transform,
            num_threads=num_threads,
            prefetch=prefetch,
        )
