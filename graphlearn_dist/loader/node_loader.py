"""Loaders whose seeds are nodes."""

from __future__ import annotations

from typing import Any

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import BaseSampler, NodeSamplerInput, SamplingType
from ..sampler.device.padding import StaticShapes
from ..sampler.inputs import to_sampler_input
from ..sampler.neighbor_sampler import NeighborSampler
from .dataloader_keywords import check_keywords, drawn_seed
from .learned_rows import Embeddings
from .local_loader import LocalLoader, Transform
from .pyg_source import PygSource, for_pyg, node_counter, node_input


def check_sampler(sampler: Any, name: str) -> NeighborSampler:
    """Returns the sampler; an error names the argument where it is of another kind."""
    if not isinstance(sampler, NeighborSampler):
        raise InvalidArgumentError(f"{name}: expected a NeighborSampler, got {type(sampler).__name__}")
    return sampler


class NodeLoader(LocalLoader):
    """Mini-batches around nodes, as a sampler's settings say.

    PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)`` may stand in place of the data set: then the
    arguments are those of PyG's loader of the same name, in its order and with its meaning, and so are batches;
    ``docs/from_pyg.md`` says what is beside them.

    Args:
        data: graph, features and labels.
        node_sampler: a ``NeighborSampler``: its settings and its seed are the loader's.
        input_nodes: seeds: ids int ``[n]``, a boolean mask, a ``Split``, None for all nodes, or ``(node type, one of
            these)``; a node type alone stands for all its nodes.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there.
        batch_size: seeds of a batch.
        shuffle: permute the seeds in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the seeds into that many stretches in the order of the data set, and take each batch of one of
            them, so that its seeds are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        input_time: int64 ``[n]``, times of the seeds; the nodes' own unless given, see ``NeighborLoader``.
        sampling_type: neighborhoods, or induced subgraphs of them.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        static_shapes: pad all batches to the same shapes: True for bounds that always hold, or ``StaticShapes``; see
            ``loader.transform.padded_to_pyg``. It changes neither nodes nor edges, nor their order.
        as_pyg_v1: yield (batch size, ids, layers) instead of PyG objects; see ``sampler.convert.to_pyg_v1``.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: a seed is outside the graph.
    """

    @for_pyg("_open_pyg")
    def __init__(
        self,
        data: Dataset,
        node_sampler: BaseSampler,
        input_nodes: Any,
        device: torch.device | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        input_time: torch.Tensor | None = None,
        sampling_type: SamplingType = SamplingType.NODE,
        transform: Transform | None = None,
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        edge_format: str = "edge_index",
        locality: int | None = None,
        as_pyg_v1: bool = False,
        static_shapes: StaticShapes | bool = False,
        **keywords: Any,
    ) -> None:
        check_keywords(keywords)
        self.node_sampler: Any = node_sampler
        sampler_input = to_sampler_input(input_nodes, input_time)
        config = check_sampler(node_sampler, "node_sampler").config_of(
            sampling_type,
            timed=isinstance(sampler_input, NodeSamplerInput) and sampler_input.time is not None,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_format=edge_format,
            locality=locality,
            collect_features=not as_pyg_v1,
        )
        if as_pyg_v1 and (not data.schema.is_homogeneous or sampling_type is not SamplingType.NODE):
            raise InvalidArgumentError(
                "as_pyg_v1: expected False: only neighborhoods in homogeneous graphs have layers"
            )
        super().__init__(
            data,
            sampler_input,
            config,
            device=device,
            transform=transform,
            embeddings=embeddings,
            num_threads=num_threads,
            prefetch=prefetch,
            static_shapes=static_shapes,
            as_pyg_v1=as_pyg_v1,
            keywords=keywords,
        )

    def _open_pyg(
        self,
        data: Any,
        node_sampler: Any,
        input_nodes: Any = None,
        input_time: torch.Tensor | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        input_id: torch.Tensor | None = None,
        *,
        seed: int | None = None,
        device: torch.device | None = None,
        num_threads: int = 1,
        prefetch: int | None = None,
        **keywords: Any,
    ) -> None:
        """As PyG's loader of this name; see ``docs/from_pyg.md`` for what it does not have."""
        check_keywords(keywords)
        self.node_sampler = node_sampler
        self.input_nodes, self.input_time, self.input_id = input_nodes, input_time, input_id
        self.custom_cls = custom_cls
        self.input_data = node_input(data, input_nodes, input_time, input_id, node_counter(data, node_sampler))
        source = PygSource(data, node_sampler, self.input_data, custom_cls=custom_cls, num_threads=num_threads)
        self._open(
            data,
            source,
            len(self.input_data.node),
            keywords,
            source.settings,
            seed=drawn_seed(seed, keywords.get("generator")),
            device=device,
            transform=transform,
            prefetch=source.threads(prefetch),
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
        )
