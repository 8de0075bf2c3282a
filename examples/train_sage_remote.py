"""One trainer of a GraphSAGE job: batches come from the graph servers, gradients are averaged among the trainers.

Run: graphlearn-dist launch --data DIR --servers 2 --trainers 2 examples/train_sage_remote.py \\
         --in-channels 128 --num-classes 58 --out result.json

A trainer holds no graph and no features: it names a split, and the servers sample, gather and send.
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from training import loader_arguments, run

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.typing import Split


def make_loader(ctx: LaunchContext, args: argparse.Namespace, split: Split, seed: int) -> Any:
    """This trainer's share of a split's batches, made by the servers."""
    ahead = 4 if split is Split.train else 1  # batches of all neighbors are large: few of them at a time
    return glt.distributed.DistNeighborLoader(
        None,
        edge_dir="in",
        collect_features=True,
        random_seed=seed,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(worker_concurrency=ahead, prefetch_size=ahead),
        shard=(ctx.rank, ctx.num_clients),
        **loader_arguments(args, split),
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One GraphSAGE trainer; started by `graphlearn-dist launch`.")
    parser.add_argument("--in-channels", type=int, required=True, help="width of the node features")
    parser.add_argument("--num-classes", type=int, required=True)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--fanout", type=lambda text: [int(k) for k in text.split(",")], default=[15, 10])
    parser.add_argument("--batch-size", type=int, default=512, help="seeds in a batch of one trainer")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train once with each, one after another")
    parser.add_argument("--out", type=Path, default=Path("result.json"), help="rank 0 writes the results here")
    return parser.parse_args()


def main() -> None:
    args, ctx = parse_args(), LaunchContext.from_environ()
    with ExitStack() as stack:
        glt.distributed.init_client(
            num_servers=ctx.num_servers,
            num_clients=ctx.num_clients,
            client_rank=ctx.rank,
            master_addr=ctx.master_addr,
            master_port=ctx.master_port,
        )
        stack.callback(glt.distributed.shutdown_client)
        store = glt.distributed.rendezvous_store()  # agreed through the servers: no port to choose
        dist.init_process_group("gloo", None, timedelta(minutes=2), ctx.num_clients, ctx.rank, store)
        stack.callback(dist.destroy_process_group)
        results = [run(ctx.rank, args, seed, partial(make_loader, ctx, args)) for seed in args.seeds]
    if ctx.rank == 0:
        args.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
