"""The core called directly, for tests: graphs of ``TestGraph`` as native ones, one hop, and whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.data.schema import edge_ends
from graphlearn_dist.sampler.strategies import TIME_RULES

from .graphs import Direction, TestGraph
from .reference import Draw, ReferenceBatch

POOLS = {n: _C.ThreadPool(n) for n in (1, 2, 3, 4)}


def native_draw(draw: Draw) -> _C.DrawMethod:
    return _C.DrawMethod(draw.method, draw.replace, TIME_RULES[draw.times])


def native_graph(graph: TestGraph, edge_type: Any, edge_dir: Direction) -> _C.Csr:
    """One edge type in canonical order, with the times and cumulative weights that it has."""
    source, target = graph.edges[edge_type]
    row, col = (source, target) if edge_dir == "out" else (target, source)
    num_rows, num_cols = (graph.num_nodes[end] for end in edge_ends(edge_type, edge_dir))
    ids, times, weights = (found.get(edge_type) for found in (graph.edge_ids, graph.times, graph.weights))
    arrays = _C.build_csr(row, col, ids, num_rows, num_cols, POOLS[2], times, weights)
    indptr, indices, edge_ids, *rest = map(to_tensor, arrays)
    sorted_times = None if times is None else rest.pop(0)
    if weights is None:
        return _C.Csr(indptr, indices, edge_ids, num_cols, sorted_times)
    return weighted_csr(indptr, indices, edge_ids, num_cols, sorted_times, rest.pop())


def weighted_csr(
    indptr: torch.Tensor, indices: torch.Tensor, edge_ids: torch.Tensor | None, num_cols: int,
    times: torch.Tensor | None, weights: torch.Tensor,
) -> _C.Csr:  # fmt: skip
    """A graph in canonical order, with what draws by weight read."""
    sums_and_counts = map(to_optional_tensor, _C.sum_weights(indptr, weights, POOLS[2]))
    return _C.Csr(indptr, indices, edge_ids, num_cols, times, weights, *sums_and_counts)


def one_hop(
    csr: _C.Csr,
    ids: torch.Tensor,
    fanout: int,
    key: int,
    draw: Draw,
    *,
    trees: torch.Tensor | None = None,
    times: torch.Tensor | None = None,
    threads: int = 1,
) -> tuple[list[list[int]], list[list[int]]]:
    """Neighbors and edge ids of each node."""
    counts, neighbors, edges = map(
        to_tensor,
        _C.sample_neighbors(csr, ids, None, fanout, native_draw(draw), key, True, POOLS[threads], trees, times),
    )
    split = [part.split(counts.tolist()) for part in (neighbors, edges)]
    return [part.tolist() for part in split[0]], [part.tolist() for part in split[1]]


class NativeBatches:
    """Batches of a test graph from ``_C.BatchBuilder``, in both of its ways: held whole, and hop by hop."""

    def __init__(self, graph: TestGraph, edge_dir: Direction, draws: dict[Any, Draw]) -> None:
        self.node_types = sorted(graph.num_nodes, key=str)
        self.edge_types = sorted(graph.edges, key=lambda name: name or ())
        ends = [edge_ends(edge_type, edge_dir) for edge_type in self.edge_types]
        self.specs = [(self.node_types.index(rows), self.node_types.index(cols)) for rows, cols in ends]
        self.graphs = [native_graph(graph, edge_type, edge_dir) for edge_type in self.edge_types]
        self.draws = [native_draw(draws[edge_type]) for edge_type in self.edge_types]
        self.builder = _C.BatchBuilder([graph.num_nodes[name] for name in self.node_types], self.specs)

    def _start(self, seed_type: Any, seeds: Any, disjoint: bool, times: Any) -> None:
        self.builder.begin(len(seeds), -1, True, disjoint)
        seed_times = None if times is None else torch.as_tensor(times)
        self.builder.add_seeds(self.node_types.index(seed_type), torch.as_tensor(seeds), seed_times)

    def sample(
        self, fanouts: Sequence[int], seed_type: Any, seeds: Any, counter: Sequence[int], *,
        disjoint: bool = False, times: Any = None, threads: int = 1,
    ) -> ReferenceBatch:  # fmt: skip
        """All hops in one call; ``counter`` is seed, epoch, batch."""
        self._start(seed_type, seeds, disjoint, times)
        per_type = [[fanout] * len(self.graphs) for fanout in fanouts]
        arrays = self.builder.sample(self.graphs, per_type, self.draws, True, counter, POOLS[threads])
        return as_reference(arrays, disjoint=disjoint)

    def sample_by_hops(
        self, fanouts: Sequence[int], seed_type: Any, seeds: Any, counter: Sequence[int], *,
        disjoint: bool = False, times: Any = None, threads: int = 1,
    ) -> ReferenceBatch:  # fmt: skip
        """Each hop sampled outside of the builder and added, as a partitioned sampler does."""
        self._start(seed_type, seeds, disjoint, times)
        for hop, fanout in enumerate(fanouts):
            for i, csr in enumerate(self.graphs):
                ids, trees, node_times = map(to_optional_tensor, self.builder.frontier(self.specs[i][0]))
                key = _C.draw_key(*counter, hop, i)
                found = _C.sample_neighbors(
                    csr, ids, None, fanout, self.draws[i], key, True, POOLS[threads], trees, node_times
                )
                self.builder.add_hop(i, *map(to_tensor, found))
            self.builder.next_hop()
        return as_reference(self.builder.finish(), disjoint=disjoint)


def as_reference(arrays: Any, *, disjoint: bool) -> ReferenceBatch:
    """What a builder hands out, as lists."""
    nodes, edges, edge_ids, num_nodes, num_edges, trees = arrays
    edge_index = [to_tensor(part).tolist() for part in edges]
    return ReferenceBatch(
        [to_tensor(part).tolist() for part in nodes],
        [rows for rows, _ in edge_index],
        [cols for _, cols in edge_index],
        [to_tensor(part).tolist() for part in edge_ids],
        [list(hops) for hops in num_nodes],
        [list(hops) for hops in num_edges],
        [to_tensor(part).tolist() for part in trees] if disjoint else None,
    )
