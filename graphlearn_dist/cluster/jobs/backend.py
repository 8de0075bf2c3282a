"""Where processes run. The launcher knows only these classes; a new place is a new ``Backend``."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ...config import job_token
from ...errors import LaunchError
from ...utils.system.lifetime import Home
from ...utils.system.ports import reserved_port
from .checks import check_local
from .plan import JobPlacement, LaunchPlan, Master, ProcessSpec
from .wrapper import SIGN_BEGINS, SIGN_ENDS

_WRAPPER = str(Path(__file__).with_name("wrapper.py"))
LOST = 256  # the exit code of a process whose connection is gone: more than any process can have
_LONGEST_LINE = 64 << 10
_LONGEST_SIGN = 100
_SIGN = re.compile(b"(" + re.escape(SIGN_BEGINS) + b"[ -~]{0,98}" + re.escape(SIGN_ENDS) + b")")


class Listener(Protocol):
    """Who is told what a process does; called from threads of the backend."""

    def on_line(self, spec: ProcessSpec, line: str) -> None:
        """The process wrote a line (without its end)."""

    def on_sign(self, spec: ProcessSpec, sign: str) -> None:
        """The process's wrapper says how it is: ``started``, ``ready``, ``.`` for alive; see wrapper.py."""

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        """The process and all it started are gone; ``code`` is 128 + n where signal n killed it. The last call.

        ``LOST``: the connection to its host is gone, and nobody knows what has become of it.
        """


class RunningProcess(ABC):
    """A process that a backend started. All methods are harmless after its end."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to end; the backend kills it ``spec.stop_s`` later."""

    @abstractmethod
    def kill(self) -> None:
        """End it and all it started, now."""

    def abandon(self) -> None:
        """As ``kill``, for a process from whose host nothing comes: its end is not waited for."""
        self.kill()

    @abstractmethod
    def tell(self, line: str) -> None:
        """Write a line to the pipe whose descriptor it finds in ``GLD_MESSAGES_FD``."""


class Backend(ABC):
    """A place where processes run.

    Attributes:
        notices_loss_s: how long a process that was killed may still count as running, because its machine is lost and
            nobody knows yet.
        token: the job's secret.
    """

    notices_loss_s: float = 0.0
    token: bytes

    def check(self, plan: LaunchPlan, is_called_off: Callable[[], bool]) -> None:  # noqa: B027 nothing, unless said
        """Sees whether a job can run here, before anything of it is started; returns when it is called off.

        Raises:
            InvalidArgumentError: something that the job needs is not there.
            LaunchError: a host cannot be asked.
        """

    @abstractmethod
    def master(self, plan: LaunchPlan) -> contextlib.AbstractContextManager[Master]:
        """Decide where the registry listens, for all processes that are server 0 one after the other.

        What is reserved for it here is given back at the end of the scope, which is the end of the job.
        """

    def place(self, plan: LaunchPlan) -> JobPlacement:
        """A host for each process. Within the scope of ``master``."""
        return plan.placement()

    @abstractmethod
    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        """Start a process without waiting for it, on its host, or on another where that is gone.

        Must be called from a thread that lives as long as the process should.

        Raises:
            LaunchError: it cannot be started.
        """


class Subprocess(RunningProcess):
    """A wrapper.py of this machine, whose signals it is that do the work."""

    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes], listener: Listener) -> None:
        self._home = Home(spec.name)
        self._popen = popen
        assert popen.stdin is not None  # started with a pipe
        self._link = popen.stdin
        self._lock = threading.Lock()  # between a signal and the reaping, which frees the pid
        self._thread = threading.Thread(target=self._follow, args=(spec, listener), name=f"follow {spec.name}")
        self._thread.daemon = True
        self._thread.start()

    def _follow(self, spec: ProcessSpec, listener: Listener) -> None:
        # wrapper.py ends after everything the command started: the pipe's end is the end of all writers.
        stream = self._popen.stdout
        if stream is None:
            raise RuntimeError("started without a pipe")
        try:
            with stream:
                for line, sign in OutputReader(stream.fileno()):
                    if sign:
                        self._on_sign(spec, listener, sign)
                    else:
                        listener.on_line(spec, line)
        finally:  # whatever became of a line: who is not told of the end waits for ever
            listener.on_exit(spec, self._exit_code(self._reap()))

    def _on_sign(self, spec: ProcessSpec, listener: Listener, sign: str) -> None:
        listener.on_sign(spec, sign)

    def _exit_code(self, code: int) -> int:
        """The command's exit code, as that of the process here says it."""
        return code

    def _reap(self) -> int:
        """Waits for the end; returns the exit code, 128 + n for signal n."""
        os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            code = self._popen.wait()
            self._link.close()
        return code if code >= 0 else 128 - code

    def _signal(self, signum: int) -> None:
        if not self._home.is_own:  # a fork of the launcher ends nothing
            return
        with self._lock:
            if self._popen.returncode is None:
                os.kill(self._popen.pid, signum)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def tell(self, line: str) -> None:
        self._home.check_own()
        with self._lock, contextlib.suppress(BrokenPipeError):  # it ends already
            if not self._link.closed:
                # past the buffer, which would keep what cannot be written, and fail for it again when it is closed
                os.write(self._link.fileno(), line.encode() + b"\n")

    def kill(self) -> None:
        # Its second stop signal makes wrapper.py kill the whole group at once; the first may have been sent already.
        # Two different ones, since two of a kind may arrive as one.
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGHUP)


