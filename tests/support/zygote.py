"""Sampling workers that start at once: forks of a process that has imported torch already.

A sampling worker spends a second and a half of CPU time on imports, which is nothing to a job and everything to a test
of hundreds of loaders. For such a test ``sys.executable`` names a small program: it asks the prepared process to fork,
hands the fork its descriptors, environment and arguments, and ends with the fork's exit code. All else is as ever: a
process of its own, the same main program, the same sockets.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import runpy
import selectors
import shlex
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes import start

_MAX_REQUEST = 1 << 20  # bytes: the environment of one worker
_MAX_DESCRIPTORS = 16
_LAUNCHER = """
import json, os, socket, sys
path, flag, module, *numbers = sys.argv[1:]
descriptors = list(map(int, numbers))
request = json.dumps({"module": module, "environ": dict(os.environ)}).encode()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
    zygote.connect(path)
    socket.send_fds(zygote, [request], [1, 2, *descriptors])
    for descriptor in descriptors:
        os.close(descriptor)
    code = zygote.recv(16)
os._exit(int(code or b"1"))
"""


@contextlib.contextmanager
def zygote(directory: Path) -> Iterator[str]:
    """A prepared process for the time of the block; what to put into ``sys.executable`` of processes that start
    sampling workers."""
    path, launcher, command = directory / "zygote.sock", directory / "launcher.py", directory / "python"
    launcher.write_text(_LAUNCHER)
    words = map(shlex.quote, (sys.executable, "-IS", str(launcher), str(path)))
    command.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    command.chmod(0o755)
    with start(f"{__name__}.serve", path=str(path)) as process:
        assert process.readline() == "ready"
        yield str(command)


def serve(path: str) -> None:
    """Forks a worker for each connection, until it is killed."""
    import graphlearn_dist.distributed  # noqa: F401  what a worker needs, and nothing that starts a thread

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as selector:
        listener.bind(path)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    _start(listener, selector)
                else:
                    _end(key, selector)


def _start(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    connection, _ = listener.accept()
    request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST, _MAX_DESCRIPTORS)
    pid = os.fork()
    if pid == 0:
        _become_worker(json.loads(request), descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def _end(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    pid, connection = key.data
    selector.unregister(key.fileobj)
    os.close(key.fd)
    _, status = os.waitpid(pid, 0)
    with connection, contextlib.suppress(BrokenPipeError):  # whoever asked was killed, and needs no answer
        connection.send(str(abs(os.waitstatus_to_exitcode(status))).encode())


def _become_worker(request: dict[str, object], descriptors: list[int]) -> None:
    """Runs the module as the main program, with its descriptors as arguments; does not return."""
    above = 2 * _MAX_DESCRIPTORS  # all that they replace
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for number, copy in enumerate(copies, start=1):  # standard output and error first
        os.dup2(copy, number)
    os.closerange(len(copies) + 1, max(copies) + 1)
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    sys.argv = [str(request["module"]), *map(str, range(3, len(copies) + 1))]
    try:
        runpy.run_module(str(request["module"]), run_name="__main__", alter_sys=True)
    except BaseException:
        traceback.print_exc()
    os._exit(1)  # the module ends the process itself where all is well
