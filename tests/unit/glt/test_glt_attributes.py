"""Attributes and arguments that programs for GraphLearn-for-PyTorch use of samplers, loaders, options and data sets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.glt.data import graph
from graphlearn_dist.utils import no_effect

RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def test_devices_of_graphs_and_features() -> None:
    topology = glt.data.Topology(RING)
    assert glt.data.Graph(topology, "cpu", 7).device is None  # no device is looked at
    assert glt.data.Graph(topology, "ZERO_COPY", torch.device("cpu")).device is None
    with pytest.raises(InvalidArgumentError, match=r"device: expected .* got 'cuda:99'"):
        glt.data.Graph(topology, "CUDA", torch.device("cuda", 99))
    with pytest.raises(InvalidArgumentError, match=r"device: expected .* got 'cuda:99'"):
        glt.data.Feature(torch.ones(4, 1), device=torch.device("cuda:99"))
    dataset = glt.distributed.DistDataset(edge_dir="in")
    edge_type = ("v", "to", "v")
    dataset.init_graph(
        {edge_type: RING}, {edge_type: torch.arange(4)}, {edge_type: None}, graph_mode="CPU", device=torch.device("cpu")
    )
    indptr, indices, edge_ids = dataset.get_graph(edge_type).export_topology()
    assert (indptr.tolist(), indices.tolist(), edge_ids.tolist()) == ([0, 1, 2, 3, 4], [3, 0, 1, 2], [3, 0, 1, 2])


def test_topology_by_name() -> None:
    topology = glt.data.Topology(RING)
    topology["note"] = 3
    assert topology["note"] == 3
    assert topology["indptr"].tolist() == [0, 1, 2, 3, 4]


def test_samplers_and_loaders_say_how_they_sample() -> None:
    dataset = glt.data.Dataset()
    dataset.init_graph(RING, graph_mode="CPU")
    sampler = glt.sampler.NeighborSampler(dataset.get_graph(), [2, 1], with_edge=True)
    assert (sampler.num_neighbors, sampler.num_hops, sampler.with_edge) == ([2, 1], 2, True)
    assert (sampler.strategy, sampler.edge_dir, sampler.with_weight) == ("random", "out", False)
    typed = glt.sampler.NeighborSampler({("a", "to", "b"): dataset.get_graph()}, {("a", "to", "b"): [1, 1, 1]})
    assert typed.num_hops == 3
    assert typed.node_types == {"a", "b"}
    assert typed.edge_types == [("a", "to", "b")]
    loader = glt.loader.NeighborLoader(dataset, [1], torch.arange(4), device=torch.device("cpu"))
    assert (loader.device, loader.edge_dir, loader.batch_size) == (torch.device("cpu"), "out", 1)
    assert loader.as_pyg_v1 is False
    own = glt.loader.NodeLoader(dataset, sampler, torch.arange(4))
    assert own.sampler is sampler
    assert len(list(own)) == 4


def test_nodes_in_the_place_of_their_number() -> None:
    """GLT's sampler asks for numbers of nodes by type, and reads the lengths of tensors."""
    graph = glt.data.Graph(glt.data.Topology(RING), "CPU")
    sampler = glt.sampler.NeighborSampler({("a", "to", "a"): graph}, [1])
    seeds = glt.sampler.NodeSamplerInput(torch.tensor([1]), "a")
    assert sampler.sample_prob(seeds, {"a": torch.arange(5)})["a"].tolist() == [0, 1, 1, 0, 0]
    assert sampler.sample_prob(seeds, {"a": 5})["a"].tolist() == [0, 1, 1, 0, 0]
    plain = glt.sampler.NeighborSampler(graph, [1])
    assert plain.sample_prob(torch.tensor([1]), 4).tolist() == [0, 1, 1, 0]


def test_a_worker_for_each_gpu_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_warned", set())
    with pytest.warns(UserWarning, match="num_workers=0: .* one worker samples"):
        served = glt.distributed.RemoteDistSamplingWorkerOptions([0, 1], 0, [], buffer_size="64MB", worker_key="train")
    assert served.num_workers == 1
    assert glt.distributed.MpDistSamplingWorkerOptions(0, []).num_workers == 1
    with pytest.raises(InvalidArgumentError, match="num_workers"):
        glt.distributed.MpDistSamplingWorkerOptions(-1)


