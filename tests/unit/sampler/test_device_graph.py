"""Batches of the GPU's kernels, whose bodies the host runs here: those of the CPU, bit by bit.

What only a GPU shows (launches, streams, memory) is tested in ``tests/gpu``.
"""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Graph
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.unified_tensor import view_rows
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler.device.device_graph import DeviceGraph
from graphlearn_dist.sampler.local_graph import LocalGraph
from graphlearn_dist.sampler.tasks import SeedList
from tests.support.device_batches import (
    FANOUTS,
    HOST,
    WAYS,
    assert_same,
    config_for,
    graph_for,
    local_and_device,
    long_rows_for,
    sample,
    seeds_for,
)
from tests.support.graphs import make_dataset


def both(kind: str, way: str, fanouts: list[int]) -> tuple[LocalGraph, DeviceGraph]:
    return local_and_device(make_dataset(graph_for(kind, WAYS[way])), config_for(fanouts, WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_batches_are_those_of_the_cpu(kind: str, way: str) -> None:
    for fanouts in FANOUTS:
        local, device = both(kind, way, fanouts)
        for index in (0, 7):
            seeds = seeds_for(graph_for(kind, WAYS[way]), WAYS[way])
            assert_same(sample(device, seeds, index), sample(local, seeds, index))


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_long_rows_are_those_of_the_cpu(way: str) -> None:
    graph = long_rows_for(WAYS[way])
    for fanouts in ([4, 3], [8, 200]):
        local, device = local_and_device(make_dataset(graph), config_for(fanouts, WAYS[way]))
        seeds = seeds_for(graph, WAYS[way])
        found, expected = sample(device, seeds, 1), sample(local, seeds, 1)
        assert set(found[0].nodes[0].tolist()) >= {0, 1}
        assert_same(found, expected)


def test_no_seeds_and_other_numbers_of_seeds() -> None:
    local, device = both("typed", "uniform", [2, 2])
    for count in (0, 1, 33, *range(2, 20)):  # more shapes than are kept
        seeds = seeds_for(graph_for("typed", {}), {}, count=count)
        assert_same(sample(device, seeds, 1), sample(local, seeds, 1))


def test_a_seed_outside_the_graph_is_named() -> None:
    _, device = both("homogeneous", "uniform", [2])
    with pytest.raises(UnknownIdError, match="node id 300, at position 2"):
        sample(device, (SeedList(0, torch.tensor([1, 2, 300, -1])),), 0)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_gathers_are_those_of_the_cpu(stored: torch.dtype, wanted: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    for shape in [(50, 7), (50, 16), (50,), (50, 2, 3)]:
        rows = (torch.randn(shape, generator=draw) * 100).to(stored)
        ids = torch.randint(0, 50, (200,), generator=draw)
        for parts in ([rows], [rows[:20], rows[20:20], rows[20:]]):
            found = DeviceRows(parts, HOST)
            expected = view_rows(rows).gather(ids, dtype=wanted)
            assert torch.equal(found.gather(ids, wanted), expected)
            assert torch.equal(found.gather(ids.int(), wanted), expected)
            out = torch.zeros((200, *shape[1:]), dtype=wanted)
            places = torch.randperm(200, generator=draw)
            found.gather_into(out, places, ids)
            assert torch.equal(out[places], expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_rows_of_any_type_are_gathered(dtype: torch.dtype) -> None:
    rows = torch.arange(60).view(20, 3).to(dtype)
    ids = torch.tensor([19, 0, 0, 7])
    assert torch.equal(DeviceRows([rows], HOST).gather(ids, dtype), rows[ids])


@pytest.mark.parametrize("width", [1, 3, 16, 50, 100])  # in words and in lines of memory
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16])
def test_rows_that_do_not_exist_are_zeros(width: int, wanted: torch.dtype) -> None:
    rows = torch.ones(5, width)
    found = DeviceRows([rows[:2], rows[2:]], HOST, torch.tensor([4, -1, 0, 7])).gather_or_zeros(
        torch.tensor([0, 1, 2, 3, 4, -1, 0]), wanted
    )
    expected = torch.tensor([1, 0, 1, 0, 0, 0, 1], dtype=wanted)
    assert torch.equal(found, expected[:, None].expand(-1, width))


def test_rows_that_do_not_exist_are_named() -> None:
    rows = DeviceRows([torch.zeros(5, 2), torch.zeros(3, 2)], HOST)
    for bad in (8, -1):
        with pytest.raises(UnknownIdError, match=rf"ids\[1\]: row {bad} is outside \[0, 8\)"):
            rows.gather(torch.tensor([7, bad, 9]), torch.float32)
    out = torch.ones(3, 2)
    with pytest.raises(UnknownIdError):
        rows.gather_into(out, torch.tensor([2, 0]), torch.tensor([0, 8]))
    assert out.tolist() == [[0, 0], [1, 1], [0, 0]]
    with pytest.raises(UnknownIdError, match="position 4 outside"):
        rows.gather_into(torch.zeros(4, 2), torch.tensor([4]), torch.tensor([0]))
    with pytest.raises(InvalidArgumentError, match="out"):
        rows.gather_into(torch.zeros(4, 3), None, torch.tensor([0]))
    with pytest.raises(InvalidArgumentError, match="at most 16 pieces"):
        DeviceRows([torch.zeros(1, 2)] * 17, HOST).gather(torch.tensor([0]), torch.float32)


def test_a_build_without_cuda_has_no_device() -> None:
    if _C.cuda_is_built():
        pytest.skip("this build has CUDA")
    topo = make_dataset(graph_for("homogeneous", {})).graph.topo
    with pytest.raises(InvalidArgumentError, match=r"device: expected .* 0 GPUs are usable, got 0"):
        Graph(topo, "CUDA", 0)
    with pytest.raises(InvalidArgumentError, match="pinned"):
        _C.DeviceCsr(topo.indptr, topo.indices, topo.edge_ids, topo.num_cols, 0)


def test_plans_refuse_what_they_were_not_made_for() -> None:
    plan = _C.DeviceBatchPlan([5], [(0, 0, 8, 4, False)], [(0, 2, False)], [[2]], False, False)
    graph = _C.DeviceCsr(torch.tensor([0, 4, 8, 8, 8, 8]), torch.arange(8) % 5, None, 5, -1)
    arrays = [torch.empty(size // 8, dtype=torch.int64) for size in (plan.num_bytes, plan.num_scratch_bytes)]
    how, counter, seeds = _C.DrawMethod(), torch.tensor([0, 0, 0]), torch.tensor([0, 1])

    def launch(**changes: object) -> None:
        arguments = {"graphs": [graph], "how": [how], "seeds": [seeds], "times": None, "counter": counter}
        plan.launch(**{**arguments, "result": arrays[0], "scratch": arrays[1], "device": -1, "stream": 0, **changes})

    launch()
    for changes, match in [
        ({"seeds": [torch.tensor([0])]}, "expected 2 ids, got 1"),
        ({"graphs": []}, "expected one of each for 1 edge types"),
        ({"how": [_C.DrawMethod(replace=True)]}, "replacement"),
        ({"how": [_C.DrawMethod("weighted")]}, "no edge weights"),
        ({"times": torch.tensor([0, 0])}, "disjoint"),
        ({"counter": torch.tensor([0, 0])}, "counter: expected int64"),
        ({"result": arrays[0][:-1]}, "result: expected at least"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            launch(**changes)
