"""Whether the peer at the other end of a connection still lives; ``csrc/rpc/heartbeat.cpp`` is the same in C++."""

from __future__ import annotations

from dataclasses import dataclass

_STUCK_S = 30.0  # a peer that takes no data for so long is given up, though it may send


@dataclass(frozen=True)
class Verdict:
    """What to do now: send a PING, or give the peer up for the reason ``dead``."""

    ping: bool = False
    dead: str = ""


class Heartbeat:
    """A pure function of times, which are seconds of one monotonic clock.

    Args:
        interval_s: silence after which the peer is asked whether it lives.
        timeout_s: silence after which it is given up.
        now: when the connection began.
    """

    def __init__(self, interval_s: float, timeout_s: float, now: float) -> None:
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._alive = self._last_ping = now
        self._had_backlog = False

    def check(self, now: float, last_received: float, last_sent: float, backlog_bytes: int) -> Verdict:
        """To be asked a few times per interval, with the times when bytes last came and were last taken."""
        # Bytes that a backlogged socket takes are a sign of life as good as bytes that arrive.
        self._alive = max(self._alive, last_received, last_sent if self._had_backlog else 0.0)
        self._had_backlog = backlog_bytes > 0
        silence = now - self._alive
        if silence > self._timeout_s:
            return Verdict(dead=f"heartbeat timeout: silent for {silence:.1f} s")
        if self._had_backlog and now - last_sent > _STUCK_S:
            return Verdict(dead=f"it took no data for {_STUCK_S:g} s")
        if min(silence, now - self._last_ping) > self._interval_s:
            self._last_ping = now
            return Verdict(ping=True)
        return Verdict()

    def forgive(self, now: float) -> None:
        """This process was stopped itself: the silence is not the peer's fault."""
        self._alive = now
