"""Processes that start at once, because they are forks of one that has imported torch already.

A process of a job spends a second and a half of CPU time on imports, which is nothing to a job and everything to tests
that start hundreds of them.

- A ``WarmInterpreter`` is a child of the tests' own process, which has threads and cannot be forked itself. It forks
  what tests run as processes of their own (``processes.start``), and says how they ended.
- Within such a process, and in the fault harness's jobs, ``subprocess.Popen`` of this interpreter is a fork as well,
  made by a *nursery*: a child that keeps its parent's memory as it was before there were threads. All else is as ever:
  the launcher's wrapper around each process, parents and children, process groups, signals, exit codes, inherited
  descriptors.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import util
from pathlib import Path
from typing import IO, Any, NoReturn

_MAX_REQUEST = 1 << 17  # bytes: command and environment of one process
_MAX_DESCRIPTORS = 253  # that a message takes along
_ROOT = Path(__file__).resolve().parents[2]
_START_S = 120.0  # for the imports of a warm interpreter
_IMPORTS = (
    "torch_geometric.data",
    "graphlearn_dist.cli",
    "graphlearn_dist.cluster",
    "graphlearn_dist.glt",
    "tests.support.oracle",
)
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
_STATUS = struct.Struct("<i")  # a process's id, and when it has ended its exit code, which is made positive:
_STATUS_OFFSET = 1000
_OPTIONS = {"env", "stdin", "stdout", "stderr", "pass_fds", "start_new_session", "cwd"}
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FORK_SERVER = "import fork_server_main"  # in its program
_prctl = ctypes.CDLL(None, use_errno=True).prctl

PATCH = "GLD_TEST_PATCH"  # names a function, as module:name, that each process of a job calls before its program
_own_nursery: Nursery | None = None  # of a process that was started warm
STACKS = signal.SIGUSR1  # makes a process of a job write what its threads do to its standard error


class WarmInterpreter:
    """An interpreter that has imported what tests need, and forks. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-c", f"from tests.support import warm; warm.fork_on_request({theirs.fileno()})"],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD, "PYTHONPATH": str(_ROOT)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._socket.settimeout(_START_S)

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int,
        pass_fds: Sequence[int] = (),
        finalizes: bool = False,
    ) -> ForkedProcess:
        """A fork that runs a command line of this interpreter and leads a session of its own.

        Args:
            argv: as for the interpreter.
            env: its environment.
            directory: its working directory.
            stdin: ``subprocess.PIPE`` or ``DEVNULL``.
            stdout: ``subprocess.PIPE`` or a descriptor.
            stderr: a descriptor.
            pass_fds: what else it inherits.
            finalizes: whether it ends as an interpreter does, which takes it ten times as long as to start.
        """
        with contextlib.ExitStack() as theirs:
            status, their_status = socket.socketpair()
            theirs.callback(their_status.close)
            ours = [None, None]
            if stdin == subprocess.PIPE:
                stdin, write = os.pipe()
                ours[0] = os.fdopen(write, "wb")
            else:
                stdin = os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, stdin)
            if stdout == subprocess.PIPE:
                read, stdout = os.pipe()
                ours[1] = os.fdopen(read, "rb")
                theirs.callback(os.close, stdout)
            descriptors = {0: stdin, 1: stdout, 2: stderr, **{number: number for number in pass_fds}}
            request = _request(argv, env, descriptors, session=True, directory=str(directory), finalizes=finalizes)
            with self._lock:
                socket.send_fds(self._socket, [request], [their_status.fileno(), *descriptors.values()])
        return ForkedProcess(status, *ours)

    def close(self) -> None:
        """Ends it; its forks run on."""
        self._socket.close()
        self._popen.wait()


