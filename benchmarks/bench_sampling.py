"""This project and every peer that can be imported: the same graphs, the same seeds, in turns, in one run.

    python benchmarks/bench_sampling.py --peer-python /path/to/dgl-env/bin/python --peer-python /path/to/glt-env/...

Rows: sampling with relabeling, sampling with features, the library's own loader; a typed graph; edge weights; threads
1 to n; int32 and int64 ids. Beside each figure stand the edges and nodes of a batch, and whether a peer's work differs
in kind; rates are per sampled edge. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ceilings
from graphs import GraphFiles, PowerLaw, default_cache, make_graph, open_graph, read_graph
from harness import median, print_table, spread, write_json
from peers.base import FEATURES, LABOR, LOADER, SAMPLE, TEMPORAL, WEIGHTED, Setting
from peers.driver import ENTRIES, OURS, Found, Worker, WorkerLost, build, find_peers, run
from report import summarize, write_plot

HEADLINE = PowerLaw(2_400_000, 124_000_000)
TYPED_EDGES = ("paper__cites__paper", "author__writes__paper", "paper__written_by__author")
WARM_UP_BATCHES = 4
MODES = (SAMPLE, FEATURES, LOADER)
TYPED = "typed"
ALSO = (WEIGHTED, LABOR, TEMPORAL, TYPED)


@dataclass(frozen=True)
class Group:
    """Rows that are measured in turns.

    Attributes:
        title: of their table.
        setting: what every peer loads.
        modes: what is run of it.
    """

    title: str
    setting: Setting
    modes: tuple[str, ...]


def plan_groups(args: argparse.Namespace) -> list[Group]:
    """What the command line asks for, with the graphs made."""
    files = open_or_make(args)
    fanout, size = args.fanout, args.batch_size
    plain = Setting({"": str(files.directory)}, fanout, size, 1)
    features = 0 if args.modes == [SAMPLE] else args.features
    if features:
        files.with_features(features)
    groups = []
    for threads in args.threads:
        for ids in args.ids:
            setting = replace(plain, threads=threads, ids=ids, features=features)
            title = f"{threads} thread{'s' * (threads > 1)}, {ids}"
            groups.append(Group(title, setting, tuple(args.modes)))
    for draw in (WEIGHTED, LABOR, TEMPORAL):
        if draw in args.also:
            files.with_weights()
            files.with_times()
            groups.append(Group(f"1 thread, int32, {draw}", replace(plain, draw=draw, ids="int32"), (SAMPLE,)))
    if TYPED in args.also:
        typed = replace(plain, directories=typed_graphs(args), fanout=args.typed_fanout)
        groups += [Group(f"1 thread, {ids}, {TYPED}", replace(typed, ids=ids), (SAMPLE,)) for ids in args.ids]
    return groups


def open_or_make(args: argparse.Namespace) -> GraphFiles:
    """The graph of the homogeneous rows."""
    if args.data:
        return read_graph(args.data, args.cache)
    return make_graph(PowerLaw(args.nodes, args.edges), args.cache)


def typed_graphs(args: argparse.Namespace) -> dict[str, str]:
    """Three edge types between two node types, each a generated graph of its own."""
    specs = [PowerLaw(args.typed_nodes, args.typed_edges, seed=number) for number in range(len(TYPED_EDGES))]
    return {name: str(make_graph(spec, args.cache).directory) for name, spec in zip(TYPED_EDGES, specs, strict=True)}


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(group: Group, peers: Sequence[Found], args: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows of a group. What a peer cannot do becomes a row that says so.

    As many peers as fit in memory take turns; with more, the others follow, with this project among them each time.
    """
    answers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    problems: dict[tuple[str, str], dict[str, Any]] = {}
    for some in fitting(peers, needed_bytes(group.setting), available_bytes() * args.memory_share):
        measure_together(group, some, args, answers, problems)
    rows = []
    for mode in group.modes:
        for peer in peers:
            key = mode, peer.entry.label
            rows.append(row_of(group, mode, peer, answers.get(key, []), problems.get(key)))
    return rows


