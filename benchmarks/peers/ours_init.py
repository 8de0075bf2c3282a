"""This project with its graph built by ``Dataset.init_graph``, as a program would: for the memory figure."""

from __future__ import annotations

import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.sampler import NeighborSampler
from peers import ours


class Adapter(ours.Adapter):
    """As ``peers.ours``, of one type, ids int32 where they fit."""

    def build(self) -> None:
        graph = self.setting.graph()
        self.data = Dataset(edge_dir="in")
        self.data.init_node_features(self.feature_rows())
        indptr, indices = (torch.from_numpy(graph.load(name, mapped=True)) for name in ("indptr", "indices"))
        self.data.init_graph((indices, indptr), layout="CSC", num_nodes=graph.nodes)
        self.sampler = NeighborSampler.of_dataset(self.data, self.setting.fanout, num_threads=self.setting.threads)
        self.seed_type = None

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the arrays that the data set holds."""
        topology, features = self.data.graph.topo, self.data.node_features.feature_tensor
        arrays = (topology.indptr, topology.indices, topology.edge_ids)
        return {"graph": sum(array.nbytes for array in arrays), "features": features.nbytes}
