"""GraphSAGE trained by one CUDA graph: sampling, lookup, model and optimizer are captured once and replayed per batch.

Usage: python examples/train_captured.py [--data debian] [--epochs 10]

Needs a GPU and a build with CUDA (`WITH_CUDA=on`); without them it says so and ends. docs/gpu.md explains what a step
that is captured may do.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import datasets
import torch
import torch.nn.functional as F
from models import GraphSAGE

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import CapturedStep, NeighborLoader, StaticShapes

GPU = torch.device("cuda", 0)
FANOUT = [10, 5]


def to_dataset(data: datasets.NodeDataset) -> Dataset:
    """The graph and its features in the GPU's memory; labels are read from pinned memory."""
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index, num_nodes=data.num_nodes, graph_mode="CUDA", device=0)
    dataset.init_node_features(data.x, split_ratio=1.0)
    dataset.init_node_labels(data.y)
    return dataset


def shapes_for(dataset: Dataset, seeds: torch.Tensor, batch_size: int) -> StaticShapes:
    """A quarter more than the largest of some batches has; bounds that always hold are several times larger."""
    loader = NeighborLoader(dataset, FANOUT, seeds, batch_size=batch_size, shuffle=True, seed=1)
    nodes, edges = zip(*((batch.num_nodes, batch.num_edges) for batch in loader), strict=True)
    return StaticShapes(max_nodes=max(nodes) * 5 // 4 + 1, max_edges=max(edges) * 5 // 4 + 1)


def seed_loss(scores: torch.Tensor, batch: Any) -> torch.Tensor:
    """The mean over the seeds that are there: a short last batch, or one that did not fit, has fewer."""
    each = F.cross_entropy(scores[: batch.batch_size], batch.y[: batch.batch_size], reduction="none")
    return (each * batch.seed_mask).sum() / batch.seed_mask.sum().clamp(min=1)


@torch.no_grad()
def accuracy(model: torch.nn.Module, dataset: Dataset, seeds: torch.Tensor) -> float:
    """Of the seeds, over their sampled neighborhoods."""
    model.eval()
    right = 0
    for batch in NeighborLoader(dataset, FANOUT, seeds, batch_size=1024, device=GPU):
        scores = model(batch.x, batch.edge_index)[: batch.batch_size]
        right += int((scores.argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
    return right / len(seeds)


def train(data: datasets.NodeDataset, args: argparse.Namespace) -> None:
    dataset = to_dataset(data)
    model = GraphSAGE(data.x.shape[1], 256, data.num_classes).to(GPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, capturable=True)
    shapes = shapes_for(dataset, data.train, args.batch_size)
    loader = NeighborLoader(
        dataset, FANOUT, data.train, batch_size=args.batch_size, shuffle=True, device=GPU, static_shapes=shapes
    )
    total = torch.zeros((), device=GPU)

    def step(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = seed_loss(model(batch.x, batch.edge_index), batch)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())

    steps = CapturedStep(loader, step)
    for epoch in range(args.epochs):
        model.train()
        total.zero_()
        start = time.perf_counter()
        for _ in steps:
            pass
        mean = float(total) / len(steps)
        print(f"epoch {epoch}: loss {mean:.4f}, {time.perf_counter() - start:.2f} s", flush=True)
    print(f"test accuracy {accuracy(model, dataset, data.test):.2%}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=0.003)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if not _C.cuda_is_built() or _C.cuda_device_count() == 0:
        raise SystemExit("train_captured: needs a GPU and a build with CUDA (WITH_CUDA=on); see docs/gpu.md")
    train(datasets.load(args.data), args)


if __name__ == "__main__":
    main()
