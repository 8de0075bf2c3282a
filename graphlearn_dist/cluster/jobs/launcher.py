"""Starts a job, follows it to its end, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, TypeAlias

from ...config import restarts_environ
from ...errors import InvalidArgumentError, LaunchError
from ...utils.system.job_file import JobAddress, job_file
from ...utils.system.restarts import RestartBudget
from .backend import LOST, Backend, LocalBackend, RunningProcess
from .host_watch import HostWatch
from .job_output import JobOutput
from .plan import LaunchPlan, Master, ProcessSpec, plan_processes
from .wrapper import FROZEN

_GIVE_UP_S = 10.0  # what trainers get to raise their exceptions, once a server is given up
_REACH_S = 60.0  # how long a host is tried that cannot be reached
_RETRY_S = 1.0
_CAUSE_S = 5.0  # for what has made another process fail to show itself
_EXIT_CODE_OF_LOST = 255  # ssh's own
# What a process says last that fails since another one has failed, or is not what it should be.
_CONSEQUENCE = re.compile(
    r"\b(PeerLostError|AuthenticationError|DeadlineExceededError|DistNetworkError|DistStoreError"
    r"|no registry at|could not prove that it knows|[Cc]onnection (closed|reset|refused))\b"
)
# The last line of a traceback; where torch.distributed is in use it has put the rank in front.
_OWN_ERROR = re.compile(r"(?:\[rank\d+\]: )?graphlearn_dist\.errors\.(\w+: .+)")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class _Exited:
    spec: ProcessSpec
    code: int


@dataclass(frozen=True)
class _Interrupted:
    signum: int


_Event: TypeAlias = "_Exited | _Interrupted"


def describe_exit(code: int) -> str:
    """An exit code in words; 128 + n means signal n."""
    if code == FROZEN:
        return "froze and was killed"
    if code == LOST:
        return "was lost: its connection broke"
    if code > 128 and code - 128 in set(signal.Signals):
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"exited with code {code}"


class _Supervisor:
    """Follows the processes of one job. All but what the backend's threads call runs in the launching thread."""

    def __init__(self, plan: LaunchPlan, backend: Backend, output: JobOutput) -> None:
        self._plan = plan
        self._backend = backend
        self._output = output
        # Exits and signals: a few for each process and its restarts, which are limited.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: dict[str, RunningProcess] = {}  # by name
        self._specs: dict[str, ProcessSpec] = {}  # by name
        self._budgets: dict[str, RestartBudget] = {}  # of servers, by name
        self._trainers_left = plan.num_trainers  # that have not ended well
        self._hosts = HostWatch(plan.launcher_timeout_s, output.note)
        self._reached: set[str] = set()  # processes that have started on another host
        self._unreached: dict[str, float] = {}  # since when others could not be, by name
        self._retries: dict[str, float] = {}  # and when to try them again
        self._unconfirmed: dict[str, ProcessSpec] = {}  # whose end nobody has seen

    # Listener, called by the backend's threads
    def on_line(self, spec: ProcessSpec, line: str) -> None:
        if spec.name in self._unreached and line in self._output.tail(spec)[-1:]:
            return  # the same as at the last attempt
        self._output.write(spec, line)

    def on_sign(self, spec: ProcessSpec, sign: str) -> None:
        if sign == "ready":
            self._output.note(f"{self._name(spec)} is ready")
            return
        if sign == "started":
            self._reached.add(spec.name)
            self._unreached.pop(spec.name, None)
        self._hosts.heard(spec)

    def on_exit(self, spec: ProcessSpec, code: int) -> None:
        self._hosts.ended(spec)
        self._events.put(_Exited(spec, code))

    def interrupt(self, signum: int) -> None:
        """Called by a signal handler."""
        self._events.put(_Interrupted(signum))

    def is_interrupted(self) -> bool:
        """Whether a signal has come that nobody has taken up; before anything is started."""
        return not self._events.empty()

    def _name(self, spec: ProcessSpec) -> str:
        return spec.name if self._plan.backend == "local" else f"{spec.name} on {spec.host}"

    def start(self, master: Master) -> None:
        for spec in plan_processes(self._plan, master, self._backend.place(self._plan)):
            self._output.open(spec)
            self._specs[spec.name] = spec
            self._budgets[spec.name] = RestartBudget(self._plan.max_restarts)
            self._start(spec)

    def _start(self, spec: ProcessSpec) -> None:
        self._reached.discard(spec.name)
        self._running[spec.name] = self._backend.start(spec, self)

    def _next(self, deadline: float | None = None) -> _Event | None:
        """The next event; None where the deadline (monotonic seconds) passes first."""
        while True:
            self._look_at_hosts()
            left = _RETRY_S if deadline is None else min(_RETRY_S, deadline - time.monotonic())
            try:
                event = self._events.get(timeout=max(0.0, left))
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    return None
                continue
            if isinstance(event, _Exited):
                del self._running[event.spec.name]
                if self._is_unreached(event):
                    continue
                self._trainers_left -= event.spec.role == "trainer" and event.code == 0
                if event.code == LOST:
                    self._unconfirmed[event.spec.name] = event.spec
                else:  # that one too, if there was one before
                    self._unconfirmed.pop(event.spec.name, None)
            return event

    def _look_at_hosts(self) -> None:
        for host in self._hosts.lost():
            for name, process in list(self._running.items()):
                if self._specs[name].host == host:
                    process.abandon()
        now = time.monotonic()
        for name in [name for name, at in self._retries.items() if at <= now]:
            del self._retries[name]
            self._start(self._specs[name])

    def _is_unreached(self, event: _Exited) -> bool:
        """Whether a process ended before it came to its host, and will be tried again."""
        name, now = event.spec.name, time.monotonic()
        if event.code != LOST or name in self._reached:
            return False
        if name not in self._unreached:
            self._output.note(f"{event.spec.host} cannot be reached for {name}; trying it again for {_REACH_S:g} s")
        if now - self._unreached.setdefault(name, now) > _REACH_S:
            return False
        self._retries[name] = now + _RETRY_S
        return True

    def run(self) -> int:
        """Until the trainers have ended well, then the servers; returns 0, or 128 + n after signal n."""
        deadline: float | None = None
        while self._running or (self._retries and self._trainers_left):
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
            raise self._failure(self._cause(event))
        elif (why := self._start_again(spec, how)) and not self._end_without(spec, f"it {how}; {why}"):
            raise self._failure(event, why)

    def _start_again(self, spec: ProcessSpec, how: str) -> str:
        """Starts a server again, or says why that is not possible."""
        budget = self._budgets[spec.name]
        if not budget.take():
            return f"max_restarts={budget.limit} within an hour are used up"
        self._output.note(f"{spec.name} {how}; starting it again ({budget.used} of {budget.limit} times)")
        again = replace(spec, env={**spec.env, **restarts_environ(budget.num_taken)})
        self._specs[spec.name] = again
        try:
            self._start(again)
        except LaunchError as error:
            return str(error)
        return ""

    def _end_without(self, spec: ProcessSpec, why: str) -> bool:
        """Gives a server up: trainers are told, and get time to fail for it; returns whether all end well instead."""
        self._output.note(f"{spec.name} is given up: {why}")
        message = json.dumps({"role": spec.role, "rank": spec.rank, "why": why})
        self._tell(lambda process: process.tell(message))
        deadline = time.monotonic() + _GIVE_UP_S
        while any(name.startswith("trainer") for name in self._running):
            if not isinstance(self._next(deadline), _Exited):  # the time is over, or somebody is impatient
                break
        return not self._trainers_left

    def called_off(self) -> int:
        """Takes up the signal that ``is_interrupted`` tells of; returns 128 + n."""
        event = self._events.get()
        if not isinstance(event, _Interrupted):
            raise RuntimeError(f"{event.spec.name} ended before it was started")
        return self._end_by_signal(event)

    def _end_by_signal(self, event: _Interrupted) -> int:
        print(f"graphlearn-dist: {signal.Signals(event.signum).name}: stopping", file=sys.stderr, flush=True)
        self.stop_all()
        return 128 + event.signum

    def _cause(self, first: _Exited) -> list[_Exited]:
        """What has failed, the likely cause first.

        A process that fails as it lost another one, or met a stranger, may be faster than the one that is the cause.
        """
        failed = [first]
        deadline = time.monotonic() + _CAUSE_S
        while self._is_consequence(failed[-1]) and self._running:
            event = self._next(deadline)
            if not isinstance(event, _Exited):  # the time is over, or somebody is impatient
                if event is not None:
                    self._events.put(event)
                break
            if event.code != 0:
                failed.append(event)
        if not self._is_consequence(failed[-1]):
            failed.insert(0, failed.pop())
        return failed

    def _is_consequence(self, event: _Exited) -> bool:
        return event.code == 1 and any(_CONSEQUENCE.search(line) for line in self._output.tail(event.spec)[-3:])

    def _failure(self, failed: _Exited | list[_Exited], why: str = "") -> LaunchError:
        event, *others = failed if isinstance(failed, list) else [failed]
        what = f"{self._name(event.spec)} {describe_exit(event.code)}" + (f"; {why}" if why else "")
        tail = self._output.tail(event.spec)
        own_error = _OWN_ERROR.fullmatch(tail[-1]) if tail else None
        if own_error is not None and not self._is_consequence(event):  # its traceback is the user's, and was printed
            lines = [f"{what}: {own_error[1]}"]
        elif tail:
            last = f"last {len(tail)} lines" if len(tail) > 1 else "only line"
            lines = [f"{what}; its {last} of output:", *("  " + line for line in tail)]
        else:
            lines = [f"{what}; no output"]
        lines += [f"then {self._name(other.spec)} {describe_exit(other.code)}" for other in others]
        return LaunchError("\n".join(lines), _EXIT_CODE_OF_LOST if event.code == LOST else event.code)

    def stop_all(self) -> None:
        """Returns when all processes are gone: asked at first, killed after ``stop_s`` or at a further signal.

        Those on a host from which nothing comes are let go of then; that is said.
        """
        self._retries.clear()
        self._tell(lambda process: process.stop())
        # wrapper.py keeps the time between both; the second deadline is for one that was stopped or is stuck itself, or
        # whose machine is lost.
        wait_s = self._plan.stop_s + 2
        for limit_s in (wait_s, max(wait_s, self._backend.notices_loss_s)):
            self._wait_for_ends(limit_s)
            self._tell(lambda process: process.kill())
            self._abandon_silent()
        if self._running:
            self._tell(lambda process: process.abandon())
            self._wait_for_ends(wait_s)
        self._tell_unconfirmed()
        if self._running:
            names = ", ".join(self._running)
            self._running.clear()  # reported once
            raise LaunchError(f"still running after SIGKILL: {names}")

    def _wait_for_ends(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self._running and (event := self._next(deadline)) is not None:
            self._retries.clear()
            if isinstance(event, _Interrupted):
                self._tell(lambda process: process.kill())
                self._abandon_silent()

    def _abandon_silent(self) -> None:
        for name, process in list(self._running.items()):
            if self._hosts.is_silent(self._specs[name]):
                process.abandon()

    def _tell_unconfirmed(self) -> None:
        hosts: dict[str, list[str]] = {}
        for name, spec in self._unconfirmed.items():
            hosts.setdefault(spec.host, []).append(name)
        self._unconfirmed.clear()
        limit_s = self._plan.launcher_timeout_s
        ends_s = limit_s + self._plan.stop_s
        rest = f"what is left there ends by itself within {ends_s:g} s" if limit_s else "it may go on there"
        for host, names in hosts.items():
            self._output.note(f"{host} did not confirm the end of {', '.join(sorted(names))}; {rest}")

    def _tell(self, action: Callable[[RunningProcess], None]) -> None:
        for process in list(self._running.values()):
            action(process)


@contextlib.contextmanager
def _signals_to(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Sends SIGINT, SIGTERM and SIGHUP there for a scope; Python allows that in the main thread only.

    SIGCHLD is not ignored there: how a process ended could not be had, where whoever started this one ignores it.

    Raises:
        LaunchError: SIGCHLD is ignored, and this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            raise LaunchError(
                "launch: expected SIGCHLD not to be ignored, since nobody would learn how processes end; call it in "
                "the main thread, or signal.signal(signal.SIGCHLD, signal.SIG_DFL) there before"
            )
        yield
        return
    heeded = [signum for signum in _SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]  # nohup ignores SIGHUP
    previous = {signum: signal.signal(signum, lambda n, _frame: interrupt(n)) for signum in heeded}
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def backend_for(plan: LaunchPlan) -> Backend:
    """The backend that ``plan.backend`` names."""
    if plan.backend == "local":
        return LocalBackend()
    if plan.backend == "ssh":
        from .ssh_backend import SshBackend

        return SshBackend(plan.ssh)
    if plan.backend == "ray":
        from .ray_backend import RayLaunchBackend

        return RayLaunchBackend()
    raise InvalidArgumentError(f"backend: expected 'local', 'ssh' or 'ray', got {plan.backend!r}")


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
        LaunchError: a process failed or could not be started; the message has its rank, exit and last output, and
            ``code`` its exit code.
        InvalidArgumentError: the plan cannot be carried out, or something that it needs is not there.
    """
    chosen = backend if backend is not None else backend_for(plan)
    output = JobOutput(plan.log_dir, out if out is not None else sys.stdout)
    supervisor = _Supervisor(plan, chosen, output)
    with contextlib.closing(output):
        with _signals_to(supervisor.interrupt):
            chosen.check(plan, supervisor.is_interrupted)
            if supervisor.is_interrupted():
                return supervisor.called_off()
        # What the backend opens may set signal handlers of its own: ours come after it.
        with contextlib.ExitStack() as stack:
            master = stack.enter_context(chosen.master(plan))
            stack.enter_context(_signals_to(supervisor.interrupt))
            if plan.job_file is not None:
                stack.enter_context(job_file(plan.job_file, JobAddress(master.address, master.port, chosen.token)))
            return _run(supervisor, master)


def _run(supervisor: _Supervisor, master: Master) -> int:
    try:
        supervisor.start(master)
        return supervisor.run()
    except LaunchError as failure:
        try:
            supervisor.stop_all()
        except LaunchError as leftover:
            raise LaunchError(f"{failure}\n{leftover}", failure.code) from failure
        raise
    finally:
        supervisor.stop_all()
