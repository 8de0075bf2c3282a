"""Loading beside training on one GPU: what a step takes alone, what a batch takes alone, and both; and who waits.

    python benchmarks/bench_overlap_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it, under nsys too where that is installed. The model is a GraphSAGE
of three layers. Waits are the calls in which the host waits for the GPU, in a profile of some steps.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from bench_sampling_gpu import make_dataset
from gpu import GPU, describe, graph_arguments, require_gpu, seconds
from harness import median, print_table, write_json
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import NeighborLoader

NUM_CLASSES, PROFILED = 47, 20


def loader_of(dataset: Dataset, args: argparse.Namespace, prefetch: int) -> NeighborLoader:
    seeds = torch.randint(0, args.nodes, (args.batch_size * args.steps,), generator=torch.Generator().manual_seed(0))
    return NeighborLoader(
        dataset, args.fanout, seeds, batch_size=args.batch_size, shuffle=True, prefetch=prefetch, device=GPU
    )


def make_step(args: argparse.Namespace) -> Callable[[Any], None]:
    model = GraphSAGE(args.features, 128, 3, NUM_CLASSES).to(GPU)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        scores = model(batch.x, batch.edge_index)[: batch.batch_size]
        F.cross_entropy(scores, batch.y[: batch.batch_size]).backward()
        optimizer.step()

    return step


def ms_each(body: Callable[[], Any], count: int, repeats: int) -> list[float]:
    body()  # warms up
    return [1e3 * seconds(body) / count for _ in range(repeats)]


def each(batches: Iterator[Any], do: Callable[[Any], None]) -> None:
    for batch in batches:
        do(batch)


def profile_of(body: Callable[[], Any]) -> dict[str, Any]:
    """Milliseconds of kernels, summed and as a union (less where some ran at once), and calls that wait."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        body()
        torch.cuda.synchronize()
    events = profile.events()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    union, until = 0.0, 0.0
    for start, end in spans:
        union += max(end - max(start, until), 0)
        until = max(until, end)
    waits = Counter(event.name for event in events if "Synchronize" in event.name)
    return {"kernels_ms": sum(end - start for start, end in spans) / 1e3, "union_ms": union / 1e3, "waits": dict(waits)}


def measure(dataset: Dataset, args: argparse.Namespace, prefetch: int) -> dict[str, Any]:
    loader, step = loader_of(dataset, args, prefetch), make_step(args)
    kept = [batch for batch, _ in zip(loader, range(PROFILED), strict=False)]
    short = argparse.Namespace(**{**vars(args), "steps": PROFILED})
    few = loader_of(dataset, short, prefetch)
    return {
        "step_ms": ms_each(lambda: each(iter(kept), step), len(kept), args.repeats),
        "load_ms": ms_each(lambda: each(iter(loader), lambda batch: None), args.steps, args.repeats),
        "both_ms": ms_each(lambda: each(iter(loader), step), args.steps, args.repeats),
        "profile": profile_of(lambda: each(iter(few), step)),
    }


def parse_args() -> argparse.Namespace:
    parser = graph_arguments(__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    require_gpu()
    dataset = make_dataset(args, gpu=True)
    dataset.init_node_labels(torch.randint(0, NUM_CLASSES, (args.nodes,)))
    found = {f"prefetch={prefetch}": measure(dataset, args, prefetch) for prefetch in (0, 2)}
    rows = []
    for name, of in found.items():
        profile = of["profile"]
        times = [f"{median(of[key]):.2f}" for key in ("step_ms", "load_ms", "both_ms")]
        at_once = f"{profile['kernels_ms']:.0f} in {profile['union_ms']:.0f}"
        rows.append([name, *times, at_once, f"{sum(profile['waits'].values()) / PROFILED:.1f}"])
    header = ["loading", "step alone, ms", "batch alone, ms", "both, ms", "ms of kernels", "waits a batch"]
    print_table(f"Loading beside training, batches of {args.batch_size}, fan-out {args.fanout}", header, rows)
    settings = {key: str(value) for key, value in vars(args).items()}
    print(f"\nwritten to {write_json('gpu_overlap', {**describe(), 'settings': settings, 'loading': found})}")


if __name__ == "__main__":
    main()
