"""What runs in the hosts of bench_hosts.py, as ``line_programs`` do what they are told: the first argument is a job.

A trainer counts its batches in a file that the benchmark maps, so that nobody has to be asked while they are read.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

import graphlearn_dist as glt
from graphlearn_dist.distributed import (
    DistDataset,
    DistNeighborLoader,
    DistServer,
    RemoteDistSamplingWorkerOptions,
    async_request_server,
    init_client,
    init_server,
    shutdown_client,
    shutdown_server,
)
from graphlearn_dist.distributed.dist_server import get_server
from graphlearn_dist.distributed.rpc import get_endpoint
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.rpc import endpoint
from graphlearn_dist.rpc.peers import links

Job = dict[str, Any]
IN_FLIGHT = 16  # requests of a client that floods a server


def answer(**reply: Any) -> None:
    """One line for who asked."""
    print(json.dumps(reply), flush=True)


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


def pretend_a_host(job: Job) -> None:
    """Where hosts are not namespaces: has this process connect to those of other hosts by TCP."""
    if job["boot_id"]:
        for module in (endpoint, links):
            module.boot_id = lambda: job["boot_id"]  # type: ignore[attr-defined]


# --- servers -----------------------------------------------------------------------------------------------------


def serve(job: Job) -> None:
    """Serves a partition; says how many requests it has answered."""
    dataset = DistDataset()
    dataset.load(job["directory"], job["rank"])
    init_server(job["servers"], 0, job["rank"], dataset, job["master"], job["port"], is_dynamic=True, **job["options"])
    answer(up=True)
    for _ in commands():
        answer(requests=get_endpoint().stats().requests_served, copies=asdict(get_server().get_row_cache_stats()))
    answer(exit=True)
    shutdown_server()


# --- loaders -----------------------------------------------------------------------------------------------------


def seeds_of(job: Job) -> Any:
    """All nodes, or those of the seeds' type, several times over: an epoch's end is not what is measured."""
    ids = torch.arange(job["seeds"]).repeat(job["rounds"])
    return ids if job["seed_type"] is None else (job["seed_type"], ids)


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
                self._batches = endless(self._stack.enter_context(open_loader(command)))
                for _ in range(3):
                    next(self._batches)
            case "go":
                answer(going=True)
                while not is_told():
                    next(self._batches)
                    self._counts[0] += 1
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


def size_of(batches: list[Any]) -> dict[str, float]:
    """Means of distinct nodes and edges of batches."""
    stores = [batch.node_stores for batch in batches], [batch.edge_stores for batch in batches]
    nodes = sum(store.n_id.numel() for of_batch in stores[0] for store in of_batch if "n_id" in store)
    edges = sum(store.edge_index.size(1) for of_batch in stores[1] for store in of_batch if "edge_index" in store)
    return {"nodes": nodes / len(batches), "edges": edges / len(batches)}


def train(job: Job) -> None:
    """Reads from the server of its host."""
    init_client(job["servers"], job["clients"], job["rank"], job["master"], job["port"], is_dynamic=True)
    answer(up=True)

    def open_loader(command: Job) -> Any:
        options = RemoteDistSamplingWorkerOptions(server_rank=job["rank"], **job["options"])
        return DistNeighborLoader(
            None, command["fanout"], seeds_of(job), command["batch_size"], True, edge_dir="in",
            collect_features=command["features"], random_seed=job["rank"], worker_options=options,
        )  # fmt: skip

    reader = Reader(job)
    for command in commands():
        reader.do(command, open_loader)
    answer(exit=True)
    shutdown_client()


def read_in_process(job: Job) -> None:
    """The loader without servers, of the whole graph."""
    datasets = {name: DistDataset() for name in job["directories"]}
    for name, directory in job["directories"].items():
        datasets[name].load(directory, 0)
    answer(up=True)

    def open_loader(command: Job) -> Any:
        data = datasets["features" if command["features"] else "bare"]
        return nullcontext(
            NeighborLoader(
                data, command["fanout"], seeds_of(job), batch_size=command["batch_size"], shuffle=True, prefetch=0
            )
        )

    reader = Reader(job)
    for command in commands():
        reader.do(command, open_loader)
    answer(exit=True)


# --- others ------------------------------------------------------------------------------------------------------


def flood(job: Job) -> None:
    """Asks server 0 for small things, many at a time, while it is told to; says how many were answered."""
    init_client(job["servers"], job["clients"], job["rank"], job["master"], job["port"], is_dynamic=True)
    answer(up=True)
    count, asked = 0, deque[Any]()
    for command in commands():
        answer(requests=count)
        while command["op"] == "go" and not is_told():
            while len(asked) < IN_FLIGHT:
                asked.append(async_request_server(0, DistServer.get_dataset_meta))
            asked.popleft().wait()
            count += 1
        while asked:
            asked.popleft().wait()
    answer(exit=True)
    shutdown_client()


def keep_busy(job: Job) -> None:
    """Runs Python while it is told to."""
    answer(up=True)
    for command in commands():
        answer(done=command["op"])
        if command["op"] == "go":
            compute(is_told)


ROLES = {"server": serve, "trainer": train, "in process": read_in_process, "flood": flood, "busy": keep_busy}


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    pretend_a_host(job)
    ROLES[job["role"]](job)


if __name__ == "__main__":
    glt.show_config()
    # Answers keep the real standard output; what a library prints goes to standard error.
    channel = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(channel, "w")
    main()
