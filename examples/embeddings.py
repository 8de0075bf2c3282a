"""Nodes without features: rows that are learned on servers, a model over them, and what it gives for all nodes.

Usage: python examples/embeddings.py [--users 20000] [--items 5000] [--purchases 400000] [--workdir DIR] [--smoke]
       python examples/embeddings.py --data debian [--workdir DIR]

The tables are those of ``tables.py``, of which nothing but ids, purchases and segments is taken. Two servers own a
learned row for each user and item; two trainers learn these and a model, whose gradients are averaged. Then the model's
rows of all users go to Parquet files, by the ids of the tables. ``--data`` takes a graph of ``datasets.py`` in place of
the shop: its nodes are the users, their classes the segments, and what they have edges to are items.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tables
import torch
import torch.distributed as dist
import torch.nn.functional as F
from job import launched
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import HeteroConv, SAGEConv

import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext
from graphlearn_dist.inference import InferenceOptions, infer
from graphlearn_dist.tables import IdMap, build
from graphlearn_dist.typing import Split

CONFIG = """
nodes:
- node_type: user
  node_id_col: name
  files: users-*.parquet
  labels: [{label_col: segment, split_pct: [0.6, 0.2, 0.2]}]
- {node_type: item, node_id_col: sku, files: items.parquet}
edges:
- {relation: [user, buys, item], source_id_col: user, dest_id_col: item, files: purchases-*.parquet, reverse: true}
"""
DIM, HIDDEN = 32, 64
EDGE_TYPES = [("user", "buys", "item"), ("item", "rev_buys", "user")]


class Shop(torch.nn.Module):
    """Two layers over learned rows; the second one gives scores of segments."""

    def __init__(self, num_segments: int) -> None:
        super().__init__()
        self.first = HeteroConv({name: SAGEConv((DIM, DIM), HIDDEN) for name in EDGE_TYPES})
        self.second = SAGEConv((HIDDEN, HIDDEN), num_segments)  # of users alone

    def hidden(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        """The first layer."""
        return {name: F.relu(rows) for name, rows in self.first(x, edges).items()}

    def scores(self, hidden: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        """The second layer: scores of users' segments, float32 ``[n, segments]``."""
        return {"user": self.second((hidden["item"], hidden["user"]), edges[EDGE_TYPES[1]])}

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        """Scores of the users of a batch."""
        return self.scores(self.hidden(x, edges), edges)["user"]

    def inference_layers(self) -> list[Any]:
        """What ``infer`` does one after the other, each for all nodes."""
        return [self.hidden, self.scores]


def train(args: argparse.Namespace, ctx: LaunchContext) -> None:
    """One of the trainers."""
    sizes = glt.distributed.ServedDataset.connect().schema
    rows = {
        name: glt.DistEmbedding(count, DIM, name=name, node_type=name, scale=0.1)
        for name, count in zip(sizes.node_types, sizes.num_nodes, strict=True)
    }
    torch.manual_seed(args.seed)
    model = Shop(args.segments)
    parallel = DistributedDataParallel(model)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), glt.SparseAdam(rows.values(), lr=0.01)]
    loader = glt.distributed.DistNeighborLoader(
        None,
        [15, 10],
        ("user", Split.train),
        batch_size=256,
        shuffle=True,
        edge_dir="in",
        collect_labels=True,
        random_seed=args.seed,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(),
        shard=(ctx.rank, ctx.num_clients),
        embeddings=rows,
    )
    steps = loader.dataset.stop // 256 // ctx.num_clients  # as many for each
    for epoch in range(args.epochs):
        for batch in itertools.islice(loader, steps):
            scores = parallel(batch.x_dict, batch.edge_index_dict)[: batch["user"].batch_size]
            loss = F.cross_entropy(scores, batch["user"].y[: batch["user"].batch_size])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if ctx.rank == 0:
            print(f"epoch {epoch + 1}: loss {float(loss.detach()):.3f}", flush=True)
    loader.shutdown()
    if ctx.rank == 0:
        for name, each in rows.items():
            each.save(args.workdir / "checkpoint" / name)
        torch.save(model.state_dict(), args.workdir / "checkpoint" / "model.pt")
    dist.barrier()  # nobody leaves while rows are saved


