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
            picked = frontier[seed_type][: degrees.numel()].clone()
            if fanout > 0:
                picked *= (fanout / degrees.clamp(min=1).to(torch.float64)).clamp(max=1)
            per_edge = torch.repeat_interleave(torch.log1p(-picked), degrees)
            missed[neighbor_type].index_add_(0, topology.indices.to(torch.int64), per_edge)
        frontier = [1 - torch.exp(log) for log in missed]
        absent = [before + log for before, log in zip(absent, missed, strict=True)]
    return [1 - torch.exp(log) for log in absent]
