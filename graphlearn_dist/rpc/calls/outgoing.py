"""Requests on their way out: find or make the connection, then submit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...config import RpcSettings
from ...errors import NotInitializedError, PeerLostError, ProtocolError, RegistryError, RpcError
from ..connection import Connection
from ..engine.threads import Posts
from ..job.membership import Membership
from ..peers.identity import PeerAddress, Target
from ..peers.links import Links
from .call import Call

_FIRST_BACKOFF_S = 0.05
_LAST_BACKOFF_S = 1.0


class Outgoing:
    """The requests of one endpoint until they are on a connection. On the endpoint's loop thread, but for ``start``.

    Args:
        own_name: the endpoint's name, for errors.
        settings: its times.
        links: its connections.
        membership: what it knows of the job.
    """

    def __init__(self, own_name: str, settings: RpcSettings, links: Links, membership: Membership) -> None:
        self._own_name = own_name
        self._settings = settings
        self._links = links
        self._membership = membership
        self._connecting: set[asyncio.Task[None]] = set()
        self._given_up: dict[Target, str] = {}
        # By target, the best connection, as of which members: these are the same as long as their names are.
        self._routes: dict[Target, tuple[Connection, dict[tuple[str, int], str]]] = {}
        self._closed = False

    def start(self, posts: Posts, call: Call, target: Target, fail_fast: bool) -> bool:
        """Sees a request to its connection: on this thread if it is small, its connection open and nothing before it.

        From any thread. False: the loop is closed.
        """
        connection = self._find(target) if posts.count == 0 and not self._closed else None
        if connection is not None and connection.submit_here(call):
            return True
        return posts.post(self._start, call, target, fail_fast)

    def give_up(self, role: str, rank: int, why: str) -> None:
        """Nobody will take this place again: requests for it fail that have, or would wait for, no connection."""
        self._given_up[role, rank] = why

    def _start(self, call: Call, target: Target, fail_fast: bool) -> None:
        connection = self._find(target)
        if self._closed:
            call.finish(error=NotInitializedError(f"{self._own_name} is closed"))
        elif connection is not None:
            connection.submit(call)
        else:
            task = asyncio.get_running_loop().create_task(self._connect_and_submit(call, target, fail_fast))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _find(self, target: Target) -> Connection | None:
        """The open connection for a target; None where there is none, or a better one is to be had."""
        route, names = self._routes.get(target), self._membership.names
        if route is not None and route[1] is names and route[0].is_open:
            return route[0]
        name = names.get(target) if isinstance(target, tuple) else target
        connection = self._links.find(name) if name is not None else None
        if connection is None or not self._is_best(connection):
            return None
        self._routes[target] = connection, names
        if not connection.is_open:  # and was forgotten before
            self.forget(connection)
        return connection

    def forget(self, connection: Connection) -> None:
        """It is closed: its memory must not wait for the next request. From any thread."""
        for target, (known, _) in self._routes.copy().items():
            if known is connection:
                self._routes.pop(target, None)

    def _is_best(self, connection: Connection) -> bool:
        """Not to an earlier incarnation of its member, and not TCP where the member has a unix socket for us."""
        member = self._membership.find(connection.peer.name)
        if member is None:
            return True
        return member.peer == connection.peer and self._links.suits(connection, member.address)

    async def _connect_and_submit(self, call: Call, target: Target, fail_fast: bool) -> None:
        try:
            connection = await self.connected(target, call.deadline, call.outcome.done, fail_fast=fail_fast)
        except asyncio.CancelledError:
            call.finish(error=NotInitializedError(f"{self._own_name} was closed"))
            raise
        except RpcError as error:
            call.finish(error=error)
        except Exception as error:  # a defect must not leave the caller waiting
            call.finish(error=PeerLostError(self._text(target), f"connecting failed: {error!r}"))
        else:
            connection.submit(call)

    async def connected(
        self, target: Target, deadline: float, is_over: Callable[[], bool], *, fail_fast: bool
    ) -> Connection:
        """An open connection to a target, made where there is none.

        Args:
            target: a member's name, its (role, rank), or an address.
            deadline: the loop's time at which to give up, if the settings do not say so earlier.
            is_over: whether nobody wants it any more.
            fail_fast: fail at once where the target cannot be reached.

        Raises:
            PeerLostError: it cannot be reached.
            RegistryError: nobody knows the target.
        """
        found = self._find(target)
        if found is not None:
            return found
        loop = asyncio.get_running_loop()
        give_up = min(deadline, loop.time() + self._settings.connect_timeout_s)
        backoff, was_garbled = _FIRST_BACKOFF_S, False
        while True:
            if (end := self._given_up.get(target)) is not None:
                raise PeerLostError(self._text(target), end)
            why, address = "it has not joined", self._membership.resolve(target)
            if isinstance(address, PeerAddress):
                try:
                    return await self._links.dial(address)
                except (OSError, asyncio.TimeoutError) as error:
                    why = str(error) or type(error).__name__
                except ProtocolError as error:
                    # Noise on the way looks like this once; twice it is somebody who does not speak our protocol.
                    if type(error) is not ProtocolError or was_garbled:
                        raise
                    why, was_garbled = str(error), True
                    if fail_fast:  # somebody is there
                        continue
            elif (open_one := self._links.find(address) if address else None) is not None:
                return open_one
            elif not self._membership.joined:
                raise RegistryError(f"target: {target!r} is unknown; expected a PeerAddress, or join a registry first")
            remaining = give_up - loop.time()
            if fail_fast or remaining <= 0 or is_over():
                waited = f" within {self._settings.connect_timeout_s:g} s" if not fail_fast else ""
                raise PeerLostError(self._text(target), f"no connection{waited}: {why}")
            await self._membership.changed(min(backoff, remaining))
            backoff = min(backoff * 2, _LAST_BACKOFF_S)

    def _text(self, target: Target) -> str:
        return self._membership.describe(*target) if isinstance(target, tuple) else str(target)

    async def close(self) -> None:
        """Fails what still waits for a connection. Idempotent."""
        self._closed = True
        tasks = list(self._connecting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
