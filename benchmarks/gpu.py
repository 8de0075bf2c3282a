"""What the benchmarks of a GPU share."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from graphs import default_cache

GPU = torch.device("cuda", 0)


def require_gpu() -> None:
    """Ends the program with a message where there is no GPU."""
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a GPU, and torch sees none")


def has_peer() -> bool:
    """Whether there is a GPU 1 whose memory GPU 0 can read; a message says so where there is none."""
    count = torch.cuda.device_count()
    if count > 1 and torch.cuda.can_device_access_peer(0, 1):
        return True
    print(f"{count} GPUs, of which number 0 reads the memory of no other: peers are not measured")
    return False


def graph_arguments(description: str | None) -> argparse.ArgumentParser:
    """A command line with those of the graph and of its batches."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_449_029)
    parser.add_argument("--edges", type=int, default=123_718_280)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--cache", type=Path, default=default_cache())
    return parser


def describe() -> dict[str, Any]:
    """The GPU, for the head of a result."""
    found = torch.cuda.get_device_properties(GPU)
    return {"gpu": found.name, "memory_bytes": found.total_memory, "multiprocessors": found.multi_processor_count}


def seconds(body: Callable[[], Any]) -> float:
    """Wall time of a call, the GPU's work included."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    body()
    torch.cuda.synchronize()
    return time.perf_counter() - start
