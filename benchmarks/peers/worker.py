"""One peer in a process: reads a command a line (JSON), answers a line.

Started by ``peers.driver`` with the interpreter that has the library, and with the number of threads in its
environment. Commands: ``{"op": "build", "setting": {...}}`` and ``{"op": "run", "mode", "first", "count"}``; the end
of its input ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

if __name__ == "__main__":  # as a script only this directory would be on the path
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from peers.base import FEATURES, LOADER, Peer, Setting, Unsupported, Work, batch_seeds

_LOADER_WARM_UP = 2  # batches: the first may start threads and processes


def load_peer(module: str) -> type[Peer]:
    """The adapter of a module of this package: its class ``Adapter``."""
    adapter: type[Peer] = importlib.import_module(f"peers.{module}").Adapter
    return adapter


def resident_bytes() -> dict[str, int]:
    """Resident memory of this process: ``anonymous`` and ``file`` pages."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    kilobytes = {key: int(status[key].split()[0]) for key in ("RssAnon", "RssFile", "RssShmem")}
    return {"anonymous": kilobytes["RssAnon"] << 10, "file": (kilobytes["RssFile"] + kilobytes["RssShmem"]) << 10}


class Clock:
    """Wall and processor seconds over the parts of a loop that are measured, and the most threads seen at their end."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.threads = 0

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        self.wall += time.perf_counter() - self._started[0]
        self.cpu += time.process_time() - self._started[1]
        self.threads = max(self.threads, len(os.listdir("/proc/self/task")))


def run(peer: Peer, mode: str, first: int, count: int) -> dict[str, Any]:
    """Makes ``count`` batches; what they hold is counted with the clock stopped, giving them back is measured."""
    clock, seen = Clock(), []
    if mode == LOADER:
        _run_loader(peer, first, count, clock, seen)
    else:
        for seeds in batch_seeds(peer.setting, first, count).split(peer.setting.batch_size):
            with clock:
                batch = peer.sample(seeds)
                rows = peer.lookup(batch) if mode == FEATURES else None
            seen.append(peer.work(batch))
            with clock:
                del batch, rows
    return {
        "kind": peer.kind,
        "threads": clock.threads,
        "resident": resident_bytes(),
        "seconds": clock.wall,
        "cpu_seconds": clock.cpu,
        "batches": len(seen),
        "edges": sum(work.edges for work in seen),
        "nodes": sum(work.nodes for work in seen),
    }


def _run_loader(peer: Peer, first: int, count: int, clock: Clock, seen: list[Work]) -> None:
    """Steady state of a loader: what it makes ahead before the clock starts, it makes ahead of what follows too."""
    ahead = 4 * peer.setting.threads
    batches = peer.loader(batch_seeds(peer.setting, first, _LOADER_WARM_UP + count + ahead))
    for _ in range(_LOADER_WARM_UP):
        next(batches)
    for _ in range(count):
        with clock:
            batch = next(batches)
        seen.append(peer.loader_work(batch))
        with clock:
            del batch


def answer(peer: Peer | None, module: str, command: dict[str, Any]) -> tuple[Peer | None, dict[str, Any]]:
    """Carries out one command; gives the peer to go on with and the answer."""
    if command["op"] == "probe":
        adapter = load_peer(module)
        return peer, {"version": adapter.version(), "replace": adapter.replace, "kind": adapter.kind}
    if command["op"] == "build":
        peer = load_peer(module)(Setting(**command["setting"]))
        torch.set_num_threads(peer.setting.threads)
        peer.version()
        before, started = resident_bytes(), time.perf_counter()
        peer.build()
        return peer, {
            "build_seconds": time.perf_counter() - started,
            "resident_before": before,
            "resident_after": resident_bytes(),
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "stored": peer.stored_bytes(),
        }
    if peer is None:
        raise RuntimeError("run: nothing was built")
    return peer, run(peer, command["mode"], command["first"], command["count"])


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def serve(module: str, commands: TextIO, answers: TextIO) -> None:
    """Answers until the commands end; an error is an answer."""
    peer: Peer | None = None
    for line in commands:
        try:
            peer, reply = answer(peer, module, json.loads(line))
        except Unsupported as error:
            reply = {"unsupported": str(error)}
        except (ImportError, OSError) as error:
            reply = {"missing": _first_line(error)}
        except Exception as error:  # whatever a peer throws belongs in the table, not in a dead process
            reply = {"error": _first_line(error), "traceback": traceback.format_exc()}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    # Answers keep the real standard output; what a library prints goes to standard error.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, channel)
