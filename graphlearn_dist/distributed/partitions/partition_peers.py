"""The other partitions, as those who sample see them: processes that serve them."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Generic, Protocol

import torch

from ..._C import Exchange, ExchangeEnding, ExchangeRunner, RpcEngine, RpcStream, unpack
from ...config import RpcSettings, TlsSettings
from ...errors import DeadlineExceededError, GraphLearnError, PeerLostError, ProtocolError, SystemLimitError
from ...rpc import Endpoint
from ...rpc.calls.remote import Remote
from ...rpc.peers.identity import Peer, PeerAddress
from ...rpc.wire.failures import read_failure
from ...telemetry.trace import current_batches, tracer
from ...utils.coroutines import within
from ...utils.message_types import register_message
from .host_partitions import SharedPartition
from .partition_service import SERVICE, PartitionService
from .rounds import AnyExchange, Rounds

_RETRY_S = 0.5
_GIVEN_UP_S = 5.0  # so long nobody waits again for a holder that was waited for in vain


class Peers(Protocol):
    """The other partitions of a data set.

    Attributes:
        times: nanoseconds of all exchanges so far: splitting by owner, work on the own partition while others are
            asked, waiting for others beyond that, and putting answers together.
    """

    @property
    def times(self) -> tuple[int, int, int, int]: ...

    def run(self, make: Callable[[], AnyExchange]) -> Awaitable[AnyExchange]:
        """Begins an exchange with the holders of the other partitions; it is over when that was awaited.

        ``make`` gives the exchange, and another one of the same questions where a holder was lost and is back.
        """


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

    @property
    def some_are_asked(self) -> bool:
        """Whether some partitions are not read in place."""
        return not self.addresses.keys() <= self.shared.keys()


class HolderLost(Exception):
    """A holder is gone, or was never there, or did not speak our protocol: nothing is known of the exchange.

    Attributes:
        partition: whose.
        error: how; a ``ProtocolError`` in the last case.
        stream: by which it was asked; None where there was no connection.
    """

    def __init__(self, partition: int, error: PeerLostError | ProtocolError, stream: RpcStream | None) -> None:
        super().__init__(partition)
        self.partition = partition
        self.error = error
        self.stream = stream


class _Driver:
    """The exchanges that one event loop waits for, carried out by threads that need no interpreter."""

    def __init__(self, engine: RpcEngine, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._runner = ExchangeRunner(engine, 1)
        except BlockingIOError as error:  # EAGAIN is pthread_create's
            raise SystemLimitError(f"sampling: can't start new thread: {error}") from error
        self._waiting: dict[int, asyncio.Future[ExchangeEnding]] = {}
        loop.add_reader(self._runner.fileno(), self._on_endings)

    def start(
        self, exchange: Exchange, streams: list[RpcStream | None], service: str, timeout_s: float
    ) -> tuple[int, asyncio.Future[ExchangeEnding]]:
        """Begins an exchange; its number, and its end, which comes in the running loop: that must be the driver's."""
        future: asyncio.Future[ExchangeEnding] = asyncio.get_running_loop().create_future()
        number = self._runner.start(exchange, streams, service, timeout_s)
        self._waiting[number] = future
        return number, future

    def cancel(self, number: int) -> None:
        """Nobody wants an exchange any more."""
        self._runner.cancel(number)

    def _on_endings(self) -> None:
        for ending in self._runner.poll():
            future = self._waiting.pop(ending.run)
            if not future.done():
                future.set_result(ending)

    @property
    def times(self) -> tuple[int, int, int, int]:
        """See ``Peers``."""
        return self._runner.times

    def close(self) -> None:
        """Ends its threads. Idempotent."""
        self._runner.close()

    def __del__(self) -> None:
        if hasattr(self, "_runner"):  # not where no thread could be started
            self.close()  # it must not wait for its threads with the interpreter in its hands


