"""What a process keeps of the memory that its threads have freed."""

from __future__ import annotations

import threading

import pytest

from graphlearn_dist.core import return_large_blocks
from tests.support.memory import private_bytes
from tests.support.processes import start

HERE = "tests.unit.core.test_malloc"
DEADLINE_S = 60.0
NUM_THREADS = 8
BLOCK_BYTES = 9 << 20


def use_large_blocks() -> int:
    """Threads use a block twice each, one thread after the other; how many bytes their process has more."""
    assert return_large_blocks({})
    used, done = [threading.Event() for _ in range(NUM_THREADS)], threading.Event()

    def use(number: int) -> None:
        for _ in range(2):
            block = bytearray(BLOCK_BYTES)
            block[::512] = b"1" * len(block[::512])
            del block
        used[number].set()
        done.wait(DEADLINE_S)  # its heap is not taken over by the next one

    before = private_bytes()
    threads = [threading.Thread(target=use, args=(number,)) for number in range(NUM_THREADS)]
    for number, thread in enumerate(threads):
        thread.start()
        assert used[number].wait(DEADLINE_S)
    more = private_bytes() - before
    done.set()
    for thread in threads:
        thread.join(DEADLINE_S)
    return more


def test_large_blocks_go_back() -> None:
    with start(f"{HERE}.use_large_blocks") as process:
        assert process.wait(DEADLINE_S) < BLOCK_BYTES


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_stays(name: str) -> None:
    assert not return_large_blocks({name: "1"})
