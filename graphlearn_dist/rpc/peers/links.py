"""The sockets of an endpoint: listeners, dialling, and which connection leads to whom."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import secrets
import socket
import struct
from collections.abc import Sequence
from typing import Any

from ..._C import RpcStream
from ...errors import AuthenticationError, InvalidArgumentError, PeerLostError, ResourceInsufficientError
from ..connection import Connection, Owner
from ..engine.tls import Tls
from .handshake import MAX_PENDING, MAX_TIME_S, Handshake, Introduction
from .identity import Peer, PeerAddress, boot_id, describe_origin, is_loopback
from .refusals import Refusals

_BACKLOG = 128
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_ACCEPT_PAUSE_S = 0.1


def open_listeners(
    host: str | None, ports: Sequence[int], name: str, *, use_unix: bool, has_token: bool
) -> tuple[list[socket.socket], PeerAddress]:
    """The listening sockets of an endpoint of that name, and where they are reached; no TCP listener without a host.

    The first of ``ports`` that is free is taken; 0 is any.

    Raises:
        InvalidArgumentError: the listener would be open to the network without a token.
        ResourceInsufficientError: all ports are taken.
        OSError: the address cannot be bound, or no descriptors are left.
    """
    with contextlib.ExitStack() as undo:
        listeners = []
        tcp_port, unix = 0, ""
        if host is not None:
            tcp = undo.enter_context(_listen_on_first(host, ports, has_token=has_token))
            tcp_port = tcp.getsockname()[1]
            listeners.append(tcp)
        if use_unix:
            local = undo.enter_context(listen_unix())
            unix = unix_name(local)
            listeners.append(local)
        undo.pop_all()
        return listeners, PeerAddress(host or "", tcp_port, unix, boot_id(), name)


def _listen_on_first(host: str, ports: Sequence[int], *, has_token: bool) -> socket.socket:
    for port in ports:
        try:
            return listen_tcp(host, port, has_token=has_token)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not isinstance(ports, range):
                raise
    raise ResourceInsufficientError(f"listen_port: expected a free one of {ports[0]} to {ports[-1]}, all are taken")


def listen_tcp(host: str, port: int, *, has_token: bool, fd: int = -1) -> socket.socket:
    """A listening socket; that of an inherited descriptor, owned from here on, where one is given.

    Raises:
        InvalidArgumentError: others than this host could reach it, and there is no token.
        OSError: the address cannot be bound.
    """
    if fd >= 0:
        return _adopt_listener(fd, has_token=has_token)
    check_exposure(host, has_token=has_token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _adopt_listener(fd: int, *, has_token: bool) -> socket.socket:
    sock = socket.socket(fileno=fd)
    try:
        check_exposure(str(sock.getsockname()[0]), has_token=has_token)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.detach()
        raise
    return sock


def default_listen_host(master_addr: str, *, silent: bool) -> str | None:
    """Where a member of a job listens: on its host alone where the registry is, else on all addresses.

    ``silent``: it has no certificate to show; then nowhere, but on unix sockets.
    """
    if silent:
        return None
    return "127.0.0.1" if is_loopback(master_addr) else "0.0.0.0"


def check_exposure(host: str, *, has_token: bool) -> None:
    """Refuse to listen where strangers can reach us, unless there is a token to keep them out."""
    if not has_token and not is_loopback(host):
        raise InvalidArgumentError(
            f"token: listening on {host!r} is open to the network and needs a token, got None; "
            "pass one, or listen on a loopback address"
        )


def listen_unix() -> socket.socket:
    """A listening unix socket in the abstract namespace: it leaves nothing in the file system."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0gld-{os.getpid()}-{secrets.token_hex(8)}")
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def unix_name(sock: socket.socket) -> str:
    """The abstract name of a listener, without its leading zero byte."""
    name = sock.getsockname()
    return bytes(name)[1:].decode() if isinstance(name, bytes) else str(name)[1:]


def same_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket belongs to our user."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(data)[1] == os.getuid())


