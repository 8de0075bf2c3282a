"""What other clients of a server cost one that reads from it: many join, take some batches and leave meanwhile.

One server, one client that reads all the time, in turns alone and with visitors: clients in processes of their own that
open a loader, take some batches, and leave; by SIGKILL in the middle of reading, by reading no further for a while, or
as one should. The first client's fair share is 1 / (1 + visitors that read), over time, or with those that join counted
too; who does not read is meant to cost nothing. What the server uses (memory, shared memory, processes, descriptors,
threads) is counted before the visitors come and after the last has gone.

    python benchmarks/bench_sessions.py [--visits 50] [--at-once 4]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch_geometric  # noqa: F401  which a visitor's first batch would import
from bench_modes import make_partitions, running_servers
from harness import median, print_table, process_tree, small_batch_arguments, write_json

import graphlearn_dist as glt
from graphlearn_dist.distributed import DistNeighborLoader, DistServer, RemoteDistSamplingWorkerOptions, request_server
from graphlearn_dist.utils.common import get_free_port

KINDS = ("leaves", "killed", "leaves", "stops", "killed")  # of visitors, by their numbers in turn
DEADLINE_S = 60.0
MIB = 1 << 20


# --- clients -----------------------------------------------------------------------------------------------------


def open_loader(args: argparse.Namespace) -> DistNeighborLoader:
    """A loader over the one server."""
    return DistNeighborLoader(
        None, args.fanout, torch.arange(args.nodes), args.batch_size, True, edge_dir="in", collect_features=True,
        worker_options=RemoteDistSamplingWorkerOptions(server_rank=0),
    )  # fmt: skip


def visit(parent: Connection, port: int, rank: int, kind: str, args: argparse.Namespace) -> None:
    """The process of a visitor; says when it has its first batch, and when it has taken enough."""
    torch.set_num_threads(1)
    glt.distributed.init_client(1, 2 + args.visits, rank, "127.0.0.1", port, is_dynamic=True)
    with open_loader(args) as loader:
        batches = endless(loader)
        next(batches)
        parent.send(time.monotonic())
        for _ in range(args.visit_batches):
            next(batches)
        parent.send(time.monotonic())
        if kind == "killed":
            while True:
                next(batches)
        if kind == "stops":
            parent.poll(args.stop_seconds)
    glt.distributed.shutdown_client()


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


@dataclass(frozen=True)
class Visit:
    """One visitor's stay: its process began, had its first batch, read no more, was gone; seconds of one clock."""

    kind: str
    began: float
    reading: float
    stopped: float
    gone: float


class Visitors:
    """Runs visitors, so many at a time.

    Args:
        port: of the registry.
        args: of the benchmark.
    """

    def __init__(self, port: int, args: argparse.Namespace) -> None:
        self._port = port
        self._args = args
        self._context = multiprocessing.get_context("forkserver")
        # Imports are no visitor's work. The fork server has no other way to know where this module is; see its source.
        os.environ["PYTHONPATH"] = os.pathsep.join([path for path in sys.path if path])
        self._context.set_forkserver_preload(["bench_sessions"])
        self._ranks = itertools.count(1)
        self._pool = ThreadPoolExecutor(args.at_once)

    def begin(self, count: int) -> list[Future[Visit]]:
        """So many come and go from now on."""
        return [self._pool.submit(self._run, next(self._ranks)) for _ in range(count)]

    def _run(self, rank: int) -> Visit:
        kind = KINDS[rank % len(KINDS)]
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=visit, args=(theirs, self._port, rank, kind, self._args))
        began = time.monotonic()
        process.start()
        try:
            theirs.close()
            reading, stopped = receive(ours), receive(ours)
            if kind == "killed":
                process.kill()
                stopped = time.monotonic()
            process.join(DEADLINE_S)
        finally:
            process.kill()
            process.join()
        if kind != "killed" and process.exitcode != 0:
            raise SystemExit(f"visitor {rank} ended with exit code {process.exitcode}")
        return Visit(kind, began, reading, stopped, time.monotonic())


def receive(connection: Connection) -> float:
    """A visitor's next time, which has to come."""
    if not connection.poll(DEADLINE_S):
        raise SystemExit(f"a visitor said nothing within {DEADLINE_S:g} s")
    return float(connection.recv())


def fair_share(others: list[tuple[float, float]], turn: Turn) -> float:
    """The mean over a turn of 1 / (1 + others), of whom each was there from one time to another."""
    changes = sorted([(begin, 1) for begin, _ in others] + [(end, -1) for _, end in others])
    times = [turn.begin, *(min(max(at, turn.begin), turn.end) for at, _ in changes), turn.end]
    counts = itertools.accumulate((change for _, change in changes), initial=0)
    shares = ((b - a) / (1 + count) for (a, b), count in zip(itertools.pairwise(times), counts, strict=True))
    return sum(shares) / (turn.end - turn.begin)


# --- what a server uses ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """What a server and its sampling workers use; their private memory and the shared memory they made, in MiB."""

    processes: int
    private_mib: float
    server_private_mib: float
    shared_mib: float
    server_descriptors: int
    server_threads: int

    @classmethod
    def of(cls, server: int) -> Usage:
        """It, now."""
        pids = process_tree(server)
        private = [private_bytes(pid) / MIB for pid in pids]
        descriptors, threads = (len(os.listdir(f"/proc/{server}/{what}")) for what in ("fd", "task"))
        return cls(len(pids), sum(private), private[0], shared_bytes(pids) / MIB, descriptors, threads)


