"""How many batches travel together: a rule of fan-outs and batch size, which must be the same wherever it is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Graph, Topology
from graphlearn_dist.sampler import NeighborSampler
from graphlearn_dist.sampler.base import SamplingConfig, SamplingType
from graphlearn_dist.sampler.epochs.batches_together import (
    _expected_size,
    batches_together,
    expected_pair_bytes,
    most_together_bytes,
)

MUCH = 1 << 40
MANY_NODES = 4_000_000  # few are reached twice
NODE, LINK, SUBGRAPH = SamplingType.NODE, SamplingType.LINK, SamplingType.SUBGRAPH
TYPED = {("a", "to", "b"): [10, 5], ("b", "to", "a"): [5]}


@pytest.mark.parametrize(
    ("kind", "fanouts", "batch_size", "expected"),
    [
        (NODE, [10, 5], 256, 16),  # 2,560 + 12,800
        (NODE, [15, 10, 5], 1024, 4),  # 15,360 + 153,600 + 768,000
        (NODE, [15, 10, 5], 4096, 1),
        (NODE, [2], 4, 16),  # no more than that, however small
        (NODE, [2], 1 << 21, 1),
        (NODE, [10, -1], 4, 1),  # who knows
        (LINK, [10, 5], 256, 16),
        (LINK, [10, 5], 2048, 8),  # four nodes a link, two ends and negatives
        (NODE, TYPED, 256, 16),
        (NODE, TYPED, 4096, 11),  # 61,440 + 307,200
        (NODE, [0], 100, 16),
        (SUBGRAPH, [2], 4, 1),  # all edges between its nodes
        (SUBGRAPH, None, 4, 1),
    ],
)
def test_how_many(kind: SamplingType, fanouts: Any, batch_size: int, expected: int) -> None:
    config = SamplingConfig(kind, fanouts, batch_size, True, False, False, False, False, False, "in", 0)
    assert batches_together(config, {}, MANY_NODES, MUCH) == expected


@pytest.mark.parametrize("graph_nodes", [1000, 20_000, 200_000])
def test_no_node_is_sampled_for_twice(graph_nodes: int) -> None:
    """The estimate is that of a graph whose neighbors are drawn evenly, and no batch of any graph is larger by much."""
    config = SamplingConfig(NODE, [15, 10, 5], 64, True, True, False, False, False, False, "in", 0)
    generator = torch.Generator().manual_seed(0)
    even = torch.randint(graph_nodes, (20, graph_nodes), generator=generator)
    popular = (even.double() / graph_nodes).pow(3).mul(graph_nodes).long()
    found = _expected_size(config, graph_nodes, 1)
    assert found is not None
    for sources, least in ((even, 0.95), (popular, 0.0)):
        edge_index = torch.stack([sources.reshape(-1), torch.arange(graph_nodes).repeat(20)])
        sampler = NeighborSampler(Graph(Topology(edge_index, layout="CSC"), "CPU"), [15, 10, 5], edge_dir="in", seed=1)
        sampled = sampler.sample_from_nodes(torch.arange(64))
        for size, expected in zip((sampled.node.numel(), sampled.row.numel()), found, strict=True):
            assert least * expected < size < 1.05 * expected
    assert _expected_size(replace(config, disjoint=True), graph_nodes, 1) == (64 * 916, 64 * 915)


def test_a_list_of_fan_outs_is_that_of_each_edge_type() -> None:
    """As is the default of a dict, of the types that it does not name."""

    def found(fanouts: Any, num_edge_types: int) -> int:
        config = SamplingConfig(NODE, fanouts, 1024, True, False, False, False, False, False, "in", 0)
        return batches_together(config, {}, MANY_NODES, MUCH, num_edge_types=num_edge_types)

    assert found([10, 5], 1) == 16
    # 40,960 + 819,200
    assert found([10, 5], 4) == found({**TYPED, ("b", "to", "a"): [10, 5], None: [10, 5]}, 4) == 4
    assert found([10, 5], 8) == 1
    assert found({None: [10, 5]}, 1) == 16


def test_tables_of_local_ids_do_not_fill_the_memory() -> None:
    """Every batch under way has one of as many entries as the graph has nodes."""
    config = SamplingConfig(NODE, [2], 4, True, False, False, False, False, False, "in", 0)
    found = [batches_together(config, {}, num_nodes, MUCH, 7) for num_nodes in (1, 5_000_000, 20_000_000, 1 << 40)]
    assert found == [7, 7, 3, 1]
    unknown = replace(config, num_neighbors=[-1])
    assert [batches_together(unknown, {}, num_nodes, MUCH, 7) for num_nodes in (1, 1 << 40)] == [7, 1]


@dataclass(frozen=True)
class Rows:
    """What counts of the rows of a store."""

    shape: tuple[int, ...]
    dtype: torch.dtype


STORES = {
    "node_feature:0": Rows((9, 1000), torch.float32),  # 4,000 bytes a node, and a label
    "node_label:0": Rows((9,), torch.int64),
    "node_feature:1": Rows((9, 10), torch.float16),
    "edge_feature:0": Rows((9, 2, 3), torch.int16),
    "edge_attr:0:length": Rows((9,), torch.float32),
}


@pytest.mark.parametrize("most", [1 << 12, 1 << 16, 300_000, 1 << 20, 1 << 30])
def test_together_they_have_no_more_bytes_than_there_is_room_for(most: int) -> None:
    config = SamplingConfig(NODE, [3, 2], 4, True, False, False, True, False, False, "in", 0)
    edges, nodes = 12 + 24, 4 + 12 + 24
    bytes_of_a_batch = edges * (24 + 12 + 4) + nodes * (8 + 4000 + 8)
    for wish in (None, 1, 3, 60):
        found = batches_together(config, STORES, 1 << 20, most, wish)
        assert found == max(1, min(16 if wish is None else wish, most // bytes_of_a_batch))
    bare = replace(config, collect_features=False)
    assert batches_together(bare, STORES, 1 << 20, most) == max(1, min(16, most // (16 * edges + 8 * nodes)))
    with_ids = replace(bare, with_edge=True)
    assert batches_together(with_ids, STORES, 1 << 20, most) == max(1, min(16, most // (24 * edges + 8 * nodes)))


def test_what_a_worker_has_room_for() -> None:
    assert most_together_bytes(1 << 20) == most_together_bytes(1 << 20, 3) == 1 << 17
    assert most_together_bytes(1 << 40) == 1 << 26
    assert most_together_bytes(5 << 30, 2) == 1 << 30
    assert expected_pair_bytes(3 << 30) == 1 << 30


def test_large_batches_that_share_many_rows_go_by_twos() -> None:
    """They would go alone: two of them have more than the bytes of a group."""
    config = SamplingConfig(NODE, [15, 10, 5], 1024, True, False, False, True, False, False, "in", 0)
    rows = {"node_feature:0": Rows((9, 64), torch.float32)}
    nodes, edges = _expected_size(config, 200_000, 1) or (0, 0)
    pair = 2 * ((8 + 256) * nodes + 16 * edges)

    def found(most: int = pair, num_nodes: int = 200_000, **settings: Any) -> int:
        return batches_together(replace(config, **settings), rows, num_nodes, pair - 1, pair_bytes=most)

    assert [found(0), found(pair - 1), found(pair), found(9 * pair)] == [1, 1, 2, 2]
    assert found(num_nodes=1_000_000_000) == 1  # they share few
    assert found(collect_features=False) == 6  # there are no rows


def test_a_wish_where_nobody_knows_how_large_they_are() -> None:
    config = SamplingConfig(NODE, [-1], 4, True, False, False, True, False, False, "in", 0)
    assert [batches_together(config, STORES, 1000, MUCH, wish) for wish in (None, 5)] == [1, 5]
