"""A sampler for PyG's own loaders: ``torch_geometric.loader.NodeLoader`` and ``LinkLoader``."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

from ..data.dataset import Dataset
from ..errors import InvalidArgumentError
from ..messages import SampledBatch
from ..sampler.base import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
    time_settings,
)
from ..sampler.batch_maker import BatchMaker
from ..sampler.batches import make_plan, with_own_times
from ..sampler.inputs import resolve_input
from ..sampler.local_graph import LocalGraph
from ..sampler.tasks import GraphAccess
from ..typing import NumNeighbors
from ..utils.coroutines import run_local
from .dist_dataset import DistDataset
from .sampling.served_dataset import ServedDataset

_INDEX_BITS = 63


def batch_index(input_id: torch.Tensor) -> int:
    """The number under which a batch draws: a hash of the positions of its seeds, in [0, 2^63).

    PyG's loaders do not say which batch they want; which seeds it has is all that a sampler is told.
    """
    digest = hashlib.blake2b(input_id.to(torch.int64).contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _INDEX_BITS)


class PyGSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed
    """Samples for PyG's ``NodeLoader`` and ``LinkLoader``, from a graph that is here or on servers.

    What is drawn for a batch is a function of the graph, the arguments, the epoch and the batch's seeds (their
    positions in the loader's input, in their order), and of nothing else: neither of the loader's ``num_workers`` nor
    of the number of servers. Call ``set_epoch`` before each epoch for other draws where the same batch comes again
    (without ``shuffle``); it reaches persistent workers too.

    A loader that samples from servers needs ``num_workers=0``: connections do not survive a fork.

    Args:
        data: a ``Dataset`` (or ``DistDataset`` of one partition) that holds in-neighbors, ``edge_dir="in"``, as PyG's
            loaders sample; or the ``ServedDataset`` of a client's servers.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none), or a dict of such lists by edge type.
        with_edge: give edge ids, which become ``e_id`` and select the rows of edge attributes.
        with_weight: sample by edge weight, along the edge types that have weights.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        seed: seed of all draws.
        replace: sample with replacement.
        disjoint: every seed grows a tree of its own.
        temporal_strategy: ``"uniform"`` or ``"last"``, for seeds that have times.
        strict_negatives: draw no negative link that is an edge (PyG's sampler does not look).
        num_threads: threads of one batch.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set.
    """

    def __init__(
        self,
        data: Dataset,
        num_neighbors: NumNeighbors,
        *,
        with_edge: bool = True,
        with_weight: bool = False,
        strategy: str = "random",
        seed: int = 0,
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str | None = "uniform",
        strict_negatives: bool = False,
        num_threads: int = 1,
    ) -> None:
        _check_data(data)
        self._data = data
        self._settings: dict[str, Any] = {
            "num_neighbors": num_neighbors,
            "batch_size": 1,
            "shuffle": False,
            "drop_last": False,
            "with_edge": with_edge,
            "collect_features": False,
            "with_weight": with_weight,
            "edge_dir": "in",
            "seed": seed,
            "replace": replace,
            "strategy": strategy,
            "disjoint": disjoint,
        }
        self._temporal_strategy = temporal_strategy
        self._strict = strict_negatives
        self._num_threads = num_threads
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._graphs: dict[str | None, GraphAccess] = {}
        self._graph(self._config(SamplingType.NODE, timed=temporal_strategy == "last"))

    def set_epoch(self, epoch: int) -> None:
        """Chooses the draws of the batches that are sampled from now on; 0 at first."""
        self._epoch[0] = epoch

    @property
    def edge_permutation(self) -> None:
        """None: edge ids are the data set's own."""
        return None

    def sample_from_nodes(self, index: Any, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of nodes.

        Args:
            index: PyG's ``NodeSamplerInput``.

        Returns:
            PyG's ``SamplerOutput``, or for a typed graph ``HeteroSamplerOutput`` with every type of the data set.
            ``metadata`` is (positions of the seeds, their times).

        Raises:
            InvalidArgumentError: an unknown node type, or times where the graph has none.
            UnknownIdError: a seed is outside the graph.
        """
        inputs = NodeSamplerInput(index.node, index.input_type, index.time)
        batch, positions = self._sample(inputs, SamplingType.NODE, index.input_id)
        return self._output(batch, (positions, batch.seed_times))

    def sample_from_edges(self, index: Any, neg_sampling: Any = None, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of the ends of links, and of negatives that are drawn for them.

        Args:
            index: PyG's ``EdgeSamplerInput``.
            neg_sampling: PyG's ``NegativeSampling``, or None.

        Returns:
            As ``sample_from_nodes``; ``metadata`` is (positions of the links, edge_label_index, edge_label, times), or
            with triplets (positions, src_index, dst_pos_index, dst_neg_index, times).
        """
        sampling = None
        if neg_sampling is not None:
            mode, amount = neg_sampling.mode.value, neg_sampling.amount
            weights = neg_sampling.dst_weight, neg_sampling.src_weight
            sampling = NegativeSampling(mode, amount, weights[0], src_weight=weights[1], strict=self._strict)
        inputs = EdgeSamplerInput(index.row, index.col, index.label, index.input_type, sampling, index.time)
        batch, positions = self._sample(inputs, SamplingType.LINK, index.input_id)
        links = batch.links
        assert links is not None  # links were sampled
        if sampling is not None and sampling.is_triplet():
            found = links.src_index, links.dst_pos_index, links.dst_neg_index
        else:
            found = (links.edge_label_index, links.edge_label)  # type: ignore[assignment]
        return self._output(batch, (positions, *found, batch.seed_times))

    def _config(self, kind: SamplingType, *, timed: bool, with_neg: bool = False) -> SamplingConfig:
        times = time_settings(self._temporal_strategy, timed=timed)
        return SamplingConfig(sampling_type=kind, with_neg=with_neg, **times, **self._settings)

    def _graph(self, config: SamplingConfig) -> GraphAccess:
        """The graph as sampled with a config of this sampler; kept for the next batch."""
        key = config.temporal_strategy
        if key not in self._graphs:
            plan = make_plan(self._data, config)
            if isinstance(self._data, ServedDataset):
                self._graphs[key] = self._data.graph_access(plan, self._num_threads)
            else:
                self._graphs[key] = LocalGraph(self._data, plan, self._num_threads)
        return self._graphs[key]

    def _sample(
        self, inputs: NodeSamplerInput | EdgeSamplerInput, kind: SamplingType, input_id: torch.Tensor | None
    ) -> tuple[SampledBatch, torch.Tensor]:
        """A batch of all the seeds, and their positions in the loader's input."""
        with_neg = isinstance(inputs, EdgeSamplerInput) and inputs.neg_sampling is not None
        inputs = resolve_input(inputs, self._data)
        config = with_own_times(
            self._config(kind, timed=inputs.time is not None, with_neg=with_neg), inputs, self._data
        )
        maker = BatchMaker(self._graph(config), self._data.schema, inputs, config)
        here = torch.arange(len(inputs))
        positions = here if input_id is None else input_id
        epoch = int(self._epoch)
        return run_local(maker.make_of(here, epoch, batch_index(positions))), positions

    def _output(self, batch: SampledBatch, metadata: tuple[Any, ...]) -> SamplerOutput | HeteroSamplerOutput:
        schema, sampled = self._data.schema, batch.subgraph
        if schema.is_homogeneous:
            return SamplerOutput(
                node=sampled.nodes[0],
                row=sampled.rows[0],
                col=sampled.cols[0],
                edge=sampled.edge_ids[0],
                batch=sampled.trees[0],
                num_sampled_nodes=list(sampled.num_sampled_nodes[0]),
                num_sampled_edges=list(sampled.num_sampled_edges[0]),
                metadata=metadata,
            )
        node_types, edge_types = schema.node_types, schema.edge_types
        trees = dict(zip(node_types, sampled.trees, strict=True))
        return HeteroSamplerOutput(
            node=dict(zip(node_types, sampled.nodes, strict=True)),
            row=dict(zip(edge_types, sampled.rows, strict=True)),
            col=dict(zip(edge_types, sampled.cols, strict=True)),
            edge=dict(zip(edge_types, sampled.edge_ids, strict=True)),
            batch=None if None in trees.values() else trees,
            num_sampled_nodes=dict(zip(node_types, map(list, sampled.num_sampled_nodes), strict=True)),
            num_sampled_edges=dict(zip(edge_types, map(list, sampled.num_sampled_edges), strict=True)),
            metadata=metadata,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_graphs": {}}  # made anew where it is needed


def _check_data(data: Any) -> None:
    if not isinstance(data, Dataset) or data.graph is None:
        raise InvalidArgumentError(
            f"data: expected a Dataset with a graph, or a ServedDataset, got {type(data).__name__}"
        )
    if isinstance(data, DistDataset) and not isinstance(data, ServedDataset) and not data.is_whole:
        raise InvalidArgumentError(
            f"data: expected a data set that is whole or on servers, got one of {data.num_partitions} partitions"
        )
