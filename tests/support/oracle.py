"""What the tests of all modes share: graphs, partition directories of them, and batches compared bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.messages import SampledBatch, Subgraph
from graphlearn_dist.partition import PermutedPartitionBook, RandomPartitioner, RangePartitioner
from tests.support.graphs import Direction, TestGraph, random_graph, typed_graph

PARTITIONERS = {"random": RandomPartitioner, "range": RangePartitioner}

GRAPHS: dict[str, Any] = {
    "homogeneous": lambda: random_graph(500, 4000, 8, explicit_edge_ids=True),
    "typed": lambda: typed_graph(200, 80, 1500, 9),
}
LOADER = {"batch_size": 37, "shuffle": True, "with_edge": True}
SEED = 5


def input_of(graph: TestGraph) -> Any:
    """Every node of the seed type, some twice."""
    seed_type = None if graph.is_homogeneous else "user"
    seeds = torch.cat([torch.arange(graph.num_nodes[seed_type]), torch.arange(20)])
    return seeds if seed_type is None else (seed_type, seeds)


def pyg_tensors(data: Any) -> dict[str, Any]:
    """Everything in a PyG batch, flat and by name."""
    stores = data.to_dict()
    flat = {}
    for key, value in stores.items():
        entries = value.items() if isinstance(value, dict) else [("", value)]
        flat.update({f"{key}.{name}": entry for name, entry in entries})
    return flat


def books_of_features(graph: TestGraph, num_parts: int) -> dict[str, Any]:
    """For a partitioner: features that lie elsewhere than their nodes, as a table, or than a range of edge ids."""
    nodes = {key: (torch.arange(count) * 5 // 3 + 1) % num_parts for key, count in graph.num_nodes.items()}
    edges = {
        key: PermutedPartitionBook(len(rows), num_parts, key=7) for key, rows in graph.edge_features().items()
    }  # a book that says nothing of who owns the edge
    return {"node_feat_pb": graph.unwrap(nodes), "edge_feat_pb": graph.unwrap(edges)}


def write_partitions(
    graph: TestGraph, root: Path, kind: str, num_parts: int, edge_dir: Direction, *, own_feature_books: bool = False
) -> Path:
    """The partition directory of a graph with the features and labels that ``make_dataset`` gives it.

    ``own_feature_books``: with ``books_of_features``.
    """
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
        **(books_of_features(graph, num_parts) if own_feature_books else {}),
    )
    return partitioner.partition()


def load_partitions(directory: Path, num_parts: int) -> list[DistDataset]:
    datasets = [DistDataset() for _ in range(num_parts)]
    for partition, dataset in enumerate(datasets):
        dataset.load(directory, partition)
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


def in_any_order(batches: Any) -> dict[tuple[int, ...], dict[str, Any]]:
    """Batches by their seeds' positions: which arrives first is not part of the contract."""
    flat = [pyg_tensors(batch) for batch in batches]
    key = next(name for name in flat[0] if name.endswith("input_id") or name.startswith("input_id"))
    return {tuple(batch[key].tolist()): batch for batch in flat}
