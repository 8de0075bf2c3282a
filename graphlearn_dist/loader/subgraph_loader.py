"""Mini-batches of induced subgraphs."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import SamplingType
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .learned_rows import Embeddings
from .local_loader import Transform
from .node_loader import NodeLoader


class SubGraphLoader(NodeLoader):
    """Mini-batches of all edges between seeds and their sampled neighborhood, from a data set in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Epochs follow
    each other from 0; one begins with its first batch, not with ``iter()``. Times of the data set are not looked at.

    Args:
        data: graph, features and labels.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split``, None for all nodes, or ``(node type, one of
            these)``; a node type alone stands for all its nodes.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none) of the neighborhood, or a dict of such lists by
            edge type; None takes the seeds alone.
        neighbor_sampler: sample with the settings of this one instead of those given here.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        with_edge: batches carry ``e_id``.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there.
        seed: seed of the shuffle and of all draws; 0 unless given.
        with_weight: sample by edge weight, along the edge types that have weights.
        replace: sample with replacement.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``: each node once, seeds first, in
        order of first appearance; ``mapping`` int64 ``[batch_size]`` are the local ids of the seeds. Messages run from
        neighbor to the node whose neighbor it is.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: a seed is outside the graph.
    """

    def __init__(
        self,
        data: Dataset,
        input_nodes: Any,
        num_neighbors: NumNeighbors | None = None,
        neighbor_sampler: NeighborSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        strategy: str = "random",
        device: torch.device | None = None,
        seed: int | None = None,
        *,
        with_weight: bool = False,
        replace: bool = False,
        transform: Transform | None = None,
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        edge_format: str = "edge_index",
        locality: int | None = None,
        **keywords: Any,
    ) -> None:
        if not isinstance(data, Dataset):
            raise InvalidArgumentError(
                f"data: expected a Dataset, got {type(data).__name__}; of PyG's data, NeighborLoader with "
                "subgraph_type='induced' makes such batches, and GraphSource.from_pyg(data).to_dataset() a Dataset"
            )
        if neighbor_sampler is None:
            neighbor_sampler = NeighborSampler.of_dataset(
                data,
                check_num_neighbors(num_neighbors, optional=True),
                with_edge=with_edge,
                with_weight=with_weight,
                strategy=strategy,
                seed=seed,
                replace=replace,
            )
        super().__init__(
            data,
            neighbor_sampler,
            input_nodes,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            sampling_type=SamplingType.SUBGRAPH,
            transform=transform,
            embeddings=embeddings,
            num_threads=num_threads,
            prefetch=prefetch,
            edge_format=edge_format,
            locality=locality,
            **keywords,
        )
