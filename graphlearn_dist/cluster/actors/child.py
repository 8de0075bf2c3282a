"""The main program of a local worker. Its arguments: the inherited socket, and the driver's process id."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

from .shell import Shell
from .wire import Answer, Call, Ready, Start, dump_answer, dump_error, load, read_header

_PR_SET_PDEATHSIG = 1


class _Child:
    """The worker's end of the socket pair. Methods run in the main thread, control calls in the one that reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._send_lock = threading.Lock()
        # Its driver's calls that have not begun: as many as the driver makes, which holds a reference for each.
        self._calls: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._main: str | None = None
        self._shell: Shell | None = None

    def run(self) -> None:
        """Constructs the object and serves calls until the driver goes."""
        start: Start = load(self._connection.recv_bytes())
        self._main = start.main_path
        threading.Thread(target=self._read, daemon=True, name="read calls").start()
        try:
            self._shell = Shell(load(start.setup, self._main))
        except BaseException as error:  # SystemExit too: the driver waits for an answer
            self._fail(0, error)
            return
        self._send(Ready(self._shell.profile))
        for _ in range(start.max_concurrency - 1):
            threading.Thread(target=self._serve, args=(self._shell,), daemon=True, name="serve calls").start()
        self._serve(self._shell)

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, ConnectionError):
                os._exit(0)  # the driver closed: whatever runs is of no use to anybody
            is_control, number, call = read_header(data)
            if is_control:
                self._control(number, load(call))
            else:
                self._calls.put((number, call))

    def _control(self, number: int, call: Call) -> None:
        try:
            if self._shell is None:
                raise RuntimeError("the worker is still being constructed")
            self._send(Answer(number, self._shell.control(call.method)))
        except Exception as error:
            self._fail(number, error)

    def _serve(self, shell: Shell) -> None:
        while True:
            self._answer(shell, *self._calls.get())

    def _answer(self, shell: Shell, number: int, data: bytes) -> None:
        try:
            call: Call = load(data, self._main)
            if call.kind == "stream":
                for item in shell.stream(call.method, call.args, call.kwargs):
                    self._send(Answer(number, item, more=True))
                self._send(Answer(number))
            else:
                self._send(Answer(number, shell.call(call.method, call.args, call.kwargs)))
        except Exception as error:
            self._fail(number, error)

    def _fail(self, number: int, error: BaseException) -> None:
        sent, text = dump_error(error)
        self._send(Answer(number, text, sent))

    def _send(self, message: Ready | Answer) -> None:
        data = dump_answer(message)
        with self._send_lock:
            self._connection.send_bytes(data)


def main() -> None:
    """Serves the driver at the other end of the inherited socket."""
    descriptor, parent = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a stuck or stopped worker dies with its driver too
    if os.getppid() != parent:
        return
    _Child(Connection(descriptor)).run()