def available_bytes() -> int:
    """Memory that processes can still take, by the kernel's estimate."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def needed_bytes(setting: Setting) -> float:
    """What one peer holds, with half as much again for edge ids, batches and what the library needs itself."""
    graphs = [open_graph(Path(directory)) for directory in setting.directories.values()]
    width = (4 if setting.ids == "int32" else 8) + {WEIGHTED: 4, TEMPORAL: 8}.get(setting.draw, 0)
    return 1.5 * sum(graph.edges * width + graph.nodes * (8 + 4 * setting.features) for graph in graphs) + (1 << 29)


def fitting(peers: Sequence[Found], each: float, budget: float) -> list[list[Found]]:
    """Peers in lists of which each fits the budget, at least two of them if there are as many, the first in all."""
    first, others = peers[0], list(peers[1:])
    size = max(int(budget / each) - 1, 1)
    return [[first, *others[start : start + size]] for start in range(0, max(len(others), 1), size)]


def measure_together(
    group: Group,
    peers: Sequence[Found],
    args: argparse.Namespace,
    answers: dict[tuple[str, str], list[dict[str, Any]]],
    problems: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Has peers load the graph, then run in turns; adds to what is known by (mode, label)."""
    with ExitStack() as stack:
        running: dict[str, Worker] = {}
        for peer in peers:
            worker = stack.enter_context(Worker(peer.entry, peer.python, group.setting.threads))
            reply = ask(build, worker, group.setting)
            if "build_seconds" in reply:
                running[peer.entry.label] = worker
            else:
                problems.update({(mode, peer.entry.label): reply for mode in group.modes})
        for mode in group.modes:
            for label, reply in in_turns(running, mode, args):
                if "seconds" in reply:
                    answers.setdefault((mode, label), []).append(reply)
                else:
                    problems[mode, label] = reply


