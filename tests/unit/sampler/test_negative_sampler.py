"""Negative edges: that they are none, that they are drawn as their weights say, and that the search for them ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from graphlearn_dist.data import Graph, Topology
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler.links.negative_pool import NegativePool, negative_key
from graphlearn_dist.sampler.links.negative_sampling import NegativeSampling, NegativeSamplingMode
from graphlearn_dist.sampler.links.negative_slots import TimeLimit
from graphlearn_dist.sampler.negative_sampler import RandomNegativeSampler, local_has_edge
from graphlearn_dist.utils.coroutines import run_local
from tests.support.graphs import TestGraph, graphs, random_edges
from tests.support.reference import below

A = torch.tensor
# Each distribution test errs with this probability if the sampler is right; keys are fixed, so it always or never does.
FALSE_ALARM = 1e-6


def graph_of(edges: Any, num_src: int, num_dst: int, edge_dir: str = "out") -> Graph:
    return Graph(Topology(edges, num_nodes=(num_src, num_dst), layout="CSR" if edge_dir == "out" else "CSC"))


def complete(num_nodes: int) -> Graph:
    nodes = torch.arange(num_nodes)
    return graph_of(torch.cartesian_prod(nodes, nodes).T, num_nodes, num_nodes)


def pairs_of(edges: torch.Tensor) -> set[tuple[int, int]]:
    return set(zip(*edges.tolist(), strict=True))


# --- with times ----------------------------------------------------------------------------------------------------


def limit_of(times: list[int], limits: list[int]) -> TimeLimit:
    async def times_of(nodes: torch.Tensor) -> torch.Tensor:
        return A(times)[nodes]

    return TimeLimit(times_of, times.index(min(times)), A(limits))


def drawn(key: int, position: int, bound: int) -> int:
    return below(key, position, 0, bound)


@given(
    times=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    limits=st.lists(st.integers(-1, 9), max_size=25),
    key=st.integers(0, (1 << 64) - 1),
    strict=st.booleans(),
    trials=st.integers(1, 6),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_pairs_in_time_equal_the_definition(
    times: list[int], limits: list[int], key: int, strict: bool, trials: int
) -> None:
    """Slot by slot in plain Python; sources have times, and so do targets, of which there are two more."""
    dst_times, count = [*times, 3, 8], len(limits)
    num_src, num_dst = len(times), len(dst_times)
    edges = {(s, d) for s in range(num_src) for d in range(num_dst) if (3 * s + d) % 4 == 0}
    expected = []
    for slot, limit in enumerate(limits):
        late_src = late_dst = True
        is_edge = False
        for trial in range(trials):
            position = 2 * (trial * count + slot)
            if late_src or is_edge:
                src = drawn(key, position, num_src)
            if late_dst or is_edge:
                dst = drawn(key, position + 1, num_dst)
            late_src, late_dst = times[src] > limit, dst_times[dst] > limit
            is_edge = strict and not late_src and not late_dst and (src, dst) in edges
            if not (late_src or late_dst or is_edge):
                break
        else:
            if strict:
                continue
            src = times.index(min(times)) if late_src else src
            dst = dst_times.index(min(dst_times)) if late_dst else dst
        expected.append((src, dst, slot))

    async def has_edge(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        return A([pair in edges for pair in zip(src.tolist(), dst.tolist(), strict=True)], dtype=torch.bool)

    pool, ends = NegativePool(num_src, num_dst), (limit_of(times, limits), limit_of(dst_times, limits))
    made = run_local(pool.draw_pairs(count, key, has_edge=has_edge if strict else None, trials=trials, limits=ends))
    assert list(zip(*map(torch.Tensor.tolist, made), strict=True)) == expected


def test_targets_in_time() -> None:
    """Old enough, or the earliest, and evenly among those that are where there are many; strict ones by the search."""
    times, limits = [5, 2, 7, 2, 9, 4], [4] * 9000 + [1] * 30 + [9] * 30
    src, pool, limit = torch.zeros(len(limits), dtype=torch.int64), NegativePool(2, 6), limit_of(times, limits)
    made = run_local(pool.draw_targets(src, 1, 5, trials=60, limit=limit)).view(-1)
    found = made[:9000].bincount(minlength=6)
    assert found[[0, 2, 4]].sum() == 0
    assert chisquare(found[[1, 3, 5]].numpy()).pvalue > FALSE_ALARM
    assert set(made[9000:9030].tolist()) == {1}
    assert len(set(made[9030:].tolist())) == 6

    async def has_edge(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        return (dst == 1) | (dst == 0) | (dst == 4)

    few = limit_of(times, [2, 4, 9, 2])
    strict = run_local(pool.draw_targets(A([1, 0]), 2, 3, has_edge=has_edge, trials=1, limit=few))
    assert strict[0, 0] == strict[1, 1] == 3  # no other is there by 2
    assert strict[0, 1] in (3, 5)
    with pytest.raises(
        InvalidArgumentError, match=r"src: source 1 has no negative: .* that are not later than its link"
    ):
        run_local(pool.draw_targets(A([0, 1]), 1, 3, has_edge=has_edge, limit=limit_of(times, [9, 1])))


# --- binary --------------------------------------------------------------------------------------------------------


@given(graph=graphs(typed=False), key=st.integers(0, (1 << 64) - 1), edge_dir=st.sampled_from(["in", "out"]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_strict_pairs_are_no_edges(graph: TestGraph, key: int, edge_dir: Any) -> None:
    num_nodes, edges = graph.num_nodes[None], graph.edges[None]
    has_edge = local_has_edge(graph_of(edges, num_nodes, num_nodes, edge_dir), edge_dir)
    pool = NegativePool(num_nodes, num_nodes)
    src, dst = pool.binary(50, key, has_edge=has_edge, trials=8)
    assert src.numel() == dst.numel() <= 50
    assert not pairs_of(torch.stack([src, dst])) & pairs_of(edges)
    if len(pairs_of(edges)) < num_nodes**2 / 2:
        assert src.numel() > 0  # eight trials of fifty slots all fail with a probability below 2^-400
    again = pool.binary(50, key, has_edge=has_edge, trials=8)
    assert torch.equal(again[0], src)
    assert torch.equal(again[1], dst)


def test_rounds_ask_for_open_slots_only_and_fill_them() -> None:
    """Slots met first by an edge are asked for again; the others keep what they drew without ``has_edge``."""
    edges = random_edges(40, 40, 700, seed=1)
    known = pairs_of(edges)
    asked: list[list[tuple[int, int]]] = []

    def has_edge(src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        asked.append(list(zip(src.tolist(), dst.tolist(), strict=True)))
        return A([pair in known for pair in asked[-1]], dtype=torch.bool)

    pool = NegativePool(40, 40)
    src, dst = pool.binary(300, 9, has_edge=has_edge, trials=4)
    assert 1 < len(asked) <= 4
    slots: list[tuple[int, int] | None] = [None] * 300
    still = list(range(300))
    for pairs in asked:
        assert len(pairs) == len(still)
        for slot, pair in zip(still, pairs, strict=True):
            slots[slot] = None if pair in known else pair
        still = [slot for slot in still if slots[slot] is None]
    assert [slot for slot in slots if slot is not None] == list(zip(src.tolist(), dst.tolist(), strict=True))
    free = list(zip(*(ids.tolist() for ids in pool.binary(300, 9)), strict=True))
    assert [pair for pair in free if pair not in known] == [s for s, f in zip(slots, free, strict=True) if s == f]


def test_strict_pairs_are_uniform_over_all_that_are_no_edges() -> None:
    num_src, num_dst = 6, 9
    edges = random_edges(num_src, num_dst, 30, seed=3)
    has_edge = local_has_edge(graph_of(edges, num_src, num_dst), "out")
    src, dst = NegativePool(num_src, num_dst).binary(60_000, 4, has_edge=has_edge, trials=60)
    assert src.numel() == 60_000
    counts = torch.bincount(src * num_dst + dst, minlength=num_src * num_dst)
    is_edge = torch.zeros(num_src, num_dst, dtype=torch.bool)
    is_edge[edges[0], edges[1]] = True
    assert counts[is_edge.flatten()].sum() == 0
    assert chisquare(counts[~is_edge.flatten()]).pvalue > FALSE_ALARM


def test_both_ends_follow_their_weights() -> None:
    src_weight, dst_weight = A([1.0, 0.0, 3.0]), A([2, 1, 0, 5])
    pool = NegativePool.of(3, 4, NegativeSampling("binary", weight=dst_weight, src_weight=src_weight))
    src, dst = pool.binary(60_000, 8)
    counts = torch.bincount(src * 4 + dst, minlength=12)
    wanted = torch.outer(src_weight / 4, dst_weight / 8).flatten() * 60_000
    assert counts[wanted == 0].sum() == 0
    assert chisquare(counts[wanted > 0], wanted[wanted > 0]).pvalue > FALSE_ALARM


def test_the_search_ends_where_there_is_nothing() -> None:
    has_edge = local_has_edge(complete(12), "out")
    src, dst = NegativePool(12, 12).binary(40, 1, has_edge=has_edge)
    assert src.numel() == dst.numel() == 0
    for pool in (NegativePool(0, 5), NegativePool(5, 0), NegativePool(0, 0)):
        assert pool.binary(3, 1)[0].numel() == 0
        assert pool.binary(3, 1, has_edge=has_edge)[0].numel() == 0
    assert NegativePool(5, 5).binary(0, 1, has_edge=has_edge)[1].numel() == 0


def test_a_graph_without_edges_takes_what_was_drawn() -> None:
    has_edge = local_has_edge(graph_of(torch.empty(2, 0, dtype=torch.int64), 4, 7), "out")
    pool = NegativePool(4, 7)
    for strict, free in zip(pool.binary(30, 2, has_edge=has_edge), pool.binary(30, 2), strict=True):
        assert torch.equal(strict, free)
        assert strict.numel() == 30


# --- triplet -------------------------------------------------------------------------------------------------------


@given(graph=graphs(typed=False), key=st.integers(0, (1 << 64) - 1), amount=st.integers(1, 4), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_targets_are_no_neighbors(graph: TestGraph, key: int, amount: int, data: st.DataObject) -> None:
    num_nodes, edges = graph.num_nodes[None], graph.edges[None]
    known = pairs_of(edges)
    full = {v for v in range(num_nodes) if all((v, w) in known for w in range(num_nodes))}
    has_edge = local_has_edge(graph_of(edges, num_nodes, num_nodes), "out")
    pool = NegativePool(num_nodes, num_nodes)
    sources = data.draw(st.lists(st.integers(0, num_nodes - 1), max_size=20))
    if full & set(sources):
        with pytest.raises(InvalidArgumentError, match=rf"src: source ({'|'.join(map(str, full))}) has no negative"):
            pool.triplet(A(sources), amount, key, has_edge=has_edge)
        return
    targets = pool.triplet(A(sources, dtype=torch.int64), amount, key, has_edge=has_edge, trials=1)
    assert targets.shape == (len(sources), amount)
    assert all((s, d) not in known for s, row in zip(sources, targets.tolist(), strict=True) for d in row)


@pytest.mark.parametrize("exact_pairs", [1, 100, 1 << 20])
def test_the_exact_search_finds_the_only_negatives(exact_pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node v has every neighbor but (v + 1) % 40: drawing rarely meets it. In groups of sources, or one by one."""
    monkeypatch.setattr("graphlearn_dist.sampler.links.negative_pool._EXACT_PAIRS", exact_pairs)
    nodes = torch.arange(40)
    pairs = torch.cartesian_prod(nodes, nodes)
    graph = graph_of(pairs[pairs[:, 1] != (pairs[:, 0] + 1) % 40].T, 40, 40)
    sources = torch.cat([nodes.flip(0), nodes[:5], A([3] * 10)]).to(torch.int32)
    targets = NegativePool(40, 40).triplet(sources, 3, 6, has_edge=local_has_edge(graph, "out"), trials=1)
    assert torch.equal(targets, ((sources.long() + 1) % 40)[:, None].expand(-1, 3))


