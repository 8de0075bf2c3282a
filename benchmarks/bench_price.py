"""What safety costs a remote loader: heartbeats, credits and the token, each of which can be left out; TLS; a trace.

Each way is a trainer and a server in processes of their own; all of them run at the same time, and read the same
batches in turns, one at a time. Figures are medians of the turns' ratios to the way without, in batches per second and
per CPU second of trainer, server and sampling worker. "None" has heartbeats and credits off and no token, over a unix
socket; the ways over TCP are those between hosts, with all that is safe.

    python benchmarks/bench_price.py [--turns 15] [--ways none safe]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench_modes import make_partitions, part_of_epoch, running_servers
from bench_rpc import certificates
from harness import median, print_table, process_tree, small_batch_arguments, spread, write_json

import graphlearn_dist as glt
from graphlearn_dist.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions
from graphlearn_dist.rpc import endpoint
from graphlearn_dist.rpc.peers import links
from graphlearn_dist.utils.common import get_free_port

NEVER_S = "1e6"
FIGURES = ("per_s", "per_cpu_s")
# What each way is compared with.
WAYS = {
    "none": "none",
    "safe": "none",
    "traced": "safe",
    "tcp, python": "tcp, python",
    "tcp, native": "tcp, python",
    "tcp, TLS": "tcp, python",
}


def environment(way: str, directory: Path) -> dict[str, str]:
    """Of the trainer and the server of a way."""
    environ = {"GLD_RPC_ENGINE": "native" if way in ("none", "safe", "traced", "tcp, native") else "python"}
    if way == "none":
        return {**environ, "GLD_HEARTBEAT_TIMEOUT": NEVER_S}
    if way == "tcp, TLS":
        folder = certificates()
        environ |= {"GLD_TLS_AUTHORITY": f"{folder}/authority.pem"}
        environ |= {f"GLD_TLS_{what}": f"{folder}/own.pem" for what in ("CERTIFICATE", "KEY")}
    if way == "traced":
        environ["GLD_TRACE"] = str(directory / "trace")
    return {**environ, "GLD_TOKEN": secrets.token_hex(32)}


def train(way: str, directory: Path, args: argparse.Namespace) -> None:
    """The trainer of a way: reads batches for each line of its standard input, and says how long that took."""
    if way.startswith("tcp"):
        for module in (endpoint, links):
            module.boot_id = lambda: "another host's"  # type: ignore[attr-defined]
    port = get_free_port()
    with running_servers(directory, port, 1, in_place=True):
        glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
        with DistNeighborLoader(
            None, args.fanout, torch.arange(args.nodes), args.batch_size, True, edge_dir="in", collect_features=True,
            worker_options=RemoteDistSamplingWorkerOptions(server_rank=0),
        ) as loader:  # fmt: skip
            if way == "none":
                loader._producer._channel._credit_bytes = None  # type: ignore[attr-defined]  # no setting does that
            pids = process_tree(os.getpid())
            for _ in sys.stdin:
                print(json.dumps(part_of_epoch(loader, args, pids)), flush=True)
        glt.distributed.shutdown_client()


def measure(ways: list[str], directory: Path, args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The turns of each way; one round more than asked for, whose first warms up and is not counted."""
    command = [sys.executable, __file__, *sys.argv[1:], "--directory", str(directory), "--trainer"]
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with ExitStack() as stack:
        trainers = {}
        for way in ways:
            environ = {**os.environ, **environment(way, directory)}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            trainers[way] = stack.enter_context(subprocess.Popen([*command, way], env=environ, **pipes))  # type: ignore[call-overload]
        for turn in range(args.turns + 1):
            for way in ways if turn % 2 else reversed(ways):
                trainers[way].stdin.write("go\n")
                trainers[way].stdin.flush()
                found = json.loads(trainers[way].stdout.readline())
                if turn:
                    runs[way].append(found)
    return runs


def parse() -> argparse.Namespace:
    """The command line."""
    parser = small_batch_arguments(__doc__)
    parser.add_argument("--batches", type=int, default=200, help="batches of one turn")
    parser.add_argument("--skip", type=int, default=10, help="batches before each, while the first are on their way")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--name", default="price", help="of the file in results/")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    if args.trainer:
        train(args.trainer, args.directory, args)
        return
    with tempfile.TemporaryDirectory() as root:
        runs = measure(args.ways, make_partitions(Path(root) / "graph", 1, args), args)
    report(runs, args)


def report(runs: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> None:
    """The table, and the file."""
    ratios: dict[str, dict[str, float]] = {}
    for way in runs:
        if WAYS[way] in runs:
            pairs = list(zip(runs[way], runs[WAYS[way]], strict=True))
            ratios[way] = {figure: median([own[figure] / other[figure] for own, other in pairs]) for figure in FIGURES}
    rows: list[list[Any]] = [
        [
            way,
            *(spread([run[figure] for run in some]) for figure in FIGURES),
            *(f"{ratios[way][figure]:.3f}" if way in ratios else "" for figure in FIGURES),
        ]
        for way, some in runs.items()
    ]
    edges = next(iter(runs.values()))[0]["edges_per_batch"]
    print_table(
        f"{args.turns} turns of {args.batches} batches of {edges:,.0f} edges, {args.features} float32 features",
        ["way", "batches/s", "batches/CPU s", "ratio", "per CPU s"],
        rows,
    )
    print(write_json(args.name, {"arguments": vars(args), "ratios": ratios, "runs": runs}))


if __name__ == "__main__":
    main()
