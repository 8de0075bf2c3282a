"""Which host memory can be page-locked where it lies, and how fast the GPU reads and copies it.

    python benchmarks/bench_pinning_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it. Memory is private, shared by this process or received from
another, a file that is mapped privately (as partitions are) or to be shared, or of the core's pool; each whole, and
from an odd offset on. A kernel reads rows of 512 bytes in order; a copy reads all.
"""

from __future__ import annotations

import argparse
import mmap
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu import GPU, describe, require_gpu, seconds
from harness import median, print_table, write_json

from graphlearn_dist import _C
from graphlearn_dist.core import pooled_empty
from graphlearn_dist.data import shared_memory
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.device.pinned_memory import pin

WIDTH = 128  # float32


def mapped(file: Path, access: int) -> torch.Tensor:
    with file.open("r+b") as opened:
        return torch.frombuffer(mmap.mmap(opened.fileno(), 0, access=access), dtype=torch.float32)


def make_memories(count: int, folder: Path) -> dict[str, Callable[[], torch.Tensor]]:
    """By name, what makes so many numbers in memory of a kind."""
    file = folder / "rows"
    torch.zeros(count).numpy().tofile(file)
    shared = shared_memory.share(torch.zeros(count))
    _C.lock_pool_pages(GPU.index or 0)
    return {
        "private": lambda: torch.zeros(count),
        "shared": lambda: shared,
        "shared, received": lambda: shared_memory.from_handle(shared_memory.to_handle(shared)),
        "file, MAP_PRIVATE": lambda: mapped(file, mmap.ACCESS_COPY),
        "file, MAP_SHARED": lambda: mapped(file, mmap.ACCESS_WRITE),
        "the core's pool": lambda: pooled_empty((count,), torch.float32).zero_(),
    }


def measure(memory: torch.Tensor, repeats: int) -> dict[str, Any]:
    """Whether it was copied, and bytes per second by a kernel and by a copy."""
    pinned = pin(memory, GPU.index or 0)
    rows = pinned.tensor[: memory.numel() // WIDTH * WIDTH].view(-1, WIDTH)
    gathering, ids = DeviceRows([rows], GPU), torch.arange(len(rows), device=GPU)
    out = torch.empty(rows.shape, device=GPU)
    if not torch.equal(gathering.gather(ids, torch.float32).cpu(), rows):
        raise SystemExit("the gather is wrong")
    kernel = [out.nbytes / seconds(lambda: gathering.gather(ids, torch.float32)) for _ in range(repeats)]
    copy = [out.nbytes / seconds(lambda: out.copy_(rows, non_blocking=True)) for _ in range(repeats)]
    return {"is_copy": pinned.is_copy, "kernel": kernel, "copy": copy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 28, help="of each memory")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    require_gpu()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in make_memories(args.bytes // 4, Path(folder)).items():
            for offset in (0, 12_347 * WIDTH):  # rows begin at addresses that are multiples of 512 bytes, and pages not
                found[f"{name}, from {offset * 4} on"] = measure(make()[offset:], args.repeats)
    rows = [
        [
            name,
            "copied" if of["is_copy"] else "in place",
            *(f"{median(of[way]) / 1e9:.1f}" for way in ("kernel", "copy")),
        ]
        for name, of in found.items()
    ]
    print_table("Host memory that a GPU reads", ["memory", "locked", "kernel, GB/s", "copy, GB/s"], rows)
    print(f"\nwritten to {write_json('gpu_pinning', {**describe(), 'settings': vars(args), 'memories': found})}")


if __name__ == "__main__":
    main()
