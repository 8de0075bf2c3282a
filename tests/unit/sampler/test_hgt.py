"""HGT sampling: batches are those of the definition; picks have the probabilities that the paper gives them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingConfig, SamplingType
from graphlearn_dist.sampler.batch_maker import BatchMaker
from graphlearn_dist.sampler.batches import LocalBatches, make_plan
from graphlearn_dist.sampler.epochs.batches_together import batches_together
from graphlearn_dist.sampler.epochs.fingerprint import config_settings
from graphlearn_dist.sampler.num_samples import MAX_SAMPLES, check_num_samples, samples_by_type
from tests.support.device_batches import HOST, on_device
from tests.support.graphs import EDGE_TYPES, NODE_TYPES, TestGraph, cases, make_dataset, typed_graph
from tests.support.hgt_reference import MOST_NEIGHBORS, HgtBatch, hgt_batch

ALPHA = 1e-6  # of a false alarm, in either statistical test; seeds are fixed besides


def config_of(num_samples: Any, /, **changes: Any) -> SamplingConfig:
    """Settings of a loader, with ``changes``."""
    config = SamplingConfig(
        SamplingType.HGT,
        None,
        batch_size=4,
        shuffle=False,
        drop_last=False,
        with_edge=True,
        collect_features=False,
        with_neg=False,
        with_weight=False,
        edge_dir=None,
        seed=3,
        num_samples=num_samples,
    )
    return replace(config, **changes)


def batch_of(batches: LocalBatches, graph: TestGraph, epoch: int, index: int) -> HgtBatch:
    """A batch by type; ``mapping`` are the first nodes, and edges belong to no hop."""
    batch = batches.sample(epoch, index)
    subgraph = batch.subgraph
    node_types, edge_types = sorted(graph.num_nodes, key=str), sorted(graph.edges, key=lambda name: name or ())
    assert batch.mapping is not None
    assert batch.mapping.tolist() == list(range(len(batch.input_positions)))
    assert not any(subgraph.num_sampled_edges)
    edges = {}
    for name, (rows, cols), ids in zip(edge_types, subgraph.edge_index, subgraph.edge_ids, strict=True):
        assert ids is not None
        edges[name] = list(zip(rows.tolist(), cols.tolist(), ids.tolist(), strict=True))
    nodes = dict(zip(node_types, map(torch.Tensor.tolist, subgraph.nodes), strict=True))
    return HgtBatch(nodes, edges, dict(zip(node_types, map(list, subgraph.num_sampled_nodes), strict=True)))


@st.composite
def samples(draw: st.DrawFn, node_types: Any) -> Any:
    """Numbers of nodes for one to three iterations, as a list or by type."""
    length = draw(st.integers(1, 3))
    counts = st.lists(st.sampled_from([0, 1, 2, 5, 1000]), min_size=length, max_size=length)
    return draw(counts) if draw(st.booleans()) else {name: draw(counts) for name in node_types}


@pytest.mark.parametrize("typed", [False, True])
@given(data=st.data(), num_threads=st.integers(1, 3))
@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_batches_equal_the_definition(typed: bool, data: st.DataObject, num_threads: int) -> None:
    case = data.draw(cases(typed=typed))
    num_samples = data.draw(samples(case.graph.num_nodes))
    changes = {"batch_size": case.batch_size, "shuffle": case.shuffle, "seed": case.seed}
    config, dataset = config_of(num_samples, **changes), make_dataset(case.graph, case.edge_dir)
    batches = LocalBatches(dataset, NodeSamplerInput(case.seeds, case.seed_type), config, num_threads)
    for index in range(batches.schedule.num_batches):
        seeds = case.seeds[batches.schedule.positions(case.epoch, index)].tolist()
        expected = hgt_batch(
            case.graph, case.edge_dir, num_samples, case.seed_type, seeds,
            seed=case.seed, epoch=case.epoch, index=index,
        )  # fmt: skip
        found = batch_of(batches, case.graph, case.epoch, index)
        assert found == expected
        for name, ids in found.nodes.items():
            drawn = ids[len(seeds) :] if name == case.seed_type else ids
            assert len({*drawn}) == len(drawn)
            assert name != case.seed_type or not {*drawn} & {*seeds}


def hub_graph(degree: int) -> TestGraph:
    """Node 0 has the out-neighbors 1 to ``degree``, and node 1 the last of them."""
    edges = torch.stack([torch.zeros(degree, dtype=torch.int64), torch.arange(1, degree + 1)])
    return TestGraph({None: degree + 1}, {None: torch.cat([edges, torch.tensor([[1], [degree]])], dim=1)}, {})


@pytest.mark.parametrize("degree", [MOST_NEIGHBORS, MOST_NEIGHBORS + 1, 3 * MOST_NEIGHBORS])
def test_a_hub_gives_a_budget_to_so_many_neighbors_and_no_more(degree: int) -> None:
    graph = hub_graph(degree)
    batches = LocalBatches(make_dataset(graph), NodeSamplerInput(torch.tensor([0])), config_of([10**6]))
    found = batch_of(batches, graph, 0, 0)
    assert found == hgt_batch(graph, "out", [10**6], None, [0], seed=3)
    assert found.num_sampled[None] == [1, min(degree, MOST_NEIGHBORS)]


def test_a_graph_whose_types_are_not_all_reached() -> None:
    """Users know each other and nobody buys anything; self loops and nodes without edges do no harm."""
    edges = {EDGE_TYPES[2]: torch.tensor([[0, 0, 1, 3], [0, 1, 2, 3]]), EDGE_TYPES[0]: torch.empty((2, 0)).long()}
    graph = TestGraph({"user": 6, "item": 3}, edges, {})
    batches = LocalBatches(make_dataset(graph), NodeSamplerInput(torch.tensor([0, 3, 5, 0]), "user"), config_of([4, 4]))
    found = batch_of(batches, graph, 0, 0)
    assert found.nodes == {"user": [0, 3, 5, 0, 1, 2], "item": []}
    assert found.num_sampled == {"user": [4, 1, 1], "item": [0, 0, 0]}
    assert found.edges[EDGE_TYPES[2]] == [(0, 0, 0), (4, 0, 1), (1, 1, 3), (0, 3, 0), (4, 3, 1), (5, 4, 2)]
    assert found == hgt_batch(graph, "out", [4, 4], "user", [0, 3, 5, 0], seed=3)


def test_zero_samples_leave_the_seeds_and_the_edges_between_them() -> None:
    graph = typed_graph(20, 10, 80, 1)
    inputs = NodeSamplerInput(torch.arange(20), "user")
    for num_samples in ([0], [0, 0], {"user": [0], "item": [0]}):
        batches = LocalBatches(make_dataset(graph), inputs, config_of(num_samples, batch_size=20))
        found = batch_of(batches, graph, 0, 0)
        assert found.nodes == {"user": list(range(20)), "item": []}
        assert len(found.edges[EDGE_TYPES[2]]) == graph.edges[EDGE_TYPES[2]].size(1)
    only_items = LocalBatches(make_dataset(graph), inputs, config_of({"user": [0, 0], "item": [3, 2]}))
    assert batch_of(only_items, graph, 0, 0).num_sampled == {"user": [4, 0, 0], "item": [0, 3, 2]}


def test_epochs_and_seeds_change_the_draws_and_nothing_else_does() -> None:
    graph = typed_graph(200, 80, 1500, 2)
    inputs = NodeSamplerInput(torch.arange(4), "user")

    def nodes(epoch: int, num_threads: int = 1, **changes: Any) -> Any:
        batches = LocalBatches(make_dataset(graph), inputs, config_of([8, 8], **changes), num_threads)
        return batch_of(batches, graph, epoch, 0)

    assert nodes(0) == nodes(0, num_threads=3)
    assert len({str(nodes(epoch)) for epoch in range(3)} | {str(nodes(0, seed=4))}) == 4


def test_picks_have_the_probabilities_of_the_paper() -> None:
    """Ordered pairs of four nodes with unlike budgets, against the exact probabilities of successive sampling."""
    pool, trials = _C.ThreadPool(1), 40_000
    budgets, found = _C.HgtBudgets([10]), dict.fromkeys(itertools.permutations((2, 3, 5, 7), 2), 0)
    weights = {2: 1.0, 3: 0.25, 5: (1 / 4 + 1 / 2) ** 2, 7: 1 / 16}
    counts, neighbors = torch.tensor([1, 2, 4, 0]), torch.tensor([2, 3, 5, 5, 7, 9, 9])
    for trial in range(trials):
        budgets.begin()
        budgets.take(0, torch.tensor([9]))
        budgets.add([(0, counts, neighbors)], pool)
        found[tuple(to_tensor(budgets.pick([2], [_C.draw_key(0, trial, 0, -2, 0)], pool)[0]).tolist())] += 1
    total = sum(weights.values())
    expected = [trials * weights[a] / total * weights[b] / (total - weights[a]) for a, b in found]
    assert stats.chisquare(list(found.values()), expected).pvalue > ALPHA


def test_a_batch_prefers_what_many_of_its_nodes_lead_to() -> None:
    """Seeds 0 and 1 share neighbor 2, which has a budget of 1/2 + 1; 3 has one of 1/2."""
    graph = TestGraph({None: 4}, {None: torch.tensor([[0, 0, 1], [2, 3, 2]])}, {})
    batches = LocalBatches(make_dataset(graph), NodeSamplerInput(torch.tensor([0, 1])), config_of([1]))
    trials = 3000
    first = sum(batches.sample(epoch, 0).subgraph.nodes[0].tolist() == [0, 1, 2] for epoch in range(trials))
    assert stats.binomtest(first, trials, 1.5**2 / (1.5**2 + 0.5**2)).pvalue > ALPHA


def test_numbers_of_samples_are_checked() -> None:
    schema = make_dataset(typed_graph(5, 5, 10, 0)).schema
    assert samples_by_type(schema, [2, 0]) == ((2, 0),) * 2
    assert samples_by_type(schema, {"user": (1,), "item": [4]}) == tuple(
        {"item": (4,), "user": (1,)}[n] for n in NODE_TYPES
    )
    bad = {
        "num_samples: expected a list with the nodes that each iteration takes, got 5": 5,
        "num_samples: expected a list with the nodes that each iteration takes, got 'ab'": "ab",
        "num_samples: expected at least one iteration, got an empty list": {"user": [], "item": []},
        f"num_samples: expected numbers from 0 to {MAX_SAMPLES}, got -1": [3, -1],
        f"num_samples: expected numbers from 0 to {MAX_SAMPLES}, got 1.5": [1.5],
        f"num_samples: expected numbers from 0 to {MAX_SAMPLES}, got True": [True],
        r"num_samples: expected as many iterations for every node type, got \[1, 2\]": {"user": [1], "item": [1, 2]},
    }
    for message, given_ in bad.items():
        with pytest.raises(InvalidArgumentError, match=f"^{message}$"):
            check_num_samples(given_)
    with pytest.raises(
        InvalidArgumentError, match="num_samples: unknown node type 'shop'; the data set has item, user"
    ):
        samples_by_type(schema, {"user": [1], "item": [1], "shop": [1]})
    with pytest.raises(
        InvalidArgumentError, match="num_samples: expected numbers for every node type, got none for 'u"
    ):
        samples_by_type(schema, {"item": [1]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_neighbors": [2]}, r"num_neighbors: expected None beside num_samples, got \[2\]"),
        ({"replace": True}, "replace: expected False with num_samples"),
        ({"with_weight": True}, "with_weight: expected False with num_samples"),
        ({"with_neg": True}, "with_neg: expected False"),
        ({"strategy": "labor"}, "strategy: expected 'random' with num_samples, got 'labor'"),
        ({"disjoint": True}, "disjoint, temporal_strategy: .*; expected False and no times"),
        ({"temporal_strategy": "last"}, "disjoint, temporal_strategy: .*; expected False and no times"),
        ({"own_times": "uniform"}, "temporal_strategy: expected None with num_samples, got 'uniform'"),
        ({"num_samples": None}, "num_samples: expected numbers of nodes to sample by HGT, got None"),
        ({"sampling_type": SamplingType.NODE}, "num_samples: expected None to sample nodes"),
    ],
)
def test_what_contradicts_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        config_of([2], **changes)


def test_links_unknown_seeds_and_gpus_are_refused() -> None:
    graph = typed_graph(5, 5, 10, 0)
    dataset, config = make_dataset(graph), config_of([2])
    links = EdgeSamplerInput(torch.tensor([0]), torch.tensor([1]), None, EDGE_TYPES[0], NegativeSampling("binary"))
    with pytest.raises(
        InvalidArgumentError, match="sampler_input: expected nodes to sample by HGT, got EdgeSamplerInput"
    ):
        LocalBatches(dataset, links, config)
    with pytest.raises(UnknownIdError, match="7"):
        LocalBatches(dataset, NodeSamplerInput(torch.tensor([1, 7]), "user"), config).sample(0, 0)
    on_gpu = on_device(dataset, config, HOST)
    with pytest.raises(InvalidArgumentError, match=r"data: expected graphs in host memory \(mode 'CPU'\) with num_s"):
        BatchMaker(on_gpu, dataset.schema, NodeSamplerInput(torch.tensor([1]), "user"), config)


def test_rows_are_as_likely_as_budgets_say() -> None:
    """Copies of other partitions' rows are those that nodes which draw one neighbor an iteration would reach."""
    dataset = make_dataset(typed_graph(5, 5, 10, 0))
    plan = make_plan(dataset, config_of([4, 3]))
    assert (plan.fanouts, plan.expected_fanouts) == ((), ((1,) * 3,) * 2)
    neighborhoods = config_of([1], sampling_type=SamplingType.NODE, num_samples=None, num_neighbors=[2])
    assert make_plan(dataset, neighborhoods).expected_fanouts == ((2,) * 3,)


