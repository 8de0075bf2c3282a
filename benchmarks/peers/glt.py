"""GraphLearn-for-PyTorch, seeded: ``NeighborSampler`` on the CPU, and its ``NeighborLoader``."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from peers.base import UNIFORM, WEIGHTED, Peer, Work


def _import_glt() -> Any:
    """GLT. It imports torch-sparse to turn one layout into another, which nothing here needs: an empty module will do.

    Compiling torch-sparse for GLT's torch takes long.
    """
    sys.modules.setdefault("torch_sparse", types.ModuleType("torch_sparse"))
    import graphlearn_torch

    return graphlearn_torch


class Adapter(Peer):
    """Its CPU kernels take threads from torch's pool."""

    replace = True
    kind = "samples with replacement where a node has more neighbors than the fan-out"
    draws = (UNIFORM, WEIGHTED)
    seed: int | None = 1

    @staticmethod
    def version() -> str:
        glt = _import_glt()
        import torch_geometric  # GLT imports it only when a loader is made

        version = getattr(glt, "__version__", "0.2.4")
        return f"graphlearn-torch {version}, PyG {torch_geometric.__version__}, torch {torch.__version__}"

    def build(self) -> None:
        self.glt = glt = _import_glt()
        indptr, indices = self.arrays()
        weights = self.edge_weights() if self.setting.weighted else None
        self.data = glt.data.Dataset(edge_dir="in")
        self.data.init_graph(
            edge_index=(indices, indptr), edge_weights=weights, layout="CSC", graph_mode="CPU", directed=True
        )
        if self.setting.features:
            self.data.init_node_features(self.feature_rows(), with_gpu=False)
        self.sampler = glt.sampler.NeighborSampler(
            self.data.graph,
            self.setting.fanout,
            device=torch.device("cpu"),
            with_weight=self.setting.weighted,
            edge_dir="in",
            seed=self.seed,
        )

    def sample(self, seeds: torch.Tensor) -> Any:
        return self.sampler.sample_from_nodes(self.glt.sampler.NodeSamplerInput(seeds))

    def work(self, batch: Any) -> Work:
        return Work(batch.row.numel(), batch.node.numel())

    def lookup(self, batch: Any) -> torch.Tensor:
        return self.data.node_features[batch.node]

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        setting = self.setting
        loader = self.glt.loader.NeighborLoader(
            self.data,
            setting.fanout,
            seeds,
            batch_size=setting.batch_size,
            with_weight=setting.weighted,
            device=torch.device("cpu"),
            seed=self.seed,
        )
        if not hasattr(loader, "input_t_label"):  # 0.2.4 sets it only where there are labels, and reads it always
            loader.input_t_label = None
        return iter(loader)

    def loader_work(self, batch: Any) -> Work:
        return Work(batch.edge_index.size(1), batch.node.numel())
