"""Time of each kernel of a batch, launched one by one and as a captured CUDA graph.

    python benchmarks/bench_kernels_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it, and once more under ncu, with `--plain`, which makes batches and
no more. Features are gathered in the GPU's memory.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from bench_captured_gpu import loader_of, shapes_and_edges
from bench_sampling_gpu import make_dataset
from gpu import describe, graph_arguments, require_gpu
from harness import print_table, write_json

from graphlearn_dist.loader import CapturedStep


def short(name: str) -> str:
    """The functor that a kernel of ours runs: ``PackEdges`` of ``void gld::cuda::run_each<gld::PackEdges, 1>(...)``."""
    found = re.search(r"gld::cuda::run_\w+<(.+?), \d+>\(", name)
    return "others (torch, copies)" if found is None else found[1].replace("gld::", "")


def kernel_times(make: Callable[[int, int], Any], num_batches: int) -> dict[str, float]:
    """By kernel, microseconds of the GPU a batch."""
    for index in range(num_batches):
        make(0, index)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for index in range(num_batches):
            make(1, index)
        torch.cuda.synchronize()
    found: dict[str, float] = defaultdict(float)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[short(event.name)] += event.time_range.elapsed_us() / num_batches
    return dict(found)


def parse_args() -> argparse.Namespace:
    parser = graph_arguments(__doc__)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="make batches one by one, and measure nothing")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    require_gpu()
    dataset = make_dataset(args, gpu=True)
    plain = loader_of(dataset, args, shapes=False)
    if args.plain:
        for index in range(args.batches):
            plain.batch(0, index)
        return torch.cuda.synchronize()
    shapes, _ = shapes_and_edges(plain, args)
    steps = CapturedStep(loader_of(dataset, args, shapes), lambda batch: batch.edge_mask.sum())
    found = {"one by one": kernel_times(plain.batch, args.batches), "captured": kernel_times(steps, args.batches)}
    steps.check()
    names = sorted(
        {name for times in found.values() for name in times}, key=lambda name: -found["captured"].get(name, 0)
    )
    rows = [[name, *(f"{times.get(name, 0):.1f}" for times in found.values())] for name in names]
    rows.append(["all", *(f"{sum(times.values()):.1f}" for times in found.values())])
    title = f"Kernels of batches of {args.batch_size} seeds, fan-out {args.fanout}: us a batch"
    print_table(title, ["kernel", *found], rows)
    settings = {key: str(value) for key, value in vars(args).items()}
    print(f"\nwritten to {write_json('gpu_kernels', {**describe(), 'settings': settings, 'us_a_batch': found})}")


if __name__ == "__main__":
    main()
