"""The sampler once more, in plain Python: the generator, the pickers and whole batches, written from their definition.

Slow and obvious. The core has to agree with it bit by bit.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
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


def stream_bits(state: int, position: int) -> int:
    """The position-th 64 bits of a stream."""
    return mix64((state + 0xD1342543DE82EF95 * (position + 1)) & MASK64)


def bits(key: int, node: int, position: int) -> int:
    """The position-th 64 bits of a node's stream."""
    return stream_bits(absorb(key, node), position)


def below(key: int, node: int, position: int, bound: int) -> int:
    """The position-th draw of a node's stream, uniform in [0, bound)."""
    return (bits(key, node, position) * bound) >> 64


@dataclass(frozen=True)
class Draw:
    """How neighbors are drawn; the same fields as ``graphlearn_dist.sampler.plan.Draw``."""

    method: str = "uniform"
    replace: bool = False
    times: str = "ignore"


@dataclass(frozen=True)
class Edge:
    """One edge of a node's row."""

    neighbor: int
    edge_id: int
    weight: float = 1.0
    time: int = 0


def pick(key: int, node: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """Positions of the neighbors picked uniformly from the node's row."""
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


def unit_of(weights: Sequence[float]) -> Fraction:
    """The unit in which a row's weights are counted: a power of two, at least 2**-1034.

    A row has 2**51 of them or nearly so, and fewer than 2**52: as their sum in a finer unit says, in which the largest
    has 63 bits.
    """
    largest = Fraction(max(weights))
    fine = Fraction(2) ** (floor_log2(largest) - 62)
    bits_too_many = sum(int(Fraction(weight) / fine) for weight in weights).bit_length() - 52
    return max(fine * 2**bits_too_many, Fraction(1, 2**1034))


def floor_log2(number: Fraction) -> int:
    """Of a positive one."""
    log = number.numerator.bit_length() - number.denominator.bit_length()
    return log if Fraction(2) ** log <= number else log - 1


@dataclass(frozen=True)
class CountedRow:
    """Weights in the unit of their row: how many whole ones, and 2**64 times what each has besides, rounded down."""

    weights: Sequence[float]
    sums: list[int]
    rests: list[int]

    @classmethod
    def of(cls, weights: Sequence[float], row: Sequence[float]) -> CountedRow:
        """``weights`` are the beginning of those of the ``row``."""
        unit = unit_of(row)
        counted = [divmod(Fraction(weight) / unit, 1) for weight in weights]
        sums = itertools.accumulate(int(whole) for whole, _ in counted)
        return cls(weights, list(sums), [int(rest * 2**64) for _, rest in counted])

    def attempt(self, number: int) -> int | None:
        """The position that 64 random bits lead to: an edge has as many numbers as its weight has whole units, in the
        order of the row, and behind all of them one that it takes with a probability of what its weight has besides."""
        drawn = (number * (self.sums[-1] + len(self.weights))) >> 64
        if drawn < self.sums[-1]:
            return bisect.bisect_right(self.sums, drawn)
        position = drawn - self.sums[-1]
        return position if stream_bits(number, 0) < self.rests[position] else None

    def draw(self, number: int) -> int:
        """A position drawn with replacement: attempts, each from bits of its own, and after eight that fail a race."""
        for _ in range(8):
            position = self.attempt(number)
            if position is not None:
                return position
            number = stream_bits(number, 1)
        return race(number, self.weights, [])[0]


def race(key: int, weights: Sequence[float], without: Sequence[int]) -> list[int]:
    """The positions of positive weight in the order in which exponential clocks ring."""
    left = [i for i, weight in enumerate(weights) if weight > 0 and i not in without]
    return sorted(left, key=lambda i: (clock(exponential(key, i), weights[i]), i))


def clock(exponential: float, weight: float) -> Fraction:
    """exponential / weight, of which the digits are rounded as a double's, whatever the exponent."""
    digits, exponent = math.frexp(weight)
    return Fraction(exponential / digits) / Fraction(2) ** exponent


def exponential(key: int, item: int) -> float:
    """Exponentially distributed (von Neumann): of falling runs of numbers, the first of odd length starts with the
    fraction, and the failed ones count the whole part."""
    numbers = (bits(key, item, i) for i in itertools.count())
    for whole in itertools.count():
        run = [next(numbers)]
        while (number := next(numbers)) < run[-1]:
            run.append(number)
        if len(run) % 2 == 1:
            return whole + (float(run[0]) + 0.5) * 2.0**-64
    raise AssertionError("endless")


def pick_weighted(
    key: int, node: int, weights: Sequence[float], fanout: int, replace: bool, row: Sequence[float] | None = None
) -> list[int]:
    """Positions picked by weight; ``weights`` are the beginning of those of a whole ``row``, which decide its unit.

    Without replacement the positions of 4 * fanout + 16 attempts are taken, of which repeats are passed over; what is
    missing comes from a race.
    """
    positive = [i for i, weight in enumerate(weights) if weight > 0]
    if fanout == -1 or not positive or (len(positive) <= fanout and not replace):
        return positive
    counted = CountedRow.of(weights, weights if row is None else row)
    if replace:
        return [counted.draw(bits(key, node, i)) for i in range(fanout)]
    picked: list[int] = []
    num_attempts = 4 * fanout + 16
    for i in range(num_attempts):
        position = counted.attempt(bits(key, node, i))
        if position is not None and position not in picked and len(picked) < fanout:
            picked.append(position)
    return picked + race(bits(key, node, num_attempts), weights, picked)[: fanout - len(picked)]


def pick_labor(key: int, node: int, neighbors: Sequence[int], fanout: int) -> list[int]:
    """Positions of the ``fanout`` neighbors with the smallest numbers, a function of key and neighbor alone.

    Edges to one neighbor come in the order of the node's own numbers.
    """
    if fanout == -1:
        return list(range(len(neighbors)))
    ranked = sorted(range(len(neighbors)), key=lambda i: (absorb(key, neighbors[i]), bits(key, node, i)))
    return sorted(ranked[:fanout])


def pick_top(weights: Sequence[float], fanout: int) -> list[int]:
    """Positions of the largest weights, the first of equal ones, in row order."""
    ranked = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    return sorted(ranked if fanout == -1 else ranked[:fanout])


# By method, the positions picked: of key, node, the candidates of the row, fan-out, whether to replace, and the weights
# of the whole row.
PICKERS: dict[str, Callable[[int, int, Sequence[Edge], int, bool, Sequence[float]], list[int]]] = {
    "uniform": lambda key, node, row, fanout, replace, _: pick(key, node, len(row), fanout, replace),
    "weighted": lambda key, node, row, fanout, replace, whole: pick_weighted(
        key, node, [edge.weight for edge in row], fanout, replace, whole
    ),
    "labor": lambda key, node, row, fanout, *_: pick_labor(key, node, [edge.neighbor for edge in row], fanout),
    "topk": lambda key, node, row, fanout, *_: pick_top([edge.weight for edge in row], fanout),
}


def pick_edges(key: int, node: int, row: Sequence[Edge], fanout: int, draw: Draw, time: int | None) -> list[Edge]:
    """The edges picked from a node's row, which is in canonical order; ``key`` is that of the node's tree."""
    whole = [edge.weight for edge in row]
    if draw.times != "ignore":
        assert time is not None
        row = [edge for edge in row if edge.time <= time]
    if draw.times == "latest":
        return list(row[max(0, len(row) - fanout) :]) if fanout != -1 else list(row)
    return [row[position] for position in PICKERS[draw.method](key, node, row, fanout, draw.replace, whole)]


@dataclass
class ReferenceBatch:
    """A batch as lists by type, in the order of the schema's types."""

    nodes: list[list[int]]
    rows: list[list[int]]
    cols: list[list[int]]
    edge_ids: list[list[int]]
    num_sampled_nodes: list[list[int]]
    num_sampled_edges: list[list[int]]
    trees: list[list[int]] | None = None


def sorted_rows(graph: TestGraph, edge_type: Any, edge_dir: Direction) -> dict[int, list[Edge]]:
    """Per node its edges in canonical order: by (time, neighbor, edge id)."""
    source, target = graph.edges[edge_type].tolist()
    seeds, neighbors = (source, target) if edge_dir == "out" else (target, source)
    weights = graph.weights_of(edge_type).tolist()
    times = graph.times_of(edge_type).tolist()
    rows: dict[int, list[Edge]] = {}
    for seed, *edge in zip(seeds, neighbors, graph.ids_of(edge_type).tolist(), weights, times, strict=True):
        rows.setdefault(seed, []).append(Edge(*edge))
    return {seed: sorted(row, key=lambda edge: (edge.time, edge.neighbor, edge.edge_id)) for seed, row in rows.items()}


def sample_batch(
    graph: TestGraph,
    edge_dir: Direction,
    fanouts: Any,
    seed_type: Any,
    seeds: Sequence[int] | torch.Tensor,
    *,
    replace: bool = False,
    draws: dict[Any, Draw] | None = None,
    disjoint: bool = False,
    times: Sequence[int] | None = None,
    more_seeds: Sequence[tuple[Any, Sequence[int]]] = (),
    seed: int = 0,
    epoch: int = 0,
    index: int = 0,
) -> ReferenceBatch:
    """One batch: hop by hop, edge type by edge type (sorted), seed by seed, pick by pick.

    ``fanouts`` by edge type name every type, or have a default under None; ``draws`` by edge type stands instead of
    ``replace``. Where ``disjoint``, each seed grows a tree of its own, of the time ``times[i]``; ``more_seeds``, by
    type, are numbered after the others.
    """
    node_types, edge_types = sorted(graph.num_nodes, key=str), sorted(graph.edges, key=lambda name: name or ())
    given = fanouts if isinstance(fanouts, dict) else dict.fromkeys(edge_types, fanouts)
    per_type = {edge_type: given[edge_type if edge_type in given else None] for edge_type in edge_types}
    draws = draws or dict.fromkeys(edge_types, Draw(replace=replace))
    rows_of = {edge_type: sorted_rows(graph, edge_type, edge_dir) for edge_type in edge_types}
    # A node of the batch is (tree, id); without trees, all stand in tree 0.
    nodes: dict[Any, list[tuple[int, int]]] = {node_type: [] for node_type in node_types}
    trees = itertools.count()
    for name, ids in ((seed_type, seeds), *more_seeds):
        nodes[name] += [(next(trees) if disjoint else 0, int(node)) for node in ids]
    begin, end = dict.fromkeys(node_types, 0), {name: len(ids) for name, ids in nodes.items()}
    local: dict[Any, dict[tuple[int, int], int]] = {node_type: {} for node_type in node_types}
    for name in node_types:
        for i, node in enumerate(nodes[name]):
            local[name].setdefault(node, i)
    batch = ReferenceBatch([], [], [], [], [[end[name]] for name in node_types], [[] for _ in edge_types])
    edges: dict[Any, list[tuple[int, int, int]]] = {edge_type: [] for edge_type in edge_types}
    for hop in range(len(next(iter(per_type.values())))):
        for type_index, edge_type in enumerate(edge_types):
            before = len(edges[edge_type])
            ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
            from_type, to_type = ends if edge_dir == "out" else ends[::-1]
            key = draw_key(seed, epoch, index, hop, type_index)
            for col in range(begin[from_type], end[from_type]):
                tree, node = nodes[from_type][col]
                row = rows_of[edge_type].get(node, [])
                tree_key = absorb(key, tree) if disjoint else key
                time = None if times is None else int(times[tree])
                for edge in pick_edges(tree_key, node, row, per_type[edge_type][hop], draws[edge_type], time):
                    reached = (tree, edge.neighbor)
                    if reached not in local[to_type]:
                        local[to_type][reached] = len(nodes[to_type])
                        nodes[to_type].append(reached)
                    edges[edge_type].append((local[to_type][reached], col, edge.edge_id))
            batch.num_sampled_edges[type_index].append(len(edges[edge_type]) - before)
        for i, node_type in enumerate(node_types):
            begin[node_type], end[node_type] = end[node_type], len(nodes[node_type])
            batch.num_sampled_nodes[i].append(end[node_type] - begin[node_type])
    batch.nodes = [[node for _, node in nodes[node_type]] for node_type in node_types]
    batch.trees = [[tree for tree, _ in nodes[node_type]] for node_type in node_types] if disjoint else None
    for edge_type in edge_types:
        batch.rows.append([edge[0] for edge in edges[edge_type]])
        batch.cols.append([edge[1] for edge in edges[edge_type]])
        batch.edge_ids.append([edge[2] for edge in edges[edge_type]])
    return batch
