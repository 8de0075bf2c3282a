"""Partition directories to damage, and everything that can be done with one: it is loaded, sampled in every way and its
rows are looked up. What is damaged is refused as what it is, or goes unnoticed; nothing else may happen."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from graphlearn_dist.data.schema import GraphSchema, by_type
from graphlearn_dist.data.zone_order import ZoneOrder
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError, PartitionFormatError, UnknownIdError
from graphlearn_dist.partition import (
    FrequencyPartitioner,
    LDGPartitioner,
    RandomPartitioner,
    TablePartitioner,
    ZonePartitioner,
    layout,
    load_partition,
    load_partition_layout,
    partition_quality,
    repartition,
    save_node_order,
)
from graphlearn_dist.partition.ordering import zone_graph
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.epochs.locality import order_of_seeds
from graphlearn_dist.sampler.inputs import resolve_input
from graphlearn_dist.sampler.ppr import personalized_pagerank
from graphlearn_dist.sampler.strategies import STRATEGIES
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import HOST, on_device
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import (
    MAX_TIME,
    TestGraph,
    random_graph,
    typed_graph,
    with_node_times,
    with_times,
    with_weights,
)
from tests.support.oracle import write_partitions

SEEDS = 20
_FEW_ZONES = "num_parts: expected 1 to "
_NO_NEGATIVE = " has no negative: it has an edge to each of "
NODE_WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "all": {"num_neighbors": [-1, -1]},
    "wide": {"num_neighbors": [120, 1]},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    **{name: {"strategy": name} for name in STRATEGIES if name != "random"},
    "weighted": {"with_weight": True},
    "weighted, all": {"with_weight": True, "num_neighbors": [-1, 2]},
    "weighted, replace": {"with_weight": True, "replace": True},
    "times": {"temporal_strategy": "uniform"},
    "times, last": {"temporal_strategy": "last"},
    "times, weighted": {"temporal_strategy": "uniform", "with_weight": True},
}
LINK_WAYS: dict[str, tuple[NegativeSampling, dict[str, Any]]] = {
    "binary, strict": (NegativeSampling("binary", 2, strict=True), {}),
    "triplet": (NegativeSampling("triplet", 3, strict=True), {"disjoint": True}),
    "times": (NegativeSampling("binary", 1), {"temporal_strategy": "uniform"}),
}


def write_directories(root: Path) -> None:
    """One directory for each thing that a directory can have."""
    homogeneous = with_times(with_weights(random_graph(60, 500, 1, explicit_edge_ids=True), 2, some_zero=True), 3)
    typed = with_times(with_weights(typed_graph(40, 15, 150, 4, explicit_edge_ids=True), 5, some_zero=False), 6)
    write_partitions(homogeneous, _new(root / "homogeneous"), "random", 2, "out")
    write_partitions(
        with_node_times(replace(typed, times={}), 7), _new(root / "typed"), "range", 2, "in", own_feature_books=True
    )
    write_partitions(replace(homogeneous, times={}), _new(root / "whole"), "random", 1, "out")
    _write(FrequencyPartitioner, replace(homogeneous, times={}), root / "cached", probs=_probs(60), cache_ratio=0.3)
    _write(
        TablePartitioner,
        with_node_times(replace(homogeneous, times={}), 8),
        root / "tables",
        node_owners=torch.arange(60) * 7 % 2,
    )
    zones = {"orders": ZoneOrder.of_zones(torch.arange(60) * 7 % 5), "zone_owners": torch.tensor([1, 0, 0, 1, 1])}
    _write(ZonePartitioner, replace(homogeneous, times={}), root / "zones", **zones)
    _write(LDGPartitioner, replace(homogeneous, times={}), root / "near")
    users, items = torch.arange(40) * 7 % 4, torch.arange(15) * 7 % 4
    write_partitions(replace(typed, times={}), _new(root / "ordered"), "random", 2, "out")
    orders = {"user": ZoneOrder.of_zones(users, 2, 4), "item": ZoneOrder.of_zones(items, 2, 4)}
    save_node_order(root / "ordered" / "partitions", orders)
    split = {"user": (torch.arange(0, 40, 3), torch.arange(1, 40, 9), None)}
    _write(RandomPartitioner, typed, root / "split", node_split=split, seed=3)


def _new(path: Path) -> Path:
    path.mkdir()
    return path


def _probs(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.rand(count, generator=draw) for _ in range(2)]


def _write(partitioner: Any, graph: TestGraph, root: Path, **options: Any) -> None:
    partitioner(
        _new(root) / "partitions",
        2,
        graph.unwrap(graph.num_nodes),
        graph.unwrap(graph.edges),
        node_feat=graph.unwrap(graph.node_features()),
        edge_feat=graph.unwrap(graph.edge_features()),
        node_labels=graph.unwrap(graph.node_labels()),
        edge_ids=graph.unwrap(graph.edge_ids),
        edge_weights=graph.unwrap(graph.weights),
        edge_times=graph.unwrap(graph.times),
        node_times=graph.unwrap(graph.node_times),
        **options,
    ).partition()


class Attempts:
    """What was tried, and how it ended."""

    def __init__(self) -> None:
        self.done = 0
        self.refused: list[str] = []

    @contextlib.contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Something that may be refused as damaged; any other error is raised, with its name."""
        try:
            yield
            self.done += 1
        except (PartitionFormatError, UnknownIdError) as error:
            self.refused.append(f"{name}: {error}")
        except InvalidArgumentError as error:
            if _NO_NEGATIVE not in str(error) and _FEW_ZONES not in str(error):  # which may be true of what damage made
                raise AssertionError(f"{name}: {error}") from error
            self.done += 1
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def use(root: Path) -> Attempts:
    """Does all of it, with checksums off."""
    attempts = Attempts()
    with attempts.one("layout"):
        num_parts = load_partition_layout(root, verify=False).num_parts
        datasets = []
        for partition in range(num_parts):
            with attempts.one(f"load_partition {partition}"):
                load_partition(root, partition, verify=False)
            with attempts.one(f"load {partition}"):
                dataset = DistDataset()
                dataset.load(root, partition, verify=False)
                datasets.append(dataset)
        for dataset in datasets:
            _read_all(dataset, attempts)
        _move_all(root, attempts)
        if len(datasets) == num_parts:
            _use_all(datasets, attempts)
    return attempts


