"""Servers that die: clients go on with the same bits when they are back, or end with one error."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.cluster import LaunchPlan, launch
from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    init_client,
    rpc,
    shutdown_client,
)
from graphlearn_dist.distributed.session import closing_calls
from graphlearn_dist.errors import LaunchError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import save_node_order
from graphlearn_dist.rpc import Peer
from tests.support.jobs import NUM_NODES, children, load, make_partitions, same_batches, shared_memory_names
from tests.support.processes import ROOT, TestProcess, run_processes, start

pytestmark = pytest.mark.faults

SEEDS = torch.arange(NUM_NODES)
JOB_S = 300.0  # only ever reached by a hang

# Sends signals to servers, told as rank:signal, in the midst of one epoch each, and compares with the local loader.
TRAINER = """
import itertools, os, signal, sys
from pathlib import Path
import torch
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import init_client, rpc, shutdown_client
from tests.faults.test_server_deaths import epoch, make_loader
from tests.support.jobs import same_batches

whole, locality, faults = Path(sys.argv[1]), int(sys.argv[2]) or None, [fault.split(":") for fault in sys.argv[3:]]
context = LaunchContext.from_environ()
init_client(
    context.num_servers, context.num_clients, context.rank, context.master_addr, context.master_port,
    connect_timeout_s=120,
)
with make_loader([0, 1], 120, locality) as loader:
    for number, (rank, name) in enumerate(faults):
        batches = iter(loader)
        seen = list(itertools.islice(batches, 5))
        (pid,) = [member.peer.pid for member in rpc.get_endpoint().members("server") if member.rank == int(rank)]
        print(name, rank, pid, flush=True)
        os.kill(pid, signal.Signals[name])
        same_batches([*seen, *batches], epoch(whole, number, locality))
        print("epoch", number, "is the same", flush=True)
shutdown_client()
"""


def with_order(directory: Path) -> Path:
    """Near places are owned by one server."""
    save_node_order(directory, ZoneOrder(torch.arange(NUM_NODES), torch.tensor([0, NUM_NODES])))
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_order(make_partitions(tmp_path_factory.mktemp("whole") / "graph", 1))


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_order(make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2))


def make_loader(server_rank: list[int], reconnect_timeout: float, locality: int | None = None) -> DistNeighborLoader:
    options = RemoteDistSamplingWorkerOptions(
        server_rank=server_rank, rpc_timeout=120, reconnect_timeout=reconnect_timeout, batches_per_message=2
    )
    return DistNeighborLoader(
        None, [3, 2], SEEDS, 4, True, edge_dir="in", collect_features=True, random_seed=1, worker_options=options,
        locality=locality,
    )  # fmt: skip


def epoch(whole: Path, number: int, locality: int | None = None) -> list[object]:
    """The same batches, made in this process."""
    loader = NeighborLoader(load(whole), [3, 2], SEEDS, batch_size=4, shuffle=True, seed=1, locality=locality)
    return [loader.batch(number, index) for index in range(len(loader))]


def run_job(tmp_path: Path, halves: Path, *args: str, max_restarts: int) -> tuple[list[str], str]:
    """The job's output, and what its launch raised; partitions are asked for as between hosts."""
    job = {"directory": str(tmp_path), "halves": str(halves), "args": args, "max_restarts": max_restarts}
    ((lines, error),) = run_processes([("tests.faults.test_server_deaths.launch_job", job)], JOB_S)
    return lines, error


