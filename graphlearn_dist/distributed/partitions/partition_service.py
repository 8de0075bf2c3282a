"""What a process that holds a partition answers to others: one hop of sampling, and feature rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ... import _C
from ...core import narrowed_counts, thread_pool, to_optional_tensor, to_tensor
from ...data.unified_tensor import UnifiedTensor
from ...errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from ...messages import (
    EdgeCheckReply,
    EdgeCheckRequest,
    EdgeListReply,
    EdgeListRequest,
    FeatureReply,
    FeatureRequest,
    InducedRequest,
    OneHopReply,
    OneHopRequest,
    OwnedReply,
    SpreadReply,
    SpreadRequest,
)
from ...partition import CachedRows, OwnedEdgesBook
from ...rpc.calls.remote import remote, sent_as_it_is
from ...rpc.wire.encoded import release
from ...sampler.plan import Draw
from ...sampler.probability import spread_chances
from ..dist_dataset import DistDataset
from .reply_region import ReplyRegion

SampledPart = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class HopNodes:
    """Nodes of this partition whose neighbors are drawn.

    Attributes:
        ids: int32 or int64 ``[n]``, global.
        rows: int64 ``[n]``, their rows here.
        trees: int64 ``[n]``, the tree each stands in; None where batches are not disjoint.
        times: int64 ``[n]``, the time of that tree; None where seeds have none.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    trees: torch.Tensor | None
    times: torch.Tensor | None


