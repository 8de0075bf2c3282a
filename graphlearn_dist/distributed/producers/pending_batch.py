"""A batch that a server was asked for without its interpreter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

from ..._C import PendingAnswer, RpcEngine, RpcStream, unpack
from ...errors import DeadlineExceededError, GraphLearnError, PeerLostError, ProtocolError
from ...rpc.peers.identity import Peer
from ...rpc.wire.codec import decode
from ...rpc.wire.failures import read_failure


class Core(NamedTuple):
    """How the core of a server is asked.

    Attributes:
        engine: this process's.
        stream: to the server.
        server: who it is.
        take_lent: see ``rpc.endpoint.Reached``.
    """

    engine: RpcEngine
    stream: RpcStream
    server: Peer
    take_lent: Callable[[Any, int], Any]

    def ask(self, service: str, query: bytes, timeout_s: float) -> PendingBatch:
        """Sends a query, whose answer is a batch."""
        return PendingBatch(self.engine.ask(self.stream, service, query, timeout_s), self)


class PendingBatch:
    """What ``concurrent.futures.Future`` is for one that a thread in Python sets. One thread waits for it.

    Args:
        answer: the core's.
        core: whose it is.
    """

    __slots__ = ("_answer", "_core", "_error", "_value")

    def __init__(self, answer: PendingAnswer, core: Core) -> None:
        self._answer = answer
        self._core = core
        self._value: Any = None
        self._error: Exception | None = None

    def cancel(self) -> bool:
        """Nobody wants it any more. From any thread."""
        return self._answer.call_off()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._answer.is_called_off

    def done(self) -> bool:
        """Whether it came, will not, or was cancelled. From any thread."""
        return self._answer.is_over

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What ``result`` raises, or None."""
        self._settle(timeout)
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        """A ``ChannelItem``.

        Raises:
            TimeoutError: it did not come in time.
            CancelledError: it was cancelled.
            PeerLostError: the connection is gone, or what came by it, either way, breaks the protocol.
            GraphLearnError: what the server raised.
        """
        self._settle(timeout)
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            del self  # the error's traceback would lead to what has the error

    def _settle(self, timeout_s: float | None) -> None:
        if not self._answer.wait(timeout_s):
            raise TimeoutError
        if self._answer.is_called_off:
            raise CancelledError
        if (ending := self._answer.take()) is None:
            return
        match ending:
            case "answered", head, payload:
                self._decode(head, payload)
            case "lent", head, (place, nbytes):
                try:
                    payload = self._core.take_lent([*place], nbytes)
                except ProtocolError as error:
                    self._lose("connection closed" if self._core.stream.is_closed else str(error))
                else:
                    self._answer.borrowed()
                    self._decode(head, payload)
            case "failed", failure, _:
                self._error = self._failure(failure)
                if isinstance(self._error, ProtocolError):
                    self._lose(str(self._error))
            case "garbled", why, _:
                self._lose(why)
            case "lost", why, _:
                self._error = PeerLostError(str(self._core.server), why)
            case _:
                self._error = DeadlineExceededError(f"{self._core.server}: no batch within the longest time")

    def _decode(self, head: bytes, payload: Any) -> None:
        try:
            self._value = decode(head, payload)
        except ProtocolError as error:  # the frame is whole: only this answer is lost
            self._error = error

    def _failure(self, packed: bytes) -> GraphLearnError:
        try:
            failure = unpack(packed)
        except ProtocolError as error:
            return error
        return read_failure(self._core.server.name, failure if isinstance(failure, list) else [])

    def _lose(self, why: str) -> None:
        """What came cannot be what was sent, so that nothing behind it is of use."""
        self._core.stream.close()
        self._error = PeerLostError(str(self._core.server), why)