def launch_job(directory: str, halves: str, args: list[str], max_restarts: int) -> tuple[list[str], str]:
    """That, in a process of its own."""
    script = Path(directory) / "trainer.py"
    script.write_text(textwrap.dedent(TRAINER))
    plan = LaunchPlan(
        script=str(script),
        script_args=tuple(args),
        data=halves,
        num_servers=2,
        max_restarts=max_restarts,
        env={"GLD_SHARE_PARTITIONS": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    out, error = io.StringIO(), ""
    before = shared_memory_names(), children(os.getpid())
    try:
        launch(plan, out=out)
    except LaunchError as failure:
        error = str(failure)
    assert (shared_memory_names(), children(os.getpid())) == before
    return out.getvalue().splitlines(), error


def test_servers_that_the_launcher_starts_again(tmp_path: Path, halves: Path, whole: Path) -> None:
    """Rank 1, whose partition the other one's workers need; then rank 0, which hosts the registry, and freezes too."""
    lines, error = run_job(tmp_path, halves, str(whole), "0", "1:SIGKILL", "0:SIGKILL", "0:SIGSTOP", max_restarts=2)
    assert error == "", "\n".join(lines)
    assert [line for line in lines if "is the same" in line] == [
        f"[trainer 0] epoch {number} is the same" for number in range(3)
    ]
    assert [line for line in lines if line.startswith("[launcher]") and "ready" not in line] == [
        "[launcher] server 1 was killed by SIGKILL; starting it again (1 of 2 times)",
        "[launcher] server 0 was killed by SIGKILL; starting it again (1 of 2 times)",
        "[launcher] server 0 froze and was killed; starting it again (2 of 2 times)",
    ]


def test_a_server_that_owns_most_seeds_of_some_batches(tmp_path: Path, halves: Path, whole: Path) -> None:
    """It makes those that it had not sent when it is back; three stretches fall to two servers as two and one."""
    lines, error = run_job(tmp_path, halves, str(whole), "3", "1:SIGKILL", "0:SIGKILL", max_restarts=2)
    assert error == "", "\n".join(lines)
    assert [line for line in lines if "is the same" in line] == [
        f"[trainer 0] epoch {number} is the same" for number in range(2)
    ]


def test_a_server_that_is_given_up(tmp_path: Path, halves: Path, whole: Path) -> None:
    lines, error = run_job(tmp_path, halves, str(whole), "0", "0:SIGKILL", max_restarts=0)
    said = "\n".join(lines)
    assert error.startswith("server 0 was killed by SIGKILL")
    killed = re.search(r"SIGKILL 0 (\d+)", said)
    assert killed is not None, said
    place = f"_default_server_0 (server 0, pid {killed[1]} on {os.uname().nodename})"
    assert f"PeerLostError: lost {place}: the launcher has given it up: it was killed by SIGKILL" in said
    assert "max_restarts=0 within an hour are used up (stage fetch: batch" in said


def thaw_when_lost(server: TestProcess) -> threading.Event:
    """Lets a frozen server go on as soon as this process takes it for lost, once."""
    thawed = threading.Event()

    def thaw(peer: Peer, why: str) -> None:
        if not thawed.is_set():
            thawed.set()
            server.send_signal(signal.SIGCONT)

    rpc.get_endpoint().on_peer_lost(thaw)
    server.freeze()
    return thawed


def test_a_server_that_comes_back_without_a_launcher(whole: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed; it froze in an epoch, and while a loader was made; and loaders of a frozen one are left, and
    the job with them."""
    arguments = {"directory": str(whole), "rank": 0, "num_servers": 1, "num_clients": 0, "port": port}
    serve = "tests.support.jobs.serve"
    with start(serve, **arguments, fd=-1, partition=-1) as first:
        init_client(1, 1, 0, "127.0.0.1", port, is_dynamic=True, connect_timeout_s=120)
        try:
            with make_loader([0], 120) as loader:
                batches = iter(loader)
                seen = [next(batches) for _ in range(3)]
                first.send_signal(signal.SIGKILL)
                first.kill()
                with start(serve, **arguments, fd=-1, partition=-1) as second:
                    same_batches([*seen, *batches], epoch(whole, 0))
                    batches = iter(loader)
                    seen = [next(batches)]
                    thawed = thaw_when_lost(second)
                    same_batches([*seen, *batches], epoch(whole, 1))
                    assert thawed.is_set()
                    thawed = thaw_when_lost(second)
                    with make_loader([0], 120) as other:
                        same_batches(other, epoch(whole, 0))
                    assert thawed.is_set()
                    others = [make_loader([0], 120) for _ in range(3)]
                    second.freeze()
                    limits: list[float] = []
                    waited: list[float] = []
                    wait_for = closing_calls.wait

                    def wait(said: Any, limit_s: float) -> Any:
                        limits.append(limit_s)
                        begin = time.monotonic()
                        said = wait_for(said, limit_s)
                        waited.append(time.monotonic() - begin)
                        return said

                    monkeypatch.setattr(closing_calls, "wait", wait)
                    for left in (loader, *others):
                        left.shutdown()
                    shutdown_client()
                    # All closing calls wait 2.5 s together; each on its own they would wait 12.5.
                    assert len(limits) == 5
                    for number, limit_s in enumerate(limits):
                        assert limit_s <= max(0.0, 2.5 - sum(waited[:number])) + 1e-6
        finally:
            shutdown_client()
