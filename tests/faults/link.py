"""Two hosts' networks for the processes of one job: namespaces with one link between them, which goes down or slow."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator

_DEVICE = "eth0"
_OWN = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


class Link:
    """Two namespaces, which are gone when this is closed and no process is in them, and the link between them.

    Raises:
        OSError: this user or system makes none.
    """

    def __init__(self) -> None:
        self._spaces: list[int] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for _ in range(2):
                with _staying_here():
                    _check(_libc.unshare(_CLONE_NEWNET))
                    self._spaces.append(os.open(_OWN, os.O_RDONLY))
            self._ip(0, "link", "add", _DEVICE, "type", "veth", "peer", "name", _DEVICE, "netns", self.path(1))
            for number in range(2):
                self._ip(number, "link", "set", "lo", "up")
                self._ip(number, "address", "add", f"{address(number)}/24", "dev", _DEVICE)
                self.set_up(number, is_up=True)
            undo.pop_all()

    def path(self, number: int) -> str:
        """By which a process joins the network of a host, see ``join``, while this one runs."""
        return f"/proc/{os.getpid()}/fd/{self._spaces[number]}"

    def listen(self, number: int) -> socket.socket:
        """A socket that listens on a host, at a free port."""
        with _staying_here():
            join(self.path(number))
            return socket.create_server((address(number), 0), backlog=128)

    def set_up(self, number: int, *, is_up: bool) -> None:
        """Takes a host's end of the link up or down: nothing passes in either direction unless both are up."""
        self._ip(number, "link", "set", _DEVICE, "up" if is_up else "down")

    def limit(self, rate: str | None) -> None:
        """Lets this much through in either direction (``"1mbit"``, as ``tc`` reads it), or all again."""
        for number in range(2):
            if rate is None:
                self._run(number, "tc", "qdisc", "del", "dev", _DEVICE, "root")
            else:
                limit = ("rate", rate, "burst", "16kb", "latency", "50ms")
                self._run(number, "tc", "qdisc", "add", "dev", _DEVICE, "root", "tbf", *limit)

    def close(self) -> None:
        """Lets go of both. Idempotent."""
        while self._spaces:
            os.close(self._spaces.pop())

    def _ip(self, number: int, *argv: str) -> None:
        self._run(number, "ip", *argv)

    def _run(self, number: int, *argv: str) -> None:
        command = ["nsenter", f"--net={self.path(number)}", *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(argv)}: {done.stderr.strip()}")


def address(number: int) -> str:
    """Of a host, by its number."""
    return f"10.78.1.{1 + number}"


def join(path: str) -> None:
    """Moves this thread, and those that it starts, into a network."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _check(_libc.setns(descriptor, _CLONE_NEWNET))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _staying_here() -> Iterator[None]:
    """Brings this thread back to the network that it is in."""
    here = os.open(_OWN, os.O_RDONLY)
    try:
        yield
    finally:
        _check(_libc.setns(here, _CLONE_NEWNET))
        os.close(here)


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"no network namespaces: {os.strerror(number)}")
