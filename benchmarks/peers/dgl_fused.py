"""DGL's classic fused neighbor sampler (``g.sample_neighbors_fused``): it picks and relabels in one pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch

from peers.base import UNIFORM, WEIGHTED, Peer, Work

RESAMPLES = "samples the nodes found before again in each layer"


class Adapter(Peer):
    """``NeighborSampler(fused=True)`` falls back to the slower path with one thread; so its layers are called here."""

    kind = RESAMPLES
    ids = ("int32", "int64")
    draws = (UNIFORM, WEIGHTED)
    hetero = True

    @staticmethod
    def version() -> str:
        import dgl

        return f"dgl {dgl.__version__}, torch {torch.__version__}"

    def build(self) -> None:
        import dgl

        setting = self.setting
        dgl.utils.set_num_threads(setting.threads)
        self.dtype = getattr(torch, setting.ids)
        if setting.is_typed:
            csc = {edge_type: self._csc(edge_type) for edge_type in setting.edge_types}
            nodes = {edge_type[2]: setting.graph(edge_type).nodes for edge_type in setting.edge_types}
            self.graph = dgl.heterograph(csc, num_nodes_dict=nodes).formats("csc")
        else:
            self.graph = dgl.graph(self._csc(None), num_nodes=setting.graph().nodes).formats("csc")
        if setting.weighted:
            self.graph.edata["weight"] = self.edge_weights()
        self.rows = self.feature_rows() if setting.features else None
        # DGL makes the tables of local ids as int64, reads them as the graph's type and clears them as int64: with
        # int32 ids old entries stay, and batches shrink from one to the next. Tables of the right type are used as
        # they are.
        tables = [torch.full((self.graph.num_nodes(name),), -1, dtype=self.dtype) for name in self.graph.ntypes]
        self.mapping = {f"__mapping{os.getpid()}": tables}

    def _csc(self, edge_type: Any) -> Any:
        indptr, indices = self.arrays(edge_type)
        return "csc", (indptr.to(self.dtype), indices, torch.empty(0, dtype=self.dtype))

    def sample(self, seeds: torch.Tensor) -> Any:
        nodes, blocks = seeds.to(self.dtype), []
        if self.setting.is_typed:
            nodes = {self.setting.seed_type: nodes}
        prob = "weight" if self.setting.weighted else None
        for fanout in self.setting.fanout:
            block = self.graph.sample_neighbors_fused(nodes, fanout, prob=prob, mapping=self.mapping)
            nodes = block.srcdata["_ID"]
            blocks.insert(0, block)
        return nodes, blocks

    def work(self, batch: Any) -> Work:
        _, blocks = batch
        return Work(sum(block.num_edges() for block in blocks), blocks[0].num_src_nodes())

    def lookup(self, batch: Any) -> torch.Tensor:
        return torch.index_select(self.rows, 0, batch[0].long())

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        import dgl

        peer = self

        class FusedSampler(dgl.dataloading.Sampler):
            def sample(self, graph: Any, seed_nodes: torch.Tensor) -> Any:
                nodes, blocks = peer.sample(seed_nodes)
                return nodes, seed_nodes, blocks, peer.lookup((nodes, blocks))

        batches = dgl.dataloading.DataLoader(
            self.graph, seeds.to(self.dtype), FusedSampler(), batch_size=self.setting.batch_size, num_workers=0
        )
        return iter(batches)

    def loader_work(self, batch: Any) -> Work:
        return self.work((batch[0], batch[2]))
