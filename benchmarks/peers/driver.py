"""Peers in processes of their own, measured in turns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from line_programs import LineProgram, WorkerLost

from peers.base import Setting

BENCHMARKS = Path(__file__).resolve().parents[1]
# Freed memory stays with the process, so that a batch's arrays find warm pages instead of fresh ones from the system.
HEAP_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "34359738368"}
BUILD_S, RUN_S = 300.0, 300.0


@dataclass(frozen=True)
class Entry:
    """One line of the tables: a label, the adapter's module, and what its process finds in its environment."""

    label: str
    module: str
    environment: dict[str, str] = field(default_factory=dict)


# Peers get the allocator setting that is best for them; this project pools its own memory and needs none.
OURS = Entry("graphlearn_dist", "ours")
ENTRIES = (
    OURS,
    Entry("DGL fused", "dgl_fused", HEAP_KEPT),
    Entry("DGL fused, default heap", "dgl_fused"),
    Entry("GraphBolt", "graphbolt", HEAP_KEPT),
    Entry("pyg-lib", "pyg_lib", HEAP_KEPT),
    Entry("torch-sparse", "torch_sparse", HEAP_KEPT),
    Entry("GLT, seeded", "glt", HEAP_KEPT),
    Entry("GLT, unseeded", "glt_unseeded", HEAP_KEPT),
)


class Worker(LineProgram):
    """The process of one peer."""

    def __init__(self, entry: Entry, python: str, threads: int) -> None:
        self.entry = entry
        environment = {**os.environ, **entry.environment, "OMP_NUM_THREADS": str(threads)}
        environment["PYTHONPATH"] = str(BENCHMARKS.parent)
        environment["DGLBACKEND"] = "pytorch"
        super().__init__(
            entry.label,
            [python, str(BENCHMARKS / "peers" / "worker.py"), entry.module],
            stderr=subprocess.PIPE if entry is not OURS else None,
            env=environment,
        )

    def __enter__(self) -> Worker:
        return self


@dataclass(frozen=True)
class Found:
    """A peer that can be imported: with which interpreter, and what it says of itself."""

    entry: Entry
    python: str
    version: str
    replace: bool
    kind: str


def find_peers(entries: Sequence[Entry], pythons: Sequence[str]) -> tuple[list[Found], dict[str, str]]:
    """Every entry with the first interpreter that can import it, and for the others why not (by label)."""
    found: list[Found] = []
    missing: dict[str, str] = {}
    for entry in entries:
        for python in [sys.executable] if entry is OURS else pythons:
            with Worker(entry, python, 1) as worker:
                try:
                    reply = worker.ask(BUILD_S, op="probe")
                except WorkerLost as error:
                    reply = {"missing": str(error)}
            if "version" in reply:
                found.append(Found(entry, python, reply["version"], reply["replace"], reply["kind"]))
                missing.pop(entry.label, None)
                break
            missing.setdefault(entry.label, reply.get("missing") or reply["error"])
    return found, missing


def build(worker: Worker, setting: Setting) -> dict[str, Any]:
    """Has a worker load the graph; an answer with ``build_seconds``, or with why not."""
    return worker.ask(BUILD_S, op="build", setting=asdict(setting))


def run(worker: Worker, mode: str, first: int, count: int) -> dict[str, Any]:
    """Has a worker make batches ``first`` to ``first + count``."""
    return worker.ask(RUN_S, op="run", mode=mode, first=first, count=count)