class _Attempt(Generic[AnyExchange]):
    """An exchange under way by a driver; to be awaited once."""

    def __init__(
        self,
        peers: EndpointPeers,
        exchange: AnyExchange,
        streams: list[RpcStream | None],
        driver: _Driver,
        begun: tuple[int, asyncio.Future[ExchangeEnding]],
    ) -> None:
        self._peers = peers
        self._exchange = exchange
        self._streams = streams
        self._driver = driver
        self._number, self._future = begun

    def __await__(self) -> Generator[Any, None, AnyExchange]:
        try:
            ending = yield from self._future.__await__()
        except asyncio.CancelledError:
            self._driver.cancel(self._number)
            raise
        if ending.what != "done":
            self._peers.raise_for(ending, self._streams)
        return self._exchange


class _UnderWay(Generic[AnyExchange]):
    """An exchange that begins at once, and again should a holder be lost and come back; to be awaited once."""

    def __init__(self, peers: EndpointPeers, make: Callable[[], AnyExchange]) -> None:
        self._peers = peers
        self._make = make
        self._begun = perf_counter_ns()
        # Where nobody has looked for the holders yet, there is somebody to wait for first.
        self._attempt = peers.attempt(make()) if peers.is_connected else None

    def __await__(self) -> Generator[Any, None, AnyExchange]:
        return self._finish().__await__()

    async def _finish(self) -> AnyExchange:
        give_up: float | None = None
        was_garbled = False
        if self._attempt is None:
            await self._peers.connect_all()
        while True:
            try:
                done = await (self._attempt or self._peers.attempt(self._make()))
                if (traced := tracer()) is not None:
                    for batch in current_batches():
                        traced.span("partitions", "other partitions", self._begun, batch)
                return done
            except HolderLost as lost:
                self._attempt = None
                if isinstance(lost.error, ProtocolError):
                    # Noise on the way looks like this once; twice it is somebody who does not speak our protocol.
                    if was_garbled or lost.stream is None:
                        raise lost.error from None
                    was_garbled = True
                    await self._peers.disconnect(lost.stream)
                if give_up is None:
                    give_up = asyncio.get_running_loop().time() + self._peers.patience_s
                await self._peers.recover(lost, give_up)


