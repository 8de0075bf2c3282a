"""GraphBolt of DGL: ``FusedCSCSamplingGraph.sample_neighbors`` and ``unique_and_compact_csc_formats`` per layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.base import LABOR, TEMPORAL, UNIFORM, WEIGHTED, Peer, Work
from peers.dgl_fused import RESAMPLES


class Adapter(Peer):
    """Stages are called as ``gb.NeighborSampler`` calls them, without the data pipes around; the loader has those."""

    kind = RESAMPLES
    ids = ("int32", "int64")
    draws = (UNIFORM, WEIGHTED, LABOR, TEMPORAL)
    hetero = True

    @staticmethod
    def version() -> str:
        import dgl
        import dgl.graphbolt  # its native library may be missing where dgl itself loads

        return f"dgl {dgl.__version__} graphbolt, torch {torch.__version__}"

    def build(self) -> None:
        import dgl.graphbolt as gb

        self.gb = gb
        self.dtype = getattr(torch, self.setting.ids)
        if self.setting.is_typed:
            self.graph = self._typed_graph()
        else:
            indptr, indices = self.arrays()
            attributes = {"weight": self.edge_weights()} if self.setting.weighted else None
            if self.setting.draw == TEMPORAL:
                attributes = {"time": self.edge_times()}
                self.kind = f"{RESAMPLES}, and merges no nodes"
            self.graph = gb.fused_csc_sampling_graph(indptr.to(self.dtype), indices, edge_attributes=attributes)
        self.rows = self.feature_rows() if self.setting.features else None

    def _typed_graph(self) -> Any:
        """One graph of all types, as GraphBolt wants it: node ids one type after the other, edges of a row by type."""
        edge_types = self.setting.edge_types
        counts = {edge_type[2]: self.setting.graph(edge_type).nodes for edge_type in edge_types}
        names = sorted(counts)
        offsets = torch.tensor([0, *(counts[name] for name in names)]).cumsum(0)
        first = dict(zip(names, offsets.tolist(), strict=False))
        parts = {edge_type: self.arrays(edge_type) for edge_type in edge_types}
        indptr = torch.zeros(int(offsets[-1]) + 1, dtype=torch.int64)
        for (_, _, target), (starts, _) in parts.items():
            indptr[first[target] + 1 : first[target] + starts.numel()] += starts.diff()
        indptr = indptr.cumsum(0)
        indices = torch.empty(int(indptr[-1]), dtype=self.dtype)
        types = torch.empty(int(indptr[-1]), dtype=torch.uint8)
        free = indptr[:-1].clone()  # of each row, the first place not yet taken
        for number, ((source, _, target), (starts, neighbors)) in enumerate(parts.items()):
            rows, degrees = slice(first[target], first[target] + starts.numel() - 1), starts.diff()
            places = torch.repeat_interleave(free[rows] - starts[:-1], degrees) + torch.arange(neighbors.numel())
            indices[places] = neighbors + first[source]
            types[places] = number
            free[rows] += degrees
        return self.gb.fused_csc_sampling_graph(
            indptr.to(self.dtype),
            indices,
            node_type_offset=offsets.to(self.dtype),
            type_per_edge=types,
            node_type_to_id={name: number for number, name in enumerate(names)},
            edge_type_to_id={":".join(edge_type): number for number, edge_type in enumerate(edge_types)},
        )

    def _sample_temporal(self, nodes: torch.Tensor, times: torch.Tensor) -> Any:
        layers: list[Any] = []
        for fanout in self.setting.fanout:
            sampled = self.graph.temporal_sample_neighbors(
                nodes, times, torch.LongTensor([fanout]), edge_timestamp_attr_name="time"
            )
            nodes, compacted, times = self.gb.compact_csc_format(sampled.sampled_csc, nodes, times)
            layers.insert(0, compacted)
        return nodes, layers

    def sample(self, seeds: torch.Tensor) -> Any:
        if self.setting.draw == TEMPORAL:
            return self._sample_temporal(seeds.to(self.dtype), self.seed_times(seeds))
        nodes: Any = seeds.to(self.dtype)
        if self.setting.is_typed:
            nodes = {name: nodes[:0] for name in self.graph.node_type_to_id} | {self.setting.seed_type: nodes}
        layers: list[Any] = []
        prob = "weight" if self.setting.weighted else None
        draw = self.graph.sample_layer_neighbors if self.setting.draw == LABOR else self.graph.sample_neighbors
        for fanout in self.setting.fanout:
            fanouts = torch.LongTensor([fanout] * len(self.setting.directories))
            sampled = draw(nodes, fanouts, False, prob)
            nodes, compacted = self.gb.unique_and_compact_csc_formats(sampled.sampled_csc, nodes)
            layers.insert(0, compacted)
        return nodes, layers

    def work(self, batch: Any) -> Work:
        nodes, layers = batch
        if not self.setting.is_typed:
            return Work(sum(layer.indices.numel() for layer in layers), nodes.numel())
        edges = sum(part.indices.numel() for layer in layers for part in layer.values())
        return Work(edges, sum(part.numel() for part in nodes.values()))

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
