"""Two hosts in namespaces, a server on each and a trainer on the first: nothing is shared, and the link may go down."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from graphlearn_dist.distributed import (
    DistServer,
    RemoteDistSamplingWorkerOptions,
    init_client,
    init_server,
    request_server,
    shutdown_client,
    wait_and_shutdown_server,
)
from graphlearn_dist.errors import PeerLostError
from tests.support.hosts import HostNetwork, host_network, why_no_hosts
from tests.support.jobs import load
from tests.support.oracle import assert_same, graph_of, open_loader, oracle_epochs, pyg_tensors, write_partitions
from tests.support.processes import TestProcess, start

HERE = "tests.distributed.test_two_hosts"
DEADLINE_S = 120.0  # only ever reached by a hang
PORT = 29400
GRAPH: Any = ("homogeneous", "in", ("node", "uniform"))
NUM_BEFORE = 3  # batches that the trainer has when something happens to the link


@pytest.fixture(autouse=True)
def _can_make_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens to other hosts has a token."""
    if why := why_no_hosts():
        pytest.skip(why)
    monkeypatch.setenv("GLD_TOKEN", "two hosts")


def serve(rank: int, directory: str, master: str) -> None:
    """One of two servers, until the trainer is done."""
    init_server(2, 1, rank, load(Path(directory), rank), master, PORT)
    wait_and_shutdown_server()


def train(master: str, reconnect_timeout: float) -> dict[str, Any]:
    """The trainer: some batches, what it is told to wait for, and the rest of two epochs; or how that ended."""
    init_client(2, 1, 0, master, PORT)
    answered_at_once = [request_server(rank, DistServer.get_dataset_meta)[1] for rank in (0, 1)]
    options = RemoteDistSamplingWorkerOptions([0, 1], prefetch_size=1, reconnect_timeout=reconnect_timeout)
    expected = [batch for epoch in oracle_epochs(*GRAPH) for batch in epoch]
    compared, lost = 0, ""
    with open_loader(*GRAPH, None, options) as loader:
        batches = (batch for _ in range(2) for batch in loader)
        try:
            for wanted in expected:
                assert_same(pyg_tensors(next(batches)), wanted)
                compared += 1
                if compared == NUM_BEFORE:
                    print("reading", flush=True)
                    sys.stdin.readline()
        except PeerLostError as error:
            lost = error.peer
    shutdown_client()
    return {"partitions": answered_at_once, "compared": compared, "of": len(expected), "lost": lost}


@dataclass(frozen=True)
class TwoHosts:
    """A job on two hosts whose trainer has some batches."""

    network: HostNetwork
    servers: list[TestProcess]
    trainer: TestProcess


@contextlib.contextmanager
def reading_job(directory: Path, reconnect_timeout: float = 60.0) -> Iterator[TwoHosts]:
    partitions = write_partitions(graph_of(GRAPH[0]), directory, "random", 2, GRAPH[1])
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(host_network(2))
        master = network.address(0)
        servers = [
            stack.enter_context(
                start(f"{HERE}.serve", prefix=host.command(), rank=rank, directory=str(partitions), master=master)
            )
            for rank, host in enumerate(network.hosts)
        ]
        trainer = stack.enter_context(
            start(
                f"{HERE}.train",
                prefix=network.hosts[0].command(),
                master=master,
                reconnect_timeout=reconnect_timeout,
            )
        )
        assert trainer.readline() == "reading"
        yield TwoHosts(network, servers, trainer)


def test_an_epoch_on_two_hosts(tmp_path: Path) -> None:
    with reading_job(tmp_path) as job:
        sent = [job.network.sent_bytes(number) for number in (0, 1)]
        job.trainer.tell()
        found = job.trainer.wait(DEADLINE_S)
        assert (found["partitions"], found["lost"]) == ([0, 1], "")
        assert found["compared"] == found["of"] > 2 * NUM_BEFORE
        for server in job.servers:
            server.wait(DEADLINE_S)
        assert all(job.network.sent_bytes(number) > before for number, before in enumerate(sent))


@pytest.mark.thorough
def test_a_link_that_is_down_for_a_while(tmp_path: Path) -> None:
    """For longer than it takes to give up a peer; the batches are the same."""
    with reading_job(tmp_path) as job:
        host = job.network.hosts[1]
        host.set_link("down")
        job.trainer.tell()
        time.sleep(5.0)  # nothing waits for that: it is how long the link is down
        host.set_link("up")
        job.network.wait_until_reachable()
        found = job.trainer.wait(DEADLINE_S)
        assert (found["compared"], found["lost"]) == (found["of"], "")
        for server in job.servers:
            server.wait(DEADLINE_S)


@pytest.mark.thorough
def test_a_link_that_stays_down(tmp_path: Path) -> None:
    """The trainer is told which server it lost; the server that it still reaches ends when it has left."""
    with reading_job(tmp_path, reconnect_timeout=2.0) as job:
        job.network.hosts[1].set_link("down")
        job.trainer.tell()
        found = job.trainer.wait(DEADLINE_S)
        assert NUM_BEFORE <= found["compared"] < found["of"]
        assert "(server 1," in found["lost"]
        job.servers[0].wait(DEADLINE_S)