def test_no_seeds_no_batches() -> None:
    dataset = make_dataset(typed_graph(5, 5, 10, 0))
    assert (
        LocalBatches(dataset, NodeSamplerInput(torch.empty(0).long(), "user"), config_of([2])).schedule.num_batches == 0
    )


def test_samples_are_in_the_fingerprint_however_they_are_given() -> None:
    schema = make_dataset(typed_graph(5, 5, 10, 0)).schema
    listed = config_settings(config_of([2, 3]), schema)
    assert listed["num_samples"] == "[[2, 3], [2, 3]]"
    assert config_settings(config_of({"user": (2, 3), "item": [2, 3]}), schema) == listed
    assert config_settings(config_of([3, 2]), schema) != listed
    plain = SamplingConfig(SamplingType.SUBGRAPH, [1], 1, False, False, False, False, False, False, None, 0)
    assert "num_samples" not in config_settings(plain, schema)


def test_batches_travel_alone_unless_asked_otherwise() -> None:
    """How many edges lie between nodes nobody knows; the tables of budgets are as large as those of local ids."""
    data = Dataset(edge_dir="out")
    data.init_graph(torch.tensor([[0], [1]]), num_nodes=1 << 24)
    config = config_of([2])
    plan = make_plan(data, config)
    assert batches_together(config, plan, [0], {}, 1 << 40) == 1
    assert batches_together(config, plan, [0], {}, 1 << 40, 16) == 2
    nodes = replace(config, sampling_type=SamplingType.SUBGRAPH, num_samples=None)
    assert batches_together(nodes, plan, [0], {}, 1 << 40, 16) == 4
