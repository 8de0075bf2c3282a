"""What a process that holds a partition answers to others; natively, but for what no batch waits for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ... import _C
from ...config import RpcSettings
from ...core import thread_pool, to_optional_tensor, to_tensor
from ...data.disk_tier import DiskTier
from ...data.feature import Feature
from ...data.graph import Graph
from ...data.unified_tensor import UnifiedTensor
from ...errors import InvalidArgumentError, PartitionFormatError
from ...messages import EdgeListReply, EdgeListRequest, SpreadReply, SpreadRequest
from ...partition import CachedRows, OwnedEdgesBook, PartitionBook
from ...rpc.calls.remote import remote
from ...rpc.wire.codec import encode
from ...sampler.plan import Draw
from ...sampler.probability import spread_chances
from ...telemetry import Metric
from ..dist_dataset import DistDataset

SERVICE = "PartitionService"  # what queries name; with a suffix where a process holds partitions of several data sets

SampledPart = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
_NativeRows = _C.RowStore | tuple[Callable[[Any], torch.Tensor], int]


def _native_rows(rows: UnifiedTensor) -> _NativeRows:
    """As ``_C.PartitionServer`` takes rows: a GPU gathers those in its memory, which Python asks for."""
    if not rows.is_on_gpu:
        return rows._native
    return lambda wanted: rows.gather(to_tensor(wanted)).cpu(), math.prod(rows.shape[1:]) * rows.dtype.itemsize


def _native_copies(own: UnifiedTensor, copies: CachedRows) -> tuple[_NativeRows, torch.Tensor, torch.Tensor]:
    """As ``_C.PartitionServer`` takes copies: a partition's own rows and behind them those of others, and the ids of
    these in ascending order with the row of each."""
    rows = UnifiedTensor(0, copies.feats.dtype)
    for part in own.parts:
        rows.append_cpu_tensor(part)
    rows.append_cpu_tensor(copies.feats)
    ids, places = copies.ids.long().sort()
    return _native_rows(rows), ids, places + own.shape[0]


# What is asked for later keeps no service alive: the service keeps who asks.


def _weighted(graph: Graph) -> Callable[[], _C.Csr] | None:
    return None if graph.topo.edge_weights is None else lambda: graph.weighted_handler


def _sorted_ids(book: PartitionBook, partition_idx: int, pool: _C.ThreadPool) -> Callable[[], _C.SortedIds] | None:
    return functools.partial(book.sorted_ids, partition_idx, pool) if isinstance(book, OwnedEdgesBook) else None


class PartitionService:
    """Serves one partition. Stateless between requests; any number of threads may call it at once.

    Args:
        dataset: the partition.
        num_threads: threads of one request; the answer does not depend on them.
    """

    def __init__(self, dataset: DistDataset, num_threads: int = 1) -> None:
        schema = dataset.schema
        graphs = dataset.graphs()
        self.partition_idx = dataset.partition_idx
        self._dataset = dataset
        self._edge_types = schema.edge_types
        self._graphs = [graphs[edge_type] for edge_type in schema.edge_types]
        self._row_books = [book.native for book in dataset.row_books()]
        self._stores = dataset.stores()
        self._store_books = dataset.store_books()
        self._copies = dataset.row_caches()
        self._pool = thread_pool(num_threads)

    @functools.cached_property
    def native(self) -> _C.PartitionServer:
        """What answers native queries for this partition; it never takes the GIL, but once for counted weights and for
        ids of edges, and for rows on a GPU. Made when it is first asked for, and not told of arrays that move later."""
        edges = [
            (graph.graph_handler, book, _weighted(graph))
            for graph, book in zip(self._graphs, self._row_books, strict=True)
        ]
        stores = [
            (
                name,
                None if isinstance(book, OwnedEdgesBook) else book.native,
                _sorted_ids(book, self.partition_idx, self._pool),
                _native_rows(self.rows(name)) if self.holds(name) else None,
                self._copies_of(name),
            )
            for name, book in self._store_books.items()
        ]
        return _C.PartitionServer(self.partition_idx, edges, stores, self._pool, RpcSettings.max_payload_bytes)

    def metrics(self) -> Iterator[Metric]:
        """What of it belongs to ``MetricSource.metrics``."""
        answered = {kind: of for kind, of in self.native.answered.items() if any(of)}
        for kind, (count, ns, nbytes) in answered.items():
            labels = {"kind": kind}
            yield Metric("queries_answered_total", "Queries of other processes for this partition.", count, labels)
            help_text = "Time of making their answers; rows are gathered later, when they are sent."
            yield Metric("query_seconds_total", help_text, ns / 1e9, labels)
            yield Metric("query_answer_bytes_total", "Bytes of their answers.", nbytes, labels)

    @remote
    def query(self, head: torch.Tensor, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Answers a native query (``csrc/exchange/queries.h``) that came as a call, as where connections have TLS.

        Args:
            head: uint8 ``[n]``.
            payload: uint8 ``[m]``, a multiple of 64.

        Returns:
            Head and payload of the answer, likewise; encoded already, so that nothing is copied.
        """
        answer_head, segments, nbytes = self.native.answer(head, payload)
        head = torch.frombuffer(bytearray(answer_head), dtype=torch.uint8)
        # Address space only, for the shape: the payload is sent from where its segments lie.
        encoded = encode((head, torch.empty(nbytes, dtype=torch.uint8)))
        if nbytes:
            views = [memoryview(segment) for segment in segments]
            encoded = encoded._replace(segments=(*encoded.segments[:-1], *views))
        return encoded  # type: ignore[return-value]  # sent as it is

    def _checked(self, edge_type: int) -> int:
        if not 0 <= edge_type < len(self._graphs):
            raise InvalidArgumentError(f"edge_types: expected less than {len(self._graphs)}, got {edge_type}")
        return edge_type

    def _rows(self, edge_type: int, ids: torch.Tensor) -> torch.Tensor:
        return to_tensor(self._row_books[self._checked(edge_type)].local_rows(ids, self.partition_idx))

    @remote
    def spread(self, request: SpreadRequest) -> SpreadReply:
        """How likely neighbors of nodes of this partition are to be drawn.

        Raises:
            UnknownIdError: a node is not of this partition.
            InvalidArgumentError: an edge type is unknown.
        """
        rows = self._rows(request.edge_type, request.ids)
        if request.chances.shape != request.ids.shape or request.chances.dtype != torch.float32:
            raise InvalidArgumentError(
                f"chances: expected float32 {list(request.ids.shape)}, got {request.chances.dtype} "
                f"{list(request.chances.shape)}"
            )
        schema = self._dataset.schema
        topology = self._graphs[request.edge_type].topo
        num_neighbors = schema.num_nodes[schema.edge_specs[request.edge_type][1]]
        return SpreadReply(*spread_chances(topology, rows, request.chances, request.fanout, num_neighbors))

    @remote
    def edges(self, request: EdgeListRequest) -> EdgeListReply:
        """All edges of a type that lie here."""
        return EdgeListReply(*self._dataset.edges(self._edge_types[self._checked(request.edge_type)]))

    @remote
    def edge_weights(self, edge_type: int, first: int, last: int) -> torch.Tensor:
        """float32, weights of the edges of this partition's rows from ``first`` to ``last``, in the order of the edges.

        Raises:
            InvalidArgumentError: there are no such rows, or the edge type is unknown or has no weights.
        """
        topology = self._graphs[self._checked(edge_type)].topo
        if topology.edge_weights is None:
            raise InvalidArgumentError(f"edge_type: expected one with weights, got {self._edge_types[edge_type]!r}")
        if not 0 <= first <= last < len(topology.indptr):
            raise InvalidArgumentError(f"rows: expected some of {len(topology.indptr) - 1}, got {first} to {last}")
        return topology.edge_weights[int(topology.indptr[first]) : int(topology.indptr[last])].float()

    def rows_have_edges(self, edge_type: int, rows: torch.Tensor, neighbors: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: whether nodes, whose rows are known, have an edge to others."""
        return to_tensor(_C.has_edges(self._graphs[edge_type].graph_handler, rows, neighbors, self._pool)).to(
            torch.bool
        )

    def induced_rows(
        self, edge_type: int, ids: torch.Tensor, rows: torch.Tensor, members: torch.Tensor, with_edge_ids: bool
    ) -> SampledPart:
        """All edges of nodes, whose rows are known, to the nodes of a batch.

        Returns:
            Counts, positions in ``members``, and edge ids or None.
        """
        graph = self._graphs[edge_type].graph_handler
        counts, neighbors, edge_ids = _C.induced_edges(graph, ids, rows, members, with_edge_ids, self._pool)
        return to_tensor(counts), to_tensor(neighbors), to_optional_tensor(edge_ids)

    def native_graph(self, edge_type: int, draw: Draw) -> _C.Csr:
        """The graph of an edge type, with what a draw reads of it."""
        return draw.handler(self._graphs[edge_type])

    def rows(self, store: str) -> UnifiedTensor:
        """The rows of a store.

        Raises:
            PartitionFormatError: other partitions have such rows, and this one has none.
        """
        if store not in self._stores:
            raise PartitionFormatError(
                f"{store}: partition {self.partition_idx} has no such rows, others have: a directory is incomplete"
            )
        return self._stores[store].unified

    def limited_features(self) -> list[Feature]:
        """Its features, whose memory may be limited."""
        return self._dataset.features_in_use()

    def disk_tier(self, store: str) -> DiskTier | None:
        """What reads the rows of a store from their file; None where they lie in memory, or there are none."""
        return self._stores[store].disk_tier if store in self._stores else None

    def holds(self, store: str) -> bool:
        """Whether it has the rows of a store; not where its graph alone is at hand."""
        return store in self._stores

    def sorted_ids(self, store: str) -> _C.SortedIds:
        """The edges of this partition, whose features in a store lie with them, in the order of their rows."""
        book = self._store_books[store]
        assert isinstance(book, OwnedEdgesBook)
        return book.sorted_ids(self.partition_idx, self._pool)

    def _copies_of(self, store: str) -> tuple[_NativeRows, torch.Tensor, torch.Tensor] | None:
        """The rows of others of which there are copies here.

        Nobody asks for copies who shares this partition's book. One whose view of it (``node_feat_pb``) was given as
        who has which row may, where all rows that lie elsewhere than their nodes lie here.
        """
        if store not in self._copies or isinstance(self._store_books[store], OwnedEdgesBook):
            return None
        return _native_copies(self.rows(store), self._copies[store])

    def owned(self, store: str, ids: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``: which ids are of this partition."""
        book = self._store_books[store]
        if isinstance(book, OwnedEdgesBook):
            return book.owned(ids, self.partition_idx)
        return book[ids] == self.partition_idx
