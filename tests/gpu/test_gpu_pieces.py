"""Graphs in pieces: on one GPU, which maps two of its own side by side, and on two that read each other's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, DeviceGroup
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.data.device.spread_tensor import SpreadHandle, spread
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.sampler.batches import make_plan
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from graphlearn_dist.sampler.local_graph import LocalGraph
from tests.support.device_batches import WAYS, assert_same, config_for, on_device, sample, seeds_for
from tests.support.gpu import GPU, busy, needs_gpu
from tests.support.graphs import TestGraph, make_dataset, with_times, with_weights
from tests.support.processes import run_processes
from tests.support.waiting import collect

pytestmark = needs_gpu
HERE = "tests.gpu.test_gpu_pieces"
DEADLINE_S = 120.0  # only ever reached by a hang
MIB = 1 << 20
PIECES = (0, 0)  # both on GPU 0


def large_graph(way: dict[str, Any]) -> TestGraph:
    """Arrays of 4 to 12 MiB: pieces are multiples of 2 MiB."""
    draw = torch.Generator().manual_seed(7)
    edges = torch.randint(0, 200_000, (2, 1_500_000), generator=draw)
    edges[0, :300_000] = edges[0, :300_000] % 100  # rows of thousands of edges
    graph = TestGraph({None: 200_000}, {None: edges}, {})
    graph = with_weights(graph, 7, some_zero=True) if way.get("with_weight") else graph
    return with_times(graph, 8) if "temporal_strategy" in way else graph


def test_one_range_over_two_pieces() -> None:
    values = torch.randint(0, 1 << 40, (5 * MIB // 8 + 3,))
    placed = spread(values, PIECES, GPU)
    assert [num_bytes for _, num_bytes in placed.memory.pieces] == [4 * MIB, 2 * MIB]
    assert placed.tensor.device == GPU
    assert torch.equal(placed.tensor.cpu(), values)
    ids = torch.randint(0, values.numel(), (100_000,))
    assert torch.equal(placed.tensor[ids.to(GPU)].cpu(), values[ids])  # a kernel of torch reads across


@pytest.mark.parametrize("way", ["uniform", "weighted", "times-weighted", "labor"])
def test_batches_are_those_of_the_cpu(way: str) -> None:
    graph = large_graph(WAYS[way])
    dataset, seeds, config = make_dataset(graph), seeds_for(graph, WAYS[way]), config_for([8, 4], WAYS[way])
    pieces = on_device(dataset, config, GPU, group=PIECES)
    local = LocalGraph(dataset, make_plan(dataset, config))
    for index in range(3):
        assert_same(sample(pieces, seeds, index), sample(local, seeds, index))


def test_pieces_take_their_bytes_and_give_them_back() -> None:
    values = torch.zeros(64 * MIB, dtype=torch.uint8)
    spread(values[:8], PIECES, GPU)  # what the first one takes
    collect()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    placed = spread(values, PIECES, GPU)
    assert 64 * MIB <= before - torch.cuda.mem_get_info()[0] <= 66 * MIB
    del placed
    assert torch.cuda.mem_get_info()[0] == before


def test_who_drops_a_graph_waits_for_those_who_read_it() -> None:
    """A page that is taken from under a kernel would end the process's use of the GPU."""
    graph = large_graph({})
    dataset, seeds, config = make_dataset(graph), seeds_for(graph, {}), config_for([8, 4], {})
    expected = sample(LocalGraph(dataset, make_plan(dataset, config)), seeds, 0)
    for _ in range(3):
        topology = DeviceTopology(dataset.graph.topo, "CUDA", GPU, group=PIECES)
        device = DeviceGraph(make_plan(dataset, config), [topology], GPU)
        sample(device, seeds, 0)
        busy(0.05)
        read = topology._placed["indices"].tensor.long().sum()
        del topology, device
        collect()
        assert int(read) == int(dataset.graph.topo.indices.long().sum())
    assert_same(sample(on_device(dataset, config, GPU), seeds, 0), expected)


# --- other processes, and other GPUs -------------------------------------------------------------------------------


