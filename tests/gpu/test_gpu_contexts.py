"""Which GPUs a process takes memory on: those that it was given, and none where it was given none."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import NeighborLoader
from tests.support.gpu import compute_processes, needs_gpu
from tests.support.processes import run_processes

pytestmark = needs_gpu
HERE = "tests.gpu.test_gpu_contexts"
DEADLINE_S = 120.0  # only ever reached by a hang


def use(gpu: int | None) -> list[str]:
    """An epoch with threads ahead, pinned memory and a transform there; gives the GPUs that this process is on then."""
    place: dict[str, Any] = {"graph_mode": "CPU"} if gpu is None else {"graph_mode": "ZERO_COPY", "device": gpu}
    dataset, device = Dataset(), None if gpu is None else torch.device("cuda", gpu)
    dataset.init_graph(torch.randint(0, 20_000, (2, 400_000)), num_nodes=20_000, **place)
    dataset.init_node_features(torch.randn(20_000, 64), device=gpu)
    dataset.init_node_labels(torch.arange(20_000))
    loader = NeighborLoader(
        dataset, [5, 3], torch.arange(20_000), batch_size=500, device=device, prefetch=2, transform=lambda batch: batch
    )
    for batch in loader:
        assert (batch.x.device.index if batch.x.is_cuda else None) == gpu
    return [found for pid, found in compute_processes() if pid == os.getpid()]


def used_by(gpu: int | None) -> list[str]:
    (found,) = run_processes([(f"{HERE}.use", {"gpu": gpu})], DEADLINE_S)
    assert isinstance(found, list)
    return found


def test_each_process_has_one_context_on_its_own_gpu() -> None:
    """A thread that names no device would make one on the first GPU, of hundreds of megabytes, for every process."""
    found = [used_by(gpu) for gpu in range(torch.cuda.device_count())]
    if not any(found):
        pytest.skip("nvidia-smi lists no process of this container: contexts were not counted")
    assert [len(gpus) for gpus in found] == [1] * torch.cuda.device_count()
    assert len({gpus[0] for gpus in found}) == torch.cuda.device_count()
    assert used_by(None) == []
