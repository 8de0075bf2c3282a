"""The fork server of this process, as it sees it, and the sampling workers that were forked from there.

There is at most one, from the first worker on until nobody holds it any more. Should it be killed, or freeze, its
workers go on; the next worker is forked from another.

It is not that of ``multiprocessing``: that one is the program's, with what the program has it preload; it listens on a
socket in a temporary directory, which stays when all is killed; its processes import the program's main module, and its
answers have no deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from ... import _C
from ...errors import SamplingWorkerError
from .life_sign import LifeSign

# The interpreter would put its working directory first in ``sys.path``, which is not the program's and may be anyone's.
# The program's own search path comes before the first import that looks for a file; this package is the program's own
# wherever it was found, and whatever else of that name is searched by now.
_PROGRAM = """
import sys
package, sys.path[:] = sys.argv[4], sys.argv[5:]
import importlib.util
spec = importlib.util.spec_from_file_location("graphlearn_dist", package)
sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from graphlearn_dist.distributed.workers import fork_server_main
fork_server_main.run()
"""
_PACKAGE = Path(__file__).parents[2] / "__init__.py"
_START_S = 60.0  # for its imports; they take seconds on a machine that is busy
_ANSWER_S = 60.0  # for one fork, of milliseconds, behind many others; reached by one that lives and does not answer
_STATUS_S = 1.0  # for the exit code of a worker that has ended, and again as long as the fork server lives
_MAX_STATUS_S = 10.0


READY = b"!"  # what the fork server says first
# What is answered to a request: the worker's pid, with a pidfd of it, or minus an error number; later its exit code, as
# ``subprocess`` gives it.
ANSWER = struct.Struct("<i")


class WorkerDescriptors(NamedTuple):
    """What a worker is made of.

    Attributes:
        asker: socket of whoever asked, who is told the worker's pid and how it ends.
        directory: its working directory.
        output: its standard output.
        errors: its standard error.
        control: its socket, see ``sampling_worker``.
        pulse: its pipe, see ``sampling_worker``.
    """

    asker: int
    directory: int
    output: int
    errors: int
    control: int
    pulse: int


class ForkedWorker:
    """A sampling worker's process, a child of the fork server.

    Args:
        pid: its process id.
        pidfd: the process, whatever its number is given to later.
        status: socket on which the fork server says how it ended.
        control: socket to the worker; whoever takes it closes it.
        pulse: pipe of its signs of life; whoever takes it closes it.
        sign: of the fork server's life.
    """

    def __init__(
        self, pid: int, pidfd: int, status: socket.socket, control: socket.socket, pulse: int, sign: LifeSign
    ) -> None:
        self.pid = pid
        self.control = control
        self.pulse = pulse
        self._pidfd = pidfd
        self._status = status
        self._sign = sign
        self._waiting: asyncio.Task[int | None] | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def kill(self) -> None:
        """Kills it; without effect where it has ended, or was let go of."""
        if self._is_closed:  # the descriptor's number may be another's
            return
        with contextlib.suppress(ProcessLookupError):
            _C.kill_process(self._pidfd)

    async def wait(self) -> int | None:
        """Waits for its end. Its exit code, as ``subprocess`` gives it; None where the fork server was gone before."""
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._wait())
        return await asyncio.shield(self._waiting)

    async def _wait(self) -> int | None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            if not self._is_closed:  # its number may be another's by now
                loop.remove_reader(self._pidfd)
        self._status.setblocking(False)
        give_up = loop.time() + _MAX_STATUS_S
        while True:
            try:
                answer = await asyncio.wait_for(loop.sock_recv(self._status, ANSWER.size), _STATUS_S)
                return int(ANSWER.unpack(answer)[0]) if answer else None
            except ConnectionError:  # it was killed
                return None
            except (TimeoutError, asyncio.TimeoutError):
                if self._sign.is_old or loop.time() > give_up:  # it is frozen
                    return None

    def close(self) -> None:
        """Lets go of the process, which may still run; ``control`` and ``pulse`` are their takers'. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._waiting is not None and not self._waiting.done():  # nobody waits any more
            self._waiting.get_loop().remove_reader(self._pidfd)
            self._waiting.cancel()
        os.close(self._pidfd)
        self._status.close()


