"""Mini-batches of HGT sampling from a partitioned graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from ..loader.learned_rows import Embeddings
from ..sampler.base import SamplingConfig, SamplingType
from ..sampler.inputs import to_sampler_inputs
from ..sampler.num_samples import check_num_samples
from ..typing import NumSamples
from .dist_loader import DistLoader
from .dist_options import AllDistSamplingWorkerOptions
from .session.trainer_seeds import loader_seed
from .whole_partition import open_partition


class DistHGTLoader(DistLoader):
    """Mini-batches of HGT sampling ("Heterogeneous Graph Transformer", arXiv 2003.01332), from a partitioned graph.

    The same batches as ``loader.HGTLoader`` gives in one process; modes and errors are those of
    ``DistNeighborLoader``.

    Args:
        data: this worker's partition; None where servers sample. A single process may give PyG's data, or the directory
            of a single partition, see ``DistNeighborLoader``.
        num_samples: how many nodes of each type the iterations take, all that can be reached where there are fewer: a
            list by iteration for all types, or a dict of such lists of the same length by node type.
        input_nodes: seeds, see ``DistNeighborLoader``.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
            A server then makes the batches of which it owns the most seeds, any server unless ``server_rank`` is given.
        with_edge: batches carry ``e_id``.
        edge_dir: sample ``"in"``- or ``"out"``-neighbors, which must be what the partitions hold; None samples those.
        collect_features: batches carry ``x``, ``y`` and ``edge_attr`` where the data set has them.
        to_device: where batches go; None leaves them on the host.
        random_seed: seed of the shuffle and of all draws. Unless given, a function of the trainer's rank (among clients
            or workers, else in ``torch.distributed``): trainers that are given the same seeds do not draw the same
            batches in the same order. It is 0 at rank 0 and in a single process, and with a ``shard``: those have to
            draw alike. ``state_dict`` has the seed that holds.
        worker_options: where to sample, with how many processes.
        shard: ``(index, count)``: give batch ``i`` of every epoch only if ``i % count == index``.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        transform: called with each batch.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        collect_labels: batches carry ``y``, without ``collect_features`` too.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.HGTLoader``.
    """

    def __init__(
        self,
        data: Any,
        num_samples: NumSamples,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        edge_dir: Literal["in", "out"] | None = None,
        collect_features: bool = False,
        to_device: torch.device | None = None,
        random_seed: int | None = None,
        worker_options: AllDistSamplingWorkerOptions | None = None,
        *,
        edge_format: str = "edge_index",
        locality: int | None = None,
        shard: tuple[int, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        embeddings: Embeddings | None = None,
        collect_labels: bool = False,
    ) -> None:
        data = open_partition(data, edge_dir)
        config = SamplingConfig(
            sampling_type=SamplingType.HGT,
            num_neighbors=None,
            num_samples=check_num_samples(num_samples),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_format=edge_format,
            locality=locality,
            with_edge=with_edge,
            collect_features=collect_features,
            with_neg=False,
            with_weight=False,
            edge_dir=edge_dir,
            seed=loader_seed(random_seed, shard),
            collect_labels=collect_labels,
        )
        super().__init__(
            data,
            to_sampler_inputs(input_nodes),
            config,
            to_device,
            worker_options,
            shard=shard,
            transform=transform,
            embeddings=embeddings,
        )
