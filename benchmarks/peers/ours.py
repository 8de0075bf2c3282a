"""This project."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

import graphlearn_dist as gld
from graphlearn_dist.data import Dataset, Graph, Topology
from graphlearn_dist.data.dataset import by_type
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.sampler.neighbor_sampler import SubgraphSampler
from graphlearn_dist.sampler.plan import build_plan
from peers.base import Peer, Work


class Adapter(Peer):
    """The sampler below every loader, and ``NeighborLoader``; int32 storage is what ``init_graph`` chooses."""

    hetero = True
    ids = ("int32", "int64")

    @staticmethod
    def version() -> str:
        return f"graphlearn_dist {gld.__version__}, torch {torch.__version__}"

    def build(self) -> None:
        setting = self.setting
        if setting.is_typed:
            graphs: Any = {edge_type: self._graph(edge_type) for edge_type in setting.edge_types}
        else:
            graphs = self._graph(None)
        self.data = Dataset(graphs, edge_dir="in")
        if setting.features:
            self.data.init_node_features(self.feature_rows())
        plan = build_plan(self.data.schema, setting.fanout)
        ordered = [by_type(graphs)[edge_type] for edge_type in plan.schema.edge_types]
        self.sampler = SubgraphSampler(ordered, plan, setting.threads)
        self.seed_type = plan.schema.node_type_index(setting.seed_type if setting.is_typed else None)
        self.index = itertools.count()

    def _graph(self, edge_type: Any) -> Graph:
        indptr, indices = self.arrays(edge_type)
        nodes = self.setting.graph(edge_type).nodes
        return Graph(Topology.from_arrays(indptr, indices, None, layout="CSC", num_cols=nodes))

    def sample(self, seeds: torch.Tensor) -> Any:
        return self.sampler.sample(seeds, self.seed_type, epoch=0, index=next(self.index))

    def work(self, batch: Any) -> Work:
        return Work(batch.num_edges, sum(nodes.numel() for nodes in batch.nodes))

    def lookup(self, batch: Any) -> torch.Tensor:
        return self.data.node_features[batch.nodes[0]]

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        setting = self.setting
        return iter(
            NeighborLoader(self.data, setting.fanout, seeds, batch_size=setting.batch_size, num_threads=setting.threads)
        )

    def loader_work(self, batch: Any) -> Work:
        return Work(batch.edge_index.size(1), batch.num_nodes)
