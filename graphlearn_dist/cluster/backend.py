"""Where processes run. The supervisor knows only these classes; a new place is a new ``Backend``."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..config import TLS_VARIABLES, job_token
from ..errors import InvalidArgumentError, LaunchError
from ..utils.ports import reserved_port
from .plan import JobPlacement, LaunchPlan, Master, ProcessSpec

_CHILD = str(Path(__file__).with_name("child.py"))
_FORWARDED = ("PYTHONPATH", "OMP_NUM_THREADS", *TLS_VARIABLES)
_LONGEST_LINE = 64 << 10


class Listener(Protocol):
    """Who is told what a process does; called from threads of the backend."""

    def on_line(self, spec: ProcessSpec, line: str) -> None:
        """The process wrote a line (without its end)."""

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        """The process and all it started are gone; ``code`` is 128 + n where signal n killed it. The last call."""


class RunningProcess(ABC):
    """A process that a backend started. All methods are harmless after its end."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to end; the backend kills it ``spec.stop_s`` later."""

    @abstractmethod
    def kill(self) -> None:
        """End it and all it started, now."""

    @abstractmethod
    def tell(self, line: str) -> None:
        """Write a line to the pipe whose descriptor it finds in ``GLD_NEWS_FD``."""


class Backend(ABC):
    """A place where processes run.

    Attributes:
        notices_loss_s: how long a process that was killed may still count as running, because its machine is lost and
            nobody knows yet.
    """

    notices_loss_s: float = 0.0

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


class _Subprocess(RunningProcess):
    """A child.py of this machine, whose signals it is that do the work."""

    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes], listener: Listener) -> None:
        self._popen = popen
        assert popen.stdin is not None  # started with a pipe
        self._link = popen.stdin
        self._lock = threading.Lock()  # between a signal and the reaping, which frees the pid
        self._thread = threading.Thread(target=self._follow, args=(spec, listener), name=f"follow {spec.name}")
        self._thread.daemon = True
        self._thread.start()

    def _follow(self, spec: ProcessSpec, listener: Listener) -> None:
        # child.py ends after everything the command started: the pipe's end is the end of all writers.
        stream = self._popen.stdout
        if stream is None:
            raise RuntimeError("started without a pipe")
        try:
            with stream:
                for line in iter(lambda: stream.readline(_LONGEST_LINE), b""):
                    listener.on_line(spec, line.decode(errors="replace").rstrip("\r\n"))
        finally:  # whatever became of a line: who is not told of the end waits for ever
            listener.on_exit(spec, self._reap())

    def _reap(self) -> int:
        """Waits for the end; returns the exit code, 128 + n for signal n."""
        os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            code = self._popen.wait()
            self._link.close()
        return code if code >= 0 else 128 - code

    def _signal(self, signum: int) -> None:
        with self._lock:
            if self._popen.returncode is None:
                os.kill(self._popen.pid, signum)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def tell(self, line: str) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):  # it ends already
            if not self._link.closed:
                # past the buffer, which would keep what cannot be written, and fail for it again when it is closed
                os.write(self._link.fileno(), line.encode() + b"\n")

    def kill(self) -> None:
        # Its second stop signal makes child.py kill the whole group at once; the first may have been sent already.
        # Two different ones, since two of a kind may arrive as one.
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGHUP)


def _wrapper(spec: ProcessSpec, *options: str) -> list[str]:
    times = ["--share-cores", str(spec.share_cores), "--stop-s", str(spec.stop_s)]
    return [sys.executable, "-I", "-S", _CHILD, *times, *options]


def _watching(spec: ProcessSpec) -> list[str]:
    """Options of the wrapper that is next to the command."""
    return ["--pulse-s", str(spec.heartbeat_timeout_s), "--interpreter-s", str(spec.interpreter_timeout_s)]


class LocalBackend(Backend):
    """Processes on this machine.

    The job's token goes to each process through its link, never on a command line.

    Args:
        token: the job's; None takes or makes one, see ``make_token``.
    """

    def __init__(self, token: bytes | None = None) -> None:
        self._token = token or make_token()

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        """A free port of the loopback, kept: server 0 inherits the listening socket, so nobody can take it.

        Who looks for the registry while server 0 is started again waits in the socket's queue. torch opens its own
        socket by number, which is reserved for it.
        """
        with socket.create_server(("127.0.0.1", 0), backlog=128) as server, reserved_port() as torch_port:
            yield Master("127.0.0.1", server.getsockname()[1], torch_port, server.fileno())

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        return self._run(spec, spec.command, {**os.environ, **spec.env}, listener)

    def _run(
        self,
        spec: ProcessSpec,
        command: Sequence[str],
        env: Mapping[str, str],
        listener: Listener,
        *,
        leads_on: bool = False,
    ) -> RunningProcess:
        """Starts a command of this machine; its standard input, the link, begins with the token and stays open.

        ``leads_on``: the link is that of the wrapper at the other end, which the command reaches.
        """
        options = ["--link", "0"] if leads_on else _watching(spec)
        argv = [*_wrapper(spec, *options), "--parent", str(os.getpid()), "--", *command]
        try:
            popen = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[spec.inherited_fd] if spec.inherited_fd >= 0 else [],
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchError(f"cannot start {spec.name}: {error}") from error
        process = _Subprocess(spec, popen, listener)
        process.tell(self._token.decode())
        return process


class SshBackend(LocalBackend):
    """Processes on other machines, each at the end of an ssh connection that takes it down when it closes.

    Python, the package and the working directory must be at the same paths on every host. A process's link, and with it
    the job's token, goes through its ssh connection.
    """

    def __init__(self, ssh: str) -> None:
        super().__init__()
        self._ssh = shlex.split(ssh)
        if not self._ssh:
            raise InvalidArgumentError(f"ssh: expected a command, got {ssh!r}")

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        """The given port of the host of server 0."""
        yield Master(plan.placement_hosts()[0], plan.port, plan.port + 1)

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        # No terminal: the standard input stays a pipe, whose end tells the other side that we are gone.
        command = [*self._ssh, "-T", spec.host, remote_command(spec)]
        return self._run(spec, command, os.environ, listener, leads_on=True)


def make_token() -> bytes:
    """A job's token: from ``GLD_TOKEN_FILE`` or ``GLD_TOKEN``, else made up."""
    return job_token() or secrets.token_hex(32).encode()


def remote_command(spec: ProcessSpec) -> str:
    """The command line for the shell of another host."""
    forwarded = {name: os.environ[name] for name in _FORWARDED if name in os.environ}
    assignments = [f"{name}={value}" for name, value in {**forwarded, **spec.env}.items()]
    command = shlex.join(["env", *assignments, *_wrapper(spec, *_watching(spec)), "--", *spec.command])
    return f"cd {shlex.quote(os.getcwd())} && exec {command}"


def backend_for(plan: LaunchPlan) -> Backend:
    """The backend that ``plan.backend`` names."""
    if plan.backend == "local":
        return LocalBackend()
    if plan.backend == "ssh":
        return SshBackend(plan.ssh)
    if plan.backend == "ray":
        from .ray_launch import RayLaunchBackend

        return RayLaunchBackend()
    raise InvalidArgumentError(f"backend: expected 'local', 'ssh' or 'ray', got {plan.backend!r}")
