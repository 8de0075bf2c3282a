"""The local sampler: graphs held whole in this process. The oracle of every distributed mode."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

import torch

from .. import _C
from ..core import check_index_tensor, thread_pool, to_optional_tensor, to_tensor
from ..data.dataset import Dataset
from ..data.graph import Graph
from ..data.schema import by_type
from ..errors import InvalidArgumentError
from ..messages import SampledBatch
from ..typing import EdgeType, NodeType, NumNeighbors
from ..utils.coroutines import run_local
from ..utils.device import parse_device
from .base import BaseSampler, EdgeSamplerInput, NodeSamplerInput, SamplingConfig, SamplingType, time_settings
from .batch_maker import BatchMaker
from .batches import make_plan, resolve_draws, with_own_times
from .convert import to_hetero_sampler_output, to_pyg_v1, to_sampler_output
from .inducer import Inducer
from .inputs import edge_type_index, resolve_input
from .local_graph import LocalGraph
from .negative_sampler import RandomNegativeSampler
from .outputs import EdgeIndex, HeteroSamplerOutput, NeighborOutput, SamplerOutput
from .probability import sampling_probability
from .subgraph_op import SubGraphOp


class NeighborSampler(BaseSampler):
    """Multi-hop neighbor sampling from local graphs.

    Successive calls are successive batches of epoch 0: call ``n`` after construction has batch index ``n``, unless
    ``epoch`` and ``index`` are given.

    Args:
        graph: a ``Graph``, or a dict by edge type.
        num_neighbors: fan-outs by hop (-1: all, 0: none), or a dict of such lists by edge type. None is enough for
            ``sample_one_hop``, and for subgraphs of the seeds alone.
        device: where results go: the CPU. (Loaders sample on a GPU, see ``docs/gpu.md``.)
        with_edge: results carry edge ids.
        with_neg: accepted; negatives are drawn where the input asks for them.
        with_weight: sample by edge weight.
        strategy: ``"random"``, or another name of ``sampler.strategies.STRATEGIES``; see ``docs/sampling.md``.
        edge_dir: which neighbors the rows of the graph hold.
        seed: seed of all draws; 0 unless given.
        replace: sample with replacement (False on every device by default).
        num_threads: threads of one batch.
        disjoint: every seed grows a tree of its own.
        temporal_strategy: ``"uniform"`` or ``"last"``, for seeds that have times; None looks at no times.

    Raises:
        InvalidArgumentError: settings that contradict each other or the graph.
    """

    def __init__(
        self,
        graph: Graph | dict[EdgeType, Graph],
        num_neighbors: NumNeighbors | None = None,
        device: torch.device | None = None,
        with_edge: bool = False,
        with_neg: bool = False,
        with_weight: bool = False,
        strategy: str = "random",
        edge_dir: Literal["in", "out"] = "out",
        seed: int | None = None,
        replace: bool = False,
        num_threads: int = 1,
        *,
        disjoint: bool = False,
        temporal_strategy: str | None = "uniform",
    ) -> None:
        if device is not None and parse_device(device, must_be_there=False).type != "cpu":
            raise InvalidArgumentError(
                f"device: expected the CPU, got {device}; loaders sample on GPUs, from graphs of mode 'CUDA'"
            )
        self.graph = graph
        self.num_threads = num_threads
        self.temporal_strategy = temporal_strategy
        self.config = SamplingConfig(
            sampling_type=SamplingType.NODE,
            num_neighbors=num_neighbors,
            batch_size=1,
            shuffle=False,
            drop_last=False,
            with_edge=with_edge,
            collect_features=False,
            with_neg=False,
            with_weight=with_weight,
            edge_dir=edge_dir,
            seed=0 if seed is None else seed,
            replace=replace,
            strategy=strategy,
            disjoint=disjoint,
        )
        self._dataset = Dataset(graph=graph, edge_dir=edge_dir)
        self._schema = self._dataset.schema
        self._draws = resolve_draws(self._dataset, self.config)
        self._pool = thread_pool(num_threads)
        self._calls = itertools.count()
        self._graphs: dict[tuple[SamplingType, bool], LocalGraph] = {}
        self._neg_samplers: dict[Any, RandomNegativeSampler] = {}
        self._subgraph_op: SubGraphOp | None = None
        self._inducer: Inducer | None = None
        if num_neighbors is not None and not self._is_partition:
            self.lazy_init_sampler()

    @classmethod
    def of_dataset(cls, data: Dataset, num_neighbors: NumNeighbors | None, **settings: Any) -> NeighborSampler:
        """A sampler of a data set's graph; ``settings`` as for the class.

        Raises:
            InvalidArgumentError: the data set has no graph.
        """
        if data.graph is None:
            raise InvalidArgumentError("data: expected a data set with a graph; call init_graph() first")
        return cls(data.graph, num_neighbors, edge_dir=data.edge_dir, **settings)

    def config_of(self, sampling_type: SamplingType, *, timed: bool, **changes: Any) -> SamplingConfig:
        """The settings of this sampler for one kind of input, with ``changes``."""
        times = time_settings(self.temporal_strategy, timed=timed)
        return replace(self.config, sampling_type=sampling_type, **times, **changes)

    @property
    def _is_partition(self) -> bool:
        return any(graph.row_book is not None for graph in by_type(self.graph).values())

    def _check_whole(self) -> None:
        if self._is_partition:
            raise InvalidArgumentError(
                "graph: expected all rows, got one partition's; DistNeighborSampler samples from all of them"
            )

    def lazy_init_sampler(self) -> None:
        """Makes what sampling needs of the graph, if it was not made yet; the first batch does it otherwise.

        Raises:
            InvalidArgumentError: no fan-outs were given, or the graph is one partition of several.
        """
        self._graph_for(self.config)

    def lazy_init_neg_sampler(self) -> None:
        """Makes the samplers of pairs that are not edges, if they were not made yet; else as ``lazy_init_sampler``."""
        self._check_whole()
        for edge_type, graph in by_type(self.graph).items():
            if edge_type not in self._neg_samplers:
                direction, seed = self._dataset.edge_dir, self.config.seed
                self._neg_samplers[edge_type] = RandomNegativeSampler(graph, edge_dir=direction, seed=seed)

    def neg_sampler(self, etype: EdgeType | None = None) -> RandomNegativeSampler:
        """Gives pairs that are not edges of a type, of the whole graph."""
        edge_type_index(self._schema, etype, "etype")
        self.lazy_init_neg_sampler()
        return self._neg_samplers[etype]

    def lazy_init_subgraph_op(self) -> None:
        """Makes what finds edges among nodes, if it was not made yet."""
        if self._subgraph_op is None:
            self._subgraph_op = SubGraphOp(by_type(self.graph), self._schema, self.num_threads)

    @property
    def subgraph_op(self) -> SubGraphOp:
        """Finds the edges among nodes; of one partition those of the rows that it holds."""
        self.lazy_init_subgraph_op()
        assert self._subgraph_op is not None
        return self._subgraph_op

    def get_inducer(self, input_batch_size: int) -> Inducer:
        """The inducer of this sampler, made at the first call; see ``create_inducer``."""
        if self._inducer is None:
            self._inducer = self.create_inducer(input_batch_size)
        return self._inducer

    def create_inducer(self, input_batch_size: int) -> Inducer:
        """A new ``Inducer``, for batches that a program samples hop by hop with ``sample_one_hop``.

        Args:
            input_batch_size: seeds of a batch, to take memory for; there may be more.
        """
        return Inducer(self._schema, input_batch_size)

    def _graph_for(self, config: SamplingConfig) -> LocalGraph:
        """The graph as sampled with a config of this sampler; its builders are kept for the next call."""
        self._check_whole()
        key = config.sampling_type, config.temporal_strategy is not None
        if key not in self._graphs:
            self._graphs[key] = LocalGraph(self._dataset, make_plan(self._dataset, config), self.num_threads)
        return self._graphs[key]

    def _sample(
        self, inputs: NodeSamplerInput | EdgeSamplerInput, sampling_type: SamplingType, kwargs: dict[str, Any]
    ) -> SampledBatch:
        if unknown := kwargs.keys() - {"epoch", "index"}:
            raise InvalidArgumentError(f"expected the keywords epoch and index, got {sorted(unknown)}")
        inputs = resolve_input(inputs, self._dataset)
        config = with_own_times(self.config_of(sampling_type, timed=inputs.time is not None), inputs, self._dataset)
        maker = BatchMaker(self._graph_for(config), self._schema, inputs, config)
        index = kwargs["index"] if "index" in kwargs else next(self._calls)
        return run_local(maker.make_of(torch.arange(len(inputs)), kwargs.get("epoch", 0), index))

    def _output(self, batch: SampledBatch) -> SamplerOutput | HeteroSamplerOutput:
        if self._schema.is_homogeneous:
            return to_sampler_output(batch)
        return to_hetero_sampler_output(batch, self._schema)

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of nodes; keywords ``epoch`` and ``index`` choose the draws.

        Raises:
            InvalidArgumentError: no fan-outs were given at construction, or the input does not fit the graph.
            UnknownIdError: a seed is outside the graph.
        """
        return self._output(self._sample(NodeSamplerInput.cast(inputs), SamplingType.NODE, kwargs))

    def sample_from_edges(self, inputs: EdgeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """The multi-hop neighborhood of the ends of links and of their negatives; see ``sample_from_nodes``."""
        return self._output(self._sample(EdgeSamplerInput.cast(inputs), SamplingType.LINK, kwargs))

    def subgraph(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """All edges between nodes and their sampled neighborhood; ``metadata`` are the seeds' local ids."""
        return self._output(self._sample(NodeSamplerInput.cast(inputs), SamplingType.SUBGRAPH, kwargs))

    def sample_pyg_v1(self, ids: torch.Tensor, **kwargs: Any) -> tuple[int, torch.Tensor, list[EdgeIndex]]:
        """The neighborhood of nodes of a homogeneous graph as layers, see ``sampler.convert.to_pyg_v1``."""
        if not self._schema.is_homogeneous:
            raise InvalidArgumentError("graph: expected a homogeneous graph; layers of a typed one have no such form")
        return to_pyg_v1(self._sample(NodeSamplerInput(ids), SamplingType.NODE, kwargs))

    def sample_one_hop(
        self, input_seeds: torch.Tensor, req_num: int, etype: EdgeType | None = None, *, index: int | None = None
    ) -> NeighborOutput:
        """Up to ``req_num`` neighbors of each seed (-1: all, 0: none), grouped by seed in the order asked.

        Args:
            input_seeds: int ``[n]``, global ids; of a partition's graph those that it holds.
            req_num: how many of each.
            etype: along which edges.
            index: chooses the draws; the number of calls before this one unless given.

        Raises:
            UnknownIdError: a seed is outside the graph, or in another partition.
        """
        edge_type = edge_type_index(self._schema, etype, "etype")
        graph = by_type(self.graph)[etype]
        ids = check_index_tensor(input_seeds, "input_seeds", num_ids=graph.num_row_nodes)
        call = next(self._calls) if index is None else index
        key = _C.draw_key(self.config.seed, 0, call, 0, edge_type)
        counts, neighbors, edge_ids = _C.sample_neighbors(
            self._draws[edge_type].handler(graph),
            ids,
            graph.rows_of(ids),
            req_num,
            self._draws[edge_type].native,
            key,
            self.config.with_edge,
            self._pool,
        )
        return NeighborOutput(to_tensor(neighbors).to(torch.int64), to_tensor(counts), to_optional_tensor(edge_ids))

    def sample_prob(
        self, inputs: NodeSamplerInput, node_cnt: int | dict[NodeType, int]
    ) -> torch.Tensor | dict[NodeType, torch.Tensor]:
        """How likely each node is in a batch of these seeds, see ``sampler.probability.sampling_probability``.

        Args:
            inputs: the seeds.
            node_cnt: nodes of the graph, by type where it is typed.

        Returns:
            float64 ``[node_cnt]``, or such tensors by node type.
        """
        inputs = NodeSamplerInput.cast(inputs)
        resolve_input(inputs, self._dataset)
        plan = self._graph_for(self.config).plan
        graphs = by_type(self.graph)
        topologies = [graphs[edge_type].topo for edge_type in self._schema.edge_types]
        asked, counts = by_type(node_cnt), dict(zip(self._schema.node_types, self._schema.num_nodes, strict=True))
        num_nodes = [max(asked.get(name, 0), count) for name, count in counts.items()]
        found = sampling_probability(plan, topologies, inputs, num_nodes)
        return found[0] if self._schema.is_homogeneous else dict(zip(counts, found, strict=True))  # type: ignore[arg-type]
