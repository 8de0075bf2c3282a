"""What is said of a job: rates between two looks, and what holds it up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphlearn_dist.telemetry import BatchSums, MadeStats
from graphlearn_dist.telemetry.job_table import Look, bottleneck, describe_job, looks
from graphlearn_dist.telemetry.process_status import LoaderStatus, ProcessStatus, ServedStatus, process_status

SECOND = 10**9
PEERS = "50% of that waiting for other partitions"
READY = "batches are ready, or could be: their way to the trainers, or prefetch_size, is what is short."


def server(time_s: float, sums: BatchSums) -> ProcessStatus:
    served = ServedStatus("client 0", MadeStats("2 processes", sums, 2, restarts=1), 3, 1_000_000)
    return ProcessStatus(
        time_s, time_s, time_s / 2, 50_000_000, [], [served], 9_000_000, 1_000_000, {"client 0": [0, 0]}
    )


def trainer(time_s: float, wait_s: float, compute_s: float) -> ProcessStatus:
    loader = LoaderStatus("DistNeighborLoader 0", 2, int(10 * time_s), 7, wait_s, compute_s)
    return ProcessStatus(time_s, time_s, 0.0, 10_000_000, [loader], [], 0, 0, {"server 0": [0, int(time_s * 2e6)]})


def test_rates_are_those_between_two_looks() -> None:
    now = [
        Look("server 0", "node-a", server(20, BatchSums(batches=400, sample_ns=8 * SECOND, peers_ns=4 * SECOND))),
        Look("client 0", "node-b", trainer(20, 12, 8)),
        Look("client 1", "node-b", None, error="lost"),
    ]
    before = {"server 0": server(10, BatchSums(batches=100)), "client 0": trainer(10, 10, 0)}
    lines = describe_job(looks(now, before)).splitlines()
    assert lines == [
        "process   host    up    memory  cpu  sent      received",
        "server 0  node-a  0:20  50 MB   50%  0.0 MB/s  0.0 MB/s  1 of 9 MB for batches given to loaders",
        f"    for client 0: 2 processes, 1 restarted, 30.0 batches/s, 3 ready, 40% busy, {PEERS}",
        "client 0  node-b  0:20  10 MB   0%   0.0 MB/s  2.0 MB/s",
        "    DistNeighborLoader 0: epoch 2, 7 to come, 10.0 batches/s, 20% waiting",
        "client 1  node-b  -     -       -    -         -         no answer: lost",
        "",
        f"Trainers wait for batches 20% of the time: {READY}",
    ]


def test_a_process_that_was_started_again_has_no_past() -> None:
    old, new = replace(server(100, BatchSums(batches=900)), uptime_s=90), replace(server(102, BatchSums()), uptime_s=1)
    (look,) = looks([Look("server 0", "a", new)], {"server 0": old})
    assert look.before is None
    assert look.seconds == 1


def test_restarts_are_told() -> None:
    again = replace(server(10, BatchSums()), restarts=2)
    lines = describe_job([Look("server 0", "a", again)]).splitlines()
    assert lines[1].endswith("started again 2 times, 1 of 9 MB for batches given to loaders")


def test_a_loader_that_came_after_one_that_has_gone_has_no_past() -> None:
    """Loaders are told apart by their numbers, not by their places: that of the first one is the second's now."""
    first, second = (
        ServedStatus("client 0", MadeStats("1 process", BatchSums(batches=count), 1), 0, 0, number)
        for number, count in enumerate((100, 400))
    )
    before = replace(server(10, BatchSums()), served=[first])
    now = replace(server(20, BatchSums()), served=[second])
    text = describe_job(looks([Look("server 0", "a", now)], {"server 0": before}))
    assert "for client 0: 1 process, 40.0 batches/s" in text


@pytest.mark.parametrize(
    ("wait_s", "sums", "expected"),
    [
        (1.0, BatchSums(), "Training is what takes the time"),
        (9.0, BatchSums(batches=1, sample_ns=15 * SECOND, credit_ns=8 * SECOND), "A larger prefetch_bytes may help"),
        (9.0, BatchSums(batches=1, sample_ns=10 * SECOND, peers_ns=8 * SECOND), "wait for other partitions"),
        (9.0, BatchSums(batches=1, sample_ns=20 * SECOND), "sampling workers are busy"),
        (9.0, BatchSums(batches=1, sample_ns=SECOND), "their way to the trainers"),
    ],
)
def test_what_holds_a_job_up(wait_s: float, sums: BatchSums, expected: str) -> None:
    found = [Look("server 0", "a", server(10, sums)), Look("client 0", "b", trainer(10, wait_s, 10 - wait_s))]
    assert expected in bottleneck(found)


def test_jobs_without_servers_or_batches() -> None:
    assert describe_job([]) == "No process has joined the job yet."
    assert bottleneck([Look("server 0", "a", server(10, BatchSums()))]) == "No loader gave a batch."
    assert "they make them themselves" in bottleneck([Look("worker 0", "a", trainer(10, 9, 1))])


def test_this_process() -> None:
    status = process_status()
    assert status.private_bytes > 1 << 20
    assert status.cpu_s > 0
