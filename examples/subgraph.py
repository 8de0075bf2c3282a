"""Node classification on induced subgraphs: a network deeper than the neighborhood it looks at.

Usage: python examples/subgraph.py [--data debian] [--epochs 6] [--smoke]

Each batch is the subgraph that its seeds and their sampled neighbors induce, with all edges between them, so that three
convolutions run over a two-hop neighborhood (Zeng et al., "Decoupling the depth and scope of graph neural networks",
NeurIPS 2021). The loss looks at the seeds, which `mapping` finds in the batch.
"""

from __future__ import annotations

import argparse
import time

import datasets
import torch
import torch.nn.functional as F
from datasets import NodeDataset
from models import GraphSAGE
from scoring import quality
from torch import Tensor

import graphlearn_dist as glt
from graphlearn_dist.loader import SubGraphLoader

FANOUTS = [10, 5]
NUM_LAYERS = 3


def loader_of(data: NodeDataset, seeds: Tensor, args: argparse.Namespace, *, training: bool) -> SubGraphLoader:
    """The subgraphs around some nodes."""
    dataset = glt.data.Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index, num_nodes=data.num_nodes)
    dataset.init_node_features(data.x)
    dataset.init_node_labels(data.y)
    return SubGraphLoader(dataset, seeds, FANOUTS, batch_size=args.batch_size, shuffle=training, seed=args.seed)


def train_epoch(model: torch.nn.Module, loader: SubGraphLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the seeds; gives the mean loss."""
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        scores = model(batch.x, batch.edge_index)[batch.mapping]
        loss = F.cross_entropy(scores, batch.y[batch.mapping])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: SubGraphLoader) -> float:
    """The share of seeds whose class is right."""
    model.eval()
    found = [(model(batch.x, batch.edge_index)[batch.mapping], batch.y[batch.mapping]) for batch in loader]
    scores, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return quality(scores, labels).accuracy


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a small generated graph and two epochs: seconds")
    args = parser.parse_args()
    if args.smoke:
        args.data, args.epochs, args.batch_size = "community:2000:16:8:32", 2, 128
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    data = datasets.load(args.data, seed=args.seed)
    print(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_classes} classes")
    train = loader_of(data, data.train, args, training=True)
    test = loader_of(data, data.test, args, training=False)
    model = GraphSAGE(data.x.shape[1], args.hidden, data.num_classes, NUM_LAYERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train, optimizer)
        print(f"epoch {epoch}/{args.epochs}: loss {loss:.3f}, {time.perf_counter() - start:.1f} s", flush=True)
    print(f"test accuracy {evaluate(model, test):.2%}")


if __name__ == "__main__":
    main()
