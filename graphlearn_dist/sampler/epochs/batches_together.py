"""How many batches are handed on together between processes: each costs the same there, however small it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...data.columns import EDGE_COLUMN
from ...data.schema import EDGE_FEATURE
from ..base import SamplingConfig, SamplingType
from ..plan import SamplingPlan

_MOST_BATCHES = 16
_MOST_EDGES = 1 << 22  # of all of them; to sample as many takes many times what handing them on does
_MOST_BYTES = 64 << 20  # likewise, to move them
_MOST_TABLE_BYTES = 256 << 20  # of the tables of local ids, one for each batch under way
# Such a table has an entry for each node of a type, up to so many nodes, as that is fast. Of more nodes it grows with
# the batch: several batches under way would have many times the memory, and use little of it, which is not faster then.
MOST_DENSE_NODES = 1 << 25
_LEAST_PLACES = 8  # for groups, in the memory of a worker
# Batches that reach much of a graph want many of the same rows, and two of them ask other processes for each once. That
# is worth more memory: a pair is a fifth of it at most, and is expected to be a third, as fewer nodes than expected
# are reached where some have more edges than others.
_LEAST_PLACES_OF_PAIRS = 5
_EXPECTED_PLACES_OF_PAIRS = 3
_SHARE_OF_ROWS_OF_PAIRS = 1 / 3
_PAIRS_ASKED = 2  # for whose rows is asked at once; the second is written when the first was handed on
_BYTES_OF_AN_ID = 8
_BYTES_OF_AN_EDGE = {"edge_index": 16, "adj_t": 4}
_BYTES_OF_A_NODE = {"edge_index": _BYTES_OF_AN_ID, "adj_t": _BYTES_OF_AN_ID + 4}
_TABLE_BYTES_OF_A_NODE = 4
_TABLE_BYTES_OF_A_BATCH_NODE = 64


def batches_together(
    config: SamplingConfig,
    plan: SamplingPlan,
    seed_types: Sequence[int],
    stores: Mapping[str, Any],
    most_bytes: int,
    wish: int | None = None,
    *,
    pair_bytes: int = 0,
) -> int:
    """So many that they have some million edges and some megabytes; 1 where nothing says how large they are.

    Two where they are larger, and two of them want many of the same rows.

    Args:
        config: how batches are sampled.
        plan: the same, resolved.
        seed_types: see ``sampler.tasks.seed_types_of``.
        stores: the rows that belong to nodes and edges, by store; their ``shape`` and ``dtype`` count.
        most_bytes: that all of them may take.
        wish: take so many, whatever their edges; as far as neither they nor the tables have too many bytes.
        pair_bytes: that two of them may be expected to take, where rows that both want are asked for once; see
            ``expected_pair_bytes``.
    """
    by_tables = _most_by_tables(config, plan, seed_types)
    batch = _expected_batch(config, plan, seed_types, stores)
    if batch is None:
        return 1 if wish is None else max(1, min(wish, by_tables))
    by_edges = min(_MOST_BATCHES, _MOST_EDGES // max(round(batch.num_edges), 1)) if wish is None else wish
    by_bytes = most_bytes // batch.nbytes
    if batch.share_of_rows > _SHARE_OF_ROWS_OF_PAIRS:
        by_bytes = max(by_bytes, min(2, pair_bytes // batch.nbytes))
    return max(1, min(by_edges, by_tables, by_bytes))


def pairs_asked_together(
    config: SamplingConfig,
    plan: SamplingPlan,
    seed_types: Sequence[int],
    stores: Mapping[str, Any],
    most_bytes: int,
    count: int,
) -> int:
    """For the rows of how many pairs of batches others may be asked at once: they want many of the same again.

    0 where batches go together by another number, or are not so large. ``count``: that number; see ``batches_together``
    for the other arguments.
    """
    batch = _expected_batch(config, plan, seed_types, stores)
    if count != 2 or batch is None or most_bytes // batch.nbytes >= 2:
        return 0
    return min(_PAIRS_ASKED, max(1, _most_by_tables(config, plan, seed_types) // 2))


def most_together_bytes(worker_bytes: int, count: int = _MOST_BATCHES) -> int:
    """Bytes that so many batches together may have at most, where a worker has so much memory for batches."""
    if count == 2:
        return worker_bytes // _LEAST_PLACES_OF_PAIRS
    return min(_MOST_BYTES, worker_bytes // _LEAST_PLACES)


def expected_pair_bytes(worker_bytes: int) -> int:
    """Bytes that two batches may be expected to have, where a worker has so much memory for batches."""
    return worker_bytes // _EXPECTED_PLACES_OF_PAIRS


@dataclass(frozen=True)
class _ExpectedBatch:
    """How large a batch is, if every node has as many neighbors as are drawn along each edge type.

    Attributes:
        num_edges: of all types.
        share_of_rows: the bytes of its nodes' rows over those of all nodes' rows.
        nbytes: of all of it, at least 1.
    """

    num_edges: float
    share_of_rows: float
    nbytes: int


def _expected_batch(
    config: SamplingConfig, plan: SamplingPlan, seed_types: Sequence[int], stores: Mapping[str, Any]
) -> _ExpectedBatch | None:
    size = _expected_size(config, plan, seed_types)
    if size is None:
        return None
    nodes, edges = size
    node_rows, edge_rows = [0.0] * len(nodes), [0.0] * len(edges)
    if config.collect_features:
        node_rows, edge_rows = _row_bytes(stores, len(nodes), edges=False), _row_bytes(stores, len(edges), edges=True)
    of_edge = _BYTES_OF_AN_EDGE[config.edge_format]
    if config.with_edge or any(edge_rows):
        of_edge += _BYTES_OF_AN_ID
    rows, every_row = _dot(nodes, node_rows), _dot(plan.schema.num_nodes, node_rows)
    ids = _BYTES_OF_A_NODE[config.edge_format] * sum(nodes) + of_edge * sum(edges)
    nbytes = max(1, round(ids + rows + _dot(edges, edge_rows)))
    return _ExpectedBatch(sum(edges), rows / every_row if every_row else 0.0, nbytes)


def _expected_size(
    config: SamplingConfig, plan: SamplingPlan, seed_types: Sequence[int]
) -> tuple[list[float], list[float]] | None:
    """Nodes of a batch by type, and edges, if every node has as many neighbors as are drawn along each edge type.

    Each neighbor is taken for any node of its type, with the same chance. Where some nodes have more edges than
    others, fewer distinct ones are reached, so that a batch is smaller than that. None: no telling.
    """
    if config.has_induced_edges or any(fanout < 0 for hop in plan.fanouts for fanout in hop):
        return None
    schema = plan.schema

    def reached(drawn: float, before: float, node_type: int) -> float:
        """Nodes that so many draws add to those that were there before."""
        count = schema.num_nodes[node_type]
        return drawn if config.is_disjoint or not count else (count - before) * -math.expm1(-drawn / count)

    frontier, edges = [0.0] * len(schema.num_nodes), [0.0] * len(schema.edge_specs)
    ends = 1 if config.sampling_type is SamplingType.NODE else 4  # of a link: two, and as many of a negative one
    for node_type in seed_types:
        frontier[node_type] += config.batch_size * ends / len(seed_types)
    if not config.is_disjoint:
        frontier = [min(count, most) for count, most in zip(frontier, schema.num_nodes, strict=True)]
    nodes = list(frontier)
    for hop in plan.fanouts:
        drawn = [0.0] * len(nodes)
        for edge_type, (fanout, (seed_type, neighbor_type)) in enumerate(zip(hop, schema.edge_specs, strict=True)):
            if schema.num_nodes[neighbor_type]:
                edges[edge_type] += frontier[seed_type] * fanout
                drawn[neighbor_type] += frontier[seed_type] * fanout
        frontier = [reached(*of_type, i) for i, of_type in enumerate(zip(drawn, nodes, strict=True))]
        nodes = [before + new for before, new in zip(nodes, frontier, strict=True)]
    return nodes, edges


def _most_by_tables(config: SamplingConfig, plan: SamplingPlan, seed_types: Sequence[int]) -> int:
    """Batches whose tables of local ids do not take too much together."""
    size = _expected_size(config, plan, seed_types)
    tables = _table_bytes(plan.schema.num_nodes, None if size is None else size[0])
    if config.sampling_type is SamplingType.HGT:
        tables *= 2  # one of the nodes that have a budget, too
    return _MOST_TABLE_BYTES // max(tables, 1)


def _table_bytes(num_nodes: Sequence[int], of_batch: Sequence[float] | None) -> int:
    """Of the tables of local ids of one batch, by nodes of each type; None: a batch may have all of them."""
    return sum(
        _TABLE_BYTES_OF_A_NODE * count
        if count <= MOST_DENSE_NODES or of_batch is None
        else _TABLE_BYTES_OF_A_BATCH_NODE * round(of_batch[i])
        for i, count in enumerate(num_nodes)
    )


def _row_bytes(stores: Mapping[str, Any], num_types: int, *, edges: bool) -> list[float]:
    """By type, bytes of all rows of one node, or one edge."""
    found = [0.0] * num_types
    for store, rows in stores.items():
        kind, type_index, *_ = store.split(":")
        if (kind in (EDGE_FEATURE, EDGE_COLUMN)) == edges:
            found[int(type_index)] += math.prod(map(int, rows.shape[1:])) * rows.dtype.itemsize
    return found


def _dot(counts: Sequence[float], of_each: Sequence[float]) -> float:
    return sum(count * each for count, each in zip(counts, of_each, strict=True))