class EndpointPeers:
    """Asks the holders of the other partitions over an endpoint that is open.

    Args:
        endpoint: whose connections are used.
        holders: who serves what.
        request_timeout_s: deadline of each answer.

    Attributes:
        patience_s: how long a holder that is lost may take to come back; 0: it is given up.
    """

    patience_s = 0.0

    def __init__(self, endpoint: Endpoint, holders: PartitionHolders, request_timeout_s: float) -> None:
        self._endpoint = endpoint
        self._addresses: Mapping[int, PeerAddress] = holders.addresses
        self._service = SERVICE + holders.suffix
        self._suffix = holders.suffix
        self._timeout_s = request_timeout_s
        self._streams: dict[int, RpcStream] = {}
        self._names: dict[int, Peer] = {}  # of those that are, or were, connected
        self._tried: set[int] = set()  # partitions that a connection was looked for, with or without success
        self._in_python = False  # somebody's engine is
        # A data set may be sampled from in several loops.
        self._drivers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Driver] = weakref.WeakKeyDictionary()

    def run(self, make: Callable[[], AnyExchange]) -> Awaitable[AnyExchange]:
        """See ``Peers``."""
        return _UnderWay(self, make)

    @property
    def times(self) -> tuple[int, int, int, int]:
        """See ``Peers``; zeros of exchanges that an engine in Python carries out."""
        split = own = wait = stitch = 0
        for driver in [*self._drivers.values()]:
            of = driver.times
            split, own, wait, stitch = split + of[0], own + of[1], wait + of[2], stitch + of[3]
        return split, own, wait, stitch

    # --- connections -------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether exchanges can begin: all holders were looked for."""
        return self._in_python or self._addresses.keys() <= self._tried

    async def connect_all(self) -> None:
        """Looks for all holders. Who cannot be reached is no error before somebody has to be asked there."""
        missing = [partition for partition in self._addresses if partition not in self._tried]
        await asyncio.gather(*map(self._connect, missing), return_exceptions=True)

    async def _connect(self, partition: int) -> None:
        if self._in_python:
            return
        if self._endpoint.native_engine is None:
            self._in_python = True
            return
        # It listened when it said what it holds: where it cannot be reached now, it is gone.
        connecting = self._endpoint.connect(self._addresses[partition], self._timeout_s)
        try:
            reached = await asyncio.wrap_future(connecting)
        finally:
            self._tried.add(partition)
        self._names[partition] = reached.peer
        if reached.stream is None:
            self._in_python = True
        else:
            self._streams[partition] = reached.stream

    async def disconnect(self, stream: RpcStream) -> None:
        """Gives up a connection by which noise came."""
        await asyncio.wrap_future(self._endpoint.disconnect(stream, "it broke the protocol"))

    async def recover(self, lost: HolderLost, give_up: float) -> None:
        """A holder is lost, or was never found: connects to it, or raises an error."""
        if self._is_back(lost):
            return
        is_garbled = isinstance(lost.error, ProtocolError)
        if self._in_python or (lost.stream is not None and not is_garbled):
            raise lost.error
        await self._connect(lost.partition)

    def _is_back(self, lost: HolderLost) -> bool:
        """Whether somebody else has connected to a holder meanwhile."""
        stream = self._open_stream(lost.partition)
        return stream is not None and stream is not lost.stream

    # --- exchanges ---------------------------------------------------------------------------------------------

    def attempt(self, exchange: AnyExchange) -> Awaitable[AnyExchange]:
        """Begins an exchange, to be awaited; that raises ``HolderLost`` where a holder is lost."""
        if self._in_python:
            return self._rounds(exchange)
        loop = asyncio.get_running_loop()
        driver = self._drivers.get(loop)
        if driver is None:
            engine = self._endpoint.native_engine
            if engine is None:
                return self._rounds(exchange)
            driver = self._drivers[loop] = _Driver(engine, loop)
        count = max(self._addresses, default=-1) + 1
        streams = list(map(self._open_stream, range(count)))
        begun = driver.start(exchange, streams, self._service, self._timeout_s)
        return _Attempt(self, exchange, streams, driver, begun)

    def _open_stream(self, partition: int) -> RpcStream | None:
        stream = self._streams.get(partition)
        if stream is not None and stream.is_closed:
            del self._streams[partition]
            return None
        return stream

    def raise_for(self, ending: ExchangeEnding, streams: list[RpcStream | None]) -> None:
        """What an exchange that ended otherwise than well, over some streams, ends in."""
        partition = ending.partition
        name = str(self._names.get(partition, self._addresses.get(partition)))
        stream = streams[partition] if 0 <= partition < len(streams) else None
        match ending.what:
            case "error":
                ending.raise_error()
            case "failed":
                failure = self._failure_of(ending)
                if isinstance(failure, ProtocolError):
                    raise HolderLost(partition, failure, stream)
                raise failure
            case "malformed":
                raise HolderLost(partition, ProtocolError(f"{name}: {ending.failure.decode()}"), stream)
            case "late":
                raise DeadlineExceededError(f"{self._service}: no answer from {name} within {self._timeout_s:g} s")
        error = PeerLostError(name, ending.failure.decode(errors="replace"))
        raise HolderLost(partition, error, stream)

    def _failure_of(self, ending: ExchangeEnding) -> GraphLearnError:
        peer = self._names.get(ending.partition)
        try:
            failure = unpack(ending.failure)
        except ProtocolError as error:
            return error
        name = peer.name if peer is not None else "the holder"
        return read_failure(name, failure if isinstance(failure, list) else [])

    def _rounds(self, exchange: AnyExchange) -> Rounds[AnyExchange]:
        def send(partition: int, head: torch.Tensor, payload: torch.Tensor) -> Awaitable[Any]:
            holder: Remote[PartitionService] = Remote(
                self._endpoint,
                self._addresses[partition],
                suffix=self._suffix,
                timeout_s=self._timeout_s,
                fail_fast=True,
            )
            future = asyncio.wrap_future(holder.ask(PartitionService.query, head, payload))
            # Where one fails, or the batch is called off, nobody awaits the others.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            return _HolderAnswer(partition, future)

        return Rounds(exchange, send)

    def close(self) -> None:
        """Ends its threads. Idempotent."""
        for driver in [*self._drivers.values()]:
            driver.close()


