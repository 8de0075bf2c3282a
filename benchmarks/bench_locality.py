"""Partitions of zones of one order (KaMinPar, streaming) beside a partition made anew for each number of parts.

Cuts are shares of the edges, between distinct nodes and each pair once; balance is the largest part in shares.
KaMinPar and METIS (``pip install kaminpar pymetis``) partition the same graph with the same weights of nodes: half
bytes, half training seeds; and KaMinPar with bytes alone, which it keeps within the same 3 %. METIS by both, where its
library is on the machine (``apt install libmetis5``), balances bytes and seeds each, as zones do. Memory is what the
process takes beside the graph that it was given.

    python benchmarks/bench_locality.py [--parts 2 3 4 6 8] [--graphs NAME=FILE.npz ...] [--ways zones]

What is not measured stays in the file of results as it was. A file of a graph has ``num_nodes`` and ``edge_index`` (int
``[2, edges]``, each edge once), and perhaps ``train`` (ids of seeds). Without, the graph has communities (see
``planted_edges``).
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import json
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, machine, planted_edges, print_table, write_json

from graphlearn_dist.partition.ordering import find_order
from graphlearn_dist.partition.ordering.edge_stream import EdgeChunk, EdgeStream, NodeStream
from graphlearn_dist.partition.ordering.union_graph import UnionGraph, edges_of, union_graph

ROW_BYTES, EDGE_BYTES, STEP = 408, 12, 1 << 21


def read_graph(path: Path | None, nodes: int, edges: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Number of nodes, edges in both directions, seeds."""
    if path is None:
        once, zones = planted_edges(nodes, edges)
        count, seeds = len(zones), np.arange(0, len(zones), 10)
    else:
        with np.load(path) as file:
            count, once = int(file["num_nodes"]), file["edge_index"].astype(np.int64)
            seeds = file["train"].astype(np.int64) if "train" in file else np.arange(count)
    both = np.concatenate([once, once[::-1]], axis=1)
    return count, torch.from_numpy(both), torch.from_numpy(seeds)


def stream_of(count: int, edges: torch.Tensor, seeds: torch.Tensor) -> EdgeStream:
    def chunks() -> Any:
        for begin in range(0, edges.size(1), STEP):
            rows, cols = edges[:, begin : begin + STEP]
            yield EdgeChunk(None, rows, None, cols, EDGE_BYTES)

    return EdgeStream({None: NodeStream(count, ROW_BYTES, seeds)}, chunks)


def private_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def measured(body: Callable[[], Any]) -> tuple[Any, float, int]:
    """What it gives, its seconds, and the private bytes that it took at most beside what there was."""
    most, ended, before = [0], threading.Event(), private_bytes()

    def watch() -> None:
        while not ended.wait(0.01):
            most[0] = max(most[0], private_bytes() - before)

    watcher, began = threading.Thread(target=watch), time.monotonic()
    watcher.start()
    try:
        found = body()
    finally:
        seconds = time.monotonic() - began
        ended.set()
        watcher.join()
    return found, seconds, most[0]


def zones_of(stream: EdgeStream, by: Any, parts: list[int]) -> dict[int, np.ndarray]:
    """The owner of each node, by the number of parts."""
    found = find_order.find_order(stream, by)
    zones = found.orders[None].zone_of(torch.arange(stream.nodes[None].count))
    return {p: found.graph.owners(p)[zones].numpy() for p in parts}


def anew(name: str, graph: UnionGraph, parts: int) -> np.ndarray:
    """The same of a partition that is made for this number of parts."""
    if name == "KaMinPar":
        import kaminpar

        kaminpar.reseed(0)
        opened = kaminpar.load_graph(str(graph.path), kaminpar.GraphFileFormat.PARHIP)
        return np.array(kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(opened, parts, 0.03))
    import pymetis

    adjacency = pymetis.CSRAdjacency(graph.offsets.numpy(), graph.neighbors.numpy())
    options = pymetis.Options(seed=0, ufactor=30)
    return np.array(pymetis.part_graph(parts, adjacency, vweights=graph.weights.numpy(), options=options)[1])


def by_both_weights(graph: UnionGraph, weights: torch.Tensor, parts: int) -> np.ndarray:
    """The same by METIS with several weights of nodes, int ``[n, num_weights]``, each balanced within 3 %."""
    library = ctypes.CDLL(ctypes.util.find_library("metis"))
    counts = np.array([graph.num_nodes, weights.size(1), parts, 0], np.int32)  # the last: the cut
    arrays = [array.numpy().astype(np.int32) for array in (graph.offsets, graph.neighbors, weights.contiguous())]
    slack, owners = np.full(weights.size(1), 1.03, np.float32), np.empty(graph.num_nodes, np.int32)
    at = [ctypes.c_void_p(counts.ctypes.data + 4 * i) for i in range(4)]
    offsets, neighbors, loads, most, found = (ctypes.c_void_p(a.ctypes.data) for a in (*arrays, slack, owners))
    ended = library.METIS_PartGraphKway(
        at[0], at[1], offsets, neighbors, loads, None, None, at[2], None, most, None, at[3], found
    )
    if ended != 1:
        raise RuntimeError(f"METIS_PartGraphKway: expected 1, got {ended}")
    return owners


