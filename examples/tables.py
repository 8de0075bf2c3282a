"""From typed tables to a trained model: build partitions, train with two servers, stop, go on, evaluate.

Usage: python examples/tables.py [--users 50000] [--items 20000] [--purchases 1000000] [--workdir DIR] [--smoke]

Users have texts as ids and a segment that is to be told; items have a category, and who is in a segment buys of its
categories more often. All that is said of the data is the config below. The trainer asks its servers for the rest:
names of classes and columns of features are in the schema of the data set. It is stopped after half of the batches, in
the middle of an epoch, and started again, as a job that was killed is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from job import launched
from torch import Tensor
from torch_geometric.nn import HeteroConv, SAGEConv

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.tables import build
from graphlearn_dist.typing import Split

CONFIG = """
nodes:
- node_type: user
  node_id_col: name
  files: users-*.parquet
  features:
  - feature_col: [age, visits]
  labels:
  - label_col: segment
    split_pct: [0.6, 0.2, 0.2]
- node_type: item
  node_id_col: sku
  files: items.parquet
  features:
  - feature_col: [price, about]
edges:
- relation: [user, buys, item]
  source_id_col: user
  dest_id_col: item
  files: purchases-*.parquet
  time_col: second
  weight_col: amount
  reverse: true
"""
SEGMENTS = np.array(["bargains", "books", "garden", "games"])
FANOUTS = [10, 5]


def write_tables(folder: Path, args: argparse.Namespace) -> None:
    """Files as a shop may have them, and the config of a build."""
    random = np.random.default_rng(args.seed)
    segment, category = random.integers(0, len(SEGMENTS), args.users), random.integers(0, 12, args.items)
    names = np.char.add("customer-", random.permutation(10 * args.users)[: args.users].astype("U9"))
    for i, rows in enumerate(np.array_split(np.arange(args.users), 2)):
        users = {
            "name": names[rows],
            "age": random.integers(18, 90, len(rows)),
            "visits": random.random(len(rows)),
            "segment": SEGMENTS[segment[rows]],
        }
        pq.write_table(pa.table(users), folder / f"users-{i}.parquet")
    skus = random.permutation(10 * args.items)[: args.items] + 1_000_000
    about = (np.eye(12, dtype=np.float32)[category] + random.normal(size=(args.items, 12)) * 0.3).astype(np.float32)
    items = {"sku": skus, "price": random.random(args.items), "about": list(about)}
    pq.write_table(pa.table(items), folder / "items.parquet")
    by_category = np.argsort(category, kind="stable")
    starts = np.searchsorted(category[by_category], np.arange(13))
    for i in range(4):
        count = args.purchases // 4
        buyer = random.integers(0, args.users, count)
        wanted = segment[buyer] * 3 + random.integers(0, 3, count)
        own = by_category[starts[wanted] + (random.random(count) * (starts[wanted + 1] - starts[wanted])).astype(int)]
        bought = np.where(random.random(count) < 0.3, own, random.integers(0, args.items, count))
        purchases = {
            "user": names[buyer],
            "item": skus[bought],
            "second": random.integers(1_700_000_000, 1_760_000_000, count),
            "amount": random.random(count).astype(np.float32),
        }
        pq.write_table(pa.table(purchases), folder / f"purchases-{i}.parquet")
    (folder / "shop.yaml").write_text(CONFIG)


class ShopSAGE(torch.nn.Module):
    """GraphSAGE with weights of its own for each edge type; its widths come from the schema and the first batch."""

    def __init__(self, edge_types: Iterable[tuple[str, str, str]], hidden: int, num_classes: int) -> None:
        super().__init__()
        self.project = torch.nn.ModuleDict({name: torch.nn.LazyLinear(hidden) for name in ("user", "item")})
        self.convs = torch.nn.ModuleList(
            HeteroConv({name: SAGEConv((hidden, hidden), hidden) for name in edge_types}) for _ in FANOUTS
        )
        self.classify = torch.nn.Linear(hidden, num_classes)

    def forward(self, batch: Any) -> Tensor:
        """Scores of the seeds' segments, float32 ``[batch_size, num_classes]``."""
        scale = {"user": torch.tensor([0.01, 1.0]), "item": 1.0}
        h = {name: F.relu(layer(batch[name].x * scale[name])) for name, layer in self.project.items()}
        for conv in self.convs:
            h = h | {name: F.relu(h[name] + update) for name, update in conv(h, batch.edge_index_dict).items()}
        return self.classify(h["user"][: batch["user"].batch_size])


