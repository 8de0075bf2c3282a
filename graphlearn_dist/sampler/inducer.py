"""Batches that a program samples hop by hop itself: global ids to local ones, and the nodes that each hop adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import _C
from ..core import check_index_vector, to_tensor
from ..data.schema import GraphSchema, by_type
from ..errors import InvalidArgumentError, NotInitializedError
from .inputs import edge_type_index
from .plan import UNBOUNDED


class Inducer:
    """Keeps the nodes of one batch, in order of first appearance, and gives each hop's edges by local ids.

    ``init_node`` begins a batch, and each ``induce_next`` is a hop; the nodes that either gives are what the next hop
    samples for. One batch at a time.

    Args:
        schema: types and counts of the graph.
        num_seeds: seeds of a batch, to take memory for; there may be more.
    """

    def __init__(self, schema: GraphSchema, num_seeds: int = 1) -> None:
        self._schema = schema
        self._num_seeds = num_seeds
        self._builder = _C.BatchBuilder(list(schema.num_nodes), list(schema.edge_specs))
        self._num_edges: list[int] | None = None

    def init_node(self, seeds: Any) -> Any:
        """Begins a batch.

        Args:
            seeds: int ``[n]``, global ids; duplicates collapse. Of a typed graph a dict of such by node type.

        Returns:
            The distinct seeds in order of first appearance, int64; by node type where they were given so. Their local
            ids are their positions.

        Raises:
            UnknownIdError: a seed is outside the graph.
        """
        given = {node_type: check_index_vector(ids, "seeds") for node_type, ids in by_type(seeds).items()}
        count = sum(ids.numel() for ids in given.values())
        self._builder.begin(max(count, self._num_seeds), UNBOUNDED, False)
        for node_type, ids in given.items():
            self._builder.add_seeds(self._schema.node_type_index(node_type, "seeds"), ids, None, True)
        self._num_edges = [0] * len(self._schema.edge_types)
        found = {node_type: self._frontier(node_type) for node_type in given}
        return found if isinstance(seeds, Mapping) else found[None]

    def induce_next(self, srcs: Any, nbrs: torch.Tensor | None = None, nbrs_num: torch.Tensor | None = None) -> Any:
        """Adds the neighbors that were sampled for the nodes of the last hop.

        Args:
            srcs: those nodes, int64 ``[n]``, as ``init_node`` or the last call gave them; of a typed graph a dict by
                edge type of (srcs, nbrs, nbrs_num), and nothing else is given.
            nbrs: int ``[sum of nbrs_num]``, their neighbors, grouped by node.
            nbrs_num: int64 ``[n]``, how many each has.

        Returns:
            (nodes, rows, cols): new nodes int64, in order of first appearance; int64 ``[sum of nbrs_num]`` each, the
            local ids of the node of ``srcs`` and of the neighbor of each edge. By node type, edge type and edge type
            where they were given so.

        Raises:
            NotInitializedError: before ``init_node``.
            InvalidArgumentError: other nodes than those of the last hop, or numbers that do not fit.
            UnknownIdError: a neighbor is outside the graph.
        """
        if self._num_edges is None:
            raise NotInitializedError("there is no batch: call init_node() first")
        hops = dict(srcs) if isinstance(srcs, Mapping) else {None: (srcs, nbrs, nbrs_num)}
        numbers = {edge_type: edge_type_index(self._schema, edge_type, "srcs") for edge_type in hops}
        for edge_type, hop in hops.items():
            self._check_sources(numbers[edge_type], hop[0])
        for edge_type, (_, neighbors, counts) in hops.items():
            counts, neighbors = check_index_vector(counts, "nbrs_num"), check_index_vector(neighbors, "nbrs")
            self._builder.add_hop(numbers[edge_type], counts, neighbors, None)
        self._builder.next_hop()
        pairs = [to_tensor(capsule) for capsule in self._builder.finish()[1]]
        rows, cols = {}, {}
        for edge_type, number in numbers.items():
            # Copied: the builder's memory grows with the next hop.
            cols[edge_type], rows[edge_type] = pairs[number][:, self._num_edges[number] :].clone()
        self._num_edges = [pair.size(1) for pair in pairs]
        if not isinstance(srcs, Mapping):
            return self._frontier(None), rows[None], cols[None]
        return {name: self._frontier(name) for name in self._schema.node_types}, rows, cols

    def _frontier(self, node_type: Any) -> torch.Tensor:
        ids, _, _ = self._builder.frontier(self._schema.node_types.index(node_type))
        return to_tensor(ids).clone()

    def _check_sources(self, edge_type: int, srcs: torch.Tensor) -> None:
        expected = self._frontier(self._schema.node_types[self._schema.edge_specs[edge_type][0]])
        if not torch.equal(check_index_vector(srcs, "srcs").to(torch.int64), expected):
            raise InvalidArgumentError(
                f"srcs: expected the {expected.numel()} nodes of the last hop in their order, got {srcs.numel()} others"
            )
