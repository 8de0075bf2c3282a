"""Free TCP ports."""

from __future__ import annotations

import random
import socket

from ...errors import ResourceInsufficientError


def free_port(address: str, low: int = 0, high: int = 0) -> int:
    """A port of this address that was free just now: any, or one from ``low`` to ``high`` inclusive.

    Raises:
        ResourceInsufficientError: all of the range are taken.
    """
    if not low and not high:
        return _bound_port(address, 0)
    # In random order: callers that ask at the same time should not all be told the same one.
    for port in random.sample(range(low, high + 1), high - low + 1):
        try:
            return _bound_port(address, port)
        except OSError:  # taken
            continue
    raise ResourceInsufficientError(f"ports: expected a free one of {low} to {high} on {address}, all are taken")


def _bound_port(address: str, port: int) -> int:
    with socket.create_server((address, port)) as server:
        found: int = server.getsockname()[1]
        return found
