"""A whole job on Ray: its batches are those of one process, also when a server is killed and a machine is lost."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding, SparseAdam
from graphlearn_dist.cluster import LaunchPlan, launch
from graphlearn_dist.cluster.actors.base import Actor, ActorBackend, ActorSpec
from graphlearn_dist.cluster.jobs.plan import ProcessSpec
from graphlearn_dist.cluster.jobs.process_host import ProcessHost
from graphlearn_dist.errors import LaunchError
from tests.support.jobs import wait_ended
from tests.support.launched_trainer import GRAPH
from tests.support.oracle import graph_of, write_partitions
from tests.support.processes import ROOT
from tests.support.ray_nodes import RayNodes

DEADLINE_S = 120.0  # only ever reached by a hang
SERVER = """
import os
from graphlearn_dist.cli import main
print("pid", os.getpid(), flush=True)
main(["serve", "--data", os.environ["GLD_TEST_DATA"]])
"""


class Output(io.StringIO):
    """What a job writes, for whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def write(self, text: str) -> int:
        with self._changed:
            self._changed.notify_all()
            return super().write(text)

    def lines(self, start: str) -> list[str]:
        with self._changed:
            return [line.removeprefix(start) for line in self.getvalue().splitlines() if line.startswith(start)]

    def wait(self, start: str, count: int = 1) -> list[str]:
        """The rest of the first lines that begin so."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines(start)) >= count, DEADLINE_S), self.getvalue()
            return self.lines(start)[:count]


@pytest.mark.thorough
def test_a_killed_server_and_a_lost_machine_change_no_batch(ray_nodes: RayNodes, tmp_path: Path) -> None:
    import ray

    from graphlearn_dist.cluster.jobs.ray_backend import RayLaunchBackend

    data = write_partitions(graph_of(GRAPH), tmp_path, "random", 2, "in")
    (tmp_path / "serve.py").write_text(SERVER)
    os.mkfifo(tmp_path / "pipe")
    plan = LaunchPlan(
        script=str(ROOT / "tests/support/launched_trainer.py"),
        data=str(data),
        num_servers=2,
        backend="ray",
        server_script=str(tmp_path / "serve.py"),
        env={"PYTHONPATH": str(ROOT), "GLD_TEST_DATA": str(data), "GLD_TEST_PIPE": str(tmp_path / "pipe")},
    )
    largest = ray_nodes.add_node(num_cpus=64)  # the first server goes there
    out, backend = Output(), RayLaunchBackend()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(launch, plan, backend=backend, out=out)
        job.add_done_callback(lambda _: out.write("[launcher] ended\n"))
        out.wait("[trainer 0] half-way 0")
        placement = backend.place(plan)
        assert placement.server_hosts[0] == largest
        assert len({*placement.server_hosts, *placement.trainer_hosts}) == 3
        named = {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}
        assert {"launched_trainer-server-0", "launched_trainer-server-1", "launched_trainer-trainer-0"} <= named
        first, second = (int(out.wait(f"[server {rank}] pid ")[0]) for rank in range(2))
        os.kill(second, signal.SIGKILL)
        (tmp_path / "pipe").write_text("go on")
        out.wait("[trainer 0] half-way 1")
        ray_nodes.remove_node(largest)
        wait_ended([first], DEADLINE_S)
        (tmp_path / "pipe").write_text("go on")
        assert job.result(DEADLINE_S) == 0, out.getvalue()
    assert out.lines("[trainer 0] same ") == ["0 15", "1 15"]
    assert "[launcher] server 1 was killed by SIGKILL; starting it again (1 of 3 times)" in out.getvalue()
    assert "[launcher] server 0 was killed by SIGKILL; starting it again (1 of 3 times)" in out.getvalue()
    wait_ended([first, second, *(int(pid) for rank in range(2) for pid in out.lines(f"[server {rank}] pid "))], 30.0)
    assert not [a for a in ray.util.list_named_actors(all_namespaces=True) if a["name"].startswith("launched_trainer")]


LEARN = """
import sys
import torch
from graphlearn_dist import DistEmbedding, SparseAdam
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import init_client, shutdown_client

