"""Node classification in a heterogeneous graph: packages of a Linux distribution, their sources, and people.

Usage: python examples/hetero.py [--epochs 4] [--smoke]

Packages relate to each other, are built from sources, and sources have maintainers and uploaders. Packages have the
features and the classes (archive sections) of the data set `debian`; sources and people have none, and are known by
their neighbors alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import torch.nn.functional as F
from scoring import quality
from torch import Tensor
from torch_geometric.nn import HeteroConv, SAGEConv

import graphlearn_dist as glt
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.typing import EdgeType, NodeType, reverse_edge_type

PEOPLE = Path(__file__).resolve().parent / "data" / "debian_people.npz"
RELATES = ("package", "relates", "package")
BUILDS = ("source", "builds", "package")
KEEPS = ("person", "keeps", "source")
FANOUTS = [10, 5]


@dataclass(frozen=True)
class TypedGraph:
    """A heterogeneous graph whose packages are to be classified.

    Attributes:
        num_nodes: by node type.
        edges: by edge type int64 ``[2, num_edges]``; the types between two kinds of nodes in both directions.
        packages: features, classes and split of the packages.
    """

    num_nodes: dict[NodeType, int]
    edges: dict[EdgeType, Tensor]
    packages: datasets.NodeDataset


def debian_people() -> TypedGraph:
    """The embedded graph, with sources and people."""
    packages = datasets.load("debian")
    with np.load(PEOPLE, allow_pickle=False) as archive:
        arrays = {name: torch.from_numpy(archive[name].astype(np.int64)) for name in archive.files}
    source_of, maintainer = arrays["source_of_package"], arrays["maintainer_of_source"]
    sources, people = arrays["uploaded_by"]
    kept_by = torch.stack([torch.cat([maintainer, people]), torch.cat([torch.arange(len(maintainer)), sources])])
    edges = {
        RELATES: packages.edge_index,
        BUILDS: torch.stack([source_of, torch.arange(len(source_of))]),
        KEEPS: kept_by.unique(dim=1),
    }
    edges |= {reverse_edge_type(name): edges[name].flip(0) for name in (BUILDS, KEEPS)}
    counts = {"package": packages.num_nodes, "source": len(maintainer), "person": int(arrays["num_people"])}
    return TypedGraph(counts, edges, packages)


class HeteroSAGE(torch.nn.Module):
    """GraphSAGE with weights of its own for each edge type. Types without features begin at zero.

    Args:
        node_types: node types.
        edge_types: edge types.
        in_channels: width of the packages' features.
        hidden: width between the layers.
        num_classes: classes of packages.
    """

    def __init__(
        self, node_types: list[NodeType], edge_types: list[EdgeType], in_channels: int, hidden: int, num_classes: int
    ) -> None:
        super().__init__()
        self.node_types = node_types
        self.hidden = hidden
        self.project = torch.nn.Linear(in_channels, hidden)
        self.convs = torch.nn.ModuleList(
            HeteroConv({name: SAGEConv((hidden, hidden), hidden) for name in edge_types}) for _ in FANOUTS
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden) for _ in FANOUTS)
        self.classify = torch.nn.Linear(hidden, num_classes)

    def forward(self, batch: Any) -> Tensor:
        """Class scores of the batch's seeds, float32 ``[batch_size, num_classes]``."""
        h = {name: torch.zeros(batch[name].num_nodes, self.hidden) for name in self.node_types}
        h["package"] = self.project(batch["package"].x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = h | {name: F.relu(norm(h[name] + update)) for name, update in conv(h, batch.edge_index_dict).items()}
        return self.classify(h["package"][: batch["package"].batch_size])


def loader_of(graph: TypedGraph, seeds: Tensor, args: argparse.Namespace, *, training: bool) -> NeighborLoader:
    """The sampled neighborhoods of some packages."""
    data = glt.data.Dataset(edge_dir="in")
    data.init_graph(graph.edges, num_nodes=graph.num_nodes)
    data.init_node_features({"package": graph.packages.x})
    data.init_node_labels({"package": graph.packages.y})
    return NeighborLoader(
        data, FANOUTS, ("package", seeds), batch_size=args.batch_size, shuffle=training, seed=args.seed
    )


def train_epoch(model: HeteroSAGE, loader: NeighborLoader, optimizer: torch.optim.Optimizer) -> float:
    """One pass over the seeds; gives the mean loss."""
    model.train()
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch["package"].y[: batch["package"].batch_size])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


@torch.no_grad()
def evaluate(model: HeteroSAGE, loader: NeighborLoader) -> float:
    """The share of seeds whose class is right."""
    model.eval()
    found = [(model(batch), batch["package"].y[: batch["package"].batch_size]) for batch in loader]
    scores, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return quality(scores, labels).accuracy


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="few seeds and one epoch: seconds")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    graph = debian_people()
    seeds, tested = graph.packages.train, graph.packages.test
    if args.smoke:
        args.epochs, args.batch_size, seeds, tested = 1, 128, seeds[::8], tested[::16]
    sizes = ", ".join(f"{count:,} of type {name}" for name, count in graph.num_nodes.items())
    print(f"{sizes}; {sum(edges.size(1) for edges in graph.edges.values()):,} edges of {len(graph.edges)} types")
    train = loader_of(graph, seeds, args, training=True)
    test = loader_of(graph, tested, args, training=False)
    width, num_classes = graph.packages.x.shape[1], graph.packages.num_classes
    model = HeteroSAGE(list(graph.num_nodes), list(graph.edges), width, args.hidden, num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_epoch(model, train, optimizer)
        print(f"epoch {epoch}/{args.epochs}: loss {loss:.3f}, {time.perf_counter() - start:.1f} s", flush=True)
    print(f"test accuracy {evaluate(model, test):.2%}")


if __name__ == "__main__":
    main()