def test_capacities_of_options() -> None:
    there = glt.distributed.MpDistSamplingWorkerOptions(num_workers=2, worker_concurrency=4)
    served = glt.distributed.RemoteDistSamplingWorkerOptions(server_rank=0, num_workers=3, worker_concurrency=2)
    assert (there.channel_capacity, served.buffer_capacity) == (8, 6)


def test_kinds_of_distributed_graphs_and_features() -> None:
    graph, feature = glt.data.Graph(glt.data.Topology(RING), "CPU"), glt.data.Feature(torch.ones(4, 1))
    owners = torch.zeros(4, dtype=torch.int64)
    assert glt.distributed.DistGraph(1, 0, graph, owners).data_cls == "homo"
    assert glt.distributed.DistFeature(1, 0, {"v": feature}, {"v": owners}, local_only=True).data_cls == "hetero"


# --- graphs for a GPU that are given none ----------------------------------------------------------------------------


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    for tell in (graph._tell_of_cpu, graph._tell_of_idle_gpu):
        tell.cache_clear()
    with caplog.at_level(logging.WARNING, "graphlearn_dist"):
        yield caplog
    for tell in (graph._tell_of_cpu, graph._tell_of_idle_gpu):
        tell.cache_clear()


def ring_of(mode: str, device: Any = None) -> glt.data.Dataset:
    dataset = glt.data.Dataset()
    dataset.init_graph(RING, graph_mode=mode, device=device)
    return dataset


def test_a_graph_without_a_device_takes_that_of_its_loader(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 2)
    monkeypatch.setattr(_C, "cuda_is_built", lambda: True)
    for mode in ("CUDA", "ZERO_COPY"):
        dataset = ring_of(mode)
        for device in (torch.device("cuda", 1), "cuda:0"):  # the first one counts
            graph.take_gpu(dataset, device)
            assert dataset.graph.sampling_device == torch.device("cuda", 1)
    for dataset, device in ((ring_of("CPU"), None), (ring_of("CUDA", 0), 0)):
        graph.take_gpu(dataset, 1)
        assert dataset.graph.device == device
    assert told.records == []


def test_the_default_mode_tells_of_a_gpu_that_does_not_sample(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and only where there is a GPU: on other hosts it is the mode of every program, and nobody is told."""
    seeds = torch.arange(4)
    for mode, gpus, records in (("ZERO_COPY", 0, 0), ("CPU", 1, 0), ("ZERO_COPY", 1, 1), ("ZERO_COPY", 1, 1)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert len(list(glt.loader.NeighborLoader(ring_of(mode), [1], seeds, batch_size=2))) == 2
        assert len(told.records) == records
    assert "graph_mode='ZERO_COPY', which is the default: the CPU samples, though a GPU is there" in told.text
    dataset = ring_of("ZERO_COPY")
    graph._tell_of_idle_gpu.cache_clear()
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(_C, "cuda_is_built", lambda: True)
    graph.take_gpu(dataset, 0, may_take=False)  # workers, or a partition
    assert len(told.records) == 2
    graph.take_gpu(dataset, 0)
    assert dataset.graph.device == 0
    assert len(told.records) == 2


def test_where_a_graph_for_a_gpu_is_sampled_by_the_cpu_that_is_told(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ring_of("CUDA")
    for _ in range(2):
        assert len(list(glt.loader.NeighborLoader(dataset, [1], torch.arange(4), batch_size=2))) == 2
    (record,) = told.records
    assert "graph_mode='CUDA': the CPU samples: the graph was given no device" in record.message
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(_C, "cuda_is_built", lambda: True)
    graph.take_gpu(dataset, 0, may_take=False)  # workers, or a partition
    assert dataset.graph.device is None
    assert len(told.records) == 2


def test_distributed_loaders_tell_it_too(told: pytest.LogCaptureFixture) -> None:
    owners = torch.zeros(4, dtype=torch.int64)
    dataset = glt.distributed.DistDataset(1, 0, ring_of("CUDA").graph, node_pb=owners, edge_dir="out")
    loader = glt.distributed.DistNeighborLoader(dataset, [1], torch.arange(4), to_device=torch.device("cpu"))
    loader.shutdown()
    assert len(told.records) == 1