def trainer(args: argparse.Namespace) -> None:
    """What the launcher starts beside the servers."""
    ctx = LaunchContext.from_environ()
    with ExitStack() as stack:
        glt.distributed.init_client(ctx.num_servers, ctx.num_clients, ctx.rank, ctx.master_addr, ctx.master_port)
        stack.callback(glt.distributed.shutdown_client)
        store = glt.distributed.rendezvous_store()
        dist.init_process_group("gloo", None, timedelta(minutes=5), ctx.num_clients, ctx.rank, store)
        stack.callback(dist.destroy_process_group)
        train(args, ctx)


def write_graph(folder: Path, spec: str) -> None:
    """The tables of a graph of ``datasets.py``, without its features."""
    graph = datasets.load(spec)
    names = np.char.add("node-", np.arange(graph.num_nodes).astype("U9"))
    segments = np.char.add("class-", graph.y.numpy().astype("U4"))
    ends = graph.edge_index.numpy()
    pq.write_table(pa.table({"name": names, "segment": segments}), folder / "users-0.parquet")
    pq.write_table(pa.table({"sku": np.arange(graph.num_nodes) + 1_000_000}), folder / "items.parquet")
    purchases = pa.table({"user": names[ends[0]], "item": ends[1] + 1_000_000})
    pq.write_table(purchases, folder / "purchases-0.parquet")


def segments_by_name(folder: Path) -> dict[str, str]:
    """What the tables say of their users."""
    users = pq.read_table(sorted(folder.glob("users-*.parquet")))
    return dict(zip(users["name"].to_pylist(), users["segment"].to_pylist(), strict=True))


def demonstrate(args: argparse.Namespace) -> None:
    """The whole way."""
    folder = args.workdir
    if args.data is None:
        tables.write_tables(folder, args)
    else:
        write_graph(folder, args.data)
    args.segments = len({*segments_by_name(folder).values()})
    (folder / "ids.yaml").write_text(CONFIG)
    partitions = build(folder / "ids.yaml", folder / "partitions", num_parts=2, memory="2GB")
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--data", str(partitions), "--servers", "2"]
    command += ["--trainers", "2", __file__, "--workdir", str(folder), "--epochs", str(args.epochs)]
    with launched([*command, "--seed", str(args.seed), "--segments", str(args.segments)]) as process:
        if code := process.wait():
            raise SystemExit(code)
    model = Shop(args.segments)
    model.load_state_dict(torch.load(folder / "checkpoint" / "model.pt"))
    rows = {name: glt.DistEmbedding.from_checkpoint(folder / "checkpoint" / name) for name in ("user", "item")}
    options = InferenceOptions(format="parquet", node_types=("user",))
    infer(model, partitions, folder / "rows", options=options, embeddings=rows)
    say_how_good(folder, partitions)


def say_how_good(folder: Path, partitions: Path) -> None:
    """Reads what was written, and compares it with the tables by their ids."""
    written = pq.read_table(folder / "rows" / "user")
    scores = torch.tensor(written["embedding"].to_pylist())
    found = dict(zip(written["id"].to_pylist(), scores.argmax(dim=1).tolist(), strict=True))
    segments, test = segments_by_name(folder), []
    for part in range(2):
        data = glt.distributed.DistDataset()
        data.load(partitions, part)
        test += IdMap(partitions, "user").original_ids(data.split_ids(Split.test, "user")).to_pylist()
    classes = sorted({*segments.values()})
    right = sum(classes[found[name]] == segments[name] for name in test)
    print(f"{len(found):,} users written; segments of {right / len(test):.2%} of the test users are told")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="SPEC", help="a graph of datasets.py, such as debian, and not the shop")
    parser.add_argument("--segments", type=int, help=argparse.SUPPRESS)  # what a trainer is told
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--purchases", type=int, default=400_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workdir", type=Path, help="for tables, partitions and results; a temporary one by default")
    parser.add_argument("--smoke", action="store_true", help="small tables: does it run?")
    args = parser.parse_args()
    if args.smoke:
        args.users, args.items, args.purchases, args.epochs = 3000, 500, 60_000, 4
    return args


def main() -> None:
    args = parse_args()
    if "GLD_ROLE" in os.environ:
        trainer(args)
        return
    with tempfile.TemporaryDirectory(prefix="graphlearn-dist-") as temporary:
        args.workdir = args.workdir or Path(temporary)
        args.workdir.mkdir(parents=True, exist_ok=True)
        demonstrate(args)


if __name__ == "__main__":
    main()