def _read_all(dataset: DistDataset, attempts: Attempts) -> None:
    with attempts.one("validate"):
        dataset.validate()
    for edge_type, graph in by_type(dataset.graph).items():
        with attempts.one("edges"):
            _, source, target = dataset.edges(edge_type)
            resolve_input(EdgeSamplerInput(source, target, None, edge_type), dataset)
        with attempts.one("max_degree"):
            assert 0 <= graph.topo.max_degree <= graph.topo.edge_count
    for ids in (ids for split in (dataset.train_idx, dataset.val_idx) for ids in by_type(split).values()):
        assert ids.dtype == torch.int64


def _move_all(root: Path, attempts: Attempts) -> None:
    """Other numbers of partitions, with checksums off, too; and what is loaded of them."""
    with attempts.one("quality"):
        partition_quality(root)
    unverified = {"open_array": lambda *of, verify: layout.open_array(*of, verify=False)}
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(layout, "resolve_verify", lambda files, verify: False),
        patch.multiple(zone_graph, **unverified),
    ):
        for num_parts in (1, 2, 3):
            with attempts.one(f"repartition {num_parts}"):
                made = repartition(root, Path(folder) / str(num_parts), num_parts=num_parts, by="ldg").path
                for partition in range(num_parts):
                    load_partition(made, partition)


