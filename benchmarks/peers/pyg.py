"""PyG's samplers and ``NeighborLoader``, with pyg-lib or torch-sparse below.

PyG uses pyg-lib where it is installed. ``peers.torch_sparse`` is the same with pyg-lib left aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.base import Peer, Work


class PygPeer(Peer):
    """What both backends share: the graph, and PyG's ``NeighborLoader``.

    Sampling alone calls the backend's operator, as PyG's own ``NeighborSampler`` does. With more than one thread the
    loader has as many worker processes: neither operator uses threads within a batch.
    """

    hetero = True

    def build(self) -> None:
        setting = self.setting
        if setting.is_typed:
            self.csc = {edge_type: self.arrays(edge_type) for edge_type in setting.edge_types}
        else:
            self.indptr, self.indices = self.arrays()
        self.weights = self.edge_weights() if setting.weighted else None
        self.rows = self.feature_rows() if setting.features else None
        self._loader_data: Any = None

    def lookup(self, batch: Any) -> torch.Tensor:
        return torch.index_select(self.rows, 0, batch[2])

    def work(self, batch: Any) -> Work:
        row, _, nodes = batch[:3]
        if isinstance(row, dict):
            return Work(sum(part.numel() for part in row.values()), sum(part.numel() for part in nodes.values()))
        return Work(row.numel(), nodes.numel())

    def loader(self, seeds: torch.Tensor) -> Iterator[Any]:
        from torch_geometric.loader import NeighborLoader

        setting = self.setting
        loader = NeighborLoader(
            self._data(),
            setting.fanout,
            input_nodes=seeds,
            batch_size=setting.batch_size,
            num_workers=setting.threads if setting.threads > 1 else 0,
            is_sorted=True,
        )
        return iter(loader)

    def _data(self) -> Any:
        """``Data`` with ``adj_t``, which PyG samples from without a copy."""
        from torch_geometric.data import Data
        from torch_geometric.typing import SparseTensor

        if self._loader_data is None:
            nodes = self.indptr.numel() - 1
            adjacency = SparseTensor(
                rowptr=self.indptr, col=self.indices, sparse_sizes=(nodes, nodes), is_sorted=True, trust_data=True
            )
            self._loader_data = Data(x=self.rows, adj_t=adjacency)
        return self._loader_data

    def loader_work(self, batch: Any) -> Work:
        edges = batch.adj_t.nnz() if "adj_t" in batch else batch.edge_index.size(1)
        return Work(edges, batch.num_nodes)

    def typed_arguments(self) -> tuple[list[str], list[Any], dict[str, Any], dict[str, Any], dict[str, list[int]]]:
        """(node types, edge types, row pointers, columns, fan-outs) as the typed operators want them."""
        edge_types = self.setting.edge_types
        names = {edge_type: "__".join(edge_type) for edge_type in edge_types}
        node_types = sorted({end for source, _, target in edge_types for end in (source, target)})
        return (
            node_types,
            edge_types,
            {names[edge_type]: self.csc[edge_type][0] for edge_type in edge_types},
            {names[edge_type]: self.csc[edge_type][1] for edge_type in edge_types},
            {names[edge_type]: self.setting.fanout for edge_type in edge_types},
        )
