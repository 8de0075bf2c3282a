"""Padded batches: loaders of them, those that kernels make, and what is left without their padding."""

from __future__ import annotations

from typing import Any

import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.data.schema import by_type
from graphlearn_dist.loader import NeighborLoader, StaticShapes
from graphlearn_dist.loader.local_loader import LocalLoader
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.device.static_batches import DeviceStaticBatches

from .device_batches import WAYS, graph_for
from .graphs import MAX_TIME, TestGraph, make_dataset

COUNTS = ("num_sampled_nodes", "num_sampled_edges")


def loader_for(kind: str, way: str = "uniform", fanouts: Any = (3, 2), **changes: Any) -> NeighborLoader:
    """45 seeds in batches of 16: the last one is short."""
    settings = dict(WAYS[way])
    graph = graph_for(kind, settings)
    if "temporal_strategy" in settings:
        draw = torch.Generator().manual_seed(1)
        settings["input_time"] = torch.randint(0, MAX_TIME + 1, (45,), generator=draw)
    return loader_of(graph, fanouts=fanouts, **settings, **changes)


def loader_of(graph: TestGraph, fanouts: Any = (3, 2), **changes: Any) -> NeighborLoader:
    """As ``loader_for``, of a graph that is given."""
    node_type = None if graph.is_homogeneous else "user"
    nodes = torch.randint(0, graph.num_nodes[node_type], (45,), generator=torch.Generator().manual_seed(4))
    settings = {"batch_size": 16, "shuffle": True, "with_edge": True, "seed": 5, "prefetch": 0, **changes}
    return NeighborLoader(
        make_dataset(graph), list(fanouts), nodes if node_type is None else (node_type, nodes), **settings
    )


def batches_of_kernels(loader: LocalLoader, shapes: StaticShapes, device: torch.device) -> DeviceStaticBatches:
    """The batches of a loader as a GPU makes them; on the CPU device the host runs the bodies of the kernels."""
    dataset: Dataset = loader.data
    plan, graphs = make_plan(dataset, loader.config), by_type(dataset.graph)
    placed = [DeviceTopology(graphs[edge_type].topo, "CUDA", device) for edge_type in plan.schema.edge_types]
    return DeviceStaticBatches(plan, placed, device, loader._input, loader.batches.schedule, dataset.stores(), shapes)


def assert_same_data(actual: Any, expected: Any) -> None:
    """Every attribute of every store is equal, bit by bit, wherever it lies."""
    for one, other in zip(actual.stores, expected.stores, strict=True):
        assert set(one.keys()) == set(other.keys())
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[key].dtype == value.dtype, key
                assert torch.equal(one[key].cpu(), value.cpu()), key
            else:
                assert one[key] == value, key


def unpadded(padded: Any) -> Any:
    """What is left of a padded ``Data`` or ``HeteroData`` without its padding and its masks."""
    found = padded.clone()
    for store in found.stores:
        masks = {key: store.pop(key) for key in ("node_mask", "edge_mask", "seed_mask") if key in store}
        for key in COUNTS:
            if key in store:
                store[key] = store[key].tolist()
        for key, value in store.items():
            store[key] = _without_padding(key, value, masks, disjoint="batch" in store and _is_of_nodes(store, masks))
    return found


def _is_of_nodes(store: Any, masks: dict[str, torch.Tensor]) -> bool:
    return store["batch"].numel() == masks["node_mask"].numel()


def _without_padding(key: str, value: Any, masks: dict[str, torch.Tensor], *, disjoint: bool) -> Any:
    if key in ("n_id", "node", "x", "y") or (key == "batch" and disjoint):
        return value[masks["node_mask"]]
    if key in ("e_id", "edge", "edge_attr"):
        return value[masks["edge_mask"]]
    if key == "edge_index":
        return value[:, masks["edge_mask"]]
    if key in ("input_id", "batch", "seed_time"):
        return value[masks["seed_mask"]]
    if key == "num_nodes":
        return int(masks["node_mask"].sum())
    if key == "batch_size":
        return int(masks["seed_mask"].sum())
    return value
