"""Batches of a GPU, sampled there with features gathered there: edges per second beside the CPU's, with all cores.

Edges lie in the GPU's memory, in pinned memory (ZERO_COPY), and, where there is a second GPU, half of them there.

    python benchmarks/bench_sampling_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it. Batches of both are compared before anything is measured.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from gpu import describe, graph_arguments, has_peer, require_gpu, seconds
from graphs import PowerLaw, make_graph
from harness import median, print_table, spread, write_json

from graphlearn_dist.core import available_cores
from graphlearn_dist.data import Dataset, DeviceGroup
from graphlearn_dist.loader import NeighborLoader

PLACES: dict[str, dict[str, Any]] = {
    "CUDA": {"graph_mode": "CUDA", "device": 0},
    "ZERO_COPY": {"graph_mode": "ZERO_COPY", "device": 0},
    "CUDA, over two GPUs": {
        "graph_mode": "CUDA",
        "device": 0,
        "device_group_list": [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)])],
    },
}


def make_dataset(args: argparse.Namespace, *, gpu: bool, edges: str = "CUDA") -> Dataset:
    """The graph on the GPU, with its edges in one of ``PLACES``, and features in its memory; or on the host."""
    files = make_graph(PowerLaw(args.nodes, args.edges), args.cache)
    indptr, indices = (torch.from_numpy(files.load(name)) for name in ("indptr", "indices32"))
    dataset = Dataset(edge_dir="in")
    place = PLACES[edges] if gpu else {"graph_mode": "CPU"}
    dataset.init_graph((indices, indptr), layout="CSC", num_nodes=indptr.numel() - 1, **place)
    rows = torch.arange(args.nodes, dtype=torch.float32)[:, None].expand(-1, args.features).contiguous()
    dataset.init_node_features(rows, split_ratio=1.0 if gpu else 0.0)
    return dataset


def loader_of(dataset: Dataset, args: argparse.Namespace, threads: int) -> NeighborLoader:
    seeds = torch.randint(0, args.nodes, (args.batch_size * args.batches,), generator=torch.Generator().manual_seed(0))
    return NeighborLoader(dataset, args.fanout, seeds, batch_size=args.batch_size, num_threads=threads, prefetch=0)


def sampled_edges_per_s(loader: NeighborLoader, args: argparse.Namespace) -> list[float]:
    rates = []
    for epoch in range(args.repeats + 1):
        edges = 0

        def run(epoch: int = epoch) -> None:
            nonlocal edges
            for index in range(args.batches):
                edges += loader.batch(epoch, index).edge_index.size(1)

        took = seconds(run)
        if epoch:  # the first warms up
            rates.append(edges / took)
    return rates


def measure_batches(args: argparse.Namespace) -> dict[str, list[float]]:
    cpu = loader_of(make_dataset(args, gpu=False), args, args.threads)
    found = {"cpu": sampled_edges_per_s(cpu, args)}
    for edges in list(PLACES) if has_peer() else list(PLACES)[:2]:
        gpu = loader_of(make_dataset(args, gpu=True, edges=edges), args, 1)
        check_batches(gpu, cpu)
        found[f"gpu, {edges}"] = sampled_edges_per_s(gpu, args)
    return found


def check_batches(gpu: NeighborLoader, cpu: NeighborLoader) -> None:
    for index in range(2):
        expected, found = cpu.batch(0, index), gpu.batch(0, index)
        if not all(torch.equal(found[key].cpu(), expected[key]) for key in ("x", "edge_index", "n_id")):
            raise SystemExit(f"batch {index} of the GPU is not that of the CPU")


def parse_args() -> argparse.Namespace:
    parser = graph_arguments(__doc__)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cores(), help="of the CPU's batches")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    require_gpu()
    batches = measure_batches(args)
    title = f"Batches of {args.batch_size} seeds, fan-out {args.fanout}, {args.features} features: edges per s"
    print_table(title, ["sampled by", "median (range)"], [[name, spread(rates)] for name, rates in batches.items()])
    settings = {key: str(value) for key, value in vars(args).items()}
    ratio = median(batches["gpu, CUDA"]) / median(batches["cpu"])
    print(f"\nthe GPU makes {ratio:.1f} times the edges per s of {args.threads} threads")
    content = {**describe(), "settings": settings, "batches": batches, "ratio": ratio}
    print(f"written to {write_json('gpu_sampling', content)}")


if __name__ == "__main__":
    main()