class _LostError(SamplingWorkerError):
    """The fork server is gone, or does not answer."""


class ForkServer:
    """Starts workers, and before the first of them the process that they are forked from. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._requests: _Requests | None = None
        self._is_closed = False

    def fork(self) -> ForkedWorker:
        """Starts a worker. Waits for it: not to be called on a loop.

        Raises:
            SamplingWorkerError: there is no fork server to be had.
            OSError: the system has no more processes, memory or descriptors.
        """
        try:
            return self._ask()
        except _LostError:  # whatever has happened to it, another one is well
            return self._ask()

    def _ask(self) -> ForkedWorker:
        with self._lock:
            requests = self._requests or self._start()
        try:
            return requests.ask_for_worker()
        except _LostError:
            with self._lock:
                if requests is self._requests:  # and nobody else was faster
                    self._end()
            raise

    def _start(self) -> _Requests:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = LifeSign.make()
        try:
            with theirs:
                self._popen = _start_program(theirs, memory)
            self._requests = requests = _Requests(self._popen.pid, ours, LifeSign(memory))
        finally:
            os.close(memory)
        if self._is_closed:  # maybe since a moment ago, when there was nothing to kill
            self._popen.kill()
        try:
            requests.wait_ready()
        except _LostError:
            self._end()
            raise
        return requests

    def _end(self) -> None:
        popen, requests = self._popen, self._requests
        self._popen = self._requests = None
        if requests is not None:
            requests.close()
        if popen is not None:
            popen.kill()
            popen.wait()

    def close(self) -> None:
        """Ends the process, also on its way up; workers run on. Idempotent."""
        self._is_closed = True
        if (popen := self._popen) is not None:
            popen.kill()  # whoever waits for its start learns of it, and lets the lock go
        with self._lock:
            self._end()


def _start_program(requests: socket.socket, sign: int) -> subprocess.Popen[bytes]:
    try:
        owner = _C.open_process(os.getpid())
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        kernel = f"this kernel ({os.uname().release}), or its sandbox, refuses: {error}"
        raise SamplingWorkerError(f"sampling workers need pidfds, which Linux has from 5.3 on, and {kernel}") from error
    # NumPy's BLAS starts threads when it is imported, and a fork would not have them.
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with contextlib.ExitStack() as ours:
        ours.callback(os.close, owner)
        descriptors = [_above_standard(descriptor, ours) for descriptor in (requests.fileno(), owner, sign)]
        output, errors = _standard_outputs(ours)
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        arguments = [*map(str, descriptors), str(_PACKAGE), *_search_path()]
        command = [_interpreter(), *flags, "-c", _PROGRAM, *arguments]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # inherited: until the program ignores it
        ours.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        return subprocess.Popen(
            command,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environ,
            cwd="/",  # torch is not imported where the working directory is gone, as the program's may be
        )


def _interpreter() -> str:
    """What runs this program, where the program has not changed that and is not embedded in another one."""
    if not sys.executable or not os.access(sys.executable, os.X_OK):
        raise SamplingWorkerError(
            "sampling workers need a Python interpreter: expected its path in sys.executable (for a program that "
            f"embeds Python: to be set by it), got {sys.executable!r}"
        )
    return sys.executable


def _search_path() -> list[str]:
    """This program's ``sys.path``, for a process with another working directory.

    What is relative comes last. It says another directory than when this program made its imports, where the working
    directory has changed since; a ``struct.py`` that lies there is not the program's.
    """
    entries = [entry for entry in sys.path if isinstance(entry, str)]
    relative = [entry for entry in entries if not os.path.isabs(entry)]
    absolute = [entry for entry in entries if os.path.isabs(entry)]
    try:
        return absolute + [os.path.abspath(entry) for entry in relative]
    except FileNotFoundError:  # the working directory was removed, and with it what is searched relative to it
        return absolute


def _above_standard(descriptor: int, stack: contextlib.ExitStack) -> int:
    """A copy whose number is not that of a standard stream, for the time of the stack."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    stack.callback(os.close, copy)
    return copy


