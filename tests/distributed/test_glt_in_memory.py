"""A program of GraphLearn-for-PyTorch whose partitions are put together in memory and sent to its trainers."""

from __future__ import annotations

import torch.multiprocessing

from graphlearn_dist.utils.system.ports import reserved_port
from tests.support import glt_memory_programs as program
from tests.support.processes import run_processes

DEADLINE_S = 300.0  # only ever reached by a hang


def spawn_trainers() -> None:
    ranks = range(program.NUM_PARTS)
    datasets = [
        [
            program.homogeneous(rank, ranges=True),
            program.homogeneous(rank, ranges=False),
            program.typed(rank),
            program.derived(rank),
        ]
        for rank in ranks
    ]
    with reserved_port() as first, reserved_port() as second:
        torch.multiprocessing.spawn(program.train, (datasets, [first, second]), nprocs=program.NUM_PARTS, join=True)


def test_spawned_trainers() -> None:
    run_processes([("tests.distributed.test_glt_in_memory.spawn_trainers", {})], DEADLINE_S)
