"""A device for graphs where there is no GPU: the host, which runs the kernels' bodies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from graphlearn_dist.data.graph import Graph
from graphlearn_dist.distributed.workers import fork_server
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from tests.support.processes import ROOT

HOST = torch.device("cpu")
# Of a worker process: the same there. Each batch that kernels sample is told on its standard output.
_WORKER_PROGRAM = f"""
import os, sys
sys.path[:] = [{str(ROOT)!r}, *sys.argv[5:]]
from graphlearn_dist.distributed.workers import fork_server_main
from tests.support import stand_in

stand_in.install()
sample = stand_in.DeviceGraph._sample

def sample_and_tell(self, seeds, epoch, index):
    os.write(1, b"kernels sample\\n")
    return sample(self, seeds, epoch, index)

stand_in.DeviceGraph._sample = sample_and_tell
os._exit(fork_server_main.main())
"""


def _sampling_device(self: Graph) -> torch.device | None:
    return HOST if self.mode != "CPU" and self.row_book is None else None


def install() -> None:
    """Has all graphs that are whole and of mode ``"CUDA"`` or ``"ZERO_COPY"`` sampled by kernels, in this process."""
    Graph.sampling_device = property(_sampling_device)  # type: ignore[method-assign,assignment]


@contextmanager
def kernels_sample(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """The same for a time, in sampling workers that start meanwhile too; names of batches that kernels made here."""
    made: list[tuple[int, int]] = []
    sample = DeviceGraph._sample

    def sample_and_note(self: DeviceGraph, seeds: object, epoch: int, index: int) -> object:
        made.append((epoch, index))
        return sample(self, seeds, epoch, index)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Graph, "sampling_device", property(_sampling_device))
        patch.setattr(DeviceGraph, "_sample", sample_and_note)
        patch.setattr(fork_server, "_PROGRAM", _WORKER_PROGRAM)
        yield made