def in_turns(running: dict[str, Worker], mode: str, args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """(label, answer) of every turn that counts, and of every failure; a peer that failed gets no more turns.

    Round 0 warms up and finds for each peer how many of a turn's batches it makes in the time of a turn.
    """
    counts = dict.fromkeys(running, min(args.batches, WARM_UP_BATCHES))
    for number in range(args.repeats + 1):
        for label, count in list(counts.items()):
            reply = ask(run, running[label], mode, number * args.batches, count)
            if "seconds" not in reply:
                del counts[label]
                if "lost" in reply:
                    del running[label]
                yield label, reply
            elif number:
                yield label, reply
            else:
                affordable = int(count * args.turn_seconds / reply["seconds"])
                counts[label] = min(max(affordable, 2), args.batches)


def ask(call: Any, *arguments: Any) -> dict[str, Any]:
    """A worker's answer; that it was lost is one too."""
    try:
        reply: dict[str, Any] = call(*arguments)
    except WorkerLost as error:
        return {"lost": str(error)}
    return reply


def row_of(
    group: Group, mode: str, peer: Found, answers: Sequence[dict[str, Any]], problem: dict[str, Any] | None
) -> dict[str, Any]:
    """One line of the results: medians need ``answers``, else ``problem`` says why there are none."""
    row = {
        "group": group.title,
        "mode": mode,
        "threads": group.setting.threads,
        "ids": group.setting.ids,
        "peer": peer.entry.label,
        "replace": peer.replace,
        "kind": peer.kind,
    }
    if problem is not None or not answers:
        problem = problem or {"lost": "no answer"}
        return {**row, "problem": next(f"{key}: {problem[key]}" for key in problem)}
    batches = sum(answer["batches"] for answer in answers)
    return {
        **row,
        "kind": answers[0]["kind"],
        "edges_per_batch": sum(answer["edges"] for answer in answers) / batches,
        "nodes_per_batch": sum(answer["nodes"] for answer in answers) / batches,
        "medges_per_s": [answer["edges"] / answer["seconds"] / 1e6 for answer in answers],
        "medges_per_cpu_s": [answer["edges"] / answer["cpu_seconds"] / 1e6 for answer in answers],
        "batches_per_s": [answer["batches"] / answer["seconds"] for answer in answers],
    }


# --- telling -----------------------------------------------------------------------------------------------------


def print_group(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The table of a group: one mode after the other, as measured."""
    header = ["what", "library", "M edges/s", "M edges/CPU s", "batches/s", "edges", "nodes", "draws", "work"]
    lines = []
    for row in sorted(rows, key=lambda row: "problem" in row):
        if "problem" in row:
            lines.append([row["mode"], row["peer"], row["problem"][:60]])
            continue
        figures = [spread(row["medges_per_s"]), f"{median(row['medges_per_cpu_s']):.3g}", spread(row["batches_per_s"])]
        counts = [f"{row['edges_per_batch']:,.0f}", f"{row['nodes_per_batch']:,.0f}"]
        replaced = "with repl." if row["replace"] else "w/o repl."
        lines.append([row["mode"], row["peer"], *figures, *counts, replaced, row["kind"]])
    print_table(title, header, [line + [""] * (len(header) - len(line)) for line in lines])


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", action="append", default=[], help="an interpreter with more peers; repeat")
    parser.add_argument("--peers", nargs="+", help="labels or modules to measure besides this project; default all")
    parser.add_argument("--nodes", type=int, default=HEADLINE.nodes)
    parser.add_argument("--edges", type=int, default=HEADLINE.edges)
    parser.add_argument("--features", type=int, default=100, help="float32 columns")
    parser.add_argument("--data", type=Path, help=".npz with edge_index, or indptr and indices, instead")
    parser.add_argument("--typed-nodes", type=int, default=1_000_000, help="of each of two types")
    parser.add_argument("--typed-edges", type=int, default=20_000_000, help="of each of three types")
    parser.add_argument("--typed-fanout", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where generated graphs are kept")
    parser.add_argument("--fanout", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--threads", type=int, nargs="+", help="default 1 to the cores of this machine, doubling")
    parser.add_argument("--ids", nargs="+", choices=("int32", "int64"), default=["int32", "int64"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--also", nargs="*", choices=ALSO, default=list(ALSO))
    parser.add_argument("--batches", type=int, default=10, help="of one turn")
    parser.add_argument("--turn-seconds", type=float, default=3.0, help="a slower peer makes fewer batches, at least 2")
    parser.add_argument("--memory-share", type=float, default=0.6, help="of the available memory for peers")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count")
    parser.add_argument("--name", default="sampling", help="of the files in results/")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, this project only, nothing written")
    args = parser.parse_args(arguments)
    if args.threads is None:
        cores = len(os.sched_getaffinity(0))
        args.threads = sorted({min(1 << power, cores) for power in range(cores.bit_length() + 1)})
    if args.smoke:
        small = {"nodes": 2000, "edges": 40_000, "typed_nodes": 500, "typed_edges": 8000, "features": 8}
        vars(args).update(small, batch_size=64, batches=2, repeats=1, threads=[1], peers=["ours"])
    return args


def wanted(args: argparse.Namespace) -> list[Any]:
    """The entries that the command line names; this project is always one."""
    return [
        entry
        for entry in ENTRIES
        if entry is OURS or args.peers is None or entry.label in args.peers or entry.module in args.peers
    ]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(arguments)
    groups = plan_groups(args)
    peers, missing = find_peers(wanted(args), [sys.executable, *args.peer_python])
    for peer in peers:
        print(f"{peer.entry.label}: {peer.version}")
    for label, reason in missing.items():
        print(f"{label}: not importable ({reason})")
    limits = ceilings.measure(quick=args.smoke)
    ceilings.print_limits(limits)
    rows = []
    for group in groups:
        rows += (measured := measure(group, peers, args))
        print_group(f"{group.title}; fan-out {group.setting.fanout}, batch {group.setting.batch_size}", measured)
    content = {
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()},
        "graphs": [asdict(group)["setting"]["directories"] for group in groups][:1],
        "versions": {peer.entry.label: peer.version for peer in peers},
        "not_importable": missing,
        "ceilings": limits,
        "rows": rows,
        "summary": summarize(rows),
    }
    for line in content["summary"]:
        print(line["text"])
    if not args.smoke:
        path = write_json(args.name, content)
        print(path)
        print(write_plot(path.with_suffix(".svg"), rows, limits))
    return content


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a long run is watched
    main()
