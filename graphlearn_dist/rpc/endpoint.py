"""An endpoint: one process's place in the RPC, server and client at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from .._C import Answerer, RpcEngine, RpcStream
from ..config import RpcSettings, unix_sockets
from ..errors import InvalidArgumentError, NotInitializedError, PeerLostError, RpcError, SystemLimitError
from ..telemetry import register_source
from ..utils.system.lifetime import Home, start_thread
from .calls.call import Answer, Call, OutcomeType, Reply
from .calls.callees import Callees
from .calls.deadlines import Deadlines
from .calls.outgoing import Outgoing
from .connection import Connection
from .engine.engines import Engine, engine_name, open_engine
from .engine.loops import EndpointLoop
from .engine.native import NativeEngine
from .engine.threads import Posts, WorkerThreads
from .engine.tls import open_tls
from .job.membership import LEAVE_TIMEOUT_S, Membership
from .peers.handshake import Introduction
from .peers.identity import Member, Peer, PeerAddress, Target, boot_id, current_deadline
from .peers.links import Links, listen_tcp, open_listeners
from .peers.refusals import Refusals
from .shm.arena import SendingArena
from .shm.loans import Loans
from .stats import EndpointStats, count_connections
from .traffic import Traffic
from .wire.codec import encode

_BUSY_S = 2.0
_CLOSE_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 1.0

T = TypeVar("T")


class Reached(NamedTuple):
    """An endpoint that another is connected to.

    Attributes:
        stream: what queries to it go by; None where it takes none, as its engine is in Python.
        peer: who it is.
        take_lent: gives the payload of an answer that it has lent, by place and bytes; see ``Connection.take_lent``.
    """

    stream: RpcStream | None
    peer: Peer
    take_lent: Callable[[Any, int], Any]


class Endpoint:
    """Calls functions of other endpoints, and answers for those registered here.

    The constructor opens nothing; ``open`` (or ``with``) does. Everything that waits on the network runs on the
    endpoint's own thread, so heartbeats go on while the program computes. Methods may be called from any thread.

    Args:
        role: the group it belongs to, such as ``"server"``.
        rank: its rank within the role, from 0.
        name: unique in the job; ``"{role}-{rank}"`` by default.
        settings: times, sizes and limits.
        token: shared secret of the job. Without it only this host is served.
        listen_host: TCP address to listen on; None for no TCP listener. ``"0.0.0.0"`` needs a token.
        listen_port: TCP port; 0 for any, or a range, of which the first free one is taken.
        use_unix: whether to listen on, and prefer, unix sockets between processes of one host; as
            ``GLD_UNIX_SOCKETS`` says if None.
    """

    def __init__(
        self,
        role: str,
        rank: int,
        *,
        name: str | None = None,
        settings: RpcSettings = RpcSettings(),  # noqa: B008 it is frozen
        token: bytes | None = None,
        listen_host: str | None = "127.0.0.1",
        listen_port: int | range = 0,
        use_unix: bool | None = None,
    ) -> None:
        if not role or rank < 0:
            raise InvalidArgumentError(f"role, rank: expected a name and a rank from 0, got {role!r}, {rank}")
        if token is not None and not token:
            raise InvalidArgumentError("token: expected some bytes or None, got b''")
        self.settings = settings
        self.peer = Peer(name or f"{role}-{rank}", role, rank, time.time_ns(), os.getpid(), socket.gethostname()[:200])
        self.home = Home(f"the endpoint {self.peer.name}")
        self.token = token
        self._listen = (listen_host, listen_port if isinstance(listen_port, range) else [listen_port])
        self._use_unix = use_unix = unix_sockets() if use_unix is None else use_unix
        self._tls = open_tls(settings)
        self._engine_name = engine_name(settings, with_tls=self._tls is not None)
        self._introduction = Introduction(
            self.peer,
            boot_id(),
            settings.max_payload_bytes,
            max_inflight=settings.max_inflight,
            answers_queries=self._engine_name == "native",
        )
        self._callees = Callees(settings.num_threads, self.peer.name)
        self.serve = self._callees.serve  # what connections do with requests
        self._callbacks = WorkerThreads(1, f"rpc-events-{self.peer.name}")
        self._refusals = Refusals(self.peer.name)
        self.traffic = Traffic(self.peer.name, self._callees.times, self._refusals)
        register_source(self.traffic)
        self._links = Links(self, self._introduction, token, self._refusals, self._tls, use_unix=use_unix)
        self._membership = Membership(self)
        self.on_refused = self._membership.on_refused.append  # to be called where another job has the registry's place
        self._arena: SendingArena | None = None
        self._arena_refused = settings.arena_bytes <= 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posting = threading.RLock()  # what is begun, until the loop has it
        self._thread: threading.Thread | None = None
        self._thread_id: int | None = None
        self._deadlines: Deadlines | None = None
        self._posts: Posts | None = None
        self._outgoing = Outgoing(self.peer.name, settings, self._links, self._membership)
        self.give_up = self._outgoing.give_up  # on the loop's thread
        self._on_lost: list[Callable[[Peer, str], None]] = []
        self._topics: dict[str, Callable[[Connection, Any], None]] = {}
        self._answerers: dict[str, Answerer] = {}
        self._engine: Engine | None = None
        self._loans: Loans | None = None
        self._address: PeerAddress | None = None
        self._closed = False

    # --- life --------------------------------------------------------------------------------------------------

    def open(self) -> Endpoint:
        """Listen, and start the endpoint's thread.

        Raises:
            InvalidArgumentError: the listener would be open to the network without a token.
            NotInitializedError: the endpoint was closed.
            OSError: the address cannot be bound, or no descriptors are left.
            SystemLimitError: no threads are left.
        """
        self.home.check()
        if self._closed:
            raise NotInitializedError(f"{self.peer.name} was closed; make a new endpoint")
        if self._loop is not None:
            return self
        listeners, self._address = open_listeners(
            *self._listen, self.peer.name, use_unix=self._use_unix, has_token=self.token is not None
        )
        loop = EndpointLoop()
        started = threading.Event()
        thread = threading.Thread(target=loop.run, args=(started,), name=f"rpc-{self.peer.name}", daemon=True)
        try:
            start_thread(thread)
        except SystemLimitError:
            loop.close()
            for listener in listeners:
                listener.close()
            raise
        self._loop, self._thread, self._thread_id = loop, thread, thread.ident
        self._deadlines, self._posts = Deadlines(loop), Posts(loop)
        started.wait(_CLOSE_TIMEOUT_S)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for listener in listeners:
                undo.enter_context(listener)
            self._run_on_loop(functools.partial(self._start, listeners))
            undo.pop_all()
        return self

    async def _start(self, listeners: list[socket.socket]) -> None:
        self._loans = Loans(self.loop)
        self._engine = open_engine(self._engine_name, self.loop, self.settings, self.peer.name)
        for service, answerer in self._answerers.items():
            self.answer_queries(service, answerer)
        for listener in listeners:
            self._links.add_listener(listener)

    def close(self) -> None:
        """Answer what runs, say goodbye, fail what is in flight, free everything. Idempotent; nothing in a fork."""
        if not self.home.is_here:
            self._closed = True
            return
        loop, thread = self._loop, self._thread
        with self._posting:
            was_closed, self._closed = self._closed, True
        if was_closed or loop is None or thread is None:
            return
        if threading.current_thread() is thread:
            raise InvalidArgumentError("close: expected to be called outside of the endpoint's own thread")
        self._callees.close(_FLUSH_TIMEOUT_S)  # what runs may be the very call that had this endpoint closed
        future = asyncio.run_coroutine_threadsafe(self._shut_down(), loop)
        try:
            future.result(_CLOSE_TIMEOUT_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_TIMEOUT_S)
            if not thread.is_alive():
                loop.close()
                self._thread_id = None  # another thread may have the number one day
            self._callees.close(_FLUSH_TIMEOUT_S)  # those that waited for what they asked others know better now
            self._callbacks.close(_FLUSH_TIMEOUT_S)

    async def _shut_down(self) -> None:
        self._membership.retire()
        await self._outgoing.close()
        await self._links.close(f"{self.peer.name} is closed", _FLUSH_TIMEOUT_S)
        self._refusals.tell_left_out()
        await self._callees.cancel_all()
        self._membership.close()
        if self._engine is not None:
            self._engine.close()
        if self._loans is not None:
            self._loans.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._arena_refused = True

    __enter__ = open

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the endpoint's thread, where coroutine callees run."""
        self.home.check()
        if self._loop is None or self._closed:
            raise NotInitializedError(f"{self.peer.name} is not open")
        return self._loop

    @property
    def address(self) -> PeerAddress:
        """Where it listens."""
        if self._address is None:
            raise NotInitializedError(f"{self.peer.name} is not open")
        return self._address

    @property
    def name(self) -> str:
        """Its unique name."""
        return self.peer.name

    def is_open(self) -> bool:
        """Whether requests can be made."""
        return self._loop is not None and not self._closed and self.home.is_here

    def find_fault(self) -> str | None:
        """What keeps it from answering others, or None; from any thread, after two seconds at most."""
        answered = threading.Event()
        try:
            self.loop.call_soon_threadsafe(answered.set)
        except (NotInitializedError, RuntimeError):
            return f"{self.peer.name} is closed"
        if answered.wait(_BUSY_S):
            return None
        return f"the event loop of {self.peer.name} has been busy for more than {_BUSY_S:g} s"

    def is_connected(self, peer: Peer) -> bool:
        """Whether a peer has a connection to this endpoint now. On the loop's thread."""
        return any(connection.is_open and connection.peer == peer for connection in self._links.connections)

    def stats(self) -> EndpointStats:
        """Counters, for metrics and tests."""
        return self._run_on_loop(lambda: count_connections(self._links, self._arena, self._refusals))

    def _run_on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self.begin(make).result(_CLOSE_TIMEOUT_S)

    def begin(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Runs a coroutine on the loop. From any thread.

        Raises:
            NotInitializedError: it is not open; then no coroutine is made.
        """
        with self._posting:  # or else the loop might end before it has heard of it
            loop = self.loop
            return asyncio.run_coroutine_threadsafe(make(), loop)

    # --- callees and callbacks ---------------------------------------------------------------------------------

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Let other endpoints call ``function`` by ``name``.

        Coroutine functions run on the endpoint's loop and must not block it; others run in ``settings.num_threads``
        threads. Arguments and results are what ``codec.encode`` takes; a result may be an ``Encoded``, sent as it is.
        """
        self._callees.register(name, function)

    def register_all(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """The same for several functions, by name; see ``calls.remote.remote_functions``."""
        self._callees.register_all(functions)

    def unregister(self, name: str) -> None:
        """Forget a registered function."""
        self._callees.unregister(name)

    def answer_queries(self, service: str, answerer: Answerer) -> None:
        """Let other endpoints ask ``answerer`` under the name of ``service``, without the interpreter.

        Where the engine is in Python nobody asks so.
        """
        self._answerers[service] = answerer
        if isinstance(self._engine, NativeEngine):
            self._engine.native.serve(service, answerer)

    def on_peer_lost(self, callback: Callable[[Peer, str], None]) -> None:
        """Call ``callback(peer, why)``, in a thread of its own, whenever the last connection to a peer is gone."""
        self._on_lost.append(callback)

    def on_member_lost(self, callback: Callable[[Member, str], None]) -> None:
        """Call ``callback(member, why)``, in a thread of its own, when a member is lost, or another took its place."""
        self._membership.on_lost.append(callback)

    def on_member_left(self, callback: Callable[[Member], None]) -> None:
        """Call ``callback(member)``, in a thread of its own, when a member has said that it leaves."""
        self._membership.on_left.append(callback)

    def on_member_joined(self, callback: Callable[[Member], None]) -> None:
        """Call ``callback(member)``, in a thread of its own, whenever a member joins, or joins again."""
        self._membership.on_joined.append(callback)

    def subscribe(self, topic: str, handler: Callable[[Connection, Any], None]) -> None:
        """Take events of a topic; ``handler`` runs on the loop's thread."""
        self._topics[topic] = handler

    def run_callback(self, callback: Callable[..., None], *args: Any) -> None:
        """Run a user's callback off the loop; what it raises goes to ``threading.excepthook``."""
        self._callbacks.run(callback, *args)

    # --- requests ----------------------------------------------------------------------------------------------

    def request(
        self,
        target: Target,
        function: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        fail_fast: bool = False,
        **kwargs: Any,
    ) -> Future[Any]:
        """Call ``function`` of ``target`` with the arguments; the result comes in a future.

        A connection is made when it is needed, for at most ``settings.connect_timeout_s``. A request that was sent is
        never sent again. Tensors are sent from their own memory: do not change them before the future is done.

        Args:
            target: a member's name, its (role, rank), or an address.
            function: the name it is registered under.
            timeout_s: deadline; ``settings.request_timeout_s`` by default. A callee's own requests inherit the
                deadline of the request that it answers.
            fail_fast: fail at once where the target cannot be reached, instead of trying until the deadline.

        Raises (from the future):
            PeerLostError: the connection broke, or could not be made.
            DeadlineExceededError: no answer in time.
            RemoteError: the callee raised. An error of this package comes as its own class.
        """
        return self._start_call(Answer(), target, function, [list(args), kwargs], timeout_s, fail_fast)

    def call(
        self,
        target: Target,
        function: str,
        /,
        *args: Any,
        timeout_s: float | None = None,
        fail_fast: bool = False,
        **kwargs: Any,
    ) -> Any:
        """``request``, and wait for the result."""
        if threading.get_ident() == self._thread_id:
            raise InvalidArgumentError(f"call: {function!r} would block the endpoint's loop; await a request instead")
        reply = self._start_call(Reply(function), target, function, [list(args), kwargs], timeout_s, fail_fast)
        limit = self.settings.request_timeout_s if timeout_s is None else timeout_s
        return reply.take(limit + _CLOSE_TIMEOUT_S)  # longer only when the endpoint was closed meanwhile

    def _start_call(
        self,
        outcome: OutcomeType,
        target: Target,
        function: str,
        arguments: list[Any],
        timeout_s: float | None,
        fail_fast: bool,
    ) -> OutcomeType:
        self.home.check()
        deadlines, posts = self._deadlines, self._posts
        if deadlines is None or posts is None or self._closed:
            raise NotInitializedError(f"{self.peer.name} is not open")
        timeout = self.settings.request_timeout_s if timeout_s is None else timeout_s
        if timeout <= 0:
            raise InvalidArgumentError(f"timeout_s: expected a positive number of seconds, got {timeout}")
        encoded = encode(arguments)
        now = time.monotonic()
        inherited = current_deadline()
        deadline = now + timeout if inherited is None else min(now + timeout, inherited)
        call = Call(function, target, encoded, deadline, max(0.0, deadline - now), deadlines, posts, outcome)
        deadlines.add(call)
        if not self._outgoing.start(posts, call, target, fail_fast):
            deadlines.discard(call)
            raise NotInitializedError(f"{self.peer.name} is closed")
        return outcome

    @property
    def native_engine(self) -> RpcEngine | None:
        """What queries are asked by; None where the engine is in Python."""
        return self.engine.native if isinstance(self.engine, NativeEngine) else None

    def connect(self, target: Target, timeout_s: float) -> Future[Reached]:
        """Connect to a target, at once or not at all.

        Raises (from the future):
            PeerLostError: it cannot be reached.
            NotInitializedError: the endpoint was closed.
        """

        async def connected() -> Reached:
            deadline = asyncio.get_running_loop().time() + timeout_s
            try:
                connection = await self._outgoing.connected(target, deadline, lambda: False, fail_fast=True)
            except asyncio.CancelledError:
                if self._closed:
                    raise NotInitializedError(f"{self.peer.name} is not open") from None
                raise
            return Reached(connection.query_stream, connection.peer, connection.take_lent)

        return self.begin(connected)

    def disconnect(self, stream: RpcStream, why: str) -> Future[None]:
        """Close the connection that queries go by; no ``connect`` gives it any more when the future is done."""

        async def disconnected() -> None:
            connection = self._links.with_stream(stream)
            if connection is not None:
                connection.close(why)

        return self.begin(disconnected)

    # --- what connections ask for (on the loop's thread) -------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """What moves the frames."""
        if self._engine is None:
            raise NotInitializedError(f"{self.peer.name} is not open")
        return self._engine

    @property
    def loans(self) -> Loans:
        """What it has lent to tensors."""
        if self._loans is None:
            raise NotInitializedError(f"{self.peer.name} is not open")
        return self._loans

    def sending_arena(self) -> SendingArena | None:
        """The arena, opened when it is first wanted."""
        if self._arena is None and not self._arena_refused:
            try:
                self._arena = SendingArena(self.settings.arena_bytes)
            except OSError:  # no memfd on this system: sockets do as well, only slower
                self._arena_refused = True
        return self._arena

    def connection_opened(self, connection: Connection) -> None:
        """A handshake is over."""
        self._links.opened(connection)
        self.traffic.opened(connection)

    def connection_closed(self, connection: Connection, error: RpcError) -> None:
        """A connection is gone."""
        last = self._links.closed(connection)
        self._outgoing.forget(connection)
        self.traffic.closed(connection)
        why = error.why if isinstance(error, PeerLostError) else str(error)
        if connection.refused:
            self._refusals.record(connection.origin, why)
        self._membership.connection_closed(connection, why)
        if last and not self._closed:
            for callback in self._on_lost:
                self.run_callback(callback, connection.peer, why)

    def event(self, connection: Connection, topic: str, value: Any) -> None:
        """An event arrived; topics nobody takes are ignored, so that newer peers may have more of them."""
        handler = self._topics.get(topic)
        if handler is not None:
            handler(connection, value)

    # --- registry and collectives ------------------------------------------------------------------------------

    def join(
        self,
        master_addr: str,
        master_port: int,
        *,
        host_registry: bool = False,
        master_fd: int = -1,
        world_size: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Become a member of a job.

        Args:
            master_addr: host of the registry.
            master_port: its port; 0 lets the hosting process choose one (see ``master_port``).
            host_registry: whether this process hosts it.
            master_fd: a bound socket to host it on, or -1.
            world_size: members that this role will have; None leaves it open.
            timeout_s: how long to wait for the registry; ``settings.connect_timeout_s`` by default.

        Raises:
            DeadlineExceededError: there is no registry.
            RegistryError: the (role, rank) or the name is taken, or the world sizes differ.
        """
        if host_registry:
            listener = listen_tcp(master_addr, master_port, fd=master_fd, has_token=self.token is not None)
            master_port = listener.getsockname()[1]
            self._run_on_loop(functools.partial(self._host_registry, listener))
        timeout = self.settings.connect_timeout_s if timeout_s is None else timeout_s
        self._membership.join(master_addr, master_port, world_size, timeout)

    async def _host_registry(self, listener: socket.socket | None = None) -> None:
        self._membership.host(self._callees)
        if listener is not None:
            self._links.add_listener(listener)

    def host_registry(self) -> PeerAddress:
        """Host the registry of a job where this endpoint listens, without being a member; returns that address."""
        self._run_on_loop(self._host_registry)
        return self.address

    def local_host_towards(self, address: PeerAddress) -> str:
        """This host's address on the open connection to ``address``; "" where there is none."""

        async def look() -> str:
            connection = self._links.find(address)
            return connection.local_host if connection is not None else ""

        return self._run_on_loop(look)

    @property
    def master_port(self) -> int:
        """Port of the registry that it joined."""
        return self._membership.master_port

    def leave(self, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Stop being a member; nobody counts it as lost. A registry that does not answer in time is not waited for."""
        self._membership.leave(timeout_s)

    def members(self, role: str | None = None) -> list[Member]:
        """The members of a role (or of all), by rank, as far as this endpoint knows."""
        return self._membership.members(role)

    def describe(self, role: str, rank: int) -> str:
        """Name, role, rank, pid and host of the last member in that place, gone or not; role and rank of none."""
        return self._membership.describe(role, rank)

    def wait_for_members(
        self, role: str, count: int, timeout_s: float | None = None, *, patient: bool = False
    ) -> list[Member]:
        """Wait until ranks 0 to ``count - 1`` of ``role`` are members; ``patient``: also for a registry that is gone.

        Raises:
            DeadlineExceededError: names the missing ranks.
            PeerLostError: the registry is gone; with ``patient``, still when the time is over.
        """
        timeout = self.settings.request_timeout_s if timeout_s is None else timeout_s
        return self._membership.wait_for_members(role, count, timeout, patient=patient)

    async def members_joined(self, role: str, count: int, timeout_s: float) -> list[Member]:
        """``wait_for_members`` for coroutines of the endpoint's loop."""
        return await self._membership.members_joined(role, count, timeout_s)

    async def members_changed(self, timeout_s: float) -> None:
        """Returns when a member joins or goes, or after ``timeout_s``. On the endpoint's loop."""
        await self._membership.changed(timeout_s)

    def all_gather(
        self, obj: Any, timeout_s: float | None = None, *, group: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Give ``obj`` to every member of a group, and get everybody's, by member name in the order of ranks.

        Args:
            obj: anything that can be encoded; keep it small, it passes through the registry.
            timeout_s: ``settings.request_timeout_s`` by default.
            group: number of members by role; own role with its world size by default.

        Raises:
            DeadlineExceededError: names the members that did not come.
            PeerLostError: a member was lost before it came, or the registry was.
        """
        timeout = self.settings.request_timeout_s if timeout_s is None else timeout_s
        return self._membership.all_gather(obj, timeout, group)

    def barrier(self, timeout_s: float | None = None, *, group: Mapping[str, int] | None = None) -> None:
        """``all_gather`` of nothing: returns when every member of the group has come."""
        self.all_gather(None, timeout_s, group=group)
