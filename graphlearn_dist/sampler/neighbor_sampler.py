"""The local sampler: graphs held whole in this process. The oracle of every distributed mode."""

from __future__ import annotations

import itertools
import threading
from typing import Any, Literal

import torch

from .. import _C
from ..core import check_index_tensor, thread_pool, to_optional_tensor, to_tensor
from ..data.dataset import GraphSchema, by_type, collect_node_types, edge_ends
from ..data.graph import Graph
from ..errors import InvalidArgumentError
from ..messages import Subgraph
from ..typing import EdgeType, NumNeighbors
from .base import BaseSampler, NeighborOutput, NodeSamplerInput, SamplerOutput
from .plan import Draw, SamplingPlan, build_plan


def to_subgraph(arrays: tuple[Any, ...]) -> Subgraph:
    """A ``Subgraph`` from what ``_C.BatchBuilder`` hands out."""
    nodes, rows, cols, edge_ids, num_nodes, num_edges, trees = arrays
    return Subgraph(
        nodes=tuple(map(to_tensor, nodes)),
        rows=tuple(map(to_tensor, rows)),
        cols=tuple(map(to_tensor, cols)),
        edge_ids=tuple(map(to_optional_tensor, edge_ids)),
        num_sampled_nodes=tuple(map(tuple, num_nodes)),
        num_sampled_edges=tuple(map(tuple, num_edges)),
        trees=tuple(map(to_optional_tensor, trees)),
    )


