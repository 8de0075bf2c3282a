"""The states of a worker and what leads from one to the next; no process and no clock of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from ...utils.system.restarts import RestartBudget
from ..actors.base import RunningCall


class WorkerState(enum.Enum):
    """What is known of a worker."""

    STARTING = "starting"
    READY = "ready"
    SUSPECT = "suspect"  # it does not answer, its process is there
    DEAD = "dead"
    RESTARTING = "restarting"
    RETIRED = "retired"  # dead, and out of restarts when it died


@dataclass(frozen=True)
class WorkerStatus:
    """A worker as its group sees it.

    Attributes:
        rank: within the group.
        name: of the worker.
        state: what is known of it.
        pid: of its process; 0 before it is ready for the first time.
        node: machine, as the engine names it; empty likewise.
        restarts: how often it was restarted, ever.
        incarnation: counts its processes, from 0.
        heartbeat_age_s: since it last answered or started.
        current_call: method that ran when it last answered, or empty.
        call_age_s: how long that had run then.
        last_error: how its last process ended, or empty.
    """

    rank: int
    name: str
    state: WorkerState
    pid: int
    node: str
    restarts: int
    incarnation: int
    heartbeat_age_s: float
    current_call: str
    call_age_s: float
    last_error: str


@dataclass(frozen=True)
class StuckWorker:
    """A worker that makes no progress.

    Attributes:
        reason: ``"no heartbeat"`` for a process that does not answer, ``"long call"`` for a method that neither ends
            nor calls ``heartbeat()``.
        method: what runs, where that is known.
        silent_s: for how long.
        stack: where the method is, where the process answers.
    """

    reason: str
    method: str
    silent_s: float
    stack: str


class Health:
    """One worker's state.

    Args:
        max_restarts: how often it may be restarted within any hour.
        clock: seconds; only differences count.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float]) -> None:
        self.restarts = 0
        self._budget = RestartBudget(max_restarts, clock=clock)
        self.state = WorkerState.STARTING
        self.last_error = ""
        self.call: RunningCall | None = None
        self._clock = clock
        self._heard = clock()

    @property
    def heartbeat_age_s(self) -> float:
        """Since something was last heard of it."""
        return self._clock() - self._heard

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone and no other one is started."""
        return self.state in (WorkerState.DEAD, WorkerState.RETIRED)

    @property
    def may_restart(self) -> bool:
        """Whether another restart is allowed."""
        return self._budget.is_left

    def answered(self, calls: tuple[RunningCall, ...] = ()) -> None:
        """It is constructed, or answered a ping. What a dead one said before it died comes too late to count."""
        if self.is_dead:
            return
        self.state = WorkerState.READY
        self.call = max(calls, key=lambda call: call.age_s, default=None)
        self._heard = self._clock()

    def suspected(self) -> None:
        """It did not answer in time."""
        if self.state is WorkerState.READY:
            self.state = WorkerState.SUSPECT

    def check_silence(self, timeout_s: float) -> bool:
        """Whether nothing was heard of a ready worker for so long; it is a suspect then."""
        if self.heartbeat_age_s > timeout_s:
            self.suspected()
        return self.state is WorkerState.SUSPECT

    def died(self, error: str) -> None:
        """Its process is gone."""
        self.last_error = error
        self.call = None
        self.state = WorkerState.DEAD if self.may_restart else WorkerState.RETIRED

    def restarting(self) -> None:
        """Another process is started in its place."""
        self.restarts += 1
        self._budget.take()
        self.state = WorkerState.RESTARTING
        self._heard = self._clock()
