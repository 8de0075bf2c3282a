"""The sampler once more, in plain Python: the generator, the pickers and whole batches, written from their definition.

Slow and obvious. The core has to agree with it bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .graphs import Direction, TestGraph

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(x: int) -> int:
    """The finaliser of SplitMix64, variant 13."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def absorb(key: int, value: int) -> int:
    return mix64((key + GOLDEN * ((value & MASK64) + 1)) & MASK64)


def draw_key(seed: int, *counter: int) -> int:
    """``counter`` is epoch, batch, hop, edge type."""
    key = mix64(((seed & MASK64) + GOLDEN) & MASK64)
    for value in counter:
        key = absorb(key, value)
    return key


def below(key: int, node: int, position: int, bound: int) -> int:
    """The position-th draw of a node's stream, uniform in [0, bound)."""
    state = absorb(key, node)
    return (mix64((state + 0xD1342543DE82EF95 * (position + 1)) & MASK64) * bound) >> 64


def pick(key: int, node: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions of the picked neighbors in the node's row."""
    if fanout == -1:
        return list(range(degree))
    if replace:
        return [below(key, node, i, degree) for i in range(fanout)] if degree else []
    if degree <= fanout:
        return list(range(degree))
    picked: list[int] = []
    for i in range(fanout):  # Floyd
        top = degree - fanout + i
        position = below(key, node, i, top + 1)
        picked.append(top if position in picked else position)
    return picked


@dataclass
class ReferenceBatch:
    """A batch as lists by type, in the order of the schema's types."""

    nodes: list[list[int]]
    rows: list[list[int]]
    cols: list[list[int]]
    edge_ids: list[list[int]]
    num_sampled_nodes: list[list[int]]
    num_sampled_edges: list[list[int]]


def sorted_rows(graph: TestGraph, edge_type: Any, edge_dir: Direction) -> dict[int, list[tuple[int, int]]]:
    """Per node (neighbor, edge id), sorted."""
    source, target = graph.edges[edge_type].tolist()
    seeds, neighbors = (source, target) if edge_dir == "out" else (target, source)
    rows: dict[int, list[tuple[int, int]]] = {}
    for seed, neighbor, edge_id in zip(seeds, neighbors, graph.ids_of(edge_type).tolist(), strict=True):
        rows.setdefault(seed, []).append((neighbor, edge_id))
    return {seed: sorted(row) for seed, row in rows.items()}


def sample_batch(
    graph: TestGraph,
    edge_dir: Direction,
    fanouts: Any,
    seed_type: Any,
    seeds: Sequence[int] | torch.Tensor,
    *,
    replace: bool = False,
    seed: int = 0,
    epoch: int = 0,
    index: int = 0,
) -> ReferenceBatch:
    """One batch: hop by hop, edge type by edge type (sorted), seed by seed, pick by pick."""
    node_types, edge_types = sorted(graph.num_nodes, key=str), sorted(graph.edges, key=lambda name: name or ())
    per_type = fanouts if isinstance(fanouts, dict) else dict.fromkeys(edge_types, fanouts)
    rows_of = {edge_type: sorted_rows(graph, edge_type, edge_dir) for edge_type in edge_types}
    nodes: dict[Any, list[int]] = {node_type: [] for node_type in node_types}
    nodes[seed_type] = [int(node) for node in seeds]
    begin, end = dict.fromkeys(node_types, 0), {name: len(ids) for name, ids in nodes.items()}
    local: dict[Any, dict[int, int]] = {node_type: {} for node_type in node_types}
    for i, node in enumerate(nodes[seed_type]):
        local[seed_type].setdefault(node, i)
    batch = ReferenceBatch([], [], [], [], [[end[name]] for name in node_types], [[] for _ in edge_types])
    edges: dict[Any, list[tuple[int, int, int]]] = {edge_type: [] for edge_type in edge_types}
    for hop in range(len(next(iter(per_type.values())))):
        for type_index, edge_type in enumerate(edge_types):
            before = len(edges[edge_type])
            if edge_type in per_type:
                ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
                from_type, to_type = ends if edge_dir == "out" else ends[::-1]
                key = draw_key(seed, epoch, index, hop, type_index)
                for col in range(begin[from_type], end[from_type]):
                    node = nodes[from_type][col]
                    row = rows_of[edge_type].get(node, [])
                    for position in pick(key, node, len(row), per_type[edge_type][hop], replace):
                        neighbor, edge_id = row[position]
                        if neighbor not in local[to_type]:
                            local[to_type][neighbor] = len(nodes[to_type])
                            nodes[to_type].append(neighbor)
                        edges[edge_type].append((local[to_type][neighbor], col, edge_id))
            batch.num_sampled_edges[type_index].append(len(edges[edge_type]) - before)
        for i, node_type in enumerate(node_types):
            begin[node_type], end[node_type] = end[node_type], len(nodes[node_type])
            batch.num_sampled_nodes[i].append(end[node_type] - begin[node_type])
    batch.nodes = [nodes[node_type] for node_type in node_types]
    for edge_type in edge_types:
        batch.rows.append([edge[0] for edge in edges[edge_type]])
        batch.cols.append([edge[1] for edge in edges[edge_type]])
        batch.edge_ids.append([edge[2] for edge in edges[edge_type]])
    return batch