class BuilderPool:
    """Batch builders for reuse: each holds relabel tables as large as the graph. Thread-safe."""

    def __init__(self, schema: GraphSchema) -> None:
        self._schema = schema
        self._idle: list[_C.BatchBuilder] = []
        self._lock = threading.Lock()

    def take(self) -> _C.BatchBuilder:
        """A builder for one batch; give it back afterwards."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _C.BatchBuilder(list(self._schema.num_nodes), list(self._schema.edge_specs))

    def give_back(self, builder: _C.BatchBuilder) -> None:
        with self._lock:
            self._idle.append(builder)


class SubgraphSampler:
    """Samples batches of a plan from graphs held whole; safe to call from several threads at once.

    Args:
        graphs: one ``Graph`` per edge type of the plan's schema, in its order.
        plan: how to sample.
        num_threads: threads of one batch; the result does not depend on them.
    """

    def __init__(self, graphs: list[Graph], plan: SamplingPlan, num_threads: int = 1) -> None:
        self.plan = plan
        self._graphs = [graph.graph_handler for graph in graphs]
        self._builders = BuilderPool(plan.schema)
        self._pool = thread_pool(num_threads)

    def sample(self, seeds: torch.Tensor, seed_type: int, *, epoch: int, index: int) -> Subgraph:
        """The batch of ``seeds`` (int ``[num_seeds]``, global ids) with the draws of (epoch, index).

        Raises:
            UnknownIdError: a seed is outside the graph.
        """
        plan = self.plan
        builder = self._builders.take()
        builder.begin(seeds.numel(), plan.max_new_nodes(seeds.numel()), plan.with_edge_ids, plan.disjoint)
        builder.add_seeds(seed_type, seeds)
        counter = [plan.seed, epoch, index]
        arrays = builder.sample(self._graphs, plan.fanouts, plan.native_draws, plan.with_edge_ids, counter, self._pool)
        self._builders.give_back(builder)
        return to_subgraph(arrays)


class NeighborSampler(BaseSampler):
    """Multi-hop uniform neighbor sampling from local graphs.

    Successive calls are successive batches of epoch 0: call ``n`` after construction has batch index ``n``, unless
    ``epoch`` and ``index`` are given.

    Args:
        graph: a ``Graph``, or a dict by edge type.
        num_neighbors: fan-outs by hop (-1: all), or a dict of such lists by edge type.
        device: where results go; only the CPU is served yet.
        with_edge: results carry edge ids.
        with_neg: not supported yet.
        with_weight: not supported yet.
        strategy: ``"random"``, the only one.
        edge_dir: which neighbors the rows of the graph hold.
        seed: seed of all draws; 0 unless given.
        replace: sample with replacement (False on every device by default).
        num_threads: threads of one batch.
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
    ) -> None:
        if strategy != "random" or with_neg or with_weight:
            raise InvalidArgumentError(
                f"strategy, with_neg, with_weight: expected 'random', False, False, got {strategy!r}, {with_neg}, "
                f"{with_weight}"
            )
        if device is not None and torch.device(device).type != "cpu":
            raise InvalidArgumentError(f"device: expected the CPU, got {device}; GPU sampling is not built yet")
        self.graph = graph
        self.edge_dir = edge_dir
        self.with_edge = with_edge
        self.replace = replace
        self.seed = 0 if seed is None else seed
        self._pool = thread_pool(num_threads)
        self._schema = _schema_of(graph, edge_dir)
        self._calls = itertools.count()
        self._sampler: SubgraphSampler | None = None
        if num_neighbors is not None:
            draws = [Draw(replace=replace)] * len(self._schema.edge_types)
            plan = build_plan(self._schema, num_neighbors, draws=draws, with_edge_ids=with_edge, seed=self.seed)
            graphs = by_type(graph)
            ordered = [graphs[edge_type] for edge_type in self._schema.edge_types]
            self._sampler = SubgraphSampler(ordered, plan, num_threads)

    def sample_one_hop(
        self, input_seeds: torch.Tensor, req_num: int, etype: EdgeType | None = None, *, index: int | None = None
    ) -> NeighborOutput:
        """Up to ``req_num`` neighbors of each seed, grouped by seed in the order asked."""
        graphs = by_type(self.graph)
        if etype not in graphs:
            raise InvalidArgumentError(f"etype: unknown edge type {etype!r}")
        call = next(self._calls) if index is None else index
        edge_type = self._schema.edge_types.index(etype)
        ids = check_index_tensor(input_seeds, "input_seeds", num_ids=graphs[etype].row_count)
        key = _C.draw_key(self.seed, 0, call, 0, edge_type)
        counts, neighbors, edge_ids = _C.sample_neighbors(
            graphs[etype].graph_handler,
            ids,
            None,
            req_num,
            Draw(replace=self.replace).native,
            key,
            self.with_edge,
            self._pool,
        )
        return NeighborOutput(to_tensor(neighbors).to(torch.int64), to_tensor(counts), to_optional_tensor(edge_ids))

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """The multi-hop neighborhood of ``inputs.node``; keywords ``epoch`` and ``index`` choose the draws."""
        if self._sampler is None:
            raise InvalidArgumentError("num_neighbors: expected fan-outs at construction, got None")
        if len(self._schema.node_types) > 1:
            raise InvalidArgumentError("graph: typed graphs are sampled through a loader; this method takes one type")
        inputs = NodeSamplerInput.cast(inputs)
        seeds = check_index_tensor(inputs.node, "inputs.node", num_ids=self._schema.num_nodes[0])
        index = kwargs["index"] if "index" in kwargs else next(self._calls)
        sampled = self._sampler.sample(seeds, 0, epoch=kwargs.get("epoch", 0), index=index)
        return SamplerOutput(
            node=sampled.nodes[0],
            row=sampled.rows[0],
            col=sampled.cols[0],
            edge=sampled.edge_ids[0],
            batch=sampled.nodes[0][: seeds.numel()],
            num_sampled_nodes=list(sampled.num_sampled_nodes[0]),
            num_sampled_edges=list(sampled.num_sampled_edges[0]),
            device=torch.device("cpu"),
        )


def _schema_of(graph: Any, edge_dir: Literal["in", "out"]) -> GraphSchema:
    graphs = by_type(graph)
    edge_types = tuple(sorted(graphs, key=lambda edge_type: edge_type or ()))
    node_types = collect_node_types(edge_types)
    counts = dict.fromkeys(node_types, 0)
    for edge_type, entry in graphs.items():
        extents = (entry.row_count, entry.col_count)
        for node_type, extent in zip(edge_ends(edge_type, edge_dir), extents, strict=True):
            counts[node_type] = max(counts[node_type], extent)
    return GraphSchema(node_types, edge_types, tuple(counts[name] for name in node_types), edge_dir)
