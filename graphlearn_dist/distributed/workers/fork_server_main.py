"""The process that sampling workers are forked from.

What a worker needs, torch above all, takes more than a second of a core to import, and 150 MiB. This process imports it
once, has no thread but its own (a fork would take their locks along, and not them), and does nothing but fork: a worker
is there in milliseconds, and shares all pages that it does not write to.

Started by ``worker_forks`` with the interpreter's flags and the ``sys.path`` of the program that it is for, and with
the arguments REQUESTS OWNER SIGN first. REQUESTS is a sequenced-packet socket: a packet on it says that this process is
ready, and each that comes asks for a worker by its descriptors, see ``WorkerDescriptors``. OWNER is a pidfd of the
process that workers are for; with its end this process ends. SIGN is memory for its signs of life, see ``LifeSign``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from typing import NamedTuple, NoReturn

from ... import _C
from ...config import PULSE_INTERVAL_S
from ...utils.system.process_name import name_process
from . import sampling_worker
from .fork_server import ANSWER, READY, WorkerDescriptors
from .life_sign import LifeSign


class _Asker(NamedTuple):
    """Who is told how a worker ends."""

    worker: int
    socket: socket.socket


class Forks:
    """Forks workers, and says how they end.

    Args:
        requests: where they are asked for.
        owner: a pidfd, see above.
        sign: where it says that it lives.
    """

    def __init__(self, requests: socket.socket, owner: int, sign: LifeSign) -> None:
        self._requests = requests
        self._owner = owner
        self._sign = sign
        self._askers: dict[int, _Asker] = {}  # by pidfd of the worker
        self._poll = select.poll()
        for descriptor in (requests.fileno(), owner):
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> WorkerDescriptors | None:
        """Forks until the owner is gone; then returns None. Returns in each fork as well, with what it is made of."""
        while True:
            self._sign.give()
            ready = {descriptor for descriptor, _ in self._poll.poll(PULSE_INTERVAL_S * 1000)}
            for descriptor in ready & self._askers.keys():
                self._report(descriptor)
            if self._owner in ready:
                return None
            if self._requests.fileno() in ready:
                packet, received, _, _ = socket.recv_fds(self._requests, 1, len(WorkerDescriptors._fields))
                if not packet:
                    return None
                given = WorkerDescriptors(*received)
                if self._fork(given):
                    return given

    def _fork(self, given: WorkerDescriptors) -> bool:
        """Whether this is the fork."""
        asker = socket.socket(fileno=given.asker)
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes: a matter of whoever asked
            pid = -(error.errno or 1)
        if pid == 0:
            asker.close()
            self._close()
            return True
        for descriptor in given[1:]:
            os.close(descriptor)
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # who asked wants it no more: it ends by itself
            if pid < 0:
                asker.send(ANSWER.pack(pid))
                asker.close()
                return False
            worker = _C.open_process(pid)
            self._askers[worker] = _Asker(pid, asker)
            self._poll.register(worker, select.POLLIN)
            socket.send_fds(asker, [ANSWER.pack(pid)], [worker])
        return False

    def _report(self, worker: int) -> None:
        pid, asker = self._askers.pop(worker)
        self._poll.unregister(worker)
        os.close(worker)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with asker, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody wants to know any more
            asker.send(ANSWER.pack(code))

    def _close(self) -> None:
        """Leaves to a fork nothing of what is this process's."""
        for worker, (_, asker) in self._askers.items():
            os.close(worker)
            asker.close()
        self._requests.close()
        os.close(self._owner)
        self._sign.close()


def _work(given: WorkerDescriptors) -> int:
    """What a fork does: the same as a process that its owner would have started itself."""
    name_process("gld-worker")
    os.fchdir(given.directory)
    os.dup2(given.output, 1)
    os.dup2(given.errors, 2)
    for descriptor in (given.directory, given.output, given.errors):
        os.close(descriptor)
    return sampling_worker.run(given.control, given.pulse)


def main() -> int:
    """Serves the descriptors of the command line until the end; returns the exit code, of a fork too."""
    name_process("gld-fork-server")
    # Ctrl-C reaches the whole process group; who gets it ends this process and its forks. It was blocked until here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it, which is inherited, is told of no worker's end
    requests, owner, sign = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    life_sign = LifeSign(sign)
    os.close(sign)
    life_sign.give()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page of these objects, and so copy it
    with contextlib.suppress(ConnectionError):  # the owner has ended: so does what follows
        requests.send(READY)
    given = Forks(requests, owner, life_sign).serve()
    return 0 if given is None else _work(given)


def run() -> NoReturn:
    """``main``, and the end of the process."""
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)  # nothing to save, and threads of a peer's connection must not delay a worker's end
