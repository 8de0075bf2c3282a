"""Small graphs in which something is to be learnt, and trainers of the core's own loaders on them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler.base import NegativeSampling

NUM_NODES, NUM_CLASSES, NUM_FEATURES, DEGREE = 1200, 4, 16, 10
NUM_TRAIN = 640
NUM_TRAIN_LINKS, NUM_TEST_LINKS = 3000, 1000
TO, REV = ("user", "to", "item"), ("item", "rev_to", "user")
STRICT = NegativeSampling("binary", 1, strict=True)


def classes(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(NUM_CLASSES, (count,), generator=generator)


def features_of(labels: torch.Tensor, generator: torch.Generator, strength: float = 0.5) -> torch.Tensor:
    """Of strength 0.5, a class is hardly seen in the features of one node."""
    return strength * F.one_hot(labels, NUM_FEATURES).float() + torch.randn(
        labels.numel(), NUM_FEATURES, generator=generator
    )


def edges_among(sources: torch.Tensor, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """``DEGREE`` edges from each source, four in five to a target of its class; int64 ``[2, n]``, each once."""
    count = sources.numel() * DEGREE
    rows = torch.arange(sources.numel()).repeat_interleave(DEGREE)
    any_target = torch.randint(targets.numel(), (count,), generator=generator)
    by_class = [(targets == label).nonzero().view(-1) for label in range(NUM_CLASSES)]
    at = torch.rand(count, generator=generator)
    alike = torch.tensor([int(by_class[c][int(u * len(by_class[c]))]) for c, u in zip(sources[rows], at, strict=True)])
    cols = torch.where(torch.rand(count, generator=generator) < 0.8, alike, any_target)
    return torch.stack([rows, cols]).unique(dim=1)


def supervised(seed: int = 0) -> dict[str, Any]:
    """A homogeneous graph whose classes its edges tell."""
    generator = torch.Generator().manual_seed(seed)
    labels = classes(NUM_NODES, generator)
    order = torch.randperm(NUM_NODES, generator=generator)
    return {
        "num_nodes": NUM_NODES,
        "edge_index": edges_among(labels, labels, generator),
        "node_feat": features_of(labels, generator),
        "label": labels,
        "train_idx": order[:NUM_TRAIN],
        "test_idx": order[NUM_TRAIN:],
    }


def save(graph: dict[str, Any], root: Path) -> None:
    torch.save(graph, root / "graph.pt")


def dataset_of(graph: dict[str, Any], edge_dir: Any = "out") -> Dataset:
    """The graph in the core's data set."""
    dataset = Dataset(edge_dir=edge_dir)
    dataset.init_graph(graph["edge_index"], edge_weights=graph.get("edge_weights"))
    dataset.init_node_features(graph["node_feat"])
    if "label" in graph:
        dataset.init_node_labels(graph["label"])
    return dataset


def links(seed: int = 0) -> dict[str, Any]:
    """Links that tell the classes of their ends: those for the test are no edges of the graph, which has weights."""
    generator = torch.Generator().manual_seed(seed)
    labels = classes(NUM_NODES, generator)
    edges = edges_among(labels, labels, generator)
    edges = edges[:, torch.randperm(edges.size(1), generator=generator)]
    kept = edges[:, NUM_TEST_LINKS:]
    return {
        "num_nodes": NUM_NODES,
        "edge_index": kept,
        "edge_weights": torch.where(labels[kept[0]] == labels[kept[1]], 4.0, 1.0),
        "node_feat": features_of(labels, generator, 2.0),
        "train_idx": kept[:, :NUM_TRAIN_LINKS],
        "test_idx": edges[:, :NUM_TEST_LINKS],
    }


