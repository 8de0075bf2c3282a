"""One rank of a group: its process of now, the next one when it dies, and what is known of its health."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...errors import DeadlineExceededError
from ...utils.system.lifetime import Home
from ..actors.base import (
    Actor,
    ActorBackend,
    ActorProfile,
    ActorSpec,
    GroupWorkerHandle,
    MethodProfile,
    Ref,
    ResourceUsage,
    RunningCall,
    find_method,
)
from .balance import Load, LoadMeter
from .health import Health, WorkerState, WorkerStatus
from .worker_layout import WorkerMetadata

_RESTART_TIMEOUT_S = 30.0


class WorkerSlot:
    """A rank of a group.

    Args:
        spec: its process.
        metadata: its place in the group.
        backend: the engine.
        max_restarts: how often it may be restarted within any hour.
        on_death: called, from any thread, when its process is gone.
    """

    def __init__(
        self,
        spec: ActorSpec,
        metadata: WorkerMetadata,
        backend: ActorBackend,
        max_restarts: int,
        on_death: Callable[[WorkerSlot], None],
    ) -> None:
        self.home = Home(f"the worker {spec.name}")
        self.rank = metadata["global_rank"]
        self.metadata = metadata
        self._spec = spec
        self._backend = backend
        self._on_death = on_death
        # Guards what follows. Never held while the engine is called: its threads call us back.
        self._changed = threading.Condition()
        self._health = Health(max_restarts, time.monotonic)
        self._meter = LoadMeter()
        self._profile = ActorProfile(0, "", {})
        self._incarnation = 0
        self._is_pinged = False
        self._closed = False
        self._actor: Actor | None = None
        self._start(0)

    # --- its processes ------------------------------------------------------------------------------------------

    def _start(self, incarnation: int) -> None:
        spec = replace(self._spec, env={**self._spec.env, "GLD_INCARNATION": str(incarnation)})
        actor = self._backend.create_when_free(spec) if incarnation else self._backend.create(spec)
        with self._changed:
            self._actor = actor
            is_late = self._closed
            self._changed.notify_all()
        actor.ready.add_done_callback(lambda future: self._on_ready(incarnation, future))
        actor.ended.add_done_callback(lambda future: self._on_ended(incarnation, future.exception()))
        if is_late:
            self._backend.kill(actor)

    def _on_ready(self, incarnation: int, future: concurrent.futures.Future[ActorProfile]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        with self._changed:
            if incarnation == self._incarnation:
                self._profile = future.result()
                self._health.answered()
                self._changed.notify_all()

    def _on_ended(self, incarnation: int, error: BaseException | None) -> None:
        """Its process is gone: told by the engine, or by a ping that failed for that, whichever comes first."""
        with self._changed:
            if incarnation != self._incarnation or self._closed or self._health.is_dead:
                return
            self._is_pinged = False
            self._health.died(str(error))
            self._changed.notify_all()
        self._on_death(self)

    def restart(self) -> bool:
        """Starts another process in place of a dead one; False where it is not dead, or out of restarts.

        Raises:
            Exception: whatever keeps the engine from starting it; it is dead again then.
        """
        with self._changed:
            if not self._health.is_dead or not self._health.may_restart or self._closed or self._actor is None:
                return False
            self._health.restarting()
            self._is_pinged = False
            self._incarnation += 1
            incarnation = self._incarnation
            old, self._actor = self._actor, None
        try:
            self._backend.kill(old)  # the engine may have lost sight of a process that lives
            self._start(incarnation)
        except Exception as error:
            with self._changed:
                self._actor = old
            self._on_ended(incarnation, error)
            raise
        return True

    def kill(self) -> None:
        """Ends its process now; that counts as a death. Without effect in a fork."""
        if not self.home.is_own:
            return
        self._backend.kill(self.actor)

    def close(self) -> None:
        """Ends it for good. Idempotent; without effect in a fork."""
        if not self.home.is_own:
            return
        with self._changed:
            self._closed = True
            actor = self._actor
        if actor is not None:
            self._backend.kill(actor)

    # --- calls --------------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor:
        """The process of now; waits for the moment between two."""
        with self._changed:
            self._changed.wait_for(lambda: self._actor is not None, _RESTART_TIMEOUT_S)
            if self._actor is None:
                raise DeadlineExceededError(f"{self._spec.name}: expected another process to be started, got none")
            return self._actor

    @property
    def incarnation(self) -> int:
        """Counts its processes."""
        with self._changed:
            return self._incarnation

    @property
    def handle(self) -> GroupWorkerHandle:
        """For callers; follows restarts."""
        return self._backend.handle(lambda: self.actor)

    def profile(self, method: str) -> MethodProfile:
        """What is known of a method; raises ``AttributeError`` where there is none."""
        with self._changed:
            return find_method(self._spec.name, self._profile, method)

    def call(self, method: str, kwargs: dict[str, Any]) -> Ref:
        """Calls a method, or streams a generator."""
        self.home.check_own()
        actor = self.actor
        if self.profile(method).streams:
            return actor.stream(method, **kwargs)
        ref = actor.call(method, **kwargs)
        with self._changed:
            self._meter.sent()
        ref.future().add_done_callback(self._on_answer)
        return ref

    def _on_answer(self, answer: concurrent.futures.Future[Any]) -> None:
        with self._changed:
            self._meter.answered(is_result=answer.exception() is None)

    @property
    def load(self) -> Load:
        """Its calls in flight and its rate; streams are not counted."""
        with self._changed:
            return self._meter.load

    # --- health -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        """What is known of it."""
        with self._changed:
            return self._health.state

    def wait_settled(self, timeout_s: float) -> WorkerState:
        """Waits while it starts or restarts.

        Raises:
            DeadlineExceededError: it did neither become ready nor die in time.
        """
        unsettled = (WorkerState.STARTING, WorkerState.RESTARTING)
        with self._changed:
            if not self._changed.wait_for(lambda: self._health.state not in unsettled, timeout_s):
                raise DeadlineExceededError(
                    f"{self._spec.name} (rank {self.rank}): expected to be ready within {timeout_s:g} s, "
                    f"is {self._health.state.value}"
                )
            return self._health.state

    def wait_death(self, incarnation: int, timeout_s: float) -> None:
        """Waits until the death of a process, which a caller saw already, is known here."""
        with self._changed:
            self._changed.wait_for(lambda: self._incarnation > incarnation or self._health.is_dead, timeout_s)

    def wait_restarted(self, after: int, timeout_s: float) -> bool:
        """Waits until a process after incarnation ``after`` is ready; False where none will be, or not in time."""

        def is_ready() -> bool:
            return self._incarnation > after and self._health.state is WorkerState.READY

        with self._changed:
            self._changed.wait_for(lambda: is_ready() or self._health.state is WorkerState.RETIRED, timeout_s)
            return is_ready()

    def ping(self) -> Ref | None:
        """Asks what it does; None where it is dead or still owes an answer. The answer enters its health."""
        with self._changed:
            if self._health.state not in (WorkerState.READY, WorkerState.SUSPECT) or self._actor is None:
                return None
            if self._is_pinged:
                return None
            self._is_pinged = True
            actor, incarnation = self._actor, self._incarnation
        ref = actor.control("ping")
        ref.future().add_done_callback(lambda answer: self._on_ping(incarnation, answer))
        return ref

    def _on_ping(self, incarnation: int, answer: concurrent.futures.Future[tuple[RunningCall, ...]]) -> None:
        error = answer.exception()
        if error is not None and self._backend.is_death(error):
            self._on_ended(incarnation, error)
            return
        with self._changed:
            if incarnation != self._incarnation:
                return
            self._is_pinged = False
            if error is None:
                self._health.answered(answer.result())
            self._changed.notify_all()

    def wait_answer(self, timeout_s: float) -> bool:
        """Whether it answers what it was asked by ``ping`` in time; a dead one does not."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_pinged, timeout_s):
                self._health.suspected()
            return not self._is_pinged and self._health.state is WorkerState.READY

    def ask_usage(self, on_answer: Callable[[ResourceUsage], None]) -> None:
        """Asks what its process uses; the answer comes to ``on_answer`` from any thread, or never where it is dead."""

        def pass_on(answer: concurrent.futures.Future[ResourceUsage]) -> None:
            if answer.exception() is None:
                on_answer(answer.result())

        if self.state is WorkerState.READY:
            self.actor.control("usage").future().add_done_callback(pass_on)

    def is_silent(self, timeout_s: float) -> bool:
        """Whether it did not answer for so long."""
        with self._changed:
            return self._health.check_silence(timeout_s)

    @property
    def running_call(self) -> RunningCall | None:
        """What ran when it last answered."""
        with self._changed:
            return self._health.call

    @property
    def where(self) -> str:
        """Name, node and pid, for errors."""
        with self._changed:
            return f"{self._spec.name}, node {self._profile.node[:12] or 'unknown'}, pid {self._profile.pid}"

    def status(self) -> WorkerStatus:
        """All that is known now."""
        with self._changed:
            health, call = self._health, self._health.call
            return WorkerStatus(
                rank=self.rank,
                name=self._spec.name,
                state=health.state,
                pid=self._profile.pid,
                node=self._profile.node,
                restarts=health.restarts,
                incarnation=self._incarnation,
                heartbeat_age_s=health.heartbeat_age_s,
                current_call=call.method if call else "",
                call_age_s=call.age_s if call else 0.0,
                last_error=health.last_error,
            )
