"""What remote sampling costs: batches per CPU second of servers and one client, over those of the in-process loader.

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
from graphlearn_dist.partition import RandomPartitioner
from graphlearn_dist.utils.common import get_free_port


def make_partitions(root: Path, num_parts: int, args: argparse.Namespace) -> Path:
    """A power-law graph with features and labels, in so many partitions."""
    edges = torch.from_numpy(power_law_edges(args.nodes, args.edges))
    features = torch.randn(args.nodes, args.features, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(args.nodes) % 10
    directory = root / f"graph{num_parts}"
    RandomPartitioner(
        str(directory),
        num_parts,
        args.nodes,
        edges,
        node_feat=features,
        edge_assign_strategy="by_dst",
        node_labels=labels,
    ).partition()
    return directory


def whole_dataset(directory: Path) -> Dataset:
    """The same memory-mapped arrays for the in-process loader."""
    dataset = DistDataset()
    dataset.load(directory, 0)
    return dataset


@contextmanager
def running_servers(directory: Path, port: int, num_servers: int) -> Iterator[list[int]]:
    """The servers, with one client to come; gives their pids."""
    command = [sys.executable, "-m", "graphlearn_dist", "serve", "--data", str(directory), "--port", str(port)]
    command += ["--servers", str(num_servers), "--clients", "1"]
    processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(num_servers)]
    try:
        yield [process.pid for process in processes]
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
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
    parser.add_argument("--servers", type=int, default=1, help="servers, and partitions")
    parser.add_argument("--name", default="remote", help="of the file in results/")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the in-process loader would otherwise pay for OpenMP threads that wait for each other
    with tempfile.TemporaryDirectory() as root:
        whole = whole_dataset(make_partitions(Path(root), 1, args))
        directory = make_partitions(Path(root), args.servers, args) if args.servers > 1 else Path(root) / "graph1"
        port = get_free_port()
        with running_servers(directory, port, args.servers) as server_pids:
            rows = measure(whole, port, server_pids, args)
    ratio = median([r["per_cpu_s"] for r in rows["remote"]]) / median([r["per_cpu_s"] for r in rows["in process"]])
    print_table(
        f"remote, {args.servers} server(s) + 1 client; fan-out {args.fanout}, batch {args.batch_size}, "
        f"{rows['remote'][0]['edges_per_batch']:,.0f} edges a batch, {args.features} float32 features",
        ["loader", "batches per CPU second", "batches per second"],
        [
            [name, spread([r["per_cpu_s"] for r in runs]), spread([r["per_s"] for r in runs])]
            for name, runs in rows.items()
        ],
    )
    print(f"\nremote / in process, batches per CPU second: {ratio:.2f}")
    print(write_json(args.name, {"arguments": vars(args), "ratio_per_cpu_second": ratio, "runs": rows}))


def measure(
    whole: Dataset, port: int, server_pids: list[int], args: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """The two loaders in turns; the first round warms up and is not counted."""
    glt.distributed.init_client(args.servers, 1, 0, "127.0.0.1", port)
    inputs = torch.arange(args.nodes)
    local = NeighborLoader(whole, args.fanout, inputs, batch_size=args.batch_size, shuffle=True, prefetch=0)
    options = RemoteDistSamplingWorkerOptions(server_rank=list(range(args.servers)), buffer_size=args.buffer)
    remote = DistNeighborLoader(
        None, args.fanout, inputs, args.batch_size, True, edge_dir="in", collect_features=True, worker_options=options
    )
    rows: dict[str, list[dict[str, float]]] = {"in process": [], "remote": []}
    pids = [pid for server_pid in server_pids for pid in process_tree(server_pid)]
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