def sum_received(inbox: Any, outbox: Any) -> None:
    """A child, which sums what it is sent handles of."""
    while (handle := inbox.get(timeout=DEADLINE_S)) is not None:
        outbox.put(int(handle.open(GPU).tensor.sum()))
        del handle


def share_with_a_child() -> None:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=sum_received, args=(inbox, outbox), daemon=True)
    child.start()
    try:
        values = torch.arange(MIB)
        placed = spread(values, PIECES, GPU)
        handle = SpreadHandle.of(placed)
        for _ in range(2):
            inbox.put(handle)
            assert outbox.get(timeout=DEADLINE_S) == int(values.sum())
            placed.tensor.add_(1)  # seen there by the same handle: there is one copy
            values += 1
            torch.cuda.synchronize()
        inbox.put(None)
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_another_process_reads_the_same_pieces() -> None:
    run_processes([(f"{HERE}.share_with_a_child", {})], DEADLINE_S)


GROUPS = [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)])]


def two_peers() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, there is {torch.cuda.device_count()}: peers were not tried")
    if not (_C.cuda_can_access_peer(0, 1) and _C.cuda_can_access_peer(1, 0)):
        pytest.skip("needs two GPUs that can read each other's memory, those here cannot: peers were not tried")


def dataset_over_two(graph: TestGraph) -> Dataset:
    dataset = make_dataset(graph)
    place = {"graph_mode": "CUDA", "device": 0, "device_group_list": GROUPS}
    dataset.init_graph(graph.edges[None], num_nodes=graph.num_nodes[None], **place)
    return dataset


def batches_on(dataset: Dataset) -> list[tuple[torch.Tensor, torch.Tensor]]:
    loader = NeighborLoader(dataset, [8, 4], torch.arange(4096), batch_size=1024, shuffle=True, seed=3)
    return [(batch.n_id.cpu(), batch.edge_index.cpu()) for batch in loader]


def test_two_gpus_hold_a_half_each_and_both_sample() -> None:
    two_peers()
    graph = large_graph({})
    expected, dataset = batches_on(make_dataset(graph)), dataset_over_two(graph)
    for gpu in (0, 1):
        dataset.sample_on(gpu)
        for found, wanted in zip(batches_on(dataset), expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        pieces = dataset.graph.on_device()._placed["indices"].memory.pieces
        assert [place for place, _ in pieces] == [0, 1]
        assert abs(pieces[0][1] - pieces[1][1]) <= 2 * MIB


def sample_received(inbox: Any, outbox: Any) -> None:
    """A child, whose GPU is number 1."""
    dataset = inbox.get(timeout=DEADLINE_S)
    dataset.sample_on(1)
    outbox.put([(nodes.numpy(), edges.numpy()) for nodes, edges in batches_on(dataset)])
    inbox.get(timeout=DEADLINE_S)


def share_over_two_gpus() -> None:
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=sample_received, args=(inbox, outbox), daemon=True)
    child.start()
    try:
        dataset = dataset_over_two(large_graph({}))
        expected = batches_on(dataset)
        inbox.put(dataset)
        for found, wanted in zip(outbox.get(timeout=DEADLINE_S), expected, strict=True):
            assert all((a == b.numpy()).all() for a, b in zip(found, wanted, strict=True))
        inbox.put(None)
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_a_process_for_each_gpu_reads_the_same_pieces() -> None:
    two_peers()
    run_processes([(f"{HERE}.share_over_two_gpus", {})], DEADLINE_S)


def test_gpus_that_cannot_read_each_other_are_refused() -> None:
    groups = [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", torch.cuda.device_count())])]
    with pytest.raises(InvalidArgumentError, match="device_group_list: expected a GPU that is there"):
        Dataset().init_graph(torch.tensor([[0], [1]]), graph_mode="CUDA", device=0, device_group_list=groups)
    for gpu in range(1, torch.cuda.device_count()):
        if not _C.cuda_can_access_peer(0, gpu):
            with pytest.raises(InvalidArgumentError, match="device_group_list: GPU 0 cannot read the memory of GPU"):
                spread(torch.zeros(8), (0, gpu), GPU)
