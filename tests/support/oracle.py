"""What the tests of all modes share: graphs, partition directories of them, and batches compared bit by bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.distributed import (
    DistDataset,
    DistHGTLoader,
    DistLinkNeighborLoader,
    DistLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
)
from graphlearn_dist.loader import HGTLoader, LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.messages import SampledBatch, Subgraph
from graphlearn_dist.partition import (
    PermutedPartitionBook,
    RandomPartitioner,
    RangePartitioner,
    ZonePartitioner,
    save_node_order,
)
from graphlearn_dist.sampler.base import NegativeSampling
from graphlearn_dist.sampler.strategies import STRATEGIES
from tests.support.graphs import (
    EDGE_TYPES,
    MAX_TIME,
    Direction,
    TestGraph,
    make_dataset,
    random_graph,
    typed_graph,
    with_times,
    with_weights,
)

PARTITIONERS = {"random": RandomPartitioner, "range": RangePartitioner, "zones": ZonePartitioner}

GRAPHS: dict[str, Any] = {
    "homogeneous": lambda: random_graph(500, 4000, 8, explicit_edge_ids=True),
    "typed": lambda: typed_graph(200, 80, 1500, 9),
}
LOADER = {"num_neighbors": [4, 3], "batch_size": 37, "shuffle": True, "with_edge": True}
SEED = 5

# What is sampled, and how. An induced subgraph has each node once, and so knows no times of seeds: that is refused
# before any mode is looked at.
SAMPLINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("node", "uniform"): {},
    ("node", "weighted"): {"with_weight": True},
    ("node", "temporal"): {"temporal_strategy": "last"},
    **{("node", f"{name}, in trees"): {"strategy": name, "disjoint": True} for name in STRATEGIES if name != "random"},
    ("link", "uniform"): {"neg_sampling": NegativeSampling("binary", 1.5, strict=True)},
    ("link", "weighted"): {"neg_sampling": NegativeSampling("triplet", 2), "with_weight": True},
    ("link", "temporal"): {"neg_sampling": NegativeSampling("binary", 1), "temporal_strategy": "uniform"},
    ("subgraph", "uniform"): {},
    ("subgraph", "weighted"): {"with_weight": True},
    ("node", "near"): {"locality": 4},
    ("link", "excluding"): {"neg_sampling": NegativeSampling("triplet", 1)},
    ("link", "near"): {"neg_sampling": NegativeSampling("binary", 1), "locality": 3},
    ("subgraph", "near"): {"locality": 2, "drop_last": True},
    ("node", "as a matrix"): {"edge_format": "adj_t", "replace": True},
    ("link", "as a matrix"): {"edge_format": "adj_t", "neg_sampling": NegativeSampling("binary", 1), "disjoint": True},
    ("subgraph", "as a matrix"): {"edge_format": "adj_t"},
    ("hgt", "uniform"): {},
    ("hgt", "as a matrix"): {"edge_format": "adj_t", "locality": 2},
}
NUM_LINKS = 120
_LOCAL = {"node": NeighborLoader, "link": LinkNeighborLoader, "subgraph": SubGraphLoader, "hgt": HGTLoader}
_FAR = {
    "node": DistNeighborLoader, "link": DistLinkNeighborLoader, "subgraph": DistSubGraphLoader, "hgt": DistHGTLoader
}  # fmt: skip


def pyg_tensors(data: Any) -> dict[str, Any]:
    """Everything in a PyG batch, flat and by name."""
    stores = data.to_dict()
    flat = {}
    for key, value in stores.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        for name, entry in entries:
            flat.update(_parts(f"{key}.{name}", entry))
    return flat


def _parts(name: str, entry: Any) -> dict[str, Any]:
    """The parts of a sparse matrix, which are compared one by one; of anything else itself."""
    if not isinstance(entry, torch.Tensor) or entry.layout is not torch.sparse_csr:
        return {name: entry}
    parts = {"begins": entry.crow_indices(), "sources": entry.col_indices(), "values": entry.values()}
    return {f"{name}.shape": tuple(entry.shape)} | {f"{name}.{part}": tensor for part, tensor in parts.items()}


def books_of_features(graph: TestGraph, num_parts: int) -> dict[str, Any]:
    """For a partitioner: features that lie elsewhere than their nodes, as a table, or than a range of edge ids."""
    nodes = {key: (torch.arange(count) * 5 // 3 + 1) % num_parts for key, count in graph.num_nodes.items()}
    edges = {
        key: PermutedPartitionBook(len(rows), num_parts, key=7) for key, rows in graph.edge_features().items()
    }  # a book that says nothing of who owns the edge
    return {"node_feat_pb": graph.unwrap(nodes), "edge_feat_pb": graph.unwrap(edges)}


def graph_of(name: str) -> TestGraph:
    """One of the graphs, with weights and times."""
    return with_times(with_weights(GRAPHS[name](), 3, some_zero=True), 4)


def orders_of(graph: TestGraph) -> Any:
    """An order of the nodes, or one for each type, of five zones, one of which is empty."""
    orders = {}
    for i, (key, count) in enumerate(sorted(graph.num_nodes.items(), key=lambda item: item[0] or "")):
        place = torch.randperm(count, generator=torch.Generator().manual_seed(i))
        orders[key] = ZoneOrder(place, torch.tensor([0, count // 4, count // 4, count // 3, count * 3 // 4, count]))
    return graph.unwrap(orders)


def _typed(kind: Any, tensor: torch.Tensor) -> Any:
    return tensor if kind is None else (kind, tensor)


def _excluded(graph: TestGraph, edge_type: Any) -> dict[str, Any]:
    """Reverses: of another type, or of the same one with whatever edge of another id."""
    if edge_type is not None:
        return {"exclude": "reverse_types", "reverse_etypes": {edge_type: EDGE_TYPES[1]}}
    return {"exclude": "reverse_id", "reverse_eids": torch.arange(graph.num_edge_ids(edge_type)).flip(0)}


def _arguments(graph: TestGraph, sampling: tuple[str, str], part: tuple[int, int]) -> dict[str, Any]:
    """What all loaders of a kind have in common; their input is every ``part[1]``-th of all, from ``part[0]``."""
    arguments, (task, draw) = {**LOADER, **SAMPLINGS[sampling]}, sampling
    every = slice(part[0], None, part[1])
    if task == "link":  # most are edges, others pairs of any nodes
        edge_type = None if graph.is_homogeneous else ("user", "buys", "item")
        links = graph.edges[edge_type][:, :NUM_LINKS].clone()
        links[1, ::7] = 1
        links = links[:, every]
        arguments["edge_label_index"], count = _typed(edge_type, links), links.size(1)
        if draw == "excluding":
            edge_ids = graph.ids_of(edge_type)[:NUM_LINKS].clone()
            edge_ids[::7] = -1
            arguments |= {"edge_label_id": edge_ids[every], **_excluded(graph, edge_type)}
    else:
        seed_type = None if graph.is_homogeneous else "user"
        seeds = torch.cat([torch.arange(graph.num_nodes[seed_type]), torch.arange(20)])[every]
        arguments["input_nodes"], count = _typed(seed_type, seeds), seeds.numel()
    if draw == "temporal":
        arguments["edge_label_time" if task == "link" else "input_time"] = torch.arange(count) % (MAX_TIME + 1)
    elif task == "hgt":
        arguments["num_samples"] = [arguments.pop("num_neighbors")[0] * 5, 12]
    elif task != "subgraph":
        arguments["temporal_strategy"] = None
    return arguments


def open_loader(
    name: str,
    edge_dir: Direction,
    sampling: tuple[str, str],
    dataset: DistDataset | None,
    worker_options: Any,
    *,
    part: tuple[int, int] = (0, 1),
    **changes: Any,
) -> DistLoader:
    """A distributed loader over ``graph_of(name)``; see ``oracle_epochs``."""
    arguments = _arguments(graph_of(name), sampling, part)
    common = {"edge_dir": edge_dir, "collect_features": True, "random_seed": SEED, "worker_options": worker_options}
    return _FAR[sampling[0]](dataset, **{**arguments, **common, **changes})


@functools.cache
def oracle_epochs(
    name: str,
    edge_dir: Direction,
    sampling: tuple[str, str],
    *,
    part: tuple[int, int] = (0, 1),
    count: int = 2,
    seed: int = SEED,
) -> list[list[dict[str, Any]]]:
    """The batches of the first epochs of the loader in one process, flat and by name."""
    graph = graph_of(name)
    arguments = _arguments(graph, sampling, part)
    data = make_dataset(graph, edge_dir)
    data.init_order(orders_of(graph))
    local = _LOCAL[sampling[0]](data, seed=seed, prefetch=0, **arguments)
    return [[pyg_tensors(batch) for batch in local] for _ in range(count)]


def compare_epochs(loader: DistLoader, expected: list[list[dict[str, Any]]]) -> int:
    """Asserts that a loader's next epochs are these, bit by bit and in this order; how many batches they have."""
    compared = 0
    for epoch in expected:
        assert len(loader) == len(epoch)
        for batch, wanted in zip(loader, epoch, strict=True):
            assert_same(pyg_tensors(batch), wanted)
            compared += 1
    return compared