class RowCopies:
    """A partition's own rows and behind them the copies that it keeps of others'.

    Attributes:
        tensor: all of them.
    """

    def __init__(self, own: UnifiedTensor, copies: CachedRows) -> None:
        self._ids, self._places = copies.ids.sort()
        self._num_own = own.shape[0]
        self.tensor = UnifiedTensor(0, copies.feats.dtype)
        for part in own.parts:
            self.tensor.append_cpu_tensor(part)
        self.tensor.append_cpu_tensor(copies.feats)

    def rows_of(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``, the rows of copies; ``UnknownIdError`` for an id without one."""
        ids = ids.long()
        places = torch.searchsorted(self._ids, ids).clamp_(max=max(len(self._ids) - 1, 0))
        is_missing = torch.ones(len(ids), dtype=torch.bool) if not len(self._ids) else self._ids[places] != ids
        if bool(is_missing.any()):
            raise UnknownIdError(f"ids: id {int(ids[is_missing][0])} has no row here, and no copy of one")
        return self._places[places] + self._num_own


class PartitionService:
    """Serves one partition. Stateless between requests; any number of threads may call it at once.

    Args:
        dataset: the partition.
        num_threads: threads of one request; the answer does not depend on them.
        region: shared memory for feature rows that other processes ask for; None where nobody does.
    """

    def __init__(self, dataset: DistDataset, num_threads: int = 1, *, region: ReplyRegion | None = None) -> None:
        schema = dataset.schema
        graphs = dataset.graphs()
        self.partition_idx = dataset.partition_idx
        self._dataset = dataset
        self._edge_types = schema.edge_types
        self._graphs = [graphs[edge_type] for edge_type in schema.edge_types]
        self._row_books = [book.native for book in dataset.row_books()]
        self._stores = dataset.stores()
        self._store_books = dataset.store_books()
        copies = dataset.row_caches().items()
        self._copies = {name: RowCopies(self._stores[name].unified, kept) for name, kept in copies}
        self._pool = thread_pool(num_threads)
        self._region = region

    @remote
    def one_hop(self, request: OneHopRequest) -> OneHopReply:
        """Samples one hop for nodes of this partition.

        Raises:
            UnknownIdError: a node is not of this partition.
            InvalidArgumentError: an edge type is unknown or a fan-out is wrong.
        """
        parts = [self._sample(edge_type, i, request) for i, edge_type in enumerate(request.edge_types)]
        counts, neighbors, edge_ids = zip(*parts, strict=True) if parts else ((), (), ())
        return OneHopReply(tuple(counts), tuple(neighbors), tuple(edge_ids))

    def _sample(self, edge_type: int, i: int, request: OneHopRequest) -> SampledPart:
        ids = request.ids[i]
        rows = self._rows(edge_type, ids)
        nodes = HopNodes(ids, rows, request.trees[i], request.times[i])
        draw = Draw(*request.draws[i])
        sampled = self.sample_rows(edge_type, nodes, request.fanouts[i], draw, request.keys[i], request.with_edge_ids)
        return narrowed_counts(sampled[0]), *sampled[1:]

    def _checked(self, edge_type: int) -> int:
        if not 0 <= edge_type < len(self._graphs):
            raise InvalidArgumentError(f"edge_types: expected less than {len(self._graphs)}, got {edge_type}")
        return edge_type

    def _rows(self, edge_type: int, ids: torch.Tensor) -> torch.Tensor:
        return to_tensor(self._row_books[self._checked(edge_type)].local_rows(ids, self.partition_idx))

    @remote
    def spread(self, request: SpreadRequest) -> SpreadReply:
        """How likely neighbors of nodes of this partition are to be drawn; errors as of ``one_hop``."""
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
    def has_edges(self, request: EdgeCheckRequest) -> EdgeCheckReply:
        """Whether nodes of this partition have an edge to others; errors as of ``one_hop``."""
        rows = self._rows(request.edge_type, request.ids)
        return EdgeCheckReply(self.rows_have_edges(request.edge_type, rows, request.neighbors))

    def rows_have_edges(self, edge_type: int, rows: torch.Tensor, neighbors: torch.Tensor) -> torch.Tensor:
        """bool ``[n]``, for nodes whose rows are known."""
        return to_tensor(_C.has_edges(self._graphs[edge_type].graph_handler, rows, neighbors, self._pool)).to(
            torch.bool
        )

    @remote
    def induced(self, request: InducedRequest) -> OneHopReply:
        """All edges of nodes of this partition to the nodes of a batch; errors as of ``one_hop``."""
        parts = []
        for edge_type, ids, member_type in zip(request.edge_types, request.ids, request.member_types, strict=True):
            rows, members = self._rows(edge_type, ids), request.members[member_type]
            found = self.induced_rows(edge_type, ids, rows, members, request.with_edge_ids)
            parts.append((narrowed_counts(found[0]), *found[1:]))
        counts, neighbors, edge_ids = zip(*parts, strict=True) if parts else ((), (), ())
        return OneHopReply(tuple(counts), tuple(neighbors), tuple(edge_ids))

    def induced_rows(
        self, edge_type: int, ids: torch.Tensor, rows: torch.Tensor, members: torch.Tensor, with_edge_ids: bool
    ) -> SampledPart:
        """The same for nodes whose rows are known: (counts, positions in ``members``, edge ids or None)."""
        graph = self._graphs[edge_type].graph_handler
        counts, neighbors, edge_ids = _C.induced_edges(graph, ids, rows, members, with_edge_ids, self._pool)
        return to_tensor(counts), to_tensor(neighbors), to_optional_tensor(edge_ids)

    def sample_rows(
        self,
        edge_type: int,
        nodes: HopNodes,
        fanout: int,
        draw: Draw,
        key: int,
        with_edge_ids: bool,
    ) -> SampledPart:
        """One hop for nodes whose rows are known: (counts, neighbors, edge ids or None)."""
        counts, neighbors, edge_ids = _C.sample_neighbors(
            self.native_graph(edge_type, draw),
            nodes.ids,
            nodes.rows,
            fanout,
            draw.native,
            key,
            with_edge_ids,
            self._pool,
            nodes.trees,
            nodes.times,
        )
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

    def holds(self, store: str) -> bool:
        """Whether it has the rows of a store; not where its graph alone is at hand."""
        return store in self._stores

    def _checked_store(self, name: str) -> str:
        if name not in self._store_books:
            raise InvalidArgumentError(f"stores: expected one of {sorted(self._stores)}, got {name!r}")
        self.rows(name)
        return name

    def sorted_ids(self, store: str) -> _C.SortedIds:
        """The edges of this partition, whose features in a store lie with them, in the order of their rows."""
        book = self._store_books[store]
        assert isinstance(book, OwnedEdgesBook)
        return book.sorted_ids(self.partition_idx, self._pool)

    def rows_of(self, store: str, ids: torch.Tensor) -> torch.Tensor:
        """int64 ``[n]``, the rows of ids of this partition in a store; ``UnknownIdError`` for one of another."""
        book = self._store_books[store]
        if isinstance(book, OwnedEdgesBook):
            return book.rows_of(ids, self.partition_idx)
        return to_tensor(book.native.local_rows(ids, self.partition_idx))

    def _find(self, store: str, ids: torch.Tensor) -> tuple[UnifiedTensor, torch.Tensor]:
        """Rows, and those of ids among them: this partition's own, and of others where it keeps copies.

        Nobody asks for copies who shares this partition's book. One whose view of it (``node_feat_pb``) was given as
        who has which row may, where all rows that lie elsewhere than their nodes lie here.
        """
        if store in self._copies and not isinstance(self._store_books[store], OwnedEdgesBook):
            is_other = self._store_books[store][ids] != self.partition_idx
            if bool(is_other.any()):
                rows = torch.empty(len(ids), dtype=torch.int64)
                rows[is_other] = self._copies[store].rows_of(ids[is_other])
                rows[~is_other] = self.rows_of(store, ids[~is_other])
                return self._copies[store].tensor, rows
        return self._stores[store].unified, self.rows_of(store, ids)

    @remote
    def owned(self, request: FeatureRequest) -> OwnedReply:
        """Which edges are of this partition, for those who know no more of an edge than its id."""
        found = []
        for name, ids in zip(request.stores, request.ids, strict=True):
            book = self._store_books[self._checked_store(name)]
            is_owned = book.owned(ids, self.partition_idx) if isinstance(book, OwnedEdgesBook) else None
            found.append(book[ids] == self.partition_idx if is_owned is None else is_owned)
        return OwnedReply(tuple(found))

    @remote
    def lookup(self, request: FeatureRequest) -> FeatureReply:
        """Feature rows of ids of this partition, as they are stored; who asks casts them on the way.

        Returns:
            The rows; encoded already where the region has room for them.

        Raises:
            UnknownIdError: an id is not of this partition.
            InvalidArgumentError: there is no such store.
        """
        found = []
        for name, ids in zip(request.stores, request.ids, strict=True):
            found.append(self._find(self._checked_store(name), ids))
        # Address space only, for the shape: the rows are written once, where the asker will read them.
        unwritten = [torch.empty((local.numel(), *rows.shape[1:]), dtype=rows.dtype) for rows, local in found]
        placed = self._region.place(FeatureReply(tuple(unwritten)), unwritten) if self._region is not None else None
        if placed is None:
            return FeatureReply(tuple(rows.gather(local) for rows, local in found))
        encoded, views = placed
        try:
            for (rows, local), tensor in zip(found, unwritten, strict=True):
                if tensor.numel():
                    rows.gather_all(views[tensor.data_ptr()], local)
        except BaseException:
            release(encoded)
            raise
        return sent_as_it_is(encoded)  # type: ignore[no-any-return]
