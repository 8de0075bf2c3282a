"""Batches of one captured CUDA graph beside those that are launched one by one: edges per second, and who waits.

    python benchmarks/bench_captured_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it. Each way makes the same batches, features gathered; waits are the
calls in which the host waits for the GPU, and copies from it, in a profile of 1,000 batches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from bench_sampling_gpu import make_dataset, parse_args
from gpu import GPU, describe, require_gpu, seconds
from harness import print_table, spread, write_json

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import CapturedStep, NeighborLoader, StaticShapes

PROFILED = 1000
MakeBatch = Callable[[int, int], Any]


def loader_of(dataset: Dataset, args: argparse.Namespace, shapes: StaticShapes | bool) -> NeighborLoader:
    seeds = torch.randint(0, args.nodes, (args.batch_size * args.batches,), generator=torch.Generator().manual_seed(0))
    return NeighborLoader(
        dataset, args.fanout, seeds, batch_size=args.batch_size, prefetch=0, device=GPU, static_shapes=shapes
    )


def shapes_and_edges(loader: NeighborLoader, args: argparse.Namespace) -> tuple[StaticShapes, int]:
    """A tenth more than the largest batch of an epoch, and the edges of all of its batches."""
    nodes, edges = [], []
    for index in range(args.batches):
        batch = loader.batch(0, index)
        nodes.append(batch.num_nodes)
        edges.append(batch.edge_index.size(1))
    return StaticShapes(max_nodes=max(nodes) * 11 // 10, max_edges=max(edges) * 11 // 10), sum(edges)


def edges_per_s(make: MakeBatch, num_edges: int, args: argparse.Namespace) -> list[float]:
    def epoch() -> None:
        for index in range(args.batches):
            make(0, index)

    epoch()  # warms up, and captures
    return [num_edges / seconds(epoch) for _ in range(args.repeats)]


def count_waits(make: MakeBatch, args: argparse.Namespace) -> int:
    """Synchronising calls of the host, and copies to it, in 1,000 batches."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile, torch.profiler.record_function("batches"):
        for number in range(PROFILED):
            make(0, number % args.batches)
    events = profile.events()
    span = next(event.time_range for event in events if event.name == "batches")
    inside = [event.name for event in events if span.start <= event.time_range.start <= span.end]
    return sum("Synchronize" in name or "DtoH" in name for name in inside)


def main() -> None:
    args = parse_args()
    require_gpu()
    dataset = make_dataset(args, gpu=True)
    plain = loader_of(dataset, args, shapes=False)
    shapes, num_edges = shapes_and_edges(plain, args)
    static = loader_of(dataset, args, shapes)
    # The sum keeps what a step gives small; every row is gathered.
    steps = CapturedStep(loader_of(dataset, args, shapes), lambda batch: batch.edge_mask.sum())
    ways: dict[str, MakeBatch] = {"normal": plain.batch, "static shapes": static.batch, "captured": steps}
    found = {name: {"edges_per_s": edges_per_s(make, num_edges, args)} for name, make in ways.items()}
    waits = {name: count_waits(make, args) for name, make in ways.items()}
    static.check()
    steps.check()
    title = f"Batches of {args.batch_size} seeds, fan-out {args.fanout}, {args.features} features"
    rows = [[name, spread(of["edges_per_s"]), waits[name]] for name, of in found.items()]
    print_table(title, ["way", "edges per s", f"waits in {PROFILED} batches"], rows)
    settings = {key: str(value) for key, value in vars(args).items()}
    sizes = {"max_nodes": shapes.max_nodes, "max_edges": shapes.max_edges}
    content = {**describe(), "settings": settings, "shapes": sizes, "ways": found}
    print(f"\nwritten to {write_json('gpu_captured', {**content, 'waits': waits})}")


if __name__ == "__main__":
    main()
