"""torch-sparse: ``torch.ops.torch_sparse.neighbor_sample``, which PyG falls back to without pyg-lib."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.pyg import PygPeer


class Adapter(PygPeer):
    """One thread, int64."""

    @staticmethod
    def version() -> str:
        import torch_geometric
        import torch_sparse

        return f"torch-sparse {torch_sparse.__version__}, PyG {torch_geometric.__version__}, torch {torch.__version__}"

    def sample(self, seeds: torch.Tensor) -> Any:
        if self.setting.is_typed:
            node_types, edge_types, indptr, indices, fanout = self.typed_arguments()
            nodes, row, col, edge = torch.ops.torch_sparse.hetero_neighbor_sample(
                node_types,
                edge_types,
                indptr,
                indices,
                {self.setting.seed_type: seeds},
                fanout,
                len(self.setting.fanout),
                False,
                True,
            )
        else:
            nodes, row, col, edge = torch.ops.torch_sparse.neighbor_sample(
                self.indptr, self.indices, seeds, self.setting.fanout, False, True
            )
        return row, col, nodes, edge

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        import torch_geometric.typing as typing

        typing.WITH_PYG_LIB = False  # where it is installed as well, PyG would take it
        return super().loader(seeds)
