"""What each mode costs: batches per CPU second of all processes involved, over those of the in-process loader.

All give the same PyG batches of the same graph, in turns with the in-process loader, in one run. CPU seconds are user
and system time of trainer, sampling processes and servers over part of an epoch, start-up left out. Two servers hold
half of the graph each; "asked" is the way between hosts (they send requests), "in place" what they do on one host.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from harness import cpu_seconds, median, power_law_edges, print_table, process_tree, spread, write_json

import graphlearn_dist as glt
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.partition import RandomPartitioner
from graphlearn_dist.utils.common import get_free_port

Runs = list[dict[str, float]]


def make_partitions(directory: Path, num_parts: int, args: argparse.Namespace) -> Path:
    """A power-law graph with features and labels, in so many partitions."""
    features = torch.randn(args.nodes, args.features, generator=torch.Generator().manual_seed(0))
    RandomPartitioner(
        str(directory),
        num_parts,
        args.nodes,
        torch.from_numpy(power_law_edges(args.nodes, args.edges)),
        node_feat=features,
        edge_assign_strategy="by_dst",
        node_labels=torch.arange(args.nodes) % 10,
    ).partition()
    return directory


@contextmanager
def running_servers(
    directory: Path, port: int, num_servers: int, *, in_place: bool, num_clients: int = 1
) -> Iterator[None]:
    """The servers, with so many clients to come; with 0, until one of these ends them."""
    command = [sys.executable, "-m", "graphlearn_dist", "serve", "--data", str(directory), "--port", str(port)]
    command += ["--servers", str(num_servers), "--clients", str(num_clients)]
    environ = {**os.environ, "GLD_SHARE_PARTITIONS": str(int(in_place))}
    processes = [subprocess.Popen([*command, "--rank", str(rank)], env=environ) for rank in range(num_servers)]
    try:
        yield
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def part_of_epoch(loader: Any, args: argparse.Namespace, pids: list[int]) -> dict[str, float]:
    """Batches per CPU second and per second, from when as many batches are under way as will be at the end."""
    batches = iter(loader)
    for _ in range(args.skip):
        next(batches)
    cpu, started = cpu_seconds(pids), time.perf_counter()
    edges = sum(next(batches).edge_index.size(1) for _ in range(args.batches))
    wall, used = time.perf_counter() - started, cpu_seconds(pids) - cpu
    return {"per_cpu_s": args.batches / used, "per_s": args.batches / wall, "edges_per_batch": edges / args.batches}


class Measurement:
    """The in-process loader, and any other in turns with it."""

    def __init__(self, whole: DistDataset, args: argparse.Namespace) -> None:
        self.args = args
        self.whole = whole
        self.inputs = torch.arange(args.nodes)
        self.rows: dict[str, tuple[Runs, Runs]] = {}
        self._local = NeighborLoader(
            whole, args.fanout, self.inputs, batch_size=args.batch_size, shuffle=True, prefetch=0
        )

    def compare(self, name: str, options: Any) -> None:
        """The first round warms up and is not counted."""
        data = None if isinstance(options, RemoteDistSamplingWorkerOptions) else self.whole
        args = self.args
        local, others = self.rows.setdefault(name, ([], []))
        with DistNeighborLoader(
            data, args.fanout, self.inputs, args.batch_size, True, edge_dir="in", collect_features=True,
            worker_options=options,
        ) as loader:  # fmt: skip
            pids = process_tree(os.getpid())  # servers and sampling processes are its children
            for repeat in range(args.repeats + 1):
                own = part_of_epoch(self._local, args, [os.getpid()])
                other = part_of_epoch(loader, args, pids)
                if repeat:
                    local.append(own)
                    others.append(other)

    def compare_remote(self, name: str, directory: Path, num_servers: int, *, in_place: bool) -> None:
        """With servers that are started for it."""
        port = get_free_port()
        with running_servers(directory, port, num_servers, in_place=in_place):
            glt.distributed.init_client(num_servers, 1, 0, "127.0.0.1", port)
            servers = list(range(num_servers))
            options = RemoteDistSamplingWorkerOptions(server_rank=servers, buffer_size=self.args.buffer)
            self.compare(name, options)
            glt.distributed.shutdown_client()

    def ratio(self, name: str) -> float:
        """Batches per CPU second over those of the in-process loader in the same turns."""
        local, other = self.rows[name]
        return median([b["per_cpu_s"] / a["per_cpu_s"] for a, b in zip(local, other, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=40, help="batches of one measurement")
    parser.add_argument("--skip", type=int, default=20, help="batches before each, while the first are on their way")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--buffer", default="2GB", help="shared memory for batches")
    parser.add_argument("--modes", nargs="+", help="some of them only; all by default")
    parser.add_argument("--name", default="modes", help="of the file in results/")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the in-process loader would otherwise pay for OpenMP threads that wait for each other
    with tempfile.TemporaryDirectory() as root:
        directories = {parts: make_partitions(Path(root) / f"{parts}", parts, args) for parts in (1, 2)}
        whole = DistDataset()
        whole.load(directories[1], 0)
        measured = Measurement(whole, args)
        mp = MpDistSamplingWorkerOptions(num_workers=1, channel_size=args.buffer)
        modes: dict[str, Callable[[str], None]] = {
            "collocated": lambda name: measured.compare(name, CollocatedDistSamplingWorkerOptions(prefetch_size=0)),
            "multiprocessing": lambda name: measured.compare(name, mp),
            "remote": lambda name: measured.compare_remote(name, directories[1], 1, in_place=True),
            "remote-2-in-place": lambda name: measured.compare_remote(name, directories[2], 2, in_place=True),
            "remote-2-asked": lambda name: measured.compare_remote(name, directories[2], 2, in_place=False),
        }
        for name in args.modes or modes:
            modes[name](name)
            print(f"{name}: {measured.ratio(name):.2f} of the in-process loader's batches per CPU second", flush=True)
    report(measured, args)


def report(measured: Measurement, args: argparse.Namespace) -> None:
    """The table, and the file."""
    edges = next(iter(measured.rows.values()))[0][0]["edges_per_batch"]
    print_table(
        f"fan-out {args.fanout}, batch {args.batch_size}, {edges:,.0f} edges a batch, {args.features} float32 features",
        ["mode", "batches/CPU s", "in process, same turns", "ratio", "batches/s", "in process"],
        [
            [
                name,
                *(spread([run["per_cpu_s"] for run in runs]) for runs in (others, local)),
                f"{measured.ratio(name):.2f}",
                *(spread([run["per_s"] for run in runs]) for runs in (others, local)),
            ]
            for name, (local, others) in measured.rows.items()
        ],
    )
    ratios = {name: measured.ratio(name) for name in measured.rows}
    rows = {name: {"in process": local, "mode": others} for name, (local, others) in measured.rows.items()}
    print(write_json(args.name, {"arguments": vars(args), "ratio_per_cpu_second": ratios, "runs": rows}))


if __name__ == "__main__":
    main()
