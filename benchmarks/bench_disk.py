"""Features of several times the memory: read from disk with foreknowledge, and mapped, in the same control group.

A partition is generated once (nodes in communities, degrees that follow a power law). Each run is a process of its own
in a memory control group, where one may be made: batches a second, and bytes that it had read, by /proc/self/io.
Without a group the page cache of the whole host serves the mapped files, and only bytes and hit rates say something.

    python benchmarks/bench_disk.py  # 3.1 GB of features in a group of 768 MB
    python benchmarks/bench_disk.py --parts rates --nodes 1e6 --edges 10e6 --features 128
    python benchmarks/bench_disk.py --types 2  # half of the nodes and edges of each type
    python benchmarks/bench_disk.py --graphbolt /tmp/dgl-env/bin/python  # its features on disk beside (make_env.sh dgl)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_scale import control_group, edges_of
from harness import print_table, write_json

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RangePartitioner
from graphlearn_dist.sampler.epochs.foresight import WINDOW
from graphlearn_dist.utils.units import parse_size

SHARES = (0.05, 0.1, 0.2)
PARTS = ("mapped", "tier", "rates")
GRAPHBOLT = Path(__file__).parent / "peers" / "graphbolt_disk.py"


def make_partition(folder: Path, num_nodes: int, num_edges: int, num_features: int, num_types: int) -> Path:
    """A directory of one partition; with types, edges go from each to the next."""
    names = [f"t{number}" for number in range(num_types)]
    generator = torch.Generator().manual_seed(1)
    nodes, rows, edges = {}, {}, {}
    for source, target in zip(names, names[1:] + names[:1], strict=True):
        nodes[source] = num_nodes // num_types
        rows[source] = torch.empty(nodes[source], num_features)
        for chunk in rows[source].split(1 << 17):
            chunk.uniform_(generator=generator)
        ends = zip(*edges_of(nodes[source], num_edges // num_types, 100), strict=True)
        edges[source, "to", target] = torch.from_numpy(np.stack([np.concatenate(each) for each in ends]))
    of_all = [nodes, edges, rows] if num_types > 1 else [next(iter(each.values())) for each in (nodes, edges, rows)]
    RangePartitioner(
        str(folder / "partition"), 1, of_all[0], of_all[1], node_feat=of_all[2], edge_assign_strategy="by_dst"
    ).partition()
    return folder / "partition"


def seeds_of(num_nodes: int, options: dict[str, Any]) -> torch.Tensor:
    drawn = torch.randperm(num_nodes, generator=torch.Generator().manual_seed(2))
    return drawn[: options["batch_size"] * options["batches"]]


def open_loader(dataset: DistDataset, options: dict[str, Any]) -> NeighborLoader:
    schema = dataset.schema
    seeds = seeds_of(schema.num_nodes[0], options)
    return NeighborLoader(
        dataset,
        options["fanouts"],
        (schema.node_types[0], seeds) if len(schema.node_types) > 1 else seeds,
        batch_size=options["batch_size"],
        shuffle=True,
        seed=5,
        prefetch=2,
    )


_RUN = """
import json, sys, threading, time
import psutil
import torch_geometric.data  # a first batch would
sys.path.insert(0, sys.argv[1])
from bench_disk import open_loader
from graphlearn_dist.distributed import DistDataset
options = json.loads(sys.argv[2])
dataset = DistDataset()
dataset.load(options["directory"], 0, verify=False)
if options["feature_memory"]:
    dataset.limit_feature_memory(options["feature_memory"])
loader = open_loader(dataset, options)
process, peak, ended = psutil.Process(), 0, threading.Event()
def watch():
    global peak
    while not ended.wait(0.02):
        memory = process.memory_info()
        peak = max(peak, memory.rss - memory.shared)
watcher = threading.Thread(target=watch)
watcher.start()
before, begin, cpu = process.io_counters().read_bytes, time.monotonic(), process.cpu_times()
done = 0
for batch in loader:
    done += 1
    if time.monotonic() - begin > options["limit_s"]:
        break
