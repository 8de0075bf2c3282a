"""What share of the rows of batches a GPU would have: static rows, chosen by degree or by counts, and a device cache.

The kernels of the cache are run by the host; nothing is timed. Three kinds of batches: nodes, three epochs of a fifth
of the nodes; links, three epochs of 60 batches of edges; nodes in their order, each once. Shares are of the batches
behind the first third (of nodes in their order, the first tenth), in which the cache has learned.

    python benchmarks/bench_device_cache.py [--graph GRAPH.npz] [--fanout 10 5] [--batch-size 512]

GRAPH.npz has ``edge_index`` ``[2, E]``, or ``indptr`` and ``indices``; without one, a power-law graph is made.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from harness import power_law_edges, print_table, write_json

from graphlearn_dist.data import Dataset
from graphlearn_dist.data.device.device_cache import DeviceCache
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, count_nodes
from graphlearn_dist.loader.local_loader import LocalLoader

SHARES = (0.01, 0.05, 0.1, 0.2, 0.4)
HOST = torch.device("cpu")


def read_edges(args: argparse.Namespace) -> torch.Tensor:
    """int64 ``[2, E]``."""
    if args.graph is None:
        return torch.from_numpy(power_law_edges(args.nodes, args.edges)).long()
    with np.load(args.graph) as arrays:
        if "edge_index" in arrays:
            return torch.from_numpy(arrays["edge_index"].astype(np.int64))
        rows = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"].astype(np.int64)))
        return torch.from_numpy(np.stack([rows, arrays["indices"].astype(np.int64)]))


def nodes_of(loader: LocalLoader, num_epochs: int, most: int) -> Iterator[torch.Tensor]:
    """The nodes of the batches of some epochs, int64 ``[n]`` each."""
    for epoch in range(num_epochs):
        for index in range(min(len(loader), most)):
            yield loader.batches.sample(epoch, index).subgraph.nodes[0]


def hit_rate_of_cache(batches: list[torch.Tensor], num_skipped: int, num_rows: int, num_slots: int) -> float:
    """Share of the rows that a cache had, of batches behind the first."""
    rows = torch.zeros(num_rows, 1, dtype=torch.uint8)
    gathering = DeviceRows([rows], HOST, cache=DeviceCache(rows, 0, 8 * num_rows + 9 * num_slots, HOST))
    assert gathering.cache is not None
    for ids in batches[:num_skipped]:
        gathering.gather(ids, torch.uint8)
    before = gathering.cache.counts
    for ids in batches[num_skipped:]:
        gathering.gather(ids, torch.uint8)
    after = gathering.cache.counts
    return (after.hits - before.hits) / sum(map(len, batches[num_skipped:]))


def hit_rate_of_rows(batches: list[torch.Tensor], hotness: torch.Tensor, num_hot: int) -> float:
    """Share of the rows that are among the hottest."""
    is_hot = torch.zeros(len(hotness), dtype=torch.bool)
    is_hot[hotness.argsort(descending=True, stable=True)[:num_hot]] = True
    return float(is_hot[torch.cat(batches)].double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--fanout", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--quick", action="store_true", help="a few batches")
    args = parser.parse_args()
    edges, most = read_edges(args), 4 if args.quick else 200
    num_nodes = int(edges.max()) + 1
    dataset = Dataset()
    dataset.init_graph(edges, num_nodes=num_nodes, graph_mode="CPU")
    draw = torch.Generator().manual_seed(0)
    seeds = torch.randperm(num_nodes, generator=draw)[: num_nodes // 5]
    links = edges[:, torch.randperm(edges.size(1), generator=draw)[: 60 * args.batch_size]]
    common = {"batch_size": args.batch_size, "prefetch": 0}
    by_nodes = NeighborLoader(dataset, args.fanout, seeds, shuffle=True, **common)
    by_links = LinkNeighborLoader(dataset, args.fanout, edge_label_index=links, shuffle=True, **common)
    in_order = NeighborLoader(dataset, args.fanout, torch.arange(num_nodes), **common)
    kinds = {
        "nodes": (list(nodes_of(by_nodes, 3, most)), 3),
        "links": (list(nodes_of(by_links, 3, most)), 3),
        "nodes in their order": (list(nodes_of(in_order, 1, most)), 10),
    }
    degrees, counts = torch.bincount(edges[1], minlength=num_nodes), count_nodes(by_nodes, most if args.quick else None)
    results, rows = {}, []
    for kind, (batches, part) in kinds.items():
        skipped, found = len(batches) // part, []
        for share in SHARES:
            room = max(int(share * num_nodes), 1)
            static = [hit_rate_of_rows(batches[skipped:], hotness, room) for hotness in (degrees, counts)]
            found.append((*static, hit_rate_of_cache(batches, skipped, num_nodes, room)))
        results[kind] = found
        mean = sum(map(len, batches)) / len(batches)
        rows.append([kind, f"{mean:,.0f}", *(" / ".join(f"{rate:.2f}" for rate in rates) for rates in found)])
    arguments = {**vars(args), "graph": args.graph and Path(args.graph).name}
    title = f"{num_nodes:,} nodes; share of rows by degree / by counts of node batches / by the cache"
    print_table(title, ["batches", "rows", *(f"{share:.0%}" for share in SHARES)], rows)
    print(write_json("device_cache", {"arguments": arguments, "hit_rates": results}))


if __name__ == "__main__":
    main()
