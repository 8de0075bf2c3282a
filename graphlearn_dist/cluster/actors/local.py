"""Actors as processes of this machine, children of the driver that end with it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import glob
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ... import _C
from ...errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    WorkerDiedError,
    WorkerLateError,
    WorkerNameTakenError,
)
from ...utils.system.lifetime import Home
from ...utils.system.ports import free_port
from .base import (
    Actor,
    ActorBackend,
    ActorProfile,
    ActorSpec,
    GroupWorkerHandle,
    NodePort,
    NodeResources,
    Promise,
    Ref,
    Reservation,
    ReservationRequest,
    ports_given,
)
from .environ import WITHHELD, forwarded_environ
from .shell import ShellSetup
from .wire import Answer, Call, Ready, RemoteTracebackError, Start, dump, header, load_answer, main_path

_KILL_WAIT_S = 10.0
_ADDRESS = "127.0.0.1"
_CHILD = f"{__package__}.child"


class LocalRef:
    """A result that may not be there yet."""

    def __init__(self, future: concurrent.futures.Future[Any] | None = None) -> None:
        self._future: concurrent.futures.Future[Any] = future or concurrent.futures.Future()

    def future(self) -> concurrent.futures.Future[Any]:
        """The result as a future of ``concurrent.futures``."""
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()

    def __reduce__(self) -> Any:
        raise InvalidArgumentError(
            "reference: expected one of Ray to be sent to another process; what a local worker answers is known only "
            "where it was called"
        )


class LocalPromise(Promise):
    """A reference that is resolved by hand."""

    def __init__(self) -> None:
        self.ref = LocalRef()

    def keep(self, worker: Actor) -> None:
        self.ref.future().set_result(GroupWorkerHandle(lambda: worker))

    def fail(self, error: BaseException) -> None:
        self.ref.future().set_exception(error)


class LocalStream:
    """The items of a generator that runs in an actor; each is a reference, as soon as it is there."""

    def __init__(self) -> None:
        # The generator runs ahead of its reader, as Ray's does: who yields much yields references to it.
        self.items: queue.SimpleQueue[LocalRef | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[LocalRef]:
        return self

    def __next__(self) -> LocalRef:
        item = self.items.get()
        if item is None:
            self.items.put(None)  # it stays at its end
            raise StopIteration
        return item


class LocalActor(Actor):
    """A process, and two threads here: one starts it and reads its answers, one sends it calls."""

    def __init__(self, spec: ActorSpec, on_end: Callable[[LocalActor], None]) -> None:
        self.spec = spec
        self._home = Home(f"the worker {spec.name}")
        self._start_deadline = time.monotonic() + spec.start_timeout_s
        self._on_end = on_end
        self._ready: concurrent.futures.Future[ActorProfile] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._gone = threading.Event()
        self._lock = threading.Lock()  # of what follows
        self._pending: dict[int, LocalRef | LocalStream] = {}
        self._number = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._killed = False
        # Calls whose process is not up or does not read: each has its reference, with the caller.
        self._unsent: queue.SimpleQueue[tuple[Call, bytes | None] | None] = queue.SimpleQueue()
        setup = ShellSetup(spec.target, spec.args, spec.kwargs, spec.env, spec.memory_limit_bytes, socket.gethostname())
        concurrency = int(spec.options.get("max_concurrency", 1))
        self._start = dump(Start(main_path(), concurrency, dump(setup)))
        name = spec.name or "worker"
        # The thread that starts a process must live as long as it: the kernel kills it when that thread ends.
        threading.Thread(target=self._follow, name=f"follow {name}", daemon=True).start()

    @property
    def ready(self) -> concurrent.futures.Future[ActorProfile]:
        return self._ready

    @property
    def ended(self) -> concurrent.futures.Future[None]:
        return self._ended

    def call(self, method: str, *args: Any, **kwargs: Any) -> LocalRef:
        ref = LocalRef()
        self._submit(ref, "call", method, args, kwargs)
        return ref

    def stream(self, method: str, *args: Any, **kwargs: Any) -> LocalStream:
        stream = LocalStream()
        self._submit(stream, "stream", method, args, kwargs)
        return stream

    def control(self, operation: str) -> LocalRef:
        ref = LocalRef()
        self._submit(ref, "control", operation, (), {})
        return ref

    def kill(self) -> None:
        """Ends it; returns when it is gone. Without effect in a fork."""
        if not self._home.is_own:
            return
        with self._lock:
            self._killed = True
            if self._popen is not None and self._popen.returncode is None:
                os.kill(self._popen.pid, signal.SIGKILL)
        if not self._gone.wait(_KILL_WAIT_S):
            raise DeadlineExceededError(f"{self.spec.name}: expected to end within {_KILL_WAIT_S:g} s of being killed")

    # --- calls out ---------------------------------------------------------------------------------------------

    def _submit(self, waiter: LocalRef | LocalStream, kind: str, method: str, args: Any, kwargs: Any) -> None:
        self._home.check_own()
        with self._lock:
            self._number += 1
            call = Call(self._number, kind, method, args, kwargs)
        depends = any(isinstance(value, LocalRef) for value in (*args, *kwargs.values()))
        data = None if depends else dump(call)  # now: the caller may change its arguments once we return
        with self._lock:
            if not self._gone.is_set():
                self._pending[call.number] = waiter
                self._unsent.put((call, data))
                return
        _fail(waiter, self._ended.exception())

    def _send(self, connection: Connection) -> None:
        with contextlib.suppress(OSError):  # it is gone already: how it ended is what counts
            connection.send_bytes(self._start)  # here: a process that does not read must not hold up who watches it
        while (item := self._unsent.get()) is not None:
            call, data = item
            try:
                data = dump(_resolved(call, self._ended)) if data is None else data
            except BaseException as error:  # whatever an argument's own call raised
                self._fail_one(call.number, error)
                continue
            with contextlib.suppress(OSError):  # it is gone: the reader says so to all who wait
                connection.send_bytes(header(call) + data)

    # --- answers in --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        name = self.spec.name or "worker"
        end = WorkerDiedError(f"{name} could not be started")
        try:
            end = WorkerDiedError(f"{name} {self._run()}")
        except WorkerLateError as error:
            end = error
        except OSError as error:
            end = WorkerDiedError(f"{name} could not be started: {error}")
        finally:
            self._end(end)

    def _run(self) -> str:
        """The process from its start to its end; how it ended."""
        ours, theirs = socket.socketpair()
        with theirs, Connection(ours.detach()) as connection:
            # The driver's own search path, which it may have changed since its start.
            program = f"import sys; sys.path[:] = {sys.path!r}; from {_CHILD} import main; main()"
            popen = subprocess.Popen(
                [self._interpreter(), "-c", program, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**forwarded_environ(without=WITHHELD), **self.spec.env},
                start_new_session=True,  # so that what it starts can be ended with it
            )
            theirs.close()
            with self._lock:
                self._popen = popen
                if self._killed:
                    popen.kill()
            threading.Thread(target=self._send, args=(connection,), daemon=True, name="send calls").start()
            try:
                self._read(connection, popen.pid)
            finally:
                self._unsent.put(None)
                code = self._reap(popen)
        end = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"(pid {popen.pid}) ended: {end}"

    def _interpreter(self) -> str:
        return str(self.spec.options.get("runtime_env", {}).get("py_executable") or sys.executable)

    def _read(self, connection: Connection, pid: int) -> None:
        """Hands answers to who waits, until the process is gone and nothing is left to read.

        Raises:
            WorkerLateError: it is not constructed in time.
        """
        process = _C.open_process(pid)  # its own children may hold the socket open after it
        try:
            while True:
                patience = None if self._ready.done() else max(0.0, self._start_deadline - time.monotonic())
                readable = wait([connection, process], patience)
                if not readable:
                    raise self.spec.late(socket.gethostname())
                if connection in readable:
                    try:
                        self._receive(load_answer(connection.recv_bytes()))
                    except (EOFError, ConnectionError):
                        return
                elif process in readable:
                    return
        finally:
            os.close(process)

    def _reap(self, popen: subprocess.Popen[bytes]) -> int:
        """Ends the whole session of the process; its number is not free for others before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        with self._lock:
            return popen.wait()

    def _receive(self, message: Ready | Answer) -> None:
        if isinstance(message, Ready):
            self._ready.set_result(message.profile)
            return
        if message.number == 0 and message.error is not None:
            message.error.__cause__ = RemoteTracebackError(message.value)
            self._ready.set_exception(message.error)
            return
        with self._lock:
            waiter = self._pending.get(message.number)
            if not message.more:
                self._pending.pop(message.number, None)
        if waiter is None:
            return
        if message.error is not None:
            message.error.__cause__ = RemoteTracebackError(message.value)
            _fail(waiter, message.error)
        elif isinstance(waiter, LocalRef):
            waiter.future().set_result(message.value)
        else:
            waiter.items.put(_done(message.value) if message.more else None)

    def _fail_one(self, number: int, error: BaseException) -> None:
        with self._lock:
            waiter = self._pending.pop(number, None)
        if waiter is not None:
            _fail(waiter, error)

    def _end(self, error: WorkerDiedError) -> None:
        self._on_end(self)  # its name is free before anybody hears of its end
        with self._lock:
            waiting = list(self._pending.values())
            self._pending.clear()
            self._gone.set()
        # Without the lock: whoever hears of it may call us.
        self._ended.set_exception(error)
        if not self._ready.done():
            self._ready.set_exception(error)
        for waiter in waiting:
            _fail(waiter, error)


