"""GraphLearn-for-PyTorch (GLT) on the hosts of bench_hosts.py: its argument is a job, as of host_programs.py. It needs
GLT's interpreter.

A trainer is a client of the server on its host, which samples its batches in a process of its own (GLT's remote mode).
These processes ask each other for hops and rows by torch's RPC.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import sys
import threading
import types
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from host_reader import Job, Reader, answer, commands, run

# GLT imports torch-sparse, whose build for GLT's torch takes minutes, to turn one layout into another, which nothing
# here needs. It stands here and not in a function, as spawned sampling processes import this file, then GLT.
sys.modules.setdefault("torch_sparse", types.ModuleType("torch_sparse"))

PORT = 30150  # of servers and clients; that of the sampling processes of the n-th loader is n higher
ROUNDS = 10  # as often are all nodes the seeds of an epoch, whose end is not what is measured
BATCHES_AHEAD = 4  # that a sampling process makes at once, and that a client asks for: what GLT does unless told


def can(job: Job) -> None:
    """Says which version is here."""
    import torch

    import_module("graphlearn_torch.distributed")
    answer(version=f"GLT {version('graphlearn-torch')}, torch {torch.__version__}")


def partition(job: Job) -> None:
    """Deals the nodes to hosts at random, as GLT's own partitioner does, which cannot make one partition."""
    import torch

    directory = Path(job["directory"])
    directory.mkdir()
    order = torch.randperm(job["nodes"], generator=torch.Generator().manual_seed(0))
    torch.save(order % len(job["addresses"]), directory / "owners.pt")
    torch.save(torch.arange(job["nodes"]).repeat(ROUNDS), directory / "seeds.pt")
    answer(done=True)


def load_part(job: Job) -> Any:
    """A data set of the nodes that a host owns: the edges that end there, and their rows, in memory of the host."""
    import torch
    from graphlearn_torch.distributed import DistDataset

    nodes, rank = job["nodes"], job["rank"]
    owners = torch.load(Path(job["directory"], "owners.pt"), weights_only=True)
    own = owners == rank
    sources, targets = torch.from_numpy(np.load(job["edges"]))
    sources, targets = sources[own[targets]], targets[own[targets]]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(targets, minlength=nodes).cumsum(0)])
    rows = torch.randn(nodes, job["width"], generator=torch.Generator().manual_seed(0))[own]
    places = torch.zeros(nodes, dtype=torch.int64)
    places[own] = torch.arange(len(rows))
    dataset = DistDataset(len(job["addresses"]), rank, node_pb=owners, edge_dir="in")
    dataset.init_graph((sources[torch.argsort(targets)], offsets), layout="CSC", graph_mode="CPU")
    dataset.init_node_features(rows, places, with_gpu=False)
    return dataset


def end_with_input() -> None:
    """Ends this process at the end of its input; GLT's own way out waits for others."""
    sys.stdin.read()
    os._exit(0)


def serve(job: Job) -> None:
    """Serves a partition until nobody is there to tell it anything."""
    from graphlearn_torch.distributed import init_server, wait_and_shutdown_server

    # GLT makes a counter by the default way to start processes, and gives it to spawned ones, which Python refuses.
    multiprocessing.set_start_method("spawn")
    count = len(job["addresses"])
    threading.Thread(target=end_with_input, daemon=True).start()
    init_server(count, job["rank"], load_part(job), job["addresses"][0], PORT, num_clients=count)
    wait_and_shutdown_server()


def train(job: Job) -> None:
    """Reads batches of seeds from all nodes, and their rows."""
    import torch
    from graphlearn_torch.distributed import init_client

    torch.set_num_threads(1)
    count = len(job["addresses"])
    init_client(count, count, job["rank"], job["addresses"][0], PORT)
    answer(up=True)
    loaders = itertools.count(1)
    reader = Reader(job)
    for command in commands():
        reader.do(command, lambda command: open_loader(command, job, next(loaders)))
    os._exit(0)


@contextlib.contextmanager
def open_loader(command: Job, job: Job, number: int) -> Iterator[Any]:
    """The ``number``-th loader of this trainer. Those of all trainers that have one number are opened together."""
    import torch
    from graphlearn_torch.distributed import DistNeighborLoader, RemoteDistSamplingWorkerOptions

    options = RemoteDistSamplingWorkerOptions(
        server_rank=job["rank"], num_workers=1, worker_devices=torch.device("cpu"), worker_concurrency=BATCHES_AHEAD,
        master_addr=job["addresses"][0], master_port=PORT + number, buffer_size="512MB", prefetch_size=BATCHES_AHEAD,
        worker_key=f"{number}-{job['rank']}",
    )  # fmt: skip
    loader = DistNeighborLoader(
        None, command["fanout"], str(Path(job["directory"], "seeds.pt")), command["batch_size"], shuffle=True,
        edge_dir="in", collect_features=command["features"], to_device=torch.device("cpu"),
        random_seed=1 + job["rank"],  # unseeded, GLT asks the system for a random number for each node that it samples
        worker_options=options,
    )  # fmt: skip
    try:
        yield loader
    finally:
        loader.shutdown()


if __name__ == "__main__":
    run({"can": can, "partition": partition, "server": serve, "trainer": train})
