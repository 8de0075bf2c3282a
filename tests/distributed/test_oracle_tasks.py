"""Links, induced subgraphs and HGT samples: batches from partitions equal those of the whole, bit by bit."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphlearn_dist import _C
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.sampler import (
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplingConfig,
    SamplingType,
)
from graphlearn_dist.sampler.batches import LocalBatches
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import (
    EDGE_TYPES,
    MAX_TIME,
    Case,
    analytic_graph,
    cases,
    make_dataset,
    typed_graph,
    with_node_times,
    with_times,
    with_weights,
)
from tests.support.oracle import PARTITIONERS, assert_same, load_partitions, tensors_of, write_partitions
from tests.support.queries import ask

HINT = {"max_examples": 10, "deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
NEGATIVES = {
    "none": None,
    "binary": NegativeSampling("binary", 1.5),
    "binary, strict": NegativeSampling("binary", 2, strict=True),
    "triplet": NegativeSampling("triplet", 2),
}


def check_partitioned(case: Case, inputs: Any, kind: str, num_parts: int, **changes: Any) -> list[DirectPeers]:
    """Batches of every partition equal those of the whole."""
    settings_: dict[str, Any] = {"num_neighbors": case.fanouts, "with_edge": True, "with_weight": False, **changes}
    config = SamplingConfig(
        batch_size=case.batch_size,
        shuffle=case.shuffle,
        drop_last=False,
        collect_features=True,
        with_neg=False,
        edge_dir=case.edge_dir,
        seed=case.seed,
        **settings_,
    )
    local = LocalBatches(make_dataset(case.graph, case.edge_dir), inputs, config)
    expected = [tensors_of(local.make(case.epoch, i)) for i in range(local.schedule.num_batches)]
    asked = []
    with tempfile.TemporaryDirectory() as root:
        datasets = load_partitions(write_partitions(case.graph, Path(root), kind, num_parts, case.edge_dir), num_parts)
        services = [PartitionService(dataset) for dataset in datasets]
        for dataset, service in zip(datasets, services, strict=True):
            asked.append(DirectPeers(services))
            batches = PartitionedBatches(dataset, inputs, config, [service], asked[-1])
            for actual, wanted in zip(make_all(batches, case.epoch), expected, strict=True):
                assert_same(tensors_of(actual), wanted)
    return asked


@pytest.mark.parametrize("mode", NEGATIVES)
@given(data=st.data(), kind=st.sampled_from(sorted(PARTITIONERS)), num_parts=st.integers(1, 3))
@settings(**HINT)
def test_links(mode: str, data: st.DataObject, kind: str, num_parts: int) -> None:
    case = data.draw(cases())
    edge_type = None if case.graph.is_homogeneous else data.draw(st.sampled_from(EDGE_TYPES))
    row, col = case.graph.edges[edge_type][:, :20]
    inputs = EdgeSamplerInput(row, col, torch.arange(row.numel()) + 1, edge_type, NEGATIVES[mode])
    if mode == "triplet":
        inputs = EdgeSamplerInput(row, col, None, edge_type, NEGATIVES[mode])
    disjoint = data.draw(st.booleans())
    check_partitioned(case, inputs, kind, num_parts, sampling_type=SamplingType.LINK, disjoint=disjoint)


@pytest.mark.parametrize("mode", ["binary", "binary, strict", "triplet"])
@given(data=st.data(), kind=st.sampled_from(sorted(PARTITIONERS)), num_parts=st.integers(1, 3))
@settings(**HINT)
def test_links_and_nodes_with_times(mode: str, data: st.DataObject, kind: str, num_parts: int) -> None:
    """Owners say how old a node is; the bits are those of the whole."""
    case = data.draw(cases())
    case = replace(case, graph=with_node_times(case.graph, 5))
    edge_type = None if case.graph.is_homogeneous else data.draw(st.sampled_from(EDGE_TYPES))
    row, col = case.graph.edges[edge_type][:, :20]
    times = torch.arange(row.numel()) % (MAX_TIME + 1)
    inputs = EdgeSamplerInput(row, col, None, edge_type, NEGATIVES[mode], times)
    check_partitioned(
        case, inputs, kind, num_parts, sampling_type=SamplingType.LINK, disjoint=True, temporal_strategy="uniform"
    )


@given(data=st.data(), kind=st.sampled_from(sorted(PARTITIONERS)), num_parts=st.integers(1, 3))
@settings(**HINT)
def test_subgraphs(data: st.DataObject, kind: str, num_parts: int) -> None:
    case = data.draw(cases())
    inputs = NodeSamplerInput(case.seeds, case.seed_type)
    changes = {"with_edge": data.draw(st.booleans())}
    if data.draw(st.booleans()):
        changes["num_neighbors"] = None  # type: ignore[assignment]
    check_partitioned(case, inputs, kind, num_parts, sampling_type=SamplingType.SUBGRAPH, **changes)


@given(data=st.data(), kind=st.sampled_from(sorted(PARTITIONERS)), num_parts=st.integers(1, 3))
@settings(**HINT)
def test_hgt(data: st.DataObject, kind: str, num_parts: int) -> None:
    case = data.draw(cases())
    iterations = data.draw(st.integers(1, 3))
    counts = st.lists(st.sampled_from([0, 1, 3, 100]), min_size=iterations, max_size=iterations)
    num_samples = {node_type: data.draw(counts) for node_type in case.graph.num_nodes}
    inputs = NodeSamplerInput(case.seeds, case.seed_type)
    changes = {"num_neighbors": None, "num_samples": num_samples, "with_edge": data.draw(st.booleans())}
    check_partitioned(case, inputs, kind, num_parts, sampling_type=SamplingType.HGT, **changes)


DRAWS: dict[str, dict[str, Any]] = {
    "labor": {"strategy": "labor"},
    "disjoint": {"disjoint": True},
    "weighted": {"with_weight": True},
    "temporal": {"temporal_strategy": "uniform"},
    "last": {"temporal_strategy": "last"},
}


@pytest.mark.parametrize("draw", DRAWS)
@given(data=st.data(), num_parts=st.integers(2, 3))
@settings(**HINT)
def test_draws(draw: str, data: st.DataObject, num_parts: int) -> None:
    case, changes, times = data.draw(cases()), DRAWS[draw], None
    if "with_weight" in changes:
        case = replace(case, graph=with_weights(case.graph, 3, some_zero=True))
    if "temporal_strategy" in changes:
        case, times = replace(case, graph=with_times(case.graph, 3)), torch.arange(len(case.seeds)) * 3 % MAX_TIME
    inputs = NodeSamplerInput(case.seeds, case.seed_type, times)
    check_partitioned(case, inputs, "random", num_parts, sampling_type=SamplingType.NODE, **changes)


def test_one_request_a_peer() -> None:
    """Induced edges of all types travel in one request; a round of negatives asks each owner once."""
    graph = typed_graph(40, 20, 200, 3)
    case = Case(graph, "out", [2], "user", torch.arange(40), 40, 0, False, False, 0)
    nodes = NodeSamplerInput(case.seeds, "user")
    for peers in check_partitioned(case, nodes, "random", 3, sampling_type=SamplingType.SUBGRAPH):
        induced = [query.partition for query in peers.asked_as("induced")]
        assert len(induced) == len(set(induced)) == 2
    samples = {"num_neighbors": None, "num_samples": [5, 5]}
    for peers in check_partitioned(case, nodes, "random", 3, sampling_type=SamplingType.HGT, **samples):
        drawn = [(query.partition, query.arguments[0][0][0]) for query in peers.asked_as("hop")]
        assert all(drawn.count(each) <= 2 for each in drawn)  # each edge type once in an iteration
        assert len(peers.asked_as("induced")) == 2
    row, col = graph.edges[EDGE_TYPES[2]][:, :40]
    links = EdgeSamplerInput(row, col, None, EDGE_TYPES[2], NEGATIVES["binary, strict"])
    for peers in check_partitioned(case, links, "random", 3, sampling_type=SamplingType.LINK):
        checks = [query.partition for query in peers.asked_as("has_edges")]
        assert checks
        assert all(checks.count(partition) <= 5 for partition in checks)  # at most one a round


def test_service_refuses_what_it_does_not_hold(tmp_path: Path) -> None:
    directory = write_partitions(analytic_graph(10), tmp_path, "range", 2, "out")
    service = PartitionService(load_partitions(directory, 2)[0])
    members = (torch.tensor([1, 3, 4]),)
    ids, others = torch.tensor([2, 0]), torch.tensor([4, 3])
    counts, neighbors, _ = ask(service, _C.induced_query([(0, 0, ids)], members, True), 3)
    assert counts is not None
    assert neighbors is not None
    assert (counts.tolist(), neighbors.tolist()) == ([2, 1], [1, 2, 0])  # 2 -> 3, 4; 0 -> 1
    found = ask(service, _C.has_edges_query(0, ids, others), 1)[0]
    assert found is not None
    assert found.tolist() == [1, 0]
    with pytest.raises(InvalidArgumentError, match="edge_types: expected less than 1, got 1"):
        ask(service, _C.induced_query([(1, 0, ids)], members, False), 3)
    with pytest.raises(InvalidArgumentError, match="edge_types: expected less than 1, got 7"):
        ask(service, _C.has_edges_query(7, ids, others), 1)
