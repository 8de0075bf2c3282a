"""Asks all partitions the same thing from a thread that can wait; one that cannot be reached for long is left out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from ..._C import EncodedQuery, SingleRound, decode_answer
from ...core import to_optional_tensor, to_tensor
from ...errors import DeadlineExceededError, GraphLearnError, OverloadedError, PeerLostError
from ...rpc import Endpoint
from ...rpc.calls.remote import Remote
from ..partitions.partition_peers import PartitionHolders
from ..partitions.partition_service import PartitionService

PATIENCE_S = 120.0  # how long a partition may be out of reach before it is left out
_RETRY_S = 0.5
_MENDS_ITSELF = (PeerLostError, DeadlineExceededError, OverloadedError)
_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

_logger = logging.getLogger(__name__)


class AskerClosed(Exception):
    """The process that asks ends: there is nothing more to ask for."""


class PartitionAsker:
    """Asks the partitions of a data set, this process's own too. For one thread.

    Args:
        service: the partition of this process.
        endpoint: whose connections are used.
        find_holders: gives who serves the others now; may wait, and raise what ``ServerHolders.find`` raises.
        closed: set when the process ends, or whom it asks for.
        patience_s: how long a partition may be out of reach.

    Attributes:
        holders: who serves the others.
        lost: those that are left out.
    """

    def __init__(
        self,
        service: PartitionService,
        endpoint: Endpoint,
        find_holders: Callable[[], PartitionHolders],
        closed: threading.Event,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._service = service
        self._endpoint = endpoint
        self._find_holders = find_holders
        self._closed = closed
        self._patience_s = patience_s
        self.lost: set[int] = set()
        self.holders = self._wait_for_holders()

    def _wait_for_holders(self) -> PartitionHolders:
        give_up = time.monotonic() + self._patience_s
        while True:
            self._check_open()
            try:
                return self._find_holders()
            except _MENDS_ITSELF:
                if time.monotonic() > give_up:
                    raise
                self._closed.wait(_RETRY_S)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise AskerClosed

    def ask(
        self, function: Callable[[PartitionService, _Request], _Reply], requests: Mapping[int, _Request]
    ) -> dict[int, _Reply]:
        """The answers by partition, without those that are left out; all are asked at once."""
        return self._ask(function, {partition: (request,) for partition, request in requests.items()})

    def query(self, queries: Mapping[int, EncodedQuery], num_tensors: int) -> dict[int, list[torch.Tensor | None]]:
        """The same of queries to others, answered natively there by so many tensors each."""
        lengths = [SingleRound.MAY_BE_ABSENT] * num_tensors
        asked = SingleRound([(partition, query, lengths) for partition, query in queries.items()]).next()
        encoded = {partition: (to_tensor(head), to_tensor(payload)) for partition, head, payload in asked}
        answers = self._ask(PartitionService.query, encoded)
        return {
            partition: [to_optional_tensor(tensor) for tensor in decode_answer(head, payload, num_tensors)]
            for partition, (head, payload) in answers.items()
        }

    def _ask(self, function: Callable[..., Any], requests: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        self._check_open()
        own = self._service.partition_idx
        wanted = {partition: request for partition, request in requests.items() if partition not in self.lost}
        sent = {p: self._send(p, function, request) for p, request in wanted.items() if p != own}
        replies = {own: function(self._service, *wanted[own])} if own in wanted else {}
        for partition, future in sent.items():
            reply = self._wait_for(partition, future, function, wanted[partition])
            if reply is not None:
                replies[partition] = reply
        return replies

    def _send(self, partition: int, function: Callable[..., Any], request: tuple[Any, ...]) -> Future[Any]:
        address, suffix = self.holders.addresses[partition], self.holders.suffix
        return Remote[PartitionService](self._endpoint, address, suffix=suffix, fail_fast=True).ask(function, *request)

    def _wait_for(
        self, partition: int, future: Future[Any], function: Callable[..., Any], request: tuple[Any, ...]
    ) -> Any:
        give_up = time.monotonic() + self._patience_s
        while True:
            try:
                return future.result()
            except _MENDS_ITSELF as error:
                self._check_open()
                if time.monotonic() > give_up:
                    self.lost.add(partition)
                    _logger.warning("row_cache: partition %d is left out: %s", partition, error)
                    return None
            self._closed.wait(_RETRY_S)
            self._check_open()
            try:
                self.holders = self._find_holders()
            except GraphLearnError:  # it is not back yet
                continue
            future = self._send(partition, function, request)
