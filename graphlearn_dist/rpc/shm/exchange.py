"""How payloads pass through shared memory instead of the socket, on one connection.

Two ways, both between processes of one host. *Arena*: the payload is copied into a slot of the sender's arena, and out
of it by the receiver, who gives the slot back at once. *Lending*: the payload lies already in a region that its maker
wrote; the receiver maps the region and uses the bytes where they are, and the slot goes back when the last tensor over
it dies. A slot whose receiver went away without giving it back is used again only when that process has ended: until
then somebody may still read it.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ... import _C
from ...errors import ProtocolError
from ..wire.encoded import Encoded, SharedRegion, release
from .arena import ReceivingArena, SendingArena, open_sealed
from .loans import Loans


class Wire(Protocol):
    """What the exchange asks of its connection."""

    @property
    def kind(self) -> str: ...
    def sending_arena(self) -> SendingArena | None: ...
    @property
    def peer_pid(self) -> int: ...
    def when_readable(self, descriptor: int, callback: Callable[[], None]) -> None: ...
    def forget_readable(self, descriptor: int) -> None: ...
    def send_arena_frame(self, meta: list[Any]) -> None: ...
    def when_answered(self, number: int, callback: Callable[[], Any]) -> None:
        """Calls back, on the loop, when nobody has an answer of now any more, to a request or from that region of the
        peer's, and has not read it."""

    def send_releases(self, places: list[Any]) -> None:
        """Tells the peer that places are free."""

    def send_releases_later(self, places: list[Any]) -> None:
        """``send_releases``, from any thread."""

    @property
    def loans(self) -> Loans:
        """What the endpoint has lent to tensors."""


@dataclass
class ExchangeStats:
    """Counters of one connection since it opened."""

    arena_payloads_sent: int = 0
    arena_payloads_received: int = 0
    arena_full: int = 0
    lent_payloads_sent: int = 0
    lent_payloads_received: int = 0


class _BorrowedRegion:
    """A peer's region, mapped for reading and writing: a lent slot is the borrower's own until it goes back."""

    def __init__(self, path: str, size: int, nonce: bytes) -> None:
        with open_sealed(path, size, nonce, writable=True) as descriptor:
            self._map = mmap.mmap(descriptor.fileno(), size)
        self.size = size

    def view(self, offset: int, nbytes: int) -> memoryview:
        """A slot's bytes, writable."""
        if offset < 1 or nbytes < 1 or offset + nbytes > self.size:
            raise ProtocolError(f"region: {nbytes} bytes at {offset} lie outside of {self.size}")
        return memoryview(self._map)[offset : offset + nbytes]


class _Remains:
    """What is lent to a peer whose connection is gone, and which may read it still.

    A slot goes back when the peer's process has ended, which then has no memory mapped, or when its region is closed
    and will not be used again.
    """

    def __init__(self, wire: Wire, lent: list[Encoded]) -> None:
        self._wire = wire
        self._lent: dict[SharedRegion, list[Encoded]] = {}
        for encoded in lent:
            if encoded.place is not None:
                self._lent.setdefault(encoded.place[0], []).append(encoded)
        self._process = -1
        try:
            self._process = _C.open_process(wire.peer_pid)
        except ProcessLookupError:
            self._on_end()
            return
        except OSError:  # a kernel without pidfds: nobody can tell when, so they wait for their regions
            pass
        else:
            wire.when_readable(self._process, self._on_end)
        for region in list(self._lent):
            if region.closed:
                self._on_closed(region)
            else:
                region.watch(self._on_closed)

    def _on_end(self) -> None:
        for region in list(self._lent):
            region.unwatch(self._on_closed)
            self._on_closed(region)

    def _on_closed(self, region: SharedRegion) -> None:
        for encoded in self._lent.pop(region):
            release(encoded)
        if not self._lent and self._process >= 0:
            self._wire.forget_readable(self._process)
            os.close(self._process)
            self._process = -1


