"""How many batches are handed on together between processes: each costs the same there, however small it is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ...data.columns import EDGE_COLUMN
from ...data.schema import EDGE_FEATURE
from ..base import SamplingConfig, SamplingType
from ..plan import plain_num_neighbors

_MOST_BATCHES = 16
_MOST_EDGES = 1 << 21  # of all of them; to sample as many takes many times what handing them on does
_MOST_BYTES = 64 << 20  # likewise, to move them
_MOST_TABLE_BYTES = 256 << 20  # of the tables of local ids, one for each batch under way
_LEAST_PLACES = 8  # for groups, in the memory of a worker
_BYTES_OF_AN_EDGE = {"edge_index": 24, "adj_t": 12}
_BYTES_OF_A_NODE, _TABLE_BYTES_OF_A_NODE = 8, 4


def batches_together(
    config: SamplingConfig,
    stores: Mapping[str, Any],
    num_nodes: int,
    most_bytes: int,
    wish: int | None = None,
    *,
    num_edge_types: int = 1,
) -> int:
    """So many that they have some hundred thousand edges and some megabytes; 1 where nothing says how large they are.

    Args:
        config: how batches are sampled.
        stores: the rows that belong to nodes and edges, by store; their ``shape`` and ``dtype`` count.
        num_nodes: of the graph, of all types.
        most_bytes: that all of them may take.
        num_edge_types: of the graph.
        wish: take so many, whatever their edges; as far as neither they nor the tables have too many bytes.
    """
    edges = _most_edges(config, num_edge_types)
    by_tables = _MOST_TABLE_BYTES // (_TABLE_BYTES_OF_A_NODE * max(num_nodes, 1))
    if edges is None:
        return 1 if wish is None else max(1, min(wish, by_tables))
    of_an_edge = _BYTES_OF_AN_EDGE[config.edge_format]
    nbytes = of_an_edge * edges + _BYTES_OF_A_NODE * (edges + config.batch_size)
    if config.collect_features:
        of_edges, of_nodes = _row_bytes(stores, edges=True), _row_bytes(stores, edges=False)
        nbytes += of_edges * edges + of_nodes * (edges + config.batch_size)
    by_edges = min(_MOST_BATCHES, _MOST_EDGES // max(edges, 1)) if wish is None else wish
    return max(1, min(by_edges, by_tables, most_bytes // max(nbytes, 1)))


def most_together_bytes(worker_bytes: int) -> int:
    """Bytes that batches together may have, of which a worker has so much memory."""
    return min(_MOST_BYTES, worker_bytes // _LEAST_PLACES)


def _by_type(fanouts: Mapping[Any, Sequence[int]] | Sequence[int], num_edge_types: int) -> list[Sequence[int]]:
    """Those of each edge type: a list is that of all, the default of a dict that of those which it does not name."""
    if not isinstance(fanouts, Mapping):
        return [fanouts] * num_edge_types
    named = [hops for edge_type, hops in fanouts.items() if edge_type is not None]
    return named + [fanouts[None]] * (num_edge_types - len(named)) if None in fanouts else named


def _most_edges(config: SamplingConfig, num_edge_types: int) -> int | None:
    """Edges of a batch, if every node had as many neighbors as are drawn, along each edge type; None: no telling."""
    fanouts = plain_num_neighbors(config.num_neighbors)
    if fanouts is None or config.has_induced_edges:
        return None
    by_type = _by_type(fanouts, num_edge_types)
    nodes = config.batch_size * (1 if config.sampling_type is SamplingType.NODE else 4)  # two ends, and negatives
    edges = nodes
    for of_hop in itertools.zip_longest(*by_type, fillvalue=0):
        if min(of_hop) < 0:
            return None
        nodes *= sum(of_hop)
        edges += nodes
    return edges


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