def write_partitions(
    graph: TestGraph,
    root: Path,
    kind: str,
    num_parts: int,
    edge_dir: Direction,
    *,
    own_feature_books: bool = False,
    with_order: bool = False,
) -> Path:
    """The partition directory of a graph with the features and labels that ``make_dataset`` gives it.

    ``own_feature_books``: with ``books_of_features``; ``with_order``: with ``orders_of``.
    """
    zones = {"orders": orders_of(graph), "zone_owners": [i % num_parts for i in (2, 0, 1, 0, 1)]}
    partitioner = PARTITIONERS[kind](
        str(root / "partitions"),
        num_parts,
        graph.unwrap(graph.num_nodes),
        graph.unwrap(graph.edges),
        node_feat=graph.unwrap(graph.node_features()),
        node_feat_dtype=None,
        edge_feat=graph.unwrap(graph.edge_features()),
        edge_feat_dtype=None,
        edge_assign_strategy="by_src" if edge_dir == "out" else "by_dst",
        node_labels=graph.unwrap(graph.node_labels()),
        edge_ids=graph.unwrap(graph.edge_ids),
        edge_weights=graph.unwrap(graph.weights),
        edge_times=graph.unwrap(graph.times),
        node_times=graph.unwrap(graph.node_times),
        **(books_of_features(graph, num_parts) if own_feature_books else {}),
        **(zones if kind == "zones" else {}),
    )
    directory = partitioner.partition()
    if with_order and kind != "zones":
        save_node_order(directory, orders_of(graph))
    return directory