def loader_of(split: Split, *, training: bool, seed: int) -> Any:
    """Batches of a split of the users, made by the servers."""
    return glt.distributed.DistNeighborLoader(
        None,
        num_neighbors=FANOUTS,
        input_nodes=("user", split),
        batch_size=1024,
        shuffle=training,
        edge_dir="in",
        collect_features=True,
        random_seed=seed,
        temporal_strategy=None,  # a segment is told from all purchases, whenever they were
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(),
    )


@torch.no_grad()
def accuracy(model: torch.nn.Module, split: Split, seed: int) -> float:
    """The share of a split's users whose segment is told."""
    model.eval()
    right = total = 0
    with loader_of(split, training=False, seed=seed) as loader:
        for batch in loader:
            labels = batch["user"].y[: batch["user"].batch_size]
            right += int((model(batch).argmax(dim=1) == labels).sum())
            total += len(labels)
    return right / total


def train(args: argparse.Namespace) -> None:
    """Trains until the epochs, or ``--stop-after`` batches, are over; goes on from a checkpoint where there is one."""
    schema = glt.distributed.ServedDataset.connect().schema
    classes = schema.class_names("user")
    print(f"segments {', '.join(classes)}; features of users {', '.join(schema.feature_columns('user'))}", flush=True)
    torch.manual_seed(args.seed)
    model = ShopSAGE(schema.edge_types, 64, len(classes))
    with loader_of(Split.train, training=True, seed=args.seed) as loader:
        with loader_of(Split.valid, training=False, seed=args.seed) as sample:
            model(next(iter(sample)))  # the widths
        optimizer, start, batches = torch.optim.Adam(model.parameters(), lr=0.005), 0, 0
        if args.checkpoint.exists():
            saved = torch.load(args.checkpoint)
            for part, name in ((model, "model"), (optimizer, "optimizer"), (loader, "loader")):
                part.load_state_dict(saved[name])
            start = saved["loader"]["epoch"]
            print(f"goes on in epoch {start + 1}, batch {saved['loader']['next_batch'] + 1}", flush=True)
        for epoch in range(start, args.epochs):
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(batch), batch["user"].y[: batch["user"].batch_size])
                loss.backward()
                optimizer.step()
                batches += 1
                if batches == args.stop_after:
                    parts = {"model": model, "optimizer": optimizer, "loader": loader}
                    torch.save({name: part.state_dict() for name, part in parts.items()}, args.checkpoint)
                    print(f"stopped in epoch {epoch + 1}, after {batches} batches", flush=True)
                    return
            shown = accuracy(model, Split.valid, args.seed)
            print(
                f"epoch {epoch + 1}/{args.epochs}: loss {float(loss.detach()):.3f}, validation {shown:.2%}", flush=True
            )
    print(f"test accuracy {accuracy(model, Split.test, args.seed):.2%}", flush=True)


def trainer(args: argparse.Namespace) -> None:
    """What the launcher starts beside the servers."""
    ctx = LaunchContext.from_environ()
    torch.set_num_threads(1)
    glt.distributed.init_client(ctx.num_servers, ctx.num_clients, ctx.rank, ctx.master_addr, ctx.master_port)
    with ExitStack() as stack:
        stack.callback(glt.distributed.shutdown_client)
        train(args)


def launch(partitions: Path, args: argparse.Namespace, *options: str) -> None:
    """Two servers, and this program as the trainer."""
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", str(partitions), "--servers", "2"]
    command += [__file__, "--epochs", str(args.epochs), "--seed", str(args.seed), *options]
    with launched(command) as process:
        if code := process.wait():
            raise SystemExit(code)


def demonstrate(args: argparse.Namespace, folder: Path) -> None:
    """The whole way."""
    if not (folder / "shop.yaml").exists():
        write_tables(folder, args)
    partitions = build(folder / "shop.yaml", folder / "partitions", num_parts=2, memory="2GB", progress=_say)
    checkpoint = ["--checkpoint", str(folder / "checkpoint.pt")]
    batches = max(int(0.6 * args.users / 1024 * args.epochs / 2) - 1, 1)
    launch(partitions, args, *checkpoint, "--stop-after", str(batches))
    launch(partitions, args, *checkpoint)


def _say(progress: Any) -> None:
    if progress.finished:
        print(progress, flush=True)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=50_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--purchases", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", type=Path, help="where tables and partitions are written; else a temporary folder")
    parser.add_argument("--smoke", action="store_true", help="small tables: does it run?")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"), help=argparse.SUPPRESS)
    parser.add_argument("--stop-after", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.smoke:
        args.users, args.items, args.purchases, args.epochs = 4000, 1000, 40_000, 2
    return args


def main() -> None:
    args = parse_args()
    if "GLD_ROLE" in os.environ:
        trainer(args)
        return
    with tempfile.TemporaryDirectory(prefix="graphlearn-dist-") as temporary:
        folder = args.workdir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        demonstrate(args, folder)


if __name__ == "__main__":
    main()
