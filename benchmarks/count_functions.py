"""Which Python functions of this package a batch passes between hosts, by process: distinct ones, and calls a batch.

Two hosts of ``bench_hosts.py`` with small batches and features, or others. Every process counts its calls
(``sys.setprofile``) from a signal to another, while the trainers read; a function is on a batch's way that is called at
least once in ten batches.

    python benchmarks/count_functions.py [--list] [--loopback] [--work large] [--rows bare]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_hosts import WORKS
from harness import print_table
from host_jobs import Graphs, Job, open_hosts

LEAST_CALLS = 0.1  # a batch, of a function that is on its way
SECONDS = 3.0
DEADLINE_S = 60.0
HOOK = """
import json, os, signal, sys, threading

calls = {}
is_on = False


def count(frame, event, _):
    if is_on and event == "call":
        calls[frame.f_code] = calls.get(frame.f_code, 0) + 1


def turn(*_):
    global is_on
    if not is_on:
        is_on = True
        sys.setprofile(count)
        return
    is_on = False
    sys.setprofile(None)
    threads = [thread.name.split("-")[0] for thread in threading.enumerate()]
    name = os.environ["GLD_COUNT_CALLS"] + f"/{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}"
    found = [(code.co_filename, getattr(code, "co_qualname", code.co_name), code.co_firstlineno, number)
             for code, number in calls.items()]
    with open(name + ".part", "w") as out:
        json.dump({"command": open("/proc/self/comm").read().strip(), "argv": sys.argv, "calls": found}, out)
    os.rename(name + ".part", name + ".json")


threading.setprofile(count)
signal.signal(signal.SIGUSR2, turn)
"""


@contextmanager
def hooked(directory: Path) -> Iterator[None]:
    """Interpreters that start meanwhile count their calls."""
    (directory / "sitecustomize.py").write_text(HOOK)
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "GLD_COUNT_CALLS")}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(directory), before["PYTHONPATH"] or ""])
    os.environ["GLD_COUNT_CALLS"] = str(directory)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def measure(args: argparse.Namespace) -> tuple[float, list[dict[str, object]]]:
    """Batches that were read, and what each process counted."""
    fanout, batch_size = WORKS[args.work]
    with tempfile.TemporaryDirectory(prefix="count-functions-") as folder, hooked(Path(folder)):
        root = Path(folder)
        with open_hosts(2, args) as hosts, Job(hosts, 2, "one type", Graphs(root, args), root, args) as job:
            loader = {"fanout": fanout, "batch_size": batch_size, "features": args.rows == "features"}
            job.ask(job.trainers, op="open", **loader)
            pids = [pid for pid in job.pids() if _counts(pid)]
            job.ask(job.trainers, op="go")
            time.sleep(1.0)  # nothing waits for it: batches made ahead are read
            before = sum(int(counts[0]) for counts in job._counts)
            _tell(pids)
            time.sleep(SECONDS)
            batches = sum(int(counts[0]) for counts in job._counts) - before
            _tell(pids)
            deadline = time.monotonic() + DEADLINE_S
            while len(found := [*root.glob("*.json")]) < len(pids) and time.monotonic() < deadline:
                time.sleep(0.1)
            job.ask(job.trainers, op="pause")
            job.ask(job.trainers, op="close")
            return batches, [json.loads(path.read_text()) for path in found]


def _tell(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)


def _counts(pid: int) -> bool:
    """Whether a process would not end of the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGUSR2 - 1) & 1)


def role_of(found: dict[str, object]) -> str:
    """What a process is for."""
    if found["command"] in ("gld-worker", "gld-fork-server"):
        return str(found["command"])
    return str(json.loads(found["argv"][1])["role"])  # type: ignore[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="the functions, too")
    parser.add_argument("--loopback", action="store_true", help="no namespaces, though they could be made")
    parser.add_argument("--work", choices=WORKS, default="small")
    parser.add_argument("--rows", choices=["bare", "features"], default="features")
    args = parser.parse_args()
    fixed = {"nodes": 200_000, "edges": 4_000_000, "features": 64, "rate": None, "row_cache": None, "workers": 1}
    for name, value in {**fixed, "buffer": "512MB"}.items():
        setattr(args, name, value)
    batches, found = measure(args)
    totals: dict[str, Counter[tuple[str, str]]] = {}
    others: Counter[str] = Counter()
    for process in found:
        role = role_of(process)
        for file, name, line, number in process["calls"]:  # type: ignore[attr-defined]
            _, mark, path = file.rpartition("/graphlearn_dist/")
            if mark:
                totals.setdefault(role, Counter())[path, f"{name}:{line}"] += number
            else:
                others[role] += number
                if args.list and number >= LEAST_CALLS * batches:
                    print(f"{role:12} {number / batches:6.2f}  {file} {name}")
    lines, everywhere = [], set()
    for role, counts in totals.items():
        on_way = {key for key, number in counts.items() if number >= LEAST_CALLS * batches}
        everywhere |= on_way
        own = sum(counts[key] for key in on_way)
        lines.append(
            [
                role,
                len(on_way),
                len({file for file, _ in on_way}),
                f"{own / batches:.1f}",
                f"{others[role] / batches:.1f}",
            ]
        )
        if args.list:
            for (file, name), number in sorted(counts.items()):
                if (file, name) in on_way:
                    print(f"{role:12} {number / batches:6.2f}  {file} {name}")
    lines.append(["all, each once", len(everywhere), len({file for file, _ in everywhere}), "", ""])
    print_table(
        f"{batches} batches", ["process", "functions", "files", "their calls a batch", "calls of other Python"], lines
    )


if __name__ == "__main__":
    main()
