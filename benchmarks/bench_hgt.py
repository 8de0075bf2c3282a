"""HGT sampling beside ``torch_sparse.hgt_sample``: in turns, one thread, no features.

``HGTLoader`` here and PyG's, which calls that operator, both give batches of ``HeteroData``; the operator alone stands
beside them. It looks at 50 neighbors of a node along a type, for budgets and for edges; here 520 are looked at for
budgets and all for edges: only on the even graph, where no node has more than 50, is the work the same. Batches differ,
as the random numbers do.

    python benchmarks/bench_hgt.py [--library hgt_sample.so] [--turns 7] [--batches 10]

``--library`` is a shared library with that operator, where torch-sparse itself is not installed; it may be made of
``csrc/hgt_sample.cpp`` and ``csrc/cpu/hgt_sample_cpu.cpp`` of torch-sparse by ``torch.utils.cpp_extension.load``.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from harness import median, power_law_edges, print_table, spread, write_json
from torch_geometric.data import HeteroData
from torch_geometric.loader import HGTLoader as PygHGTLoader
from torch_geometric.sampler import hgt_sampler
from torch_geometric.sampler.utils import to_hetero_csc

from graphlearn_dist.loader import HGTLoader

NODES = {"paper": 180_000, "author": 280_000, "institution": 2_000, "field": 15_000}
EDGES = {
    ("author", "writes", "paper"): 1_800_000,
    ("paper", "cites", "paper"): 1_350_000,
    ("author", "affiliated_with", "institution"): 260_000,
    ("paper", "has_topic", "field"): 1_870_000,
}  # a quarter of ogbn-mag
WORK = {"[512] * 4 x 128": ([512] * 4, 128), "[64] * 2 x 32": ([64] * 2, 32)}
EVEN_DEGREE = 12


def skewed_edges(num_sources: int, num_targets: int, num_edges: int, seed: int) -> np.ndarray:
    """int64 ``[2, num_edges]`` of power-law popularity at both ends."""
    ends = (power_law_edges(count, num_edges, seed=seed + i)[0] for i, count in enumerate((num_sources, num_targets)))
    return np.stack(list(ends))


def even_edges(num_sources: int, num_targets: int, seed: int) -> np.ndarray:
    """int64 ``[2, 12 n]``: twelve edges at each of ``n`` nodes of either type, the smaller number of both."""
    generator = np.random.default_rng(seed)
    count = min(num_sources, num_targets)
    sources, targets = (generator.permutation(number)[:count] for number in (num_sources, num_targets))
    rounds = [np.stack([sources, np.roll(targets, int(generator.integers(count)))]) for _ in range(EVEN_DEGREE)]
    return np.concatenate(rounds, axis=1)


def make_data(kind: str, scale: float) -> HeteroData:
    data = HeteroData()
    counts = {name: max(64, int(count * scale)) for name, count in NODES.items()}
    for name, count in counts.items():
        data[name].num_nodes = count
    for seed, ((source, relation, target), num_edges) in enumerate(EDGES.items()):
        ends = counts[source], counts[target]
        edges = even_edges(*ends, seed) if kind == "even" else skewed_edges(*ends, int(num_edges * scale), 2 * seed)
        data[source, relation, target].edge_index = torch.from_numpy(edges)
        data[target, f"rev_{relation}", source].edge_index = torch.from_numpy(edges).flip(0)
    return data


class Loader:
    """Batches of a loader, epoch after epoch."""

    def __init__(self, make: Any, data: HeteroData, num_samples: list[int], batch_size: int) -> None:
        settings = {"batch_size": batch_size, "shuffle": True, "drop_last": True, "num_workers": 0}
        self._loader = make(data, num_samples, "paper", **settings)
        self._batches: Iterator[Any] = iter(self._loader)

    def sizes(self) -> tuple[int, int]:
        """Makes a batch; its nodes and edges."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)
            batch = next(self._batches)
        return batch.num_nodes, batch.num_edges


class Operator:
    """Calls of the operator, on seeds of its own."""

    def __init__(self, data: HeteroData, num_samples: list[int], batch_size: int) -> None:
        offsets, rows, _ = to_hetero_csc(data, device="cpu", share_memory=False, is_sorted=False)
        self._offsets = {"__".join(key): each for key, each in offsets.items()}
        self._rows = {"__".join(key): each for key, each in rows.items()}
        self._samples = dict.fromkeys(data.node_types, num_samples)
        self._seeds = torch.randperm(data["paper"].num_nodes).split(batch_size)
        self._next = 0

    def sizes(self) -> tuple[int, int]:
        """Makes a batch; its nodes and edges."""
        seeds = {"paper": self._seeds[self._next % (len(self._seeds) - 1)]}
        self._next += 1
        num_hops = len(self._samples["paper"])
        nodes, rows, _, _ = torch.ops.torch_sparse.hgt_sample(self._offsets, self._rows, seeds, self._samples, num_hops)
        return sum(map(len, nodes.values())), sum(map(len, rows.values()))


def has_operator(library: str | None) -> bool:
    """Loads what has it; whether it is there."""
    if library is not None:
        torch.ops.load_library(library)
        hgt_sampler.WITH_TORCH_SPARSE = True  # as far as PyG's loader needs it
        return True
    try:
        import torch_sparse  # noqa: F401
    except ImportError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", help="shared library with torch_sparse::hgt_sample")
    parser.add_argument("--scale", type=float, default=1.0, help="of the graph")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--batches", type=int, default=10, help="of each in a turn")
    parser.add_argument("--quick", action="store_true", help="one turn of small batches of a small graph")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.batches, args.scale = 1, 2, 0.05
    torch.set_num_threads(1)
    torch.manual_seed(0)
    makers: dict[str, Any] = {"here": functools.partial(Loader, HGTLoader)}
    if has_operator(args.library):
        makers |= {"PyG": functools.partial(Loader, PygHGTLoader), "operator alone": Operator}
    rows, results = [], {}
    for kind in ("skewed", "even"):
        data = make_data(kind, args.scale)
        for label, work in list(WORK.items())[1 if args.quick else 0 :]:
            samplers = {name: make(data, *work) for name, make in makers.items()}
            turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in samplers}
            for turn in range(-1, args.turns):  # the first one warms up
                for name, sampler in samplers.items():
                    begun = time.perf_counter()
                    sizes = [sampler.sizes() for _ in range(args.batches)]
                    seconds = time.perf_counter() - begun
                    if turn >= 0:
                        turns[name].append(
                            (args.batches / seconds, *(sum(of) / seconds for of in zip(*sizes, strict=True)))
                        )
            for name, of in turns.items():
                ratios = [ours[0] / theirs[0] for ours, theirs in zip(turns["here"], of, strict=True)]
                rates = [spread([turn[i] for turn in of]) for i in range(3)]
                rows.append([kind, label, name, *rates, f"{median(ratios):.1f}"])
            results[f"{kind}, {label}"] = turns
    print_table(
        "HGT sampling, one thread; a second",
        ["graph", "batches", "sampler", "batches", "nodes", "edges", "here / this"],
        rows,
    )
    print(write_json("hgt", {"arguments": vars(args), "turns": results}))


if __name__ == "__main__":
    main()
