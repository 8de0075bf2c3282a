"""Starts a job, follows it to its end, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from ..errors import InvalidArgumentError, LaunchError
from ..utils.restarts import RestartBudget
from .backend import Backend, RunningProcess, backend_for
from .child import FROZEN
from .plan import LaunchPlan, Master, ProcessSpec, plan_processes

_TAIL_LINES = 20
_GIVE_UP_S = 10.0  # what trainers get to raise their exceptions, once a server is given up
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _Exited:
    spec: ProcessSpec
    code: int


@dataclass(frozen=True)
class _Interrupted:
    signum: int


_Event: TypeAlias = "_Exited | _Interrupted"


class _Output:
    """Prefixes the lines of all processes, writes them out, and remembers the last ones of each."""

    def __init__(self, log_dir: str | None, out: IO[str]) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._tails: dict[str, deque[str]] = {}
        self._logs: dict[str, IO[bytes]] = {}
        self._log_dir = Path(log_dir) if log_dir is not None else None
        if self._log_dir is not None:
            try:
                self._log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidArgumentError(f"log_dir: cannot create {log_dir}: {error.strerror}") from error

    def note(self, text: str) -> None:
        """A line of the launcher itself."""
        with self._lock:
            self._print(f"[launcher] {text}")

    def open(self, spec: ProcessSpec) -> None:
        self._tails[spec.name] = deque(maxlen=_TAIL_LINES)
        if self._log_dir is not None:
            self._logs[spec.name] = (self._log_dir / f"{spec.role}-{spec.rank}.log").open("wb", buffering=0)

    def write(self, spec: ProcessSpec, line: str) -> None:
        with self._lock:
            self._tails[spec.name].append(line)
            self._write_log(spec, line)
            self._print(f"[{spec.name}] {line}")

    def _print(self, text: str) -> None:
        """A reader that went away, a full disk and strange characters must not end a job; it runs on, and logs."""
        if encoding := getattr(self._out, "encoding", None):
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        with contextlib.suppress(OSError):
            print(text, file=self._out, flush=True)

    def _write_log(self, spec: ProcessSpec, line: str) -> None:
        """A log that cannot be written (a full disk) is given up, and that is said: it must not end a job."""
        log = self._logs.get(spec.name)
        if log is None:
            return
        try:
            log.write(f"{line}\n".encode())
        except OSError as error:
            del self._logs[spec.name]
            log.close()
            why = f"its log cannot be written any more: {error.strerror}"
            self._print(f"[launcher] {spec.name}: {why}; it goes on without")

    def tail(self, spec: ProcessSpec) -> list[str]:
        with self._lock:
            return list(self._tails[spec.name])

    def close(self) -> None:
        with self._lock:
            for log in self._logs.values():
                log.close()
            self._logs.clear()


def describe_exit(code: int) -> str:
    """An exit code in words; 128 + n means signal n."""
    if code == FROZEN:
        return "froze and was killed"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"exited with code {code}"


class _Supervisor:
    """Follows the processes of one job. All but ``on_line`` and ``on_exit`` runs in the launching thread."""

    def __init__(self, plan: LaunchPlan, backend: Backend, output: _Output) -> None:
        self._plan = plan
        self._backend = backend
        self._output = output
        # Exits and signals: a few for each process and its restarts, which are limited.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: dict[str, RunningProcess] = {}  # by name
        self._budgets: dict[str, RestartBudget] = {}  # of servers, by name
        self._trainers_left = plan.num_trainers  # that have not ended well

    # Listener, called by the backend's threads
    def on_line(self, spec: ProcessSpec, line: str) -> None:
        self._output.write(spec, line)

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        self._events.put(_Exited(spec, code))

    def interrupt(self, signum: int) -> None:
        """Called by a signal handler."""
        self._events.put(_Interrupted(signum))

    def start(self, master: Master) -> None:
        for spec in plan_processes(self._plan, master, self._backend.place(self._plan)):
            self._output.open(spec)
            self._budgets[spec.name] = RestartBudget(self._plan.max_restarts)
            self._running[spec.name] = self._backend.start(spec, self)

    def _next(self, deadline: float | None = None) -> _Event | None:
        """The next event; None where the deadline (monotonic seconds) passes first."""
        while True:
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            try:
                event = self._events.get(timeout=max(0.0, left))
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                continue
            if isinstance(event, _Exited):
                del self._running[event.spec.name]
                self._trainers_left -= event.spec.role == "trainer" and event.code == 0
            return event

    def run(self) -> int:
        """Until the trainers have ended well, then the servers; returns 0, or 128 + n after signal n."""
        deadline: float | None = None
        while self._running:
            event = self._next(deadline)
            if event is None:  # servers that do not end by themselves
                break
            if isinstance(event, _Interrupted):
                return self._end_by_signal(event)
            if event.code != 0:
                self._go_on_without(event)
            if not self._trainers_left and deadline is None:
                deadline = time.monotonic() + self._plan.server_exit_s
        self.stop_all()
        return 0

    def _go_on_without(self, event: _Exited) -> None:
        """A server that was killed is started again while there are trainers, and not missed after them.

        Raises:
            LaunchError: the job has failed.
        """
        spec, how = event.spec, describe_exit(event.code)
        was_killed = event.code > 128  # what ends with a code of its own has said why
        # One that was started again may meet a job that is being taken down; the result is there.
        if spec.role == "server" and not self._trainers_left and (was_killed or self._budgets[spec.name].used):
            self._output.note(f"{spec.name} {how}; the trainers have ended: it is not started again")
        elif spec.role != "server" or not was_killed:
            raise self._failure(event, how)
        elif (why := self._start_again(spec, how)) and not self._end_without(spec, f"it {how}; {why}"):
            raise self._failure(event, f"{how}; {why}")

    def _start_again(self, spec: ProcessSpec, how: str) -> str:
        """Starts a server again, or says why that is not possible."""
        budget = self._budgets[spec.name]
        if not budget.take():
            return f"max_restarts={budget.limit} within an hour are used up"
        self._output.note(f"{spec.name} {how}; starting it again ({budget.used} of {budget.limit} times)")
        try:
            self._running[spec.name] = self._backend.start(spec, self)
        except LaunchError as error:
            return str(error)
        return ""

    def _end_without(self, spec: ProcessSpec, why: str) -> bool:
        """Gives a server up: trainers are told, and get time to fail for it; returns whether all end well instead."""
        self._output.note(f"{spec.name} is given up: {why}")
        news = json.dumps({"role": spec.role, "rank": spec.rank, "why": why})
        self._tell(lambda process: process.tell(news))
        deadline = time.monotonic() + _GIVE_UP_S
        while any(name.startswith("trainer") for name in self._running):
            if not isinstance(self._next(deadline), _Exited):  # the time is over, or somebody is impatient
                break
        return not self._trainers_left

    def _end_by_signal(self, event: _Interrupted) -> int:
        print(f"graphlearn-dist: {signal.Signals(event.signum).name}: stopping", file=sys.stderr, flush=True)
        self.stop_all()
        return 128 + event.signum

    def _failure(self, event: _Exited, how: str) -> LaunchError:
        spec = event.spec
        place = "" if self._plan.backend == "local" else f" on {spec.host}"
        tail = self._output.tail(spec)
        said = [f"its last {len(tail)} lines of output:", *("  " + line for line in tail)] if tail else ["no output"]
        return LaunchError("\n".join([f"{spec.name}{place} {how}; {said[0]}", *said[1:]]))

    def stop_all(self) -> None:
        """Returns when all processes are gone: asked at first, killed after ``stop_s`` or at a further signal."""
        self._tell(lambda process: process.stop())
        # child.py keeps the time between both; the second deadline is for one that was stopped or is stuck itself, or
        # whose machine is lost.
        wait_s = self._plan.stop_s + 2
        for limit_s in (wait_s, max(wait_s, self._backend.notices_loss_s)):
            deadline = time.monotonic() + limit_s
            while self._running and (event := self._next(deadline)) is not None:
                if isinstance(event, _Interrupted):
                    self._tell(lambda process: process.kill())
            if not self._running:
                return
            self._tell(lambda process: process.kill())
        names = ", ".join(self._running)
        self._running.clear()  # reported once
        raise LaunchError(f"still running after SIGKILL: {names}")

    def _tell(self, action: Callable[[RunningProcess], None]) -> None:
        for process in list(self._running.values()):
            action(process)


@contextlib.contextmanager
def _signals_to(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Sends SIGINT, SIGTERM and SIGHUP there for a scope; Python allows that in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [signum for signum in _SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup ignores SIGHUP
    previous = {signum: signal.signal(signum, lambda n, _frame: interrupt(n)) for signum in heeded}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def launch(plan: LaunchPlan, *, backend: Backend | None = None, out: IO[str] | None = None) -> int:
    """Start the servers and trainers of a job and wait for its end.

    Every line they write is written to ``out`` after ``[server 0] `` or the like. When all trainers have ended well,
    the servers may end by themselves for ``server_exit_s``, then they are asked to. A server that is killed is started
    again, see ``LaunchPlan.max_restarts``; after the trainers it is not missed. When any other process fails, the
    others are stopped. However this ends, no process of the job is left.

    Args:
        plan: the job.
        backend: where it runs; by default what ``plan.backend`` names.
        out: where the output goes; standard output by default.

    Returns:
        0, or 128 + n where this process was sent signal n (SIGINT, SIGTERM, SIGHUP); a second one kills at once.

    Raises:
        LaunchError: a process failed or could not be started; the message has its rank, exit and last output.
        InvalidArgumentError: the plan cannot be carried out.
    """
    chosen = backend if backend is not None else backend_for(plan)
    output = _Output(plan.log_dir, out if out is not None else sys.stdout)
    supervisor = _Supervisor(plan, chosen, output)
    # What the backend opens may set signal handlers of its own: ours come after it.
    with contextlib.closing(output), chosen.master(plan) as master, _signals_to(supervisor.interrupt):
        try:
            supervisor.start(master)
            return supervisor.run()
        except LaunchError as failure:
            try:
                supervisor.stop_all()
            except LaunchError as leftover:
                raise LaunchError(f"{failure}\n{leftover}") from failure
            raise
        finally:
            supervisor.stop_all()
