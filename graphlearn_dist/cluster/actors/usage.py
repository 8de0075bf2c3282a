"""What this process uses, from ``/proc``."""

from __future__ import annotations

import os
import sys

from ...utils.system.memory import memory_limit_bytes
from .base import ResourceUsage


def measure_usage(cpu_percent: float) -> ResourceUsage:
    """The usage of this process; ``cpu_percent`` is what the caller measured over its own interval."""
    status = _fields("/proc/self/status")
    rollup = _fields("/proc/self/smaps_rollup")
    return ResourceUsage(
        cpu_percent=cpu_percent,
        rss_bytes=status.get("VmRSS", 0),
        uss_bytes=rollup.get("Private_Clean", 0) + rollup.get("Private_Dirty", 0),
        data_bytes=status.get("VmData", 0),
        threads=len(os.listdir("/proc/self/task")),
        fds=len(os.listdir("/proc/self/fd")),
        gpu_bytes=_gpu_bytes(),
        machine_bytes=memory_limit_bytes(),
    )


def _fields(path: str) -> dict[str, int]:
    """The lines ``Name:   N kB`` of a file of the kernel's, in bytes."""
    found: dict[str, int] = {}
    if not os.path.exists(path):  # kernels without smaps_rollup
        return found
    with open(path) as file:
        for line in file:
            words = line.split()
            if len(words) == 3 and words[2] == "kB":
                found[words[0].rstrip(":")] = int(words[1]) << 10
    return found


def _gpu_bytes() -> int:
    """What torch's allocator holds, if this process uses it; asking must not import torch or wake a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))