seconds, after = time.monotonic() - begin, process.cpu_times()
ended.set()
watcher.join()
tiers = [feature.disk_tier for feature in dataset.features_in_use() if feature.disk_tier is not None]
print(json.dumps({"batches": done, "seconds": seconds, "read_bytes": process.io_counters().read_bytes - before,
                  "cpu_seconds": after.user + after.system - cpu.user - cpu.system, "peak_private_bytes": peak,
                  "counts": [tier.counts for tier in tiers]}))
"""


def run(options: dict[str, Any], memory: int, graphbolt: str | None = None) -> dict[str, Any]:
    """One way of reading in a process of its own; that of GraphBolt by its interpreter."""
    if graphbolt:
        command = [graphbolt, str(GRAPHBOLT), json.dumps(options)]
    else:
        command = [sys.executable, "-c", _RUN, str(Path(__file__).parent), json.dumps(options)]
    with control_group(memory) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        for rows in (Path(options["directory"]) / "part0").rglob("x.npy"):
            with open(rows, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=enter)
    if ended.returncode != 0:
        return {"failed": ended.returncode}
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return {**found, "batches_per_s": found["batches"] / found["seconds"], "in_group": group is not None}


def nodes_of(options: dict[str, Any]) -> list[np.ndarray]:
    """The rows that each batch looks up, those of a type behind those of the types before it."""
    dataset = DistDataset()
    dataset.load(options["directory"], 0, verify=False)
    batches, first = open_loader(dataset, options).batches, np.cumsum([0, *dataset.schema.num_nodes])
    sampled = (batches.sample(0, index).subgraph.nodes for index in range(batches.schedule.num_batches))
    return [
        np.concatenate([rows.numpy() + first[number] for number, rows in enumerate(by_type)]) for by_type in sampled
    ]


def least_bytes(batches: list[np.ndarray], row_bytes: int) -> int:
    """Of the distinct rows of each window."""
    windows = [batches[i : i + WINDOW + 1] for i in range(0, len(batches), WINDOW + 1)]
    return sum(len(np.unique(np.concatenate(window))) for window in windows) * row_bytes


# --- hit rates ---------------------------------------------------------------------------------------------------


def lru(stream: np.ndarray, size: int) -> float:
    """Least recently used."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in stream.tolist():
        if row in cached:
            hits += 1
            cached.move_to_end(row)
            continue
        if len(cached) >= size:
            cached.popitem(last=False)
        cached[row] = None
    return hits / len(stream)


