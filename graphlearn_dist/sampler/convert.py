"""From a sampled batch to what samplers give when they are called directly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..data.schema import EdgeDirection, GraphSchema
from ..messages import LinkLabels, SampledBatch, Subgraph
from ..typing import EdgeType, reverse_edge_type
from .outputs import EdgeIndex, HeteroSamplerOutput, SamplerOutput


def message_type(edge_type: EdgeType, edge_dir: EdgeDirection) -> EdgeType:
    """The edge type under which messages run from neighbor to seed."""
    return edge_type if edge_dir == "in" else reverse_edge_type(edge_type)


def link_attributes(links: LinkLabels) -> dict[str, torch.Tensor]:
    """By PyG's names, what a batch of links holds besides its nodes."""
    names = ("edge_label_index", "edge_label", "src_index", "dst_pos_index", "dst_neg_index")
    return {name: value for name in names if (value := getattr(links, name)) is not None}


def _metadata(batch: SampledBatch) -> Any:
    return link_attributes(batch.links) if batch.links is not None else batch.mapping


def seeds_of(batch: SampledBatch) -> torch.Tensor:
    """The seeds of a batch, global ids; of links, their distinct ends."""
    nodes = batch.subgraph.nodes[batch.seed_type]
    if batch.mapping is not None:
        return nodes[batch.mapping]
    return nodes[: batch.subgraph.num_sampled_nodes[batch.seed_type][0]]


def to_sampler_output(batch: SampledBatch) -> SamplerOutput:
    """A batch of a homogeneous graph."""
    sampled, trees = batch.subgraph, batch.subgraph.trees[0]
    return SamplerOutput(
        node=sampled.nodes[0],
        row=sampled.edge_index[0][0],
        col=sampled.edge_index[0][1],
        edge=sampled.edge_ids[0],
        batch=seeds_of(batch) if trees is None else trees,
        num_sampled_nodes=list(sampled.num_sampled_nodes[0]),
        num_sampled_edges=list(sampled.num_sampled_edges[0]) or None,
        device=torch.device("cpu"),
        metadata=_metadata(batch),
    )


def to_hetero_sampler_output(batch: SampledBatch, schema: GraphSchema) -> HeteroSamplerOutput:
    """A batch of a typed graph. Types that the batch did not reach are left out, but for their counts per hop."""
    sampled, links = batch.subgraph, batch.links
    node_types = [name or "" for name in schema.node_types]
    nodes = {name: i for i, name in enumerate(node_types) if sampled.nodes[i].numel()}
    edges = {
        message_type(name, schema.edge_dir): i
        for i, name in enumerate(schema.edge_types)
        if name is not None and sampled.edge_index[i].numel()
    }
    edge_ids = {name: ids for name, i in edges.items() if (ids := sampled.edge_ids[i]) is not None}
    trees = {name: tree for name, i in nodes.items() if (tree := sampled.trees[i]) is not None}
    seed_type = node_types[batch.seed_type]
    edge_types = [message_type(name, schema.edge_dir) for name in schema.edge_types if name is not None]
    edges_by_hop = dict(zip(edge_types, map(list, sampled.num_sampled_edges), strict=True))
    return HeteroSamplerOutput(
        node={name: sampled.nodes[i] for name, i in nodes.items()},
        row={name: sampled.edge_index[i][0] for name, i in edges.items()},
        col={name: sampled.edge_index[i][1] for name, i in edges.items()},
        edge=edge_ids or None,
        batch=trees or {seed_type: seeds_of(batch)},
        num_sampled_nodes=dict(zip(node_types, map(list, sampled.num_sampled_nodes), strict=True)),
        num_sampled_edges=edges_by_hop if any(edges_by_hop.values()) else None,
        edge_types=edge_types,
        input_type=seed_type if links is None else schema.edge_types[links.edge_type],
        device=torch.device("cpu"),
        metadata=_metadata(batch),
    )


def to_pyg_v1(batch: SampledBatch) -> tuple[int, torch.Tensor, list[EdgeIndex]]:
    """(batch size, global ids int64 ``[num_nodes]``, layers, outermost first), as PyG's first ``NeighborSampler``.

    The layer of hop ``k`` sends from all nodes within ``k + 1`` hops to all those within ``k``, over the edges that
    were sampled for these.
    """
    sampled = batch.subgraph
    edge_index = sampled.edge_index[0]
    layers = []
    num_edges, num_targets = 0, sampled.num_sampled_nodes[0][0]
    for new_nodes, new_edges in zip(sampled.num_sampled_nodes[0][1:], sampled.num_sampled_edges[0], strict=True):
        num_edges += new_edges
        ids = sampled.edge_ids[0]
        size = (num_targets + new_nodes, num_targets)
        layers.append(EdgeIndex(edge_index[:, :num_edges], None if ids is None else ids[:num_edges], size))
        num_targets += new_nodes
    return batch.input_positions.numel(), sampled.nodes[0], layers[::-1]


def with_repeated_seeds(
    sampled: Subgraph, mapping: torch.Tensor, seed_type: int, edge_specs: Sequence[tuple[int, int]]
) -> Subgraph:
    """An induced subgraph whose first nodes are the seeds as they were given, where it has each node once.

    A seed that comes again gets the edges of its node, too; edges that lead from the node begin at its first place.

    Args:
        sampled: with induced edges.
        mapping: int64 ``[num_seeds]``, local ids of the seeds, as a batch has them.
        seed_type: their node type.
        edge_specs: by edge type, (node type that was sampled for, neighbors' type), see ``GraphSchema``.
    """
    num_seeds, num_distinct = len(mapping), int(mapping.max()) + 1 if len(mapping) else 0
    if num_seeds == num_distinct:
        return sampled
    own = sampled.nodes[seed_type]
    order = torch.argsort(mapping, stable=True)
    # By local id of before: how many places a node has now, where those begin in `places`, and thus the first.
    copies = torch.cat([torch.bincount(mapping), torch.ones(len(own) - num_distinct, dtype=torch.int64)])
    begins = copies.cumsum(0) - copies
    places = torch.cat([order, torch.arange(num_seeds, num_seeds + len(own) - num_distinct)])
    edge_index, edge_ids = [], []
    for (rows, cols), ids, (to_type, from_type) in zip(sampled.edge_index, sampled.edge_ids, edge_specs, strict=True):
        sources, targets, kept = rows, cols, ids
        if from_type == seed_type:
            sources = places[begins[sources]]
        if to_type == seed_type:
            repeats = copies[cols]
            edge = torch.repeat_interleave(torch.arange(len(cols)), repeats)
            nth = torch.arange(len(edge)) - (repeats.cumsum(0) - repeats)[edge]
            targets = places[begins[cols[edge]] + nth]
            by_target = torch.argsort(targets, stable=True)
            targets, edge = targets[by_target], edge[by_target]
            sources, kept = sources[edge], None if ids is None else ids[edge]
        edge_index.append(torch.stack([sources, targets]))
        edge_ids.append(kept)
    nodes = list(sampled.nodes)
    nodes[seed_type] = torch.cat([own[mapping], own[num_distinct:]])
    return replace(sampled, nodes=tuple(nodes), edge_index=tuple(edge_index), edge_ids=tuple(edge_ids))
