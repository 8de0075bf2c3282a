"""All-gather, and with it the barrier, through the registry.

A group is a number of slots by role. It has at most one open round: a member cannot come to the next one before it
has this one's result. A round is complete when every slot has sent, however late a member joined. It fails early when
a member of the group is lost. A member that gives up (deadline, cancellation) takes its contribution back, and may
come again.
"""

from __future__ import annotations

import asyncio

from ...errors import DeadlineExceededError, InvalidArgumentError, PeerLostError, RegistryError
from ..calls.callees import current_connection
from ..calls.remote import remote
from ..peers.identity import Member
from ..wire.codec import encode
from ..wire.encoded import Encoded
from .registry import Registry, Slot

_Key = tuple[tuple[str, int], ...]


class _Round:
    def __init__(self, slots: list[Slot], future: asyncio.Future[Encoded]) -> None:
        self.slots = slots
        self.future = future
        self.sent: dict[Slot, tuple[str, bytes]] = {}

    @property
    def missing(self) -> list[Slot]:
        return [slot for slot in self.slots if slot not in self.sent]

    def fail(self, member: Member, why: str) -> None:
        if not self.future.done():
            self.future.set_exception(PeerLostError(str(member.peer), f"{why}, while others waited for it"))
            self.future.exception()  # seen: perhaps nobody waits


class Collectives:
    """The rounds of all groups.

    Args:
        registry: who is a member.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._open: dict[_Key, _Round] = {}
        registry.on_gone.append(self._member_gone)

    @remote
    async def gather(self, sizes: dict[str, int], blob: bytes, timeout_s: float) -> dict[str, bytes]:
        """Contribute ``blob`` for the caller's slot, and wait for all others' (``dict`` of name to blob).

        Raises:
            DeadlineExceededError: names the slots that did not come.
            PeerLostError: a member of the group is lost.
            RegistryError: the caller is no member, or waits in this group already.
        """
        lease = self._registry.lease_of(current_connection())
        key: _Key = tuple(sorted(sizes.items()))
        slots = [(role, rank) for role, size in sizes.items() for rank in range(size)]
        if lease.slot not in slots:
            raise InvalidArgumentError(f"group: {lease.member.peer} is not one of {sizes}")
        for slot in slots:
            if (gone := self._registry.gone.get(*slot)) is not None:
                member, why = gone
                raise PeerLostError(str(member.peer), f"{why}, before all of {_text(sizes)} had come")
        round_ = self._open.get(key)
        if round_ is None:
            round_ = self._open[key] = _Round(slots, asyncio.get_running_loop().create_future())
        if lease.slot in round_.sent:
            raise RegistryError(f"{lease.member.peer} waits in a collective of {_text(sizes)} already")
        round_.sent[lease.slot] = (lease.member.name, blob)
        if not round_.missing:
            del self._open[key]
            round_.future.set_result(encode(dict(round_.sent[slot] for slot in slots)))
        # The last one waits too: all are then answered within one turn of the loop. A host that has its own answer may
        # close at once, and its next turn closes the connections that others would be answered by.
        return await self._wait(round_, lease.slot, timeout_s)  # type: ignore[return-value]  # encoded already

    @staticmethod
    async def _wait(round_: _Round, slot: Slot, timeout_s: float) -> Encoded:
        try:
            return await asyncio.wait_for(asyncio.shield(round_.future), timeout_s)
        except (asyncio.TimeoutError, TimeoutError):
            names = ", ".join(f"{role} {rank}" for role, rank in round_.missing)
            raise DeadlineExceededError(f"collective: {names} did not come within {timeout_s:g} s") from None
        finally:
            if not round_.future.done():
                round_.sent.pop(slot, None)

    def _member_gone(self, member: Member, why: str) -> None:
        slot = (member.role, member.rank)
        for key, round_ in list(self._open.items()):
            if slot in round_.slots:
                del self._open[key]
                round_.fail(member, why)


def _text(sizes: dict[str, int]) -> str:
    return " and ".join(f"{size} {role}" for role, size in sizes.items())