class _HolderAnswer:
    """An answer of the holder of a partition, whose loss is told from other errors."""

    def __init__(self, partition: int, future: asyncio.Future[Any]) -> None:
        self._partition = partition
        self._future = future

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self._future.__await__())
        except PeerLostError as error:
            raise HolderLost(self._partition, error, None) from error


class ServerPeers(EndpointPeers):
    """The same over an endpoint of its own, open for the time of a ``with`` block.

    A holder that is lost may come back, elsewhere, and is asked again: what it is asked has no effect but the answer.

    Args:
        name: of this process, for the peers' logs.
        rank: of this process.
        holders: who serves what.
        request_timeout_s: deadline of each answer.
        reconnect_timeout_s: how long a holder that is gone may take to come back.
    """

    def __init__(
        self, name: str, rank: int, holders: PartitionHolders, request_timeout_s: float, reconnect_timeout_s: float
    ) -> None:
        settings = RpcSettings(request_timeout_s=request_timeout_s, num_threads=1, tls=holders.tls)
        token = holders.token
        endpoint = Endpoint("sampling_worker", rank, name=name, settings=settings, token=token, listen_host=None)
        super().__init__(endpoint, holders, request_timeout_s)
        self.patience_s = reconnect_timeout_s
        self._moved = asyncio.Event()
        self._given_up: dict[int, float] = {}  # partitions whose holders are not waited for again before then

    def move(self, addresses: Mapping[int, PeerAddress]) -> None:
        """The holders are there from now on."""
        for partition, address in addresses.items():
            if address != self._addresses.get(partition):
                self._streams.pop(partition, None)
        self._addresses = addresses
        self._given_up.clear()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _connect(self, partition: int) -> None:
        await super()._connect(partition)
        self._given_up.pop(partition, None)  # should it be lost again, it has its time again

    async def recover(self, lost: HolderLost, give_up: float) -> None:
        """See ``EndpointPeers``; waits for a holder that is lost.

        Who asks next for one that was waited for in vain does not wait again: so does each batch of a group.
        """
        loop = asyncio.get_running_loop()
        is_given_up = lost.stream is None and loop.time() < self._given_up.get(lost.partition, 0.0)
        if is_given_up:
            give_up = loop.time()
        why = lost.error if isinstance(lost.error, PeerLostError) else PeerLostError("its holder", str(lost.error))
        is_there = lost.stream is None or isinstance(lost.error, ProtocolError)
        if is_there and not self._in_python and not self._is_back(lost):
            try:
                return await self._connect(lost.partition)
            except PeerLostError as error:
                why = error
        while not self._is_back(lost):
            remaining_s = give_up - loop.time()
            if remaining_s <= 0:
                if not is_given_up:
                    self._given_up[lost.partition] = loop.time() + _GIVEN_UP_S
                raise PeerLostError(why.peer, f"{why.why}; it was not back within {self.patience_s:g} s")
            with contextlib.suppress(asyncio.TimeoutError):  # it may be back where it was
                await within(self._moved.wait(), min(_RETRY_S, remaining_s))
            with contextlib.suppress(PeerLostError):
                return await self._connect(lost.partition)

    def __enter__(self) -> ServerPeers:
        self._endpoint.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._endpoint.close()