def test_a_source_without_negatives_is_named() -> None:
    edges = torch.stack([A([2] * 6), torch.arange(6)])
    has_edge = local_has_edge(graph_of(edges, 4, 6), "out")
    with pytest.raises(InvalidArgumentError, match=r"src: source 2 has no negative: it has an edge to each of 6"):
        NegativePool(4, 6).triplet(A([0, 2, 1]), 1, 1, has_edge=has_edge)
    weighted = NegativePool.of(4, 6, NegativeSampling("triplet", weight=A([0, 0, 1, 0, 0, 0])))
    has_edge = local_has_edge(graph_of(A([[1], [2]]), 4, 6), "out")
    with pytest.raises(InvalidArgumentError, match=r"src: source 1 has no negative: .* 6 targets that have a weight"):
        weighted.triplet(A([0, 1]), 1, 1, has_edge=has_edge)
    with pytest.raises(InvalidArgumentError, match="src: source 3 has no negative: there are no targets"):
        NegativePool(4, 0).triplet(A([3]), 1, 1)
    assert weighted.triplet(A([0, 3]), 2, 1, has_edge=has_edge).tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("trials", [1, 50])
@pytest.mark.parametrize("weight", [None, A([1.0, 2.0, 0.0, 1.0, 4.0, 3.0, 1.0, 2.0])])
def test_targets_follow_the_weights_of_those_that_are_no_neighbors(trials: int, weight: torch.Tensor | None) -> None:
    """With one trial half of the slots are filled by the exact search; the distribution is the same."""
    has_edge = local_has_edge(graph_of(A([[1] * 4, [0, 4, 6, 6]]), 2, 8), "out")
    pool = NegativePool.of(2, 8, NegativeSampling("triplet", weight=weight))
    targets = pool.triplet(A([1] * 30_000), 2, 3, has_edge=has_edge, trials=trials)
    wanted = torch.ones(8) if weight is None else weight.clone()
    wanted[A([0, 4, 6])] = 0
    counts = torch.bincount(targets.flatten(), minlength=8)
    assert counts[wanted == 0].sum() == 0
    wanted *= counts.sum() / wanted.sum()
    assert chisquare(counts[wanted > 0], wanted[wanted > 0]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("trials", [1, 50])
def test_weights_far_apart(reverse: bool, trials: int) -> None:
    """A target that outweighs all others is an edge: those are drawn by their weights, which no running sum holds."""
    has_edge = local_has_edge(graph_of(A([[1], [0 if not reverse else 3]]), 2, 4), "out")
    weight = torch.tensor([1e300, 1.0, 2.0, 5.0], dtype=torch.float64)
    pool = NegativePool.of(2, 4, NegativeSampling("triplet", weight=weight.flip(0) if reverse else weight))
    targets = pool.triplet(A([1] * 20_000), 1, 3, has_edge=has_edge, trials=trials).flatten()
    counts = torch.bincount(3 - targets if reverse else targets, minlength=4)
    assert counts[0] == 0
    assert chisquare(counts[1:], A([1, 2, 5]) / 8 * 20_000).pvalue > FALSE_ALARM


def test_targets_need_no_has_edge() -> None:
    targets = NegativePool(5, 3).triplet(A([4, 0]), 500, 7)
    assert targets.shape == (2, 500)
    assert set(targets.flatten().tolist()) == {0, 1, 2}
    assert NegativePool(5, 3).triplet(torch.empty(0, dtype=torch.int64), 4, 7).shape == (0, 4)
    assert NegativePool(5, 3).triplet(A([4, 0]), 0, 7).shape == (2, 0)


def test_refuses() -> None:
    pool = NegativePool(5, 3)
    with pytest.raises(InvalidArgumentError, match="count: expected at least 0"):
        pool.binary(-1, 0)
    with pytest.raises(InvalidArgumentError, match="trials: expected at least 1, got 0"):
        pool.triplet(A([0]), 1, 0, trials=0)
    with pytest.raises(UnknownIdError, match="src: id 5 "):
        pool.triplet(A([0, 5]), 1, 0)
    with pytest.raises(InvalidArgumentError, match="edge_dir: expected"):
        local_has_edge(complete(2), "both")  # type: ignore[arg-type]


# --- RandomNegativeSampler -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_random_negative_sampler(edge_dir: Any) -> None:
    """The same edges give the same pairs, whichever way the rows go."""
    edges = random_edges(30, 20, 150, seed=5)
    sampler = RandomNegativeSampler(graph_of(edges, 30, 20, edge_dir), edge_dir=edge_dir, seed=4)
    first, second = sampler.sample(100), sampler.sample(100)
    rows, cols = first
    assert rows.max() < 30
    assert cols.max() < 20
    assert first.size(1) > 95  # five trials: a slot stays open with a probability below (150 / 600)^5
    assert not (pairs_of(first) | pairs_of(second)) & pairs_of(edges)
    assert not torch.equal(first, second)
    other = RandomNegativeSampler(graph_of(edges, 30, 20, "out"), edge_dir="out", seed=4)
    assert torch.equal(other.sample(100), first)


def test_padding() -> None:
    sampler = RandomNegativeSampler(complete(10), seed=1)
    assert sampler.sample(25).shape == (2, 0)
    padded = sampler.sample(25, trials_num=2, padding=True)
    assert padded.shape == (2, 25)
    assert int(padded.min()) >= 0
    assert int(padded.max()) < 10
    few = RandomNegativeSampler(graph_of(A([[0], [0]]), 3, 3), seed=1)
    assert few.sample(0, padding=True).shape == (2, 0)
    with pytest.raises(InvalidArgumentError, match="trials: expected"):
        few.sample(3, trials_num=0)
    with pytest.raises(InvalidArgumentError, match="mode: expected 'CPU' or 'CUDA', got 'TPU'"):
        RandomNegativeSampler(complete(2), mode="TPU")


def test_keys_differ() -> None:
    counters = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    assert len({negative_key(*counter) for counter in counters}) == 5


# --- NegativeSampling ----------------------------------------------------------------------------------------------


def test_settings() -> None:
    binary = NegativeSampling("binary", 1.5)
    assert binary.mode is NegativeSamplingMode.binary
    assert binary.is_binary()
    assert not binary.is_triplet()
    assert (binary.count(4), binary.count(3), binary.count(0)) == (6, 5, 0)
    weight = A([1.0, 2.0])
    triplet = NegativeSampling(NegativeSamplingMode.triplet, 3, weight, strict=True)
    assert triplet.is_triplet()
    assert triplet.strict
    assert triplet.count(5) == 15
    assert triplet.share_memory().weight is weight
    assert weight.is_shared()
    moved = triplet.to("cpu")
    assert (moved.mode, moved.amount, moved.strict) == (triplet.mode, 3, True)
    assert NegativeSampling.cast("triplet") == NegativeSampling("triplet")
    assert NegativeSampling.cast(("binary", 2)).amount == 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mode": "both"}, "mode: expected one of .'binary', 'triplet'., got 'both'"),
        ({"mode": None}, "mode: expected one of"),
        ({"mode": "binary", "amount": 0}, "amount: expected a number above 0, got 0"),
        ({"mode": "binary", "amount": -1.5}, "amount: expected a number above 0"),
        ({"mode": "binary", "amount": float("nan")}, "amount: expected a number above 0"),
        ({"mode": "binary", "amount": float("inf")}, "amount: expected a number above 0"),
        ({"mode": "binary", "amount": "2"}, "amount: expected a number above 0, got '2'"),
        ({"mode": "triplet", "amount": 0.5}, "amount: expected a whole number"),
        ({"mode": "triplet", "amount": 1.5}, "amount: expected a whole number"),
        ({"mode": "triplet", "src_weight": A([1.0])}, "src_weight: expected None in triplet mode"),
        (
            {"mode": "binary", "weight": A([1.0, -2.0])},
            r"weight\[1\]: expected a finite number >= 0, got -2.0",
        ),
        ({"mode": "binary", "weight": A([1.0, float("nan")])}, r"weight\[1\]: expected a finite number >= 0"),
        ({"mode": "binary", "weight": A([0.0, 0.0])}, "weight: expected a positive weight, got 2 of 0"),
        (
            {"mode": "binary", "weight": A([float("inf")])},
            r"weight\[0\]: expected a finite number >= 0, got inf",
        ),
        ({"mode": "binary", "weight": A([[1.0]])}, "weight: expected a one-dimensional tensor"),
        ({"mode": "binary", "weight": [1.0]}, "weight: expected a one-dimensional tensor of weights, got list"),
        ({"mode": "binary", "src_weight": A([-1])}, r"src_weight\[0\]: expected"),
    ],
)
def test_settings_refuse(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        NegativeSampling(**arguments)


def test_a_weight_for_each_node() -> None:
    sampling = NegativeSampling("binary", weight=A([1.0, 2.0]))
    with pytest.raises(InvalidArgumentError, match="weight: expected one weight for each of 3 nodes, got 2"):
        NegativePool.of(2, 3, sampling)
