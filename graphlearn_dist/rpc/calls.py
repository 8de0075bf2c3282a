"""Calls on their way: what to send, and whom to tell."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future
from typing import Any, Protocol

from ..errors import DeadlineExceededError
from .deadlines import Deadlines
from .encoded import Encoded, release
from .threads import Posts


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


class Answer(Future[Any]):
    """The future of a call. A thread that waits for it receives the answer itself, where its connection allows."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call: Call | None = call  # until it is settled: a cycle would hold the answer's memory

    def result(self, timeout: float | None = None) -> Any:
        """What was answered; see ``concurrent.futures.Future``."""
        return super().result(self._await(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that was answered, if it was one; see ``concurrent.futures.Future``."""
        return super().exception(self._await(timeout))

    def cancel(self) -> bool:
        """Give up; the peer is told."""
        call = self.call
        if not super().cancel():
            return False
        if call is not None:
            self.call = None
            call.abandon_later()
        return True

    def _await(self, timeout: float | None) -> float | None:
        """Wait where the answer arrives; what is left of the timeout."""
        call = self.call
        if call is None or call.carrier is None:
            return timeout
        start = time.monotonic()
        call.carrier.await_answer(call, math.inf if timeout is None else timeout)
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - start))


class Call:
    """A request on its way. On the loop's thread but where it says otherwise.

    Attributes:
        deadline: ``time.monotonic()`` at which it fails.
        target: whom it is for, for messages.
        carrier: its connection, once it is on one.
        is_awaited: some thread waits in ``carrier.await_answer``.
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
    ) -> None:
        self.function = function
        self.deadline = deadline
        self.timeout_s = timeout_s
        self.target = target
        self.future = Answer(self)
        self.carrier: Carrier | None = None
        self.request_id = 0
        self.is_awaited = False
        self.nbytes = encoded.nbytes
        self._encoded: Encoded | None = encoded
        self._deadlines = deadlines
        self._posts = posts

    def take_encoded(self) -> Encoded | None:
        """The arguments, once; who takes them sees to their release."""
        encoded, self._encoded = self._encoded, None
        return encoded

    def finish(self, result: Any = None, error: BaseException | None = None) -> None:
        """Settle the future, unless it is settled. By the one who took the call from its connection; on any thread."""
        self._deadlines.discard(self)
        release(self.take_encoded())
        self.future.call = None
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)
        if self.is_awaited and self.carrier is not None:
            self.carrier.answer_is_settled(self)

    def expire(self) -> None:
        """The deadline has passed."""
        if self.abandon():
            whom = self.carrier.peer_name if self.carrier is not None else self.target
            text = f"{self.function}: no answer from {whom} within {self.timeout_s:g} s"
            self.finish(error=DeadlineExceededError(text))

    def abandon(self) -> bool:
        """Nobody waits for the answer any more: tell the peer. False: it is settled already."""
        self._deadlines.discard(self)
        return self.carrier is None or self.carrier.cancel(self)

    def abandon_later(self) -> None:
        """``abandon``, from any thread."""
        self._posts.post(self.abandon)
