"""Rows of all nodes beside training, on the same servers: one process trains, another one infers.

Usage: python examples/inference.py [--data SPEC] [--epochs 4] [--workdir DIR] [--smoke]

The job is two servers and two of their clients. The first client trains and hands over its weights after each epoch.
The second one infers: it computes the rows of all nodes with each of these weights, layer by layer over all neighbors,
while training goes on, and says how many test nodes they classify. The rows of the last epoch are left in files, from
which pairs of nodes are scored.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from job import launched, partition
from torch_geometric.nn import GraphSAGE

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.inference import infer, open_results, score_pairs
from graphlearn_dist.typing import Split


def make_model(args: argparse.Namespace) -> GraphSAGE:
    torch.manual_seed(args.seed)
    return GraphSAGE(args.in_channels, 64, num_layers=2, out_channels=args.num_classes, dropout=0.3)


def train(args: argparse.Namespace, store: torch.distributed.Store) -> None:
    """Trains, and puts the weights of each epoch where the other process waits for them."""
    loader = glt.distributed.DistNeighborLoader(
        None,
        [10, 10],
        input_nodes=Split.train,
        batch_size=512,
        shuffle=True,
        edge_dir="in",
        collect_features=True,
        random_seed=args.seed,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(),
    )
    model = make_model(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        losses = []
        for batch in loader:
            optimizer.zero_grad()
            scores = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(scores, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        weights = io.BytesIO()
        torch.save(model.state_dict(), weights)
        store.set(f"weights{epoch}", weights.getvalue())
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
    loader.shutdown()
    store.wait(["taken"])  # this process has the store


def infer_beside(args: argparse.Namespace, store: torch.distributed.Store) -> None:
    """Rows of all nodes with the weights of each epoch, as soon as they are there."""
    served = glt.distributed.ServedDataset.connect()
    truth = torch.from_numpy(np.load(args.workdir / "truth.npy"))
    test = torch.from_numpy(np.load(args.workdir / "test.npy"))
    model = make_model(args)
    for epoch in range(args.epochs):
        model.load_state_dict(torch.load(io.BytesIO(store.get(f"weights{epoch}")), weights_only=True))
        if epoch == args.epochs - 1:
            store.set("taken", b"")
        out = args.workdir / "rows" if epoch == args.epochs - 1 else None
        rows = infer(model, served, out).rows()
        accuracy = (rows[test].argmax(dim=1) == truth[test]).float().mean().item()
        print(f"rows of epoch {epoch}: {len(rows):,} nodes, test accuracy {accuracy:.2%}", flush=True)


def run_client(args: argparse.Namespace, ctx: LaunchContext) -> None:
    """One of the two clients, by its rank."""
    with ExitStack() as stack:
        glt.distributed.init_client(
            num_servers=ctx.num_servers,
            num_clients=ctx.num_clients,
            client_rank=ctx.rank,
            master_addr=ctx.master_addr,
            master_port=ctx.master_port,
        )
        stack.callback(glt.distributed.shutdown_client)
        store = glt.distributed.rendezvous_store()
        store.set_timeout(timedelta(hours=1))  # of an epoch
        (train if ctx.rank == 0 else infer_beside)(args, store)


def run_job(args: argparse.Namespace) -> None:
    """Partitions, the job, and what it left."""
    data = datasets.load(args.data, seed=args.seed)
    partition(data, args.workdir / "partitions", 2)
    np.save(args.workdir / "truth.npy", data.y.numpy())
    np.save(args.workdir / "test.npy", data.test.numpy())
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", str(args.workdir / "partitions")]
    command += ["--servers", "2", "--trainers", "2", __file__, "--workdir", str(args.workdir)]
    command += ["--epochs", str(args.epochs), "--seed", str(args.seed)]
    command += ["--in-channels", str(data.x.size(1)), "--num-classes", str(int(data.y.max()) + 1)]
    with launched(command) as process:
        if code := process.wait():
            sys.exit(code)
    results = open_results(args.workdir / "rows")
    edges, draw = data.edge_index[:, :10_000], torch.Generator().manual_seed(args.seed)
    pairs = torch.stack([edges[0], torch.randint(data.num_nodes, (edges.size(1),), generator=draw)])
    joined, drawn = (score_pairs(results, each, score=F.cosine_similarity).mean().item() for each in (edges, pairs))
    print(f"cosine of rows: {joined:.3f} of neighbors, {drawn:.3f} of pairs drawn at random")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Inference beside training, on the same servers.")
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", type=Path, help="for partitions and results; a temporary one by default")
    parser.add_argument("--smoke", action="store_true", help="a small generated graph, two epochs")
    parser.add_argument("--in-channels", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--num-classes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        args.data, args.epochs = "community:2000:8:4:16", 2
    return args


def main() -> None:
    args = parse_args()
    if "GLD_ROLE" in os.environ:
        run_client(args, LaunchContext.from_environ())
        return
    with tempfile.TemporaryDirectory() as temporary:
        args.workdir = args.workdir or Path(temporary)
        args.workdir.mkdir(parents=True, exist_ok=True)
        run_job(args)


if __name__ == "__main__":
    main()
