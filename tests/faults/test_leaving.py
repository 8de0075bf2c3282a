"""Leaving: whatever ends a trainer, it ends soon, and servers keep nothing of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    init_client,
    shutdown_client,
)
from tests.support.jobs import (
    NUM_NODES,
    children,
    make_partitions,
    running_servers,
    shared_memory_names,
    wait_ended,
    workers_of,
)
from tests.support.processes import ProcessFailure, start

pytestmark = pytest.mark.faults

HERE = "tests.faults.test_leaving"
SOON_S = 15.0  # 5 s are promised; a busy machine takes its time to start and end processes


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    names, processes = set(shared_memory_names()), set(children(os.getpid()))
    yield
    # What an earlier test had left may have ended meanwhile.
    assert (set(shared_memory_names()) - names, set(children(os.getpid())) - processes) == (set(), set())


def open_loader(port: int) -> DistNeighborLoader:
    init_client(1, 1, 0, "127.0.0.1", port, is_dynamic=True, connect_timeout_s=60)
    options = RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=2)
    return DistNeighborLoader(None, [3], torch.arange(NUM_NODES), 4, edge_dir="in", worker_options=options)


def train_for_ever(port: int) -> None:
    """A script that cleans nothing up."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
    loader = open_loader(port)
    print("training", flush=True)
    while True:
        for _ in loader:
            pass


def fail_in_the_loop(port: int) -> None:
    """A script whose loop raises as soon as it is told that the server has frozen."""
    try:
        with open_loader(port) as loader:
            for _ in loader:
                print("training", flush=True)
                input()
                raise RuntimeError("the model diverged")
    finally:
        shutdown_client()


def test_a_trainer_that_leaves_in_the_midst_of_a_loop(tmp_path: Path) -> None:
    """Ctrl-C; then an exception, while the server is frozen and says nothing to any goodbye."""
    with running_servers(make_partitions(tmp_path / "graph", 1)) as job:
        server = job.servers[0]
        with start(f"{HERE}.train_for_ever", port=job.port) as trainer:
            assert trainer.readline() == "training"
            workers = workers_of(server.pid)
            assert len(workers) == 2
            trainer.send_signal(signal.SIGINT)
            wait_ended([trainer.pid, *workers], SOON_S)
            assert "KeyboardInterrupt" in trainer.output()
        with start(f"{HERE}.fail_in_the_loop", port=job.port) as trainer:
            assert trainer.readline() == "training"
            workers = workers_of(server.pid)
            server.freeze()
            trainer.tell()
            wait_ended([trainer.pid], SOON_S)
            with pytest.raises(ProcessFailure, match="RuntimeError: the model diverged"):
                trainer.wait(SOON_S)
            server.send_signal(signal.SIGCONT)
            wait_ended(workers, SOON_S)
