"""Loaders whose seeds are the ends of links."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..sampler.base import BaseSampler, SamplingType
from ..sampler.inputs import get_edge_label_index, to_remote_link_input
from ..sampler.links.exclusion import ReverseIds, ReverseTypes, to_exclusion
from ..utils.shown import shown
from .dataloader_keywords import check_keywords, drawn_seed
from .learned_rows import Embeddings
from .local_loader import LocalLoader, Transform
from .node_loader import check_sampler
from .pyg_source import PygSource, cast_negatives, excluding_links, for_pyg, link_input

__all__ = ["LinkLoader", "get_edge_label_index"]


class LinkLoader(LocalLoader):
    """Mini-batches around links, as a sampler's settings say.

    PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)`` may stand in place of the data set: then the
    arguments are those of PyG's loader of the same name, in its order and with its meaning, and so are batches;
    ``docs/from_pyg.md`` says what is beside them.

    Args:
        data: graph, features and labels.
        link_sampler: a ``NeighborSampler``: its settings and its seed are the loader's.
        edge_label_index: links, see ``LinkNeighborLoader``.
        edge_label: ``[n, ...]``, labels of the links, or None.
        neg_sampling: which negatives are drawn, see ``LinkNeighborLoader``.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there.
        edge_dir: None, or what the data set holds.
        batch_size: links of a batch.
        shuffle: permute the links in every epoch.
        drop_last: leave out an incomplete last batch.
        locality: cut the links into that many stretches in the order of the data set, and take each batch of one of
            them, so that its sources are near; None takes any. 8 is a good number, see ``docs/locality.md``.
        exclude: which edges of a batch's links it does not pass messages along, see ``LinkNeighborLoader``; with
            ``edge_label_id``, ``reverse_eids`` and ``reverse_etypes``.
        edge_label_time: int64 ``[n]``, times of the links; None where they have none.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        edge_format: ``"edge_index"``, or ``"adj_t"``: batches carry a sparse matrix of torch in place of
            ``edge_index``, see ``docs/pyg.md``.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them.
        **keywords: others of torch's ``DataLoader``, see ``loader.dataloader_keywords``.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set; the error names them.
        UnknownIdError: an end of a link is outside the graph.
    """

    _flattens = True  # as PyG's loaders of links happen to do

    @for_pyg("_open_pyg")
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
        check_keywords(keywords)
        self.link_sampler: Any = link_sampler
        self.edge_label_index = edge_label_index
        if edge_dir not in (None, data.edge_dir):
            raise InvalidArgumentError(
                f"edge_dir: the data set holds {data.edge_dir!r}-neighbors, got {shown(edge_dir)}"
            )
        sampler_input = to_remote_link_input(
            edge_label_index,
            edge_label,
            neg_sampling,
            edge_label_time,
            edge_label_id,
            exclude=exclude,
            reverse_eids=reverse_eids,
            reverse_etypes=reverse_etypes,
        )
        sampler = check_sampler(link_sampler, "link_sampler")
        config = sampler.config_of(
            SamplingType.LINK,
            timed=edge_label_time is not None,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            edge_format=edge_format,
            locality=locality,
            collect_features=True,
            with_neg=sampler_input.neg_sampling is not None,
            with_edge=sampler.config.with_edge or exclude is not None,
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
            keywords=keywords,
        )
        self.neg_sampling: Any = sampler_input.neg_sampling

    def _open_pyg(
        self,
        data: Any,
        link_sampler: Any,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        edge_label_time: torch.Tensor | None = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        transform: Transform | None = None,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        input_id: torch.Tensor | None = None,
        *,
        exclude: str | None = None,
        edge_label_id: torch.Tensor | None = None,
        reverse_eids: ReverseIds = None,
        reverse_etypes: ReverseTypes = None,
        seed: int | None = None,
        device: torch.device | None = None,
        num_threads: int = 1,
        prefetch: int | None = None,
        **keywords: Any,
    ) -> None:
        """As PyG's loader of this name; see ``docs/from_pyg.md`` for what it does not have."""
        check_keywords(keywords)
        self.link_sampler = link_sampler
        self.edge_label_index, self.custom_cls = edge_label_index, custom_cls
        self.neg_sampling, _ = cast_negatives(neg_sampling, neg_sampling_ratio)
        self.input_data = link_input(data, edge_label_index, edge_label, edge_label_time, self.neg_sampling, input_id)
        exclusion = to_exclusion(exclude, self.input_data.input_type, reverse_eids, reverse_etypes)
        source = PygSource(
            data,
            link_sampler,
            self.input_data,
            excluding=excluding_links(self.input_data, exclusion, edge_label_id, edge_label_index),
            neg_sampling=self.neg_sampling,
            custom_cls=custom_cls,
            num_threads=num_threads,
        )
        self._open(
            data,
            source,
            len(self.input_data.row),
            keywords,
            source.settings,
            seed=drawn_seed(seed, keywords.get("generator")),
            device=device,
            transform=transform,
            prefetch=source.threads(prefetch),
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
        )
