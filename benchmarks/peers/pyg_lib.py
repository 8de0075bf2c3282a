"""pyg-lib: ``torch.ops.pyg.neighbor_sample``, what PyG uses where it is installed."""

from __future__ import annotations

from typing import Any

import torch

from peers.base import UNIFORM, WEIGHTED
from peers.pyg import PygPeer


class Adapter(PygPeer):
    """One thread within a batch; ids of either width."""

    ids = ("int32", "int64")
    draws = (UNIFORM, WEIGHTED)

    @staticmethod
    def version() -> str:
        import pyg_lib
        import torch_geometric

        return f"pyg-lib {pyg_lib.__version__}, PyG {torch_geometric.__version__}, torch {torch.__version__}"

    def build(self) -> None:
        super().build()
        if not self.setting.is_typed:
            self.indptr = self.indptr.to(self.indices.dtype)

    def sample(self, seeds: torch.Tensor) -> Any:
        if self.setting.is_typed:
            node_types, edge_types, indptr, indices, fanout = self.typed_arguments()
            out = torch.ops.pyg.hetero_neighbor_sample(
                node_types, edge_types, indptr, indices, {self.setting.seed_type: seeds}, fanout, csc=True
            )
        else:
            out = torch.ops.pyg.neighbor_sample(
                self.indptr,
                self.indices,
                seeds.to(self.indices.dtype),
                self.setting.fanout,
                edge_weight=self.weights,
                csc=True,
                return_edge_id=False,
            )
        return out[0], out[1], out[2]
