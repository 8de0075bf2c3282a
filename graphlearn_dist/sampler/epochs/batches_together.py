"""How many batches are handed on together between processes: each costs the same there, however small it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...data.columns import EDGE_COLUMN
from ...data.schema import EDGE_FEATURE
from ..base import SamplingConfig, SamplingType
from ..plan import plain_num_neighbors

_MOST_BATCHES = 16
_MOST_EDGES = 1 << 22  # of all of them; to sample as many takes many times what handing them on does
_MOST_BYTES = 64 << 20  # likewise, to move them
_MOST_TABLE_BYTES = 256 << 20  # of the tables of local ids, one for each batch under way
_LEAST_PLACES = 8  # for groups, in the memory of a worker
# Batches that reach much of a graph want many of the same rows, and two of them ask other processes for each once. That
# is worth more memory: a pair is a fifth of it at most, and is expected to be a third, as fewer nodes than expected
# are reached where some have more edges than others.
_LEAST_PLACES_OF_PAIRS = 5
_EXPECTED_PLACES_OF_PAIRS = 3
_SHARE_OF_NODES_OF_PAIRS = 1 / 3
_BYTES_OF_AN_ID = 8
_BYTES_OF_AN_EDGE = {"edge_index": 16, "adj_t": 4}
_BYTES_OF_A_NODE = {"edge_index": _BYTES_OF_AN_ID, "adj_t": _BYTES_OF_AN_ID + 4}
_TABLE_BYTES_OF_A_NODE = 4


def batches_together(
    config: SamplingConfig,
    stores: Mapping[str, Any],
    num_nodes: int,
    most_bytes: int,
    wish: int | None = None,
    *,
    num_edge_types: int = 1,
    pair_bytes: int = 0,
) -> int:
    """So many that they have some million edges and some megabytes; 1 where nothing says how large they are.

    Two where they are larger, and two of them want many of the same rows.

    Args:
        config: how batches are sampled.
        stores: the rows that belong to nodes and edges, by store; their ``shape`` and ``dtype`` count.
        num_nodes: of the graph, of all types.
        most_bytes: that all of them may take.
        num_edge_types: of the graph.
        wish: take so many, whatever their edges; as far as neither they nor the tables have too many bytes.
        pair_bytes: that two of them may be expected to take, where rows that both want are asked for once; see
            ``expected_pair_bytes``.
    """
    by_tables = _MOST_TABLE_BYTES // (_TABLE_BYTES_OF_A_NODE * max(num_nodes, 1))
    size = _expected_size(config, max(num_nodes, 1), num_edge_types)
    if size is None:
        return 1 if wish is None else max(1, min(wish, by_tables))
    nodes, edges = size
    of_node, of_edge = _BYTES_OF_A_NODE[config.edge_format], _BYTES_OF_AN_EDGE[config.edge_format]
    of_edge_rows = _row_bytes(stores, edges=True) if config.collect_features else 0
    if config.with_edge or of_edge_rows:
        of_edge += _BYTES_OF_AN_ID
    of_node_rows = _row_bytes(stores, edges=False) if config.collect_features else 0
    nbytes = max(1, (of_node + of_node_rows) * nodes + (of_edge + of_edge_rows) * edges)
    by_edges = min(_MOST_BATCHES, _MOST_EDGES // max(edges, 1)) if wish is None else wish
    by_bytes = most_bytes // nbytes
    if of_node_rows and nodes > _SHARE_OF_NODES_OF_PAIRS * num_nodes:
        by_bytes = max(by_bytes, min(2, pair_bytes // nbytes))
    return max(1, min(by_edges, by_tables, by_bytes))


def most_together_bytes(worker_bytes: int, count: int = _MOST_BATCHES) -> int:
    """Bytes that so many batches together may have at most, where a worker has so much memory for batches."""
    if count == 2:
        return worker_bytes // _LEAST_PLACES_OF_PAIRS
    return min(_MOST_BYTES, worker_bytes // _LEAST_PLACES)


def expected_pair_bytes(worker_bytes: int) -> int:
    """Bytes that two batches may be expected to have, where a worker has so much memory for batches."""
    return worker_bytes // _EXPECTED_PLACES_OF_PAIRS


def _by_type(fanouts: Mapping[Any, Sequence[int]] | Sequence[int], num_edge_types: int) -> list[Sequence[int]]:
    """Those of each edge type: a list is that of all, the default of a dict that of those which it does not name."""
    if not isinstance(fanouts, Mapping):
        return [fanouts] * num_edge_types
    named = [hops for edge_type, hops in fanouts.items() if edge_type is not None]
    return named + [fanouts[None]] * (num_edge_types - len(named)) if None in fanouts else named


def _expected_size(config: SamplingConfig, num_nodes: int, num_edge_types: int) -> tuple[int, int] | None:
    """Nodes and edges of a batch, if every node has as many neighbors as are drawn along each edge type.

    Each neighbor is taken for any node of the graph, with the same chance. Where some nodes have more edges than
    others, fewer distinct ones are reached, so that a batch is smaller than that. None: no telling.
    """
    fanouts = plain_num_neighbors(config.num_neighbors)
    if fanouts is None or config.has_induced_edges:
        return None
    by_type = _by_type(fanouts, num_edge_types)
    ends = 1 if config.sampling_type is SamplingType.NODE else 4  # of a link: two, and as many of a negative one
    seeds = config.batch_size * ends
    frontier = nodes = float(seeds if config.is_disjoint else min(seeds, num_nodes))
    edges = 0.0
    for of_hop in itertools.zip_longest(*by_type, fillvalue=0):
        if min(of_hop) < 0:
            return None
        drawn = frontier * sum(of_hop)
        frontier = drawn if config.is_disjoint else (num_nodes - nodes) * -math.expm1(-drawn / num_nodes)
        nodes, edges = nodes + frontier, edges + drawn
    return round(nodes), round(edges)


def _row_bytes(stores: Mapping[str, Any], *, edges: bool) -> int:
    """Bytes of all rows of one node, or one edge, of the type that has the most."""
    found: dict[str, int] = {}
    for store, rows in stores.items():
        kind, type_index, *_ = store.split(":")
        if (kind in (EDGE_FEATURE, EDGE_COLUMN)) == edges:
            width = 1
            for extent in rows.shape[1:]:
                width *= int(extent)
            found[type_index] = found.get(type_index, 0) + width * rows.dtype.itemsize
    return max(found.values(), default=0)
