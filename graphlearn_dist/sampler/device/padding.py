"""Batches of fixed shapes: a sampled batch, and padding behind it that no real node has an edge to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import _C
from ...data.schema import GraphSchema, by_type
from ...errors import BatchOverflowError, InvalidArgumentError
from ...messages import SampledBatch, Subgraph
from ...typing import EdgeType, NodeType
from ...utils.shown import shown
from ..batch_maker import rows_by_store, with_rows
from ..plan import SamplingPlan

_NO_BOUND = -1
PADDING_ID = -1
"""The id of nodes, edges and seeds that are padding."""

Bounds = tuple[list[int], list[int]]
"""Most nodes by node type, most edges by edge type of a schema; -1 where nobody said."""


@dataclass(frozen=True)
class StaticShapes:
    """How large batches of fixed shapes are; what is not named here is as large as it can ever be.

    A batch that does not fit raises ``BatchOverflowError``. Bounds that hold for every batch follow from the fan-outs,
    the largest degree and the size of the graph; they are several times what batches of a large graph have.

    Attributes:
        max_nodes: rows of the tensors of nodes, at least one of which is padding: a number, or of a typed graph a dict
            by node type.
        max_edges: columns of ``edge_index``: a number, or a dict by edge type of the graph.
    """

    max_nodes: int | Mapping[NodeType, int] | None = None
    max_edges: int | Mapping[EdgeType, int] | None = None

    def bounds(self, schema: GraphSchema) -> Bounds:
        """The same by the types of a schema.

        Raises:
            InvalidArgumentError: a type that is not there, or a number below 1.
        """
        return (
            _bounds("max_nodes", self.max_nodes, schema.node_types),
            _bounds("max_edges", self.max_edges, schema.edge_types),
        )


def _bounds(name: str, given: Any, types: Sequence[Any]) -> list[int]:
    wanted = by_type(given)
    for key, most in wanted.items():
        if key not in types:
            raise InvalidArgumentError(f"{name}: unknown type {key!r}; expected some of {list(types)}")
        if not isinstance(most, int) or isinstance(most, bool) or most < 1:
            raise InvalidArgumentError(f"{name}: expected a number of at least 1, got {shown(most)} for {key!r}")
    return [wanted.get(key, _NO_BOUND) for key in types]


@dataclass(frozen=True)
class BatchSizes:
    """The shapes of padded batches.

    Attributes:
        num_seeds: seeds of a full batch.
        nodes: by node type, entries of the tensors; at least one is padding.
        edges: by edge type, entries of the tensors.
    """

    num_seeds: int
    nodes: tuple[int, ...]
    edges: tuple[int, ...]

    @classmethod
    def of(cls, native: _C.DeviceBatchPlan, num_seeds: int) -> BatchSizes:
        """Those of a native plan with padding."""
        nodes, edges, _ = native.padded
        return cls(num_seeds, tuple(size for size, _ in nodes), tuple(size for size, _ in edges))


@dataclass(frozen=True)
class PaddedBatch:
    """A batch whose tensors have the same shapes as those of any other batch of its loader.

    Real entries come first, in the order and with the local ids of the batch without padding; the last node of a type
    is always padding. Padding has the id -1 and rows of zeros; edges of padding run from nodes of padding to nodes of
    padding, so that no real node has more edges than without. In a disjoint batch all padding is in the tree
    ``num_seeds``, one more than there may be.

    Attributes:
        batch: the batch; its counts per hop are empty. Which epoch and index it is the device alone knows, where it
            was sampled there: both are -1 then.
        node_masks: by node type, bool ``[num_nodes]``: which are real.
        edge_masks: by edge type, bool ``[num_edges]``.
        seed_mask: bool ``[num_seeds]``; the first nodes of the batch are its seeds where this is set.
        num_sampled_nodes: by node type, int64 ``[num_hops + 1]``, as in ``Subgraph``.
        num_sampled_edges: by edge type, int64 ``[num_hops]``.
    """

    batch: SampledBatch
    node_masks: tuple[torch.Tensor, ...]
    edge_masks: tuple[torch.Tensor, ...]
    seed_mask: torch.Tensor
    num_sampled_nodes: tuple[torch.Tensor, ...]
    num_sampled_edges: tuple[torch.Tensor, ...]


def padded_plan(
    plan: SamplingPlan, edge_types: Sequence[tuple[int, int, int, int, bool]], seeds: tuple[int, int], bounds: Bounds
) -> _C.DeviceBatchPlan:
    """The native plan of padded batches, which knows their sizes.

    Args:
        plan: how to sample.
        edge_types: see ``device_graph.native_edge_types``.
        seeds: node type of the seeds, and how many a full batch has.
        bounds: what the user gave.

    Raises:
        InvalidArgumentError: the seeds do not fit.
    """
    schema, (node_type, count) = plan.schema, seeds
    return _C.DeviceBatchPlan(
        list(schema.num_nodes),
        edge_types,
        [(node_type, count, False)],
        plan.fanouts,
        plan.with_edge_ids,
        plan.disjoint,
        bounds,
    )


def overflow_error(schema: GraphSchema, sizes: BatchSizes, place: int, epoch: int, index: int) -> BatchOverflowError:
    """What to raise for a batch in which type ``place`` did not fit; edge types are counted on behind node types."""
    num_types = len(schema.node_types)
    what, number = ("nodes", place) if place < num_types else ("edges", place - num_types)
    types: Sequence[object] = schema.node_types if what == "nodes" else schema.edge_types
    most = sizes.nodes[number] - 1 if what == "nodes" else sizes.edges[number]
    typed = "" if types[number] is None else f" of type {types[number]!r}"
    return BatchOverflowError(
        f"max_{what}: batch {index} of epoch {epoch} has more than the {most} {what}{typed} that fit its static shapes"
    )


def pad_batch(batch: SampledBatch, schema: GraphSchema, sizes: BatchSizes) -> PaddedBatch:
    """Pads a batch of nodes that the host sampled.

    Raises:
        BatchOverflowError: it does not fit.
    """
    subgraph = batch.subgraph
    num_nodes, num_edges = [ids.numel() for ids in subgraph.nodes], [pair.size(1) for pair in subgraph.edge_index]
    _check_room(batch, schema, sizes)
    num_seeds = batch.input_positions.numel()
    padded = replace(
        batch,
        input_positions=_grown(batch.input_positions, sizes.num_seeds, PADDING_ID),
        seed_times=_grown_if(batch.seed_times, sizes.num_seeds, 0),
        subgraph=_pad_subgraph(subgraph, schema, sizes),
    )
    sizes_of = {"node": sizes.nodes, "edge": sizes.edges}
    rows = {}
    for name, found in rows_by_store(batch).items():
        kind, number, *_ = name.split(":", 2)
        rows[name] = _grown(found, sizes_of[kind[:4]][int(number)], 0)
    return PaddedBatch(
        batch=with_rows(padded, rows),
        node_masks=tuple(_mask(*counts) for counts in zip(num_nodes, sizes.nodes, strict=True)),
        edge_masks=tuple(_mask(*counts) for counts in zip(num_edges, sizes.edges, strict=True)),
        seed_mask=_mask(num_seeds, sizes.num_seeds),
        num_sampled_nodes=tuple(torch.tensor(hops, dtype=torch.int64) for hops in subgraph.num_sampled_nodes),
        num_sampled_edges=tuple(torch.tensor(hops, dtype=torch.int64) for hops in subgraph.num_sampled_edges),
    )


def _check_room(batch: SampledBatch, schema: GraphSchema, sizes: BatchSizes) -> None:
    counts = [part.size(-1) for part in (*batch.subgraph.nodes, *batch.subgraph.edge_index)]
    room = [*(size - 1 for size in sizes.nodes), *sizes.edges]
    # Edges first: bounds on them bound the nodes that nobody gave a bound for.
    for place in reversed(range(len(room))):
        if counts[place] > room[place]:
            raise overflow_error(schema, sizes, place, batch.epoch, batch.index)


def _pad_subgraph(subgraph: Subgraph, schema: GraphSchema, sizes: BatchSizes) -> Subgraph:
    num_nodes = [ids.numel() for ids in subgraph.nodes]

    def ends(local_ids: torch.Tensor, num_edges: int, node_type: int) -> torch.Tensor:
        """With the ends of padding edges: the padding nodes in turn, so that sums do not all meet at one of them."""
        num_padding = sizes.nodes[node_type] - num_nodes[node_type]
        in_turn = torch.arange(num_edges - local_ids.numel()) % num_padding
        return torch.cat([local_ids, num_nodes[node_type] + in_turn])

    specs = zip(subgraph.edge_index, sizes.edges, schema.edge_specs, strict=True)
    return Subgraph(
        nodes=tuple(_grown(ids, size, PADDING_ID) for ids, size in zip(subgraph.nodes, sizes.nodes, strict=True)),
        edge_index=tuple(
            torch.stack([ends(pair[0], size, neighbor), ends(pair[1], size, seed)])
            for pair, size, (seed, neighbor) in specs
        ),
        edge_ids=tuple(
            _grown_if(ids, size, PADDING_ID) for ids, size in zip(subgraph.edge_ids, sizes.edges, strict=True)
        ),
        num_sampled_nodes=((),) * len(sizes.nodes),
        num_sampled_edges=((),) * len(sizes.edges),
        trees=tuple(
            _grown_if(trees, size, sizes.num_seeds) for trees, size in zip(subgraph.trees, sizes.nodes, strict=True)
        ),
    )


def _grown(tensor: torch.Tensor, size: int, fill: int) -> torch.Tensor:
    """``tensor`` ``[n, ...]`` with ``size - n`` further rows of ``fill``."""
    out = tensor.new_full((size, *tensor.shape[1:]), fill)
    out[: tensor.size(0)] = tensor
    return out


def _grown_if(tensor: torch.Tensor | None, size: int, fill: int) -> torch.Tensor | None:
    return None if tensor is None else _grown(tensor, size, fill)


def _mask(count: int, size: int) -> torch.Tensor:
    return torch.arange(size) < count
