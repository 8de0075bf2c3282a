"""What every program in a host of bench_hosts.py does: obeys lines, and reads a loader meanwhile.

A trainer counts its batches in a file that the benchmark maps, so that nobody has to be asked while they are read.
It needs numpy only, and none of what it measures.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np

Job = dict[str, Any]
_answers = sys.stdout


def answer(**reply: Any) -> None:
    """One line for who asked."""
    print(json.dumps(reply), file=_answers, flush=True)


def commands() -> Iterator[Job]:
    """What it is told, until the input ends or says ``exit``."""
    for line in sys.stdin:
        command = json.loads(line)
        if command["op"] == "exit":
            return
        yield command


def is_told() -> bool:
    """Whether the next command is there."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def compute(stops: Callable[[], bool]) -> None:
    """What keeps an interpreter busy."""
    while not stops():
        sum(i * i for i in range(1000))


class Reader:
    """Reads one loader when it is told to, and counts batches."""

    def __init__(self, job: Job) -> None:
        self._counts = np.memmap(job["counter"], np.int64, "r+")
        self._batches: Iterator[Any] = iter(())
        self._stack = ExitStack()
        self._stops = threading.Event()

    def do(self, command: Job, open_loader: Callable[[Job], Any]) -> None:
        """Carries out a command."""
        match command["op"]:
            case "open":
                opened = open_loader(command)  # some have nothing to close
                manager = opened if hasattr(opened, "__exit__") else nullcontext(opened)
                self._batches = endless(self._stack.enter_context(manager))
                for _ in range(3):
                    next(self._batches)
            case "go":
                answer(going=True)
                while not is_told():
                    next(self._batches)
                    self._counts[0] += 1
                return
            case "steps":  # so many, where trainers wait for each other
                began = time.perf_counter()
                for _ in range(command["count"]):
                    next(self._batches)
                answer(seconds=time.perf_counter() - began)
                return
            case "size":
                answer(**size_of([next(self._batches) for _ in range(10)]))
                return
            case "busy":
                self._stops.clear()
                threading.Thread(target=compute, args=(self._stops.is_set,), daemon=True).start()
            case "calm":
                self._stops.set()
            case "close":
                self._batches = iter(())
                self._stack.close()
        answer(done=command["op"])


def endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


def uses_of(command: Job, nodes: int, rank: int) -> Iterator[Any]:
    """Ids int64 ``[rows]`` of each step of a trainer that learns rows: drawn alike for everybody who is measured."""
    draw = np.random.default_rng(rank)
    while True:
        yield draw.integers(nodes, size=command["rows"])


def size_of(batches: list[Any]) -> dict[str, float]:
    """Means of distinct nodes and edges of batches."""
    stores = [batch.node_stores for batch in batches], [batch.edge_stores for batch in batches]
    nodes = sum(store.n_id.numel() for of_batch in stores[0] for store in of_batch if "n_id" in store)
    edges = sum(store.edge_index.size(1) for of_batch in stores[1] for store in of_batch if "edge_index" in store)
    return {"nodes": nodes / len(batches), "edges": edges / len(batches)}


def own_standard_output() -> None:
    """Answers keep the real standard output; what a library prints goes to standard error."""
    global _answers
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def run(roles: dict[str, Callable[[Job], None]]) -> None:
    """Does what the first argument says."""
    own_standard_output()
    job = json.loads(sys.argv[1])
    roles[job["role"]](job)