job = LaunchContext.from_environ()
init_client(job.num_servers, job.num_clients, job.rank, job.master_addr, job.master_port)
rows = DistEmbedding(int(sys.argv[1]), 4, name="a")
optimizer = SparseAdam([rows], lr=0.1)
for step in range(3):
    ids = torch.arange(step, rows.settings.num, 2 + job.rank)
    (rows(ids) * ids[:, None]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if job.rank == 0 and step == 1:
        rows.save(sys.argv[2])
shutdown_client()
"""


def test_learned_rows(ray_nodes: RayNodes, tmp_path: Path) -> None:
    """Servers and trainers on Ray: what is saved there are the rows of one process."""
    graph = graph_of(GRAPH)
    data = write_partitions(graph, tmp_path, "random", 2, "in")
    (tmp_path / "learn.py").write_text(LEARN)
    [num] = graph.num_nodes.values()
    plan = LaunchPlan(
        script=str(tmp_path / "learn.py"),
        script_args=[str(num), str(tmp_path / "saved")],
        data=str(data),
        num_servers=2,
        num_trainers=2,
        backend="ray",
        env={"PYTHONPATH": str(ROOT)},
    )
    out = Output()
    assert launch(plan, out=out) == 0, out.getvalue()
    rows = DistEmbedding(num, 4, name="a")
    optimizer = SparseAdam([rows], lr=0.1)
    for step in range(2):
        for rank in range(2):
            ids = torch.arange(step, num, 2 + rank)
            (rows(ids) * ids[:, None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    saved = DistEmbedding.from_checkpoint(tmp_path / "saved")
    assert saved.step == 2
    torch.testing.assert_close(saved(torch.arange(num)), rows(torch.arange(num)))


def test_a_trainer_that_fails_ends_the_job(ray_nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text("import os, signal; print('pid', os.getpid(), flush=True); signal.pause()")
    (tmp_path / "train.py").write_text("import sys; print('so far'); sys.exit(3)")
    plan = LaunchPlan(str(tmp_path / "train.py"), server_script=str(tmp_path / "serve.py"), backend="ray")
    out = Output()
    with pytest.raises(LaunchError, match=r"trainer 0 on [0-9a-f]+ exited with code 3; its only line .*\n  so far"):
        launch(plan, out=out)
    wait_ended([int(pid) for pid in out.lines("[server 0] pid ")], 30.0)


STAY = """
import os, pathlib, signal
print("pid", os.getpid(), flush=True)
mark = pathlib.Path(__file__).with_name("came-" + os.environ["GLD_RANK"])
if not mark.exists():
    mark.touch()
    signal.pause()
"""


def test_servers_lost_after_the_last_trainer_do_not_fail_the_job(
    backend: ActorBackend, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """On Ray, one of them with its machine. The launcher may hear of a death first: then it starts a server in vain."""
    (tmp_path / "serve.py").write_text(STAY)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "train.py").write_text(
        f"import os, pathlib; print('pid', os.getpid()); pathlib.Path({str(tmp_path / 'pipe')!r}).read_text()"
    )
    plan = LaunchPlan(
        str(tmp_path / "train.py"), num_servers=2, server_script=str(tmp_path / "serve.py"), backend=backend.name
    )
    nodes: RayNodes | None = request.getfixturevalue("ray_nodes") if backend.name == "ray" else None
    largest = nodes.add_node(num_cpus=64) if nodes else ""  # the first server goes there
    out = Output()
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(launch, plan, out=out)
        job.add_done_callback(lambda _: out.write("[launcher] ended\n"))
        servers = [int(out.wait(f"[server {rank}] pid ")[0]) for rank in range(2)]
        trainer = int(out.wait("[trainer 0] pid ")[0])
        (tmp_path / "pipe").write_text("end")
        wait_ended([trainer], DEADLINE_S)
        os.kill(servers[1], signal.SIGKILL)
        if nodes:
            nodes.remove_node(largest)
        else:
            os.kill(servers[0], signal.SIGKILL)
        assert job.result(DEADLINE_S) == 0, out.getvalue()
    assert len(out.lines("[launcher] server ")) == 2
    wait_ended(servers, 30.0)


# --- the object at the other end --------------------------------------------------------------------------------


@pytest.fixture
def host(backend: ActorBackend, tmp_path: Path) -> Iterator[Callable[[], Actor]]:
    """Starts hosts of processes that end with the test."""
    started: list[Actor] = []

    def start() -> Actor:
        target = f"{ProcessHost.__module__}.{ProcessHost.__qualname__}"
        started.append(backend.create(ActorSpec("", target, (str(tmp_path),), options={"max_concurrency": 2})))
        return started[-1]

    yield start
    for actor in started:
        backend.kill(actor)


def run(backend: ActorBackend, actor: Actor, code: str, **environ: str) -> Iterator[Any]:
    spec = ProcessSpec("trainer", 0, "here", [sys.executable, "-c", code], {"GLD_A": "process"})
    for ref in actor.stream("run", spec, environ, b"the token"):
        yield from backend.get([ref], DEADLINE_S)[0]


def test_a_process_at_the_end_of_an_actor(backend: ActorBackend, host: Callable[[], Actor], tmp_path: Path) -> None:
    (tmp_path / "part1").mkdir()
    actor = host()
    report = backend.get([actor.call("look", "127.0.0.1", str(tmp_path), 3)], DEADLINE_S)[0]
    assert (report.address, report.partitions, report.free_port > 0) == ("127.0.0.1", {1}, True)
    code = """
import os
print(os.getcwd(), os.environ["GLD_A"], os.environ["GLD_B"], os.environ["GLD_TOKEN"], flush=True)
print("OMP_NUM_THREADS" in os.environ, flush=True)
print(os.fdopen(int(os.environ["GLD_MESSAGES_FD"])).readline(), flush=True)
"""
    events = run(backend, actor, code, GLD_A="launcher", GLD_B="launcher")
    assert next(events) == f"{tmp_path} process launcher the token"
    assert next(events) == "False"
    actor.call("tell", "news")
    assert list(events) == ["news", "", 0]
    for method, code in (("stop", 143), ("kill", 137)):
        actor = host()
        stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if method == "kill" else ""
        events = run(backend, actor, f"import signal; {stubborn}print('up', flush=True); signal.pause()")
        assert next(events) == "up"
        actor.call(method)
        assert list(events) == [code]
