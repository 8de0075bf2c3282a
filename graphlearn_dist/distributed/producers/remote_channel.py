"""The client's end of remote sampling: asks servers for batches ahead of time, gives them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ...channel.base import ChannelBase
from ...errors import ChannelError, GraphLearnError, InvalidArgumentError, PeerLostError, ProducerGoneError
from ...sampler.schedule import BatchIndices
from ...utils.restarts import RestartBudget
from .. import rpc
from ..dist_server import DistServer
from ..session.launcher_messages import result_or_alarm
from .batch_window import BatchRequest, BatchWindow
from .next_batches import NextBatches

_MAX_REOPENED = 20  # producers made anew within an hour: beyond that something is wrong that no restart mends


class RemoteReceivingChannel(ChannelBase):
    """Batches of one loader from its producers.

    After ``start`` they come in the order of their indices. Batch number ``j`` of this client comes from server
    ``j % len(server_ranks)``. At most ``prefetch_size`` requests per server are under way, so a trainer that does not
    read holds nothing up but its own producers; and with every request goes which batch is read next, so that a server
    sends no more than ``credit_bytes`` ahead.

    A program that begins epochs itself, with ``DistServer.start_new_epoch_sampling`` on each server and ``reset``, gets
    what each producer makes in turn, whatever inputs they have, and ``StopIteration`` at the end of the epoch.

    Args:
        server_rank: the servers, or the one.
        producer_id: the producer on each of them.
        prefetch_size: requests under way per server.
        timeout_s: how long to wait for a batch.
        credit_bytes: most bytes of batches from each server on their way or waiting to be read, or one batch if that
            has more; None leaves it open.
        reopen: finds the producer of a server again whose connection was lost, or makes another one, given its place
            among the servers and why; returns its id, or raises. Without it the loss is raised.
        alarm: fails when it is no use to wait any more.
    """

    def __init__(
        self,
        server_rank: int | Sequence[int],
        producer_id: int | Sequence[int],
        prefetch_size: int = 2,
        timeout_s: float = 180.0,
        *,
        credit_bytes: int | None = None,
        reopen: Callable[[int, GraphLearnError], int] | None = None,
        alarm: Future[None] | None = None,
    ) -> None:
        ranks = [server_rank] if isinstance(server_rank, int) else list(server_rank)
        producers = [producer_id] if isinstance(producer_id, int) else list(producer_id)
        if len(ranks) != len(producers) or not ranks or prefetch_size < 1:
            raise InvalidArgumentError(
                "server_rank, producer_id, prefetch_size: expected one producer for each server and at least 1, got "
                f"{server_rank}, {producer_id}, {prefetch_size}"
            )
        self._servers = list(zip(ranks, producers, strict=True))
        self._timeout_s = timeout_s
        self._credit_bytes = credit_bytes
        self._reopen = reopen
        self._alarm = alarm
        self._budget = RestartBudget(_MAX_REOPENED)
        self._epoch, self._indices = 0, BatchIndices(0, 0)
        self._told = [0] * len(ranks)  # which batch is read next of those that each server makes
        self._runs = [0] * len(ranks)  # what each producer knows the run by: one that begins again needs another number
        limit = prefetch_size * len(ranks)
        self._window = BatchWindow(self._ask, limit, timeout_s, self._place_of, recover=self._recover, alarm=alarm)
        self._next = NextBatches(self._servers, limit, timeout_s)
        self._names_batches = False

    def start(self, run: int, epoch: int, indices: BatchIndices) -> None:
        """Begins a run over these batch indices; whatever was under way is off."""
        self._window.check_open()
        self.reset()
        self._epoch, self._indices = epoch, indices
        self._runs = [max(run, last + 1) for last in self._runs]
        shares = [indices[place :: len(self._servers)] for place in range(len(self._servers))]
        started = [self._begin(place, share) for place, share in enumerate(shares)]
        for place, future in enumerate(started):
            try:
                result_or_alarm(future, self._alarm)
            except (PeerLostError, ProducerGoneError) as error:
                self._replace(place, shares[place], error)
        self._window.start(run, epoch, indices)
        self._names_batches = True

    def _begin(self, place: int, indices: BatchIndices) -> Future[Any]:
        """Tells a server which batches of the run it shall make."""
        rank, producer = self._servers[place]
        name = rpc.function_name(DistServer.start_new_epoch_sampling)
        what = producer, self._epoch, self._runs[place], indices, self._credit_bytes
        return rpc.get_endpoint().request(("server", rank), name, *what, timeout_s=self._timeout_s)

    def _recover(self, request: BatchRequest, error: GraphLearnError) -> None:
        """A server was lost: its producer, or the next one, begins with the first batch that is lacking."""
        lacking = self._indices[request.position :: len(self._servers)]
        self._replace(request.position % len(self._servers), lacking, error)

    def _replace(self, place: int, indices: BatchIndices, error: GraphLearnError) -> None:
        while True:
            if self._reopen is None or not self._budget.take():
                raise error
            self._servers[place] = self._servers[place][0], self._reopen(place, error)
            self._runs[place] += 1
            try:
                result_or_alarm(self._begin(place, indices), self._alarm)
                return
            except (PeerLostError, ProducerGoneError) as again:
                error = again

    def reset(self) -> None:
        """Calls off everything under way; what comes next is of the epoch that the producers have begun."""
        self._window.reset()
        self._next.reset()
        self._names_batches = False

    def close(self) -> None:
        """Calls off everything under way; ``recv`` fails from now on. Idempotent."""
        self._next.reset()
        self._window.close()

    def send(self, msg: Any, **kwargs: Any) -> None:
        """Only servers send here: a ``ChannelError``."""
        raise ChannelError(f"send: this channel only receives, from servers {[rank for rank, _ in self._servers]}")

    def recv(self, **kwargs: Any) -> Any:
        """The next batch, a ``SampledBatch``.

        After ``start`` that is the next of the batches that were named, and ``EndOfEpoch`` after the last; it raises as
        ``BatchWindow.recv`` does. Otherwise see ``NextBatches.recv``, which raises ``StopIteration`` after the last.
        """
        if self._names_batches:
            self._grant(self._window.num_read)  # the last one may have been an error
            item = self._window.recv()
            self._grant(self._window.num_read - 1)
            return item
        self._window.check_open()
        return self._next.recv()

    def is_ready(self) -> bool:
        """Whether ``recv`` would give a batch at once; only told after ``start``."""
        return self._names_batches and self._window.is_ready()

    def _ask(self, request: BatchRequest) -> Future[Any]:
        place = request.position % len(self._servers)
        self._told[place] = self._indices[self._next_of(place)]
        return self._tell(place, DistServer.fetch_batch, request.index, self._told[place])

    def _tell(self, place: int, function: Callable[..., Any], *arguments: int) -> Future[Any]:
        rank, producer = self._servers[place]
        return rpc.get_endpoint().request(
            ("server", rank),
            rpc.function_name(function),
            producer,
            self._runs[place],
            *arguments,
            timeout_s=self._timeout_s,
            fail_fast=True,
        )

    def _next_of(self, place: int) -> int:
        """Position of the batch that is read next of those that a server makes."""
        num_read = self._window.num_read
        return num_read + (place - num_read) % len(self._servers)

    def _grant(self, position: int) -> None:
        """Tells the server of a batch what was read of its batches, unless a request told it, or none is under way."""
        place = position % len(self._servers)
        position = self._next_of(place)
        if position < len(self._indices) and self._indices[position] != self._told[place]:
            self._told[place] = self._indices[position]
            self._tell(place, DistServer.grant_batches, self._told[place])  # where it fails, so do those under way

    def _server_of(self, request: BatchRequest) -> tuple[int, int]:
        return self._servers[request.position % len(self._servers)]

    def _place_of(self, request: BatchRequest) -> str:
        return f"server {self._server_of(request)[0]}"
