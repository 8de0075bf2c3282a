"""How many rows of other partitions batches of near seeds need (``locality``), over those of seeds from anywhere.

Batches are made in this process, and their nodes counted by owner: a batch is made by the part that owns the most seeds
of its stretch, or by all in turn where seeds come from anywhere. Without ``--edges``, the graph has communities (see
``planted_edges``). Parts are ranges of zones, near equal in seeds.

    python benchmarks/bench_near_seeds.py [--parts 2 4 8] [--locality 8 16 64] [--fanout 15 10]
    python benchmarks/bench_near_seeds.py --edges EDGES.npy --zones ZONES.npy [--seeds SEEDS.npy]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import planted_edges, print_table, write_json

from graphlearn_dist.data import Dataset, ZoneOrder
from graphlearn_dist.loader import NeighborLoader


@dataclass
class Count:
    """What the batches of an epoch had, by the number of parts.

    Attributes:
        nodes: distinct nodes of all batches.
        remote: of these, by number of parts, those that another part owns than the one that made the batch.
        uncached: of these, those of which the maker keeps no copy.
        made: by number of parts, the batches of each part.
    """

    nodes: int = 0
    remote: dict[int, int] = field(default_factory=dict)
    uncached: dict[int, int] = field(default_factory=dict)
    made: dict[int, list[int]] = field(default_factory=dict)


def count_epoch(
    loader: NeighborLoader, epoch: int, owners: dict[int, torch.Tensor], seeds: torch.Tensor, kept: float, most: int
) -> Count:
    """Counts the batches of an epoch; copies are of the rows that were needed most in the epoch before it."""
    indices = range(min(len(loader), most))
    schedule = loader.batches.schedule
    uses = {parts: torch.zeros(parts, len(owner), dtype=torch.int32) for parts, owner in owners.items()}
    is_near = schedule.near is not None
    turns = {parts: schedule.owners(owner[seeds]) if is_near else range(parts) for parts, owner in owners.items()}
    makers = {parts: [turns[parts][i % len(turns[parts])] for i in indices] for parts in owners}
    for index in indices:
        nodes = loader.batch(epoch - 1, index).n_id
        for parts in owners:
            uses[parts][makers[parts][index], nodes] += 1
    copies = {parts: _most_used(uses[parts], owner, kept) for parts, owner in owners.items()}
    found = Count()
    for index in indices:
        nodes = loader.batch(epoch, index).n_id
        found.nodes += len(nodes)
        for parts, owner in owners.items():
            maker = makers[parts][index]
            far = nodes[owner[nodes] != maker]
            found.remote[parts] = found.remote.get(parts, 0) + len(far)
            found.uncached[parts] = found.uncached.get(parts, 0) + int((~copies[parts][maker, far]).sum())
    found.made = {parts: np.bincount(makers[parts], minlength=parts).tolist() for parts in owners}
    return found


def _most_used(uses: torch.Tensor, owner: torch.Tensor, kept: float) -> torch.Tensor:
    """bool ``[parts, num_nodes]``: which rows of others each part keeps."""
    copies = torch.zeros(uses.shape, dtype=torch.bool)
    for part, counts in enumerate(uses):
        copies[part, torch.where(owner == part, -1, counts).topk(int(kept * len(owner))).indices] = True
    return copies


def owners_by_zone(zones: torch.Tensor, seeds: torch.Tensor, parts: int) -> torch.Tensor:
    """The owner of each node: ranges of zones, near equal in seeds."""
    before = zones[seeds].bincount(minlength=int(zones.max()) + 1).cumsum(0)
    middle = before - torch.diff(before, prepend=before.new_zeros(1)) / 2
    return (middle * parts / before[-1]).long().clamp(max=parts - 1)[zones]


def measure(
    data: Dataset, owners: dict[int, torch.Tensor], seeds: torch.Tensor, args: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """What batches of any seeds have, and those of one of so many stretches."""
    results: dict[str, dict[str, Any]] = {}
    base = None
    for locality in (None, *args.locality):
        options = {"batch_size": args.batch_size, "shuffle": True, "locality": locality, "prefetch": 0}
        loader = NeighborLoader(data, args.fanout, seeds, **options)
        found = count_epoch(loader, 1, owners, seeds, args.row_cache, args.batches)
        base = base or found
        results[str(locality or "any seeds")] = {
            "nodes of a batch": found.nodes / base.nodes,
            "parts": {
                parts: {
                    "share of a batch": found.remote[parts] / found.nodes,
                    "over any seeds": found.remote[parts] / base.remote[parts],
                    "with copies": found.uncached[parts] / base.remote[parts],
                    "busiest part": max(found.made[parts]) * parts / sum(found.made[parts]),
                }
                for parts in owners
            },
        }
    return results


def show(results: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """The table."""
    columns = ("share", "over any", "copies")
    rows = []
    for name, found in results.items():
        row = [name, f"{found['nodes of a batch']:.2f}"]
        for of in found["parts"].values():
            row += [f"{of['share of a batch']:.0%}", f"{of['over any seeds']:.2f}", f"{of['with copies']:.2f}"]
        rows.append(row)
    header = ["stretches", "nodes", *(f"{parts}: {column}" for parts in args.parts for column in columns)]
    print_table(f"remote rows by parts, also with copies of {args.row_cache:.0%} of all rows", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=256_000)
    parser.add_argument("--num-edges", type=int, default=4_000_000)
    parser.add_argument("--edges", type=Path, help="int [2, edges], each once")
    parser.add_argument("--zones", type=Path, help="int [nodes], near zones with near numbers")
    parser.add_argument("--seeds", type=Path, help="int [seeds]; all nodes unless given")
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--locality", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=160, help="at most, of an epoch")
    parser.add_argument("--row-cache", type=float, default=0.1)
    parser.add_argument("--name", default="near_seeds", help="of the file of results")
    args = parser.parse_args()
    if (args.edges is None) != (args.zones is None):
        parser.error("--edges, --zones: expected both or none")
    made = planted_edges(args.nodes, args.num_edges) if args.edges is None else map(np.load, (args.edges, args.zones))
    edges, zones = (torch.from_numpy(array).long() for array in made)
    seeds = torch.arange(len(zones)) if args.seeds is None else torch.from_numpy(np.load(args.seeds)).long()
    data = Dataset(edge_dir="in")
    data.init_graph(torch.cat([edges, edges.flip(0)], 1), num_nodes=len(zones))
    data.init_order(ZoneOrder.of_zones(zones))
    owners = {parts: owners_by_zone(zones, seeds, parts) for parts in args.parts}
    cut = {parts: float((owner[edges[0]] != owner[edges[1]]).float().mean()) for parts, owner in owners.items()}
    results = measure(data, owners, seeds, args)
    show(results, args)
    print("edges cut:", ", ".join(f"{parts} parts {share:.1%}" for parts, share in cut.items()))
    write_json(args.name, {"arguments": {k: str(v) for k, v in vars(args).items()}, "cut": cut, "results": results})


if __name__ == "__main__":
    main()