def _standard_outputs(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Descriptors of what this program prints and complains to, for the time of the stack."""
    return _output_of(sys.__stdout__, 1, stack), _output_of(sys.__stderr__, 2, stack)


def _output_of(stream: TextIO | None, number: int, stack: contextlib.ExitStack) -> int:
    """A copy of a standard output; of nothing where the program has closed it: its number may be another file's."""
    if stream is not None and not stream.closed:
        with contextlib.suppress(OSError):  # closed without the stream's knowledge
            return _above_standard(number, stack)
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    stack.callback(os.close, nothing)
    return nothing


class _Requests:
    """Where workers are asked for. Thread-safe but for ``wait_ready`` and ``close``.

    Args:
        pid: of the fork server, for errors.
        requests: the socket to it.
        sign: of its life.
    """

    def __init__(self, pid: int, requests: socket.socket, sign: LifeSign) -> None:
        self._pid = pid
        self._socket = requests
        self._sign = sign

    def wait_ready(self) -> None:
        """Returns when the fork server has imported what it needs; ``_LostError`` where it does not come up."""
        self._socket.settimeout(_START_S)
        try:
            if not self._socket.recv(len(READY)):
                raise self._lost("ended on its way up")
        except OSError as error:
            raise self._lost(f"was not ready after {_START_S:g} s: {error}") from error
        self._socket.setblocking(False)

    def _lost(self, why: str) -> _LostError:
        return _LostError(f"the fork server (pid {self._pid}) {why}")

    def ask_for_worker(self) -> ForkedWorker:
        """See ``ForkServer.fork``; ``_LostError`` where the fork server is gone, or frozen."""
        with contextlib.ExitStack() as undo:
            status, asker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(status.close)
            with contextlib.ExitStack() as given:
                given.callback(asker.close)
                control, their_control = socket.socketpair()
                undo.callback(control.close)
                given.callback(their_control.close)
                pulse, their_pulse = os.pipe()
                undo.callback(os.close, pulse)
                given.callback(os.close, their_pulse)
                directory = os.open(".", os.O_PATH | os.O_CLOEXEC)
                given.callback(os.close, directory)
                outputs = _standard_outputs(given)
                self._send(WorkerDescriptors(asker.fileno(), directory, *outputs, their_control.fileno(), their_pulse))
            pid, pidfd = self._receive_worker(status)
            undo.pop_all()
        return ForkedWorker(pid, pidfd, status, control, pulse, self._sign)

    def _send(self, descriptors: WorkerDescriptors) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [b"w"], descriptors)
                return
            except BlockingIOError:  # many have asked
                self._wait_for(self._socket, select.POLLOUT)
            except ConnectionError as error:
                raise self._lost(str(error)) from error
            except OSError as error:
                if self._socket.fileno() >= 0:
                    raise
                raise self._lost("was given up by another thread") from error

    def _wait_for(self, sock: socket.socket, events: int) -> None:
        if why := self._sign.wait_for(sock, events, _ANSWER_S):
            raise self._lost(why)

    def _receive_worker(self, status: socket.socket) -> tuple[int, int]:
        """(pid, pidfd) of the worker that was asked for."""
        self._wait_for(status, select.POLLIN)
        try:
            answer, received, _, _ = socket.recv_fds(status, ANSWER.size, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise self._lost(str(error)) from error
        if not answer:
            raise self._lost("is gone")
        (pid,) = ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, f"fork: {os.strerror(-pid)}")
        if not received:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        os.set_inheritable(received[0], False)  # Python 3.11 drops the flag
        return pid, received[0]

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._socket.close()


class _Shared:
    """What the holders of one process share."""

    def __init__(self) -> None:
        self.server = ForkServer()
        self.num_holders = 0


_lock = threading.Lock()
_shared: dict[int, _Shared] = {}  # by process: a fork of this one has none


@contextlib.contextmanager
def hold_fork_server() -> Iterator[ForkServer]:
    """This process's fork server, the same for all who hold it at a time; it ends when the last lets it go."""
    pid = os.getpid()
    with _lock:
        shared = _shared.setdefault(pid, _Shared())
        shared.num_holders += 1
    try:
        yield shared.server
    finally:
        if os.getpid() == pid and _let_go(shared):  # a fork that frees its copy of a holder is none
            shared.server.close()


def _let_go(shared: _Shared) -> bool:
    """Whether that was the last holder."""
    with _lock:
        shared.num_holders -= 1
        if shared.num_holders > 0:
            return False
        del _shared[os.getpid()]
        return True
