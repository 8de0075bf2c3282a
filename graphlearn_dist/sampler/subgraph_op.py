"""The edges among given nodes, from graphs that are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .. import _C
from ..core import check_index_tensor, thread_pool, to_optional_tensor, to_tensor
from ..data.graph import Graph
from ..data.schema import GraphSchema, by_type


class NodeSubGraph(NamedTuple):
    """The edges among nodes; every field is a dict by node or edge type where the nodes were given so.

    Attributes:
        nodes: int64 ``[n]``, global ids, distinct, in order of first appearance.
        rows: int64 ``[e]``, position in ``nodes`` of the node in whose row of the graph an edge lies: its source in a
            graph by sources, its target in one by targets.
        cols: int64 ``[e]``, position of its other end.
        eids: int64 ``[e]``, global edge ids, or None.
    """

    nodes: Any
    rows: Any
    cols: Any
    eids: Any


class SubGraphOp:
    """Finds edges among nodes. A graph that is one partition gives the edges of the rows that it holds.

    Args:
        graphs: by edge type.
        schema: types and counts of the graph.
        num_threads: threads of one call; the result does not depend on them.
    """

    def __init__(self, graphs: Mapping[Any, Graph], schema: GraphSchema, num_threads: int = 1) -> None:
        self._graphs = graphs
        self._schema = schema
        self._pool = thread_pool(num_threads)

    def node_subgraph(self, nodes: Any, with_edge: bool = False) -> NodeSubGraph:
        """All edges among nodes.

        Args:
            nodes: int ``[n]``, global ids; duplicates collapse. Of a typed graph a dict of such by node type.
            with_edge: give edge ids.

        Raises:
            UnknownIdError: a node is outside the graph.
            InvalidArgumentError: an unknown node type.
        """
        schema = self._schema
        members = [torch.empty(0, dtype=torch.int64)] * len(schema.node_types)
        for node_type, ids in by_type(nodes).items():
            number = schema.node_type_index(node_type, "nodes")
            members[number] = _distinct(check_index_tensor(ids, "nodes", num_ids=schema.num_nodes[number]))
        rows, cols, eids = {}, {}, {}
        for (edge_type, graph), ends in zip(self._in_order(), schema.edge_specs, strict=True):
            found = self._edges(graph, members[ends[0]], members[ends[1]], with_edge)
            rows[edge_type], cols[edge_type], eids[edge_type] = found
        if not isinstance(nodes, Mapping):
            return NodeSubGraph(members[0], rows[None], cols[None], eids[None])
        by_name = dict(zip(schema.node_types, members, strict=True))
        return NodeSubGraph(by_name, rows, cols, eids if with_edge else None)

    def _in_order(self) -> list[tuple[Any, Graph]]:
        return [(edge_type, self._graphs[edge_type]) for edge_type in self._schema.edge_types]

    def _edges(
        self, graph: Graph, seeds: torch.Tensor, members: torch.Tensor, with_edge: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        positions = torch.arange(seeds.numel()) if graph.row_book is None else graph.held(seeds).nonzero().view(-1)
        ids = seeds[positions]
        counts, cols, edge_ids = _C.induced_edges(
            graph.graph_handler, ids, graph.rows_of(ids), members, with_edge, self._pool
        )
        return positions.repeat_interleave(to_tensor(counts)), to_tensor(cols), to_optional_tensor(edge_ids)


def _distinct(ids: torch.Tensor) -> torch.Tensor:
    """Ids in order of first appearance, int64."""
    values, inverse = torch.unique(ids.to(torch.int64), return_inverse=True)
    first = torch.full((values.numel(),), ids.numel(), dtype=torch.int64)
    first.scatter_reduce_(0, inverse, torch.arange(ids.numel()), "amin")
    distinct: torch.Tensor = values[first.argsort()]
    return distinct
