"""Servers that are lost when they are no longer needed: the job has its result, and ends well."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator

import pytest

from graphlearn_dist.cluster import LaunchPlan, Master, launch
from graphlearn_dist.cluster.jobs.backend import Backend, Listener, RunningProcess
from graphlearn_dist.cluster.jobs.plan import ProcessSpec
from graphlearn_dist.errors import LaunchError

KILLED = 137
Ends = list[tuple[str, int]]


class Process(RunningProcess):
    """Ends when it is told to, or as the script of its backend has it."""

    def __init__(self, end: Callable[[int], None], told: list[str], *, is_lost: bool = False) -> None:
        self._end = end
        self._told = told
        self._is_lost = is_lost
        self._killed = False

    def stop(self) -> None:
        if not self._is_lost:
            self._end(143)

    def kill(self) -> None:
        if not self._is_lost:
            self._end(KILLED)
        elif not self._killed:  # the end of what was on a lost machine is known some time later
            self._killed = True
            threading.Timer(0.2, self._end, (KILLED,)).start()

    def tell(self, line: str) -> None:
        self._told.append(line)


class Scripted(Backend):
    """Processes that are none: they end in a given order with given codes, once all are started.

    Args:
        ends: name and code of each process that ends by itself.
        starts: how often server 1 can be started.
        lost: name of a process whose machine is lost without a word.
    """

    def __init__(self, ends: Ends, starts: int = 9, lost: str = "") -> None:
        self._ends, self._starts, self._lost = ends, starts, lost
        self._told: list[str] = []
        self._alive: dict[str, Callable[[int], None]] = {}
        self.started: list[str] = []

    @property
    def news(self) -> list[str]:
        return [json.loads(line)["why"] for line in self._told]

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        self._size = plan.num_servers + plan.num_trainers
        yield Master("127.0.0.1", 1, 2)

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        if self.started.count("server 1") == self._starts and spec.name == "server 1":
            raise LaunchError("its machine is lost")
        self.started.append(spec.name)
        self._alive[spec.name] = functools.partial(listener.on_exit, spec)
        # What has been started ends from here on; the launcher takes it up in this order when it waits.
        while len(self.started) >= self._size and self._ends and self._ends[0][0] in self._alive:
            self._end(*self._ends.pop(0))
        return Process(functools.partial(self._end, spec.name), self._told, is_lost=spec.name == self._lost)

    def _end(self, name: str, code: int) -> None:
        if name in self._alive:
            self._alive.pop(name)(code)


def run(backend: Scripted, **options: int) -> tuple[int, list[str]]:
    """The exit code, and what the launcher said."""
    out = io.StringIO()
    plan = LaunchPlan("train.py", data="d", num_servers=2, num_trainers=2, server_exit_s=0.1, stop_s=0.0, **options)
    code = launch(plan, backend=backend, out=out)
    return code, out.getvalue().splitlines()


TRAINED: Ends = [("trainer 0", 0), ("trainer 1", 0)]
GONE = "the trainers have ended: it is not started again"


def test_a_server_killed_after_the_trainers_is_not_missed() -> None:
    backend = Scripted([*TRAINED, ("server 1", KILLED), ("server 0", 0)])
    assert run(backend) == (0, [f"[launcher] server 1 was killed by SIGKILL; {GONE}"])
    assert backend.started.count("server 1") == 1


def test_a_server_on_a_machine_lost_without_a_word_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scripted, "notices_loss_s", 60.0)
    assert run(Scripted([*TRAINED, ("server 0", 0)], lost="server 1")) == (0, [])


def test_a_server_started_again_may_fail_while_the_job_is_taken_down() -> None:
    backend = Scripted([("server 1", KILLED), *TRAINED, ("server 1", 1), ("server 0", 0)])
    code, said = run(backend)
    assert (code, backend.started.count("server 1")) == (0, 2)
    assert said[-1] == f"[launcher] server 1 exited with code 1; {GONE}"


@pytest.mark.parametrize(
    ("starts", "max_restarts", "why"),
    [(1, 3, "its machine is lost"), (9, 0, "max_restarts=0 within an hour are used up")],
)
def test_a_server_given_up_is_not_missed_by_trainers_that_need_it_no_more(
    starts: int, max_restarts: int, why: str
) -> None:
    backend = Scripted([("trainer 0", 0), ("server 1", KILLED), ("trainer 1", 0), ("server 0", 0)], starts)
    code, said = run(backend, max_restarts=max_restarts)
    assert code == 0
    assert said[-1] == f"[launcher] server 1 is given up: it was killed by SIGKILL; {why}"
    assert set(backend.news) == {f"it was killed by SIGKILL; {why}"}
    # Trainers that do need it say so with their exit code, and the job fails with the reason.
    backend = Scripted([("trainer 0", 0), ("server 1", KILLED), ("trainer 1", 1)], starts)
    with pytest.raises(LaunchError, match=f"server 1 was killed by SIGKILL; {why}; no output"):
        run(backend, max_restarts=max_restarts)


def test_what_a_server_says_with_its_exit_code_counts_also_late() -> None:
    with pytest.raises(LaunchError, match="server 0 exited with code 1"):
        run(Scripted([*TRAINED, ("server 0", 1)]))


class Talking(Scripted):
    """Each process says a line before it ends."""

    def __init__(self, ends: Ends, lines: dict[str, str]) -> None:
        super().__init__(ends)
        self._lines = lines

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        listener.on_line(spec, self._lines.get(spec.name, "nothing to say"))
        return super().start(spec, listener)


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2)])
def test_the_cause_is_named_before_its_consequences(order: tuple[int, ...]) -> None:
    """Who meets a stranger, or loses another one, may be faster than the one that could not listen."""
    lines = {
        "trainer 0": "graphlearn_dist.errors.AuthenticationError: token: the peer could not prove that it knows ours",
        "trainer 1": "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:1",
        "server 1": "graphlearn-dist: server 1 cannot listen there: Address already in use",
    }
    ends = [(name, 1) for name in lines]
    with pytest.raises(LaunchError) as failure:
        run(Talking([ends[index] for index in order], lines))
    first, said, *others = str(failure.value).splitlines()
    assert first == "server 1 exited with code 1; its only line of output:"
    assert said == "  " + lines["server 1"]
    before = [ends[index][0] for index in order[: order.index(2)]]
    assert others == [f"then {name} exited with code 1" for name in before]


def test_consequences_without_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is named, and nobody is waited for in vain for long."""
    monkeypatch.setattr("graphlearn_dist.cluster.jobs.launcher._CAUSE_S", 0.1)
    lines = {"trainer 1": "graphlearn_dist.errors.PeerLostError: lost server 0: connection closed"}
    with pytest.raises(LaunchError, match="trainer 1 exited with code 1; its only line"):
        run(Talking([("trainer 1", 1)], lines))
