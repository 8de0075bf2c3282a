"""Where an example runs: in one process, on workers that hold a partition each, or on trainers of graph servers.

An example says how to prepare its graph and how to train, once; `--mode` says where. Batches are the same in all modes.

    local       one process with the whole graph
    collocated  workers with a partition each, which sample in the training process
    mp          workers with a partition each, which sample in subprocesses
    remote      servers with a partition each sample; trainers hold no graph
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from job import launched
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.utils.common import get_free_port

MODES = ("local", "collocated", "mp", "remote")


@dataclass(frozen=True)
class Place:
    """One of the processes that train.

    Attributes:
        rank: which one, from 0.
        count: how many there are.
        mode: one of ``MODES``.
        data: its partition; None where servers have it.
        port: where workers meet.
    """

    rank: int
    count: int
    mode: str
    data: DistDataset | None = None
    port: int = 0

    def loader(self, kind: type[DistLoader], *, training: bool, **arguments: Any) -> Any:
        """This process's share of the batches of a loader of that kind."""
        options = self._options(training)
        shard = (self.rank, self.count)
        return kind(self.data, edge_dir="in", collect_features=True, worker_options=options, shard=shard, **arguments)

    def _options(self, training: bool) -> Any:
        """Batches to train on are made ahead; of those to evaluate with, which are larger, few at a time."""
        if self.mode == "local":
            return None
        if self.mode == "remote":
            ahead = 4 if training else 1
            return RemoteDistSamplingWorkerOptions(worker_concurrency=ahead, prefetch_size=ahead)
        meeting: dict[str, Any] = {"master_addr": "127.0.0.1", "master_port": self.port}
        if self.mode == "mp" and training:
            return MpDistSamplingWorkerOptions(num_workers=1, **meeting)
        return CollocatedDistSamplingWorkerOptions(prefetch_size=2 if training else 0, **meeting)


# (arguments, partition directory to write, number of partitions) to the few facts that every trainer needs
Prepare = Callable[[argparse.Namespace, Path, int], dict[str, Any]]
Train = Callable[[Place, dict[str, Any], argparse.Namespace], None]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all examples have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--mode", choices=MODES, default="local", help="where to sample and train, see examples/modes.py")
    made.add_argument("--workers", type=int, default=2, help="trainers, and partitions; in local mode there is one")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--smoke", action="store_true", help="a small graph and few epochs: does it run?")
    made.add_argument("--job", type=Path, help=argparse.SUPPRESS)  # a trainer of servers is told what it belongs to
    return made


def main(args: argparse.Namespace, prepare: Prepare, train: Train) -> None:
    """Prepares the graph, starts what the mode needs, and ends when all of it has."""
    if args.job is not None:
        _train_remotely(args, train)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started ends with this process
    args.workers = 1 if args.mode == "local" else args.workers
    with tempfile.TemporaryDirectory(prefix="graphlearn-dist-") as root:
        torch.save(prepare(args, Path(root, "partitions"), args.workers), Path(root, "facts.pt"))
        if args.mode == "local":
            _work(0, args, root, 0, train)
        elif args.mode == "remote":
            _launch(args, root)
        else:
            mp.spawn(_work, (args, root, get_free_port(), train), nprocs=args.workers, daemon=True)


def _launch(args: argparse.Namespace, root: str) -> None:
    """As many servers as trainers, which run this program again."""
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", os.path.join(root, "partitions")]
    command += ["--servers", str(args.workers), "--trainers", str(args.workers), *sys.argv, "--job", root]
    with launched(command) as process:
        if code := process.wait():
            raise SystemExit(code)


def _work(rank: int, args: argparse.Namespace, root: str, port: int, train: Train) -> None:
    """A process with a partition, which trains."""
    data = DistDataset()
    data.load(Path(root, "partitions"), rank)
    with ExitStack() as stack:
        if args.workers > 1:
            torch.set_num_threads(1)
            glt.distributed.init_worker_group(args.workers, rank)
            stack.callback(glt.distributed.shutdown_rpc)  # the last thing: others may still ask for its rows
        store = dist.FileStore(os.path.join(root, "store"), args.workers)
        _train(Place(rank, args.workers, args.mode, data, port), store, root, args, train)


def _train_remotely(args: argparse.Namespace, train: Train) -> None:
    """A trainer of servers, started by the launcher."""
    ctx = LaunchContext.from_environ()
    torch.set_num_threads(1)
    glt.distributed.init_client(ctx.num_servers, ctx.num_clients, ctx.rank, ctx.master_addr, ctx.master_port)
    with ExitStack() as stack:
        stack.callback(glt.distributed.shutdown_client)
        store = glt.distributed.rendezvous_store()  # agreed through the servers: no port to choose
        _train(Place(ctx.rank, ctx.num_clients, "remote"), store, str(args.job), args, train)


def _train(place: Place, store: Any, root: str, args: argparse.Namespace, train: Train) -> None:
    dist.init_process_group("gloo", None, timedelta(minutes=5), place.count, place.rank, store)
    try:
        torch.manual_seed(args.seed)
        train(place, torch.load(Path(root, "facts.pt"), weights_only=True), args)
    finally:
        dist.destroy_process_group()


def fit(
    place: Place,
    network: torch.nn.Module,
    loss_of: Callable[[torch.nn.Module, Any], torch.Tensor],
    loader: DistLoader,
    *,
    epochs: int,
    lr: float,
) -> None:
    """Trains on all trainers together, gradients averaged; the first of them says how it goes."""
    # Weights of types that a batch did not reach, and of updates that nobody reads, have no gradient.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(1, epochs + 1):
        start, sums = time.perf_counter(), torch.zeros(2)
        model.train()
        with Join([model]):  # trainers may differ by one batch: who is through takes part in the others' exchanges
            for batch in loader:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                optimizer.step()
                sums += torch.tensor([float(loss.detach()), 1.0])
        dist.all_reduce(sums)
        if place.rank == 0:
            seconds = time.perf_counter() - start
            print(f"epoch {epoch}/{epochs}: loss {float(sums[0] / sums[1]):.3f}, {seconds:.1f} s", flush=True)
