"""One trainer of a GraphSAGE job: batches come from the graph servers, gradients are averaged among the trainers.

Run: graphlearn-dist launch --data DIR --servers 2 --trainers 2 examples/train_sage_remote.py \\
         --in-channels 128 --num-classes 58 --out result.json

A trainer holds no graph and no features: it names a split, and the servers sample, gather and send.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from metering import SyncTimer, Totals, epoch_row, line
from models import GraphSAGE
from scoring import Quality, quality_over_all_trainers
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.typing import Split


def make_loader(ctx: LaunchContext, args: argparse.Namespace, split: Split, seed: int, stack: ExitStack) -> Any:
    """This trainer's share of a split's batches: training samples neighbors and shuffles, evaluation takes all."""
    training = split is Split.train
    ahead = 4 if training else 1  # batches of all neighbors are large: few of them at a time
    loader = glt.distributed.DistNeighborLoader(
        None,
        args.fanout if training else [-1] * len(args.fanout),
        input_nodes=split,
        batch_size=args.batch_size if training else 1024,
        shuffle=training,
        edge_dir="in",
        collect_features=True,
        random_seed=seed,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(worker_concurrency=ahead, prefetch_size=ahead),
        shard=(ctx.rank, ctx.num_clients),
    )
    stack.callback(loader.shutdown)
    return loader


def train_epoch(
    model: DistributedDataParallel, timer: SyncTimer, optimizer: torch.optim.Optimizer, loader: Iterable[Any]
) -> Totals:
    """One pass over this trainer's batches."""
    model.train()
    totals = Totals()
    asked = time.perf_counter()
    with Join([model]):  # trainers may differ by one batch: who is through takes part in the others' exchanges
        for batch in loader:
            came = time.perf_counter()
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            sync_s = time.perf_counter() - timer.started
            optimizer.step()
            compute_s = time.perf_counter() - came - sync_s
            totals.add(batch, loss, wait_s=came - asked, compute_s=compute_s, sync_s=sync_s)
            asked = time.perf_counter()
    return totals.over_all_trainers()


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Iterable[Any], num_classes: int) -> Quality:
    """How good the model is on the whole split, each trainer doing its share, with all neighbors of every node."""
    model.eval()
    scores, labels = [], []
    for batch in loader:
        scores.append(model(batch.x, batch.edge_index)[: batch.batch_size])
        labels.append(batch.y[: batch.batch_size])
    return quality_over_all_trainers(scores, labels, num_classes)


def run(ctx: LaunchContext, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train, keep the weights of the epoch with the best validation accuracy, and test those."""
    torch.manual_seed(seed + ctx.rank)  # dropout of its own; DDP starts every trainer from rank 0's weights
    network = GraphSAGE(args.in_channels, args.hidden, args.num_classes, len(args.fanout), args.dropout)
    model = DistributedDataParallel(network)
    timer = SyncTimer(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.epochs - 1)
    rows, best = [], dict[str, Any](val_accuracy=-1.0)
    with ExitStack() as stack:
        train, valid = (make_loader(ctx, args, split, seed, stack) for split in (Split.train, Split.valid))
        for epoch in range(1, args.epochs + 1):
            start = time.perf_counter()
            totals = train_epoch(model, timer, optimizer, train)
            train_s = time.perf_counter() - start
            decay.step()
            rows.append(epoch_row(epoch, totals, train_s, evaluate(network, valid, args.num_classes).accuracy))
            if ctx.rank == 0:
                print(line(rows[-1], args.epochs), flush=True)
            if rows[-1]["val_accuracy"] > best["val_accuracy"]:
                best = {**rows[-1], "weights": copy.deepcopy(network.state_dict())}
    network.load_state_dict(best.pop("weights"))
    with ExitStack() as stack:  # now that the sampling processes of the other two are gone
        tested = evaluate(network, make_loader(ctx, args, Split.test, seed, stack), args.num_classes)
    return {"seed": seed, "test": tested._asdict(), "best": best, "epochs": rows}


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
        results = [run(ctx, args, seed) for seed in args.seeds]
    if ctx.rank == 0:
        args.out.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
