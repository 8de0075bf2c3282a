"""Calls on their way: what to send, and whom to tell."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ...errors import DeadlineExceededError
from ..engine.threads import Posts
from ..wire.encoded import Encoded, release
from .deadlines import Deadlines


class Carrier(Protocol):
    """The connection of a call."""

    @property
    def peer_name(self) -> str:
        """Who is at its other end."""

    def cancel(self, call: Call) -> bool:
        """Nobody waits for ``call`` any more. False: it is settled already. On the loop's thread."""

    def await_answer(self, call: Call, timeout_s: float) -> None:
        """Wait for the answer on the calling thread, if that is possible; it may return early."""

    def answer_is_settled(self, call: Call) -> None:
        """Let go the thread in ``await_answer``."""


class Outcome(Protocol):
    """Where a call's result or error goes.

    Attributes:
        call: the call, until it is settled: a cycle would hold the answer's memory.
    """

    call: Call | None

    def done(self) -> bool:
        """Whether it is settled, or nobody wants it any more."""

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Say how the call ended, unless it is done. On any thread, by one at a time."""


OutcomeType = TypeVar("OutcomeType", bound=Outcome)
AnyTimeout = TypeVar("AnyTimeout", float, float | None)


class Answer(Future[Any]):
    """The future of a call. A thread that waits for it receives the answer itself, where its connection allows."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Call | None = None

    def settle(self, result: Any, error: BaseException | None) -> None:
        """See ``Outcome``."""
        self.call = None
        if not self.done() and self.set_running_or_notify_cancel():
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        """What was answered; see ``concurrent.futures.Future``."""
        return super().result(_await(self.call, timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that was answered, if it was one; see ``concurrent.futures.Future``."""
        return super().exception(_await(self.call, timeout))

    def cancel(self) -> bool:
        """Give up; the peer is told."""
        call = self.call
        if not super().cancel():
            return False
        if call is not None:
            self.call = None
            call.abandon_later()
        return True


class Reply:
    """The outcome of a call whose caller does nothing but wait for it: without what a future has for others.

    Making, settling and reading a future costs as much as all else that a small call does on this side.
    """

    __slots__ = ("_error", "_function", "_is_done", "_result", "_unsettled", "call")

    def __init__(self, function: str) -> None:
        self.call: Call | None = None
        self._function = function
        self._unsettled = threading.Lock()
        self._unsettled.acquire()
        self._is_done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """See ``Outcome``."""
        return self._is_done

    def settle(self, result: Any, error: BaseException | None) -> None:
        """See ``Outcome``."""
        self.call = None
        if not self._is_done:
            self._result, self._error, self._is_done = result, error, True
            self._unsettled.release()

    def take(self, timeout: float) -> Any:
        """Wait for the result, or raise the error; once. After ``timeout`` seconds the loop does not answer."""
        call = self.call
        remaining = _await(call, timeout)
        if not self._is_done and not self._unsettled.acquire(timeout=remaining):
            self._is_done = True
            if call is not None:
                call.abandon_later()
            raise DeadlineExceededError(f"{self._function}: the endpoint's loop does not answer")
        error, self._error = self._error, None  # its traceback leads back here
        try:
            if error is not None:
                raise error
            return self._result
        finally:
            del error


def _await(call: Call | None, timeout: AnyTimeout) -> AnyTimeout:
    """Wait where the answer arrives, if that is possible; what is left of the timeout."""
    if call is None or call.carrier is None:
        return timeout
    start = time.monotonic()
    call.carrier.await_answer(call, math.inf if timeout is None else timeout)
    return None if timeout is None else max(0.0, timeout - (time.monotonic() - start))


class Call:
    """A request on its way. On the loop's thread but where it says otherwise.

    Attributes:
        encoded: the arguments, until somebody takes them out, who sees to their release.
        deadline: ``time.monotonic()`` at which it fails.
        target: whom it is for, for messages.
        carrier: its connection, once it is on one.
        outcome: where its result goes.
        is_settled: nobody would let a thread go that begins to wait now.
        awaited_by: the thread that waits in ``carrier.await_answer``, by its number; 0 where none does.
    """

    def __init__(
        self,
        function: str,
        target: object,
        encoded: Encoded,
        deadline: float,
        timeout_s: float,
        deadlines: Deadlines,
        posts: Posts,
        outcome: Outcome,
    ) -> None:
        self.function = function
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.target = target
        self.outcome = outcome
        outcome.call = self
        self.is_settled = False
        self.carrier: Carrier | None = None
        self.request_id = 0
        self.awaited_by = 0
        self.nbytes = encoded.nbytes
        self.encoded: Encoded | None = encoded
        self._deadlines = deadlines
        self._posts = posts

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """Settle the outcome, unless it is done. By the one who took the call from its connection; on any thread."""
        self._deadlines.discard(self)
        if self.encoded is not None:  # it was not sent
            encoded, self.encoded = self.encoded, None
            release(encoded)
        self.is_settled = True
        self.outcome.settle(result, error)
        if self.awaited_by not in (0, threading.get_ident()) and self.carrier is not None:
            self.carrier.answer_is_settled(self)

    def expire(self) -> None:
        """The deadline has passed."""
        if self.abandon():
            whom = self.carrier.peer_name if self.carrier is not None else self.target
            text = f"{self.function}: no answer from {whom} within {self.timeout_s:g} s"
            self.finish(error=DeadlineExceededError(text))

    def abandon(self) -> bool:
        """Nobody waits for the answer any more: tell the peer. False: it is settled already."""
        self.is_settled = True
        self._deadlines.discard(self)
        return self.carrier is None or self.carrier.cancel(self)

    def abandon_later(self) -> None:
        """``abandon``, from any thread."""
        self._posts.post(self.abandon)
