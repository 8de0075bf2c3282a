"""TCP ports: such as are free, for those who have to name one before anybody listens there."""

from __future__ import annotations

import contextlib
import numbers
import random
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from ...errors import InvalidArgumentError, ResourceInsufficientError

_LOWEST = 20000  # Ray gives the ports below to its workers
_OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_any = random.SystemRandom()  # two processes with one seed should not be told the same port


def to_port(name: str, value: object) -> int:
    """A port that a user gave, as a number or as text; an InvalidArgumentError names what is none."""
    is_port = value.isdecimal() if isinstance(value, str) else isinstance(value, numbers.Integral)
    port = int(value) if is_port else -1  # type: ignore[call-overload]
    if not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"{name}: expected a port from 0 to 65535, got {value!r}")
    return port


def free_port(address: str, low: int = 0, high: int = 0, exclude: Collection[int] = ()) -> int:
    """A port of this address that was free just now.

    Until somebody listens there, anybody may take it. So it is one that the system gives to nobody by itself, neither
    for a connection nor to who listens at port 0, unless all ports are of that kind.

    Args:
        address: where it has to be free; an empty one stands for all addresses of this host.
        low: the lowest that it may be; 0 together with ``high`` for any.
        high: the highest that it may be, inclusive.
        exclude: ports that it must not be: those that somebody was told of who does not listen yet.

    Raises:
        ResourceInsufficientError: all of the range are taken.
    """
    if low or high:
        return _free_port_of(address, range(low, high + 1), exclude)
    lowest_of_connections = int(_OF_CONNECTIONS.read_text().split()[0]) if _OF_CONNECTIONS.exists() else _LOWEST
    if lowest_of_connections <= _LOWEST:
        return _any_port(address, exclude)
    return _free_port_of(address, range(_LOWEST, lowest_of_connections), exclude)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that the system gives to nobody else in the block, while those who know it may listen there.

    They have to say ``SO_REUSEADDR``, as torch and this package do: a socket that is bound and does not listen is in
    the way of none who says the same. Until somebody listens, connections are refused.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def _free_port_of(address: str, ports: range, exclude: Collection[int]) -> int:
    left = [port for port in ports if port not in exclude]
    # In random order: callers that ask at the same time should not all be told the same one.
    for port in _any.sample(left, len(left)):
        try:
            with socket.create_server((address, port)):
                return port
        except OSError:  # taken
            continue
    where = f"on {address or 'any address'}"
    given = f", {len(ports) - len(left)} of them given out before" if len(left) < len(ports) else ""
    raise ResourceInsufficientError(
        f"ports: expected a free one of {ports[0]} to {ports[-1]} {where}, all are taken{given}"
    )


def _any_port(address: str, exclude: Collection[int]) -> int:
    with contextlib.ExitStack() as held:  # what is held is not told again, so that the excluded ones run out
        while True:
            server = held.enter_context(socket.create_server((address, 0)))
            found: int = server.getsockname()[1]
            if found not in exclude:
                return found
