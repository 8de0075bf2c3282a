"""What it costs that a graph lies on several hosts, a server and a trainer on each, beside the in-process loader.

Hosts are network namespaces with devices on one bridge (``--rate 1gbit`` limits each), with processes, memory file
systems and boot ids of their own, so that nothing is shared but the machine. Who may not make any gets processes that
talk over loopback TCP. A trainer reads from its host's server, over all nodes of the graph, in batches of its own. In
other modes than ``remote`` there are no servers: trainers hold the partitions, and ask each other.

CPU milliseconds are those of all processes of all hosts (server, sampling workers, trainer; user and system, the
kernel's work for the network among it) for each batch that any trainer got, the factor is that over the in-process
loader's in the same turn, bytes are what the hosts' devices sent, and the floor what each batch by itself would need:
rows of other partitions as they are stored, and 4 bytes for each edge that was sampled there. Batches that are made
together stay below it, as they ask for a row once. "Wire" is what a batch's bytes, in as
many answers, cost two bare sockets in the same turn, from one small block of memory to another, and "least" the factor
that would be left if nothing else cost anything.

    python benchmarks/bench_hosts.py [--hosts 1 2 4 8] [--modes remote mp collocated] [--rate 1gbit]
        [--row-cache 0.1] [--quick]
        [--peer-python /path/to/dgl-env/bin/python] [--peer-python /path/to/glt-env/bin/python]
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import median, print_table, spread, write_json
from host_jobs import DEADLINE_S, Graphs, InProcess, Job, Namespaces, Wire, open_hosts, why_no_hosts
from host_peers import PeerJob, find_peers
from host_situations import SITUATIONS

WORKS = {"large": ([15, 10, 5], 1024), "small": ([10, 5], 256)}
GRAPHS = ("one type", "typed", "communities", "communities, near")  # the last two are one graph
MODES = ("remote", "mp", "collocated")
Turns = list[dict[str, float]]


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    hosts: int
    graph: str
    work: str
    features: bool
    mode: str

    @property
    def loader(self) -> dict[str, Any]:
        """What loaders are opened with."""
        fanout, batch_size = WORKS[self.work]
        return {"fanout": fanout, "batch_size": batch_size, "features": self.features}

    @property
    def label(self) -> str:
        """What the table calls it."""
        fanout, batch_size = WORKS[self.work]
        mode = "" if self.mode == "remote" else f", {self.mode}"
        return f"{self.hosts}, {self.graph}{mode}, {fanout} x {batch_size}{', features' if self.features else ''}"


def measure(
    case: Case, job: Job, local: InProcess, wire: Wire, peers: Sequence[PeerJob], args: argparse.Namespace
) -> dict[str, Any]:
    """The turns of a case."""
    local.program.ask(DEADLINE_S, op="open", **case.loader)
    size = local.program.ask(DEADLINE_S, op="size")
    job.forget_peaks()
    job.ask(job.trainers, op="open", **case.loader)
    for peer in peers:
        peer.ask(peer.trainers, op="open", **case.loader)
    job.wait_for_copies()
    copies = job.copies()
    own: Turns = []
    hosts: Turns = []
    bare: list[float] = []
    theirs: dict[str, Turns] = {peer.peer.version: [] for peer in peers}
    for _ in range(args.turns):
        own.append(local.read(args.seconds))
        hosts.append(job.read(args.seconds))
        bare.append(wire.cpu_ms(hosts[-1]["bytes"], hosts[-1]["requests"]))
        for peer in peers:
            theirs[peer.peer.version].append(peer.read(args.seconds))
    peaks = job.peaks()
    used = {key: value - copies[key] if key in ("hits", "misses") else value for key, value in job.copies().items()}
    job.ask([*job.trainers, local.program, *(trainer for peer in peers for trainer in peer.trainers)], op="close")
    row_bytes = 4 * args.features if case.features else 0
    floor = (case.hosts - 1) / case.hosts * (size["nodes"] * row_bytes + size["edges"] * 4)
    factor = median([b["cpu_ms"] / a["cpu_ms"] for a, b in zip(own, hosts, strict=True)])
    least = median([(a["cpu_ms"] + b) / a["cpu_ms"] for a, b in zip(own, bare, strict=True)])
    row = {"case": asdict(case), "factor": factor, "least_factor": least, "floor_bytes": floor, "copies": used}
    return {**row, **size, **peaks, "in_process": own, "hosts": hosts, "wire_ms": bare, "peers": theirs}


def main() -> None:
    args = parse()
    print(host_kind(args), flush=True)
    rows = []
    peers = find_peers(args.peer_python)
    with tempfile.TemporaryDirectory(prefix="bench-hosts-") as folder:
        root = Path(folder)
        graphs = Graphs(args.dir or root, args)
        for graph, count, mode in itertools.product(args.graphs, args.hosts, args.modes):
            with ExitStack() as stack:
                hosts = stack.enter_context(open_hosts(count, args))
                local = stack.enter_context(InProcess(graph, graphs, root, args))
                job = stack.enter_context(Job(hosts, count, graph, graphs, root, args, mode=mode))
                wire = stack.enter_context(Wire(hosts, count))
                is_peers = graph == "one type" and mode == "remote" and isinstance(hosts, Namespaces)
                there = peers if is_peers else []
                others = [stack.enter_context(PeerJob(peer, hosts, count, root, args)) for peer in there]
                for work, features in itertools.product(args.works, args.rows):
                    case = Case(count, graph, work, features == "features", mode)
                    rows.append(measure(case, job, local, wire, others, args))
                    print(f"{case.label}: {rows[-1]['factor']:.2f} times the CPU of the loader in process", flush=True)
        situations = {}
        for name in args.situations:
            sentence, measure_it = SITUATIONS[name]
            situations[name] = measure_it(root, graphs, args)
            print(sentence.format(situations[name]["ratio"]), flush=True)
    report(rows, situations, args)


def host_kind(args: argparse.Namespace) -> str:
    """What hosts are here."""
    if args.loopback:
        return "hosts are processes that talk over loopback, as asked for"
    if why := why_no_hosts("tc"):
        return f"hosts are processes that talk over loopback, which has no limited rate: {why}"
    return f"hosts are namespaces, their links {'limited to ' + args.rate if args.rate else 'without a limit'}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS[:2]))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES[:1], help="who makes batches")
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS), help="batches")
    parser.add_argument("--rows", nargs="+", choices=["bare", "features"], default=["bare", "features"])
    parser.add_argument("--rate", help="of every link in either direction, such as 1gbit; no limit by default")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, though they could be made")
    parser.add_argument("--peer-python", action="append", default=[], help="an interpreter with peers; repeat")
    parser.add_argument("--workers", type=int, default=1, help="sampling processes of each loader")
    parser.add_argument("--buffer", default="512MB", help="shared memory for batches of each loader")
    parser.add_argument("--recent-rows", help="memory of each loader for rows that were answered lately; 0 keeps none")
    parser.add_argument("--row-cache", help="of who holds partitions: a share of the nodes, or bytes")
    parser.add_argument(
        "--situations", nargs="*", choices=list(SITUATIONS), default=list(SITUATIONS), help="see host_situations.py"
    )
    parser.add_argument("--dir", type=Path, help="where graphs are kept for the next run with the same sizes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="that are measured of a turn")
    parser.add_argument("--quick", action="store_true", help="two hosts, one type, two short turns")
    parser.add_argument("--name", default="hosts", help="of the file in results/")
    args = parser.parse_args()
    if args.quick:
        args.hosts, args.graphs, args.turns, args.seconds, args.situations = [2], ["one type"], 2, 2.0, []
    return args


def report_peers(rows: list[dict[str, Any]]) -> None:
    """The peers' table, if there are any."""

    def cells(row: dict[str, Any], version: str) -> list[str]:
        theirs, ours = row["peers"][version], row["hosts"]
        return [
            f"{version}: {Case(**row['case']).label}",
            spread([turn["per_s"] for turn in theirs]),
            spread([turn["cpu_ms"] for turn in theirs]),
            f"{median([turn['bytes'] for turn in theirs]) / 1e6:.3g}",
            f"{median([a['per_s'] / b['per_s'] for a, b in zip(ours, theirs, strict=True)]):.2f}",
        ]

    lines = [cells(row, version) for row in rows for version in row["peers"]]
    if lines:
        print_table(
            "peers, in the same turns",
            ["hosts", "batches/s, all", "CPU ms a batch", "MB a batch", "ours / theirs"],
            lines,
        )


