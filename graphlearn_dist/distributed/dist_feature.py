"""Feature rows over partitions, looked up by a program itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from .. import _C
from ..core import check_index_tensor, pooled_empty, thread_pool
from ..data.feature import Feature
from ..data.schema import by_type
from ..errors import InvalidArgumentError, NotInitializedError
from ..partition import PartitionBook
from ..partition.edge_book import OwnedEdgesBook
from ..partition.partition_book import check_partition_idx
from ..typing import EdgeType, NodeType
from ..utils.device import parse_device
from ..utils.shown import shown
from . import rpc
from .dist_graph import books_of
from .sampling.partitioned_sampler import split_by_owner

PartialFeature: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Rows of some of the ids of a lookup, and where those ids stand in it."""

_FIRST = torch.zeros(1, dtype=torch.int64)


class RpcFeatureLookupCallee(rpc.RpcCalleeBase):
    """Answers other workers from the rows of this partition.

    Args:
        dist_feature: whose rows.
    """

    def __init__(self, dist_feature: DistFeature) -> None:
        self._feature = dist_feature

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Rows of ids (and a type) of this partition; with ``some=True`` see ``DistFeature.local_get_some``."""
        some = kwargs.pop("some", False)
        return (self._feature.local_get_some if some else self._feature.local_get)(*args, **kwargs)


class DistFeature:
    """One partition of feature rows, and the book that says where the rest is.

    Args:
        num_partitions: partitions of the whole.
        partition_idx: this one.
        local_feature: its rows, by global id; a ``Feature``, or a dict by node or edge type.
        feature_pb: who holds which row; a book or the owner of each id as a tensor, or a dict by type. It may differ
            from the graph's.
        local_only: look up rows of this partition only; nothing is registered.
        rpc_router: whom to ask for a partition; found out among the workers of the group if None.
        device: must be None or the CPU.

    Unless ``local_only``, making one is collective: every worker of the group makes its own, in the same order.

    Raises:
        InvalidArgumentError: books or features do not fit.
        NotInitializedError: other partitions are needed, and the RPC is not initialized.
    """

    def __init__(
        self,
        num_partitions: int,
        partition_idx: int,
        local_feature: Feature | Mapping[Any, Feature],
        feature_pb: Any,
        local_only: bool = False,
        rpc_router: rpc.RpcDataPartitionRouter | None = None,
        device: torch.device | None = None,
    ) -> None:
        if device is not None and parse_device(device, must_be_there=False).type != "cpu":
            raise InvalidArgumentError(f"device: expected the CPU, got {device}")
        self.num_partitions = num_partitions
        self.partition_idx = check_partition_idx(partition_idx, num_partitions)
        self.local_feature = local_feature
        self.feature_pb = feature_pb
        self.local_only = local_only
        self._books = books_of("feature_pb", feature_pb, num_partitions, partition_idx)
        self._pool = thread_pool(1)
        self._router = rpc_router
        self._callee_id: int | None = None
        if not local_only and num_partitions > 1:
            if rpc_router is None:
                self._router = rpc.RpcDataPartitionRouter(rpc.rpc_sync_data_partitions(num_partitions, partition_idx))
            self._callee_id = rpc.rpc_register(RpcFeatureLookupCallee(self))

    def _book(self, input_type: NodeType | EdgeType | None) -> PartitionBook:
        books = self._books
        if input_type not in books:
            raise InvalidArgumentError(
                f"input_type: expected one of {sorted(map(str, books))}, got {shown(input_type)}, which has no features"
            )
        return books[input_type]

    def local_get(self, ids: torch.Tensor, input_type: NodeType | EdgeType | None = None) -> torch.Tensor:
        """Rows of ids of this partition, in their order.

        Args:
            ids: int ``[n]``, global; duplicates are allowed.
            input_type: whose ids.

        Raises:
            UnknownIdError: an id has no row here.
            InvalidArgumentError: the type has no features here.
        """
        features = by_type(self.local_feature)
        if input_type not in features:
            raise InvalidArgumentError(
                f"input_type: expected one of {sorted(map(str, features))}, got {input_type!r}, which has no rows here"
            )
        rows: torch.Tensor = features[input_type][ids]
        return rows

    def local_get_some(
        self, ids: torch.Tensor, input_type: EdgeType | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of ids of edges that lie wherever, the places of those that are this partition's, and their rows.

        Args:
            ids: int ``[n]``, global.
            input_type: whose ids.

        Raises:
            InvalidArgumentError: the type has no features here, or a book that says where each id lies.
        """
        book = self._book(input_type)
        if not isinstance(book, OwnedEdgesBook):
            raise InvalidArgumentError(f"input_type: expected edges that lie with their nodes, got {shown(input_type)}")
        places = book.owned(ids, self.partition_idx).nonzero().view(-1)
        return places, self.local_get(ids[places], input_type)

    def async_get(
        self, ids: torch.Tensor, input_type: NodeType | EdgeType | None = None
    ) -> torch.futures.Future[torch.Tensor]:
        """Rows of any ids, in their order: one request to each partition that holds some, and for edges of which no
        book says where they lie to each whose edge ids are on another machine.

        Args:
            ids: int ``[n]``, global; duplicates are allowed.
            input_type: whose ids.

        Returns:
            A future of ``[n, ...]``. It fails as a request does: ``PeerLostError``, ``DeadlineExceededError``.

        Raises:
            UnknownIdError: an id is outside the book; of an edge that nobody has, the future says so.
            InvalidArgumentError: the type has no features, or ``local_only`` and rows elsewhere are asked for.
        """
        ids = check_index_tensor(ids, "ids").to(torch.int64)
        book = self._book(input_type)
        if isinstance(book, OwnedEdgesBook):
            return self._get_of_edges(book, ids, input_type)
        split = split_by_owner(book.native, ids, self._pool)
        owners = [p for p in range(len(split.bounds) - 1) if split.count(p)]
        if not owners:  # no rows, but somebody has to say how wide they are
            owners = [self.partition_idx] if input_type in by_type(self.local_feature) else [int(book[_FIRST])]
        asked = [self._ask(p, split.part(split.ids, p), input_type) for p in owners if p != self.partition_idx]
        positions = [split.part(split.positions, p) for p in owners if p != self.partition_idx]
        own: list[torch.Tensor] = []
        if self.partition_idx in owners:
            own.append(self.local_get(split.part(split.ids, self.partition_idx), input_type))
            positions.append(split.part(split.positions, self.partition_idx))

        def stitch(rows: list[torch.Tensor]) -> torch.Tensor:
            return self._stitch(ids.numel(), positions, rows + own)

        return _when_all(asked, stitch)

    def _get_of_edges(
        self, book: OwnedEdgesBook, ids: torch.Tensor, input_type: Any
    ) -> torch.futures.Future[torch.Tensor]:
        """``async_get`` of edges that lie with their nodes: of those that are at hand nowhere, all others are asked."""
        owners, elsewhere = book.owners_at_hand(ids)
        elsewhere = [p for p in elsewhere if book.partition_size(p)]
        left = (owners < 0).nonzero().view(-1)
        if left.numel() and not elsewhere:
            raise book.unknown(ids, int(left[0]))
        here = self.partition_idx
        known = {p: (owners == p).nonzero().view(-1) for p in range(book.num_partitions)}
        known = {p: places for p, places in known.items() if places.numel()}
        if not ids.numel():  # no rows, but somebody has to say how wide they are
            holds = [p for p in range(book.num_partitions) if book.partition_size(p)]
            known = {here if input_type in by_type(self.local_feature) else holds[0]: ids}
        own = [(places, self.local_get(ids[places], input_type)) for p, places in known.items() if p == here]
        others = {p: places for p, places in known.items() if p != here}
        asked = [self._ask(p, ids[places], input_type) for p, places in others.items()]
        asked += [self._ask(p, ids[left], input_type, some=True) for p in elsewhere]

        def stitch(answers: list[Any]) -> torch.Tensor:
            found = [*own, *zip(others.values(), answers[: len(others)], strict=True)]
            found += [(left[places], rows) for places, rows in answers[len(others) :]]
            positions, rows = map(list, zip(*found, strict=True))
            is_there = torch.zeros(ids.numel(), dtype=torch.bool)
            is_there[torch.cat(positions)] = True
            if not bool(is_there.all()):
                raise book.unknown(ids, int(is_there.int().argmin()))
            return self._stitch(ids.numel(), positions, rows)

        return _when_all(asked, stitch)

    def _ask(self, partition: int, ids: torch.Tensor, input_type: Any, **options: bool) -> torch.futures.Future[Any]:
        if self.local_only:
            raise InvalidArgumentError(f"ids: {ids.tolist()[:1]} lies in partition {partition}, and this is local_only")
        if self._router is None or self._callee_id is None:
            raise NotInitializedError("the RPC was not initialized when this was made")
        return rpc.rpc_request_async(self._router.get_to_worker(partition), self._callee_id, (ids, input_type), options)

    def _stitch(self, count: int, positions: list[torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
        out = pooled_empty((count, *rows[0].shape[1:]), rows[0].dtype)
        for places, part in zip(positions, rows, strict=True):
            if places.numel():
                _C.scatter_rows(out, places, part.contiguous(), self._pool)
        return out

    def get_all2all(self, sampler_result: Any, ntype_list: list[NodeType]) -> dict[NodeType, torch.Tensor]:
        """Rows of the nodes of a sampler's output, by node type; all types are asked for at once."""
        nodes = by_type(sampler_result.node)
        futures = {ntype: self.async_get(nodes[ntype], ntype) for ntype in ntype_list if ntype in nodes}
        return {ntype: future.wait() for ntype, future in futures.items()}

    def __getitem__(self, input: torch.Tensor | tuple[NodeType | EdgeType, torch.Tensor]) -> torch.Tensor:
        """Rows of ids, or of (type, ids); waits for them."""
        input_type, ids = input if isinstance(input, tuple) else (None, input)
        return self.async_get(ids, input_type).wait()


def _when_all(
    futures: list[torch.futures.Future[Any]], finish: Callable[[list[Any]], torch.Tensor]
) -> torch.futures.Future[torch.Tensor]:
    """A future of ``finish`` of all results; it fails with the first error as it was, not with a text of it."""
    combined: torch.futures.Future[Any] = torch.futures.Future()
    lock = threading.Lock()
    left = len(futures)

    def complete() -> None:
        try:
            combined.set_result(finish([future.value() for future in futures]))
        except Exception as error:
            combined.set_exception(error)

    def on_done(_: torch.futures.Future[Any]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            complete()

    if not futures:
        complete()
    for future in futures:
        future.add_done_callback(on_done)
    return combined
