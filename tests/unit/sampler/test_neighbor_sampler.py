"""Whole batches against a plain Python sampler, and what the samplers' front refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.messages import Subgraph
from graphlearn_dist.sampler import (
    NeighborSampler,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
    SeedSchedule,
    build_plan,
)
from graphlearn_dist.sampler.batches import LocalBatches
from tests.support.graphs import EDGE_TYPES, Case, analytic_graph, cases, make_dataset, random_graph, typed_graph
from tests.support.reference import ReferenceBatch, sample_batch


def config_of(case: Case, *, batch_size: int | None = None) -> SamplingConfig:
    return SamplingConfig(
        SamplingType.NODE,
        case.fanouts,
        batch_size or case.batch_size,
        shuffle=case.shuffle,
        drop_last=False,
        with_edge=True,
        collect_features=True,
        with_neg=False,
        with_weight=False,
        edge_dir=case.edge_dir,
        seed=case.seed,
        replace=case.replace,
    )


def as_lists(subgraph: Subgraph) -> ReferenceBatch:
    tensors = (subgraph.nodes, subgraph.rows, subgraph.cols, subgraph.edge_ids)
    lists = [[[] if t is None else t.tolist() for t in by_type] for by_type in tensors]
    counts = (subgraph.num_sampled_nodes, subgraph.num_sampled_edges)
    return ReferenceBatch(*lists, *[[list(hops) for hops in by_type] for by_type in counts])


@pytest.mark.parametrize("typed", [False, True])
@given(data=st.data(), threads=st.integers(1, 3))
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(typed: bool, data: st.DataObject, threads: int) -> None:
    """Nodes, edges, edge ids, counts, features and labels of every batch, for both directions and kinds of graph."""
    case = data.draw(cases(typed=typed))
    dataset = make_dataset(case.graph, case.edge_dir)
    batches = LocalBatches(dataset, NodeSamplerInput(case.seeds, case.seed_type), config_of(case), threads)
    for index in range(batches.schedule.num_batches):
        batch = batches.make(case.epoch, index)
        seeds = case.seeds[batch.input_positions]
        expected = sample_batch(
            case.graph, case.edge_dir, case.fanouts, case.seed_type, seeds,
            replace=case.replace, seed=case.seed, epoch=case.epoch, index=index,
        )  # fmt: skip
        assert as_lists(batch.subgraph) == expected
        check_rows(case, batch.subgraph, batch.node_features, batch.node_labels, batch.edge_features)


def check_rows(case: Case, subgraph: Subgraph, features: Any, labels: Any, edge_features: Any) -> None:
    graph = case.graph
    for i, node_type in enumerate(sorted(graph.num_nodes, key=str)):
        for rows, table in ((features[i], graph.node_features()), (labels[i], graph.node_labels())):
            assert (rows is None) == (node_type not in table)
            if rows is not None:
                assert rows.dtype == table[node_type].dtype
                assert torch.equal(rows, table[node_type][subgraph.nodes[i]])
    for i, edge_type in enumerate(sorted(graph.edges, key=lambda name: name or ())):
        edge_ids, table = subgraph.edge_ids[i], graph.edge_features()
        assert (edge_features[i] is None) == (edge_type not in table)
        if edge_type in table and edge_ids is not None:
            assert torch.equal(edge_features[i], table[edge_type][edge_ids])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_batches_equal_the_definition(threads: int) -> None:
    """Frontiers of several blocks, hubs beyond the scan limit, repeated seeds."""
    graph = random_graph(1500, 20_000, 3, explicit_edge_ids=True)
    seeds = torch.arange(700).repeat(2)
    case = Case(graph, "in", [100, 3], None, seeds, len(seeds), 99, False, False, 0)
    batch = LocalBatches(make_dataset(graph, "in"), NodeSamplerInput(seeds), config_of(case), threads).make(4, 0)
    assert as_lists(batch.subgraph) == sample_batch(graph, "in", [100, 3], None, seeds, seed=99, epoch=4)


def test_a_batch_depends_on_its_name_alone() -> None:
    """Made in another order, twice, or by several threads at once: the same batch."""
    graph = typed_graph(60, 30, 500, 1)
    case = Case(graph, "out", [4, 4], "user", torch.arange(60), 7, 3, False, True, 0)
    made = LocalBatches(make_dataset(graph, "out"), NodeSamplerInput(case.seeds, "user"), config_of(case), 2)
    names = [(epoch, index) for epoch in range(6) for index in range(made.schedule.num_batches)]
    first = {name: as_lists(made.make(*name).subgraph) for name in names}
    assert all(as_lists(made.make(*name).subgraph) == first[name] for name in reversed(names))
    with ThreadPoolExecutor(4) as threads:
        for name, batch in zip(names, threads.map(lambda name: made.make(*name), names), strict=True):
            assert as_lists(batch.subgraph) == first[name]
    assert first[0, 0] != first[1, 0]  # another epoch is another order and other draws


@pytest.mark.parametrize("replace", [False, True])
def test_sampler_calls_are_successive_batches(replace: bool) -> None:
    graph = random_graph(40, 300, 2)
    dataset = make_dataset(graph)
    sampler = NeighborSampler(dataset.graph, [3, 2], with_edge=True, seed=8, replace=replace)
    seeds = torch.tensor([0, 1, 0, 39])
    for call in range(3):
        out = sampler.sample_from_nodes(NodeSamplerInput(seeds))
        want = sample_batch(graph, "out", [3, 2], None, seeds, seed=8, index=call, replace=replace)
        assert out.edge is not None
        assert [t.tolist() for t in (out.node, out.row, out.col, out.edge)] == [
            want.nodes[0], want.rows[0], want.cols[0], want.edge_ids[0]
        ]  # fmt: skip
        assert (out.num_sampled_nodes, out.num_sampled_edges) == (want.num_sampled_nodes[0], want.num_sampled_edges[0])
        assert out.batch is not None
        assert torch.equal(out.batch, seeds)
    again = sampler.sample_from_nodes(NodeSamplerInput(seeds), epoch=0, index=2)
    assert torch.equal(again.row, out.row)


def test_one_hop_of_the_analytic_graph() -> None:
    graph = make_dataset(analytic_graph(10)).graph
    out = NeighborSampler(graph, with_edge=True).sample_one_hop(torch.tensor([8, 9, 8]), -1)
    assert out.nbr.tolist() == [0, 9, 0, 1, 0, 9]  # sorted by id: 8 + 1, 8 + 2 = 0; 9 + 1 = 0, 9 + 2 = 1
    assert out.nbr_num.tolist() == [2, 2, 2]
    assert out.edge is not None
    assert out.edge.tolist() == [17, 16, 18, 19, 17, 16]
    incoming = make_dataset(analytic_graph(10), "in").graph
    back = NeighborSampler(incoming, edge_dir="in").sample_one_hop(torch.tensor([0]), 5)
    assert back.nbr.tolist() == [8, 9]
    assert back.edge is None
    with pytest.raises(UnknownIdError, match="10 is outside"):
        NeighborSampler(graph).sample_one_hop(torch.tensor([10]), 1)
    with pytest.raises(InvalidArgumentError, match="etype"):
        NeighborSampler(graph).sample_one_hop(torch.tensor([0]), 1, EDGE_TYPES[0])


UNEQUAL = {EDGE_TYPES[0]: [1], EDGE_TYPES[1]: [1, 2]}


@pytest.mark.parametrize("fanouts", [[], [2, -2], [1.5], [True], 3, "12", UNEQUAL, {("a", "b", "c"): [1]}])
def test_fanouts_that_make_no_sense(fanouts: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="num_neighbors"):
        build_plan(make_dataset(typed_graph(5, 5, 10, 0)).schema, fanouts)


def test_seeds_outside_the_graph() -> None:
    sampler = NeighborSampler(make_dataset(analytic_graph(10)).graph, [2])
    for bad in (-1, 10):
        with pytest.raises(UnknownIdError, match=f"{bad} is outside"):
            sampler.sample_from_nodes(NodeSamplerInput(torch.tensor([0, bad])))


@given(
    n=st.integers(0, 60), size=st.integers(1, 70), drop=st.booleans(), shuffle=st.booleans(), seed=st.integers(0, 99)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_schedule_covers_every_input_once(n: int, size: int, drop: bool, shuffle: bool, seed: int) -> None:
    schedule = SeedSchedule(n, size, shuffle, drop, seed)
    assert schedule.num_batches == (n // size if drop else -(-n // size))
    for epoch in (0, 1):
        parts = [schedule.positions(epoch, i).tolist() for i in range(schedule.num_batches)]
        seen = [position for part in parts for position in part]
        assert all(len(part) == size for part in parts[:-1])
        assert len(set(seen)) == len(seen) == (n // size * size if drop else n)
        assert set(seen) <= set(range(n))
        assert shuffle or seen == list(range(len(seen)))
    for bad in (-1, schedule.num_batches):
        with pytest.raises(InvalidArgumentError, match="index"):
            schedule.positions(0, bad)
