"""One graph of the nodes of all types, undirected and without repeated edges, in a file that is made out of core.

The file has the binary format of ParHIP, which KaMinPar reads: a header of three numbers, where each node's neighbors
begin, the neighbors, and the weights of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import torch

from ...errors import InvalidArgumentError
from ..layout import NodeKey
from .edge_stream import CHUNK_EDGES, EdgeStream, row_chunks

_BUCKET_PAIRS = 1 << 22  # sorted in memory, in 17 bytes each; more of them where there would be too many files
_MOST_BUCKETS = 256
# Flags of the header: no weights of edges; ids of nodes, weights of nodes and of edges in 32 bits.
_VERSION = 1 | 8 | 16 | 32
_HEADER_BYTES = 24
_MOST_NODES = 1 << 31

_Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class UnionGraph:
    """A graph in a file.

    Attributes:
        path: the file.
        offsets: int64 ``[num_nodes + 1]``.
        weights: int64 ``[num_nodes]``, what is to be balanced.
    """

    path: Path
    offsets: torch.Tensor
    weights: torch.Tensor

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return len(self.weights)

    @property
    def neighbors(self) -> torch.Tensor:
        """int32 ``[num_edges]``, mapped: ascending for each node, every edge from both ends."""
        count = int(self.offsets[-1])
        if count == 0:
            return torch.empty(0, dtype=torch.int32)
        begin = _HEADER_BYTES + 8 * len(self.offsets)
        return torch.from_numpy(np.memmap(self.path, np.int32, mode="c", offset=begin, shape=(count,)))


class _Writer:
    """Writes a file of the format: neighbors as they come, the rest at the end."""

    def __init__(self, path: Path, num_nodes: int) -> None:
        self._path, self._begin = path, _HEADER_BYTES + 8 * (num_nodes + 1)
        self._file = open(path, "wb")  # noqa: SIM115 (finish() closes it)
        self._file.seek(self._begin)

    def append(self, neighbors: _Array) -> None:
        self._file.write(np.ascontiguousarray(neighbors, np.int32).data)  # tofile does not say that a disk is full

    def finish(self, degrees: torch.Tensor, weights: torch.Tensor) -> UnionGraph:
        offsets = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
        with self._file:
            self._file.write(weights.to(torch.int32).numpy().data)
            self._file.seek(0)
            self._file.write(np.array([_VERSION, len(weights), int(offsets[-1])], np.uint64).data)
            self._file.write((offsets * 4 + self._begin).numpy().data)
        return UnionGraph(self._path, offsets, weights)


def first_ids(counts: Mapping[NodeKey, int]) -> dict[NodeKey, int]:
    """Where the ids of each type begin in the union."""
    starts, begin = {}, 0
    for key, count in counts.items():
        starts[key] = begin
        begin += count
    if begin >= _MOST_NODES:
        raise InvalidArgumentError(f"nodes: expected fewer than {_MOST_NODES:,} to be ordered, got {begin:,}")
    return starts


def union_graph(stream: EdgeStream, weights: torch.Tensor, scratch: Path) -> UnionGraph:
    """Makes the graph of a stream. Memory: a few bytes a node and a hundred megabytes; disk: 20 bytes an edge.

    Args:
        stream: is read twice.
        weights: int64 ``[num_nodes]`` of the union's nodes, types one after the other.
        scratch: a folder for the file and what is needed on the way.
    """
    starts = first_ids({key: node.count for key, node in stream.nodes.items()})
    degrees = torch.zeros(len(weights), dtype=torch.int64)
    for rows, cols in _pairs(stream, starts):
        for ends in (rows, cols):
            degrees.index_add_(0, ends, torch.ones_like(ends))
    total = degrees.cumsum(0)
    num_buckets = min(int(total[-1]) // _BUCKET_PAIRS + 1, _MOST_BUCKETS) if len(total) else 1
    limits = torch.arange(1, num_buckets) * (int(total[-1]) // num_buckets if len(total) else 0)
    bounds = torch.searchsorted(total, limits)  # the first node of each bucket but the first
    files = [open(scratch / f"pairs{b}", "wb") for b in range(num_buckets)]  # noqa: SIM115
    try:
        for rows, cols in _pairs(stream, starts):
            _scatter(torch.cat([rows << 32 | cols, cols << 32 | rows]), bounds, files)
    finally:
        for file in files:
            file.close()
    writer, kept = _Writer(scratch / "union", len(weights)), torch.zeros_like(degrees)
    for b in range(num_buckets):
        path = scratch / f"pairs{b}"
        nodes, counts, neighbors = _sorted_once(path)
        writer.append(neighbors)
        kept[torch.from_numpy(nodes).long()] += torch.from_numpy(counts)
    return writer.finish(kept, weights)


def _sorted_once(path: Path) -> tuple[_Array, _Array, _Array]:
    """The pairs of a file, which is gone then: nodes, how many neighbors each has, and these, ascending, once each."""
    pairs = np.fromfile(path, "<i8")
    path.unlink()
    pairs.sort()
    is_first = np.ones(len(pairs), bool)
    np.not_equal(pairs[1:], pairs[:-1], out=is_first[1:])
    pairs = pairs[is_first]
    halves = pairs.view("<i4")
    nodes, neighbors = halves[1::2].copy(), halves[::2].copy()
    starts = np.flatnonzero(np.diff(nodes, prepend=-1))
    return nodes[starts], np.diff(starts, append=len(nodes)), neighbors


def _pairs(stream: EdgeStream, starts: Mapping[NodeKey, int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for chunk in stream.edges():
        rows, cols = chunk.rows + starts[chunk.row_type], chunk.cols + starts[chunk.col_type]
        others = rows != cols
        yield rows[others], cols[others]


def _scatter(pairs: torch.Tensor, bounds: torch.Tensor, files: Sequence[IO[bytes]]) -> None:
    if len(files) == 1:
        files[0].write(pairs.numpy().data)
        return
    buckets = torch.searchsorted(bounds, pairs >> 32, right=True).to(torch.int16).numpy()
    by_bucket = pairs.numpy()[np.argsort(buckets, kind="stable")]
    ends = np.cumsum(np.bincount(buckets, minlength=len(files)))
    for file, part in zip(files, np.split(by_bucket, ends[:-1]), strict=True):
        file.write(np.ascontiguousarray(part).data)


def induced_graphs(graph: UnionGraph, groups: torch.Tensor, num_groups: int, scratch: Path) -> list[UnionGraph]:
    """The graph within each group, its nodes numbered by rank; one pass over the edges.

    Args:
        graph: of all groups.
        groups: int32 ``[num_nodes]``.
        num_groups: how many there are.
        scratch: a folder for the files.
    """
    members = [(groups == g).nonzero().view(-1) for g in range(num_groups)]
    rank = torch.empty(graph.num_nodes, dtype=torch.int32)
    for ids in members:
        rank[ids] = torch.arange(len(ids), dtype=torch.int32)
    writers = [_Writer(scratch / f"group{g}", len(ids)) for g, ids in enumerate(members)]
    degrees = torch.zeros(graph.num_nodes, dtype=torch.int64)
    for rows, cols in edges_of(graph):
        inside = groups[rows] == groups[cols]
        rows, cols = rows[inside], cols[inside]
        degrees.index_add_(0, rows, torch.ones_like(rows))
        found, new_ids = groups[rows].numpy(), rank[cols].numpy()
        for g, writer in enumerate(writers):
            writer.append(new_ids[found == g])
    return [writer.finish(degrees[ids], graph.weights[ids]) for writer, ids in zip(writers, members, strict=True)]


def edges_of(graph: UnionGraph) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The edges from both ends, in chunks: nodes and neighbors, int64 ``[n]``."""
    neighbors = graph.neighbors
    for first, last in row_chunks(graph.offsets, CHUNK_EDGES):
        begin, end = int(graph.offsets[first]), int(graph.offsets[last])
        rows = torch.arange(first, last).repeat_interleave(graph.offsets[first : last + 1].diff())
        yield rows, neighbors[begin:end].long()