class Links:
    """The open connections of an endpoint, and how new ones come about. On the loop's thread.

    Args:
        owner: the endpoint.
        introduction: what it says about itself.
        token: the shared secret, or None.
        refusals: told of those who are turned away.
        tls: what connections over TCP are wrapped in, or None.
        use_unix: whether to prefer unix sockets on this host.
    """

    def __init__(
        self,
        owner: Owner,
        introduction: Introduction,
        token: bytes | None,
        refusals: Refusals,
        tls: Tls | None,
        *,
        use_unix: bool,
    ) -> None:
        self._owner = owner
        self._introduction = introduction
        self._token = token
        self._refusals = refusals
        self._tls = tls
        self._use_unix = use_unix
        self._all: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # accepted, their handshake not over, the oldest first
        self._by_name: dict[str, Connection] = {}
        self._by_address: dict[PeerAddress, Connection] = {}
        self._greeting: dict[asyncio.Task[None], str] = {}  # TLS handshakes with strangers, the oldest first; origins
        self._dialling: dict[PeerAddress, asyncio.Task[Connection]] = {}
        self._listeners: list[socket.socket] = []
        self._paused: set[asyncio.TimerHandle] = set()
        self._is_closing = False

    @property
    def connections(self) -> list[Connection]:
        """All connections, those in their handshake too."""
        return list(self._all)

    # --- accepting ---------------------------------------------------------------------------------------------

    def add_listener(self, listener: socket.socket) -> None:
        """Accept on ``listener``, owned from here on; ``InvalidArgumentError`` where TLS has no certificate for it."""
        if self._tls is not None and listener.family != socket.AF_UNIX:
            self._tls.check_may_listen()
        self._listeners.append(listener)
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:  # no descriptors left: without a pause the loop would spin
            loop.remove_reader(listener.fileno())
            self._paused.add(loop.call_later(_ACCEPT_PAUSE_S, self._resume, listener))
            return
        if sock.family == socket.AF_UNIX and not same_user(sock):
            sock.close()
            self._refusals.record("a unix socket", "it belongs to another user")
            return
        if self._tls is not None and sock.family != socket.AF_UNIX:
            origin = describe_origin(sock)
            task = loop.create_task(self._greet(self._tls, sock, origin))
            self._greeting[task] = origin
            task.add_done_callback(lambda done: self._greeting.pop(done, None))
        else:
            self._meet(sock)
        self._make_room()

    async def _greet(self, tls: Tls, sock: socket.socket, origin: str) -> None:
        wrapped = await tls.accept(sock, lambda why: self._refusals.record(origin, why))
        if wrapped is not None and self._is_closing:
            wrapped.close()
        elif wrapped is not None:
            self._meet(wrapped)

    def _meet(self, sock: socket.socket) -> None:
        self._strangers[self._adopt(sock, connecting=False)] = None

    def _make_room(self) -> None:
        """The stranger who has been silent for longest goes: an honest peer needs milliseconds."""
        why = f"more than {MAX_PENDING} connections without a handshake"
        for kind in ("tcp", "unix"):
            strangers = [connection for connection in self._strangers if connection.kind == kind]
            if len(strangers) > MAX_PENDING:
                strangers[0].turn_away(why)
        if len(self._greeting) > MAX_PENDING:
            task = next(iter(self._greeting))
            self._refusals.record(self._greeting.pop(task), why)
            task.cancel()

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _adopt(self, sock: socket.socket, *, connecting: bool) -> Connection:
        handshake = Handshake(self._introduction, self._token, connecting=connecting)
        loop = asyncio.get_running_loop()
        try:
            connection = Connection(self._owner, loop, sock, handshake, connecting=connecting)
        except BaseException:
            sock.close()
            raise
        self._all.add(connection)
        connection.start()
        return connection

    # --- finding -----------------------------------------------------------------------------------------------

    def find(self, target: str | PeerAddress) -> Connection | None:
        """An open connection to a peer's name or address."""
        connection = self._by_name.get(target) if isinstance(target, str) else self._by_address.get(target)
        return connection if connection is not None and connection.is_open else None

    def with_stream(self, stream: RpcStream) -> Connection | None:
        """The connection whose queries go by a stream."""
        return next((connection for connection in self._all if connection.query_stream is stream), None)

    def suits(self, connection: Connection, address: PeerAddress) -> bool:
        """Whether ``connection`` is as good as a new one to ``address``: not TCP where a unix socket would do."""
        if connection.kind == "unix" or self._by_address.get(address) is connection:
            return True
        return not (self._use_unix and address.unix and address.boot_id == boot_id())

    def opened(self, connection: Connection) -> None:
        """A handshake is over."""
        self._strangers.pop(connection, None)
        known = self._by_name.get(connection.peer.name)
        same = known is not None and known.is_open and known.peer == connection.peer
        if not same or connection.kind == "unix":
            self._by_name[connection.peer.name] = connection

    def closed(self, connection: Connection) -> bool:
        """A connection is closed; whether it was the last one to that incarnation of its peer."""
        self._all.discard(connection)
        self._strangers.pop(connection, None)
        for address in [key for key, value in self._by_address.items() if value is connection]:
            del self._by_address[address]
        if connection.other is None:
            return False
        peer = connection.peer
        others = [other for other in self._all if other.is_open and other.peer == peer]
        if self._by_name.get(peer.name) is connection:
            del self._by_name[peer.name]
            if others:
                self._by_name[peer.name] = others[0]
        return not others

    # --- dialling ----------------------------------------------------------------------------------------------

    async def dial(self, address: PeerAddress) -> Connection:
        """An open connection to ``address``: the one there is, or a new one.

        Raises:
            OSError: nobody answers there.
            RpcError: somebody does, but it is not whom we want to talk to.
        """
        connection = self.find(address)
        if connection is not None:
            return connection
        task = self._dialling.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[address] = task
            task.add_done_callback(functools.partial(self._end_dialling, address))
        return await asyncio.shield(task)  # others may wait for the same connection

    def _end_dialling(self, address: PeerAddress, task: asyncio.Task[Connection]) -> None:
        self._dialling.pop(address, None)
        if not task.cancelled():
            task.exception()  # all who waited may have been called off: nobody is told then

    async def _dial(self, address: PeerAddress) -> Connection:
        sock = await asyncio.wait_for(self._connect(address), MAX_TIME_S)
        if self._is_closing:  # wait_for forgets that it was cancelled when its result is there at the same time
            sock.close()
            raise asyncio.CancelledError
        connection = self._adopt(sock, connecting=True)
        try:
            peer: Peer = await asyncio.shield(connection.opened)
        except PeerLostError as error:
            raise ConnectionError(error.why) from error
        except asyncio.CancelledError:
            connection.close("dialling was given up")
            raise
        if address.name and peer.name != address.name:
            connection.close("not whom we looked for")
            raise ConnectionError(f"{peer.name} answers there")
        self._by_address[address] = connection
        return connection

    async def _connect(self, address: PeerAddress) -> socket.socket:
        if self._use_unix and address.unix and address.boot_id == boot_id():
            with contextlib.suppress(ConnectionError):  # another network namespace: TCP may still lead there
                return await self._connect_to(socket.AF_UNIX, "\0" + address.unix)
        if not address.host:
            raise ConnectionRefusedError(f"nobody listens at unix:{address.unix}")
        infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        failure: OSError = OSError(f"{address.host} has no address")
        for family, _, _, _, where in infos:
            try:
                sock = await self._connect_to(family, where)
                return sock if self._tls is None else await self._tls.connect(sock, address.host)
            except OSError as error:
                failure = error
        raise failure

    @staticmethod
    async def _connect_to(family: int, where: object) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, where)  # type: ignore[arg-type]
            if family == socket.AF_UNIX and not same_user(sock):
                raise AuthenticationError("the unix socket belongs to another user")
            if family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError("nobody listens there")  # TCP connected the socket to itself
        except BaseException:
            sock.close()
            raise
        return sock

    # --- the end -----------------------------------------------------------------------------------------------

    async def close(self, why: str, flush_timeout_s: float) -> None:
        """Stop listening and dialling, let queued answers go out, say goodbye, close everything."""
        self._is_closing = True
        loop = asyncio.get_running_loop()
        for timer in self._paused:
            timer.cancel()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        tasks: list[asyncio.Task[Any]] = [*self._dialling.values(), *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        backlogs = [connection.drained() for connection in self._all]
        if backlogs:
            await asyncio.wait(backlogs, timeout=flush_timeout_s)
        for connection in list(self._all):
            connection.close(why, goodbye=True)
