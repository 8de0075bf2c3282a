"""Workers that die, stop, and hang, on both engines."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphlearn_dist.cluster import RayVirtualCluster, RayWorkerBuilder, RayWorkerGroup, WorkerState
from graphlearn_dist.cluster.actors.base import ActorBackend
from graphlearn_dist.errors import DeadlineExceededError, WorkerFailureError, WorkerLateError
from tests.support.cluster_workers import Hanging, Worker
from tests.support.processes import freeze

DEADLINE_S = 60.0  # only ever reached by a hang


@pytest.fixture(scope="module")
def cluster(backend: ActorBackend) -> Iterator[RayVirtualCluster]:
    with RayVirtualCluster([2], use_gpus=False, name="failures", backend=backend, monitor_memory=True) as made:
        yield made


def test_a_failure_names_worker_node_and_pid(cluster: RayVirtualCluster, tmp_path: Path) -> None:
    with RayWorkerGroup(
        cluster, Worker, name_prefix="dying", worker_kwargs={"path": str(tmp_path)}, max_restarts=1
    ) as group:
        pids = group.run_all_workers_single_data("pid")
        with pytest.raises(WorkerFailureError) as caught:
            group.run_single_worker_single_data("die", 1)
        assert caught.value.failed_workers == [1]
        assert f"dying-0-1, node {group.get_worker_status()[1].node[:12]}, pid {pids[1]}" in str(caught.value)
        assert not caught.value.restartable
        first, second = group.get_worker_status()
        assert (first.state, first.pid, first.restarts) == (WorkerState.READY, pids[0], 0)
        assert (second.state, second.rank, second.name) == (WorkerState.DEAD, 1, "dying-0-1")
        assert second.last_error
        # The dead do not answer, and the others are not held up.
        assert sorted(group.get_resource_usage(DEADLINE_S)) == [0]
        with pytest.raises(WorkerFailureError) as caught:
            group.run_all_workers_single_data("add", 1)
        assert (caught.value.failed_workers, caught.value.results) == ([1], {0: 1})
        assert group.restart_failed_workers() == [1]
        assert group.restart_failed_workers() == []
        assert group.run_all_workers_single_data("environ", run_rank_0_only_axes=[]) == [[], []]
        status = group.get_worker_status(DEADLINE_S)[1]
        assert (status.state, status.restarts, status.incarnation) == (WorkerState.READY, 1, 1)
        assert status.pid not in pids
        with pytest.raises(WorkerFailureError):
            group.run_single_worker_single_data("die", 1)
        with pytest.raises(WorkerFailureError, match="retired after 1 restarts"):
            group.restart_failed_workers()
        assert group.shutdown("cleanup") is False


@pytest.mark.parametrize("method", ["leave", "leave_later", "leave_half_way"])
def test_sys_exit_ends_a_worker_at_once(cluster: RayVirtualCluster, method: str) -> None:
    with RayWorkerGroup(cluster, Worker, name_prefix=method) as group:
        with pytest.raises(WorkerFailureError):
            group.run_single_worker_single_data(method, 0, 3)
        assert group.get_worker_status()[0].state is WorkerState.DEAD
        with pytest.raises(WorkerFailureError) as caught:
            group.run_all_workers_single_data("add", 1)
        assert (caught.value.failed_workers, caught.value.results) == ([0], {1: 1})
        assert group.restart_failed_workers() == [0]
        assert group.run_all_workers_single_data("add", 1) == [1, 1]


def test_a_method_that_is_cancelled_fails(cluster: RayVirtualCluster) -> None:
    with RayWorkerGroup(cluster, Worker, name_prefix="cancelled") as group:
        with pytest.raises(WorkerFailureError, match="give_up: it was cancelled in its worker"):
            group.run_single_worker_single_data("give_up", 0)
        assert group.run_all_workers_single_data("add", 1) == [1, 1]


def test_constructors_that_hang_are_killed(cluster: RayVirtualCluster) -> None:
    with pytest.raises(WorkerFailureError, match=r"rank 1 \(hung-0-1, .* within 1 s; it was killed") as caught:
        RayWorkerGroup(cluster, Hanging, name_prefix="hung", start_timeout_s=1.0)
    assert [type(error) for error in caught.value.errors.values()] == [WorkerLateError, WorkerLateError]
    builder = RayWorkerBuilder(f"{Hanging.__module__}.{Hanging.__qualname__}")
    # A machine that is busy may not even have imported the class by then.
    with pytest.raises(DeadlineExceededError, match=r"alone \(node .* within 2 s|Hanging: .* within 2 s"):
        builder(cluster.get_placement_groups()[0], 0, 0.0, name="alone", start_timeout_s=2.0)


def test_restarts_keep_rank_and_name_and_repeat_what_may_be_repeated(
    cluster: RayVirtualCluster, tmp_path: Path
) -> None:
    with RayWorkerGroup(
        cluster, Worker, name_prefix="phoenix", restart_on_failure=True, max_restarts=2, call_timeout_s=DEADLINE_S
    ) as group:
        handles = group.workers
        before = group.run_all_workers_single_data("pid")
        assert group.run_all_workers_single_data("die_once", str(tmp_path)) == [0, 1]
        after = group.run_all_workers_single_data("pid")
        assert not set(before) & set(after)
        backend = cluster.backend
        told = backend.get([handle.environ.remote("RANK", "GLD_INCARNATION") for handle in handles], DEADLINE_S)
        assert told == [["0", "1"], ["1", "1"]]
        # What may not be repeated fails, and the worker is there again.
        with pytest.raises(WorkerFailureError) as caught:
            group.run_single_worker_single_data("die", 0)
        assert caught.value.restartable
        slot = group._slots[0]
        assert slot.wait_restarted(1, DEADLINE_S)
        assert [status.restarts for status in group.get_worker_status(DEADLINE_S)] == [2, 1]
        with pytest.raises(WorkerFailureError):
            group.run_single_worker_single_data("die", 0)
        assert not slot.wait_restarted(2, DEADLINE_S)
        assert group.get_worker_status(DEADLINE_S)[0].state is WorkerState.RETIRED


def test_workers_that_make_no_progress_are_found(cluster: RayVirtualCluster) -> None:
    with RayWorkerGroup(cluster, Worker, name_prefix="stuck", async_communication=True) as group:
        pids = cluster.backend.get(group.run_all_workers_single_data("pid"), DEADLINE_S)
        assert group.detect_stuck_workers(DEADLINE_S, call_timeout=0.0) == {}
        group.run_single_worker_single_data("wait", 0)
        group.run_single_worker_single_data("beat", 1)
        while len(found := group.detect_stuck_workers(DEADLINE_S, call_timeout=0.5)) < 1:
            assert group.get_worker_status(DEADLINE_S)[0].call_age_s < DEADLINE_S
        assert list(found) == [0]
        assert (found[0].reason, found[0].method) == ("long call", "wait")
        assert "in wait" in found[0].stack
        freeze(pids[1])
        found = group.detect_stuck_workers(heartbeat_timeout=1.0)
        assert list(found) == [1]
        assert (found[1].reason, found[1].method) == ("no heartbeat", "beat")
        assert [status.state for status in group.get_worker_status(1.0)] == [WorkerState.READY, WorkerState.SUSPECT]
        os.kill(pids[1], signal.SIGCONT)
        while group.detect_stuck_workers(DEADLINE_S):
            pass
        assert group.get_worker_status(DEADLINE_S)[1].state is WorkerState.READY


def test_a_frozen_worker_is_condemned_and_restarted(
    cluster: RayVirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "graphlearn_dist")
    with RayWorkerGroup(
        cluster,
        Worker,
        1,
        "frozen",
        restart_on_failure=True,
        stuck_timeout_s=3.0,
        memory_limit="1GB",
        async_communication=True,
    ) as group:
        slot = group._slots[0]
        group.run_single_worker_single_data("stop", 0)
        assert slot.wait_restarted(0, DEADLINE_S)
        assert cluster.backend.get([group.workers[0].add.remote(4)], DEADLINE_S) == [4]
    assert "answered nothing for 3 s and is killed" in caplog.text
    assert "is restarted (restart 1)" in caplog.text
