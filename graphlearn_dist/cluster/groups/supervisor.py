"""Watches the workers of a group: restarts those that die, condemns those that fall silent, warns of full memory."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ..actors.base import ResourceUsage
from .worker_slot import WorkerSlot

_logger = logging.getLogger(__name__)
_MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class Watch:
    """What a supervisor does.

    Attributes:
        restart: start another process where one dies.
        stuck_timeout_s: kill a process that answered nothing for so long; None never.
        monitors_memory: warn when a worker's memory comes to 90 % of its limit, or that of all workers of a machine to
            90 % of the machine's.
        memory_bytes: each worker's limit, or None.
        interval_s: between two rounds of asking.
    """

    restart: bool
    stuck_timeout_s: float | None
    monitors_memory: bool
    memory_bytes: int | None
    interval_s: float = 1.0


class Supervisor:
    """One thread for a group. It is told of deaths and asks for the rest."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._events: queue.SimpleQueue[WorkerSlot | None] = queue.SimpleQueue()
        self._slots: Sequence[WorkerSlot] = ()
        self._used: dict[int, int] = {}  # bytes of each worker, by rank
        self._warned: set[tuple[str, int]] = set()
        self._thread = threading.Thread(target=self._run, name="supervise workers", daemon=True)

    def start(self, slots: Sequence[WorkerSlot]) -> None:
        """Begins to watch."""
        self._slots = slots
        self._thread.start()

    def on_death(self, slot: WorkerSlot) -> None:
        """A worker's process is gone; from any thread."""
        self._events.put(slot)

    def stop(self) -> None:
        """Ends the watch. Idempotent."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                slot = self._events.get(timeout=self._watch.interval_s)
            except queue.Empty:
                self._ask()
                continue
            if slot is None:
                return
            if self._watch.restart:
                self._restart(slot)

    def _restart(self, slot: WorkerSlot) -> None:
        try:
            restarted = slot.restart()
        except Exception:  # whatever the engine raises: the slot is dead again, and the others are still watched
            _logger.exception("%s could not be restarted", slot.where)
            return
        if restarted:
            status = slot.status()
            _logger.warning("%s died and is restarted (restart %d): %s", slot.where, status.restarts, status.last_error)

    def _ask(self) -> None:
        for slot in self._slots:
            slot.ping()
            if self._watch.stuck_timeout_s is not None and slot.is_silent(self._watch.stuck_timeout_s):
                _logger.warning("%s answered nothing for %g s and is killed", slot.where, self._watch.stuck_timeout_s)
                slot.kill()
            if self._watch.monitors_memory:
                slot.ask_usage(functools.partial(self._check_memory, slot))

    def _check_memory(self, slot: WorkerSlot, usage: ResourceUsage) -> None:
        node, limit = slot.status().node, self._watch.memory_bytes
        self._used[slot.rank] = usage.uss_bytes
        if limit is not None:
            self._warn(slot.where, slot.incarnation, usage.uss_bytes, limit)
        beside = sum(self._used.get(other.rank, 0) for other in self._slots if other.status().node == node)
        self._warn(f"the workers of node {node[:12]}", 0, beside, usage.machine_bytes)

    def _warn(self, who: str, incarnation: int, used_bytes: int, limit_bytes: int) -> None:
        """Warns once for each process, and each machine."""
        if used_bytes >= _MEMORY_SHARE * limit_bytes and (who, incarnation) not in self._warned:
            self._warned.add((who, incarnation))
            _logger.warning("%s: %d MiB of %d MiB of memory are in use", who, used_bytes >> 20, limit_bytes >> 20)
