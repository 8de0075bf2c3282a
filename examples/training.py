"""What every GraphSAGE trainer does, wherever batches come from: epochs under DDP, and a test of the best weights."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from metering import SyncTimer, Totals, epoch_row, line
from models import GraphSAGE
from scoring import Quality, quality_over_all_trainers
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from graphlearn_dist.typing import Split

# (split, seed) to the loader of this trainer's share of that split's batches
MakeLoader = Callable[[Split, int], Any]


def loader_arguments(args: argparse.Namespace, split: Split) -> dict[str, Any]:
    """How batches of a split are sampled: training samples neighbors and shuffles, evaluation takes all of them."""
    training = split is Split.train
    return {
        "num_neighbors": args.fanout if training else [-1] * len(args.fanout),
        "input_nodes": split,
        "batch_size": args.batch_size if training else 1024,
        "shuffle": training,
    }


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


def run(rank: int, args: argparse.Namespace, seed: int, make_loader: MakeLoader) -> dict[str, Any]:
    """Train, keep the weights of the epoch with the best validation accuracy, and test those."""
    torch.manual_seed(seed + rank)  # dropout of its own; DDP starts every trainer from rank 0's weights
    network = GraphSAGE(args.in_channels, args.hidden, args.num_classes, len(args.fanout), args.dropout)
    model = DistributedDataParallel(network)
    timer = SyncTimer(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.epochs - 1)
    rows, best = [], dict[str, Any](val_accuracy=-1.0)
    with ExitStack() as stack:
        train, valid = (stack.enter_context(make_loader(split, seed)) for split in (Split.train, Split.valid))
        began = time.time()
        for epoch in range(1, args.epochs + 1):
            start = time.perf_counter()
            totals = train_epoch(model, timer, optimizer, train)
            train_s = time.perf_counter() - start
            decay.step()
            rows.append(epoch_row(epoch, totals, train_s, evaluate(network, valid, args.num_classes).accuracy))
            if rank == 0:
                print(line(rows[-1], args.epochs), flush=True)
            if rows[-1]["val_accuracy"] > best["val_accuracy"]:
                best = {**rows[-1], "weights": copy.deepcopy(network.state_dict())}
    network.load_state_dict(best.pop("weights"))
    with ExitStack() as stack:  # now that the sampling processes of the other two are gone
        tested = evaluate(network, stack.enter_context(make_loader(Split.test, seed)), args.num_classes)
    return {"seed": seed, "began": began, "test": tested._asdict(), "best": best, "epochs": rows}