def bipartite(seed: int = 0) -> dict[str, Any]:
    """Users and items, with links to predict between them."""
    generator = torch.Generator().manual_seed(seed)
    labels = {"user": classes(NUM_NODES, generator), "item": classes(NUM_NODES // 2, generator)}
    edges = edges_among(labels["user"], labels["item"], generator)
    edges = edges[:, torch.randperm(edges.size(1), generator=generator)]
    kept = edges[:, NUM_TEST_LINKS:]
    return {
        "num_nodes": {key: value.numel() for key, value in labels.items()},
        "edge_index": {TO: kept, REV: kept.flip(0)},
        "node_feat": {key: features_of(value, generator, 2.0) for key, value in labels.items()},
        "train_idx": kept[:, :NUM_TRAIN_LINKS],
        "test_idx": edges[:, :NUM_TEST_LINKS],
    }


def papers(seed: int = 0) -> dict[str, Any]:
    """Papers, whose classes are asked for, their citations and their authors."""
    generator = torch.Generator().manual_seed(seed)
    labels = {"paper": classes(NUM_NODES, generator), "author": classes(NUM_NODES // 2, generator)}
    writes = edges_among(labels["author"], labels["paper"], generator)
    order = torch.randperm(NUM_NODES, generator=generator)
    return {
        "num_nodes": {key: value.numel() for key, value in labels.items()},
        "edge_index": {
            ("paper", "cites", "paper"): edges_among(labels["paper"], labels["paper"], generator),
            ("author", "writes", "paper"): writes,
            ("paper", "rev_writes", "author"): writes.flip(0),
        },
        "node_feat": {key: features_of(value, generator) for key, value in labels.items()},
        "label": labels["paper"],
        "train_idx": order[:NUM_TRAIN],
        "test_idx": order[NUM_TRAIN:],
    }


def enclosed(seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """The graph of ``links``, and pairs for its programs of subgraphs: half of them links, of each of two workers."""
    graph, generator = links(seed), torch.Generator().manual_seed(seed)
    found: dict[str, Any] = {}
    for name, count in (("train", 100), ("test", 200)):
        drawn = torch.randint(NUM_NODES, (2, count), generator=generator)
        pairs = torch.cat([graph[f"{name}_idx"][:, :count], drawn], dim=1)
        label = torch.cat([torch.ones(count), torch.zeros(count)])
        order = torch.randperm(2 * count, generator=generator)
        found[name] = [{"links": pairs[:, half], "label": label[half]} for half in order.chunk(2)]
    return graph, found


# --- trainers of the core --------------------------------------------------------------------------------------


def program(name: str) -> ModuleType:
    """A program as a module, for its model."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "programs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fit(
    model: torch.nn.Module, batches: Iterable[Any], loss_of: Callable[[Any], torch.Tensor], epochs: int, rate: float
) -> None:
    """Trains as the programs do."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()
    model.eval()


Predict = Callable[[Any], torch.Tensor]


@torch.no_grad()
def auc(batches: Iterable[Any], predict: Predict, label: Predict) -> float:
    pairs = [(predict(batch), label(batch)) for batch in batches]
    score: float = program("sage_unsup").roc_auc_score([y for _, y in pairs], [p for p, _ in pairs])
    return score


@torch.no_grad()
def accuracy(batches: Iterable[Any], predict: Predict, label: Predict) -> float:
    hits = [predict(batch).argmax(dim=1) == label(batch) for batch in batches]
    return float(torch.cat(hits).float().mean())


def train_supervised(graph: dict[str, Any], seed: int, batch_size: int, epochs: int) -> float:
    """Test accuracy of ``sage_supervised.py``'s model, trained with the core's loader in one process."""
    dataset = dataset_of(graph)
    torch.manual_seed(seed)
    model = GraphSAGE(NUM_FEATURES, 32, 2, NUM_CLASSES)

    def predict(batch: Any) -> torch.Tensor:
        out: torch.Tensor = model(batch.x, batch.edge_index)
        return out[: batch.batch_size]

    def label(batch: Any) -> torch.Tensor:
        labels: torch.Tensor = batch.y[: batch.batch_size]
        return labels

    loader = NeighborLoader(dataset, [10, 5], graph["train_idx"], batch_size=batch_size, shuffle=True, seed=seed)
    fit(model, loader, lambda batch: F.cross_entropy(predict(batch), label(batch)), epochs, 0.01)
    return accuracy(NeighborLoader(dataset, [10, 5], graph["test_idx"], batch_size=64), predict, label)


def train_links(graph: dict[str, Any], seed: int, batch_size: int, epochs: int) -> float:
    """AUC of ``sage_unsup.py``'s model, trained with the core's loader in one process."""
    dataset = dataset_of(graph)
    torch.manual_seed(seed)
    model = GraphSAGE(NUM_FEATURES, 32, 2, 16)

    def predict(batch: Any) -> torch.Tensor:
        source, target = model(batch.x, batch.edge_index)[batch.edge_label_index]
        product: torch.Tensor = source * target
        return product.sum(dim=-1)

    def loader(name: str, **options: Any) -> LinkNeighborLoader:
        given = {"neg_sampling": STRICT, "with_weight": True, "batch_size": batch_size, **options}
        return LinkNeighborLoader(dataset, [10, 5], edge_label_index=graph[f"{name}_idx"], **given)

    def loss(batch: Any) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(predict(batch), batch.edge_label)

    fit(model, loader("train", shuffle=True, seed=seed), loss, epochs, 0.01)
    return auc(loader("test"), predict, lambda batch: batch.edge_label)


def train_bipartite(graph: dict[str, Any], seed: int, batch_size: int, epochs: int) -> float:
    """AUC of ``bipartite_sage.py``'s model; links stand under their own edge type here, from source to target."""
    dataset = dataset_of(graph)
    torch.manual_seed(seed)
    model = program("bipartite_sage").Model(NUM_FEATURES, 32)

    def predict(batch: Any) -> torch.Tensor:
        out: torch.Tensor = model(batch.x_dict, batch.edge_index_dict, batch[TO].edge_label_index.flip(0))
        return out

    def loader(name: str, **options: Any) -> LinkNeighborLoader:
        given = {"neg_sampling": STRICT, "batch_size": batch_size, **options}
        return LinkNeighborLoader(dataset, [8, 4], edge_label_index=(TO, graph[f"{name}_idx"]), **given)

    def loss(batch: Any) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(predict(batch), batch[TO].edge_label)

    fit(model, loader("train", shuffle=True, seed=seed), loss, epochs, 0.01)
    return auc(loader("test"), predict, lambda batch: batch[TO].edge_label)


def train_papers(graph: dict[str, Any], seed: int, batch_size: int, epochs: int) -> float:
    """Accuracy of ``hetero_rgnn.py``'s model, trained with the core's loader in one process."""
    dataset = Dataset()
    dataset.init_graph(graph["edge_index"])
    dataset.init_node_features(graph["node_feat"])
    dataset.init_node_labels({"paper": graph["label"]})
    torch.manual_seed(seed)

    def loader(name: str, **options: Any) -> NeighborLoader:
        return NeighborLoader(dataset, [8, 4], ("paper", graph[f"{name}_idx"]), batch_size=batch_size, **options)

    edge_types = next(iter(loader("test"))).edge_types
    model = program("hetero_rgnn").RGNN(edge_types, NUM_FEATURES, 32, NUM_CLASSES, 2, "paper", True)

    def predict(batch: Any) -> torch.Tensor:
        counts = batch.num_sampled_edges_dict, batch.num_sampled_nodes_dict
        out: torch.Tensor = model(batch.x_dict, batch.edge_index_dict, *counts)
        return out[: batch["paper"].batch_size]

    def label(batch: Any) -> torch.Tensor:
        labels: torch.Tensor = batch["paper"].y[: batch["paper"].batch_size]
        return labels

    fit(
        model,
        loader("train", shuffle=True, seed=seed),
        lambda batch: F.cross_entropy(predict(batch), label(batch)),
        epochs,
        0.01,
    )
    return accuracy(loader("test"), predict, label)


def train_enclosed(graph: dict[str, Any], pairs: dict[str, Any], seed: int, batch_size: int, epochs: int) -> float:
    """AUC of ``subgraph_links.py``'s model over subgraphs of the core's loader."""
    dataset, module = dataset_of(graph), program("subgraph_links")
    found: dict[str, list[Any]] = {}
    for name, parts in pairs.items():
        seeds = torch.cat([part["links"] for part in parts], dim=1).T.reshape(-1)
        loader = SubGraphLoader(dataset, seeds, [5, 3], batch_size=2, seed=seed)
        found[name] = [module.without_target_link(batch) for batch in loader]
    labels = {name: torch.cat([part["label"] for part in parts]) for name, parts in pairs.items()}
    torch.manual_seed(seed)
    model = module.SubGraphNet(NUM_FEATURES, 32)

    def loss(chunk: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(
            model([found["train"][i] for i in chunk.tolist()]), labels["train"][chunk]
        )

    chunks = torch.randperm(len(found["train"])).split(batch_size)
    fit(model, chunks, loss, epochs, 0.01)
    return auc([None], lambda _: model(found["test"]), lambda _: labels["test"])
