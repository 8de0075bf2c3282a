"""Whole batches of every way to draw, with and without trees and times, against the plain Python sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist.sampler.strategies import METHODS
from tests.support.graphs import MAX_TIME, TestGraph, graphs, random_graph, with_times, with_weights
from tests.support.hops import NativeBatches
from tests.support.reference import Draw, sample_batch

UNTIMED = [
    Draw(method.name, replace)
    for method in METHODS.values()
    for replace in (False, True)
    if method.may_replace or not replace
]
TIMED = [Draw(draw.method, draw.replace, "before") for draw in UNTIMED] + [Draw(times="latest")]


@st.composite
def drawn_graphs(draw: st.DrawFn, typed: bool) -> tuple[TestGraph, dict[Any, Draw], bool]:
    """A graph with weights and perhaps times, a way to draw for each edge type, and whether seeds have times."""
    graph = with_weights(draw(graphs(typed=typed)), draw(st.integers(0, 999)), some_zero=draw(st.booleans()))
    timed = draw(st.booleans())
    if timed:
        graph = with_times(graph, draw(st.integers(0, 999)))
    choices = st.sampled_from(UNTIMED + TIMED if timed else UNTIMED)
    return graph, {edge_type: draw(choices) for edge_type in graph.edges}, timed


@pytest.mark.parametrize("typed", [False, True])
@given(data=st.data())
@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(typed: bool, data: st.DataObject) -> None:
    """All edges, nodes, ids and counts of two hops or three, sampled whole by any number of threads, and hop by hop."""
    graph, draws, timed = data.draw(drawn_graphs(typed))
    disjoint = timed or data.draw(st.booleans())
    edge_dir = data.draw(st.sampled_from(["in", "out"]))
    fanouts = data.draw(st.lists(st.sampled_from([-1, 1, 2, 3, 5]), min_size=2, max_size=3))
    seed_type = data.draw(st.sampled_from(sorted(graph.num_nodes, key=str)))
    seeds = data.draw(st.lists(st.integers(0, graph.num_nodes[seed_type] - 1), min_size=1, max_size=8))
    times = [data.draw(st.integers(-1, MAX_TIME + 1)) for _ in seeds] if timed else None
    counter = (data.draw(st.integers(0, 1 << 40)), 3, 7)
    expected = sample_batch(
        graph, edge_dir, fanouts, seed_type, seeds,
        draws=draws, disjoint=disjoint, times=times, seed=counter[0], epoch=3, index=7,
    )  # fmt: skip
    batches = NativeBatches(graph, edge_dir, draws)
    options = {"disjoint": disjoint, "times": times, "threads": data.draw(st.integers(1, 4))}
    assert batches.sample(fanouts, seed_type, seeds, counter, **options) == expected
    assert batches.sample_by_hops(fanouts, seed_type, seeds, counter, **options) == expected


@pytest.mark.parametrize("draw", [*UNTIMED, *TIMED])
def test_large_batches_equal_the_definition(draw: Draw) -> None:
    """Several blocks, hubs, repeated seeds, a fan-out beyond the limit of scans, and any number of threads."""
    graph = with_times(with_weights(random_graph(700, 9000, 3, explicit_edge_ids=True), 5, some_zero=True), 6)
    seeds = torch.arange(25).repeat(2)
    times = (torch.arange(50) * 7 % 22).tolist()
    draws = {None: draw}
    timed = draw.times != "ignore"
    expected = sample_batch(
        graph, "out", [100, 2], None, seeds, draws=draws, disjoint=timed, times=times if timed else None, seed=5
    )
    batches = NativeBatches(graph, "out", draws)
    for threads in (1, 2, 4):
        options = {"disjoint": timed, "times": times if timed else None, "threads": threads}
        assert batches.sample([100, 2], None, seeds, (5, 0, 0), **options) == expected


@pytest.mark.parametrize("draw", UNTIMED)
def test_a_tree_does_not_depend_on_the_trees_before_it(draw: Draw) -> None:
    """The i-th tree of a batch is a function of i and its seed: other seeds may change."""
    graph = with_weights(random_graph(60, 900, 1), 2, some_zero=False)
    batches = NativeBatches(graph, "out", {None: draw})

    def second_tree(seeds: list[int]) -> list[tuple[int, int, int]]:
        batch = batches.sample([4, 4], None, seeds, (1, 0, 0), disjoint=True)
        assert batch.trees is not None
        (nodes,), (trees,), (rows,), (cols,), (edges,) = (
            batch.nodes, batch.trees, batch.rows, batch.cols, batch.edge_ids
        )  # fmt: skip
        assert all(trees[row] == trees[col] for row, col in zip(rows, cols, strict=True))
        found = zip(rows, cols, edges, strict=True)
        return [(nodes[row], nodes[col], edge) for row, col, edge in found if trees[col] == 1]

    assert second_tree([5, 9]) == second_tree([5, 9, 5]) == second_tree([30, 9, 1])
    assert second_tree([5, 9]) != second_tree([5, 10])
    assert len(second_tree([9, 9])) > 4


@pytest.mark.parametrize("draw", [Draw(), Draw("weighted"), Draw("labor")])
def test_the_same_seed_in_two_trees_draws_anew(draw: Draw) -> None:
    graph = with_weights(random_graph(60, 900, 1), 2, some_zero=False)
    batch = NativeBatches(graph, "out", {None: draw}).sample([5], None, [0, 0], (1, 0, 0), disjoint=True)
    first, second = batch.edge_ids[0][:5], batch.edge_ids[0][5:]
    assert set(first) != set(second)
