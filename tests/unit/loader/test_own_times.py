"""Seeds without times have their nodes' own, as in PyG, in every mode; where there are none, that is an error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NeighborSampler, NodeSamplerInput
from graphlearn_dist.sampler.batches import LocalBatches, with_own_times
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import TestGraph, make_dataset, random_graph, typed_graph, with_node_times, with_times
from tests.support.oracle import assert_same, load_partitions, pyg_tensors, tensors_of, write_partitions

GRAPHS = {
    "homogeneous": with_node_times(random_graph(60, 600, 3), 4),
    "typed": with_node_times(typed_graph(40, 20, 300, 3), 4),
}
STRATEGIES = ("uniform", "last")


def seeds_of(graph: TestGraph) -> tuple[Any, torch.Tensor]:
    node_type = None if graph.is_homogeneous else "user"
    ids = torch.arange(graph.num_nodes[node_type]).flip(0)
    return (ids if node_type is None else (node_type, ids)), graph.node_times[node_type][ids]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", GRAPHS)
def test_they_are_the_default(name: str, strategy: str) -> None:
    """The batches are those of the same times as ``input_time``; no neighbor is later than its seed."""
    graph = GRAPHS[name]
    seeds, times = seeds_of(graph)
    settings: dict[str, Any] = {"temporal_strategy": strategy, "batch_size": 7, "shuffle": True}
    own = NeighborLoader(make_dataset(graph, "in"), [4, 3], seeds, **settings)
    given = NeighborLoader(make_dataset(graph, "in"), [4, 3], seeds, input_time=times, **settings)
    late = 0
    for batch, expected in zip(own, given, strict=True):
        assert_same(pyg_tensors(batch), pyg_tensors(expected))
        stores = [batch] if graph.is_homogeneous else [batch["user"], batch["item"]]
        seed_time = stores[0].seed_time
        for store, node_times in zip(stores, graph.node_times.values(), strict=True):
            assert bool((node_times[store.n_id] <= seed_time[store.batch]).all())
    free = NeighborLoader(make_dataset(graph, "in"), [4, 3], seeds, **{**settings, "temporal_strategy": None})
    for batch in free:
        store = batch if graph.is_homogeneous else batch["user"]
        assert "seed_time" not in store
        late += int((graph.node_times[next(iter(graph.node_times))][store.n_id] > times.min()).sum())
    assert late  # there was something to leave out


@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_partitions_give_the_same(tmp_path: Path, name: str, num_parts: int) -> None:
    graph, (seeds, _) = GRAPHS[name], seeds_of(GRAPHS[name])
    local = NeighborLoader(make_dataset(graph, "in"), [4, 3], seeds, batch_size=7, with_edge=True)
    expected = [tensors_of(batch) for batch in make_local(local.batches)]
    datasets = load_partitions(write_partitions(graph, tmp_path, "random", num_parts, "in"), num_parts)
    services = [PartitionService(dataset) for dataset in datasets]
    node_type, ids = (None, seeds) if graph.is_homogeneous else seeds
    inputs = NodeSamplerInput(ids, node_type)
    for dataset, service in zip(datasets, services, strict=True):
        config = with_own_times(local.config, inputs, dataset)
        assert config.is_disjoint
        batches = PartitionedBatches(dataset, inputs, config, [service], DirectPeers(services))
        for actual, wanted in zip(make_all(batches, 0), expected, strict=True):
            assert_same(tensors_of(actual), wanted)


def make_local(batches: LocalBatches) -> list[Any]:
    return [batches.make(0, index) for index in range(batches.schedule.num_batches)]


@pytest.mark.parametrize(
    "options", [CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions(num_workers=1)], ids=["here", "mp"]
)
def test_distributed_loaders_give_the_same(options: Any) -> None:
    graph, (seeds, _) = GRAPHS["typed"], seeds_of(GRAPHS["typed"])
    whole = make_dataset(graph, "in")
    local = NeighborLoader(whole, [4, 3], seeds, batch_size=7, with_edge=True, prefetch=0)
    far = DistNeighborLoader(
        DistDataset.from_dataset(whole), [4, 3], seeds, batch_size=7, with_edge=True, edge_dir="in",
        collect_features=True, worker_options=options,
    )  # fmt: skip
    with far:
        for actual, wanted in zip(far, local, strict=True):
            assert_same(pyg_tensors(actual), pyg_tensors(wanted))
        assert far.state_dict() == local.state_dict()


def test_static_shapes_have_them_too() -> None:
    graph = GRAPHS["homogeneous"]
    seeds, times = seeds_of(graph)
    settings: dict[str, Any] = {"batch_size": 7, "static_shapes": True}
    own = NeighborLoader(make_dataset(graph, "in"), [3, 2], seeds, **settings)
    given = NeighborLoader(make_dataset(graph, "in"), [3, 2], seeds, input_time=times, **settings)
    for batch, expected in zip(own, given, strict=True):
        assert_same(pyg_tensors(batch), pyg_tensors(expected))


def of_edge_times() -> Dataset:
    return make_dataset(with_times(random_graph(30, 200, 3), 1), "in")


def test_where_there_are_none_it_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="input_time: expected times of the seeds, as"):
        NeighborLoader(of_edge_times(), [2], torch.arange(5))
    graph = GRAPHS["typed"]
    partly = make_dataset(replace(graph, node_times={"item": graph.node_times["item"]}), "in")
    with pytest.raises(InvalidArgumentError, match=r"input_time: .* nodes of type 'user' have none"):
        NeighborLoader(partly, [2], "user")
    assert len(NeighborLoader(partly, [2], "item", batch_size=20)) == 1
    with pytest.raises(InvalidArgumentError, match="input_time: expected times of the seeds"):
        DistNeighborLoader(DistDataset.from_dataset(of_edge_times()), [2], torch.arange(5), edge_dir="in")
    with pytest.raises(InvalidArgumentError, match="input_time: expected times of the seeds"):
        NeighborSampler.of_dataset(of_edge_times(), [2]).sample_from_nodes(NodeSamplerInput(torch.arange(5)))


@pytest.mark.parametrize("dataset", [of_edge_times(), make_dataset(GRAPHS["homogeneous"], "in")])
def test_links_need_times(dataset: Dataset) -> None:
    """As in PyG, which has no default for them."""
    links = torch.arange(10).view(2, 5)
    with pytest.raises(InvalidArgumentError, match="edge_label_time: expected times of the links"):
        LinkNeighborLoader(dataset, [2], edge_label_index=links)
    for ways in ({"temporal_strategy": None}, {"edge_label_time": torch.arange(5)}):
        assert next(iter(LinkNeighborLoader(dataset, [2], edge_label_index=links, **ways))).batch_size == 1


def test_what_looks_at_no_times() -> None:
    """Induced subgraphs have each node once; and who asks for no times gets none."""
    dataset = of_edge_times()
    assert next(iter(SubGraphLoader(dataset, torch.arange(5), [2], batch_size=5))).batch_size == 5
    with pytest.raises(InvalidArgumentError, match="temporal_strategy: None looks at no times"):
        NeighborLoader(dataset, [2], torch.arange(5), input_time=torch.arange(5), temporal_strategy=None)
    loader = NeighborLoader(dataset, [2], torch.arange(5), temporal_strategy=None)
    plain = NeighborLoader(make_dataset(random_graph(30, 200, 3), "in"), [2], torch.arange(5))
    for batch, expected in zip(loader, plain, strict=True):
        assert set(batch.n_id.tolist()) <= set(range(30))
        assert batch.num_sampled_nodes[0] == expected.num_sampled_nodes[0]
