"""Mini-batches of sampled neighborhoods."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.device.padding import StaticShapes
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .dataloader_keywords import drawn_seed
from .learned_rows import Embeddings
from .local_loader import Transform
from .node_loader import NodeLoader
from .pyg_source import for_pyg, open_sampler


class NeighborLoader(NodeLoader):
    """Mini-batches of sampled neighborhoods from a data set held in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Epochs follow
    each other from 0; one begins with its first batch, not with ``iter()``.

    PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)`` may stand in place of the data set: then the
    arguments are those of PyG's loader of the same name, in its order and with its meaning, and so are batches;
    ``docs/from_pyg.md`` says what is beside them.

    Args:
        data: graph, features and labels.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split``, None for all nodes, or ``(node type, one of
            these)``; a node type alone stands for all its nodes.
        neighbor_sampler: sample with the settings of this one instead of those given here.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        with_edge: batches carry ``e_id``.
        with_weight: sample by edge weight, along the edge types that have weights.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there.
        as_pyg_v1: yield (batch size, ids, layers) instead of PyG objects; see ``sampler.convert.to_pyg_v1``.
        seed: seed of the shuffle and of all draws; 0 unless given.
        replace: sample with replacement.
        disjoint: every seed grows a tree of its own; ``batch`` says which seed each node belongs to.
        input_time: int64 ``[n]``, times of the seeds: no later edge is sampled for them. Batches are disjoint then.
            Where the data set has times, the nodes' own are the default, and it is an error if they have none.
        temporal_strategy: of the edges that are not later, draw ``"uniform"``-ly or take the ``"last"`` ones.
            None looks at no times.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        static_shapes: pad all batches to the same shapes: True for bounds that always hold, or ``StaticShapes``; see
            ``loader.transform.padded_to_pyg``. It changes neither nodes nor edges, nor their order.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: a seed is outside the graph.
    """

    @for_pyg("_open_pyg_neighbors")
    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        input_nodes: Any,
        neighbor_sampler: NeighborSampler | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        device: torch.device | None = None,
        as_pyg_v1: bool = False,
        seed: int | None = None,
        *,
        replace: bool = False,
        disjoint: bool = False,
        input_time: torch.Tensor | None = None,
        temporal_strategy: str | None = "uniform",
        transform: Transform | None = None,
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        edge_format: str = "edge_index",
        locality: int | None = None,
        static_shapes: StaticShapes | bool = False,
        **keywords: Any,
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
            input_nodes,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            input_time=input_time,
            transform=transform,
            embeddings=embeddings,
            num_threads=num_threads,
            prefetch=prefetch,
            edge_format=edge_format,
            locality=locality,
            static_shapes=static_shapes,
            as_pyg_v1=as_pyg_v1,
            **keywords,
        )

    def _open_pyg_neighbors(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: torch.Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        strategy: str = "random",
        seed: int | None = None,
        num_threads: int = 1,
        **keywords: Any,
    ) -> None:
        """As PyG's loader of this name; see ``docs/from_pyg.md`` for what it does not have."""
        if input_time is not None and time_attr is None and neighbor_sampler is None:
            raise InvalidArgumentError("input_time, time_attr: expected both or none, got times and no time_attr")
        seed = drawn_seed(seed, keywords.get("generator"))
        if neighbor_sampler is None:
            neighbor_sampler = open_sampler(
                data,
                num_neighbors,
                replace=replace,
                subgraph_type=subgraph_type,
                disjoint=disjoint,
                temporal_strategy=temporal_strategy,
                time_attr=time_attr,
                weight_attr=weight_attr,
                is_sorted=is_sorted,
                directed=directed,
                strategy=strategy,
                seed=seed,
                num_threads=num_threads,
            )
        self._open_pyg(
            data,
            neighbor_sampler,
            input_nodes,
            input_time,
            transform,
            transform_sampler_output,
            filter_per_worker,
            seed=seed,
            num_threads=num_threads,
            **keywords,
        )
