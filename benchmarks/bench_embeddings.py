"""Learned rows on servers: rows a second that trainers look up and change, beside DistDGL's ``DistEmbedding``.

Two hosts (namespaces where they may be made) with a server and a trainer each. In each step a trainer looks up the rows
of ids that it draws from all nodes, and all trainers change theirs together by Adam. Peers and this project take steps
in turns, on the same ids; while one does, the others wait.

    python benchmarks/bench_embeddings.py [--nodes 1000000] [--dim 64] [--rows 10000] [--peer-python PYTHON]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import cpu_seconds, median, print_table, spread, write_json
from host_jobs import Graphs, Job, Readers, open_hosts
from host_peers import ENVIRONMENT, PeerJob, find_peers

HOSTS = 2
WARM_STEPS = 3


def take_steps(job: Readers, args: argparse.Namespace) -> dict[str, float]:
    """One turn: rows that all trainers have looked up and changed, a second and a CPU second of all processes."""
    pids = job.pids()
    before = cpu_seconds(pids)
    seconds = max(reply["seconds"] for reply in job.ask(job.trainers, op="steps", count=args.steps))
    rows = 2 * len(job.trainers) * args.rows * args.steps
    return {"rows_per_s": rows / seconds, "rows_per_cpu_s": rows / (cpu_seconds(pids) - before)}


def measure(jobs: dict[str, Readers], args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """The turns of each."""
    for job in jobs.values():
        job.ask(job.trainers, op="open", rows=args.rows, dim=args.dim)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for turn in range(args.turns + 1):
        for name, job in jobs.items():
            figures = take_steps(job, args)
            if turn:  # the first one warms up
                turns[name].append(figures)
    return turns


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rows", type=int, default=10_000, help="ids of a trainer's step")
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--loopback", action="store_true", help="no namespaces, though they could be made")
    parser.add_argument("--peer-python", action="append", default=[], help="an interpreter of a peer; may be repeated")
    # What the hosts' programs want to know besides.
    parser.set_defaults(edges=1_000_000, features=1, rate=None, row_cache=None, workers=1, buffer=None)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # As peers have it: freed memory stays with the process.
    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name.startswith("MALLOC_")})
    with tempfile.TemporaryDirectory(prefix="gld-bench-") as temporary, ExitStack() as stack:
        root = Path(temporary)
        hosts = stack.enter_context(open_hosts(HOSTS, args))
        ours = Job(hosts, HOSTS, "one type", Graphs(root, args), root, args, num_others=0)
        jobs: dict[str, Readers] = {"graphlearn_dist": stack.enter_context(ours)}
        for peer in find_peers(args.peer_python, ["DistDGL"]):  # GLT has no rows that are learned
            jobs[peer.version] = stack.enter_context(PeerJob(peer, hosts, HOSTS, root, args))
        turns = measure(jobs, args)
    report(turns, args)


def report(turns: dict[str, list[dict[str, float]]], args: argparse.Namespace) -> None:
    """A table, and the file of results."""
    columns: dict[str, dict[str, list[float]]] = {
        name: {figure: [turn[figure] for turn in of_peer] for figure in of_peer[0]} for name, of_peer in turns.items()
    }
    ours = columns["graphlearn_dist"]
    rows: list[list[Any]] = [
        [
            name,
            spread([value / 1e6 for value in figures["rows_per_s"]]),
            spread([value / 1e6 for value in figures["rows_per_cpu_s"]]),
            f"{median(ours['rows_per_s']) / median(figures['rows_per_s']):.2f}",
            f"{median(ours['rows_per_cpu_s']) / median(figures['rows_per_cpu_s']):.2f}",
        ]
        for name, figures in columns.items()
    ]
    header = ["", "M rows/s pulled and pushed", "M rows a CPU second", "ours over it", "by CPU"]
    print_table(f"{args.nodes:,} rows x {args.dim}, {args.rows:,} ids a step and trainer", header, rows)
    settings = {name: getattr(args, name) for name in ("nodes", "dim", "rows", "steps", "turns")}
    print(write_json("embeddings", {**settings, "figures": columns}))


if __name__ == "__main__":
    main()
