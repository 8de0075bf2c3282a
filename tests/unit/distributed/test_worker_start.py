"""Sampling workers that the system does not start."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.distributed.workers.batch_shelf import BatchShelf
from graphlearn_dist.distributed.workers.worker_memory import WorkerMemory
from graphlearn_dist.distributed.workers.worker_process import WorkerProcess
from graphlearn_dist.errors import SamplingWorkerError

MEMORY = WorkerMemory.divide(1 << 17)


def test_a_worker_that_cannot_be_forked_is_named() -> None:
    def fork() -> Any:
        raise BlockingIOError(errno.EAGAIN, f"fork: {os.strerror(errno.EAGAIN)}")

    async def start() -> None:
        origin: Any = SimpleNamespace(forks=SimpleNamespace(fork=fork))
        told: list[Any] = []
        process = WorkerProcess(
            "loader 1, worker 0", BatchShelf("loader 1", 1), 0, MEMORY, lambda *end: told.append(end), origin
        )
        try:
            await process.start()
        finally:
            await process.close()

    with pytest.raises(SamplingWorkerError, match=r"loader 1, worker 0: stage start: .* fork: Resource temporarily"):
        asyncio.run(start())


def test_a_worker_without_memory_for_its_ring_is_named() -> None:
    async def make() -> None:
        WorkerProcess(
            "loader 1, worker 0",
            BatchShelf("loader 1", 1),
            0,
            WorkerMemory(1 << 30, 1 << 20),
            lambda *_: None,
            origin=None,
        )  # type: ignore[arg-type]

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(SamplingWorkerError, match=r"loader 1, worker 0: stage set-up: cannot create .* too large"):
            asyncio.run(make())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
