"""Partitions of the test graphs, put together in memory as programs for GraphLearn-for-PyTorch do it."""

from __future__ import annotations

from typing import Any

import torch

from graphlearn_dist.data import Feature, Graph, Topology
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.partition import GLTPartitionBook, PermutedPartitionBook, RangePartitionBook, cat_feature_cache
from graphlearn_dist.typing import FeaturePartitionData
from graphlearn_dist.utils import id2idx
from tests.support.graphs import Direction, TestGraph

WAYS = ("tensors", "ranges", "formulas", "copies", "elsewhere", "graph at hand")
"""How a partition is given: books as tensors, as ranges of ids and rows in their order, as formulas with features of
all ids, with copies of others' rows, with features in other partitions than nodes and edges, with the whole graph."""


def node_book(way: str, count: int, num_parts: int, own: int) -> Any:
    """Who owns which node."""
    match way:
        case "ranges":
            return RangePartitionBook.near_equal(count, num_parts, own)
        case "formulas":
            return PermutedPartitionBook(count, num_parts, key=3, partition_idx=own)
        case _:
            return torch.arange(count) * 7 // 3 % num_parts


def assemble(graph: TestGraph, num_parts: int, own: int, edge_dir: Direction, way: str) -> DistDataset:
    """One partition of a test graph with the features and labels that ``make_dataset`` gives it."""
    node_pb = {key: node_book(way, count, num_parts, own) for key, count in graph.num_nodes.items()}
    edge_pb, graphs, edge_features, edge_feat_pb = {}, {}, {}, {}
    for key, edges in graph.edges.items():
        row_type = (None if key is None else key[0]) if edge_dir == "out" else None if key is None else key[2]
        owners = torch.as_tensor(node_pb[row_type])[edges[0 if edge_dir == "out" else 1]]
        kept = torch.arange(edges.size(1)) if way == "graph at hand" else (owners == own).nonzero().view(-1)
        graphs[key] = Graph(
            Topology(
                edges[:, kept],
                graph.ids_of(key)[kept],
                graph.weights[key][kept] if key in graph.weights else None,
                layout="CSR" if edge_dir == "out" else "CSC",
                edge_times=graph.times[key][kept] if key in graph.times else None,
            ),
            "CPU",
        )
        edge_pb[key] = torch.zeros(graph.num_edge_ids(key), dtype=torch.uint8)
        edge_pb[key][graph.ids_of(key)] = owners.to(torch.uint8)
    node_features, node_feat_pb = {}, {}
    for key, rows in graph.node_features().items():
        node_features[key], node_feat_pb[key] = features(rows, node_pb[key], num_parts, own, way)
    for key, rows in graph.edge_features().items():
        edge_features[key], edge_feat_pb[key] = features(rows, edge_pb[key], num_parts, own, way)
    own_books = way in ("copies", "elsewhere")
    return DistDataset(
        num_parts,
        own,
        graph.unwrap(graphs),
        graph.unwrap(node_features),
        graph.unwrap(edge_features) if edge_features else None,
        graph.unwrap(graph.node_labels()),
        graph.unwrap(node_pb),
        graph.unwrap(edge_pb),
        graph.unwrap(node_feat_pb) if own_books else None,
        graph.unwrap(edge_feat_pb) if own_books and edge_feat_pb else None,
        edge_dir,
        graph_caching=way == "graph at hand",
    )


def features(rows: torch.Tensor, book: Any, num_parts: int, own: int, way: str) -> tuple[Feature, Any]:
    """What one partition has of all rows, and who has which, as it sees it."""
    owners = torch.as_tensor(book).long()
    if way == "elsewhere":
        owners = (owners + 1) % num_parts
    ids = (owners == own).nonzero().view(-1)
    match way:
        case "ranges":  # rows lie in the order of the book: they are not copied
            return Feature(rows[ids], id2idx(ids), dtype=None), book
        case "formulas":
            return Feature(rows, dtype=None), book
        case "copies":
            others = (owners != own).nonzero().view(-1)[own::3]
            data = FeaturePartitionData(rows[ids], ids, rows[others], others)
            _, kept, id2index, view = cat_feature_cache(own, data, GLTPartitionBook(owners))
            return Feature(kept, id2index, dtype=None), view
        case _:
            shuffled = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(own))]
            return Feature(rows[shuffled], id2idx(shuffled), dtype=None), owners
