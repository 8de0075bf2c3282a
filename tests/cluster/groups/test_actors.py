"""What both engines promise of one actor."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphlearn_dist.cluster.actors.base import Actor, ActorBackend, ActorSpec, GroupWorkerHandle, ReservationRequest
from graphlearn_dist.errors import DeadlineExceededError, InvalidArgumentError, WorkerLateError, WorkerNameTakenError
from tests.support.cluster_workers import Broken, Hanging, Worker
from tests.support.jobs import wait_ended

DEADLINE_S = 60.0  # only ever reached by a hang
Create = Callable[..., Actor]


@pytest.fixture
def create(backend: ActorBackend) -> Iterator[Create]:
    """Starts actors that end with the test."""
    created: list[Actor] = []

    def start(target: Any = Worker, **keywords: Any) -> Actor:
        created.append(backend.create(ActorSpec(keywords.pop("name", ""), target, **keywords)))
        return created[-1]

    yield start
    for actor in created:
        backend.kill(actor)


def test_calls(backend: ActorBackend, create: Create) -> None:
    name = f"{Worker.__module__}.{Worker.__qualname__}"
    actor = create(name, args=(10,), kwargs={"path": "p"}, env={"GLD_TEST": "yes"})
    profile = actor.ready.result(DEADLINE_S)
    assert profile.pid != os.getpid()
    assert profile.node in {node.node_id for node in backend.nodes()}
    assert profile.methods["add"].parameters == ("value", "times")
    assert [profile.methods[method].streams for method in ("count", "add")] == [True, False]
    assert [profile.methods[method].idempotent for method in ("die_once", "die")] == [True, False]
    calls = [actor.call("add", 1), actor.call("add", value=2, times=3), actor.call("later", 4), actor.call("pid")]
    assert backend.get(calls, DEADLINE_S) == [11, 16, 4, profile.pid]
    assert backend.get([actor.call("environ", "GLD_TEST")], DEADLINE_S) == [["yes"]]
    # References stand for their values, also such as are not there yet; they can be awaited.
    chained = actor.call("add", actor.call("add", 1), times=backend.put(2))
    assert backend.get([chained], DEADLINE_S) == [32]

    async def wait() -> int:
        return await chained

    assert asyncio.run(asyncio.wait_for(wait(), DEADLINE_S)) == 32


def test_streams(backend: ActorBackend, create: Create) -> None:
    actor = create(args=(5,))
    stream = actor.stream("count", 3)
    assert backend.is_stream(stream)
    assert not backend.is_stream(actor.call("pid"))
    assert backend.get(list(stream), DEADLINE_S) == [5, 6, 7]
    assert list(stream) == []
    assert list(actor.stream("count", 0)) == []
    *items, last = actor.stream("count", 1, fail=True)
    assert backend.get(items, DEADLINE_S) == [5]
    with pytest.raises(ValueError, match="at the end"):
        backend.get([last], DEADLINE_S)


def test_what_a_method_raises_arrives(backend: ActorBackend, create: Create) -> None:
    actor = create()
    with pytest.raises(ValueError, match="why not") as caught:
        backend.get([actor.call("fail", "why not")], DEADLINE_S)
    assert not backend.is_death(caught.value)
    with pytest.raises(Exception, match=r"ab|UnpicklableError"):
        backend.get([actor.call("fail_oddly")], DEADLINE_S)
    with pytest.raises(Exception, match="pickle"):
        backend.get([actor.call("unpicklable")], DEADLINE_S)
    with pytest.raises(AttributeError, match="no_such_method"):
        backend.get([actor.call("no_such_method")], DEADLINE_S)
    assert backend.get([actor.call("add", 1)], DEADLINE_S) == [1]


def test_constructors_that_fail(backend: ActorBackend, create: Create) -> None:
    failing = [create(Broken), create("tests.support.cluster_workers.NoClass"), create("no_such_module.Class")]
    errors = [actor.ready.exception(DEADLINE_S) for actor in failing]
    for error, said in zip(errors, ("missing", "NoClass", "no_such_module"), strict=True):
        assert said in str(error)
    for actor in failing:
        assert backend.is_death(actor.ended.exception(DEADLINE_S))


def test_a_constructor_that_hangs_is_killed(backend: ActorBackend, create: Create) -> None:
    [reservation] = backend.reserve([ReservationRequest("late", [{"CPU": 1.0}], "STRICT_PACK")], DEADLINE_S)
    actor = create(Hanging, name="late", env={"RANK": "3"}, reservation=reservation, start_timeout_s=1.0)
    pending = actor.call("add", 1)
    with pytest.raises(WorkerLateError, match=r"late \(rank 3, node .*\): .* within 1 s; it was killed") as caught:
        GroupWorkerHandle(lambda: actor).add.remote(1)  # waits for what the class has
    assert any(f"node {node.node_id})" in str(caught.value) for node in backend.nodes())
    ended = actor.ended.exception(DEADLINE_S)
    assert backend.is_death(ended)  # type: ignore[arg-type]
    assert str(ended) == str(caught.value)
    with pytest.raises(Exception, match=r"died|killed") as caught_too:
        backend.get([pending], DEADLINE_S)
    assert backend.is_lost(caught_too.value)
    backend.release(reservation)
    assert backend.get([create(name="late").call("add", 3)], DEADLINE_S) == [3]
    with pytest.raises(InvalidArgumentError, match="start_timeout_s: expected a positive number of seconds, got 0"):
        create(start_timeout_s=0)


def test_a_killed_process_fails_all_that_wait(backend: ActorBackend, create: Create) -> None:
    actor = create()
    child = backend.get([actor.call("start_child")], DEADLINE_S)[0] if backend.name == "local" else None
    pid = actor.ready.result(DEADLINE_S).pid
    pending = [actor.call("wait"), actor.call("add", 1)]
    os.kill(pid, signal.SIGKILL)
    assert backend.is_death(actor.ended.exception(DEADLINE_S))
    for ref in [*pending, actor.call("add", 1), actor.control("ping")]:
        with pytest.raises(Exception, match=r"died|ended|dead|unavailable") as caught:
            backend.get([ref], DEADLINE_S)
        assert backend.is_lost(caught.value)
    backend.kill(actor)
    wait_ended([pid] if child is None else [pid, child], DEADLINE_S)


def test_control_beside_a_busy_method(backend: ActorBackend, create: Create, tmp_path: Path) -> None:
    actor = create()
    os.mkfifo(tmp_path / "pipe")
    busy = actor.stream("hold", str(tmp_path / "pipe"))
    assert backend.get([next(busy)], DEADLINE_S) == ["holding"]
    queued = actor.call("add", 1)
    with pytest.raises(DeadlineExceededError):
        backend.get([queued], 0.1)
    [running] = backend.get([actor.control("ping")], DEADLINE_S)[0]
    assert running.method == "hold"
    assert running.age_s >= running.silent_s > 0
    assert "in hold" in backend.get([actor.control("stacks")], DEADLINE_S)[0]
    usage = backend.get([actor.control("usage")], DEADLINE_S)[0]
    assert usage.rss_bytes > 1 << 20
    assert usage.threads > 1
    (tmp_path / "pipe").write_text("go on")
    assert backend.get(list(busy), DEADLINE_S) == ["go on"]
    assert backend.get([queued], DEADLINE_S) == [1]
    assert backend.get([actor.control("ping")], DEADLINE_S) == [()]
    with pytest.raises(ValueError, match="operation"):
        backend.get([actor.control("dance")], DEADLINE_S)


def test_names_belong_to_the_living(backend: ActorBackend, create: Create) -> None:
    first = create(name="only-one")
    with pytest.raises(WorkerNameTakenError, match="only-one"):
        create(name="only-one")
    backend.kill(first)
    backend.kill(first)
    second = create(name="only-one")
    assert backend.get([second.call("add", 3)], DEADLINE_S) == [3]


def test_a_memory_limit_holds(backend: ActorBackend, create: Create) -> None:
    actor = create(memory_limit_bytes=1 << 30)
    assert backend.get([actor.call("allocate", 100 << 20)], DEADLINE_S) == [100 << 20]
    with pytest.raises(MemoryError):
        backend.get([actor.call("allocate", 2 << 30)], DEADLINE_S)
    assert backend.get([actor.call("add", 1)], DEADLINE_S) == [1]


def test_released_bundles_end_what_runs_in_them(backend: ActorBackend, create: Create) -> None:
    [reservation] = backend.reserve([ReservationRequest("released", [{"CPU": 1.0}], "STRICT_PACK")], DEADLINE_S)
    actor = create(reservation=reservation)
    actor.ready.result(DEADLINE_S)
    port = backend.get([backend.find_port(reservation, 0, 0, 0)], DEADLINE_S)[0]
    assert port.node_id == actor.ready.result().node
    assert port.port > 0
    backend.release(reservation)
    backend.release(reservation)
    assert backend.is_death(actor.ended.exception(DEADLINE_S))


def test_an_actor_of_another_engine(backend: ActorBackend) -> None:
    with pytest.raises(InvalidArgumentError, match="actor"):
        backend.kill(object())  # type: ignore[arg-type]
