"""A trainer of prove_scale.py; started by ``graphlearn-dist launch``, like a user's."""

from __future__ import annotations

import argparse
import json
import time
from datetime import timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from graphlearn_dist.config import LaunchContext
from graphlearn_dist.distributed import (
    DistNeighborLoader,
    RemoteDistSamplingWorkerOptions,
    init_client,
    rendezvous_store,
    shutdown_client,
)
from graphlearn_dist.typing import Split

FANOUTS = [15, 10, 5]
EVALUATED_BATCHES = 20


class SAGE(torch.nn.Module):
    """GraphSAGE of three layers, each over the hops that it still needs."""

    def __init__(self, in_channels: int, hidden: int, out_channels: int) -> None:
        super().__init__()
        widths = [in_channels, hidden, hidden, out_channels]
        self.convs = torch.nn.ModuleList(SAGEConv(*pair) for pair in pairwise(widths))

    def forward(self, batch: Any) -> torch.Tensor:
        x, edge_index = batch.x.float(), batch.edge_index
        for layer, conv in enumerate(self.convs):
            nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
            x, edge_index, _ = trim_to_layer(layer, nodes, edges, x, edge_index)
            x = conv(x, edge_index)
            x = x if layer == len(self.convs) - 1 else F.relu(x)
        return x[: batch.batch_size]


def open_loader(context: LaunchContext, args: argparse.Namespace, split: Split) -> DistNeighborLoader:
    return DistNeighborLoader(
        None,
        FANOUTS,
        split,
        args.batch_size,
        shuffle=split is Split.train,
        edge_dir="in",
        collect_features=True,
        random_seed=0,
        shard=(context.rank, context.num_clients),
        locality=args.locality or None,
        worker_options=RemoteDistSamplingWorkerOptions(prefetch_size=2, buffer_size=args.buffer_size),
    )


def train(model: DistributedDataParallel, loader: DistNeighborLoader, args: argparse.Namespace) -> dict[str, Any]:
    """One pass over this trainer's batches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    losses: list[float] = []
    begin = time.monotonic()
    with Join([model]):
        for batch in islice(loader, args.max_batches or None):
            loss = F.cross_entropy(model(batch), batch.y[: batch.batch_size].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    tenth = max(len(losses) // 10, 1)
    told = [sum(part) / len(part) for part in (losses[:tenth], losses[-tenth:])]
    seconds = time.monotonic() - begin
    return {"epoch_s": seconds, "batches": len(losses), "losses": [round(each, 3) for each in told]}


@torch.no_grad()
def right_of(model: torch.nn.Module, loader: DistNeighborLoader) -> torch.Tensor:
    """Seeds whose class is told, and seeds, int64 ``[2]``."""
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in islice(loader, EVALUATED_BATCHES):
        right = model(batch).argmax(-1) == batch.y[: batch.batch_size]
        counts += torch.tensor([int(right.sum()), batch.batch_size])
    return counts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--buffer-size", default="512MB")
    parser.add_argument("--locality", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--max-batches", type=int, default=0)
    args = parser.parse_args()
    context = LaunchContext.from_environ()
    init_client(context.num_servers, context.num_clients, context.rank, context.master_addr, context.master_port)
    patience = timedelta(minutes=30)  # a batch from a disk may take its time
    dist.init_process_group("gloo", None, patience, context.num_clients, context.rank, rendezvous_store())
    torch.manual_seed(0)
    network = SAGE(128, args.hidden, 16)
    with open_loader(context, args, Split.train) as loader:
        found = train(DistributedDataParallel(network), loader, args)
        found |= {"stats": str(loader.stats()), "wait_share": loader.stats().wait_share}
    with open_loader(context, args, Split.valid) as loader:
        counts = right_of(network, loader)
    dist.all_reduce(counts)
    trainers: list[Any] = [None] * context.num_clients
    dist.all_gather_object(trainers, found)
    if context.rank == 0:
        right, evaluated = counts.tolist()
        told = {"trainers": trainers, "accuracy": right / evaluated, "evaluated": evaluated}
        args.out.write_text(json.dumps(told))
    dist.destroy_process_group()
    shutdown_client()


if __name__ == "__main__":
    main()
