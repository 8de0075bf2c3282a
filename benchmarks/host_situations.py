"""What bench_hosts.py shows beside its table: two hosts, the second's trainer reads, in turns with what disturbs it.

- ``busy``: the trainer's own interpreter runs a loop of Python all the time, beside another process that does.
- ``flood``: a client asks the server that answers the trainer's hops for small things, as fast as it can, beside two
  other processes that take as much of the machine.
- ``hops``: one server answers the hops of eight sampling workers: edges per CPU second of its process, beside the
  loader in one process.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import median, process_tree
from host_jobs import DEADLINE_S, Graphs, InProcess, Job, open_hosts

Found = dict[str, Any]
SMALL = {"fanout": [10, 5], "batch_size": 256}
LARGE = {"fanout": [15, 10, 5], "batch_size": 1024}


def measure_busy(root: Path, graphs: Graphs, args: argparse.Namespace) -> Found:
    """Batches a second alone, beside a busy process, and with a busy interpreter; the ratio of the last two."""
    with open_hosts(2, args) as hosts, Job(hosts, 2, "one type", graphs, root, args) as job:
        reader = job.trainers[1]
        job.ask([reader], op="open", features=True, **SMALL)
        with job.busy_process() as other:
            other.answer(DEADLINE_S, "start")
            turns: dict[str, list[float]] = {"alone": [], "beside a process": [], "in its interpreter": []}
            for _ in range(args.turns):
                turns["alone"].append(job.read(args.seconds, [reader])["per_s"])
                for name, one, begin, end in (
                    ("beside a process", other, "go", "pause"),
                    ("in its interpreter", reader, "busy", "calm"),
                ):
                    one.ask(DEADLINE_S, op=begin)
                    turns[name].append(job.read(args.seconds, [reader])["per_s"])
                    one.ask(DEADLINE_S, op=end)
    pairs = zip(turns["in its interpreter"], turns["beside a process"], strict=True)
    return {"batches_per_s": turns, "ratio": median([busy / beside for busy, beside in pairs])}


def measure_flood(root: Path, graphs: Graphs, args: argparse.Namespace) -> Found:
    """Batches a second alone, beside two busy processes, as whoever asks and whoever answers take a core each, and with
    the flood; the ratio of the last two, and what the flood gets."""
    with open_hosts(2, args) as hosts, Job(hosts, 2, "one type", graphs, root, args) as job:
        reader = job.trainers[1]
        job.ask([reader], op="open", features=True, **SMALL)
        alone, beside, flooded, requests = [], [], [], []
        with job.flooder() as other, job.busy_process() as first, job.busy_process() as second:
            for each in (other, first, second):
                each.answer(DEADLINE_S, "start")
            for _ in range(args.turns):
                alone.append(job.read(args.seconds, [reader])["per_s"])
                for each in (first, second):
                    each.ask(DEADLINE_S, op="go")
                beside.append(job.read(args.seconds, [reader])["per_s"])
                for each in (first, second):
                    each.ask(DEADLINE_S, op="pause")
                before = other.ask(DEADLINE_S, op="go")["requests"]
                turn = job.read(args.seconds, [reader])
                flooded.append(turn["per_s"])
                count = other.ask(DEADLINE_S, op="pause")["requests"] - before
                requests.append(count / (turn["batches"] / turn["per_s"]))
    ratio = median([b / a for a, b in zip(beside, flooded, strict=True)])
    rates = {"alone_per_s": alone, "beside_two_processes_per_s": beside, "flooded_per_s": flooded}
    return {**rates, "flood_requests_per_s": requests, "ratio": ratio}


def measure_hops(root: Path, graphs: Graphs, args: argparse.Namespace) -> Found:
    """Edges that server 0 sampled for the other's workers, per second of its CPU time."""
    args = copy.copy(args)
    args.workers = 8
    answered, own = [], []
    with InProcess("one type", graphs, root, args) as local:
        local.program.ask(DEADLINE_S, op="open", features=False, **LARGE)
        edges = local.program.ask(DEADLINE_S, op="size")["edges"]
        with open_hosts(2, args) as hosts, Job(hosts, 2, "one type", graphs, root, args) as job:
            reader = job.trainers[1]
            job.ask([reader], op="open", features=False, **LARGE)
            server = process_tree(job.servers[0].pid)
            for _ in range(args.turns):
                own.append(edges / local.read(args.seconds)["cpu_ms"])
                # Half of the nodes, and so of the edges, are server 0's.
                answered.append(edges / 2 / job.read(args.seconds, [reader], server)["cpu_ms"])
    ratio = median([a / b for a, b in zip(answered, own, strict=True)])
    return {"edges_per_cpu_ms": answered, "in_process_edges_per_cpu_ms": own, "ratio": ratio}


SITUATIONS: dict[str, tuple[str, Callable[[Path, Graphs, argparse.Namespace], Found]]] = {
    "busy": ("a busy interpreter leaves a trainer {:.2f} of the batches that a busy process leaves it", measure_busy),
    "flood": ("a flood leaves a trainer {:.2f} of the batches that two busy processes leave it", measure_flood),
    "hops": ("a server samples hops of 8 workers at {:.2f} of the edges per CPU second of one process", measure_hops),
}