class ForkedProcess:
    """What of ``subprocess.Popen`` tests use, of a fork of a ``WarmInterpreter``."""

    def __init__(self, status: socket.socket, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._status = status
        status.settimeout(_START_S)
        self.pid = self._receive()

    def _receive(self) -> int:
        (number,) = _STATUS.unpack(self._status.recv(_STATUS.size, socket.MSG_WAITALL) or _STATUS.pack(0))
        if not number:
            raise RuntimeError("the warm interpreter is gone")
        return int(number)

    def fileno(self) -> int:
        """A descriptor that can be read when it has ended, until ``wait`` or ``poll`` has said so."""
        return self._status.fileno()

    def wait(self, timeout: float) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = self._receive() - _STATUS_OFFSET
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None


def fork_on_request(number: int) -> None:
    """The program of a ``WarmInterpreter``: forks for each request, until nobody can ask any more.

    Args:
        number: the descriptor of its socket.
    """
    _name("gld-nursery")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _IMPORTS:
        importlib.import_module(module)
    has_threads = len(os.listdir("/proc/self/task")) > 1  # of some package that PyG imports where it finds it
    gc.collect()
    gc.freeze()  # a collection in a fork would write to all pages
    requests = socket.socket(fileno=number)
    requests.set_inheritable(False)
    _Forks(requests, execute=has_threads).serve()


class _Forks:
    """Those of a ``WarmInterpreter``, by a pidfd of each, with the socket on which its exit code is told.

    Args:
        requests: the socket.
        execute: replaces each fork by an interpreter that begins anew: a fork of a process with threads can do no more.
    """

    def __init__(self, requests: socket.socket, *, execute: bool = False) -> None:
        self._requests = requests
        self._execute = execute
        self._poll = select.poll()
        self._poll.register(requests, select.POLLIN)
        self._running: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._running:
                    self._report(descriptor)
                    continue
                data, received, _, _ = socket.recv_fds(self._requests, _MAX_REQUEST, _MAX_DESCRIPTORS)
                if not data:
                    return
                self._fork(json.loads(data), received)

    def _fork(self, request: dict[str, Any], received: list[int]) -> None:
        pid = os.fork()
        status = socket.socket(fileno=received.pop(0))
        status.set_inheritable(False)
        if pid == 0:
            _enter_session(request)
            status.send(_STATUS.pack(os.getpid()))  # not before: it may be killed at once, by its group
            for other in (status, self._requests, *(other for _, other in self._running.values())):
                other.close()
            _become(request, received)
            if self._execute:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.execve(sys.executable, [sys.executable, *request["argv"]], os.environ)
            _run(request["argv"], finalizes=request["finalizes"])
        for descriptor in received:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, status
        self._poll.register(pidfd, select.POLLIN)

    def _report(self, pidfd: int) -> None:
        pid, status = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with status, contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            status.send(_STATUS.pack(code + _STATUS_OFFSET))


def _request(
    argv: Sequence[str],
    env: Mapping[str, str],
    descriptors: Mapping[int, int],
    **more: Any,
) -> bytes:
    request = {"argv": list(argv), "env": dict(env), "numbers": list(descriptors), **more}
    return json.dumps(request).encode()


class Nursery:
    """Forks of this process as it is now. The forks become this process's own children."""

    def __init__(self) -> None:
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError("a process with threads cannot be forked safely")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._socket.close()
                _serve(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        descriptors: Mapping[int, int],
        session: bool,
        directory: str | None = None,
    ) -> int:
        """Forks a process that runs a command line of this interpreter; its pid.

        Args:
            argv: as for the interpreter.
            env: its environment.
            descriptors: by number in the new process, what is to lie there.
            session: whether it leads a session of its own.
            directory: its working directory, this process's unless given.
        """
        request = _request(argv, env, descriptors, session=session, group=os.getpgrp(), directory=directory)
        with self._lock:
            socket.send_fds(self._socket, [request], list(descriptors.values()))
            answer = self._socket.recv(16)
        if not answer:
            raise RuntimeError("the nursery is gone")
        return int(answer)

    def close(self) -> None:
        """Ends the nursery; its forks run on."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):  # this is a fork of the process that it belongs to
            os.waitpid(self.pid, 0)


class WarmProcess:
    """What of ``subprocess.Popen`` this package uses, of a fork of a nursery."""

    def __init__(
        self,
        nursery: Nursery,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[bytes] | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        cwd: str | None = None,
    ) -> None:
        stdin, stdout, stderr = (
            given if given is None or isinstance(given, int) else given.fileno() for given in (stdin, stdout, stderr)
        )
        self.stdin = self.stdout = None
        self.returncode: int | None = None
        self._lock = threading.Lock()
        descriptors = {0: 0, 1: 1, 2: 2, **{number: number for number in pass_fds}}
        with contextlib.ExitStack() as theirs:
            if stdin in (subprocess.PIPE, subprocess.DEVNULL):
                descriptors[0], write = (
                    os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), -1)
                )
                theirs.callback(os.close, descriptors[0])
                self.stdin = os.fdopen(write, "wb") if write >= 0 else None
            elif stdin is not None:
                descriptors[0] = stdin
            if stdout == subprocess.PIPE:
                read, descriptors[1] = os.pipe()
                theirs.callback(os.close, descriptors[1])
                self.stdout = os.fdopen(read, "rb")
            elif stdout is not None:
                descriptors[1] = stdout
            if stderr is not None:
                descriptors[2] = descriptors[1] if stderr == subprocess.STDOUT else stderr
            environ = os.environ if env is None else env
            self.pid = nursery.start(argv, environ, descriptors, start_new_session, cwd)

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                pipe.close()
        self.wait()

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[bytes | None, None]:
        """What it wrote, when it has ended."""
        said = None if self.stdout is None else self.stdout.read()
        self.wait(timeout)
        return said, None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # another thread has reaped it
                descriptor = os.pidfd_open(self.pid)
                try:
                    if not select.select([descriptor], [], [], timeout)[0]:
                        raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                finally:
                    os.close(descriptor)
        with self._lock:
            if self.returncode is None:
                self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def send_signal(self, signum: int) -> None:
        """Sends it a signal, unless it was waited for already."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        """Asks it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it."""
        self.send_signal(signal.SIGKILL)


def start_warm(nursery: Nursery) -> None:
    """From here on ``subprocess.Popen`` of this interpreter is a fork, in this process and in those that it starts.

    What ``multiprocessing`` spawns is one, too. Where an option is given that ``WarmProcess`` has not, it is not.
    """
    cold_spawn = util.spawnv_passfds

    class Popen(subprocess.Popen):  # type: ignore[type-arg]  # a class: others derive theirs from it
        def __new__(cls, argv: Any, *args: Any, **options: Any) -> Any:
            is_known = not args and options.keys() <= _OPTIONS and options.get("stderr") != subprocess.PIPE
            if cls is Popen and is_known and argv[0] == sys.executable:
                return WarmProcess(nursery, argv[1:], **options)
            return super().__new__(cls)

    def spawn(path: bytes | str, argv: Sequence[str], passed: Sequence[int]) -> int:
        if os.fsdecode(path) != sys.executable or "--multiprocessing-fork" not in argv:
            return cold_spawn(path, argv, passed)
        descriptors = {number: number for number in (0, 1, 2, *passed)}
        return nursery.start(argv[1:], os.environ, descriptors, session=False)

    subprocess.Popen, util.spawnv_passfds = Popen, spawn  # type: ignore[misc]


def _serve(requests: socket.socket) -> None:
    """The nursery: forks a process for each request, until its parent is gone."""
    _name("gld-nursery")
    os.setpgid(0, 0)  # whoever asks whether a group of processes is gone does not mean this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, received, _, _ = socket.recv_fds(requests, _MAX_REQUEST, _MAX_DESCRIPTORS)
        if not data:
            return
        requests.send(str(_fork_for_parent(json.loads(data), received)).encode())
        for descriptor in received:
            os.close(descriptor)


def _fork_for_parent(request: dict[str, Any], received: list[int]) -> int:
    """A fork that is a child of this process's parent, who is its subreaper: the process in between ends at once."""
    told, tell = os.pipe()
    adopted, adopt = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            _enter_session(request)
            os.write(tell, str(os.getpid()).encode())
            os.close(adopt)
            os.read(adopted, 1)  # until it is its parent's child: some ask for that at once
            _become(request, received)
            _run(request["argv"])
        os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(told, 16))
    for descriptor in (told, tell, adopted, adopt):
        os.close(descriptor)
    return pid


