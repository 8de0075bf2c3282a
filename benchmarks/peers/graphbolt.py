"""GraphBolt of DGL: ``FusedCSCSamplingGraph.sample_neighbors`` and ``unique_and_compact_csc_formats`` per layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.base import Peer, Work
from peers.dgl_fused import RESAMPLES


class Adapter(Peer):
    """Stages are called as ``gb.NeighborSampler`` calls them, without the data pipes around; the loader has those."""

    kind = RESAMPLES
    ids = ("int32", "int64")
    weighted = True

    @staticmethod
    def version() -> str:
        import dgl
        import dgl.graphbolt  # its native library may be missing where dgl itself loads

        return f"dgl {dgl.__version__} graphbolt, torch {torch.__version__}"

    def build(self) -> None:
        import dgl.graphbolt as gb

        self.gb = gb
        indptr, indices = self.arrays()
        self.dtype = indices.dtype
        attributes = {"weight": self.edge_weights()} if self.setting.weighted else None
        self.graph = gb.fused_csc_sampling_graph(indptr.to(self.dtype), indices, edge_attributes=attributes)
        self.rows = self.feature_rows() if self.setting.features else None

    def sample(self, seeds: torch.Tensor) -> Any:
        nodes, layers = seeds.to(self.dtype), []
        prob = "weight" if self.setting.weighted else None
        for fanout in self.setting.fanout:
            sampled = self.graph.sample_neighbors(nodes, torch.LongTensor([fanout]), False, prob)
            nodes, compacted = self.gb.unique_and_compact_csc_formats(sampled.sampled_csc, nodes)
            layers.insert(0, compacted)
        return nodes, layers

    def work(self, batch: Any) -> Work:
        nodes, layers = batch
        return Work(sum(layer.indices.numel() for layer in layers), nodes.numel())

    def lookup(self, batch: Any) -> torch.Tensor:
        return torch.index_select(self.rows, 0, batch[0].long())

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        gb, setting = self.gb, self.setting
        features = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(self.rows)})
        pipe = gb.ItemSampler(gb.ItemSet(seeds.to(self.dtype), names="seed_nodes"), batch_size=setting.batch_size)
        pipe = pipe.sample_neighbor(self.graph, setting.fanout[::-1])  # it takes the seeds' hop last
        pipe = pipe.fetch_feature(features, node_feature_keys=["feat"])
        return iter(gb.DataLoader(pipe, num_workers=0))

    def loader_work(self, batch: Any) -> Work:
        edges = sum(layer.sampled_csc.indices.numel() for layer in batch.sampled_subgraphs)
        return Work(edges, batch.input_nodes.numel())
