"""What a partition answers to queries, in Python: the readable oracle of native answers.

Each request is asked of a partition that owns the ids; tensors of ids are int32 or int64 ``[n]``, global. Answers are
the tensors that a query's answer has, in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.partition import OwnedEdgesBook
from graphlearn_dist.sampler.plan import Draw

Tensors = list[torch.Tensor | None]


@dataclass(frozen=True)
class OneHopRequest:
    """One hop from some nodes, along each of some edge types.

    Attributes:
        edge_types: the edge types.
        ids: for each of them.
        fanouts: for each of them (-1 takes all, 0 none).
        keys: for each of them the key of the draws.
        draws: for each of them method, replace and time rule (see ``sampler.plan.Draw``).
        with_edge_ids: return edge ids.
        trees: for each of them int64 ``[n]``, or None where batches are not disjoint.
        times: for each of them int64 ``[n]``, or None where seeds have no times.
    """

    edge_types: tuple[int, ...]
    ids: tuple[torch.Tensor, ...]
    fanouts: tuple[int, ...]
    keys: tuple[int, ...]
    draws: tuple[tuple[str, bool, str], ...]
    with_edge_ids: bool
    trees: tuple[torch.Tensor | None, ...]
    times: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class EdgeCheckRequest:
    """Whether nodes have an edge of a type to others (``neighbors``, as many)."""

    edge_type: int
    ids: torch.Tensor
    neighbors: torch.Tensor


@dataclass(frozen=True)
class InducedRequest:
    """The edges of nodes, along each of some edge types, to the nodes of a batch: ``members[member_types[i]]``."""

    edge_types: tuple[int, ...]
    ids: tuple[torch.Tensor, ...]
    member_types: tuple[int, ...]
    members: tuple[torch.Tensor, ...]
    with_edge_ids: bool


@dataclass(frozen=True)
class FeatureRequest:
    """The rows of ids in each of some stores; or which of the ids are the partition's."""

    stores: tuple[str, ...]
    ids: tuple[torch.Tensor, ...]


def one_hop(service: PartitionService, request: OneHopRequest) -> Tensors:
    """By edge type: counts, neighbors, edge ids or None."""
    answer: Tensors = []
    for i, edge_type in enumerate(request.edge_types):
        rows = service._rows(edge_type, request.ids[i])
        draw = Draw(*request.draws[i])
        sampled = _C.sample_neighbors(
            service.native_graph(edge_type, draw),
            request.ids[i],
            rows,
            request.fanouts[i],
            draw.native,
            request.keys[i],
            request.with_edge_ids,
            service._pool,
            request.trees[i],
            request.times[i],
        )
        answer += map(to_optional_tensor, sampled)
    return answer


def has_edges(service: PartitionService, request: EdgeCheckRequest) -> Tensors:
    """One vector, bool."""
    rows = service._rows(request.edge_type, request.ids)
    return [service.rows_have_edges(request.edge_type, rows, request.neighbors)]


def induced(service: PartitionService, request: InducedRequest) -> Tensors:
    """As ``one_hop``; neighbors are positions in the members."""
    answer: Tensors = []
    for edge_type, ids, member_type in zip(request.edge_types, request.ids, request.member_types, strict=True):
        rows, members = service._rows(edge_type, ids), request.members[member_type]
        answer += service.induced_rows(edge_type, ids, rows, members, request.with_edge_ids)
    return answer


def lookup(service: PartitionService, request: FeatureRequest) -> Tensors:
    """By store the rows, as they are stored; of others, too, where the partition has copies."""
    return [_rows_in(service, name, ids) for name, ids in zip(request.stores, request.ids, strict=True)]


def owned(service: PartitionService, request: FeatureRequest) -> Tensors:
    """By store, bool."""
    return [service.owned(name, ids) for name, ids in zip(request.stores, request.ids, strict=True)]


def _rows_in(service: PartitionService, store: str, ids: torch.Tensor) -> torch.Tensor:
    if store not in service._store_books:
        raise InvalidArgumentError(f"stores: expected one of {sorted(service._stores)}, got {store!r}")
    own, book, here = service.rows(store), service._store_books[store], service.partition_idx
    if isinstance(book, OwnedEdgesBook):
        return own.gather(book.rows_of(ids, here))
    is_own = book[ids] == here if store in service._copies else torch.ones(len(ids), dtype=torch.bool)
    if bool(is_own.all()):
        return own.gather(to_tensor(book.native.local_rows(ids, here)))
    copies = service._copies[store]
    places = {int(id): place for place, id in enumerate(copies.ids)}
    for id in ids[~is_own].tolist():
        if id not in places:
            raise UnknownIdError(f"ids: id {id} has no row here, and no copy of one")
    rows: Any = torch.empty(len(ids), *own.shape[1:], dtype=own.dtype)
    rows[is_own] = own.gather(to_tensor(book.native.local_rows(ids[is_own], here)))
    rows[~is_own] = copies.feats[[places[id] for id in ids[~is_own].tolist()]].to(rows.dtype)
    return rows  # type: ignore[no-any-return]