def _enter_session(request: dict[str, Any]) -> None:
    if request["session"]:
        os.setsid()
    else:
        os.setpgid(0, request["group"])


def _become(request: dict[str, Any], received: list[int]) -> None:
    """Takes over the descriptors, environment and directory of a request."""
    above = max(request["numbers"]) + _MAX_DESCRIPTORS  # beyond all that they replace
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for descriptor in received:  # else a fork of this process would have them, beside what they are to lie as
        os.close(descriptor)
    for number, copy in zip(request["numbers"], copies, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    os.environ.clear()
    os.environ.update(request["env"])
    if request["directory"] is not None:
        os.chdir(request["directory"])


def _run(argv: Sequence[str], *, finalizes: bool = False) -> NoReturn:
    """What ``exec`` of the interpreter does, and its end; unless it ``finalizes``, without freeing all that it has."""
    code = _exit_code_of(argv)
    if not finalizes:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
    if _own_nursery is not None:
        _own_nursery.close()
    if finalizes:
        sys.exit(code)  # up to where this process was forked, and on to the interpreter's end
    os._exit(code)


def _exit_code_of(argv: Sequence[str]) -> int:
    _forget_parent()
    try:
        return _run_program(list(argv))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    return 1


def _forget_parent() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the listing itself used
            if int(name) > 2 and not os.get_inheritable(int(name)):
                os.close(int(name))
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(os.fdopen(number, "wb", buffering=0, closefd=False), write_through=True)
        setattr(sys, name, stream)


def _run_program(argv: list[str]) -> int:
    while argv[0].startswith("-") and argv[0] not in ("-c", "-m"):  # the interpreter's flags
        del argv[: 2 if argv[0] == "-X" else 1]
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        sys.path[0] = ""
        _prepare(argv[1])
        exec(argv[1], {"__name__": "__main__"})
        return 0
    is_module = argv[0] == "-m"
    sys.argv = argv[1:] if is_module else argv
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(argv[0]))
    if os.path.basename(sys.argv[0]) == "wrapper.py":  # the launcher's wrapper, which goes on to run another program
        _name("gld-wrapper")
        os.execvp = lambda file, args: _run(args[1:])  # type: ignore[assignment]
    else:
        _prepare(sys.argv[0])
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


def _prepare(program: str) -> None:
    """Names a process of a job by its role, and lets it start its own fork server warm; that names itself."""
    global _own_nursery
    if _FORK_SERVER not in program:
        _own_nursery = Nursery()  # before the name, which its fork would bear for a moment
        start_warm(_own_nursery)
        if "GLD_ROLE" in os.environ:
            _name(f"gld-{os.environ['GLD_ROLE']}-{os.environ['GLD_RANK']}")
    faulthandler.register(STACKS)
    if PATCH in os.environ:
        module, _, function = os.environ[PATCH].partition(":")
        getattr(importlib.import_module(module), function)()


def _name(name: str) -> None:
    """Shown by ps, and in /proc/<pid>/comm; at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
