"""Mini-batches of HGT sampling."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..sampler.base import SamplingConfig, SamplingType
from ..sampler.inputs import to_sampler_input
from ..sampler.num_samples import check_num_samples
from ..typing import NumSamples
from .dataloader_keywords import check_keywords, drawn_seed
from .learned_rows import Embeddings
from .local_loader import LocalLoader, Transform
from .node_loader import NodeLoader
from .pyg_source import for_pyg


class HGTLoader(NodeLoader):
    """Mini-batches of HGT sampling ("Heterogeneous Graph Transformer", arXiv 2003.01332), from data in this process.

    In each iteration a batch takes so many nodes of each type, by how much they are connected to those that it has: a
    node is the next with a probability proportional to its squared budget, and its budget is the sum of 1 / degree over
    the edges by which nodes of the batch reach it. The batch has all edges between its nodes. See ``docs/sampling.md``.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the arguments and ``seed``. Epochs follow
    each other from 0; one begins with its first batch, not with ``iter()``. Weights and times of the data set are not
    looked at.

    PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)`` may stand in place of the data set: then the
    arguments are those of PyG's loader of the same name, in its order and with its meaning, and so are batches;
    ``docs/from_pyg.md`` says what is beside them.

    Args:
        data: graph, features and labels; graphs in host memory.
        num_samples: how many nodes of each type the iterations take, all that can be reached where there are fewer: a
            list by iteration for all types, or a dict of such lists of the same length by node type.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split``, None for all nodes, or ``(node type, one of
            these)``; a node type alone stands for all its nodes.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        with_edge: batches carry ``e_id``.
        device: where batches go; None leaves them on the host.
        seed: seed of the shuffle and of all draws; 0 unless given.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Yields:
        ``Data`` (``HeteroData`` for typed graphs), see ``loader.transform.to_pyg``: the seeds, each as often as it was
        asked for, and behind them the nodes of each iteration, each once, in the order in which they were drawn.
        ``num_sampled_nodes`` counts seeds and nodes by iteration. Messages run from neighbor to the node whose neighbor
        it is.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: a seed is outside the graph.
    """

    @for_pyg("_open_pyg_samples")
    def __init__(
        self,
        data: Dataset,
        num_samples: NumSamples,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        device: torch.device | None = None,
        seed: int | None = None,
        *,
        transform: Transform | None = None,
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        edge_format: str = "edge_index",
        locality: int | None = None,
        **keywords: Any,
    ) -> None:
        check_keywords(keywords)
        self.node_sampler = None
        config = SamplingConfig(
            sampling_type=SamplingType.HGT,
            num_neighbors=None,
            num_samples=check_num_samples(num_samples),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            collect_features=True,
            with_neg=False,
            with_weight=False,
            edge_dir=None,
            seed=0 if seed is None else seed,
            edge_format=edge_format,
            locality=locality,
        )
        LocalLoader.__init__(
            self,
            data,
            to_sampler_input(input_nodes),
            config,
            device=device,
            transform=transform,
            embeddings=embeddings,
            num_threads=num_threads,
            prefetch=prefetch,
            keywords=keywords,
        )

    def _open_pyg_samples(
        self,
        data: Any,
        num_samples: Any,
        input_nodes: Any,
        is_sorted: bool = False,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        *,
        seed: int | None = None,
        num_threads: int = 1,
        **keywords: Any,
    ) -> None:
        """As PyG's loader of this name; see ``docs/from_pyg.md`` for what it does not have."""
        from ..distributed.pyg_sampler import PyGSampler

        seed = drawn_seed(seed, keywords.get("generator"))
        self._open_pyg(
            data,
            PyGSampler(data, num_samples=check_num_samples(num_samples), seed=seed, num_threads=num_threads),
            input_nodes,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            num_threads=num_threads,
            **keywords,
        )
