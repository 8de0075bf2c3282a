"""Batches that a GPU samples: edges per second of whole loaders, beside the CPU's with all cores.

Edges lie in the GPU's memory, in pinned memory (ZERO_COPY), and, where there is a second GPU, half of them there. Rows
lie in its memory, in pinned memory, and a quarter of them in its memory: those of largest degree, or those that a cache
keeps. Strategies are measured without features.

    python benchmarks/bench_sampling_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it. Batches of each are compared with the CPU's before they are
measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from gpu import describe, graph_arguments, has_peer, require_gpu, seconds
from graphs import PowerLaw, make_graph
from harness import median, print_table, spread, write_json

from graphlearn_dist.core import available_cores
from graphlearn_dist.data import Dataset, DeviceGroup
from graphlearn_dist.loader import NeighborLoader

EDGES: dict[str, dict[str, Any]] = {
    "CUDA": {"graph_mode": "CUDA", "device": 0},
    "ZERO_COPY": {"graph_mode": "ZERO_COPY", "device": 0},
    "CUDA, over two GPUs": {
        "graph_mode": "CUDA",
        "device": 0,
        "device_group_list": [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)])],
    },
}
ROWS: dict[str, dict[str, Any]] = {
    "GPU": {"split_ratio": 1.0},
    "a quarter by degree": {"split_ratio": 0.25, "hotness": "degree"},
    "a cache of a quarter": {"device_cache": 0.25},  # of the bytes of all rows
    "pinned": {"device": 0},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "LABOR": {"strategy": "labor"},
    "by weight": {"with_weight": True},
    "top-k by weight": {"strategy": "topk"},
}
PREFETCH = (0, 2)
COMPARED = ("x", "edge_index", "n_id")


def make_dataset(args: argparse.Namespace, *, gpu: bool, edges: str = "CUDA", rows: str = "GPU") -> Dataset:
    """The graph on the GPU, with its edges and features where ``EDGES`` and ``ROWS`` say; or on the host."""
    dataset = make_bare_dataset(args, EDGES[edges] if gpu else {"graph_mode": "CPU"})
    features = torch.arange(args.nodes, dtype=torch.float32)[:, None].expand(-1, args.features).contiguous()
    place = dict(ROWS[rows]) if gpu else {}
    if "device_cache" in place:
        place["device_cache"] = int(place["device_cache"] * features.nbytes)
    dataset.init_node_features(features, **place)
    return dataset


def make_bare_dataset(args: argparse.Namespace, place: Mapping[str, Any], *, with_weights: bool = False) -> Dataset:
    files = make_graph(PowerLaw(args.nodes, args.edges), args.cache)
    indptr, indices = (torch.from_numpy(files.load(name)) for name in ("indptr", "indices32"))
    weights = torch.from_numpy(files.load(files.with_weights())) if with_weights else None
    dataset = Dataset(edge_dir="in")
    ends = (indices, indptr)
    dataset.init_graph(ends, edge_weights=weights, layout="CSC", num_nodes=indptr.numel() - 1, **place)
    return dataset


def loader_of(dataset: Dataset, args: argparse.Namespace, **settings: Any) -> NeighborLoader:
    seeds = torch.randint(0, args.nodes, (args.batch_size * args.batches,), generator=torch.Generator().manual_seed(0))
    return NeighborLoader(dataset, args.fanout, seeds, batch_size=args.batch_size, **settings)


def in_turn(loader: NeighborLoader) -> Callable[[int], Iterator[Any]]:
    return lambda epoch: iter(loader)


def by_name(loader: NeighborLoader) -> Callable[[int], Iterator[Any]]:
    return lambda epoch: (loader.batch(epoch, index) for index in range(len(loader)))


def edges_per_s(batches_of: Callable[[int], Iterator[Any]], args: argparse.Namespace) -> list[float]:
    """Edges of an epoch's batches by the seconds until the GPU has them all; an epoch before the first one warms up."""
    rates = []
    for epoch in range(args.repeats + 1):
        edges = 0

        def run(epoch: int = epoch) -> None:
            nonlocal edges
            for batch in batches_of(epoch):
                edges += batch.edge_index.size(1)

        took = seconds(run)
        if epoch:
            rates.append(edges / took)
    return rates


def check_batches(gpu: NeighborLoader, cpu: NeighborLoader, name: str) -> None:
    for index in range(2):
        expected, found = cpu.batch(0, index), gpu.batch(0, index)
        if not all(torch.equal(found[key].cpu(), expected[key]) for key in COMPARED if key in expected):
            raise SystemExit(f"{name}: batch {index} of the GPU is not that of the CPU")


def measure_places(args: argparse.Namespace) -> dict[str, list[float]]:
    """Loaders with features, by where edges and rows lie and how many batches are made ahead."""
    on_host = make_dataset(args, gpu=False)
    cpu = loader_of(on_host, args, num_threads=args.threads, prefetch=0)
    found = {f"CPU, {args.threads} threads": edges_per_s(in_turn(cpu), args)}
    places = [("CUDA", rows) for rows in ROWS] + [(edges, "GPU") for edges in list(EDGES)[1 : 3 if has_peer() else 2]]
    for edges, rows in places:
        dataset, name = make_dataset(args, gpu=True, edges=edges, rows=rows), f"edges {edges}, rows {rows}"
        check_batches(loader_of(dataset, args, prefetch=0), cpu, name)
        for prefetch in PREFETCH:
            loader = loader_of(dataset, args, prefetch=prefetch)
            found[f"{name}, prefetch={prefetch}"] = edges_per_s(in_turn(loader), args)
    return found


def measure_strategies(args: argparse.Namespace) -> dict[str, list[float]]:
    """Batches by name of each strategy, without features; edges lie in the GPU's memory."""
    cpu, gpu = (make_bare_dataset(args, place, with_weights=True) for place in ({"graph_mode": "CPU"}, EDGES["CUDA"]))
    found = {}
    for name, settings in STRATEGIES.items():
        loader = loader_of(gpu, args, prefetch=0, **settings)
        check_batches(loader, loader_of(cpu, args, num_threads=args.threads, prefetch=0, **settings), name)
        found[name] = edges_per_s(by_name(loader), args)
    return found


def parse_args() -> argparse.Namespace:
    parser = graph_arguments(__doc__)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=available_cores(), help="of the CPU's batches")
    parser.add_argument("--strategies-alone", action="store_true", help="measure no loaders, and write no results")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    require_gpu()
    title = f"Batches of {args.batch_size} seeds, fan-out {args.fanout}: M edges per s, "
    strategies = measure_strategies(args)
    print_rates(f"{title}without features", strategies)
    if args.strategies_alone:
        return
    places = measure_places(args)
    print_rates(f"{title}with {args.features} features", places)
    cpu, *gpu = (median(rates) for rates in places.values())
    print(f"\nthe GPU makes {max(gpu) / cpu:.1f} times the edges per s of {args.threads} threads")
    settings = {key: str(value) for key, value in vars(args).items()}
    content = {**describe(), "settings": settings, "with features": places, "strategies": strategies}
    print(f"written to {write_json('gpu_sampling', content)}")


def print_rates(title: str, found: Mapping[str, list[float]]) -> None:
    rows = [[name, spread([rate / 1e6 for rate in rates])] for name, rates in found.items()]
    print_table(title, ["batches", "median (range)"], rows)


if __name__ == "__main__":
    main()
