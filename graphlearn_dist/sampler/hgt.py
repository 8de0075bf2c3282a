"""HGT sampling: in each iteration nodes of every type, by how much they are connected to those that a batch has.

Hu, Dong, Wang, Sun: "Heterogeneous Graph Transformer" (WWW 2020, arXiv 2003.01332), Algorithms 1 and 2. A node's budget
is the sum of 1 / degree over the edges by which nodes of the batch reach it; the next ones are drawn with probabilities
proportional to squared budgets.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace

import torch

from .. import _C
from ..core import thread_pool, to_tensor
from ..data.schema import GraphSchema
from ..messages import Subgraph
from .base import NodeSamplerInput, SamplingConfig
from .convert import with_repeated_seeds
from .epochs.batches_together import MOST_DENSE_NODES
from .num_samples import samples_by_type
from .tasks import (
    BatchSeeds,
    GraphAccess,
    NeighborDraw,
    Sampled,
    SeedList,
    TaskResult,
    seed_types_of,
    with_induced_edges,
)

# Of a node with more neighbors along a type, so many are drawn, each for 1 / MAX_NEIGHBORS: what a neighbor adds is
# 1 / degree on average, and a hub costs no more than that.
MAX_NEIGHBORS = 520

# The draws have keys of their own: hops are numbered from 0.
_NEIGHBOR_HOP = -1  # a node is asked for its neighbors once
_PICK_HOP = -2  # of the first iteration; that of the next is one less


class HgtTask:
    """All edges between seeds and what HGT sampling adds to them.

    Seeds come first, each as often as it was asked for. Then, type by type, the nodes of each iteration in the order in
    which they were drawn, each once.
    """

    asks = True
    reads_edges = True

    def __init__(
        self, inputs: NodeSamplerInput, schema: GraphSchema, config: SamplingConfig, num_threads: int = 1
    ) -> None:
        self._nodes = inputs.node
        (self.seed_type,) = seed_types_of(inputs, schema)
        self._seed = config.seed
        self._specs = schema.edge_specs
        by_type = samples_by_type(schema, config.num_samples)
        self._counts = [list(counts) for counts in zip(*by_type, strict=True)]
        # By iteration the edge types whose neighbors may still be picked, in it or later.
        self._edge_types = [
            [i for i, (_, neighbor_type) in enumerate(self._specs) if any(by_type[neighbor_type][iteration:])]
            for iteration in range(len(self._counts))
        ]
        self._num_nodes = schema.num_nodes
        self._threads = thread_pool(num_threads)

    async def begin(self, graph: GraphAccess, positions: torch.Tensor, *, epoch: int, index: int) -> BatchSeeds:
        """See ``Task``: the seeds, and a list of each iteration and node type."""
        pool = _pool_of(graph, self._num_nodes)
        seeds, budgets = self._nodes[positions], pool.take()
        nothing = torch.empty(0, dtype=torch.int64)
        newest = [nothing] * len(self._counts[0])
        newest[self.seed_type] = to_tensor(budgets.take(self.seed_type, seeds))
        lists = [SeedList(self.seed_type, seeds, unique=True)]
        for iteration, counts in enumerate(self._counts):
            edge_types = [i for i in self._edge_types[iteration] if newest[self._specs[i][0]].numel()]
            keys = [int(_C.draw_key(self._seed, epoch, index, _NEIGHBOR_HOP, i)) for i in edge_types]
            drawn = await graph.draw_neighbors(
                [
                    NeighborDraw(i, newest[self._specs[i][0]], MAX_NEIGHBORS, key)
                    for i, key in zip(edge_types, keys, strict=True)
                ]
            )
            budgets.add([(self._specs[i][1], *of) for i, of in zip(edge_types, drawn, strict=True)], self._threads)
            keys = [int(_C.draw_key(self._seed, epoch, index, _PICK_HOP - iteration, i)) for i in range(len(counts))]
            newest = list(map(to_tensor, budgets.pick(counts, keys, self._threads)))
            lists += [SeedList(node_type, ids, unique=True) for node_type, ids in enumerate(newest)]
        pool.give_back(budgets)
        return BatchSeeds(tuple(lists))

    async def finish(self, graph: GraphAccess, seeds: BatchSeeds, sampled: Sampled) -> TaskResult:
        """See ``Task``."""
        subgraph, (mapping, *_) = sampled
        subgraph = await with_induced_edges(graph, subgraph)
        subgraph = with_repeated_seeds(subgraph, mapping, self.seed_type, self._specs)
        subgraph = replace(subgraph, num_sampled_nodes=self._num_sampled(subgraph, seeds.lists))
        return TaskResult(subgraph, mapping=torch.arange(mapping.numel()))

    def _num_sampled(self, subgraph: Subgraph, lists: Sequence[SeedList]) -> tuple[tuple[int, ...], ...]:
        """By node type, how many seeds there are, and how many nodes each iteration added."""
        num_types = len(subgraph.nodes)
        num_seeds = lists[0].ids.numel()
        return tuple(
            (
                num_seeds if node_type == self.seed_type else 0,
                *(of_type.ids.numel() for of_type in lists[1 + node_type :: num_types]),
            )
            for node_type in range(num_types)
        )


class _BudgetPool:
    """Budgets for reuse: each holds tables of nodes. Thread-safe."""

    def __init__(self, num_nodes: Sequence[int]) -> None:
        self._num_nodes = num_nodes
        self._idle: list[_C.HgtBudgets] = []
        self._lock = threading.Lock()

    def take(self) -> _C.HgtBudgets:
        """Budgets of a batch that has no nodes yet; give them back afterwards."""
        with self._lock:
            budgets = self._idle.pop() if self._idle else None
        if budgets is None:
            return _C.HgtBudgets(self._num_nodes, MOST_DENSE_NODES)
        budgets.begin()
        return budgets

    def give_back(self, budgets: _C.HgtBudgets) -> None:
        """Takes those of a batch back whose nodes are known."""
        with self._lock:
            self._idle.append(budgets)


# They live as long as the graph, of which tasks come and go.
_pools: weakref.WeakKeyDictionary[GraphAccess, _BudgetPool] = weakref.WeakKeyDictionary()


def _pool_of(graph: GraphAccess, num_nodes: Sequence[int]) -> _BudgetPool:
    """The budgets for batches of a graph."""
    return _pools.get(graph) or _pools.setdefault(graph, _BudgetPool(num_nodes))
