"""Subgraphs and links of the GPU's kernels, whose bodies the host runs here: the CPU's batches, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler import NodeSamplerInput, SamplingType
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import (
    assert_same_batches,
    config_for,
    graph_for,
    local_and_device,
)
from tests.support.graphs import make_dataset

KINDS = ["homogeneous", "typed"]


@pytest.mark.parametrize("edge_dir", ["out", "in"])
@pytest.mark.parametrize("fanouts", [None, [3, 2], [-1]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_subgraphs_are_those_of_the_cpu(kind: str, fanouts: list[int] | None, edge_dir: Any) -> None:
    dataset = make_dataset(graph_for(kind, {}), edge_dir)
    seeds = torch.arange(90).repeat(2)  # some twice in a batch
    inputs = NodeSamplerInput(seeds, None if kind == "homogeneous" else "user")
    for way in ({}, {"with_edge": False}, {"shuffle": True, "batch_size": 50}):
        config = config_for(fanouts, {**way, "edge_dir": edge_dir}, SamplingType.SUBGRAPH)
        assert_same_batches(*local_and_device(dataset, config), dataset, inputs, config)


def test_a_node_outside_the_graph_is_named() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    _, device = local_and_device(dataset, config_for(None, {}, SamplingType.SUBGRAPH))
    with pytest.raises(UnknownIdError, match="node id -1, at position 1"):
        run_local(device.induced((torch.tensor([3, -1, 300]),)))


def test_plans_of_induced_edges_refuse_what_they_were_not_made_for() -> None:
    plan = _C.DeviceInducedPlan([5], [2], [(0, 0)])
    graph = _C.DeviceCsr(torch.tensor([0, 4, 8, 8, 8, 8]), torch.arange(8) % 5, None, 5, -1)
    result, scratch = (torch.empty(size // 8, dtype=torch.int64) for size in (plan.num_bytes, plan.num_scratch_bytes))
    members = [torch.tensor([1, 0])]

    def count(**changes: Any) -> None:
        arguments = {"graphs": [graph], "members": members, "result": result, "scratch": scratch}
        plan.count(**{**arguments, "device": -1, "stream": 0, **changes})

    count()
    assert result[0] == 4
    counts = plan.counts[0]
    assert result[counts : counts + 2].tolist() == [2, 2]
    for changes, match in [
        ({"graphs": []}, "expected 1 graphs and 1 lists, got 0 and 1"),
        ({"members": [torch.tensor([1])]}, r"members\[0\]: expected 2 ids, got 1"),
        ({"members": [torch.tensor([1.0, 2.0])]}, "members: expected dtype int32 or int64"),
        ({"result": result[:-1]}, "result: expected at least"),
        ({"scratch": scratch[:-1]}, "scratch: expected at least"),
        ({"graphs": [_C.DeviceCsr(torch.tensor([0, 0]), torch.arange(0), None, 5, -1)]}, "expected 5 rows"),
        ({"device": 0}, "pinned|expected those of GPU 0"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            count(**changes)
    cols = torch.empty(4, dtype=torch.int64)
    for out, match in [
        (([], []), "expected arrays for 1 types, got 0"),
        (([cols], []), "edge_ids: expected one entry"),
        (([cols.int()], [None]), "cols: expected dtype int64"),
        (([cols], [cols[1:]]), r"edge_ids: expected int64 \[4\]"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            plan.write([graph], members, result, scratch, *out, -1, 0)
    for shape in (([5], [2, 3], [(0, 0)]), ([5], [2], [(0, 1)])):
        with pytest.raises(InvalidArgumentError):
            _C.DeviceInducedPlan(*shape)
