"""How many batches are handed on together between processes: each costs the same there, however small it is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from .base import SamplingConfig, SamplingType
from .plan import plain_num_neighbors

_MOST_BATCHES = 8
MOST_EDGES = 1 << 16  # of all of them; to sample as many takes several times what handing them on does


def batches_together(config: SamplingConfig) -> int:
    """So many that they have a few ten thousand edges, by fan-outs and batch size; 1 where these say nothing."""
    edges = _most_edges(config)
    return 1 if edges is None else max(1, min(_MOST_BATCHES, MOST_EDGES // max(edges, 1)))


def _most_edges(config: SamplingConfig) -> int | None:
    """Edges of a batch, if every node had as many neighbors as are drawn, along each edge type; None: no telling."""
    fanouts = plain_num_neighbors(config.num_neighbors)
    if fanouts is None or config.has_induced_edges:
        return None
    by_type = list(fanouts.values()) if isinstance(fanouts, Mapping) else [fanouts]
    nodes = config.batch_size * (1 if config.sampling_type is SamplingType.NODE else 4)  # two ends, and negatives
    edges = nodes
    for of_hop in itertools.zip_longest(*by_type, fillvalue=0):
        if min(of_hop) < 0:
            return None
        nodes *= sum(of_hop)
        edges += nodes
    return edges