def report(rows: list[dict[str, Any]], situations: dict[str, Any], args: argparse.Namespace) -> None:
    """The table, and the file."""

    def cells(row: dict[str, Any]) -> list[str]:
        medians = {key: median([turn[key] for turn in row["hosts"]]) for key in ("bytes", "requests")}
        return [
            Case(**row["case"]).label,
            spread([turn["per_s"] for turn in row["hosts"]]),
            spread([turn["cpu_ms"] for turn in row["hosts"]]),
            spread([turn["cpu_ms"] for turn in row["in_process"]]),
            spread(row["wire_ms"]),
            f"{row['factor']:.2f}",
            f"{row['least_factor']:.2f}",
            f"{medians['bytes'] / 1e6:.3g}",
            f"{row['floor_bytes'] / 1e6:.3g}",
            f"{medians['requests']:.3g}",
            f"{row['copies']['hits'] / max(1, row['copies']['hits'] + row['copies']['misses']):.0%}",
            f"{row['server_mib']:.0f}",
            f"{row['worker_mib']:.0f}",
        ]

    if rows:
        print_table(
            f"{args.nodes:,} nodes, {args.edges:,} edges, {args.features} float32 features; {host_kind(args)}",
            ["hosts", "batches/s, all", "CPU ms a batch", "in process", "wire", "factor", "least", "MB a batch",
             "floor", "requests", "copied", "server MiB", "worker MiB"],
            [cells(row) for row in rows],
        )  # fmt: skip
        report_peers(rows)
    arguments = {key: value for key, value in vars(args).items() if key != "dir"}
    found = {"arguments": arguments, "hosts": host_kind(args), "rows": rows, "situations": situations}
    print(write_json(args.name, found))


if __name__ == "__main__":
    main()
