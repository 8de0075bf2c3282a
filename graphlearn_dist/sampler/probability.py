"""How likely nodes are to be in a batch, for placing hot rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..data.topology import Topology
from .base import NodeSamplerInput
from .plan import SamplingPlan


def sampling_probability(
    plan: SamplingPlan, topologies: Sequence[Topology], inputs: NodeSamplerInput, num_nodes: Sequence[int]
) -> list[torch.Tensor]:
    """An estimate of the probability that each node is in the batch of some seeds.

    A node of hop ``h`` picks each of its ``d`` neighbors with probability ``min(1, fanout / d)``; nodes and picks are
    taken to be independent of each other, and weights are not looked at.

    Args:
        plan: types and fan-outs.
        topologies: by edge type.
        inputs: the seeds, which have probability 1.
        num_nodes: by node type.

    Returns:
        By node type float64 ``[num_nodes]``.
    """
    schema = plan.schema
    frontier = [torch.zeros(count, dtype=torch.float64) for count in num_nodes]
    frontier[schema.node_types.index(inputs.input_type)][inputs.node.to(torch.int64)] = 1.0
    absent = [(1 - probability).log() for probability in frontier]  # log of the probability of not being there
    for fanouts in plan.fanouts:
        missed = [torch.zeros_like(probability) for probability in frontier]
        for fanout, (seed_type, neighbor_type), topology in zip(fanouts, schema.edge_specs, topologies, strict=True):
            if fanout == 0 or topology.edge_count == 0:
                continue
            degrees = topology.degrees
            missing = log_missing(frontier[seed_type][: degrees.numel()], degrees, fanout)
            per_edge = torch.repeat_interleave(missing, degrees)
            missed[neighbor_type].index_add_(0, topology.indices.to(torch.int64), per_edge)
        frontier = [1 - torch.exp(log) for log in missed]
        absent = [before + log for before, log in zip(absent, missed, strict=True)]
    return [1 - torch.exp(log) for log in absent]


def log_missing(chances: torch.Tensor, degrees: torch.Tensor, fanout: int) -> torch.Tensor:
    """By node, the log of the probability that it does not pick a certain neighbor; ``chances`` are that it picks."""
    picked = chances if fanout < 0 else chances * (fanout / degrees.clamp(min=1).to(chances.dtype)).clamp(max=1)
    return torch.log1p(-picked)


def spread_chances(
    topology: Topology, rows: torch.Tensor, chances: torch.Tensor, fanout: int, num_neighbors: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One hop of ``sampling_probability`` from some rows of a graph.

    Args:
        topology: the graph.
        rows: int64 ``[n]``.
        chances: float32 ``[n]``, how likely each of their nodes is to pick.
        fanout: so many neighbors; -1: all.
        num_neighbors: nodes of the neighbors' type.

    Returns:
        Degrees of the rows, int64 ``[n]``; neighbors, int64 ``[m]``, each once; and the log of the probability that
        no row picks it, float32 ``[m]``.
    """
    starts = topology.indptr[rows].to(torch.int64)
    degrees = topology.indptr[rows + 1].to(torch.int64) - starts
    firsts = degrees.cumsum(0) - degrees
    edges = torch.repeat_interleave(starts - firsts, degrees) + torch.arange(int(degrees.sum()))
    per_edge = torch.repeat_interleave(log_missing(chances, degrees, fanout), degrees)
    ends = topology.indices[edges].to(torch.int64)
    if num_neighbors <= 4 * ends.numel():
        dense = torch.zeros(num_neighbors).index_add_(0, ends, per_edge)
        neighbors = torch.nonzero(dense).flatten()
        return degrees, neighbors, dense[neighbors]
    neighbors, places = torch.unique(ends, return_inverse=True)
    return degrees, neighbors, torch.zeros(neighbors.numel()).index_add_(0, places, per_edge)
