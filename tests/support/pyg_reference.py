"""A sampler for PyG's own loaders in plain torch, which shares no code with the package: what it is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, NumNeighbors, SamplerOutput

ONE = "node"


class ReferenceSampler(BaseSampler):
    """Takes what PyG's ``NeighborSampler`` takes, and samples in-neighbors uniformly without replacement."""

    edge_permutation = None

    def __init__(self, data: Any, num_neighbors: Any, **_: Any) -> None:
        self.is_typed = isinstance(data, HeteroData)
        if self.is_typed:
            self.counts = {key: data[key].num_nodes for key in data.node_types}
            edges = {key: data[key].edge_index for key in data.edge_types}
        else:
            self.counts, edges = {ONE: data.num_nodes}, {(ONE, "to", ONE): data.edge_index}
        fanouts = num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors)
        self.fanouts = fanouts.get_values(list(edges))
        self.edges = {}
        for key, (row, col) in edges.items():
            order = torch.argsort(col, stable=True)
            first = torch.zeros(self.counts[key[2]] + 1, dtype=torch.int64)
            first[1:] = torch.bincount(col, minlength=self.counts[key[2]]).cumsum(0)
            self.edges[key] = row[order], first, order

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        raise NotImplementedError("this reference samples around nodes only, which is all that its test trains on")

    def sample_from_nodes(self, index: Any) -> Any:
        seed_type = index.input_type or ONE
        nodes = {key: torch.empty(0, dtype=torch.int64) for key in self.counts} | {seed_type: index.node}
        begun = dict.fromkeys(self.counts, 0)  # where the frontier of each type begins
        found: dict[Any, list[torch.Tensor]] = {key: [] for key in self.edges}
        by_hop = {key: [0] for key in self.counts} | {seed_type: [len(index.node)]}
        edges_by_hop: dict[Any, list[int]] = {key: [] for key in self.edges}
        num_hops = len(next(iter(self.fanouts.values())))
        for hop in range(num_hops):
            before = {key: len(of_type) for key, of_type in nodes.items()}
            for key, fanouts in self.fanouts.items():
                target = torch.arange(begun[key[2]], before[key[2]])
                source, col, ids = self._one_hop(key, nodes[key[2]][target], target, fanouts[hop])
                nodes[key[0]], row = _with(nodes[key[0]], source)
                found[key].append(torch.stack([row, col, ids]))
                edges_by_hop[key].append(len(ids))
            for key, of_type in nodes.items():
                by_hop[key].append(len(of_type) - before[key])
            begun = before
        sampled = {key: torch.cat([torch.empty(3, 0, dtype=torch.int64), *parts], 1) for key, parts in found.items()}
        rows, cols, ids = ({key: part[i] for key, part in sampled.items()} for i in range(3))
        metadata = (index.input_id, index.time)
        if self.is_typed:
            return HeteroSamplerOutput(nodes, rows, cols, ids, None, by_hop, edges_by_hop, metadata=metadata)
        ((key, row),) = rows.items()
        counts = by_hop[ONE], edges_by_hop[key]
        return SamplerOutput(nodes[ONE], row, cols[key], ids[key], None, *counts, metadata=metadata)

    def _one_hop(
        self, key: Any, nodes: torch.Tensor, places: torch.Tensor, fanout: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Neighbors of some nodes, the places of these, and the edges: of all, those of the smallest random numbers."""
        rows, first, order = self.edges[key]
        degrees = first[nodes + 1] - first[nodes]
        owner = torch.repeat_interleave(torch.arange(len(nodes)), degrees)
        offset = torch.arange(len(owner)) - torch.repeat_interleave(degrees.cumsum(0) - degrees, degrees)
        at = first[nodes][owner] + offset
        if fanout >= 0:
            drawn = torch.argsort(torch.rand(len(at)))
            drawn = drawn[torch.argsort(owner[drawn], stable=True)]
            at, owner = at[drawn][offset < fanout], owner[drawn][offset < fanout]
        return rows[at], places[owner], order[at]


def _with(nodes: torch.Tensor, more: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A list of nodes with those of another that it lacks, and where each of the other is in it."""
    both = torch.cat([nodes, more])
    distinct, which = both.unique(return_inverse=True)
    first = torch.full((len(distinct),), len(both)).scatter_reduce(0, which, torch.arange(len(both)), "amin")
    added = first[first >= len(nodes)].sort().values
    place = torch.empty(len(both), dtype=torch.int64)
    place[: len(nodes)] = torch.arange(len(nodes))
    place[added] = torch.arange(len(nodes), len(nodes) + len(added))
    return torch.cat([nodes, both[added]]), place[first[which[len(nodes) :]]]
