"""Unsupervised link prediction: a GraphSAGE learns to tell edges from pairs that are none, without any label.

Usage: python examples/link_prediction.py [--mode local|collocated|mp|remote] [--data debian] [--epochs 8]
       [--exclude reverse_id|self|none] [--smoke]

A tenth of the edges is kept for the test; messages run along all others, and three in ten of these are predicted
in training. A batch leaves its own links and their reverses out, so that the model sees no edge that it is asked for;
`--exclude none` shows what is lost where it does, and `--exclude self` where it sees the reverses. docs/links.md has
the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import modes
import torch
import torch.nn.functional as F
from models import GraphSAGE
from scoring import roc_auc, rows_of_all_trainers
from torch import Tensor

from graphlearn_dist.distributed import DistLinkNeighborLoader
from graphlearn_dist.metrics import LinkMetrics
from graphlearn_dist.partition import RandomPartitioner
from graphlearn_dist.sampler import NegativeSampling

FANOUTS = [10, 5]
NUM_RANKED_AGAINST = 50  # negatives of each link whose rank is looked at


@dataclass(frozen=True)
class LinkSplit:
    """Undirected edges in two parts, each pair int64 ``[2, n]`` once: seen and asked in training, and tested."""

    seen: Tensor
    tested: Tensor


def split_links(edge_index: Tensor, seed: int) -> LinkSplit:
    """A random tenth of the edges for the test."""
    pairs = edge_index[:, edge_index[0] < edge_index[1]]
    pairs = pairs[:, torch.randperm(pairs.size(1), generator=torch.Generator().manual_seed(seed))]
    num_tested = pairs.size(1) // 10
    tested, seen = pairs.split([num_tested, pairs.size(1) - num_tested], dim=1)
    return LinkSplit(seen, tested)


def prepare(args: argparse.Namespace, out: Path, num_parts: int) -> dict[str, Any]:
    """Partitions what is seen; what is asked and tested."""
    data = datasets.load(args.data, seed=args.seed)
    links = split_links(data.edge_index, args.seed)
    num_seen = links.seen.size(1)
    asked = links.seen[:, : max(1, num_seen * 3 // 10)]
    print(f"{data.name}: {data.num_nodes:,} nodes, {asked.size(1):,} links asked, {links.tested.size(1):,} tested")
    both_directions = torch.cat([links.seen, links.seen.flip(0)], dim=1)  # edge i, and its reverse i + num_seen
    RandomPartitioner(
        out, num_parts, data.num_nodes, both_directions, node_feat=data.x, edge_assign_strategy="by_dst"
    ).partition()
    return {
        "in_channels": data.x.shape[1],
        "asked": asked,
        "tested": links.tested,
        "reverse": torch.arange(2 * num_seen).roll(num_seen),
    }


def excluding(facts: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Which edges no message passes along in a batch, as loaders take it."""
    if args.exclude == "none":
        return {}
    own = {"exclude": args.exclude, "edge_label_id": torch.arange(facts["asked"].size(1))}
    return own if args.exclude == "self" else {**own, "reverse_eids": facts["reverse"]}


def scores_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """How likely each link of a batch is, as a logit: the scalar product of what the model makes of its ends."""
    nodes = model(batch.x, batch.edge_index)
    source, target = batch.edge_label_index
    return (nodes[source] * nodes[target]).sum(dim=1)


@torch.no_grad()
def rank(model: torch.nn.Module, loader: Iterable[Any]) -> dict[str, float]:
    """Where links stand among pairs of the same source that are no edges."""
    model.eval()
    metrics = LinkMetrics(ks=(1, 10))
    for batch in loader:
        nodes = model(batch.x, batch.edge_index)
        sources = nodes[batch.src_index]
        positive = (sources * nodes[batch.dst_pos_index]).sum(dim=1)
        metrics.add(positive, (sources[:, None] * nodes[batch.dst_neg_index]).sum(dim=2))
    return metrics.compute()


def loss_of(model: torch.nn.Module, batch: Any) -> Tensor:
    """Edges are to score high, pairs that are none low."""
    return F.binary_cross_entropy_with_logits(scores_of(model, batch), batch.edge_label)


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: Iterable[Any]) -> float:
    """Area under the ROC curve: how often an edge scores higher than a pair that is none."""
    model.eval()
    scored = [torch.stack([scores_of(model, batch), batch.edge_label], dim=1) for batch in loader]
    scores, labels = rows_of_all_trainers(torch.cat([torch.empty(0, 2), *scored])).unbind(dim=1)
    return roc_auc(scores, labels == 1)


def train(place: modes.Place, facts: dict[str, Any], args: argparse.Namespace) -> None:
    """One trainer."""
    shared = {"num_neighbors": FANOUTS, "batch_size": args.batch_size, "random_seed": args.seed}
    model = GraphSAGE(facts["in_channels"], args.hidden, args.hidden, len(FANOUTS), dropout=0.0)
    asked = {"edge_label_index": facts["asked"], "neg_sampling": "binary", "shuffle": True, **excluding(facts, args)}
    with place.loader(DistLinkNeighborLoader, training=True, **asked, **shared) as loader:
        modes.fit(place, model, loss_of, loader, epochs=args.epochs, lr=args.lr)
    tested = {"edge_label_index": facts["tested"], "neg_sampling": NegativeSampling("binary", strict=True)}
    with place.loader(DistLinkNeighborLoader, training=False, **tested, **shared) as loader:
        area = evaluate(model, loader)
    ranked = {
        "edge_label_index": facts["tested"][:, : args.ranked],
        "neg_sampling": NegativeSampling("triplet", NUM_RANKED_AGAINST, strict=True),
        "batch_size": max(1, args.batch_size // NUM_RANKED_AGAINST),
    }
    with place.loader(DistLinkNeighborLoader, training=False, **{**shared, **ranked}) as loader:
        found = rank(model, loader)
    if place.rank == 0:
        print(f"test MRR {found['mrr']:.4f}, hits@1 {found['hits@1']:.4f}, hits@10 {found['hits@10']:.4f}", flush=True)
        print(f"test ROC-AUC {area:.4f}", flush=True)


def parse_args() -> argparse.Namespace:
    parser = modes.parser(__doc__)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--exclude", choices=("reverse_id", "self", "none"), default="reverse_id", help="see above")
    parser.add_argument("--ranked", type=int, default=2000, help="of how many tested links the rank is looked at")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.005)
    args = parser.parse_args()
    if args.smoke:
        args.data, args.epochs, args.batch_size, args.ranked = "community:2000:16:8:32", 2, 256, 200
    return args


if __name__ == "__main__":
    modes.main(parse_args(), prepare, train)