def quality(owners: np.ndarray, stream: EdgeStream, graph: UnionGraph, num_bytes: torch.Tensor) -> dict[str, float]:
    owner, parts = torch.from_numpy(owners).long(), int(owners.max()) + 1
    cut = sum(int((owner[rows] != owner[cols]).sum()) for rows, cols in edges_of(graph))
    loads = torch.zeros(parts, dtype=torch.int64).index_add_(0, owner, num_bytes)
    seeds = owner[stream.nodes[None].seeds].bincount(minlength=parts)
    shares = [float(load.max()) * parts / float(load.sum()) for load in (loads, seeds)]
    return {"cut": cut / max(int(graph.offsets[-1]), 1), "bytes": shares[0], "seeds": shares[1]}


def measure(stream: EdgeStream, edges: torch.Tensor, parts: list[int], wanted: str) -> dict[str, Any]:
    count = stream.nodes[None].count
    num_bytes = edges[0].bincount(minlength=count) * EDGE_BYTES + ROW_BYTES
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        graph = union_graph(stream, find_order._weights(stream, {None: 0}), Path(scratch))
        for by in (by for by in ("kaminpar", "ldg") if wanted in f"zones, {by}"):
            owners, seconds, taken = measured(lambda by=by: zones_of(stream, by, parts))  # type: ignore[misc]
            cuts = {p: quality(owners[p], stream, graph, num_bytes) for p in parts}
            results[f"zones, {by}"] = {"seconds": seconds, "bytes an edge": taken / edges.size(1), "parts": cuts}
        (by_bytes := Path(scratch) / "bytes").mkdir()
        mean = int(num_bytes.sum()) // max(count, 1)
        heavy = union_graph(stream, (num_bytes * 1000 // mean).clamp(min=1), by_bytes)
        ways = {name: partial(anew, name, graph) for name in ("KaMinPar", "METIS")}
        ways["KaMinPar by bytes"] = partial(anew, "KaMinPar", heavy)
        if ctypes.util.find_library("metis"):
            is_seed = torch.zeros(count, dtype=torch.int64).index_fill_(0, stream.nodes[None].seeds, 1)
            ways["METIS by both"] = partial(by_both_weights, graph, torch.stack([heavy.weights, is_seed], 1))
        for name, way in ways.items():
            if wanted not in f"anew, {name}":
                continue
            runs = {p: measured(partial(way, p)) for p in parts}
            cuts = {p: quality(found[0], stream, graph, num_bytes) for p, found in runs.items()}
            taken, seconds = max(run[2] for run in runs.values()), float(np.median([run[1] for run in runs.values()]))
            results[f"anew, {name}"] = {"seconds": seconds, "bytes an edge": taken / edges.size(1), "parts": cuts}
    return results


def show(name: str, results: dict[str, Any], parts: list[int]) -> None:
    rows = []
    for how, found in results.items():
        cuts = [f"{100 * found['parts'][p]['cut']:.2f}" for p in parts]
        worst = [max(found["parts"][p][of] for p in parts) for of in ("bytes", "seeds")]
        rows.append(
            [how, *cuts, *(f"{w:.3f}" for w in worst), f"{found['seconds']:.1f}", f"{found['bytes an edge']:.0f}"]
        )
    header = ["", *(f"cut {p}" for p in parts), "bytes", "seeds", "s", "B/edge"]
    print_table(f"{name}: edges cut in %, the largest part, seconds, peak memory by directed edge", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=[], metavar="NAME=FILE", help="else a graph with communities")
    parser.add_argument("--nodes", type=int, default=256_000)
    parser.add_argument("--num-edges", type=int, default=4_000_000)
    parser.add_argument("--parts", type=int, nargs="+", default=[2, 3, 4, 6, 8])
    parser.add_argument("--ways", default="", help="only those whose name has this in it: zones, ldg, METIS, ...")
    parser.add_argument("--name", default="locality", help="of the file of results")
    args = parser.parse_args()
    files = dict(graph.split("=", 1) for graph in args.graphs) or {"communities": None}
    earlier = RESULTS / f"{args.name}.json"
    results = json.loads(earlier.read_text())["results"] if earlier.exists() else {}
    for name, file in files.items():
        count, edges, seeds = read_graph(Path(file) if file else None, args.nodes, args.num_edges)
        found = measure(stream_of(count, edges, seeds), edges, args.parts, args.ways)
        show(name, found, args.parts)
        results[name] = results.get(name, {}) | {how: {**way, "date": machine()["date"]} for how, way in found.items()}
    write_json(args.name, {"arguments": {k: str(v) for k, v in vars(args).items()}, "results": results})


if __name__ == "__main__":
    main()
