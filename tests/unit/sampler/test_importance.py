"""Importance neighbors against a count of walks by hand; the same bits over partitions, and in pieces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import importance_neighbors
from graphlearn_dist.distributed.sampling.known_graph import graph_access, graph_for
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler import importance
from graphlearn_dist.sampler.importance import ImportanceSettings
from graphlearn_dist.sampler.walks import ENDED, RandomWalks, walk_plan
from graphlearn_dist.utils.coroutines import run_local
from tests.support.graphs import EDGE_TYPES, make_dataset, random_graph, typed_graph, with_weights
from tests.support.oracle import write_partitions

BUYS, REV_BUYS, _ = EDGE_TYPES


def by_hand(dataset: Dataset, seeds: torch.Tensor, settings: ImportanceSettings) -> list[list[tuple[int, int]]]:
    """For each seed, (node, visits) of those that are visited most often."""
    graph = graph_access(graph_for(dataset, "out"), walk_plan(dataset, settings.with_weight, settings.seed), 1)
    starts = seeds.repeat_interleave(settings.num_random_walks)
    paths = run_local(RandomWalks(graph, settings.walk_settings()).walk(starts)).tolist()
    found = []
    for i in range(len(seeds)):
        mine = paths[i * settings.num_random_walks : (i + 1) * settings.num_random_walks]
        ends = [path[hop] for path in mine for hop in range(settings.hops, len(path), settings.hops)]
        visits = Counter(end for end in ends if end != ENDED)
        found.append(sorted(visits.items(), key=lambda each: (-each[1], each[0]))[: settings.num_neighbors])
    return found


def as_lists(found: Any) -> list[list[tuple[int, int]]]:
    pairs = list(zip(found.nodes.tolist(), found.visits.tolist(), strict=True))
    ends = found.counts.cumsum(0).tolist()
    return [pairs[end - count : end] for end, count in zip(ends, found.counts.tolist(), strict=True)]


@pytest.mark.parametrize("name", ["typed", "random", "weighted"])
def test_counts_of_walks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = typed_graph(30, 10, 150, 5) if name == "typed" else random_graph(40, 160, 3)
    if name == "weighted":
        graph = with_weights(graph, 2, some_zero=True)
    dataset = make_dataset(graph, "out")
    seeds = torch.tensor([3, 0, 7, 3, 29])
    how: dict[str, Any] = {"num_random_walks": 30, "num_traversals": 3, "termination_prob": 0.4, "seed": 5}
    how |= {"metapath": (BUYS, REV_BUYS)} if name == "typed" else {"with_weight": name == "weighted"}
    found = importance_neighbors(dataset, seeds, 4, **how)
    assert as_lists(found) == by_hand(dataset, seeds, ImportanceSettings(4, **how))
    assert len(set(map(tuple, as_lists(found)))) > 3  # a seed that comes twice has walks of its own

    monkeypatch.setattr(importance, "_WALKS_AT_ONCE", 61)
    directory = write_partitions(graph, tmp_path, "random", 3, "out")
    for data in (dataset, directory):
        again = importance_neighbors(data, seeds, 4, **how)
        assert all(torch.equal(*pair) for pair in zip(again, found, strict=True))
    later = importance_neighbors(dataset, seeds[2:], 4, first=2, **how)
    assert as_lists(later) == as_lists(found)[2:]


def test_walks_end_between_traversals_alone() -> None:
    ring = Dataset(edge_dir="out")
    ring.init_graph(torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6]))
    all_of = {"num_random_walks": 2000, "num_traversals": 3}
    never = importance_neighbors(ring, torch.tensor([0]), 9, termination_prob=0.0, **all_of)
    assert as_lists(never) == [[(1, 2000), (2, 2000), (3, 2000)]]
    once = importance_neighbors(ring, torch.tensor([0]), 9, termination_prob=1.0, **all_of)
    assert as_lists(once) == [[(1, 2000)]]
    [[first, second, third]] = as_lists(importance_neighbors(ring, torch.tensor([0]), 9, **all_of))
    assert first == (1, 2000)
    assert abs(second[1] - 1000) < 120  # five standard deviations
    assert abs(third[1] - 500) < 100


def test_nobody_to_visit_and_nothing_asked() -> None:
    dataset = Dataset(edge_dir="out")
    dataset.init_graph(torch.tensor([[0], [1]]), num_nodes=4)
    how = {"num_random_walks": 3, "num_traversals": 2}
    found = importance_neighbors(dataset, torch.tensor([3, 0, 1]), 2, **how)
    assert as_lists(found) == [[], [(1, 3)], []]
    nothing = importance_neighbors(dataset, torch.empty(0, dtype=torch.int64), 2, **how)
    assert [tensor.numel() for tensor in nothing] == [0, 0, 0]
    with pytest.raises(UnknownIdError, match="node id 4"):
        importance_neighbors(dataset, torch.tensor([4]), 2, **how)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"num_neighbors": 0}, "num_neighbors: expected an integer of at least 1, got 0"),
        ({"num_random_walks": 1.5}, "num_random_walks: expected an integer of at least 1"),
        ({"num_traversals": True}, "num_traversals: expected an integer of at least 1"),
        ({"termination_prob": 1.5}, r"termination_prob: expected a number in \[0, 1\]"),
        ({"termination_prob": "1"}, r"termination_prob: expected a number in \[0, 1\], got '1'"),
        ({"seed": None}, "seed: expected an int of 64 bits, got None"),
        ({"metapath": [BUYS], "num_traversals": 1}, "metapath: expected edge types that lead back to 'user'"),
        ({"metapath": [BUYS, BUYS]}, "metapath: expected"),
        ({"metapath": []}, "metapath: expected at least one edge type"),
        ({}, "metapath: expected edge types of"),
    ],
)
def test_refused(given: dict[str, Any], error: str) -> None:
    dataset = make_dataset(typed_graph(5, 5, 10, 1), "out")
    how = {"num_neighbors": 2, "num_random_walks": 3, "num_traversals": 2} | given
    with pytest.raises(InvalidArgumentError, match=error):
        importance_neighbors(dataset, torch.tensor([0]), **how)
