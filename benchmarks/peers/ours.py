"""This project."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import graphlearn_dist as gld
from graphlearn_dist.data import Dataset, Graph, Topology
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput
from peers.base import LABOR, TEMPORAL, UNIFORM, WEIGHTED, Peer, Work


class Adapter(Peer):
    """``NeighborSampler`` and ``NeighborLoader``; int32 storage is what ``init_graph`` chooses by itself.

    With one thread the loader makes batches in the thread that asks for them; with more it has as many threads making
    whole batches ahead.
    """

    hetero = True
    draws = (UNIFORM, WEIGHTED, LABOR, TEMPORAL)
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
        self.sampler = NeighborSampler.of_dataset(
            self.data, setting.fanout, **self._draw(), num_threads=setting.threads
        )
        self.seed_type = setting.seed_type if setting.is_typed else None

    def _draw(self) -> dict[str, Any]:
        strategy = "labor" if self.setting.draw == LABOR else "random"
        return {"with_weight": self.setting.weighted, "strategy": strategy}

    def _graph(self, edge_type: Any) -> Graph:
        indptr, indices = self.arrays(edge_type)
        weights = self.edge_weights() if self.setting.weighted else None
        times = self.edge_times() if self.setting.draw == TEMPORAL else None
        topology = Topology.from_arrays(
            indptr,
            indices,
            None,
            layout="CSC",
            num_cols=self.setting.graph(edge_type).nodes,
            edge_weights=weights,
            edge_times=times,
        )
        return Graph(topology)

    def sample(self, seeds: torch.Tensor) -> Any:
        times = self.seed_times(seeds) if self.setting.draw == TEMPORAL else None
        return self.sampler.sample_from_nodes(NodeSamplerInput(seeds, self.seed_type, times))

    def work(self, batch: Any) -> Work:
        rows, nodes = batch.row, batch.node
        if self.setting.is_typed:
            return Work(sum(map(torch.numel, rows.values())), sum(map(torch.numel, nodes.values())))
        return Work(rows.numel(), nodes.numel())

    def lookup(self, batch: Any) -> torch.Tensor:
        return self.data.node_features[batch.node]

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        setting = self.setting
        ahead = setting.threads if setting.threads > 1 else 0
        loader = NeighborLoader(
            self.data, setting.fanout, seeds, batch_size=setting.batch_size, **self._draw(), prefetch=ahead
        )
        return iter(loader)

    def loader_work(self, batch: Any) -> Work:
        return Work(batch.edge_index.size(1), batch.num_nodes)
