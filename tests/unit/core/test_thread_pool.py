"""Pools of threads where the system refuses some, and in forked processes."""

from __future__ import annotations

import os
import resource
import sys
import threading

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import thread_pool
from graphlearn_dist.data.dataset import Dataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from tests.support.processes import run_processes, start

HERE = "tests.unit.core.test_thread_pool"
DEADLINE_S = 120.0
NUM_NODES = 1000


def ask_for_too_many() -> str:
    """What a pool says whose threads find no room for their stacks."""
    with open("/proc/self/status") as status:
        now = next(int(line.split()[1]) for line in status if line.startswith("VmSize")) * 1024
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + (128 << 20), before[1]))
    try:
        _C.ThreadPool(4096)
    except InvalidArgumentError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return "no error"


@pytest.mark.parametrize("num_threads", [-1, 0, (1 << 16) + 1, 2**31 - 1])
def test_a_pool_of_a_number_of_threads_that_no_machine_has(num_threads: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"num_threads: expected 1 to 65536, got {num_threads}"):
        _C.ThreadPool(num_threads)


def test_a_pool_of_more_threads_than_the_system_starts_is_refused() -> None:
    error = run_processes([(f"{HERE}.ask_for_too_many", {})], DEADLINE_S)[0]
    assert error.startswith("num_threads: expected at most "), error
    assert error.endswith("got 4096"), error


def make_loader(num_threads: int) -> NeighborLoader:
    generator = torch.Generator().manual_seed(0)
    dataset = Dataset()
    dataset.init_graph(torch.randint(0, NUM_NODES, (2, 20 * NUM_NODES), generator=generator))
    return NeighborLoader(
        dataset,
        [10, 5],
        torch.arange(NUM_NODES),
        batch_size=250,
        num_threads=num_threads,
        prefetch=0,
        shuffle=True,
        seed=3,
    )


def batches_of(loader: NeighborLoader) -> list[torch.Tensor]:
    return [batch.edge_index for batch in loader]


def child_samples(loader: NeighborLoader, expected: list[torch.Tensor]) -> int:
    """The exit code of a forked child that samples with its parent's objects and with its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            same = [all(map(torch.equal, batches_of(each), expected)) for each in (loader, make_loader(3))]
            code = 0 if all(same) and thread_pool(3).size == 3 else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_idle_and_busy() -> list[int]:
    """The exit codes of children of a process whose pool is not used yet, idle, and at work in other threads."""
    loader = make_loader(3)
    expected = batches_of(make_loader(1))
    codes = [child_samples(make_loader(3), expected)]
    batches_of(make_loader(3))
    codes.append(child_samples(make_loader(3), expected))
    busy, rounds = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        own = make_loader(3)
        while not busy.is_set():
            batches_of(own)
            rounds.release()

    others = [threading.Thread(target=work) for _ in range(2)]
    for thread in others:
        thread.start()
    for _ in range(3):
        assert rounds.acquire(timeout=DEADLINE_S)
        codes.append(child_samples(make_loader(3), expected))
    busy.set()
    for thread in others:
        thread.join()
    assert all(map(torch.equal, batches_of(loader), expected))
    return codes


def test_a_forked_child_samples_and_ends_whatever_the_pool_was_doing() -> None:
    assert run_processes([(f"{HERE}.fork_idle_and_busy", {})], DEADLINE_S)[0] == [0] * 5


def pool_ends_with_the_child() -> int:
    """The exit code of a child that ends the pool that it inherited, and then ends as programs do."""
    pool = _C.ThreadPool(4)
    child = os.fork()
    if child == 0:
        del pool
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_ends_by_itself() -> None:
    with start(f"{HERE}.pool_ends_with_the_child", finalizes=True) as process:
        assert process.wait(DEADLINE_S) == 7
