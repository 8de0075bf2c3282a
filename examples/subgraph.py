"""Node classification on induced subgraphs: a network deeper than the neighborhood it looks at.

Usage: python examples/subgraph.py [--mode local|collocated|mp|remote] [--data debian] [--epochs 6] [--smoke]

Each batch is the subgraph that its seeds and their sampled neighbors induce, with all edges between them, so that three
convolutions run over a two-hop neighborhood (Zeng et al., "Decoupling the depth and scope of graph neural networks",
NeurIPS 2021). The loss looks at the seeds, which `mapping` finds in the batch. On `debian` it gets 76.2 % of
the test nodes right in one process, and 75.4 % with two trainers, whose batches together are twice as large.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import modes
import torch
import torch.nn.functional as F
from job import partition
from models import GraphSAGE
from scoring import quality_over_all_trainers
from torch import Tensor

from graphlearn_dist.distributed import DistSubGraphLoader
from graphlearn_dist.typing import Split

FANOUTS = [10, 5]
NUM_LAYERS = 3


def prepare(args: argparse.Namespace, out: Path, num_parts: int) -> dict[str, Any]:
    """Partitions the graph; its shape."""
    data = datasets.load(args.data, seed=args.seed)
    print(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_classes} classes")
    partition(data, out, num_parts)
    return {"in_channels": data.x.shape[1], "num_classes": data.num_classes}


def scores_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """Class scores of the seeds, float32 ``[batch_size, num_classes]``."""
    return model(batch.x, batch.edge_index)[batch.mapping]


def loss_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """Of the seeds' scores."""
    return F.cross_entropy(scores_of(model, batch), batch.y[batch.mapping])


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Iterable[Any], num_classes: int) -> float:
    """The share of seeds whose class is right."""
    model.eval()
    found = [(scores_of(model, batch), batch.y[batch.mapping]) for batch in loader]
    scores, labels = ([pair[i] for pair in found] for i in range(2))
    return quality_over_all_trainers(scores, labels, num_classes).accuracy


def train(place: modes.Place, facts: dict[str, Any], args: argparse.Namespace) -> None:
    """One trainer."""
    shared = {"num_neighbors": FANOUTS, "batch_size": args.batch_size, "random_seed": args.seed}
    model = GraphSAGE(facts["in_channels"], args.hidden, facts["num_classes"], NUM_LAYERS)
    with place.loader(DistSubGraphLoader, training=True, input_nodes=Split.train, shuffle=True, **shared) as loader:
        modes.fit(place, model, loss_of, loader, epochs=args.epochs, lr=args.lr)
    with place.loader(DistSubGraphLoader, training=False, input_nodes=Split.test, **shared) as loader:
        accuracy = evaluate(model, loader, facts["num_classes"])
    if place.rank == 0:
        print(f"test accuracy {accuracy:.2%}", flush=True)


def parse_args() -> argparse.Namespace:
    parser = modes.parser(__doc__)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()
    if args.smoke:
        args.data, args.epochs, args.batch_size = "community:2000:16:8:32", 2, 64
    return args


if __name__ == "__main__":
    modes.main(parse_args(), prepare, train)