class LocalActors(ActorBackend):
    """Processes of this machine. Processors are not counted: the operating system shares them out."""

    name = "local"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, LocalActor] = {}
        self._reserved: dict[int, list[LocalActor]] = {}

    def nodes(self) -> list[NodeResources]:
        return [NodeResources(socket.gethostname(), _ADDRESS, math.inf, len(glob.glob("/dev/nvidia[0-9]*")))]

    def reserve(self, requests: Sequence[ReservationRequest], timeout_s: float) -> list[Reservation]:
        return [Reservation(request, self) for request in requests]

    def wait_for_room(self, requests: Sequence[ReservationRequest], timeout_s: float) -> None:
        return  # no machine joins this one

    def release(self, reservation: Reservation) -> None:
        with self._lock:
            actors = self._reserved.pop(id(reservation), [])
        for actor in actors:
            actor.kill()

    def create(self, spec: ActorSpec) -> LocalActor:
        with self._lock:
            if spec.name and spec.name in self._named:
                raise WorkerNameTakenError(f"name: expected one that no live worker has, got {spec.name!r}")
            actor = LocalActor(spec, self._forget)
            if spec.name:
                self._named[spec.name] = actor
            if spec.reservation is not None:
                self._reserved.setdefault(id(spec.reservation), []).append(actor)
        return actor

    def _forget(self, actor: LocalActor) -> None:
        with self._lock:
            if self._named.get(actor.spec.name) is actor:
                del self._named[actor.spec.name]
            for actors in self._reserved.values():
                if actor in actors:
                    actors.remove(actor)

    def bundle_nodes(self, reservation: Reservation) -> list[str]:
        return [socket.gethostname()] * reservation.bundle_count

    def find_port(
        self,
        reservation: Reservation,
        bundle_index: int,
        low: int,
        high: int,
        given: Collection[tuple[str, int]] = (),
    ) -> Ref:
        port = free_port("", low, high, ports_given(given, _ADDRESS))
        return _done(NodePort(socket.gethostname(), _ADDRESS, port))

    def get(self, refs: Sequence[Ref], timeout_s: float | None = None) -> list[Any]:
        futures = [ref.future() for ref in refs]
        done, missing = concurrent.futures.wait(futures, timeout_s, concurrent.futures.FIRST_EXCEPTION)
        if missing and not any(future.exception() for future in done):
            raise DeadlineExceededError(f"expected {len(refs)} results within {timeout_s} s, got {len(done)}")
        for future in done:
            if error := future.exception():
                raise error
        return [future.result() for future in futures]

    def kill(self, actor: Actor) -> None:
        if not isinstance(actor, LocalActor):
            raise InvalidArgumentError(f"actor: expected one of local processes, got {actor!r}")
        actor.kill()

    def handle(self, actor: Callable[[], Actor]) -> GroupWorkerHandle:
        return GroupWorkerHandle(actor)

    def promise(self, keeper: Actor) -> Promise:
        return LocalPromise()

    def put(self, value: Any) -> Ref:
        return _done(value)

    def is_stream(self, value: Any) -> bool:
        return isinstance(value, LocalStream)

    def is_death(self, error: BaseException) -> bool:
        return isinstance(error, WorkerDiedError)

    def is_lost(self, error: BaseException) -> bool:
        return self.is_death(error)


def _done(value: Any) -> LocalRef:
    ref = LocalRef()
    ref.future().set_result(value)
    return ref


def _fail(waiter: LocalRef | LocalStream, error: BaseException | None) -> None:
    if isinstance(waiter, LocalRef):
        waiter.future().set_exception(error)
        return
    failed = LocalRef()
    failed.future().set_exception(error)
    waiter.items.put(failed)
    waiter.items.put(None)


def _resolved(call: Call, ended: concurrent.futures.Future[None]) -> Call:
    """The call with the results of the references among its arguments; raises what one of them raised."""
    refs = [value.future() for value in (*call.args, *call.kwargs.values()) if isinstance(value, LocalRef)]
    pending = set(refs)
    while pending and not ended.done():
        done, _ = concurrent.futures.wait([*pending, ended], return_when=concurrent.futures.FIRST_COMPLETED)
        pending -= done
    args = [value.future().result(0) if isinstance(value, LocalRef) else value for value in call.args]
    kwargs = {
        key: value.future().result(0) if isinstance(value, LocalRef) else value for key, value in call.kwargs.items()
    }
    return Call(call.number, call.kind, call.method, args, kwargs)
