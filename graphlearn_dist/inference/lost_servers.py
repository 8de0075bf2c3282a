"""Servers that are lost while their rows are asked for, and are asked again when they are back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ..distributed import ServedDataset, rpc
from ..distributed.producers.server_recovery import ServerRecovery
from ..errors import PeerLostError

Answer = TypeVar("Answer")


class LostServers:
    """Asks the servers of a data set again where one was lost. Thread-safe.

    Args:
        dataset: on the servers.
        reconnect_timeout_s: how long a server that is gone may take to come back.
    """

    def __init__(self, dataset: ServedDataset, reconnect_timeout_s: float) -> None:
        self._dataset = dataset
        endpoint = rpc.get_endpoint()
        self._recovery = ServerRecovery(
            reconnect_timeout_s,
            rpc.get_alarm(),
            lambda: not rpc.rpc_is_initialized() or rpc.get_endpoint() is not endpoint,
        )
        self._lock = threading.Lock()

    def ask(self, ask: Callable[[], Answer]) -> Answer:
        """What servers answer, as often as one of them is lost and comes back.

        Raises:
            PeerLostError: one was not back in time, or the launcher has given it up.
        """
        try:
            return ask()
        except PeerLostError:
            with self._lock:  # of all threads that lost it one waits, so that it counts as one loss
                return self._ask_again(ask)

    def _ask_again(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except PeerLostError as lost:
            return self._recovery.recover(lost.peer, lost, self._dataset.reach, lambda _: ask())
