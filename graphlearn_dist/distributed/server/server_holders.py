"""Which servers hold the other partitions of a data set, as one of them finds out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from ...config import share_partitions
from ...errors import (
    DeadlineExceededError,
    GraphLearnError,
    InvalidArgumentError,
    NotInitializedError,
    OverloadedError,
    PeerLostError,
)
from ...rpc.calls.callees import current_connection
from ...rpc.calls.remote import Remote, remote
from ...rpc.peers.identity import Member, PeerAddress
from .. import rpc
from ..dist_context import DistContext, get_context
from ..dist_dataset import DistDataset
from ..partitions.dataset_handle import DatasetHandle
from ..partitions.host_partitions import SharedPartition, describe_partition
from ..partitions.partition_peers import PartitionHolders
from ..workers.sampling_producer import SamplingProducer

_ANSWER_S = 10.0  # a member that does not say what it holds within this time has a successor, or will have
_RETRY_S = 0.5  # a member that is only slow to answer brings no news
_MENDS_ITSELF = (PeerLostError, DeadlineExceededError, OverloadedError)

_logger = logging.getLogger(__name__)


class ServerHolders:
    """The servers that hold the other partitions: asked once, and again when one was lost. On the endpoint's loop.

    Args:
        dataset: the partition that is held here.
        handle: of the partition, for other processes of this host.
        producers: those of this server, whose workers have to know.
    """

    def __init__(self, dataset: DistDataset, handle: DatasetHandle, producers: Iterable[SamplingProducer] = ()) -> None:
        self._dataset = dataset
        self._handle = handle
        self._producers = producers
        self._known = PartitionHolders({}) if dataset.num_partitions == 1 else None
        self._num_lost = 0
        self._has_news = False
        self._telling: asyncio.Task[None] | None = None

    @remote
    async def share_partition(self) -> tuple[int, int, SharedPartition | None]:
        """(number of partitions, which one is here, how processes of this host read it in place)."""
        on_this_host = current_connection().kind == "unix"
        shared = describe_partition(self._handle) if on_this_host and share_partitions() else None
        return self._dataset.num_partitions, self._dataset.partition_idx, shared

    def server_lost(self) -> None:
        """A server is gone: when it comes back it listens elsewhere."""
        if self._dataset.num_partitions > 1:
            self._num_lost += 1
            self._known = None

    def server_joined(self) -> None:
        """A server has come: if there had been another in its place, workers are told where it listens."""
        self._has_news = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_producers())

    def close(self) -> None:
        """Nobody has to be told any more."""
        if self._telling is not None:
            self._telling.cancel()

    async def find(self, timeout_s: float | None = None) -> PartitionHolders:
        """The first server that holds each other partition; the same object until one is lost.

        Args:
            timeout_s: how long to wait for servers that are not there; the default deadline of requests if None.

        Raises:
            InvalidArgumentError: they serve different data sets, or nobody serves a partition.
            DeadlineExceededError: one of them did not come.
            PeerLostError: one of them, or the registry, is gone.
        """
        while self._known is None:
            num_lost = self._num_lost
            found = await self._ask(timeout_s)
            if num_lost == self._num_lost:
                self._known = found
        return self._known

    async def _tell_producers(self) -> None:
        while self._has_news:
            self._has_news = False
            # No worker asks for longer than that; when the next server comes it begins anew.
            timeouts_s = [producer.reconnect_timeout_s for producer in self._producers]
            if not timeouts_s:
                return
            try:
                holders = await self._find_within(max(timeouts_s))
            except GraphLearnError as error:
                _logger.error("sampling workers cannot be told who serves the other partitions: %s", error)
                continue
            for producer in self._producers:
                await producer.move_holders(holders)

    async def _find_within(self, timeout_s: float) -> PartitionHolders:
        """As ``find``, again and again while that may help: a server that came may be gone already, or slow."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        while True:
            try:
                return await self.find(max(0.0, give_up - loop.time()))
            except _MENDS_ITSELF:
                if (left_s := give_up - loop.time()) <= 0:
                    raise
                await rpc.get_endpoint().members_changed(min(_RETRY_S, left_s))

    async def _ask(self, timeout_s: float | None) -> PartitionHolders:
        own = self._dataset.partition_idx
        found: dict[int, PeerAddress] = {own: rpc.get_endpoint().address}
        shared: dict[int, SharedPartition] = {}
        for member, partition, in_place in await self._ask_members(timeout_s):
            if partition in found:
                continue
            found[partition] = member.address
            if in_place is not None and share_partitions():
                shared[partition] = in_place
        missing = set(range(self._dataset.num_partitions)) - {*found}
        if missing:
            raise InvalidArgumentError(f"dataset: no server holds partitions {sorted(missing)}")
        del found[own]
        endpoint = rpc.get_endpoint()
        return PartitionHolders(found, shared, tls=endpoint.settings.tls, token=endpoint.token)

    async def _ask_members(self, timeout_s: float | None) -> list[tuple[Member, int, SharedPartition | None]]:
        """Every other server by rank, with its partition and how that is read in place."""
        endpoint, context = rpc.get_endpoint(), _server_context()
        limit_s = endpoint.settings.request_timeout_s if timeout_s is None else timeout_s
        members = await endpoint.members_joined("server", context.world_size, limit_s)
        others = [member for member in members if member.rank != context.rank]
        answers = [
            Remote[ServerHolders](endpoint, member.name, timeout_s=_ANSWER_S).ask(ServerHolders.share_partition)
            for member in others
        ]
        held = []
        for member, answer in zip(others, answers, strict=True):
            num_partitions, partition, in_place = await asyncio.wrap_future(answer)
            if num_partitions != self._dataset.num_partitions:
                raise InvalidArgumentError(
                    f"dataset: {member.name} serves a data set of {num_partitions} partitions, this server one of "
                    f"{self._dataset.num_partitions}"
                )
            held.append((member, partition, in_place))
        return held


def _server_context() -> DistContext:
    context = get_context()
    if context is None:
        raise NotInitializedError("there is no server in this process: call init_server first")
    return context
