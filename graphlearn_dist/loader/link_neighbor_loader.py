"""Mini-batches of links with the neighborhoods of their ends."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.links.exclusion import ReverseIds, ReverseTypes
from ..sampler.neighbor_sampler import NeighborSampler
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .dataloader_keywords import drawn_seed
from .learned_rows import Embeddings
from .link_loader import LinkLoader
from .local_loader import Transform
from .pyg_source import cast_negatives, for_pyg, open_sampler


class LinkNeighborLoader(LinkLoader):
    """Mini-batches of links, and of negatives drawn for them, with the sampled neighborhoods of their ends.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Epochs follow
    each other from 0; one begins with its first batch, not with ``iter()``.

    PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)`` may stand in place of the data set: then the
    arguments are those of PyG's loader of the same name, in its order and with its meaning, and so are batches;
    ``docs/from_pyg.md`` says what is beside them.

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
        locality: cut the links into that many stretches in the order of the data set, and take each batch of one of
            them, so that its sources are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there.
        seed: seed of the shuffle and of all draws; 0 unless given.
        replace: sample with replacement.
        disjoint: both ends of each link grow trees of their own; ``batch`` says which link each node belongs to.
        edge_label_time: int64 ``[n]``, times of the links: no later edge is sampled for them, in disjoint batches.
            Where the data set has times, they are needed.
        exclude: which edges no message passes along in a batch, by DGL's names: ``"self"``, those of the batch's links;
            ``"reverse_id"``, their reverses by ``reverse_eids`` too; ``"reverse_types"``, those of another type by
            ``reverse_etypes`` too. Negatives exclude nothing. Batches carry ``e_id`` then. See ``docs/links.md``.
        edge_label_id: int64 ``[n]``, with ``exclude`` the ids of links that are given as pairs, -1 for one that is no
            edge of the graph.
        reverse_eids: int64 ``[num_edges]``, the id of each edge's reverse (-1: it has none), or a dict of such by type.
        reverse_etypes: by edge type the type whose edge of the same id is an edge's reverse.
        temporal_strategy: of the edges that are not later, draw ``"uniform"``-ly or take the ``"last"`` ones.
            None looks at no times.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: an end of a link is outside the graph.
    """

    @for_pyg("_open_pyg_neighbors")
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
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        edge_format: str = "edge_index",
        locality: int | None = None,
        exclude: str | None = None,
        edge_label_id: torch.Tensor | None = None,
        reverse_eids: ReverseIds = None,
        reverse_etypes: ReverseTypes = None,
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
            edge_label_index,
            edge_label,
            neg_sampling,
            device,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_label_time=edge_label_time,
            transform=transform,
            embeddings=embeddings,
            num_threads=num_threads,
            prefetch=prefetch,
            edge_format=edge_format,
            locality=locality,
            exclude=exclude,
            edge_label_id=edge_label_id,
            reverse_eids=reverse_eids,
            reverse_etypes=reverse_etypes,
            **keywords,
        )

    def _open_pyg_neighbors(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        edge_label_time: torch.Tensor | None = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
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
        if neighbor_sampler is None and (edge_label_time is None) != (time_attr is None):
            got = "times and no time_attr" if time_attr is None else "time_attr and no times"
            raise InvalidArgumentError(f"edge_label_time, time_attr: expected both or none, got {got}")
        negatives, strict = cast_negatives(neg_sampling, neg_sampling_ratio)
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
                strict_negatives=strict,
            )
        self._open_pyg(
            data,
            neighbor_sampler,
            edge_label_index,
            edge_label,
            edge_label_time,
            negatives,
            None,
            transform,
            transform_sampler_output,
            filter_per_worker,
            seed=seed,
            num_threads=num_threads,
            **keywords,
        )
