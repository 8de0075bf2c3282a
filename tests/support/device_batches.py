"""Ways to sample, and batches of two graphs compared: the CPU's, and those of kernels."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.data.schema import by_type
from graphlearn_dist.messages import Subgraph
from graphlearn_dist.sampler import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
)
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from graphlearn_dist.sampler.local_graph import LocalGraph
from graphlearn_dist.sampler.strategies import STRATEGIES
from graphlearn_dist.sampler.tasks import GraphAccess, SeedList
from graphlearn_dist.utils.coroutines import run_local

from .graphs import MAX_TIME, TestGraph, random_graph, typed_graph, with_node_times, with_times, with_weights

NAMED = [name for name in STRATEGIES if name != "random"]
HOST = torch.device("cpu")
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "weighted": {"with_weight": True},
    "weighted-replace": {"with_weight": True, "replace": True},
    "times": {"temporal_strategy": "uniform"},
    "times-weighted": {"temporal_strategy": "uniform", "with_weight": True},
    "times-last": {"temporal_strategy": "last"},
    **{name: {"strategy": name} for name in NAMED},
    **{f"{name}-disjoint": {"strategy": name, "disjoint": True} for name in NAMED},
    **{f"times-{name}": {"temporal_strategy": "uniform", "strategy": name} for name in NAMED},
}
FANOUTS = ([4, 3, 2], [-1, 2], [120, 1], [3, 0, 2], [0])


def graph_for(kind: str, way: dict[str, Any]) -> TestGraph:
    """A random graph, ``"homogeneous"`` or ``"typed"``, with the weights and times that a way needs."""
    graph = random_graph(300, 4000, 5) if kind == "homogeneous" else typed_graph(200, 90, 2500, 6)
    if way.get("with_weight") or STRATEGIES[way.get("strategy", "random")].method.reads_weights:
        graph = with_weights(graph, 7, some_zero=True)
    return with_times(graph, 8) if "temporal_strategy" in way else graph


def long_rows_for(way: dict[str, Any]) -> TestGraph:
    """Two nodes of 4,000 neighbors each, to which the others lead: on a GPU their rows are the work of groups.

    Few of the weights are nearly all of a row, some are equal, some are 0.
    """
    draw = torch.Generator().manual_seed(11)
    hubs = torch.stack([torch.randint(0, high, (8000,), generator=draw) for high in (2, 300)])
    others = torch.stack([torch.randint(0, high, (3000,), generator=draw) for high in (300, 40)])
    edges = torch.cat([hubs, others], dim=1)
    number = torch.arange(edges.size(1))
    weights = (number % 5).double().where(number % 1000 != 3, torch.tensor(1e30, dtype=torch.float64))
    graph = TestGraph({None: 300}, {None: edges}, {}, {None: weights})
    return with_times(graph, 8) if "temporal_strategy" in way else graph


def config_for(
    fanouts: list[int] | None, way: dict[str, Any], sampling_type: SamplingType = SamplingType.NODE
) -> SamplingConfig:
    """The settings of a loader."""
    fixed = {"batch_size": 32, "shuffle": False, "drop_last": False, "with_edge": True, "collect_features": False}
    settings = {"with_neg": False, "with_weight": False, "edge_dir": "out", "seed": 3, **fixed, **way}
    return SamplingConfig(sampling_type=sampling_type, num_neighbors=fanouts, **settings)


def on_device(
    dataset: Dataset,
    config: SamplingConfig,
    device: torch.device,
    placement: Any = "CUDA",
    group: tuple[int, ...] = (),
) -> DeviceGraph:
    """The data set as kernels sample it, in a piece for each GPU of a group; the host runs their bodies where the
    device is the CPU."""
    plan, graphs = make_plan(dataset, config), by_type(dataset.graph)
    topologies = [graphs[edge_type].topo for edge_type in plan.schema.edge_types]
    placed = [DeviceTopology(topology, placement, device, group=group) for topology in topologies]
    return DeviceGraph(plan, placed, device, dataset.node_times)


def local_and_device(dataset: Dataset, config: SamplingConfig) -> tuple[LocalGraph, DeviceGraph]:
    """The data set as the CPU samples it, and as kernels do whose bodies the host runs."""
    return LocalGraph(dataset, make_plan(dataset, config)), on_device(dataset, config, HOST)


NEGATIVES = ("none", "binary", "binary-strict", "binary-weighted", "triplet", "triplet-strict", "triplet-weighted")
LINK_WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "disjoint": {"disjoint": True},
    "times": {"temporal_strategy": "uniform"},
}


def crowded_graph(num_nodes: int) -> TestGraph:
    """Node v has edges to all nodes but v + 1 and v + 2: most draws of negatives meet an edge."""
    source = torch.arange(num_nodes).repeat_interleave(num_nodes - 2)
    step = torch.arange(3, num_nodes + 1).repeat(num_nodes)
    return TestGraph({None: num_nodes}, {None: torch.stack([source, (source + step) % num_nodes])}, {})


def negatives_of(name: str, num_src: int, num_dst: int) -> NegativeSampling | None:
    """What one of ``NEGATIVES`` stands for."""
    if name == "none":
        return None
    mode, _, kind = name.partition("-")
    draw = torch.Generator().manual_seed(21)
    src_weight, weight = (torch.rand(count, generator=draw) * (torch.arange(count) % 3) for count in (num_src, num_dst))
    options: dict[str, Any] = {"strict": kind != ""}
    if kind == "weighted":
        options |= {"weight": weight} | ({"src_weight": src_weight} if mode == "binary" else {})
    return NegativeSampling(mode, 1.5 if mode == "binary" else 3, **options)


def links_for(graph: TestGraph, negatives: str, way: dict[str, Any], *, count: int = 70) -> EdgeSamplerInput:
    """Links of the first edge type, with labels where there are no triplets and times where the way has them.

    None is of source 0, which may have edges to all targets that are there in time.
    """
    edge_type = next(iter(graph.edges))
    ends = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
    draw = torch.Generator().manual_seed(23)
    edges = graph.edges[edge_type][:, graph.edges[edge_type][0] > 0]
    links = edges[:, torch.randint(0, edges.size(1), (count,), generator=draw)]
    label = torch.arange(count) % 5 + 1 if negatives.startswith("binary") else None
    time = torch.randint(0, MAX_TIME + 1, (count,), generator=draw) if "temporal_strategy" in way else None
    sampling = negatives_of(negatives, graph.num_nodes[ends[0]], graph.num_nodes[ends[1]])
    return EdgeSamplerInput(links[0], links[1], label, edge_type, sampling, time)


def link_graph(kind: str, way: dict[str, Any]) -> TestGraph:
    """A random graph; with times, nodes and so edges have them."""
    graph = graph_for(kind, {})
    return with_node_times(graph, 8) if "temporal_strategy" in way else graph


def seeds_for(graph: TestGraph, way: dict[str, Any], *, count: int = 32) -> tuple[SeedList, ...]:
    """A list of seeds, some twice; two lists of different types where nodes may be collapsed."""
    draw = torch.Generator().manual_seed(9)
    node_types = sorted(graph.num_nodes, key=str)
    timed = "temporal_strategy" in way

    def seeds(number: int, *, unique: bool) -> SeedList:
        ids = torch.randint(0, graph.num_nodes[node_types[number]], (count,), generator=draw)
        times = torch.randint(0, MAX_TIME + 1, (count,), generator=draw) if timed else None
        return SeedList(number, ids, times, unique)

    last = len(node_types) - 1
    return seeds(last, unique=False), seeds(0, unique=True), seeds(last, unique=True)


def sample(graph: GraphAccess, seeds: tuple[SeedList, ...], index: int) -> tuple[Subgraph, tuple[torch.Tensor, ...]]:
    """Batch ``index`` of epoch 2."""
    (sampled,) = run_local(graph.sample([(seeds, 2, index)]))
    return sampled


def assert_same_batches(
    expected: GraphAccess,
    found: GraphAccess,
    dataset: Dataset,
    inputs: NodeSamplerInput | EdgeSamplerInput,
    config: SamplingConfig,
) -> None:
    """All batches of two epochs are equal bit by bit, wherever the tensors lie."""
    makers = [BatchMaker(graph, dataset.schema, inputs, config) for graph in (expected, found)]
    for epoch in (0, 3):
        for index in range(makers[0].schedule.num_batches):
            batches = [run_local(maker.make(epoch, index)) for maker in makers]
            assert_equal_values(batches[1], batches[0], f"batch {index}")


def assert_equal_values(found: Any, expected: Any, name: str) -> None:
    """Equal in every field and entry; tensors also in dtype and shape."""
    assert type(found) is type(expected), name
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, name
        assert torch.equal(found.cpu(), expected.cpu()), name
    elif is_dataclass(expected):
        for field in fields(expected):
            assert_equal_values(getattr(found, field.name), getattr(expected, field.name), f"{name}.{field.name}")
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), name
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal_values(one, other, f"{name}[{number}]")
    else:
        assert found == expected, name


def assert_same_data(found: Any, expected: Any) -> None:
    """PyG objects with the same stores, which hold the same, wherever the tensors lie."""
    for store, other in zip(expected.stores, found.stores, strict=True):
        assert list(store.keys()) == list(other.keys())
        for key, value in store.items():
            assert_equal_values(other[key], value, key)


def assert_same(
    actual: tuple[Subgraph, tuple[torch.Tensor, ...]], expected: tuple[Subgraph, tuple[torch.Tensor, ...]]
) -> None:
    """Equal bit by bit, wherever the tensors lie."""
    assert_equal_values(actual, expected, "batch")