class OutputReader:
    """Reads what a wrapper writes: lines of the command, and signs of its own anywhere between and within them.

    Args:
        descriptor: the reading end.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b""

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Gives (line, "") or ("", sign), in order."""
        rest = b""  # what may be the beginning of a sign
        while text := os.read(self._descriptor, _LONGEST_LINE):
            *pieces, last = _SIGN.split(rest + text)
            for between, sign in zip(pieces[::2], pieces[1::2], strict=True):
                yield from self._lines(between)
                yield "", sign[1:-1].decode()
            begins = last.rfind(SIGN_BEGINS)
            if begins < 0 or len(last) - begins > _LONGEST_SIGN:
                begins = len(last)
            yield from self._lines(last[:begins])
            rest = last[begins:]
        yield from self._lines(rest)
        if self._text:
            yield self._line(self._text)

    def _lines(self, text: bytes) -> Iterator[tuple[str, str]]:
        *lines, self._text = (self._text + text).split(b"\n")
        yield from (self._line(line) for line in lines)
        while len(self._text) >= _LONGEST_LINE:
            line, self._text = self._text[:_LONGEST_LINE], self._text[_LONGEST_LINE:]
            yield self._line(line)

    @staticmethod
    def _line(line: bytes) -> tuple[str, str]:
        return line.decode(errors="replace").rstrip("\r"), ""


def wrapper(spec: ProcessSpec, *options: str) -> list[str]:
    times = ["--share-cores", str(spec.share_cores), "--stop-s", str(spec.stop_s)]
    return [sys.executable, "-I", "-S", _WRAPPER, "--name", spec.name.replace(" ", "-"), *times, *options]


def watching(spec: ProcessSpec) -> list[str]:
    """Options of the wrapper that is next to the command."""
    limits = ["--pulse-s", str(spec.heartbeat_timeout_s), "--interpreter-s", str(spec.interpreter_timeout_s)]
    return ["--pulse", str(int(spec.role == "server")), *limits]


class LocalBackend(Backend):
    """Processes on this machine.

    The job's token goes to each process through its link, never on a command line.

    Args:
        token: the job's; None takes or makes one, see ``make_token``.
    """

    def __init__(self, token: bytes | None = None) -> None:
        self.token = token or make_token()

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        """A free port of the loopback, kept: server 0 inherits the listening socket, so nobody can take it.

        Who looks for the registry while server 0 is started again waits in the socket's queue. torch opens its own
        socket by number, which is reserved for it.
        """
        with socket.create_server(("127.0.0.1", 0), backlog=128) as server, reserved_port() as torch_port:
            yield Master("127.0.0.1", server.getsockname()[1], torch_port, server.fileno())

    def check(self, plan: LaunchPlan, is_called_off: Callable[[], bool]) -> None:
        check_local(plan)

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        popen = self.open(spec, spec.command, {**os.environ, **spec.env}, watching(spec))
        return Subprocess(spec, popen, listener)

    def open(
        self, spec: ProcessSpec, command: Sequence[str], env: Mapping[str, str], options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        """Starts a command of this machine in a wrapper with these options.

        Its standard input, the link, begins with the token and stays open.
        """
        reading, writing = os.pipe()
        beat = ["--beat", str(writing)] if "--link" in options else []
        argv = [*wrapper(spec, *options, *beat), "--parent", str(os.getpid()), "--", *command]
        descriptors = [spec.inherited_fd] if spec.inherited_fd >= 0 else []
        try:
            os.write(writing, self.token + b"\n")  # before the wrapper of an ssh can; a pipe has room for it
            popen = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=reading,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[*descriptors, writing] if beat else descriptors,
                start_new_session=True,
            )
        except OSError as error:
            os.close(writing)
            raise LaunchError(f"cannot start {spec.name}: {error}") from error
        finally:
            os.close(reading)
        popen.stdin = open(writing, "wb", buffering=0)  # noqa: SIM115 who follows the process closes it
        return popen


def make_token() -> bytes:
    """A job's token: from ``GLD_TOKEN_FILE`` or ``GLD_TOKEN``, else made up."""
    return job_token() or secrets.token_hex(32).encode()
