"""Random walks: the chances of each step by their definition, and the same bits over partitions, parts and threads.

Chi-square tests share one false alarm in a million evenly among the p-values of this file; seeds are fixed besides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import graphlearn_dist.sampler.walks as sampler_walks
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import random_walk
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.partitioned_sampler import PartitionedGraph
from graphlearn_dist.errors import InvalidArgumentError, ProtocolError, UnknownIdError
from graphlearn_dist.sampler import WalkSettings
from graphlearn_dist.sampler.walks import RandomWalks, walk_plan
from graphlearn_dist.utils.coroutines import run_local
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import EDGE_TYPES, TestGraph, analytic_graph, make_dataset, random_graph, typed_graph
from tests.support.oracle import graph_of, load_partitions, write_partitions

NUM_P_VALUES = 40
ALPHA = 1e-6 / NUM_P_VALUES
NUM_WALKS = 20_000
BUYS, REV_BUYS, KNOWS = EDGE_TYPES


def matrix_of(edges: torch.Tensor, num_nodes: int, weights: torch.Tensor | None = None) -> np.ndarray:
    """``[u, v]``: the weight of all edges from u to v."""
    found = np.zeros((num_nodes, num_nodes))
    np.add.at(found, tuple(edges.numpy()), 1.0 if weights is None else weights.double().numpy())
    return found


def second_order(matrix: np.ndarray, has_edge: np.ndarray, before: int, now: int, p: float, q: float) -> np.ndarray:
    """The chances of the next node by node2vec's definition."""
    bias = np.where(has_edge[before], 1.0, 1 / q)
    bias[before] = 1 / p
    chances = matrix[now] * bias
    return chances / chances.sum()


def assert_distributed(drawn: list[Any], chances: dict[Any, float]) -> None:
    """Chi-square, with all outcomes of little chance as one."""
    counts, total = Counter(drawn), len(drawn)
    assert counts.keys() <= {outcome for outcome, chance in chances.items() if chance > 0}
    common = [outcome for outcome, chance in chances.items() if chance * total >= 5]
    observed, expected = [counts[one] for one in common], [chances[one] * total for one in common]
    rest = total - sum(expected)
    if rest > 1e-6 * total:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest]
    assert len(observed) > 1
    assert stats.chisquare(observed, np.array(expected) * total / np.sum(expected)).pvalue > ALPHA


