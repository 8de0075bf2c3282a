"""Data sets and models for tests of inference, and what PyG makes of them in one forward pass."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphConv, HeteroConv, SAGEConv
from torch_geometric.nn.models.basic_gnn import BasicGNN

from graphlearn_dist.data import Dataset
from tests.support.graphs import TestGraph
from tests.support.oracle import PARTITIONERS

WIDTH = 12


def features(num_nodes: int, width: int = WIDTH, seed: int = 0) -> torch.Tensor:
    """float32 ``[num_nodes, width]``."""
    return torch.randn(num_nodes, width, generator=torch.Generator().manual_seed(seed))


def dataset_of(graph: TestGraph) -> Dataset:
    """The graph by in-neighbors, with random features of every node type."""
    dataset = Dataset(edge_dir="in")
    weights = graph.unwrap(graph.weights) if graph.weights else None
    dataset.init_graph(graph.unwrap(graph.edges), None, weights, num_nodes=graph.unwrap(graph.num_nodes))
    dataset.init_node_features(graph.unwrap({key: features(count) for key, count in graph.num_nodes.items()}))
    return dataset


def partitions_of(graph: TestGraph, root: Path, kind: str, num_parts: int) -> Path:
    """The partition directory of the same."""
    partitioner = PARTITIONERS[kind](
        str(root / "partitions"),
        num_parts,
        graph.unwrap(graph.num_nodes),
        graph.unwrap(graph.edges),
        node_feat=graph.unwrap({key: features(count) for key, count in graph.num_nodes.items()}),
        edge_assign_strategy="by_dst",
        edge_weights=graph.unwrap(graph.weights) if graph.weights else None,
    )
    return partitioner.partition()


def pyg_of(graph: TestGraph) -> Any:
    """The same as PyG's data."""
    if graph.is_homogeneous:
        data = Data(x=features(graph.num_nodes[None]), edge_index=graph.edges[None])
        if graph.weights:
            data.edge_weight = graph.weights[None]
        return data
    data = HeteroData()
    for key, count in graph.num_nodes.items():
        data[key].x = features(count)
    for key, edges in graph.edges.items():
        data[key].edge_index = edges
    return data


def basic(model: type[BasicGNN], seed: int = 0, **options: Any) -> BasicGNN:
    """Two layers with parameters of the seed."""
    torch.manual_seed(seed)
    return model(WIDTH, 16, 2, 5, **options).eval()


class TypedLayer(torch.nn.Module):
    """A ``HeteroConv`` of ``SAGEConv``, and what comes after it."""

    def __init__(self, edge_types: Any, width: int, is_last: bool) -> None:
        super().__init__()
        self.conv = HeteroConv({key: SAGEConv((-1, -1), width) for key in edge_types})
        self._is_last = is_last

    def forward(self, x: Any, edge_index: Any) -> Any:
        found = self.conv(x, edge_index)
        return found if self._is_last else {key: rows.relu() for key, rows in found.items()}


def typed_layers(data: HeteroData, seed: int = 0) -> list[TypedLayer]:
    """Two layers, initialized on the data."""
    torch.manual_seed(seed)
    layers = [TypedLayer(data.edge_types, 16, False), TypedLayer(data.edge_types, 5, True)]
    full_typed(layers, data)
    return layers


def full_typed(layers: list[TypedLayer], data: HeteroData) -> dict[str, torch.Tensor]:
    """The layers on the whole graph at once."""
    x = data.x_dict
    with torch.no_grad():
        for layer in layers:
            x = layer(x, data.edge_index_dict)
    return dict(x)


class WeightedLayer(torch.nn.Module):
    """A ``GraphConv`` that multiplies by weights of edges."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = GraphConv(width_in, width_out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self.conv(x, edge_index, weights)  # type: ignore[no-any-return]


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest of the expected numbers."""
    assert found.shape == expected.shape
    return float((found.float() - expected).abs().max() / expected.abs().max())


def num_done(out: Path) -> int:
    """Blocks of an inference into this directory that are marked as finished."""
    found = 0
    for marks in out.glob(".partial/**/*.done"):
        with contextlib.suppress(FileNotFoundError):
            found += sum(marks.read_bytes())
    return found
