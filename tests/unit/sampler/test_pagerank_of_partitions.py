"""PageRank of a graph whose rows lie with several owners: the bits of one graph, and what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.distributed import personalized_pagerank
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.partitioned_sampler import PartitionedGraph
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler.ppr import PageRankOutput, pagerank_of, plan_of_all
from graphlearn_dist.utils.coroutines import run_local
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import EDGE_TYPES, TestGraph, graphs, make_dataset, random_graph, typed_graph
from tests.support.oracle import graph_of, load_partitions, write_partitions

HOW: dict[str, Any] = {"alpha": 0.2, "epsilon": 1e-4, "top_k": 12}


def assert_equal(found: PageRankOutput, expected: PageRankOutput) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def asked_of(graph: TestGraph, directory: Path, num_parts: int, edge_type: int, seeds: torch.Tensor, **how: Any) -> Any:
    """By each partition, what it finds and what it asked the others."""
    datasets = load_partitions(directory, num_parts)
    services = [PartitionService(dataset) for dataset in datasets]
    for dataset, service in zip(datasets, services, strict=True):
        peers = DirectPeers(services)
        access = PartitionedGraph(dataset, plan_of_all(dataset.schema), [service], peers)
        yield run_local(pagerank_of(access, edge_type, seeds, **how)), peers


@given(
    graph=graphs(typed=False),
    kind=st.sampled_from(["random", "range"]),
    epsilon=st.sampled_from([1e-1, 1e-3, 1e-6]),
    num_parts=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_graph(
    graph: TestGraph, kind: str, epsilon: float, num_parts: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seeds = torch.arange(graph.num_nodes[None])
    how = {"alpha": 0.3, "epsilon": epsilon, "top_k": 7}
    expected = personalized_pagerank(make_dataset(graph, "out"), seeds, **how)
    directory = write_partitions(graph, tmp_path_factory.mktemp("graph"), kind, num_parts, "out")
    assert_equal(personalized_pagerank(directory, seeds, **how), expected)
    for found, _ in asked_of(graph, directory, num_parts, 0, seeds, **how):
        assert_equal(found, expected)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_types_and_threads(edge_dir: Any, tmp_path: Path) -> None:
    graph = graph_of("typed")
    seeds = torch.cat([torch.arange(200), torch.arange(9)])
    data, knows = make_dataset(graph, edge_dir), EDGE_TYPES[2]
    expected = personalized_pagerank(data, seeds, edge_type=knows, **HOW)
    directory = write_partitions(graph, tmp_path, "random", 3, edge_dir)
    for threads in (1, 3):
        assert_equal(personalized_pagerank(directory, seeds, edge_type=knows, num_threads=threads, **HOW), expected)
    number = data.schema.edge_types.index(knows)
    for found, _ in asked_of(graph, directory, 3, number, seeds, num_threads=2, **HOW):
        assert_equal(found, expected)


def test_each_node_is_asked_for_once(tmp_path: Path) -> None:
    graph = random_graph(300, 3000, 5)
    directory = write_partitions(graph, tmp_path, "random", 3, "out")
    for number, (_, peers) in enumerate(asked_of(graph, directory, 3, 0, torch.arange(300), **HOW)):
        for kind in ("degrees", "hop"):
            ids = torch.cat([query.ids()[0] for query in peers.asked_as(kind)])
            assert len(ids) == len(ids.unique()) > 100, (number, kind)


def test_many_seeds_are_cut_into_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphlearn_dist.distributed.pagerank._SEEDS_AT_ONCE", 7)
    graph = random_graph(60, 500, 5)
    directory, seeds = write_partitions(graph, tmp_path, "random", 2, "out"), torch.arange(60)
    expected = personalized_pagerank(make_dataset(graph, "out"), seeds, **HOW)
    assert_equal(personalized_pagerank(directory, seeds, **HOW), expected)
    assert personalized_pagerank(directory, seeds[:0], **HOW).nodes.numel() == 0


def test_refused(tmp_path: Path) -> None:
    data = make_dataset(typed_graph(30, 10, 90, 2), "out")
    directory = write_partitions(random_graph(30, 90, 2), tmp_path, "random", 2, "out")
    for source in (directory, make_dataset(random_graph(30, 90, 2), "out")):
        for how, error in (
            ({"alpha": 1.0}, "alpha: expected a number"),
            ({"epsilon": 0}, "epsilon: expected a number"),
            ({"alpha": "0.1"}, r"alpha: expected a number in \(0, 1\), got '0.1'"),
            ({"epsilon": None}, "epsilon: expected a number above 0, got None"),
            ({"top_k": 0}, "top_k: expected an integer of at least 1"),
            ({"top_k": 1.5}, "top_k: expected an integer of at least 1, got 1.5"),
        ):
            with pytest.raises(InvalidArgumentError, match=error):
                personalized_pagerank(source, torch.arange(3), **how)
        with pytest.raises(UnknownIdError, match="seeds: id 30"):
            personalized_pagerank(source, torch.tensor([1, 30]))
    with pytest.raises(InvalidArgumentError, match="edge_type: unknown edge type"):
        personalized_pagerank(data, torch.arange(3))
    with pytest.raises(InvalidArgumentError, match="expected edges from one node type to itself"):
        personalized_pagerank(data, torch.arange(3), edge_type=EDGE_TYPES[0])


def test_wrong_answers_are_refused() -> None:
    pushes, pool, one = _C.PprPushes(torch.tensor([0]), 3, 0.5, 1e-3), _C.ThreadPool(1), torch.tensor([0])
    pushes.advance(pool)
    with pytest.raises(InvalidArgumentError, match=r"degrees\[0\]: expected a count, got -1"):
        pushes.give_degrees(one, torch.tensor([-1]))
    with pytest.raises(InvalidArgumentError, match="advance: expected a call until nothing is missing"):
        pushes.best(1, pool)
    pushes.give_degrees(one, torch.tensor([2]))
    pushes.advance(pool)
    with pytest.raises(UnknownIdError, match="3"):
        pushes.give_rows(one, torch.tensor([2]), torch.tensor([1, 3]))
    for counts, neighbors in (([1], [1]), ([2], [1]), ([-1], [1])):
        with pytest.raises(InvalidArgumentError, match=r"counts\[0\]: expected the degree of node 0"):
            pushes.give_rows(one, torch.tensor(counts), torch.tensor(neighbors))
    with pytest.raises(InvalidArgumentError, match=r"counts\[0\]: expected the degree of node 1"):
        pushes.give_rows(torch.tensor([1]), torch.tensor([0]), torch.tensor([], dtype=torch.int64))