def s3_fifo(stream: np.ndarray, size: int) -> float:
    """Yang et al., SOSP 2023: a small queue of a tenth, a main one with second chances, ghosts of as many rows."""
    small, main, used = deque[int](), deque[int](), dict[int, int]()
    ghosts: OrderedDict[int, None] = OrderedDict()
    hits, of_small = 0, max(size // 10, 1)

    def evict() -> None:
        while len(small) >= of_small:
            row = small.popleft()
            if used[row] > 1:
                used[row] = 0
                main.append(row)
                continue
            del used[row]
            ghosts[row] = None
            if len(ghosts) > size - of_small:
                ghosts.popitem(last=False)
            return
        while main:
            row = main.popleft()
            if used[row] == 0:
                del used[row]
                return
            used[row] -= 1
            main.append(row)

    for row in stream.tolist():
        if row in used:
            hits += 1
            used[row] = min(used[row] + 1, 3)
            continue
        while len(used) >= size:
            evict()
        used[row] = 0
        if row in ghosts:
            del ghosts[row]
            main.append(row)
        else:
            small.append(row)
    return hits / len(stream)


def belady(stream: np.ndarray, size: int) -> float:
    """The optimum: the row whose next use is the farthest goes."""
    import heapq

    never = len(stream)
    order = np.argsort(stream, kind="stable")
    following = np.full(len(stream), never)
    same = stream[order][1:] == stream[order][:-1]
    following[order[:-1][same]] = order[1:][same]
    cached: dict[int, int] = {}
    farthest: list[tuple[int, int]] = []
    hits = 0
    for row, after in zip(stream.tolist(), following.tolist(), strict=True):
        hits += row in cached
        if row not in cached and len(cached) >= size:
            while True:
                use, victim = heapq.heappop(farthest)
                if cached.get(victim) == -use:
                    del cached[victim]
                    break
        cached[row] = after
        heapq.heappush(farthest, (-after, row))
    return hits / len(stream)


def ours(options: dict[str, Any], size: int, row_bytes: int) -> float:
    """Of the tier with a cache of so many rows; without a control group."""
    found = run({**options, "feature_memory": size * (row_bytes + 60), "limit_s": 1e9}, 1 << 40)
    counts = {name: sum(of_type[name] for of_type in found["counts"]) for name in ("hits", "misses", "rows_ahead")}
    return 1 - float((counts["misses"] + counts["rows_ahead"]) / (counts["hits"] + counts["misses"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=float, default=3e6)
    parser.add_argument("--edges", type=float, default=30e6)
    parser.add_argument("--features", type=int, default=256, help="float32 numbers a row")
    parser.add_argument("--types", type=int, default=1, help="of nodes")
    parser.add_argument("--memory", default="768MB", help="of the control group")
    parser.add_argument("--feature-memory", default="256MB")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one run")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each, in turns")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--graphbolt", metavar="PYTHON", help="an interpreter that has it: its features on disk beside")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--json", action="store_true", help="write results/disk.json")
    given = parser.parse_args()
    num_nodes, row_bytes = int(given.nodes), given.features * 4
    if given.graphbolt and given.types > 1:
        parser.error("--graphbolt: expected nodes of one type")
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        directory = make_partition(Path(folder), num_nodes, int(given.edges), given.features, given.types)
        options = {
            "directory": str(directory),
            "batch_size": given.batch_size,
            "batches": given.batches,
            "fanouts": given.fanouts,
            "limit_s": given.limit,
            "feature_memory": 0,
        }
        memory, results = parse_size(given.memory), []
        batches = nodes_of(options)
        options["seeds"] = str(Path(folder) / "seeds.npy")
        np.save(options["seeds"], seeds_of(num_nodes, options).numpy())
        ways: dict[str, dict[str, Any]] = {"mapped": {}, "tier": {"feature_memory": parse_size(given.feature_memory)}}
        ways = {name: way for name, way in ways.items() if name in given.parts}
        if given.graphbolt:
            ways["GraphBolt"] = {}
        for turn in range(given.repeats):
            for name, way in ways.items():
                found = run({**options, **way}, memory, given.graphbolt if name == "GraphBolt" else None)
                if "failed" not in found:
                    found["of_window"] = found["read_bytes"] / least_bytes(batches[: found["batches"]], row_bytes)
                results.append({"name": name, "turn": turn, **found})
                print(results[-1], flush=True)
        rates = []
        stream = np.concatenate(batches)
        for share in SHARES if "rates" in given.parts else ():
            size = int(share * num_nodes)
            algorithms = {"lru": lru, "s3_fifo": s3_fifo, "belady": belady}
            rates.append({"share": share, **{name: f(stream, size) for name, f in algorithms.items()}})
            rates[-1]["tier"] = ours(options, size, row_bytes)
            print(rates[-1], flush=True)
    columns = ["name", "batches", "seconds", "batches_per_s", "read_bytes", "of_window", "peak_private_bytes"]
    print_table("features in files", columns, [[row.get(column, "failed") for column in columns] for row in results])
    if given.json:
        write_json("disk", {"options": vars(given), "runs": results, "hit_rates": rates})


if __name__ == "__main__":
    main()
