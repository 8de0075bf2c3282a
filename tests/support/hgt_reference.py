"""HGT sampling in plain Python, from its definition. Slow and obvious; the sampler has to agree with it bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .graphs import Direction, TestGraph
from .reference import draw_key, exponential, pick, sorted_rows

MOST_NEIGHBORS = 520
NEIGHBOR_HOP, PICK_HOP = -1, -2


@dataclass
class HgtBatch:
    """A batch by type.

    Attributes:
        nodes: by node type, ids: the seeds as they were given, then each iteration's.
        edges: by edge type, (neighbor, node, edge id) with the nodes in local ids.
        num_sampled: by node type, how many seeds there are, and how many nodes each iteration took.
    """

    nodes: dict[Any, list[int]]
    edges: dict[Any, list[tuple[int, int, int]]]
    num_sampled: dict[Any, list[int]]


def ends_of(edge_type: Any, edge_dir: Direction) -> tuple[Any, Any]:
    """The type whose rows there are, and that of their neighbors."""
    ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
    return ends if edge_dir == "out" else ends[::-1]


def hgt_batch(
    graph: TestGraph,
    edge_dir: Direction,
    num_samples: Sequence[int] | Mapping[Any, Sequence[int]],
    seed_type: Any,
    seeds: Sequence[int],
    *,
    seed: int = 0,
    epoch: int = 0,
    index: int = 0,
) -> HgtBatch:
    """One batch: iteration by iteration, edge type by edge type (sorted), node by node, pick by pick."""
    node_types, edge_types = sorted(graph.num_nodes, key=str), sorted(graph.edges, key=lambda name: name or ())
    counts = num_samples if isinstance(num_samples, Mapping) else dict.fromkeys(node_types, num_samples)
    rows_of = {edge_type: sorted_rows(graph, edge_type, edge_dir) for edge_type in edge_types}
    taken: dict[Any, list[int]] = {name: [] for name in node_types} | {seed_type: list(dict.fromkeys(seeds))}
    budgets: dict[Any, dict[int, float]] = {name: {} for name in node_types}
    newest = {name: list(nodes) for name, nodes in taken.items()}
    num_sampled = {name: [len(seeds) if name == seed_type else 0] for name in node_types}
    for iteration in range(len(counts[seed_type])):
        for i, edge_type in enumerate(edge_types):
            row_type, neighbor_type = ends_of(edge_type, edge_dir)
            key = draw_key(seed, epoch, index, NEIGHBOR_HOP, i)
            for node in newest[row_type]:
                row = rows_of[edge_type].get(node, [])
                picked = pick(key, node, len(row), MOST_NEIGHBORS, replace=False)
                for neighbor in (row[position].neighbor for position in picked):
                    if neighbor not in taken[neighbor_type]:
                        budget = budgets[neighbor_type]
                        budget[neighbor] = budget.get(neighbor, 0.0) + 1 / len(picked)
        for i, name in enumerate(node_types):
            key = draw_key(seed, epoch, index, PICK_HOP - iteration, i)
            clocks = {node: exponential(key, node) / (budget * budget) for node, budget in budgets[name].items()}
            newest[name] = sorted(clocks, key=lambda node: (clocks[node], node))[: counts[name][iteration]]
            num_sampled[name].append(len(newest[name]))
            taken[name] += newest[name]
            for node in newest[name]:
                del budgets[name][node]
    nodes = dict(taken)
    nodes[seed_type] = [*seeds, *taken[seed_type][len(dict.fromkeys(seeds)) :]]
    return HgtBatch(nodes, {name: induced(rows_of[name], name, edge_dir, nodes) for name in edge_types}, num_sampled)


def induced(
    rows: Mapping[int, Any], edge_type: Any, edge_dir: Direction, nodes: Mapping[Any, Sequence[int]]
) -> list[tuple[int, int, int]]:
    """All edges of a type between nodes: node by node, each row in its order, from the first place of each neighbor."""
    row_type, neighbor_type = ends_of(edge_type, edge_dir)
    local: dict[int, int] = {}
    for i, node in enumerate(nodes[neighbor_type]):
        local.setdefault(node, i)
    return [
        (local[edge.neighbor], col, edge.edge_id)
        for col, node in enumerate(nodes[row_type])
        for edge in rows.get(node, [])
        if edge.neighbor in local
    ]
