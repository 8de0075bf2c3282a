"""A partition asked natively, in this process: by queries as bytes, or by requests of ``python_answers``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.rpc.wire.codec import decode
from graphlearn_dist.rpc.wire.encoded import Encoded, padded
from graphlearn_dist.sampler.plan import Draw
from tests.support.python_answers import EdgeCheckRequest, FeatureRequest, InducedRequest, OneHopRequest

Tensors = list[torch.Tensor | None]


def joined(segments: Iterable[Any]) -> torch.Tensor:
    """Segments as a peer receives them: behind each other, each at a multiple of 64; uint8."""
    parts = [bytes(memoryview(segment)) for segment in segments]
    payload = b"".join(part + bytes(padded(len(part)) - len(part)) for part in parts)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)


def received(answer: Any) -> Any:
    """What arrives of an answer that was encoded already."""
    assert isinstance(answer, Encoded)
    payload = joined(answer.segments)
    assert payload.numel() == answer.nbytes
    return decode(answer.head, payload.numpy() if payload.numel() else None)


def ask(service: PartitionService, query: _C.EncodedQuery, count: int) -> Tensors:
    """What a service answers to a query, by its native part."""
    payload = joined(query.payload())
    assert payload.numel() == query.nbytes
    head, segments, nbytes = service.native.answer(query.head, payload if payload.numel() else None)
    answer = joined(segments)
    assert answer.numel() == nbytes
    return [to_optional_tensor(tensor) for tensor in _C.decode_answer(head, answer, count)]


def call(service: PartitionService, query: _C.EncodedQuery, count: int) -> Tensors:
    """The same, by the method that other processes call where a connection's engine is Python's."""
    asked = torch.frombuffer(bytearray(query.head), dtype=torch.uint8)
    head, payload = received(service.query(asked, joined(query.payload())))
    return [to_optional_tensor(tensor) for tensor in _C.decode_answer(head, payload, count)]


def hop_query(request: OneHopRequest) -> _C.EncodedQuery:
    draws = [Draw(*draw).native for draw in request.draws]
    fields = (request.edge_types, request.ids, request.fanouts, draws, request.keys, request.trees, request.times)
    return _C.hop_query(list(zip(*fields, strict=True)), request.with_edge_ids)


def induced_query(request: InducedRequest) -> _C.EncodedQuery:
    parts = zip(request.edge_types, request.member_types, request.ids, strict=True)
    return _C.induced_query(list(parts), request.members, request.with_edge_ids)


def has_edges_query(request: EdgeCheckRequest) -> _C.EncodedQuery:
    return _C.has_edges_query(request.edge_type, request.ids, request.neighbors)


def rows_query(request: FeatureRequest) -> _C.EncodedQuery:
    return _C.rows_query(request.stores, request.ids)


def owned_query(request: FeatureRequest) -> _C.EncodedQuery:
    return _C.owned_query(request.stores, request.ids)
