"""A job without servers: every process holds a partition, samples and trains; they are started from one command."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from job import partition, recipe_for
from training import loader_arguments, run

import graphlearn_dist as glt
from graphlearn_dist.typing import Split
from graphlearn_dist.utils.common import get_free_port

SMOKE_DATA = "community:1500:10:4:16"
# (split, address and port where the workers meet) to the options of that split's loader
MakeOptions = Callable[[Split, str, int], Any]


def make_loader(
    data: Any,
    make_options: Callable[[Split], Any],
    shard: tuple[int, int],
    args: argparse.Namespace,
    split: Split,
    seed: int,
) -> Any:
    """This worker's share of a split's batches, made by itself."""
    return glt.distributed.DistNeighborLoader(
        data, random_seed=seed, worker_options=make_options(split), shard=shard, **loader_arguments(args, split)
    )


def work(rank: int, args: argparse.Namespace, root: str, port: int, make_options: MakeOptions) -> None:
    """One worker: its partition, the group, the training, and an end that waits for the others."""
    torch.set_num_threads(1)
    data = glt.distributed.DistDataset()
    data.load(Path(root) / "partitions", rank)
    glt.distributed.init_worker_group(args.workers, rank)
    with ExitStack() as stack:
        stack.callback(glt.distributed.shutdown_rpc)  # the last thing: others may still ask for rows of this partition
        store = dist.FileStore(os.path.join(root, "store"), args.workers)
        dist.init_process_group("gloo", None, timedelta(minutes=2), args.workers, rank, store)
        stack.callback(dist.destroy_process_group)
        options = partial(make_options, address="127.0.0.1", port=port)
        result = run(rank, args, args.seed, partial(make_loader, data, options, (rank, args.workers), args))
    if rank == 0:
        best, test = result["best"], result["test"]
        print(f"test accuracy {test['accuracy']:.2%} with the weights of epoch {best['epoch']}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2))


def parse_args(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--workers", type=int, default=2, help="processes that train, each with one partition")
    parser.add_argument("--epochs", type=int, help="the recipe's, unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    parser.add_argument("--smoke", action="store_true", help="a small graph and few epochs: does it run?")
    return parser.parse_args()


def train(description: str | None, make_options: MakeOptions) -> None:
    """Partitions the data set, runs the workers, and ends when all of them have."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the workers end with this process
    args = parse_args(description)
    spec = SMOKE_DATA if args.smoke else args.data
    recipe = recipe_for(spec)
    data = recipe.load(spec, seed=args.seed)
    args.in_channels, args.num_classes = data.x.shape[1], data.num_classes
    args.hidden, args.dropout, args.weight_decay, args.lr = (
        recipe.hidden,
        recipe.dropout,
        recipe.weight_decay,
        recipe.lr,
    )
    args.fanout = [int(fanout) for fanout in recipe.fanout.split(",")]
    args.batch_size = 64 if args.smoke else recipe.batch_size
    args.epochs = args.epochs or (3 if args.smoke else recipe.epochs)
    with tempfile.TemporaryDirectory(prefix="graphlearn-dist-") as root:
        partition(data, Path(root) / "partitions", args.workers)
        mp.spawn(work, (args, root, get_free_port(), make_options), nprocs=args.workers, daemon=True)
