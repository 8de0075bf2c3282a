"""Unsupervised link prediction: a GraphSAGE learns to tell edges from pairs that are none, without any label.

Usage: python examples/link_prediction.py [--data debian] [--epochs 8] [--smoke]

A tenth of the edges is kept for the test and is not in the graph that is trained on. Of the others, three in ten are
what is predicted in training, and the rest is what messages run along: no edge is both seen and asked for.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import datasets
import torch
import torch.nn.functional as F
from models import GraphSAGE
from scoring import roc_auc
from torch import Tensor

import graphlearn_dist as glt
from graphlearn_dist.loader import LinkNeighborLoader
from graphlearn_dist.sampler import NegativeSampling

FANOUTS = [10, 5]


@dataclass(frozen=True)
class LinkSplit:
    """Undirected edges in three parts, each pair int64 ``[2, n]`` once: seen in training, asked in training, tested."""

    seen: Tensor
    asked: Tensor
    tested: Tensor


def split_links(edge_index: Tensor, seed: int) -> LinkSplit:
    """A random tenth of the edges for the test, and three tenths of the others to be asked for in training."""
    pairs = edge_index[:, edge_index[0] < edge_index[1]]
    pairs = pairs[:, torch.randperm(pairs.size(1), generator=torch.Generator().manual_seed(seed))]
    num_tested = pairs.size(1) // 10
    num_asked = (pairs.size(1) - num_tested) * 3 // 10
    tested, asked, seen = pairs.split([num_tested, num_asked, pairs.size(1) - num_tested - num_asked], dim=1)
    return LinkSplit(seen, asked, tested)


def graph_of(pairs: Tensor, x: Tensor) -> glt.data.Dataset:
    """The graph of undirected edges, with the features of its nodes."""
    data = glt.data.Dataset(edge_dir="in")
    data.init_graph(torch.cat([pairs, pairs.flip(0)], dim=1), num_nodes=len(x))
    data.init_node_features(x)
    return data


def scores_of(model: torch.nn.Module, batch: object) -> Tensor:
    """How likely each link of a batch is, as a logit: the scalar product of what the model makes of its ends."""
    nodes = model(batch.x, batch.edge_index)
    source, target = batch.edge_label_index
    return (nodes[source] * nodes[target]).sum(dim=1)


def train_epoch(model: torch.nn.Module, loader: LinkNeighborLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the links; gives the mean loss."""
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(scores_of(model, batch), batch.edge_label)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: LinkNeighborLoader) -> float:
    """Area under the ROC curve: how often an edge scores higher than a pair that is none."""
    model.eval()
    scored = [(scores_of(model, batch), batch.edge_label) for batch in loader]
    scores, labels = (torch.cat(parts) for parts in zip(*scored, strict=True))
    return roc_auc(scores, labels == 1)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="a small generated graph and two epochs: seconds")
    args = parser.parse_args()
    if args.smoke:
        args.data, args.epochs, args.batch_size = "community:2000:16:8:32", 2, 256
    return args


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    data = datasets.load(args.data, seed=args.seed)
    links = split_links(data.edge_index, args.seed)
    known = torch.cat([links.seen, links.asked], dim=1)
    print(
        f"{data.name}: {data.num_nodes:,} nodes, {links.asked.size(1):,} links asked, {links.tested.size(1):,} tested"
    )
    train = LinkNeighborLoader(
        graph_of(links.seen, data.x),
        FANOUTS,
        edge_label_index=links.asked,
        neg_sampling="binary",
        batch_size=args.batch_size,
        shuffle=True,
        seed=args.seed,
    )
    test = LinkNeighborLoader(
        graph_of(known, data.x),
        FANOUTS,
        edge_label_index=links.tested,
        neg_sampling=NegativeSampling("binary", strict=True),
        batch_size=args.batch_size,
        seed=args.seed,
    )
    model = GraphSAGE(data.x.shape[1], args.hidden, args.hidden, len(FANOUTS), dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train, optimizer)
        print(f"epoch {epoch}/{args.epochs}: loss {loss:.3f}, {time.perf_counter() - start:.1f} s", flush=True)
    print(f"test ROC-AUC {evaluate(model, test):.4f}")


if __name__ == "__main__":
    main()
