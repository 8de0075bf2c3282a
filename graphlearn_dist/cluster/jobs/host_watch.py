"""Notices hosts that fall silent, from the signs of life that their processes give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ...config import SILENCE_S
from .plan import ProcessSpec

_LATE_S = 2.0  # two looks that are so far apart mean that this process was stopped itself


@dataclass
class _Host:
    heard: float
    is_silent: bool = False
    processes: set[str] = field(default_factory=set)


class HostWatch:
    """The hosts whose processes give signs of life, over ssh. Thread-safe.

    Args:
        limit_s: a host that is silent for so long is lost; 0: never.
        note: called with what is to be said of a host, in words.
        clock: seconds.
    """

    def __init__(
        self, limit_s: float, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_s = limit_s
        self._note = note
        self._clock = clock
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}
        self._looked = clock()

    def heard(self, spec: ProcessSpec) -> None:
        """A process has given a sign of life."""
        now = self._clock()
        with self._lock:
            host = self._hosts.setdefault(spec.host, _Host(now))
            silent_s, host.heard = now - host.heard, now
            host.processes.add(spec.name)
            was_silent, host.is_silent = host.is_silent, False
        if was_silent:
            self._note(f"{spec.host}: back after {silent_s:.0f} s")

    def ended(self, spec: ProcessSpec) -> None:
        """A process has ended, or its connection has."""
        with self._lock:
            if (host := self._hosts.get(spec.host)) is not None:
                host.processes.discard(spec.name)
                if not host.processes:
                    del self._hosts[spec.host]

    def is_silent(self, spec: ProcessSpec) -> bool:
        """Whether nothing has come from the host of a process for ``SILENCE_S``."""
        with self._lock:
            host = self._hosts.get(spec.host)
            return host is not None and host.is_silent

    def lost(self) -> list[str]:
        """Hosts that are lost, in order of their names; says which have fallen silent. To be asked every second."""
        now = self._clock()
        notes, lost = [], []
        with self._lock:
            was_stopped, self._looked = now - self._looked > _LATE_S, now
            for name, host in sorted(self._hosts.items()):
                if was_stopped:
                    host.heard = now
                silent_s = now - host.heard
                if self._limit_s and silent_s > self._limit_s:
                    lost.append(name)
                    notes.append(f"{name}: lost, silent for {silent_s:.0f} s")
                    del self._hosts[name]
                elif silent_s > SILENCE_S and not host.is_silent:
                    host.is_silent = True
                    who = ", ".join(sorted(host.processes))
                    notes.append(f"{name}: silent for {silent_s:.0f} s ({who})")
        for text in notes:
            self._note(text)
        return lost
