"""What an order is made of: nodes of all types, and their edges as a stream that can be read again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from ...utils.progress import Report
from ..layout import EdgeKey, NodeKey, PartitionLayout
from ..partitioner import PartitionerBase

CHUNK_EDGES = 1 << 19
_EDGE_BYTES = 12  # of an edge's neighbor and id, and of its share of offsets
_NODE_BYTES = 8


@dataclass(frozen=True)
class NodeStream:
    """Nodes of one type: how many, the bytes of a row of all their arrays, and the training seeds, int ``[n]``."""

    count: int
    row_bytes: int
    seeds: torch.Tensor


@dataclass(frozen=True)
class EdgeChunk:
    """Some edges: the nodes in whose rows they are stored, and their neighbors, int64 ``[n]``; bytes of each edge."""

    row_type: NodeKey
    rows: torch.Tensor
    col_type: NodeKey
    cols: torch.Tensor
    edge_bytes: int


@dataclass(frozen=True)
class EdgeStream:
    """A graph of any number of types; ``edges()`` begins a new pass over its edges, in chunks."""

    nodes: Mapping[NodeKey, NodeStream]
    edges: Callable[[], Iterator[EdgeChunk]]


def counted(stream: EdgeStream, report: Report) -> EdgeStream:
    """The same graph; ``report`` is told of the edges that are read, in every pass."""

    def edges() -> Iterator[EdgeChunk]:
        for chunk in stream.edges():
            yield chunk
            report(len(chunk.rows))

    return EdgeStream(stream.nodes, edges)


def stream_of_partitioner(source: PartitionerBase) -> EdgeStream:
    """The graph that a partitioner was given."""
    nodes = {}
    for key, node in source.nodes.items():
        arrays = [node.feat, node.label, *source.node_attrs.get(key, {}).values()]
        row_bytes = _NODE_BYTES + sum(_row_bytes(a) for a in arrays if a is not None)
        nodes[key] = NodeStream(node.count, row_bytes, node.split.get("train", torch.empty(0, dtype=torch.int64)))

    def edges() -> Iterator[EdgeChunk]:
        for key, edge in source.edges.items():
            ends, types = [edge.row, edge.col], _end_types(key, source.edge_dir)
            rows, cols = ends if source.edge_dir == "out" else ends[::-1]
            extra = [edge.feat, edge.weights, edge.times, *source.edge_attrs.get(key, {}).values()]
            edge_bytes = _EDGE_BYTES + sum(_row_bytes(a) for a in extra if a is not None)
            for begin in range(0, len(rows), CHUNK_EDGES):
                some = slice(begin, begin + CHUNK_EDGES)
                yield EdgeChunk(types[0], rows[some].long(), types[1], cols[some].long(), edge_bytes)

    return EdgeStream(nodes, edges)


def stream_of_directory(layout: PartitionLayout) -> EdgeStream:
    """The graph in a partition directory, all of whose partitions are on this machine; files are mapped."""
    nodes = {}
    for key, info in layout.nodes.items():
        row_bytes = _NODE_BYTES + _file_bytes(layout, "node", key) // max(info.count, 1)
        nodes[key] = NodeStream(info.count, row_bytes, info.split.get("train", torch.empty(0, dtype=torch.int64)))

    def edges() -> Iterator[EdgeChunk]:
        for p in range(layout.num_parts):
            graphs = layout.open_graphs(p, verify=False)
            for key, graph in graphs.items():
                row_type, col_type = _end_types(key, layout.edge_dir)
                edge_bytes = _EDGE_BYTES + _file_bytes(layout, "edge", key) // max(layout.edges[key].count, 1)
                ids = layout.nodes[row_type].book.local_ids(p)
                for first, last in row_chunks(graph.indptr, CHUNK_EDGES):
                    some = slice(first, last)
                    rows = ids[some].repeat_interleave(graph.degrees(some))
                    yield EdgeChunk(row_type, rows, col_type, graph.neighbors(some), edge_bytes)

    return EdgeStream(nodes, edges)


def row_chunks(indptr: torch.Tensor, num_edges: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about so many edges each, and at least one row."""
    first, num_rows = 0, len(indptr) - 1
    while first < num_rows:
        limit = int(indptr[first]) + num_edges
        last = int(torch.searchsorted(indptr, limit, right=True)) - 1
        last = min(max(last, first + 1), first + num_edges, num_rows)
        yield first, last
        first = last


def _end_types(key: EdgeKey, edge_dir: str) -> tuple[NodeKey, NodeKey]:
    """The types of the nodes in whose rows edges of a type are stored, and of their neighbors."""
    if key is None:
        return None, None
    return (key[0], key[2]) if edge_dir == "out" else (key[2], key[0])


def _row_bytes(rows: torch.Tensor) -> int:
    return rows.element_size() * math.prod(rows.shape[1:])


def _file_bytes(layout: PartitionLayout, kind: str, key: NodeKey | EdgeKey) -> int:
    """Bytes of the rows of a type beside the graph, over all partitions."""
    files = layout.row_files(kind, key)  # a shape may be damaged, the bytes of a file have been looked at
    return sum(min(math.prod(file.shape) * getattr(torch, file.dtype).itemsize, file.num_bytes) for file in files)
