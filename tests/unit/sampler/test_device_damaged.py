"""Kernels over graphs that are damaged: the batch says so, and nothing beyond the arrays is touched."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.data.schema import by_type
from graphlearn_dist.errors import PartitionFormatError, UnknownIdError
from graphlearn_dist.loader import StaticShapes
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from graphlearn_dist.sampler.device.static_batches import ask, new_request
from tests.support.device_batches import HOST, WAYS, config_for, graph_for, on_device, sample, seeds_for
from tests.support.graphs import make_dataset
from tests.support.static_batches import batches_of_kernels, loader_for


def device_graph(kind: str, way: str) -> tuple[DeviceGraph, list[torch.Tensor], list[torch.Tensor]]:
    """A graph that the host samples as a GPU does, and the offsets and neighbors that it reads, by edge type."""
    dataset = make_dataset(graph_for(kind, WAYS[way]))
    access = on_device(dataset, config_for([-1, 3], WAYS[way]), HOST)
    topologies = [graph.topo for graph in by_type(dataset.graph).values()]
    return access, [one.indptr for one in topologies], [one.indices for one in topologies]


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
@pytest.mark.parametrize("way", WAYS)
def test_offsets(kind: str, way: str) -> None:
    access, indptrs, _ = device_graph(kind, way)
    seeds = seeds_for(graph_for(kind, WAYS[way]), WAYS[way])
    sample(access, seeds, 0)
    for indptr in indptrs:
        indptr[1:-1] = 1 << 50  # after they were looked at: what is damaged while it is used
    with pytest.raises(PartitionFormatError, match="indptr: a batch met offsets that are not in order"):
        sample(access, seeds, 0)


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("neighbor", [-1, (1 << 31) - 1, 300])
def test_neighbors(kind: str, way: str, neighbor: int) -> None:
    access, _, indices = device_graph(kind, way)
    seeds = seeds_for(graph_for(kind, WAYS[way]), WAYS[way])
    for ids in indices:
        ids.fill_(neighbor)
    typed = "" if kind == "homogeneous" else ", edges of type "
    with pytest.raises(UnknownIdError, match=f"indices: a batch met a neighbor that is outside the graph{typed}"):
        sample(access, seeds, 0)


def test_offsets_that_are_damaged_before() -> None:
    """What is brought to a GPU is looked at then."""
    dataset = make_dataset(graph_for("homogeneous", {}))
    dataset.graph.topo.indptr[5] = -3
    with pytest.raises(PartitionFormatError, match="indptr: expected ascending offsets"):
        on_device(dataset, config_for([2], {}), HOST)


def test_padded_batches() -> None:
    """They come as padding alone, and whoever asks hears why, once."""
    loader = loader_for("homogeneous", fanouts=(-1, 2), static_shapes=True)
    batches = batches_of_kernels(loader, StaticShapes(), HOST)
    indices, request = loader.data.graph.topo.indices, new_request(0, HOST)
    ask(request, 0, 1)
    indices.fill_(300)
    padded = batches.sample(request)
    assert not any(mask.any() for mask in padded.node_masks)
    with pytest.raises(UnknownIdError, match="a batch met a neighbor that is outside the graph"):
        batches.check()
    batches.check()
