"""What tests on a GPU share."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch

from graphlearn_dist import _C

GPU = torch.device("cuda", 0)

# ``pytestmark`` of their files.
needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not _C.cuda_is_built() or _C.cuda_device_count() == 0, reason="needs a GPU and a CUDA build"),
]


def busy(seconds: float) -> None:
    """Keeps the current stream busy for about so long: what it is given next begins later than the host goes on."""
    torch.cuda._sleep(int(seconds * 2e9))  # cycles, of which GPUs make 1.0 to 2.0 billion a second


def compute_processes() -> list[tuple[int, str]]:
    """(process id, GPU) of all that use one now, by nvidia-smi; none where that is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    return parse_processes(subprocess.run(query, check=True, capture_output=True, text=True).stdout)


def parse_processes(answer: str) -> list[tuple[int, str]]:
    """Lines such as ``1234, GPU-5f...``; those of processes that may not be seen have no number."""
    fields = [[field.strip() for field in line.split(",")] for line in answer.splitlines()]
    return [(int(found[0]), found[1]) for found in fields if len(found) == 2 and found[0].isdigit()]