@pytest.mark.parametrize(
    ("p", "q"), [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (0.5, 2.0), (100.0, 1.0), (1.0, 100.0), (0.02, 50.0)]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_steps_have_their_chances(p: float, q: float, weighted: bool) -> None:
    """Two steps from one node, in a graph with loops and parallel edges, along edges and against them."""
    draw = torch.Generator().manual_seed(2)
    edges = torch.randint(0, 12, (2, 60), generator=draw)
    weights = torch.rand(60, generator=draw) + 0.1 if weighted else None
    for edge_dir in ("out", "in"):
        dataset = Dataset(edge_dir=edge_dir)  # type: ignore[arg-type]
        dataset.init_graph(edges, edge_weights=weights)
        seed = int(edges[0, 0]) if edge_dir == "out" else int(edges[1, 0])
        walks = random_walk(dataset, torch.full((NUM_WALKS,), seed), 2, p=p, q=q, with_weight=weighted, seed=3)
        way = edges if edge_dir == "out" else edges.flip(0)
        matrix, has_edge = matrix_of(way, 12, weights), matrix_of(way, 12) > 0
        chances: dict[Any, float] = {}
        for now in matrix[seed].nonzero()[0].tolist():
            first = matrix[seed, now] / matrix[seed].sum()
            if not matrix[now].any():
                chances[now, -1] = first
                continue
            for then, chance in enumerate(second_order(matrix, has_edge, seed, now, p, q)):
                chances[now, then] = first * chance
        assert_distributed([tuple(walk) for walk in walks[:, 1:].tolist()], chances)


def test_walks_go_along_a_metapath() -> None:
    graph = typed_graph(30, 10, 150, 5)
    dataset = make_dataset(graph, "out")
    users = torch.arange(30).repeat(20)
    walks = random_walk(dataset, users, 5, metapath=[BUYS, REV_BUYS])
    edges = [{*map(tuple, graph.edges[edge_type].t().tolist())} for edge_type in (BUYS, REV_BUYS)]
    for walk in walks.tolist():
        for step in range(5):
            if walk[step + 1] == -1:
                assert not any(edge[0] == walk[step] for edge in edges[step % 2]) or walk[step] == -1
            else:
                assert (walk[step], walk[step + 1]) in edges[step % 2]
    counted = matrix_of(graph.edges[BUYS], 30)[:, :10]
    chances = dict(enumerate(counted[0] / counted[0].sum()))
    first = random_walk(dataset, torch.zeros(NUM_WALKS, dtype=torch.int64), 1, metapath=[BUYS])
    assert_distributed(first[:, 1].tolist(), chances)


def test_walks_end() -> None:
    """Before each step with the chance that was asked for; at nodes without neighbors; never else."""
    ring = make_dataset(analytic_graph(50), "out")
    walks = random_walk(ring, torch.zeros(NUM_WALKS, dtype=torch.int64), 6, restart_prob=0.3, seed=1)
    lengths = (walks != -1).sum(dim=1) - 1
    chances = {length: 0.7**length * (0.3 if length < 6 else 1) for length in range(7)}
    assert_distributed(lengths.tolist(), chances)
    assert (random_walk(ring, torch.arange(50), 6) != -1).all()
    assert (random_walk(ring, torch.arange(50), 3, restart_prob=1.0)[:, 1:] == -1).all()
    line = TestGraph({None: 4}, {None: torch.tensor([[0, 1, 2], [1, 2, 3]])}, {})
    assert random_walk(make_dataset(line, "out"), torch.tensor([1, 3]), 4, p=0.1).tolist() == [
        [1, 2, 3, -1, -1],
        [3, -1, -1, -1, -1],
    ]


def test_no_step_waits_for_luck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no neighbor has a large bias, whole rows are drawn from, some at a time; by weight that is refused."""
    nodes = torch.arange(60)
    edges = torch.stack([nodes.repeat(3), torch.cat([(nodes + step) % 60 for step in (1, 2, 30)])])
    dataset = Dataset(edge_dir="out")
    dataset.init_graph(edges, edge_weights=torch.rand(180))
    walks = random_walk(dataset, nodes, 8, p=1e-4, q=1e4, seed=5)
    steps = (walks[:, 1:] - walks[:, :-1]) % 60
    assert torch.isin(steps, torch.tensor([1, 2, 30])).all()
    after = steps[:, 1:][steps[:, :-1] == 30]  # the way back is there, and 10,000 times as likely
    assert (after == 30).double().mean() > 0.99
    monkeypatch.setattr(sampler_walks, "_MOST_NEIGHBORS", 7)
    assert torch.equal(random_walk(dataset, nodes, 8, p=1e-4, q=1e4, seed=5), walks)
    with pytest.raises(InvalidArgumentError, match=r"by weight .* at most, got 0\.01 and 101"):
        random_walk(dataset, nodes, 8, p=0.01, q=101.0, with_weight=True)


WAYS: dict[str, dict[str, Any]] = {
    "uniform": {"length": 6},
    "weighted": {"length": 4, "with_weight": True},
    "node2vec": {"length": 6, "p": 0.3, "q": 3.0},
    "node2vec, far from uniform": {"length": 6, "p": 1e-4, "q": 1e4},
    "outward": {"length": 4, "p": 5.0, "q": 0.2},
    "ends": {"length": 8, "restart_prob": 0.2},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["homogeneous", "typed"])
def test_bits_of_partitions(way: str, name: str, tmp_path: Path) -> None:
    """Whoever owns the nodes, however many partitions there are, and whoever asks; in parts too."""
    graph, given = graph_of(name), dict(WAYS[way])
    if name == "typed":
        given["metapath"] = (KNOWS,) if "p" in given else (BUYS, REV_BUYS)
    settings, num_nodes = WalkSettings(seed=-4, **given), graph.num_nodes["user" if name == "typed" else None]
    seeds = torch.cat([torch.arange(num_nodes), torch.arange(20)])
    for edge_dir, num_parts, kind in (("out", 2, "random"), ("in", 3, "range")):
        if edge_dir == "in" and "metapath" in given and len(given["metapath"]) > 1:  # against the edges
            settings = WalkSettings(seed=-4, **{**given, "metapath": (REV_BUYS, BUYS)})
        data = make_dataset(graph, edge_dir)  # type: ignore[arg-type]
        plan = walk_plan(data, settings.with_weight, settings.seed)
        how: dict[str, Any] = asdict(settings)
        del how["restart_every"]
        expected = random_walk(data, seeds, num_threads=2, **how)
        assert (expected[:, 1] != -1).any()
        assert torch.equal(random_walk(data, seeds[7:31], first=7, **how), expected[7:31])
        root = tmp_path / edge_dir
        root.mkdir()
        directory = write_partitions(graph, root, kind, num_parts, edge_dir)  # type: ignore[arg-type]
        assert torch.equal(random_walk(directory, seeds, **how), expected)
        datasets = load_partitions(directory, num_parts)
        services = [PartitionService(dataset) for dataset in datasets]
        for dataset, service in zip(datasets, services, strict=True):
            asked = PartitionedGraph(dataset, plan, [service], DirectPeers(services))
            assert torch.equal(run_local(RandomWalks(asked, settings).walk(seeds)), expected)


def test_one_round_of_queries_a_step(tmp_path: Path) -> None:
    graph = random_graph(200, 3000, 3)
    datasets = load_partitions(write_partitions(graph, tmp_path, "random", 3, "out"), 3)
    services = [PartitionService(dataset) for dataset in datasets]
    peers, settings = DirectPeers(services), WalkSettings(5, seed=1)
    plan = walk_plan(make_dataset(graph, "out"), False, 1)
    run_local(RandomWalks(PartitionedGraph(datasets[0], plan, services[:1], peers), settings).walk(torch.arange(160)))
    assert Counter(query.partition for query in peers.asked_as("hop")) == {1: 5, 2: 5}
    assert not peers.asked_as("has_edges")


def test_other_draws() -> None:
    data, seeds = make_dataset(random_graph(200, 3000, 3), "out"), torch.arange(100)
    walks = [random_walk(data, seeds, 5, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (1, 0), (0, 1))]
    walks.append(random_walk(data, seeds, 5, first=1))
    assert all(not torch.equal(one, other) for i, one in enumerate(walks) for other in walks[:i])
    assert random_walk(data, seeds[:0], 5).shape == (0, 6)
    assert random_walk(data, seeds, 0).tolist() == [[seed] for seed in range(100)]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"length": -1}, "length: expected a number of steps, got -1"),
        ({"length": True}, "length: expected a number of steps, got True"),
        ({"p": "2"}, "p: expected a number from 0.0001 to 10000, got '2'"),
        ({"restart_prob": "0.1"}, r"restart_prob: expected a number in \[0, 1\], got '0.1'"),
        ({"seed": 1.5}, "seed: expected an int of 64 bits, got 1.5"),
        ({"seed": 1 << 63}, "seed: expected an int of 64 bits, got 9223372036854775808"),
        ({"epoch": "x"}, "epoch: expected an int of 64 bits, got 'x'"),
        ({"first": -1}, r"first: expected the number of a walk, 0 <= first < 2\*\*60, got -1"),
        ({"first": 1 << 60}, "first: expected the number of a walk"),
        ({"first": 0.5}, "first: expected the number of a walk"),
        ({"p": 0.0}, "p: expected a number from 0.0001 to 10000, got 0"),
        ({"q": float("nan")}, "q: expected a number from"),
        ({"restart_prob": 1.5}, r"restart_prob: expected a number in \[0, 1\], got 1.5"),
        ({"metapath": []}, "metapath: expected at least one edge type, got none"),
        ({"metapath": None}, "metapath: expected edge types of"),
        ({"metapath": [BUYS, KNOWS]}, "metapath: expected each type to go on where the one before ends"),
        ({"metapath": [BUYS]}, "metapath: expected each type to go on where the one before ends"),
        ({"metapath": [("a", "b", "c")]}, "metapath: unknown edge type"),
        ({"p": 2.0}, "p, q: expected 1 along several edge types, got 2.0 and 1.0"),
        ({"p": 2.0, "metapath": [BUYS], "length": 1}, "p, q: expected 1 along edges from one node type to another"),
        ({"with_weight": True}, "with_weight: expected edge weights in the data set"),
    ],
)
def test_refused(how: dict[str, Any], error: str) -> None:
    data = make_dataset(typed_graph(30, 10, 150, 5), "out")
    with pytest.raises(InvalidArgumentError, match=error):
        random_walk(data, torch.arange(3), **{"length": 4, "metapath": [BUYS, REV_BUYS], **how})


def test_refused_seeds() -> None:
    data = make_dataset(random_graph(20, 100, 3), "out")
    with pytest.raises(UnknownIdError, match=r"seeds: node id 20 is outside \[0, 20\)"):
        random_walk(data, torch.tensor([3, 20]), 2)
    with pytest.raises(InvalidArgumentError, match="seeds: expected dtype int64 or int32"):
        random_walk(data, torch.ones(3), 2)
    with pytest.raises(InvalidArgumentError, match="data: expected PyG's Data"):
        random_walk(3, torch.arange(3), 2)


def test_wrong_answers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that knows other nodes than the data set has."""
    small, large = random_graph(100, 800, 3), random_graph(400, 3000, 3)
    data = make_dataset(small, "out")
    datasets, others = (
        load_partitions(write_partitions(graph, tmp_path / name, "range", 2, "out"), 2)
        for name, graph in (("small", small), ("large", large))
        if (tmp_path / name).mkdir() is None
    )
    services = [PartitionService(datasets[0]), PartitionService(others[0])]
    graph = PartitionedGraph(datasets[0], walk_plan(data, False, 0), services[:1], DirectPeers(services))
    with pytest.raises((ProtocolError, UnknownIdError)):
        run_local(RandomWalks(graph, WalkSettings(8)).walk(torch.arange(80)))
