"""``NeighborSampler`` as ``graphlearn_torch.sampler`` has it."""

from __future__ import annotations

from typing import Any

import torch

from ...sampler import neighbor_sampler
from ...sampler.base import NodeSamplerInput
from ...utils.device import get_available_device
from .output_form import Output, in_order_of_ids, moved

__all__ = [
    "NeighborSampler",
]


def num_hops(num_neighbors: Any) -> int:
    """How many hops fan-outs are for, the longest of those by edge type; 0 without any."""
    by_edge_type = num_neighbors.values() if isinstance(num_neighbors, dict) else [num_neighbors or []]
    return max((len(fanouts) for fanouts in by_edge_type), default=0)


class NeighborSampler(neighbor_sampler.NeighborSampler):
    """``graphlearn_dist.sampler.NeighborSampler``: sampled on the CPU, given on the device.

    Nodes of an induced subgraph are in the order of their ids.

    Args:
        graph: a ``Graph``, or a dict by edge type.
        num_neighbors: fan-outs by hop, or a dict of such lists by edge type.
        device: where results go; the CPU unless given. ``device=`` of a call comes before it.
        *args: those that follow there, in that order.
        **kwargs: likewise.

    Attributes:
        graph, num_neighbors, device, with_edge, with_weight, strategy, edge_dir: as they were given.
        num_hops: hops of the fan-outs.
        edge_types, node_types: of a typed graph.
    """

    def __init__(
        self, graph: Any, num_neighbors: Any = None, device: torch.device | None = None, *args: Any, **kwargs: Any
    ) -> None:
        self.device = torch.device("cpu") if device is None else get_available_device(device)
        super().__init__(graph, num_neighbors, None, *args, **kwargs)
        self.num_neighbors, self.num_hops = num_neighbors, num_hops(num_neighbors)
        self.with_edge, self.with_weight = self.config.with_edge, self.config.with_weight
        self.strategy, self.edge_dir = self.config.strategy, self.config.edge_dir
        if isinstance(graph, dict):
            self.edge_types = list(graph)
            self.node_types = {kind for source, _, target in graph for kind in (source, target)}

    def sample_from_nodes(self, inputs: Any, **kwargs: Any) -> Output:
        """The multi-hop neighborhood of nodes; keywords ``epoch``, ``index`` (of the draws) and ``device``."""
        device = kwargs.pop("device", None)
        return self._placed(super().sample_from_nodes(inputs, **kwargs), device)

    def sample_from_edges(self, inputs: Any, **kwargs: Any) -> Output:
        """The multi-hop neighborhood of the ends of links, and of their negatives; keywords as of nodes."""
        device = kwargs.pop("device", None)
        return self._placed(super().sample_from_edges(inputs, **kwargs), device)

    def subgraph(self, inputs: Any, **kwargs: Any) -> Output:
        """All edges between nodes and their sampled neighborhood; ``metadata`` are the seeds' local ids."""
        device = kwargs.pop("device", None)
        found = super().subgraph(NodeSamplerInput.cast(inputs), **kwargs)
        return self._placed(in_order_of_ids(found), device)

    def sample_prob(self, inputs: Any, node_cnt: Any) -> Any:
        """How likely each node is in a batch of these seeds; by type, nodes may stand for their number as a tensor."""
        if isinstance(node_cnt, dict):
            node_cnt = {key: len(of) if isinstance(of, torch.Tensor) else of for key, of in node_cnt.items()}
        return super().sample_prob(inputs, node_cnt)

    def _placed(self, output: Output, device: Any) -> Output:
        place = self.device if device is None else get_available_device(device)
        return output if place.type == "cpu" else moved(output, place)
