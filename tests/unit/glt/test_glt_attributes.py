"""Attributes and arguments that programs for GraphLearn-for-PyTorch use of samplers, loaders, options and data sets."""

from __future__ import annotations

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.errors import InvalidArgumentError
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
    with pytest.warns(UserWarning, match="num_workers=0: .* one worker samples, on the CPU"):
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
