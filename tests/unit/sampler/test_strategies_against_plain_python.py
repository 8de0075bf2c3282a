"""Weighted, temporal, LABOR and disjoint batches of the loaders' code path, against a plain Python sampler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.messages import SampledBatch
from graphlearn_dist.sampler import NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batches import LocalBatches, resolve_draws
from graphlearn_dist.sampler.strategies import METHODS, STRATEGIES
from tests.support.graphs import (
    EDGE_TYPES,
    MAX_TIME,
    Case,
    TestGraph,
    analytic_graph,
    cases,
    make_dataset,
    typed_graph,
    with_times,
    with_weights,
)
from tests.support.reference import Draw, ReferenceBatch, sample_batch

# By name, the settings of a loader, and how its draws are called where the edge type has weights and times.
KINDS: dict[str, tuple[dict[str, Any], Draw]] = {
    "weighted": ({"with_weight": True}, Draw("weighted")),
    "weighted with replacement": ({"with_weight": True, "replace": True}, Draw("weighted", replace=True)),
    "disjoint": ({"disjoint": True}, Draw()),
    "weighted, disjoint": ({"with_weight": True, "disjoint": True}, Draw("weighted")),
    "temporal": ({"temporal_strategy": "uniform"}, Draw(times="before")),
    "temporal with replacement": ({"temporal_strategy": "uniform", "replace": True}, Draw("uniform", True, "before")),
    "temporal, weighted": ({"temporal_strategy": "uniform", "with_weight": True}, Draw("weighted", times="before")),
    "last": ({"temporal_strategy": "last"}, Draw(times="latest")),
}
for name, strategy in STRATEGIES.items():
    if name != "random":
        method = strategy.method.name
        KINDS[name] = {"strategy": name}, Draw(method)
        KINDS[f"temporal, {name}"] = {"temporal_strategy": "uniform", "strategy": name}, Draw(method, times="before")


def config_of(case: Case, **changes: Any) -> SamplingConfig:
    config = SamplingConfig(
        SamplingType.NODE,
        case.fanouts,
        case.batch_size,
        shuffle=case.shuffle,
        drop_last=False,
        with_edge=True,
        collect_features=False,
        with_neg=False,
        with_weight=False,
        edge_dir=case.edge_dir,
        seed=case.seed,
    )
    return replace(config, **changes)


def as_lists(batch: SampledBatch) -> ReferenceBatch:
    subgraph = batch.subgraph
    tensors = (subgraph.nodes, subgraph.rows, subgraph.cols, subgraph.edge_ids)
    lists = [[[] if t is None else t.tolist() for t in by_type] for by_type in tensors]
    counts = (subgraph.num_sampled_nodes, subgraph.num_sampled_edges)
    trees = None if None in subgraph.trees else [tree.tolist() for tree in subgraph.trees if tree is not None]
    return ReferenceBatch(*lists, *[[list(hops) for hops in by_type] for by_type in counts], trees=trees)


def partly(graph: TestGraph, seed: int) -> TestGraph:
    """The graph with weights and times; a typed one has weights along one edge type and times along another only."""
    full = with_times(with_weights(graph, seed, some_zero=True), seed)
    if graph.is_homogeneous:
        return full
    return replace(
        full, weights={EDGE_TYPES[0]: full.weights[EDGE_TYPES[0]]}, times={EDGE_TYPES[2]: full.times[EDGE_TYPES[2]]}
    )


def draws_of(graph: TestGraph, draw: Draw) -> dict[Any, Draw]:
    return {
        edge_type: Draw(
            "uniform" if METHODS[draw.method].reads_weights and edge_type not in graph.weights else draw.method,
            draw.replace,
            draw.times if edge_type in graph.times else "ignore",
        )
        for edge_type in graph.edges
    }


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), threads=st.integers(1, 3))
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(kind: str, data: st.DataObject, threads: int) -> None:
    """Both kinds of graph, both directions; an edge type without weights or times is drawn uniformly meanwhile."""
    case = data.draw(cases())
    changes, draw = KINDS[kind]
    graph = partly(case.graph, case.seed % 1000)
    timed = draw.times != "ignore"
    times = torch.arange(len(case.seeds)) * 7 % (MAX_TIME + 2) - 1 if timed else None
    inputs = NodeSamplerInput(case.seeds, case.seed_type, times)
    batches = LocalBatches(make_dataset(graph, case.edge_dir), inputs, config_of(case, **changes), threads)
    for index in range(batches.schedule.num_batches):
        batch = batches.make(case.epoch, index)
        chosen = batch.input_positions
        expected = sample_batch(
            graph, case.edge_dir, case.fanouts, case.seed_type, case.seeds[chosen], draws=draws_of(graph, draw),
            disjoint=timed or "disjoint" in changes, times=None if times is None else times[chosen].tolist(),
            seed=case.seed, epoch=case.epoch, index=index,
        )  # fmt: skip
        assert as_lists(batch) == expected
        assert (batch.seed_times is None) == (times is None)
        if times is not None and batch.seed_times is not None:
            assert torch.equal(batch.seed_times, times[chosen])


def test_draws_by_edge_type() -> None:
    graph = partly(typed_graph(10, 10, 30, 0), 0)
    case = Case(graph, "out", [2], "user", torch.arange(3), 3, 0, False, False, 0)
    config = config_of(case, with_weight=True, temporal_strategy="uniform")
    found = resolve_draws(make_dataset(graph, "out"), config)
    by_name = dict(zip(sorted(EDGE_TYPES), found, strict=True))
    assert (by_name[EDGE_TYPES[0]].method, by_name[EDGE_TYPES[0]].times) == ("weighted", "ignore")
    assert (by_name[EDGE_TYPES[1]].method, by_name[EDGE_TYPES[1]].times) == ("uniform", "ignore")
    assert (by_name[EDGE_TYPES[2]].method, by_name[EDGE_TYPES[2]].times) == ("uniform", "before")


def test_nothing_is_seen_before_its_time() -> None:
    """Along 0 -> 1 -> 2 …, edge v has the time v: a seed 0 of time t reaches the nodes up to t + 1 and no others."""
    chain = torch.stack([torch.arange(9), torch.arange(9) + 1])
    graph = TestGraph({None: 10}, {None: chain}, {}, times={None: torch.arange(9)})
    case = Case(graph, "out", [-1] * 9, None, torch.zeros(11, dtype=torch.int64), 11, 0, False, False, 0)
    times = torch.arange(-1, 10)
    inputs = NodeSamplerInput(case.seeds, None, times)
    batch = LocalBatches(make_dataset(graph), inputs, config_of(case, temporal_strategy="uniform")).make(0, 0)
    trees = batch.subgraph.trees[0]
    assert trees is not None
    reached = [sorted(batch.subgraph.nodes[0][trees == i].tolist()) for i in range(11)]
    assert reached == [list(range(min(t + 1, 9) + 1)) for t in times.tolist()]


@pytest.mark.parametrize(("changes", "timed"), [({"temporal_strategy": "last"}, False), ({}, True)])
def test_times_and_strategy_belong_together(changes: dict[str, Any], timed: bool) -> None:
    graph = with_times(analytic_graph(5), 0)
    case = Case(graph, "out", [1], None, torch.arange(5), 5, 0, False, False, 0)
    inputs = NodeSamplerInput(case.seeds, None, torch.zeros(5, dtype=torch.int64) if timed else None)
    with pytest.raises(InvalidArgumentError, match="time, temporal_strategy: expected both or none"):
        LocalBatches(make_dataset(graph), inputs, config_of(case, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": "labour"}, "strategy: expected one of"),
        ({"strategy": "labor", "with_weight": True}, "strategy: 'labor' draws without weights"),
        ({"temporal_strategy": "latest"}, "temporal_strategy: expected one of"),
        ({"temporal_strategy": "last", "with_weight": True}, "temporal_strategy: 'last' takes"),
        ({"sampling_type": SamplingType.SUBGRAPH, "disjoint": True}, "disjoint, temporal_strategy: an induced"),
        ({"sampling_type": SamplingType.SUBGRAPH, "temporal_strategy": "last"}, "disjoint, temporal_strategy: an ind"),
        ({"with_neg": True}, "with_neg: expected False for nodes"),
        ({"sampling_type": SamplingType.LINK}, "sampler_input: expected links to sample links, got NodeSamplerInput"),
        ({"num_neighbors": None}, "num_neighbors: expected a list"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    case = Case(analytic_graph(5), "out", [1], None, torch.arange(5), 5, 0, False, False, 0)
    with pytest.raises(InvalidArgumentError, match=message):
        LocalBatches(make_dataset(case.graph), NodeSamplerInput(case.seeds), config_of(case, **changes))
