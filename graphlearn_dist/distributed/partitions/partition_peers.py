"""The other partitions, as those who sample see them: processes that serve them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ...config import RpcSettings, TlsSettings
from ...errors import PeerLostError
from ...rpc import Endpoint
from ...rpc.calls.remote import Remote
from ...rpc.peers.identity import PeerAddress
from ...utils.message_types import register_message
from .host_partitions import SharedPartition
from .partition_service import PartitionService

_RETRY_S = 0.5


@register_message
@dataclass(frozen=True)
class PartitionHolders:
    """Who serves the other partitions of a data set.

    Attributes:
        addresses: by partition; empty where there are no others.
        shared: those of them that another process of this host holds, to be read in place.
        suffix: of the names of the functions to call; tells several data sets of one process apart.
        tls: certificates to reach them with, where there are any.
        token: the job's shared secret, if it has one.
    """

    addresses: dict[int, PeerAddress]
    shared: dict[int, SharedPartition] = field(default_factory=dict)
    suffix: str = ""
    tls: TlsSettings | None = None
    token: bytes | None = field(default=None, repr=False)


def _in_loop(answer: Future[Any]) -> asyncio.Future[Any]:
    """An answer in the running loop. Several are asked for at once, and awaited in turn.

    Where one fails, or the batch is called off, nobody awaits the others; what becomes of them is no error of its own.
    """
    future = asyncio.wrap_future(answer)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


class _Answer:
    """The answer to a request that was sent, and is sent again should the holder be lost; to be awaited once."""

    __slots__ = ("_ask_again", "_future")

    def __init__(self, future: asyncio.Future[Any], ask_again: Callable[[PeerLostError], Awaitable[Any]]) -> None:
        self._future = future
        self._ask_again = ask_again

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._future)
        except PeerLostError as error:
            lost = error
        return (yield from self._ask_again(lost).__await__())


class EndpointPeers:
    """Asks the holders of the other partitions over an endpoint that is open.

    Args:
        endpoint: whose connections are used.
        holders: who serves what.
        request_timeout_s: deadline of each request.
    """

    def __init__(self, endpoint: Endpoint, holders: PartitionHolders, request_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._addresses: Mapping[int, PeerAddress] = holders.addresses
        self._suffix = holders.suffix
        self._timeout_s = request_timeout_s

    def ask(self, partition: int, function: Callable[[PartitionService, Any], Any], request: Any) -> Awaitable[Any]:
        """Sends a request to the holder of a partition; the answer comes in the running loop."""
        return _in_loop(self._send(partition, function, request))

    def _send(self, partition: int, function: Callable[[PartitionService, Any], Any], request: Any) -> Future[Any]:
        # It listened when it said what it holds: where it cannot be reached now, it is gone.
        holder: Remote[PartitionService] = Remote(
            self._endpoint,
            self._addresses[partition],
            suffix=self._suffix,
            timeout_s=self._timeout_s,
            fail_fast=True,
        )
        return holder.ask(function, request)


class ServerPeers(EndpointPeers):
    """The same over an endpoint of its own, open for the time of a ``with`` block.

    A holder that is lost may come back, elsewhere, and is asked again: what it is asked has no effect but the answer.

    Args:
        name: of this process, for the peers' logs.
        rank: of this process.
        holders: who serves what.
        request_timeout_s: deadline of each request.
        reconnect_timeout_s: how long a holder that is gone may take to come back.
    """

    def __init__(
        self, name: str, rank: int, holders: PartitionHolders, request_timeout_s: float, reconnect_timeout_s: float
    ) -> None:
        settings = RpcSettings(request_timeout_s=request_timeout_s, num_threads=1, tls=holders.tls)
        token = holders.token
        endpoint = Endpoint("sampling_worker", rank, name=name, settings=settings, token=token, listen_host=None)
        super().__init__(endpoint, holders, request_timeout_s)
        self._reconnect_timeout_s = reconnect_timeout_s
        self._moved = asyncio.Event()

    def move(self, addresses: Mapping[int, PeerAddress]) -> None:
        """The holders are there from now on."""
        self._addresses = addresses
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def ask(self, partition: int, function: Callable[[PartitionService, Any], Any], request: Any) -> Awaitable[Any]:
        future = _in_loop(self._send(partition, function, request))
        return _Answer(future, lambda lost: self._ask_again(partition, function, request, lost))

    async def _ask_again(
        self, partition: int, function: Callable[[PartitionService, Any], Any], request: Any, lost: PeerLostError
    ) -> Any:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._reconnect_timeout_s
        while (remaining_s := give_up - loop.time()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):  # it may be back where it was
                await asyncio.wait_for(self._moved.wait(), min(_RETRY_S, remaining_s))
            try:
                return await asyncio.wrap_future(self._send(partition, function, request))
            except PeerLostError:
                continue
        raise PeerLostError(lost.peer, f"{lost.why}; it was not back within {self._reconnect_timeout_s:g} s")

    def __enter__(self) -> ServerPeers:
        self._endpoint.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close()
