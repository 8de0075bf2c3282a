"""Whole jobs that start at once: their processes are forks of one that has imported torch already.

A process of a job spends a second and a half of CPU time on imports, which is nothing to a job and everything to a
test that runs hundreds of them. Here ``subprocess.Popen`` of this interpreter is a fork instead, made by a *nursery*: a
child that keeps its parent's memory as it was before there were threads. All else is as ever: the launcher's wrapper
around each process, parents and children, process groups, signals, exit codes, inherited descriptors.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_MAX_REQUEST = 1 << 17  # bytes: command and environment of one process
_MAX_DESCRIPTORS = 16
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_FORK_SERVER = "import fork_server_main"  # in its program
_prctl = ctypes.CDLL(None, use_errno=True).prctl

PATCH = "GLD_TEST_PATCH"  # names a function, as module:name, that each process of a job calls before its program
STACKS = signal.SIGUSR1  # makes a process of a job write what its threads do to its standard error


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
        request = {
            "argv": list(argv),
            "env": dict(env),
            "numbers": list(descriptors),
            "session": session,
            "directory": directory,
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors.values()))
            answer = self._socket.recv(16)
        if not answer:
            raise RuntimeError("the nursery is gone")
        return int(answer)

    def close(self) -> None:
        """Ends the nursery; its forks run on."""
        self._socket.close()
        os.waitpid(self.pid, 0)


class WarmProcess:
    """What of ``subprocess.Popen`` this package uses, of a fork of a nursery."""

    def __init__(
        self,
        nursery: Nursery,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        cwd: str | None = None,
    ) -> None:
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

    def kill(self) -> None:
        """Kills it, unless it was waited for already."""
        with self._lock:
            if self.returncode is None:
                os.kill(self.pid, signal.SIGKILL)


def start_warm(nursery: Nursery) -> None:
    """From here on ``subprocess.Popen`` of this interpreter is a fork, in this process and in those that it starts."""
    cold = subprocess.Popen

    def popen(argv: Sequence[str], **options: Any) -> Any:
        return (WarmProcess(nursery, argv[1:], **options)) if argv[0] == sys.executable else cold(argv, **options)

    subprocess.Popen = popen  # type: ignore[assignment,misc]


def _serve(requests: socket.socket) -> None:
    """The nursery: forks a process for each request, until its parent is gone."""
    _name("gld-nursery")
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
            os.close(adopt)
            os.read(adopted, 1)  # until it is its parent's child: some ask for that at once
            _run_request(request, received)
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(told, 16))
    for descriptor in (told, tell, adopted, adopt):
        os.close(descriptor)
    return pid


def _run_request(request: dict[str, Any], received: list[int]) -> NoReturn:
    if request["session"]:
        os.setsid()
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
    _run(request["argv"])


def _run(argv: Sequence[str]) -> NoReturn:
    """What ``exec`` of the interpreter does, and its end."""
    _forget_parent()
    code = 1
    try:
        code = _run_program(list(argv))
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _forget_parent() -> None:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that the listing itself used
            if int(name) > 2 and not os.get_inheritable(int(name)):
                os.close(int(name))
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)


def _run_program(argv: list[str]) -> int:
    while argv[0].startswith("-") and argv[0] not in ("-c", "-m"):  # the interpreter's flags
        del argv[: 2 if argv[0] == "-X" else 1]
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        _prepare(argv[1])
        exec(argv[1], {"__name__": "__main__"})
        return 0
    is_module = argv[0] == "-m"
    sys.argv = argv[1:] if is_module else argv
    if os.path.basename(sys.argv[0]) == "wrapper.py":  # the launcher's wrapper, which goes on to run another program
        _name("gld-wrapper")
        os.execvp = lambda file, args: _run(args[1:])  # type: ignore[assignment]
    else:
        _prepare(sys.argv[0])
    try:
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _prepare(program: str) -> None:
    """Names the process as one of the job's, and lets it start its own fork server warm; that names itself."""
    if _FORK_SERVER not in program:
        _name(f"gld-{os.environ['GLD_ROLE']}-{os.environ['GLD_RANK']}")
        start_warm(Nursery())
    faulthandler.register(STACKS)
    if PATCH in os.environ:
        module, _, function = os.environ[PATCH].partition(":")
        getattr(importlib.import_module(module), function)()


def _name(name: str) -> None:
    """Shown by ps, and in /proc/<pid>/comm; at most 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
