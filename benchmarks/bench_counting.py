"""What counting costs, which is always on, and a trace: loaders in this process, of processes beside it, of a server.

Each way is a trainer in a process of its own, with what makes its batches: counted as it is, with all counting taken
out of all of its processes (clocks are still read), and traced. The ways of a mode take turns, one at a time, and read
the same batches. A process may be faster than another one that does the same, all its life (its memory lies otherwise):
so there are several rounds, with new processes each. Figures are medians of the rounds' ratios, which are medians of
their turns': counted over uncounted, and traced over counted, in batches per second and per CPU second of all processes
of a way.

    python benchmarks/bench_counting.py [--rounds 9] [--turns 6] [--modes local mp remote]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from bench_modes import make_partitions, part_of_epoch, running_servers
from harness import median, print_table, process_tree, small_batch_arguments, spread, write_json

import graphlearn_dist as glt
from graphlearn_dist.distributed import (
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.utils.common import get_free_port

MODES = ("local", "mp", "remote")
# Each way, and the one that it is compared with.
WAYS = {"uncounted": "uncounted", "counted": "uncounted", "traced": "counted"}
ORDERS = list(itertools.permutations(WAYS))
FIGURES = ("per_s", "per_cpu_s")
Round = dict[str, list[dict[str, float]]]  # turns by way
# Python runs this at the beginning of each process of a way: what counts is replaced where its module is loaded.
UNCOUNTED = """
import importlib.machinery, sys

def nothing(*args, **kwargs):
    return False

REPLACED = {
    "graphlearn_dist.telemetry.batch_counts": (
        "BatchCounts", "add add_sizes add_seeds add_send add_copy add_times follow_exchanges"
    ),
    "graphlearn_dist.telemetry.loader_stats": ("LoopTimes", "gave converted"),
    "graphlearn_dist.rpc.traffic": ("FunctionTimes", "add"),
}

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name in REPLACED else None
        if spec is not None:
            load = spec.loader.exec_module
            def load_without(module):
                load(module)
                owner, methods = REPLACED[name]
                for method in methods.split():
                    setattr(getattr(module, owner), method, nothing)
            spec.loader.exec_module = load_without
        return spec

sys.meta_path.insert(0, Finder)
"""


def environment(way: str, directory: Path) -> dict[str, str]:
    """Of all processes of a way."""
    if way == "traced":
        return {"GLD_TRACE": str(directory / "trace")}
    if way == "counted":
        return {}
    folder = directory / "uncounted"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(UNCOUNTED)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


@contextlib.contextmanager
def open_loader(mode: str, directory: Path, args: argparse.Namespace) -> Iterator[Any]:
    """The loader of a mode, and a server where there is one."""
    seeds = torch.arange(args.nodes)
    if mode == "remote":
        port = get_free_port()
        with running_servers(directory, port, 1, in_place=True):
            glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
            with DistNeighborLoader(
                None, args.fanout, seeds, args.batch_size, True, edge_dir="in", collect_features=True,
                worker_options=RemoteDistSamplingWorkerOptions(server_rank=0),
            ) as loader:  # fmt: skip
                yield loader
            glt.distributed.shutdown_client()
        return
    whole = DistDataset(edge_dir="in")
    whole.load(str(directory), 0)
    if mode == "local":
        yield NeighborLoader(whole, args.fanout, seeds, batch_size=args.batch_size, shuffle=True, prefetch=0)
        return
    with DistNeighborLoader(
        whole, args.fanout, seeds, args.batch_size, True, edge_dir="in", collect_features=True,
        worker_options=MpDistSamplingWorkerOptions(),
    ) as loader:  # fmt: skip
        yield loader


def train(mode: str, directory: Path, args: argparse.Namespace) -> None:
    """The trainer of a way: reads batches for each line of its standard input, and says how long that took."""
    with open_loader(mode, directory, args) as loader:
        part_of_epoch(loader, args, [os.getpid()])  # processes and threads start with the first batch
        pids = process_tree(os.getpid())
        for _ in sys.stdin:
            print(json.dumps(part_of_epoch(loader, args, pids)), flush=True)


def measure_round(mode: str, directory: Path, args: argparse.Namespace) -> Round:
    """The turns of each way of a mode, in one process each."""
    command = [sys.executable, __file__, *sys.argv[1:], "--directory", str(directory), "--trainer", mode]
    runs: Round = {way: [] for way in WAYS}
    with ExitStack() as stack:
        trainers = {}
        for way in WAYS:
            environ = {**os.environ, **environment(way, directory.parent)}
            trainers[way] = stack.enter_context(
                subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for turn in range(args.turns + 1):  # the first warms up
            # Whoever comes twice in a row finds its caches warm: each way comes as often behind each other one.
            for way in ORDERS[turn % len(ORDERS)]:
                trainer = trainers[way]
                assert trainer.stdin is not None
                assert trainer.stdout is not None
                trainer.stdin.write("go\n")
                trainer.stdin.flush()
                found = json.loads(trainer.stdout.readline())
                if turn:
                    runs[way].append(found)
    return runs


def ratios_of(rounds: list[Round]) -> dict[str, dict[str, list[float]]]:
    """Of each way but the first, by round the median of its turns over those of the way that it is compared with."""
    return {
        way: {
            figure: [
                median([own[figure] / one[figure] for own, one in zip(runs[way], runs[other], strict=True)])
                for runs in rounds
            ]
            for figure in FIGURES
        }
        for way, other in WAYS.items()
        if way != other
    }


def thousandths(ratios: list[float]) -> str:
    """Their median and spread."""
    return f"{median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def main() -> None:
    parser = small_batch_arguments(__doc__)
    parser.add_argument("--batches", type=int, default=200, help="of one turn")
    parser.add_argument("--skip", type=int, default=10, help="batches before each, while the first are on their way")
    parser.add_argument("--turns", type=int, default=6, help="of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--name", default="counting", help="of the file in results/")
    parser.add_argument("--trainer", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.trainer:
        train(args.trainer, args.directory, args)
        return
    with tempfile.TemporaryDirectory() as root:
        directory = make_partitions(Path(root) / "graph", 1, args)
        rounds: dict[str, list[Round]] = {mode: [] for mode in args.modes}
        for _ in range(args.rounds):
            for mode in args.modes:
                rounds[mode].append(measure_round(mode, directory, args))
    report(rounds, args)


def report(rounds: dict[str, list[Round]], args: argparse.Namespace) -> None:
    """The table, and the file."""
    ratios = {mode: ratios_of(of_mode) for mode, of_mode in rounds.items()}
    rows: list[list[Any]] = [
        [
            mode,
            way,
            *(spread([run[figure] for runs in of_mode for run in runs[way]]) for figure in FIGURES),
            *(thousandths(ratios[mode][way][figure]) if way in ratios[mode] else "" for figure in FIGURES),
        ]
        for mode, of_mode in rounds.items()
        for way in WAYS
    ]
    edges = next(iter(rounds.values()))[0]["counted"][0]["edges_per_batch"]
    print_table(
        f"{args.rounds} rounds of {args.turns} turns of {args.batches} batches of {edges:,.0f} edges, {args.features} "
        "float32 features",
        ["mode", "way", "batches/s", "batches/CPU s", "ratio", "per CPU s"],
        rows,
    )
    print(write_json(args.name, {"arguments": vars(args), "ratios": ratios, "rounds": rounds}))


if __name__ == "__main__":
    main()