def private_bytes(pid: int) -> int:
    """Memory that is the process's own, and not a file's or shared."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def shared_bytes(pids: list[int]) -> int:
    """Anonymous files of these processes, each once."""
    taken = {}
    for entry in itertools.chain.from_iterable(Path(f"/proc/{pid}/fd").iterdir() for pid in pids):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(entry).startswith("/memfd:"):
                status = entry.stat()
                taken[status.st_dev, status.st_ino] = 512 * status.st_blocks
    return sum(taken.values())


# --- the client that stays ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """Part of the first client's reading: batches per second, and how long it waited for one, in milliseconds."""

    batches_per_s: float
    wait_p50_ms: float
    wait_p99_ms: float
    begin: float
    end: float


def read_while(batches: Iterator[Any], goes_on: Callable[[], bool]) -> Turn:
    """Takes batches as fast as they come."""
    times = [time.monotonic()]
    while goes_on():
        next(batches)
        times.append(time.monotonic())
    waits = sorted(1000 * (b - a) for a, b in itertools.pairwise(times))
    at = lambda share: waits[int(share * (len(waits) - 1))]  # noqa: E731
    return Turn(len(waits) / (times[-1] - times[0]), at(0.5), at(0.99), times[0], times[-1])


def measure(server: int, port: int, args: argparse.Namespace) -> dict[str, Any]:
    """Turns alone and with visitors, the first and the last of them alone."""
    visitors = Visitors(port, args)
    with open_loader(args) as loader:
        batches = endless(loader)
        first = visitors.begin(1)  # warms everything up, as does reading meanwhile
        read_while(batches, partial(any_is_left, first))
        read_until_settled(batches, server, 3)
        before = Usage.of(server)
        alone, crowded, visits = [read_while(batches, time_is_left(args.seconds))], [], []
        shares, shares_of_present = [], []
        for number in range(args.turns):
            coming = visitors.begin(len(range(number, args.visits, args.turns)))
            turn = read_while(batches, partial(any_is_left, coming))
            came = [one.result() for one in coming]
            crowded.append(turn)
            shares.append(fair_share([(v.reading, v.stopped) for v in came], turn))
            shares_of_present.append(fair_share([(v.began, v.stopped) for v in came], turn))
            visits += came
            read_until_settled(batches, server, before.processes)
            alone.append(read_while(batches, time_is_left(args.seconds)))
        after = Usage.of(server)
    ratios = [
        turn.batches_per_s / ((a.batches_per_s + b.batches_per_s) / 2)
        for turn, (a, b) in zip(crowded, itertools.pairwise(alone), strict=True)
    ]
    return {
        "alone": [asdict(turn) for turn in alone],
        "crowded": [asdict(turn) for turn in crowded],
        "visits": [asdict(one) for one in visits],
        "ratio_to_alone": ratios,
        "fair_share": shares,
        "share_of_present": shares_of_present,
        "before": asdict(before),
        "after": asdict(after),
    }


def any_is_left(visits: list[Future[Visit]]) -> bool:
    """Whether some of them are not over."""
    return not all(one.done() for one in visits)


def time_is_left(seconds: float) -> Callable[[], bool]:
    """True for so long from now."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def read_until_settled(batches: Iterator[Any], server: int, num_processes: int) -> None:
    """The last visitors' leases run out, and their workers end: the server, its fork server and one worker are left."""
    within_time = time_is_left(DEADLINE_S)
    while len(process_tree(server)) > num_processes and within_time():
        next(batches)


# --- the whole ---------------------------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    """The command line."""
    parser = small_batch_arguments(__doc__)
    parser.add_argument("--visits", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=4, help="visitors at a time, at most")
    parser.add_argument("--visit-batches", type=int, default=400, help="batches that each of them takes")
    parser.add_argument("--stop-seconds", type=float, default=2.0, help="how long some of them do not read")
    parser.add_argument("--turns", type=int, default=2, help="of visitors; the others are alone")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one turn alone")
    parser.add_argument("--name", default="sessions", help="of the file in results/")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    port = get_free_port()
    with tempfile.TemporaryDirectory() as root:
        directory = make_partitions(Path(root) / "graph", 1, args)
        with running_servers(directory, port, 1, in_place=True, num_clients=0):
            server = process_tree(os.getpid())[1]
            glt.distributed.init_client(1, 2 + args.visits, 0, "127.0.0.1", port, is_dynamic=True)
            found = measure(server, port, args)
            request_server(0, DistServer.exit)
            glt.distributed.shutdown_client()
    report(found, args)


def report(found: dict[str, Any], args: argparse.Namespace) -> None:
    """The tables, and the file."""
    titles = {
        "ratio_to_alone": "ratio to alone",
        "fair_share": "share of readers",
        "share_of_present": "and of those who join",
    }
    stays = [one["stopped"] - one["reading"] for one in found["visits"]]
    print_table(
        f"{args.visits} visitors, at most {args.at_once} at once, reading for {median(stays):.2g} s in the middle",
        ["turn", "batches/s", "wait p50 ms", "p99 ms", *titles.values()],
        [
            [
                what,
                *(f"{median([turn[key] for turn in found[what]]):.3g}" for key in list(found[what][0])[:3]),
                *(f"{median(found[key]):.2f}" if what == "crowded" else "" for key in titles),
            ]
            for what in ("alone", "crowded")
        ],
    )
    print_table(
        "the server and its workers",
        ["", *found["before"]],
        [[when, *(f"{value:.4g}" for value in found[when].values())] for when in ("before", "after")],
    )
    print(write_json(args.name, {"arguments": vars(args), **found}))


if __name__ == "__main__":
    main()
