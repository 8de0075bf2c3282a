"""What becomes of a server that was lost: whether it is asked again, when, and how long it may take to be back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from ...errors import DeadlineExceededError, GraphLearnError, PeerLostError, ProducerGoneError
from ...utils.system.restarts import RestartBudget

Held = TypeVar("Held")
Result = TypeVar("Result")

_MAX_LOSSES = 20  # of a loader's servers within an hour: beyond that something is wrong that no restart mends
_RETRY_S = 0.5


class ServerRecovery:
    """Decides for the servers of one loader; what is tried is its caller's.

    A server that is lost is away until it has been taken up again. Meanwhile it is tried every half second, and every
    error of the connection, a deadline too, means that it is not back yet. One that is lost again after it was back
    counts as another loss, and has as much time again.

    Args:
        timeout_s: how long a server that is away may take to be back.
        alarm: fails when it is no use to try any more.
        is_over: whether the session is over in which the servers held something, or nobody wants it any more.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        timeout_s: float,
        alarm: Future[None],
        is_over: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._alarm = alarm
        self._is_over = is_over
        self._clock = clock
        self._budget = RestartBudget(_MAX_LOSSES, clock=clock)

    def recover(
        self,
        peer: str,
        lost: GraphLearnError,
        take_up: Callable[[float], Held],
        go_on: Callable[[Held], Result],
        *,
        is_counted: bool = True,
    ) -> Result:
        """Tries until a server is back and has done what it was asked for.

        Args:
            peer: the server, for errors.
            lost: how it was lost.
            take_up: takes up what it holds for the loader, within these seconds.
            go_on: what is asked of it then.
            is_counted: whether this is one of the losses that a loader survives.

        Raises:
            PeerLostError: it did not come back in time, or the launcher has given one up.
            GraphLearnError: it was lost too often, or the session is over: the last loss; or what else the two raise.
        """
        error, is_away, give_up = lost, False, 0.0
        while True:
            if not is_away:  # a loss, the first or another one
                if self._alarm.done() or self._is_over() or (is_counted and not self._budget.take()):
                    raise error
                lost, is_away, give_up = error, True, self._clock() + self._timeout_s
            if (remaining_s := give_up - self._clock()) <= 0:
                raise self._not_back(peer, lost) from lost
            try:
                held = take_up(remaining_s)
                is_away = False
                return go_on(held)
            except (PeerLostError, ProducerGoneError, DeadlineExceededError) as again:
                if self._alarm.done() or self._is_over() or (isinstance(again, DeadlineExceededError) and not is_away):
                    raise
                error = again
            if is_away:
                wait((self._alarm,), min(_RETRY_S, max(0.0, give_up - self._clock())))

    def _not_back(self, peer: str, lost: GraphLearnError) -> PeerLostError:
        if not isinstance(lost, PeerLostError):
            lost = PeerLostError(peer, str(lost))
        limit = f"reconnect_timeout={self._timeout_s:g} s"
        return PeerLostError(lost.peer, f"{lost.why}; it was not back within {limit}")
