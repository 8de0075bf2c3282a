"""TCP ports for processes that listen where they are told to."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the system gives to nobody else in the block, while those who are told of it may listen
    there: as ``SO_REUSEADDR`` has it, a socket that is bound and does not listen is in nobody's way who says the same.
    Until somebody listens, connections are refused.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]