def load_partitions(directory: Path, num_parts: int, **options: Any) -> list[DistDataset]:
    datasets = [DistDataset() for _ in range(num_parts)]
    for partition, dataset in enumerate(datasets):
        dataset.load(directory, partition, **options)
    return datasets


def tensors_of(batch: SampledBatch) -> dict[str, Any]:
    """Everything in a batch that may not differ, flat and by name."""
    subgraph: Subgraph = batch.subgraph
    groups = {
        "nodes": subgraph.nodes,
        "rows": subgraph.rows,
        "cols": subgraph.cols,
        "edge_ids": subgraph.edge_ids,
        "x": batch.node_features,
        "y": batch.node_labels,
        "edge_attr": batch.edge_features,
        "input_positions": (batch.input_positions,),
        "counts": (torch.tensor(subgraph.num_sampled_nodes), torch.tensor(subgraph.num_sampled_edges)),
        "seed_type": (torch.tensor(batch.seed_type),),
        "trees": subgraph.trees,
        "seeds": (batch.seed_times, batch.mapping),
        "links": () if batch.links is None else tuple(vars(batch.links).values()),
    }
    return {f"{name}[{i}]": tensor for name, group in groups.items() for i, tensor in enumerate(group)}


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        if not isinstance(tensor, torch.Tensor):
            assert actual[name] == tensor, name
            continue
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), f"{name}: {actual[name]} instead of {tensor}"
