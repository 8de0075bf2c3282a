"""What remote sampling costs: batches per CPU second of one server and one client, over those of the in-process loader.

Both give the same PyG batches of the same graph, in turns, in one run. CPU seconds are user and system time of every
process involved (server, sampling worker, client), over whole epochs, start-up left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from harness import cpu_seconds, median, power_law_edges, print_table, process_tree, spread, write_json

import graphlearn_dist as glt
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RangePartitioner
from graphlearn_dist.utils.common import get_free_port


def make_partition(root: Path, args: argparse.Namespace) -> Path:
    """One partition: a power-law graph with features and labels."""
    edges = torch.from_numpy(power_law_edges(args.nodes, args.edges))
    features = torch.randn(args.nodes, args.features, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(args.nodes) % 10
    directory = root / "graph"
    RangePartitioner(
        str(directory), 1, args.nodes, edges, node_feat=features, edge_assign_strategy="by_dst", node_labels=labels
    ).partition()
    return directory


def whole_dataset(directory: Path) -> Dataset:
    """The same memory-mapped arrays for the in-process loader."""
    dataset = DistDataset()
    dataset.load(directory, 0)
    return dataset


@contextmanager
def running_server(directory: Path, port: int) -> Iterator[int]:
    """One server with one client to come; gives its pid."""
    command = [sys.executable, "-m", "graphlearn_dist", "serve", "--data", str(directory), "--rank", "0"]
    process = subprocess.Popen([*command, "--port", str(port), "--servers", "1", "--clients", "1"])
    try:
        yield process.pid
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def one_epoch(loader: Any, num_batches: int, pids: list[int]) -> dict[str, float]:
    """Batches per CPU second and per second over part of an epoch."""
    cpu, started, edges = cpu_seconds(pids), time.perf_counter(), 0
    for count, batch in enumerate(loader, 1):
        edges += batch.edge_index.size(1)
        if count == num_batches:
            break
    wall, used = time.perf_counter() - started, cpu_seconds(pids) - cpu
    return {"per_cpu_s": count / used, "per_s": count / wall, "edges_per_batch": edges / count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=40, help="batches of one measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--buffer", default="2GB", help="shared memory for batches")
    parser.add_argument("--name", default="remote", help="of the file in results/")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the in-process loader would otherwise pay for OpenMP threads that wait for each other
    with tempfile.TemporaryDirectory() as root:
        directory = make_partition(Path(root), args)
        port = get_free_port()
        with running_server(directory, port) as server_pid:
            rows = measure(directory, port, server_pid, args)
    ratio = median([r["per_cpu_s"] for r in rows["remote"]]) / median([r["per_cpu_s"] for r in rows["in process"]])
    print_table(
        f"remote, 1 server + 1 client; fan-out {args.fanout}, batch {args.batch_size}, "
        f"{rows['remote'][0]['edges_per_batch']:,.0f} edges a batch, {args.features} float32 features",
        ["loader", "batches per CPU second", "batches per second"],
        [
            [name, spread([r["per_cpu_s"] for r in runs]), spread([r["per_s"] for r in runs])]
            for name, runs in rows.items()
        ],
    )
    print(f"\nremote / in process, batches per CPU second: {ratio:.2f}")
    print(write_json(args.name, {"arguments": vars(args), "ratio_per_cpu_second": ratio, "runs": rows}))


def measure(directory: Path, port: int, server_pid: int, args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The two loaders in turns; the first round warms up and is not counted."""
    glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
    inputs = torch.arange(args.nodes)
    local = NeighborLoader(whole_dataset(directory), args.fanout, inputs, batch_size=args.batch_size, shuffle=True)
    options = RemoteDistSamplingWorkerOptions(buffer_size=args.buffer)
    remote = DistNeighborLoader(
        None, args.fanout, inputs, args.batch_size, True, edge_dir="in", collect_features=True, worker_options=options
    )
    rows: dict[str, list[dict[str, float]]] = {"in process": [], "remote": []}
    pids = process_tree(server_pid)
    with remote:
        own = [os.getpid()]
        for repeat in range(args.repeats + 1):
            results = {"in process": one_epoch(local, args.batches, own)}
            results["remote"] = one_epoch(remote, args.batches, own + pids)
            for name, result in results.items():
                if repeat:
                    rows[name].append(result)
    stats = glt.distributed.rpc.get_endpoint().stats()
    print(
        f"batches received: {stats.lent_payloads_received} in the memory their worker wrote them to, "
        f"{stats.arena_payloads_received} through the arena (one copy a side)"
    )
    glt.distributed.shutdown_client()
    return rows


if __name__ == "__main__":
    main()