class PayloadExchange:
    """The shared memory of one connection, both ways. On the endpoint's loop thread but where it says otherwise."""

    def __init__(self, wire: Wire) -> None:
        self._stats = ExchangeStats()
        self._wire = wire
        self.native: _C.RpcStream | None = None  # which lends answers to queries; both lend what the peer has mapped
        self._arena_state = "unknown"  # unknown, offered, accepted, refused
        self._slots: set[int] = set()
        self._peer_arena: ReceivingArena | None = None
        self._regions: dict[SharedRegion, int] = {}
        self._region_states: dict[int, str] = {}
        self._lent: dict[tuple[int, int], Encoded] = {}
        self._borrowed: dict[int, _BorrowedRegion] = {}

    @property
    def stats(self) -> ExchangeStats:
        """Counters of what passed through shared memory."""
        lent = 0 if self.native is None else self.native.num_lent
        return replace(self._stats, lent_payloads_sent=self._stats.lent_payloads_sent + lent)

    # --- sending -----------------------------------------------------------------------------------------------

    def put(self, encoded: Encoded) -> Any:
        """Where a peer of this host finds the payload: ``[region, offset]`` if lent, an arena offset, or 0: inline."""
        if encoded.nbytes == 0:
            return 0
        place = self._lend(encoded)
        return place if place is not None else self._copy(encoded)

    def _lend(self, encoded: Encoded) -> list[int] | None:
        if encoded.place is None or encoded.place[0].closed:
            return None
        region, offset = encoded.place
        if region not in self._regions:
            self._offer(region)
            return None
        number = self._regions[region]
        if self._region_states[number] != "accepted":
            return None
        self._lent[number, offset] = encoded
        self._stats.lent_payloads_sent += 1
        return [number, offset]

    def offer(self, number: int) -> None:
        """Offers the peer a region of this process, by its number, so that answers to queries can be lent from it."""
        region = SharedRegion.of(number)
        if region is None or region.closed:
            return
        if region not in self._regions:
            self._offer(region)
        elif self._region_states[self._regions[region]] == "accepted":
            self._accept(region)

    def _accept(self, region: SharedRegion) -> None:
        if self.native is not None:
            self.native.accept_region(region.number, self._regions[region])

    def _offer(self, region: SharedRegion) -> None:
        number = len(self._region_states) + 1
        self._regions[region] = number
        self._region_states[number] = "offered"
        region.watch(self._drop)  # before the frame, which may close a broken connection
        self._wire.send_arena_frame(["lend", number, region.path, region.size, region.nonce])

    def _drop(self, region: SharedRegion) -> None:
        """The region's maker is gone: the peer need not keep it mapped for new payloads."""
        number = self._regions.pop(region, None)
        if self.native is not None:
            self.native.forget_region(region.number)
        if number is not None:
            self._region_states[number] = "dropped"
            self._wire.send_arena_frame(["drop", number])

    def _copy(self, encoded: Encoded) -> int:
        if self._arena_state in ("refused", "offered"):
            return 0
        arena = self._wire.sending_arena()
        if arena is None:
            self._arena_state = "refused"
            return 0
        if self._arena_state == "unknown":
            self._arena_state = "offered"
            self._wire.send_arena_frame(["offer", arena.path, arena.capacity_bytes, arena.nonce])
            return 0
        offset = arena.put(encoded.payload_parts(), encoded.nbytes)
        if offset is None:
            self._stats.arena_full += 1
            return 0
        self._slots.add(offset)
        self._stats.arena_payloads_sent += 1
        return offset

    def on_release(self, meta: list[Any]) -> None:
        """The peer gives places back."""
        for place in meta:
            match place:
                case [int(number), int(offset)] if (number, offset) in self._lent:
                    release(self._lent.pop((number, offset)))
                case int(offset) if offset in self._slots:
                    self._slots.discard(offset)
                    arena = self._wire.sending_arena()
                    if arena is not None:
                        arena.release(offset)
                case _:
                    raise ProtocolError("arena: released a slot that it does not hold")

    # --- receiving ---------------------------------------------------------------------------------------------

    @property
    def borrows(self) -> bool:
        """Whether the peer may have lent something to this side. From any thread."""
        return bool(self._borrowed)

    def on_frame(self, meta: list[Any]) -> None:
        """An ARENA frame arrived."""
        match meta:
            case ["offer", str(path), int(size), bytes(nonce)]:
                self._wire.send_arena_frame(self._open_arena(path, size, nonce))
            case ["accept"] if self._arena_state == "offered":
                self._arena_state = "accepted"
            case ["refuse", str(_)] if self._arena_state == "offered":
                self._arena_state = "refused"
            case ["lend", int(number), str(path), int(size), bytes(nonce)] if number not in self._borrowed:
                self._wire.send_arena_frame(self._borrow(number, path, size, nonce))
            case ["borrow", int(number)] if number in self._region_states:
                if self._region_states[number] == "offered":
                    self._region_states[number] = "accepted"
                    for region in [region for region, of in self._regions.items() if of == number]:
                        self._accept(region)
            case ["decline", int(number), str(_)] if number in self._region_states:
                self._region_states[number] = "refused"
            case ["drop", int(number)]:  # it stays mapped while tensors over it live
                self._wire.when_answered(number, functools.partial(self._borrowed.pop, number, None))
            case _:
                raise ProtocolError("arena: malformed frame")

    def _open_arena(self, path: str, size: int, nonce: bytes) -> list[Any]:
        if self._wire.kind != "unix" or self._peer_arena is not None:
            return ["refuse", "not on this connection"]
        try:
            self._peer_arena = ReceivingArena(path, size, nonce)
        except (OSError, ProtocolError, ValueError) as error:
            return ["refuse", str(error)[:200]]
        return ["accept"]

    def _borrow(self, number: int, path: str, size: int, nonce: bytes) -> list[Any]:
        if self._wire.kind != "unix":
            return ["decline", number, "not on this connection"]
        try:
            self._borrowed[number] = _BorrowedRegion(path, size, nonce)
        except (OSError, ProtocolError, ValueError) as error:
            return ["decline", number, str(error)[:200]]
        return ["borrow", number]

    def take(self, place: Any, nbytes: int) -> Any:
        """The payload at a place the peer named; what is lent may be taken by any thread."""
        match place:
            case [int(number), int(offset)]:
                region, wire = self._borrowed.get(number), getattr(self, "_wire", None)
                if region is not None and wire is not None:  # else it was never accepted, or all is closed by now
                    self._stats.lent_payloads_received += 1
                    return wire.loans.lend(region.view(offset, nbytes), wire.send_releases, [number, offset])
            case int(offset) if self._peer_arena is not None:
                buffer = self._peer_arena.take(offset, nbytes)
                self._stats.arena_payloads_received += 1
                self._wire.send_releases_later([offset])
                return buffer
        raise ProtocolError("arena: a payload in memory that was never accepted")

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The connection is gone. Arena slots are free again; lent ones when the peer's process has ended."""
        arena = self._wire.sending_arena() if self._slots else None
        for offset in self._slots:
            if arena is not None:
                arena.release(offset)
        self._slots.clear()
        lent, self._lent = list(self._lent.values()), {}
        for number, payload in [] if self.native is None else self.native.end_lending():
            region = SharedRegion.of(number)
            if region is not None:  # else it is closed, and not used again
                lent.append(Encoded(b"", (), 0, payload.release, (region, 0)))
        if lent:
            _Remains(self._wire, lent)
        for region in self._regions:
            region.unwatch(self._drop)
        self._regions.clear()
        self._borrowed.clear()
        if self._peer_arena is not None:
            self._peer_arena.close()
            self._peer_arena = None
        del self._wire  # it leads back here: a connection must not wait for a garbage collection
