"""Subgraphs and links of the GPU's kernels, whose bodies the host runs here: the CPU's batches, bit by bit."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Graph
from graphlearn_dist.data.device.device_topology import DeviceTopology
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import LinkNeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingType, batches
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.links.negative_pool import NegativePool
from graphlearn_dist.utils.coroutines import run_local
from tests.support.device_batches import (
    HOST,
    LINK_WAYS,
    NEGATIVES,
    assert_same_batches,
    assert_same_data,
    config_for,
    crowded_graph,
    graph_for,
    link_graph,
    links_for,
    local_and_device,
)
from tests.support.graphs import MAX_TIME, TestGraph, make_dataset, with_node_times

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


@pytest.mark.parametrize("edge_dir", ["out", "in"])
@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_links_are_those_of_the_cpu(kind: str, negatives: str, edge_dir: Any) -> None:
    for way in LINK_WAYS.values():
        graph = link_graph(kind, way)
        dataset, inputs = make_dataset(graph, edge_dir), links_for(graph, negatives, way)
        settings = {**way, "edge_dir": edge_dir, "with_neg": negatives != "none"}
        config = config_for([3, 2], settings, SamplingType.LINK)
        assert_same_batches(*local_and_device(dataset, config), dataset, inputs, config)


@pytest.mark.parametrize("edge_dir", ["out", "in"])
@pytest.mark.parametrize("negatives", ["binary-strict", "binary-weighted", "triplet-strict", "triplet-weighted"])
def test_strict_negatives_where_most_pairs_are_edges(negatives: str, edge_dir: Any) -> None:
    for way in LINK_WAYS.values():
        graph = crowded_graph(30)
        graph = with_node_times(graph, 8) if "temporal_strategy" in way else graph
        dataset, inputs = make_dataset(graph, edge_dir), links_for(graph, negatives, way)
        if inputs.time is not None:  # no node is too late for a link: most sources have but one negative
            inputs = replace(inputs, time=torch.full_like(inputs.time, MAX_TIME))
        config = config_for([2], {**way, "edge_dir": edge_dir, "with_neg": True}, SamplingType.LINK)
        assert_same_batches(*local_and_device(dataset, config), dataset, inputs, config)


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_make_their_whole_batches_there(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = link_graph(kind, {})
    dataset, links = make_dataset(graph), links_for(graph, "binary-strict", {})
    nodes: Any = torch.arange(80) if kind == "homogeneous" else ("user", torch.arange(80))
    pairs: Any = torch.stack([links.row, links.col])
    pairs = pairs if kind == "homogeneous" else (links.input_type, pairs)

    def loaders() -> list[Any]:
        settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "with_edge": True, "seed": 4}
        linked = {"edge_label_index": pairs, "neg_sampling": links.neg_sampling, **settings}
        return [LinkNeighborLoader(dataset, [3, 2], **linked), SubGraphLoader(dataset, nodes, [3, 2], **settings)]

    expected = loaders()
    # The graphs as on a GPU, in memory of the host, which runs the kernels' bodies.
    monkeypatch.setattr(batches, "device_of", lambda _: HOST)
    monkeypatch.setattr(Graph, "on_device", lambda self: DeviceTopology(self.topo, "CUDA", HOST))
    for one, other in zip(expected, loaders(), strict=True):
        for epoch in (0, 1):
            for index in range(len(one)):
                assert_same_data(other.batch(epoch, index), one.batch(epoch, index))


def test_a_source_without_a_negative_is_named() -> None:
    dataset = make_dataset(TestGraph({None: 4}, {None: torch.tensor([[1, 1, 1, 1], [0, 1, 2, 3]])}, {}))
    inputs = EdgeSamplerInput(
        torch.tensor([0, 1]), torch.tensor([1, 2]), neg_sampling=NegativeSampling("triplet", strict=True)
    )
    config = config_for([2], {"with_neg": True}, SamplingType.LINK)
    for graph in local_and_device(dataset, config):
        with pytest.raises(InvalidArgumentError, match="source 1 has no negative: it has an edge to each of 4 targets"):
            run_local(BatchMaker(graph, dataset.schema, inputs, config).make(0, 0))


def test_no_links_and_no_nodes_to_draw() -> None:
    edges = torch.empty((2, 0), dtype=torch.int64)
    counts = {"user": 3, "item": 0}
    dataset = make_dataset(TestGraph(counts, {("user", "buys", "item"): edges}, {}))
    config = config_for([2], {"with_neg": True}, SamplingType.LINK)
    slots = NegativePool(3, 0)
    for graph in local_and_device(dataset, config):
        fill = functools.partial(graph.fill_negatives, 0)
        for made in run_local(slots.draw_pairs(5, 1, fill=fill)):
            assert made.numel() == 0
        assert run_local(slots.draw_targets(torch.arange(0), 2, 1, fill=fill)).shape == (0, 2)


def test_pairs_outside_the_graph_are_named() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    _, device = local_and_device(dataset, config_for([1], {}, SamplingType.LINK))
    with pytest.raises(UnknownIdError, match="at position 1, 0 or 300 is outside"):
        run_local(device.has_edges(0, torch.tensor([0, 0, -1]), torch.tensor([0, 300, 0])))


def test_draws_refuse_what_does_not_fit_together() -> None:
    graph = _C.DeviceCsr(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), None, 2, -1)
    flags, nodes = torch.empty(3, dtype=torch.uint8), torch.empty(3, dtype=torch.int64)

    def draw(**changes: Any) -> None:
        end = {"num_nodes": 2, "weights": None, "sums": None, "times": None, "limits": None, "earliest": -1}
        end |= {"nodes": nodes}
        end |= {name: changes.pop(name) for name in list(changes) if name in end}
        arguments = {"edges": graph, "sources": torch.tensor([0, 1, 0]), "is_open": flags, "num_trials": 5, **changes}
        targets = _C.DrawnEnd(**end, stride=1, first=0, device=-1)
        _C.draw_negatives_on_device(**arguments, rows_are_sources=True, targets=targets, key=3, device=-1, stream=0)

    draw()
    assert [nodes[i] for i in range(3) if not flags[i]] == [i % 2 for i in range(3) if not flags[i]]
    times, limits = torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    for changes, match in [
        ({"sources": torch.tensor([0])}, "sources: expected one for each of 3 slots, got 1"),
        ({"nodes": nodes[1:]}, r"nodes: expected int64 \[3\]"),
        ({"nodes": nodes.int()}, r"nodes: expected int64 \[3\]"),
        ({"num_nodes": 0}, "expected at least 1 to draw from"),
        ({"sums": torch.ones(2)}, "weights, sums: expected both or none"),
        ({"weights": torch.ones(2), "sums": torch.ones(2)}, r"sums: expected float64 \[2\]"),
        ({"weights": torch.ones(3), "sums": torch.ones(2).double()}, r"edge_weights: expected \[2\]"),
        ({"times": times}, "times, limits: expected both or none"),
        ({"times": times, "limits": limits[1:], "earliest": 0}, r"limits: expected int64 \[3\]"),
        ({"times": times, "limits": limits}, "earliest: expected a node"),
        ({"is_open": flags.int()}, "is_open: expected uint8"),
        ({"num_trials": 0}, "num_trials: expected at least 1"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            draw(**changes)
    status = torch.tensor([-1])
    for rows, cols, found, match in [
        (nodes, nodes[1:], flags, "cols: expected as many entries as rows"),
        (nodes, nodes, flags[1:], "found: expected uint8"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            _C.has_edges_on_device(graph, rows, cols, found, status, -1, 0)


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
        (([cols.int()], [None]), "cols: expected int64"),
        (([cols], [cols[1:]]), r"edge_ids: expected int64 \[4\]"),
    ]:
        with pytest.raises(InvalidArgumentError, match=match):
            plan.write([graph], members, result, scratch, *out, -1, 0)
    for shape in (([5], [2, 3], [(0, 0)]), ([5], [2], [(0, 1)])):
        with pytest.raises(InvalidArgumentError):
            _C.DeviceInducedPlan(*shape)
