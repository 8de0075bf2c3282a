"""A sampler for PyG's own loaders: ``torch_geometric.loader.NeighborLoader``, ``LinkNeighborLoader`` and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NumNeighbors, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from ..data.pyg.store_pairs import is_pyg_data
from ..data.schema import EdgeDirection, GraphSchema, bare
from ..data.topology import Topology
from ..errors import InvalidArgumentError
from ..messages import SampledBatch
from ..sampler.base import (
    EdgeSamplerInput,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
    time_settings,
)
from ..sampler.batch_maker import BatchMaker
from ..sampler.batches import make_plan, with_own_times
from ..sampler.convert import with_repeated_seeds
from ..sampler.epochs.by_positions import PlacesByPositions
from ..sampler.epochs.schedule import batch_index
from ..sampler.inputs import check_input
from ..sampler.links.exclusion import with_excluded
from ..sampler.links.negative_sampling import negatives_of
from ..sampler.num_samples import check_num_samples
from ..sampler.plan import SamplingPlan, plain_num_neighbors
from ..sampler.tasks import GraphAccess
from ..typing import EdgeType, NumSamples
from ..utils.coroutines import run_local
from ..utils.shown import shown
from ..utils.values import to_flag
from .pyg_stores import ServerGraphStore
from .sampling.asked_dataset import AskedDataset
from .sampling.known_graph import graph_access, graph_for

__all__ = ["PyGSampler", "batch_index"]

_DIRECTIONS: dict[str, EdgeDirection] = {"forward": "in", "backward": "out"}


class PyGSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed
    """Samples for PyG's loaders, from a graph that is here or on servers; it needs neither pyg-lib nor torch-sparse.

    What is drawn for a batch is a function of the graph, the arguments, the epoch, the batch's seeds (their positions
    in the loader's input, in their order), and how often these were asked for in the epoch, and of nothing else:
    neither of the loader's ``num_workers`` nor of the number of servers. Call ``set_epoch`` before each epoch; it
    reaches persistent workers too. Where it was never called, draws in worker processes of a loader are a function of
    the seed that torch draws for each iteration, too: epochs differ, and depend on ``num_workers``.

    A loader that samples from servers needs ``num_workers=0``: connections do not survive a fork.

    Args:
        data: PyG's ``Data``, ``HeteroData`` or ``(FeatureStore, GraphStore)``, whose graph is read once, now; the
            stores of servers (``pyg_stores``), which are asked batch by batch; a ``Dataset`` (or ``DistDataset`` of one
            partition) that holds in-neighbors, ``edge_dir="in"``, as PyG's loaders sample; the ``ServedDataset`` of a
            client's servers; or a partition directory, all of it on this machine.
        num_neighbors: fan-out per hop (-1: all neighbors, 0: none; no hops: the seeds alone), a dict of such lists by
            edge type, or PyG's ``NumNeighbors``. PyG's loaders do not tell theirs to a sampler that they are given.
        with_edge: give edge ids, which become ``e_id`` and select the rows of edge attributes.
        with_weight: sample by edge weight, along the edge types that have weights; so does a ``weight_attr``.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        seed: seed of all draws.
        replace: sample with replacement.
        disjoint: every seed grows a tree of its own.
        temporal_strategy: ``"uniform"`` or ``"last"``, for seeds that have times.
        strict_negatives: draw no negative link that is an edge (PyG's sampler does not look).
        num_threads: threads of one batch.
        subgraph_type: ``"directional"``: the edges that were sampled; ``"bidirectional"``: these and their reverses,
            each once; ``"induced"``: all edges between the sampled nodes, each of which a batch then has once.
        time_attr: of PyG's data, the attribute that holds times of nodes or of edges; None looks at no times.
        weight_attr: of PyG's data, the attribute that holds weights of edges. A data set, or one on servers, has its
            weights and times with the graph, whatever they are called here.
        sample_direction: ``"backward"`` samples out-neighbors instead: edges still run from source to target.
        is_sorted: not used: batches do not depend on the order of the edges.
        share_memory: not used: workers of a loader see the graph of the process that they are forks of.
        directed: PyG's older way to say ``subgraph_type="induced"``, by False.
        num_samples: HGT sampling of nodes instead, with all edges between them: how many nodes of each type an
            iteration takes, see ``loader.HGTLoader``.

    Attributes:
        node_types, edge_types: of the graph, ``[None]`` where it is homogeneous.
        temporal_strategy: as it was given; it may be set.
        keep_orig_edges: with bidirectional edges, PyG's ``orig_row``, ``orig_col`` and counts per hop stay there.

    Raises:
        InvalidArgumentError: arguments that contradict each other or the data set.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any = None,
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
        subgraph_type: SubgraphType | str = "directional",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        sample_direction: Literal["forward", "backward"] = "forward",
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        num_samples: NumSamples | None = None,
    ) -> None:
        if sample_direction not in _DIRECTIONS:
            raise InvalidArgumentError(
                f"sample_direction: expected one of {list(_DIRECTIONS)}, got {shown(sample_direction)}"
            )
        self.sample_direction = sample_direction
        is_hgt = num_samples is not None
        self._subgraph_type = SubgraphType.induced if is_hgt else _subgraph_type(subgraph_type, directed)
        self.keep_orig_edges = False
        metadata = getattr(data, "metadata", None)  # of HeteroData, in whose order PyG has the types
        if isinstance(data, (tuple, list)) and len(data) == 2 and isinstance(data[1], ServerGraphStore):
            data = data[1].data
        self._data = graph_for(data, _DIRECTIONS[sample_direction], weight_attr=weight_attr, time_attr=time_attr)
        types = metadata() if callable(metadata) else (self.schema.node_types, self.schema.edge_types)
        self.node_types, self.edge_types = map(list, types if self.is_hetero else ([None], [None]))
        self._settings: dict[str, Any] = {
            "batch_size": 1,
            "shuffle": False,
            "drop_last": False,
            "with_edge": with_edge,
            "collect_features": False,
            "with_weight": with_weight or weight_attr is not None,
            "edge_dir": _DIRECTIONS[sample_direction],
            "seed": seed,
            "replace": replace,
            "strategy": strategy,
            "disjoint": disjoint,
        }
        looks_at_times = not is_hgt and (time_attr is not None or not is_pyg_data(data))
        self.temporal_strategy = temporal_strategy
        self._looks_at_times = looks_at_times
        self.strict_negatives = strict_negatives
        self._num_threads = num_threads
        # For workers, too: the epoch, and how often it was set.
        self._epoch = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._num_set = 0  # as far as this process knows
        self._by_positions = PlacesByPositions()
        self._graphs: list[tuple[SamplingConfig, GraphAccess]] = []
        self._num_samples = None if num_samples is None else check_num_samples(num_samples)
        self.num_neighbors = num_neighbors

    def set_epoch(self, epoch: int) -> None:
        """Chooses the draws of the batches that are sampled from now on; 0 at first.

        What was sampled in an epoch is sampled again where the same epoch is set again.
        """
        self._epoch[0] = epoch
        self._epoch[1] += 1
        self._follow_epoch()

    def _follow_epoch(self) -> None:
        """Sees what epoch was set in this process, or in the one that this is a worker of."""
        epoch, num_set = self._epoch.tolist()
        if num_set != self._num_set:
            self._num_set = num_set
            self._by_positions.choose(epoch)

    @property
    def num_neighbors(self) -> NumNeighbors | None:
        """The fan-outs, as PyG's ``NumNeighbors``; they may be set to others at any time. None: not given yet."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, num_neighbors: Any) -> None:
        if num_neighbors is not None and self._num_samples is not None:
            raise InvalidArgumentError(f"num_neighbors: expected None beside num_samples, got {shown(num_neighbors)}")
        is_theirs = num_neighbors is None or isinstance(num_neighbors, NumNeighbors)
        before = getattr(self, "_num_neighbors", None)
        self._num_neighbors = num_neighbors if is_theirs else _num_neighbors(num_neighbors)
        try:
            self._check_settings()
        except InvalidArgumentError:
            self._num_neighbors = before
            raise

    @property
    def replace(self) -> bool:
        """Whether is sampled with replacement; may be set at any time, as the next one."""
        return bool(self._settings["replace"])

    @replace.setter
    def replace(self, replace: bool) -> None:
        self._set("replace", to_flag("replace", replace))

    @property
    def disjoint(self) -> bool:
        """Whether every seed grows a tree of its own, which it does where there are times."""
        return bool(self._settings["disjoint"]) or self.is_temporal

    @disjoint.setter
    def disjoint(self, disjoint: bool) -> None:
        self._set("disjoint", to_flag("disjoint", disjoint))

    @property
    def subgraph_type(self) -> SubgraphType:
        """Which edges between sampled nodes are given; may be set, likewise."""
        return self._subgraph_type

    @subgraph_type.setter
    def subgraph_type(self, subgraph_type: SubgraphType | str) -> None:
        value = _subgraph_type(subgraph_type, True)
        if self._num_samples is not None and value is not SubgraphType.induced:
            raise InvalidArgumentError(
                f"subgraph_type: expected 'induced' with num_samples, got {shown(subgraph_type)}"
            )
        before, self._subgraph_type = self._subgraph_type, value
        try:
            self._check_settings()
        except InvalidArgumentError:
            self._subgraph_type = before
            raise

    def _set(self, name: str, value: Any) -> None:
        before = self._settings
        self._settings = {**before, name: value}
        try:
            self._check_settings()
        except InvalidArgumentError:
            self._settings = before
            raise

    def _check_settings(self) -> None:
        """Raises an ``InvalidArgumentError`` where the settings do not go with each other or the graph."""
        self._graphs = []
        if self._num_neighbors is not None or self._num_samples is not None:
            self._graph(self.config(SamplingType.NODE, timed=self._strategy_of_times == "last"))

    @property
    def _strategy_of_times(self) -> str | None:
        return self.temporal_strategy if self._looks_at_times else None

    @property
    def schema(self) -> GraphSchema:
        """Types and counts of the graph."""
        return self._data.schema

    def num_edge_ids(self, edge_type: EdgeType | None = None) -> int | None:
        """Ids of a type's edges are below this; 0 where there is no such type, None where it is not known."""
        return self._data.num_edge_ids(edge_type)

    @property
    def num_nodes(self) -> Any:
        """Nodes of the graph, of a typed one by node type."""
        return bare(dict(zip(self.schema.node_types, self.schema.num_nodes, strict=True)))

    @property
    def is_temporal(self) -> bool:
        """Whether times of nodes or edges are looked at."""
        return self._strategy_of_times is not None and any(
            graph.topo.edge_times is not None for graph in self._data.graphs().values()
        )

    @property
    def node_time(self) -> Any:
        """Times of the nodes, int64 ``[num_nodes]``, of a typed graph by node type.

        None where none are looked at, where edges have them, or where they are not in this process.
        """
        return bare(self._data.node_times) if self.is_temporal else None

    @property
    def edge_time(self) -> Any:
        """Times of the edges by edge id, of a typed graph by PyG's names of edge types (``"paper__cites__paper"``).

        None where none are looked at, where nodes have them, or where they are not in this process.
        """
        if not self.is_temporal or self._data.node_times:
            return None
        return self._by_edge_id(lambda topology: topology.edge_times)

    @property
    def edge_weight(self) -> Any:
        """Weights of the edges, likewise; None where is not sampled by them."""
        return self._by_edge_id(lambda topology: topology.edge_weights) if self._settings["with_weight"] else None

    def _by_edge_id(self, column: Callable[[Topology], torch.Tensor | None]) -> Any:
        if isinstance(self._data, AskedDataset):
            return None
        found = {}
        for edge_type, graph in self._data.graphs().items():
            values, ids = column(graph.topo), graph.topo.edge_ids
            if values is not None:
                by_id = values.new_zeros(graph.topo.num_edge_ids)
                by_id[ids.long()] = values
                found[edge_type if edge_type is None else "__".join(edge_type)] = by_id
        return bare(found)

    @property
    def is_hetero(self) -> bool:
        """Whether the graph is typed."""
        return not self.schema.is_homogeneous

    @property
    def edge_permutation(self) -> None:
        """None: edge ids are the data set's own."""
        return None

    def sample_from_nodes(
        self, index: Any, *, place: tuple[int, int] | None = None, **_: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of nodes.

        Args:
            index: PyG's ``NodeSamplerInput``.
            place: (epoch, index) of the batch, whose draws it has; unless given, the epoch of ``set_epoch``, and a hash
                of the seeds' positions and of how often they were asked for in it.

        Returns:
            PyG's ``SamplerOutput``, or for a typed graph ``HeteroSamplerOutput`` with every type of the data set.
            ``metadata`` is (positions of the seeds, their times), each as it was given.

        Raises:
            InvalidArgumentError: an unknown node type, or times where the graph has none.
            UnknownIdError: a seed is outside the graph.
        """
        inputs = NodeSamplerInput(index.node, index.input_type, index.time)
        batch, subgraph_type = self._sample(inputs, SamplingType.NODE, index.input_id, place)
        if batch.mapping is not None:  # PyG's programs find the seeds in the first nodes
            specs = self.schema.edge_specs
            subgraph = with_repeated_seeds(batch.subgraph, batch.mapping, batch.seed_type, specs)
            batch = replace(batch, subgraph=subgraph)
        return self._output(batch, subgraph_type, (index.input_id, inputs.time))

    def sample_from_edges(
        self,
        index: Any,
        neg_sampling: Any = None,
        *,
        place: tuple[int, int] | None = None,
        excluding: EdgeSamplerInput | None = None,
        **_: Any,
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of the ends of links, and of negatives that are drawn for them.

        Args:
            index: PyG's ``EdgeSamplerInput``.
            neg_sampling: PyG's ``NegativeSampling``, or None.
            place: see ``sample_from_nodes``.
            excluding: the links with the edges that the batch leaves out, or None; ``with_edge`` has to be True then.

        Returns:
            As ``sample_from_nodes``; ``metadata`` is (positions of the links as they were given, edge_label_index,
            edge_label, times), or with triplets (positions, src_index, dst_pos_index, dst_neg_index, times).
        """
        sampling = negatives_of(neg_sampling, strict=self.strict_negatives)
        inputs = EdgeSamplerInput(index.row, index.col, index.label, index.input_type, sampling, index.time)
        inputs = with_excluded(inputs, excluding)
        batch, subgraph_type = self._sample(inputs, SamplingType.LINK, index.input_id, place)
        links = batch.links
        assert links is not None  # links were sampled
        if sampling is not None and sampling.is_triplet():
            found = links.src_index, links.dst_pos_index, links.dst_neg_index
        else:
            found = (links.edge_label_index, links.edge_label)  # type: ignore[assignment]
        times = batch.seed_times
        if times is not None and index.time is not None:
            times = times.to(index.time.dtype)
        return self._output(batch, subgraph_type, (index.input_id, *found, times))

    def config(self, kind: SamplingType, *, timed: bool, with_neg: bool = False) -> SamplingConfig:
        """The settings of this sampler for one kind of input.

        Raises:
            InvalidArgumentError: no fan-outs were given, or the settings contradict each other.
        """
        settings: dict[str, Any] = self._settings | time_settings(self._strategy_of_times, timed=timed)
        settings["induced"] = self._subgraph_type is SubgraphType.induced
        if self._num_samples is not None:
            if kind is not SamplingType.NODE:
                raise InvalidArgumentError("num_samples: expected None to sample links")
            kind, samples = SamplingType.HGT, self._num_samples
            return SamplingConfig(
                sampling_type=kind,
                num_neighbors=None,
                num_samples=samples,
                with_neg=with_neg,
                **settings,
            )
        if self._num_neighbors is None:
            raise InvalidArgumentError(
                "num_neighbors: expected fan-outs for PyGSampler itself, got None; PyG's loaders do not tell theirs to "
                "a sampler that they are given"
            )
        fanouts = plain_num_neighbors(self._num_neighbors) if len(self._num_neighbors) else None
        return SamplingConfig(sampling_type=kind, num_neighbors=fanouts, with_neg=with_neg, **settings)

    def _plan(self, config: SamplingConfig) -> SamplingPlan:
        if config.num_neighbors is not None or config.num_samples is not None:
            return make_plan(self._data, config)
        # No hop at all, which for nodes and links the core's own loaders take for a mistake.
        plan = make_plan(self._data, replace(config, sampling_type=SamplingType.SUBGRAPH, disjoint=False))
        return replace(plan, disjoint=config.is_disjoint)

    def _graph(self, config: SamplingConfig) -> GraphAccess:
        """The graph as sampled with a config of this sampler; kept for the next batch.

        By the config: another thread may make a batch with the settings that were there before.
        """
        graphs = self._graphs
        for known, graph in graphs:
            if known == config:
                return graph
        made = graph_access(self._data, self._plan(config), self._num_threads)
        graphs.append((config, made))
        return made

    def _sample(
        self,
        inputs: NodeSamplerInput | EdgeSamplerInput,
        kind: SamplingType,
        input_id: torch.Tensor | None,
        place: tuple[int, int] | None,
    ) -> tuple[SampledBatch, SubgraphType]:
        """A batch of all the seeds, and which edges it has."""
        subgraph_type = self._subgraph_type  # which may be set meanwhile
        with_neg = isinstance(inputs, EdgeSamplerInput) and inputs.neg_sampling is not None
        schema = _with_link_type(self.schema, inputs)
        inputs = check_input(inputs, schema)
        config = self.config(kind, timed=inputs.time is not None, with_neg=with_neg)
        config = replace(config, induced=subgraph_type is SubgraphType.induced)
        config = with_own_times(config, inputs, self._data)
        maker = BatchMaker(self._graph(config), schema, inputs, config, num_threads=self._num_threads)
        here = torch.arange(len(inputs))
        positions = here if input_id is None else input_id
        if place is None:
            self._follow_epoch()
            place = self._by_positions.next(positions)
        return run_local(maker.make_of(here, *place)), subgraph_type

    def _output(
        self, batch: SampledBatch, subgraph_type: SubgraphType, metadata: tuple[Any, ...]
    ) -> SamplerOutput | HeteroSamplerOutput:
        """The batch as PyG has it: an edge runs from its source to its target, whichever of them was sampled."""
        schema, sampled = self._data.schema, batch.subgraph
        rows, cols = (sampled.rows, sampled.cols) if schema.edge_dir == "in" else (sampled.cols, sampled.rows)
        by_hop: dict[str, Any] = {}
        if subgraph_type is not SubgraphType.induced:  # whose edges belong to no hop
            by_hop["num_sampled_nodes"] = dict(
                zip(schema.node_types, map(list, sampled.num_sampled_nodes), strict=True)
            )
            by_hop["num_sampled_edges"] = dict(
                zip(schema.edge_types, map(list, sampled.num_sampled_edges), strict=True)
            )
        out: SamplerOutput | HeteroSamplerOutput
        if schema.is_homogeneous:
            counts = {name: by_type[None] for name, by_type in by_hop.items()}
            out = SamplerOutput(sampled.nodes[0], rows[0], cols[0], sampled.edge_ids[0], sampled.trees[0], **counts)
        else:
            trees = dict(zip(schema.node_types, sampled.trees, strict=True))
            out = HeteroSamplerOutput(
                node=dict(zip(schema.node_types, sampled.nodes, strict=True)),
                row=dict(zip(schema.edge_types, rows, strict=True)),
                col=dict(zip(schema.edge_types, cols, strict=True)),
                edge=dict(zip(schema.edge_types, sampled.edge_ids, strict=True)),
                batch=None if None in trees.values() else trees,
                **by_hop,
            )
        out.metadata = metadata
        if subgraph_type is SubgraphType.bidirectional:
            return out.to_bidirectional(keep_orig_edges=self.keep_orig_edges)
        return out

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are made anew where they are needed, and the epoch that was set is found.
        return {**self.__dict__, "_graphs": [], "_num_set": 0, "_by_positions": PlacesByPositions()}


def _with_link_type(schema: GraphSchema, inputs: NodeSamplerInput | EdgeSamplerInput) -> GraphSchema:
    """The types of the graph, and that of the links where it has no edges of it: such links are of nodes that it has.

    PyG's programs take the edges that a model learns to find out of the graph, and their type with them.
    """
    if not isinstance(inputs, EdgeSamplerInput):
        return schema
    link_type = inputs.input_type
    if link_type is None or link_type in schema.edge_types:
        return schema
    is_known = link_type[0] in schema.node_types and link_type[2] in schema.node_types
    is_checked = inputs.neg_sampling is not None and inputs.neg_sampling.strict
    if not is_known or is_checked:  # there are no edges by which negatives could be checked
        return schema
    return replace(schema, edge_types=(*schema.edge_types, link_type))


def _num_neighbors(given: Any) -> NumNeighbors:
    """Fan-outs as PyG's; under the key None, a dict has those of all types that it does not name."""
    if not isinstance(given, dict):
        return NumNeighbors(_hops(given))
    by_type = {key: _hops(hops, f" for {key}") for key, hops in given.items() if key is not None}
    default = None if given.get(None) is None else _hops(given[None], " for the other types")
    try:
        return NumNeighbors(by_type, default)
    except (ValueError, TypeError) as error:  # of keys
        raise InvalidArgumentError(f"num_neighbors: {error}") from error


def _hops(given: Any, types: str = "") -> list[Any]:
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if isinstance(given, str) or not isinstance(given, Sequence):
        wanted = f"a list with one fan-out per hop{types}"
        raise InvalidArgumentError(f"num_neighbors: expected {wanted}, got {shown(given)}")
    return list(given)


def _subgraph_type(given: SubgraphType | str, directed: bool) -> SubgraphType:
    if not directed:
        warnings.warn(
            "the argument 'directed' is deprecated by PyG: directed=False is subgraph_type='induced'", stacklevel=3
        )
        return SubgraphType.induced
    try:
        return SubgraphType(given)
    except ValueError:
        names = [one.value for one in SubgraphType]
        raise InvalidArgumentError(f"subgraph_type: expected one of {names}, got {shown(given)}") from None