def _use_all(datasets: list[DistDataset], attempts: Attempts) -> None:
    services: list[PartitionService] = []
    with attempts.one("services"):
        services.extend(map(PartitionService, datasets))
    if not services:
        return
    mapped: list[PartitionService] = []
    with attempts.one("handles"):
        mapped.extend(PartitionService(DistDataset.from_ipc_handle(one.share_ipc())) for one in datasets)
    placed = {"in place": services, "asked": services[-1:], "mapped": mapped}
    for where, at_hand in placed.items():
        for name, inputs, config in _ways(datasets[-1], only_few=where == "mapped"):
            with attempts.one(f"{where}, {name}"):
                near = order_of_seeds(config, inputs, datasets[-1])
                batches = PartitionedBatches(datasets[-1], inputs, config, at_hand, DirectPeers(services), near=near)
                run_local(batches.make(0, 0))
    if len(datasets) == 1:
        _use_whole(datasets[0], attempts)


def _use_whole(dataset: DistDataset, attempts: Attempts) -> None:
    """What takes a data set that is held whole: PageRank, and kernels, whose bodies the host runs."""
    for graph in by_type(dataset.graph).values():
        if graph.row_book is None and graph.row_count == graph.col_count:
            with attempts.one("ppr"):
                personalized_pagerank(graph, torch.arange(min(SEEDS, graph.row_count)), epsilon=1e-3)
    if not dataset.is_whole:
        return
    for name, inputs, config in _ways(dataset):
        with attempts.one(f"kernels, {name}"):
            access = on_device(dataset, config, HOST)
            run_local(BatchMaker(access, dataset.schema, inputs, config).make(0, 0))


def _ways(dataset: DistDataset, *, only_few: bool = False) -> Iterator[tuple[str, Any, SamplingConfig]]:
    """(name, input, settings) of what the data set has the weights and times for."""
    schema, topologies = dataset.schema, [graph.topo for graph in by_type(dataset.graph).values()]
    weighted = all(topology.edge_weights is not None for topology in topologies)
    timed = all(topology.edge_times is not None for topology in topologies)
    seed_type, count = schema.node_types[-1], schema.num_nodes[-1]
    seeds = torch.arange(SEEDS) * 7 % max(count, 1) if count else torch.empty(0, dtype=torch.int64)
    times = torch.arange(len(seeds)) * 5 % (MAX_TIME + 1)
    for number, (name, way) in enumerate(NODE_WAYS.items()):
        needs_times = "temporal_strategy" in way
        needs_weights = way.get("with_weight") or STRATEGIES[way.get("strategy", "random")].method.reads_weights
        if (needs_weights and not weighted) or (needs_times and not timed) or (only_few and number % 4):
            continue
        inputs = NodeSamplerInput(seeds, seed_type, times if needs_times else None)
        yield f"node, {name}", inputs, _config(schema, SamplingType.NODE, **way)
    if schema.node_types[-1] in dataset.node_orders:
        yield "node, near", NodeSamplerInput(seeds, seed_type), _config(schema, SamplingType.NODE, locality=3)
    yield "subgraph", NodeSamplerInput(seeds, seed_type), _config(schema, SamplingType.SUBGRAPH)
    for name, (negatives, way) in LINK_WAYS.items():
        if "temporal_strategy" not in way or (timed and len(dataset.earliest_nodes) == len(schema.node_types)):
            yield f"link, {name}", _links(schema, negatives, way), _config(schema, SamplingType.LINK, **way)


def _links(schema: GraphSchema, negatives: NegativeSampling, way: dict[str, Any]) -> EdgeSamplerInput:
    edge_type = schema.edge_types[0]
    ends = schema.edge_specs[0] if schema.edge_dir == "out" else schema.edge_specs[0][::-1]
    row, col = (
        torch.arange(SEEDS) * step % max(schema.num_nodes[end], 1) for end, step in zip(ends, (3, 5), strict=True)
    )
    time = torch.arange(SEEDS) if "temporal_strategy" in way else None
    return EdgeSamplerInput(row, col, None, edge_type, negatives, time)


def _config(schema: GraphSchema, sampling_type: SamplingType, **way: Any) -> SamplingConfig:
    fixed = {"batch_size": SEEDS, "shuffle": False, "drop_last": False, "with_edge": True, "collect_features": True}
    settings = {"num_neighbors": [4, 3], "with_neg": False, "with_weight": False, "seed": 3, **fixed, **way}
    return SamplingConfig(sampling_type=sampling_type, edge_dir=schema.edge_dir, **settings)
