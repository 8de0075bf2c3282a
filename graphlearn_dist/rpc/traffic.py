"""What goes over an endpoint's connections, by peer, and the functions that it answers, since it opened."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..telemetry import Metric

if TYPE_CHECKING:
    from .peers.identity import Peer
    from .peers.refusals import Refusals


# What frames are for; as FrameUse in csrc/rpc/frame_bytes.h.
FRAME_USES = ("request", "answer", "query", "query answer", "event", "control")


class FunctionTimes:
    """Calls of one function, the time from a request to its answer, and the bytes of answers, added up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = self.ns = self.answer_bytes = 0

    def add(self, ns: int, answer_bytes: int) -> None:
        """A request was answered after so long."""
        with self._lock:
            self.calls += 1
            self.ns += ns
            self.answer_bytes += answer_bytes


class FrameBytes(NamedTuple):
    """Bytes of the frames that went one way, by what they are for, in the order of ``FRAME_USES``.

    Attributes:
        on_socket: what went over the socket.
        in_memory: payloads in memory that both sides read.
    """

    on_socket: Sequence[int] = (0,) * len(FRAME_USES)
    in_memory: Sequence[int] = (0,) * len(FRAME_USES)

    def plus(self, other: FrameBytes) -> FrameBytes:
        """Of both."""
        return FrameBytes(*([a + b for a, b in zip(*way, strict=True)] for way in zip(self, other, strict=True)))


NO_FRAMES = FrameBytes()


@dataclass(frozen=True)
class PeerTraffic:
    """Of one peer, in all connections to it."""

    sent: FrameBytes = NO_FRAMES
    received: FrameBytes = NO_FRAMES
    requests_sent: int = 0
    requests_served: int = 0

    def __add__(self, other: PeerTraffic) -> PeerTraffic:
        return PeerTraffic(
            self.sent.plus(other.sent),
            self.received.plus(other.received),
            self.requests_sent + other.requests_sent,
            self.requests_served + other.requests_served,
        )


def _by_kind(found: FrameBytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Bytes that there were, and the labels of their kind."""
    for way, by_use in (("socket", found.on_socket), ("memory", found.in_memory)):
        for use, count in zip(FRAME_USES, by_use, strict=True):
            if count:
                yield count, {"kind": use, "by": way}


class Counted(Protocol):
    """A connection whose peer is known."""

    @property
    def peer(self) -> Peer: ...
    @property
    def traffic(self) -> PeerTraffic: ...


def name_of(connection: Counted) -> str:
    """What a connection's peer is called here: of one that comes back the same."""
    return f"{connection.peer.role} {connection.peer.rank}"


class Traffic:
    """Counts for an endpoint. ``opened`` and ``closed`` are told on its loop's thread, the rest may be asked from any.

    Args:
        name: of the endpoint.
        functions: times of the functions that it answers, by name.
        refusals: connections that it turned away.
    """

    def __init__(self, name: str, functions: dict[str, FunctionTimes], refusals: Refusals) -> None:
        self._refusals = refusals
        self._name = name
        self._functions = functions
        self._lock = threading.Lock()
        self._open: set[Counted] = set()
        self._gone: dict[str, PeerTraffic] = {}  # by peer, of connections that are closed

    def opened(self, connection: Counted) -> None:
        """A connection's peer is known."""
        with self._lock:
            self._open.add(connection)

    def closed(self, connection: Counted) -> None:
        """A connection is gone."""
        with self._lock:
            if connection in self._open:
                self._open.discard(connection)
                peer = name_of(connection)
                self._gone[peer] = self._gone.get(peer, PeerTraffic()) + connection.traffic

    def by_peer(self) -> dict[str, PeerTraffic]:
        """What went to each peer that was ever connected, and came from it."""
        with self._lock:
            found = defaultdict(PeerTraffic, self._gone)
            for connection in self._open:
                found[name_of(connection)] += connection.traffic
        return dict(found)

    @property
    def num_open(self) -> int:
        """Connections that are open now."""
        return len(self._open)

    def status(self) -> Iterator[tuple[str, int, int]]:
        """See ``telemetry.MetricSource``."""
        for peer, traffic in self.by_peer().items():
            yield peer, sum(traffic.sent.on_socket), sum(traffic.received.on_socket)

    def metrics(self) -> Iterator[Metric]:
        """See ``telemetry.MetricSource``."""
        own = {"endpoint": self._name}
        for peer, traffic in self.by_peer().items():
            labels = own | {"peer": peer}
            for count, kind in _by_kind(traffic.sent):
                yield Metric("sent_bytes_total", "Bytes sent.", count, labels | kind)
            for count, kind in _by_kind(traffic.received):
                yield Metric("received_bytes_total", "Bytes received.", count, labels | kind)
            yield Metric("requests_sent_total", "Requests and queries sent.", traffic.requests_sent, labels)
            yield Metric("requests_served_total", "Requests and queries served.", traffic.requests_served, labels)
        for function, times in list(self._functions.items()):
            labels = own | {"function": function}
            yield Metric("calls_total", "Calls of functions that were answered.", times.calls, labels)
            yield Metric("call_seconds_total", "Time from their requests to their answers.", times.ns / 1e9, labels)
            help_text = "Bytes of their answers, those in shared memory too."
            yield Metric("answer_bytes_total", help_text, times.answer_bytes, labels)
        yield Metric("open_connections", "Connections whose peer is known.", self.num_open, own)
        help_text = "Connections that were turned away."
        yield Metric("refused_connections_total", help_text, self._refusals.count, own)
