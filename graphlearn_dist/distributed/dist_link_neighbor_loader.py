"""Mini-batches of links of a partitioned graph, with the sampled neighborhoods of their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ..errors import InvalidArgumentError
from ..loader.learned_rows import Embeddings
from ..sampler.base import (
    EdgeSamplerInput,
    RemoteSamplerInput,
    SamplerInput,
    SamplingConfig,
    SamplingType,
    is_induced,
    time_settings,
)
from ..sampler.inputs import has_exclusion, has_negatives, has_times, to_remote_link_input
from ..sampler.links.exclusion import ReverseIds, ReverseTypes
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .dist_loader import DistLoader
from .dist_options import AllDistSamplingWorkerOptions
from .session.trainer_seeds import loader_seed
from .whole_partition import open_partition


class DistLinkNeighborLoader(DistLoader):
    """Mini-batches of links, and of negatives drawn for them, with the sampled neighborhoods of their ends.

    The same batches as ``loader.LinkNeighborLoader`` gives in one process: negatives are drawn over the whole graph,
    and strict ones are checked by the owners of their rows. Modes and errors are those of ``DistNeighborLoader``.

    Args:
        data: this worker's partition; None where servers sample. A single process may give PyG's ``Data``,
            ``HeteroData`` or ``(FeatureStore, GraphStore)``, of which everything is read once, or the directory of a
            single partition.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        batch_size: links of a batch.
        edge_label_index: links, from source to target whatever the direction of sampling: int ``[2, n]``; or ``(edge
            type, that)``; or an edge type, for all its edges in the order of their ids; or None, for all edges of a
            homogeneous graph. A list of ``EdgeSamplerInput`` has one for each server. All edges are gathered from the
            partitions when the loader is made, 16 bytes each in every process that samples.
        edge_label: ``[n, ...]``, labels of the links, or None; see ``loader.LinkNeighborLoader``.
        neg_sampling: ``"binary"``, ``"triplet"``, a ``NegativeSampling``, or a tuple or dict of its arguments.
        shuffle: permute the links in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the links into that many stretches in the order of the data set, and take each batch of one of
            them, so that its sources are near; None takes any. 8 is a good number, see ``docs/locality.md``.
            A server then makes the batches of which it owns the most sources, any one unless ``server_rank`` is given.
        with_edge: batches carry ``e_id``.
        with_weight: sample by edge weight, along the edge types that have weights.
        edge_dir: sample ``"in"``- or ``"out"``-neighbors, which must be what the partitions hold; None samples those.
        collect_features: batches carry ``x``, ``y`` and ``edge_attr`` where the data set has them.
        to_device: where batches go; None leaves them on the host.
        random_seed: seed of the shuffle and of all draws. Unless given, a function of the trainer's rank (among clients
            or workers, else in ``torch.distributed``): trainers that are given the same seeds do not draw the same
            batches in the same order. It is 0 at rank 0 and in a single process, and with a ``shard``: those have to
            draw alike. ``state_dict`` has the seed that holds.
        worker_options: where to sample, with how many processes.
        replace: sample with replacement.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        disjoint: both ends of each link grow trees of their own; ``batch`` says which link each node belongs to.
        edge_label_time: int64 ``[n]``, times of the links: no later edge is sampled for them, in disjoint batches.
            Where the data set has times, they are needed.
        temporal_strategy: of the edges that are not later, draw ``"uniform"``-ly or take the ``"last"`` ones.
            None looks at no times.
        shard: ``(index, count)``: give batch ``i`` of every epoch only if ``i % count == index``.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        transform: called with each batch.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        collect_labels: batches carry ``y``, without ``collect_features`` too.
        subgraph_type: ``"directional"``: the edges that were sampled; ``"induced"``: all edges between the sampled
            nodes, each of which a batch then has once.
        weight_attr: of PyG's data, the attribute that holds weights of edges, by which is sampled then.
        time_attr: of PyG's data, the attribute that holds times of nodes or of edges.
        neg_sampling_ratio: PyG's older way to ask for that many binary negatives for each link.
        exclude: which edges no message passes along in a batch: ``"self"``, ``"reverse_id"`` or ``"reverse_types"``;
            with ``edge_label_id``, ``reverse_eids`` and ``reverse_etypes``. See ``loader.LinkNeighborLoader``.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: Literal["in", "out"] | None = None,
        collect_features: bool = False,
        to_device: torch.device | None = None,
        random_seed: int | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        replace: bool = False,
        strategy: str = "random",
        disjoint: bool = False,
        edge_label_time: torch.Tensor | None = None,
        temporal_strategy: str | None = "uniform",
        edge_format: str = "edge_index",
        locality: int | None = None,
        shard: tuple[int, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        embeddings: Embeddings | None = None,
        collect_labels: bool = False,
        subgraph_type: str = "directional",
        weight_attr: str | None = None,
        time_attr: str | None = None,
        neg_sampling_ratio: float | None = None,
        exclude: str | None = None,
        edge_label_id: torch.Tensor | None = None,
        reverse_eids: ReverseIds = None,
        reverse_etypes: ReverseTypes = None,
    ) -> None:
        data = open_partition(data, edge_dir, weight_attr, time_attr)
        if neg_sampling_ratio:  # as in PyG, 0 asks for nothing
            neg_sampling = ("binary", neg_sampling_ratio)
        excluding = {
            "exclude": exclude,
            "edge_label_id": edge_label_id,
            "reverse_eids": reverse_eids,
            "reverse_etypes": reverse_etypes,
        }
        links = _links(edge_label_index, edge_label, neg_sampling, edge_label_time, excluding)
        config = SamplingConfig(
            sampling_type=SamplingType.LINK,
            num_neighbors=check_num_neighbors(num_neighbors),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_format=edge_format,
            locality=locality,
            with_edge=with_edge or has_exclusion(links),
            collect_features=collect_features,
            with_neg=has_negatives(links),
            with_weight=with_weight or weight_attr is not None,
            edge_dir=edge_dir,
            seed=loader_seed(random_seed, shard),
            collect_labels=collect_labels,
            replace=replace,
            strategy=strategy,
            disjoint=disjoint,
            induced=is_induced(subgraph_type),
            **time_settings(temporal_strategy, timed=has_times(links)),
        )
        super().__init__(
            data, links, config, to_device, worker_options, shard=shard, transform=transform, embeddings=embeddings
        )


def _links(
    edge_label_index: Any,
    edge_label: torch.Tensor | None,
    neg_sampling: Any,
    edge_label_time: torch.Tensor | None,
    excluding: dict[str, Any],
) -> SamplerInput | list[SamplerInput]:
    entries = edge_label_index if isinstance(edge_label_index, list) and edge_label_index else [edge_label_index]
    if not all(isinstance(entry, (EdgeSamplerInput, RemoteSamplerInput)) for entry in entries):
        return to_remote_link_input(edge_label_index, edge_label, neg_sampling, edge_label_time, **excluding)
    beside = {"edge_label": edge_label, "neg_sampling": neg_sampling, "edge_label_time": edge_label_time, **excluding}
    given = [name for name, value in beside.items() if value is not None]
    if given:
        raise InvalidArgumentError(f"{', '.join(given)}: expected None beside an EdgeSamplerInput, which has its own")
    links: SamplerInput | list[SamplerInput] = edge_label_index
    return links
