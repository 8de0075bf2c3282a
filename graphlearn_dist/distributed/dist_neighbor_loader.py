"""Mini-batches of sampled neighborhoods from a partitioned graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ..loader.learned_rows import Embeddings
from ..sampler.base import SamplingConfig, SamplingType, is_induced, time_settings
from ..sampler.inputs import has_times, to_sampler_inputs
from ..sampler.plan import check_num_neighbors
from ..typing import NumNeighbors
from .dist_loader import DistLoader
from .dist_options import AllDistSamplingWorkerOptions
from .session.trainer_seeds import loader_seed
from .whole_partition import open_partition


class DistNeighborLoader(DistLoader):
    """Mini-batches of sampled neighborhoods from a partitioned graph.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``random_seed``: the same bits for
    any number of servers, partitions, workers and threads, in every mode, and the same as ``loader.NeighborLoader``
    gives in one process.

    ``worker_options`` choose the mode. None or ``CollocatedDistSamplingWorkerOptions``: sampling in this process.
    ``MpDistSamplingWorkerOptions``: in subprocesses of it. In both, this process holds one partition and asks the other
    workers of its group (``init_worker_group``) for what lies elsewhere, and each makes all batches of the
    ``input_nodes`` it was given. A worker answers the others until ``shutdown_rpc``, which waits for all of them. A
    data set of one partition needs no group. ``RemoteDistSamplingWorkerOptions``: on servers, for a client
    (``init_client``).

    Args:
        data: this worker's partition; None where servers sample. A single process may give PyG's ``Data``,
            ``HeteroData`` or ``(FeatureStore, GraphStore)``, of which everything is read once, or the directory of a
            single partition.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split`` of the data set, a file of ids, None for all
            nodes, or ``(node type, one of these)``; a node type alone stands for all its nodes. A file (``.npy`` or
            ``.pt``) is read where the sampling is. A list, or ``(node type, list)``, has one for each server of
            ``server_rank`` (without it, of those that are this client's, or of all, of which its own count), in that
            order, which finds its own: a file on its host, of a split or of all nodes those that its partition owns.
            The seeds are those of the first, then of the second, and so on, and batches those of that one list. A
            ``Split`` is the whole data set's; where ``server_rank`` is given, that of the nodes which these servers
            own, in their order.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
            A server then makes the batches of which it owns the most seeds, any server unless ``server_rank`` is given.
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
        disjoint: every seed grows a tree of its own; ``batch`` says which seed each node belongs to.
        input_time: int64 ``[n]``, times of the seeds: no later edge is sampled for them. Batches are disjoint then.
            Where the data set has times, the nodes' own are the default, and it is an error if they have none.
        temporal_strategy: of the edges that are not later, draw ``"uniform"``-ly or take the ``"last"`` ones.
            None looks at no times.
        shard: ``(index, count)``: give batch ``i`` of every epoch only if ``i % count == index``. With the rank and the
            world size of a trainer, all trainers together see every seed once per epoch.
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

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: a seed is outside the graph.
        NotInitializedError: the mode needs ``init_worker_group`` or ``init_client`` first.
        DeadlineExceededError: another worker did not come within ``rpc_timeout``.
        SamplingWorkerError: a subprocess or a server's worker failed on its way up.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors,
        input_nodes: Any,
        batch_size: int = 1,
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
        input_time: torch.Tensor | None = None,
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
    ) -> None:
        data = open_partition(data, edge_dir, weight_attr, time_attr)
        seeds = to_sampler_inputs(input_nodes, input_time)
        config = SamplingConfig(
            sampling_type=SamplingType.NODE,
            num_neighbors=check_num_neighbors(num_neighbors),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_format=edge_format,
            locality=locality,
            with_edge=with_edge,
            collect_features=collect_features,
            with_neg=False,
            with_weight=with_weight or weight_attr is not None,
            edge_dir=edge_dir,
            seed=loader_seed(random_seed, shard),
            collect_labels=collect_labels,
            replace=replace,
            strategy=strategy,
            disjoint=disjoint,
            induced=is_induced(subgraph_type),
            **time_settings(temporal_strategy, timed=has_times(seeds)),
        )
        super().__init__(
            data,
            seeds,
            config,
            to_device,
            worker_options,
            shard=shard,
            transform=transform,
            embeddings=embeddings,
        )
