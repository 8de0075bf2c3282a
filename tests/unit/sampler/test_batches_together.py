"""How many batches travel together: a rule of fan-outs and batch size, which must be the same wherever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from graphlearn_dist.data import Graph, Topology
from graphlearn_dist.data.schema import GraphSchema
from graphlearn_dist.sampler import EdgeSamplerInput, NeighborSampler, NodeSamplerInput
from graphlearn_dist.sampler.base import SamplingConfig, SamplingType
from graphlearn_dist.sampler.epochs.batches_together import (
    MOST_DENSE_NODES,
    _expected_size,
    batches_together,
    expected_pair_bytes,
    most_together_bytes,
    pairs_asked_together,
)
from graphlearn_dist.sampler.plan import build_plan
from graphlearn_dist.sampler.tasks import seed_types_of

MUCH = 1 << 40
MANY_NODES = 4_000_000  # few are reached twice
NODE, LINK, SUBGRAPH = SamplingType.NODE, SamplingType.LINK, SamplingType.SUBGRAPH
A_TO_B, B_TO_A = ("a", "to", "b"), ("b", "to", "a")
TYPED = GraphSchema(("a", "b"), (A_TO_B, B_TO_A), (MANY_NODES, MANY_NODES), "in")


def one_type(num_nodes: int) -> GraphSchema:
    return GraphSchema((None,), (None,), (num_nodes,), "in")


def expected_size(
    config: SamplingConfig, schema: GraphSchema, seed_types: Sequence[int] = (0,)
) -> tuple[list[float], list[float]]:
    plan = build_plan(schema, config.num_neighbors, optional=True)
    found = _expected_size(config, plan, seed_types)
    assert found is not None
    return found


def together(
    config: SamplingConfig,
    schema: GraphSchema,
    stores: Any = (),
    most: int = MUCH,
    wish: int | None = None,
    *,
    seed_types: Sequence[int] = (0,),
    pair_bytes: int = 0,
) -> int:
    plan = build_plan(schema, config.num_neighbors, optional=True)
    return batches_together(config, plan, seed_types, dict(stores), most, wish, pair_bytes=pair_bytes)


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
        (NODE, [0], 100, 16),
        (SUBGRAPH, [2], 4, 1),  # all edges between its nodes
        (SUBGRAPH, None, 4, 1),
    ],
)
def test_how_many(kind: SamplingType, fanouts: Any, batch_size: int, expected: int) -> None:
    config = SamplingConfig(kind, fanouts, batch_size, True, False, False, False, False, False, "in", 0)
    assert together(config, one_type(MANY_NODES)) == expected


@pytest.mark.parametrize("graph_nodes", [1000, 20_000, 200_000])
def test_no_node_is_sampled_for_twice(graph_nodes: int) -> None:
    """The estimate is that of a graph whose neighbors are drawn evenly, and no batch of any graph is larger by much."""
    config = SamplingConfig(NODE, [15, 10, 5], 64, True, True, False, False, False, False, "in", 0)
    schema = one_type(graph_nodes)
    generator = torch.Generator().manual_seed(0)
    even = torch.randint(graph_nodes, (20, graph_nodes), generator=generator)
    popular = (even.double() / graph_nodes).pow(3).mul(graph_nodes).long()
    (nodes,), (edges,) = expected_size(config, schema)
    for sources, least in ((even, 0.95), (popular, 0.0)):
        edge_index = torch.stack([sources.reshape(-1), torch.arange(graph_nodes).repeat(20)])
        sampler = NeighborSampler(Graph(Topology(edge_index, layout="CSC"), "CPU"), [15, 10, 5], edge_dir="in", seed=1)
        sampled = sampler.sample_from_nodes(torch.arange(64))
        for size, expected in ((sampled.node.numel(), nodes), (sampled.row.numel(), edges)):
            assert least * expected < size < 1.05 * expected
    assert expected_size(replace(config, disjoint=True), schema) == ([64 * 916], [64 * 915])


def test_edges_are_drawn_for_nodes_of_their_type() -> None:
    """``a`` has neighbors of type ``b`` by the second edge type, and these of type ``a`` by the first one."""
    fanouts = {A_TO_B: [10, 5], B_TO_A: [4, 3]}
    config = SamplingConfig(NODE, fanouts, 100, True, False, False, False, False, False, "in", 0, disjoint=True)
    assert expected_size(config, TYPED, [0]) == ([100 + 400 * 5, 400], [400 * 5, 400])
    assert expected_size(config, TYPED, [1]) == ([1000, 100 + 1000 * 3], [1000, 1000 * 3])
    links = replace(config, sampling_type=LINK)
    both = expected_size(links, TYPED, [0, 1])
    assert both == ([200 + 2000 + 800 * 5, 200 + 800 + 2000 * 3], [2000 + 800 * 5, 800 + 2000 * 3])
    everywhere = replace(config, num_neighbors={None: [10, 5]})
    assert expected_size(everywhere, TYPED, [0]) == expected_size(replace(config, num_neighbors=[10, 5]), TYPED, [0])
    without_b = replace(TYPED, num_nodes=(MANY_NODES, 0))  # nothing is drawn from it, however large the fan-out
    assert expected_size(config, without_b, [0]) == ([100, 0], [0, 0])
    assert expected_size(replace(config, disjoint=False), without_b, [0]) == ([100, 0], [0, 0])
    of_nodes = {"node_feature:1": Rows((9, 25_000), torch.float32)}  # 40 MB of 400 nodes, and 10 MB of 100
    found = replace(config, collect_features=True)
    assert [together(found, TYPED, of_nodes, 100_000_000, seed_types=[i]) for i in (0, 1)] == [2, 1]


def test_types_of_seeds() -> None:
    def nodes(node_type: str | None) -> NodeSamplerInput:
        return NodeSamplerInput(torch.arange(2), node_type)

    def links(edge_type: Any) -> EdgeSamplerInput:
        return EdgeSamplerInput(torch.arange(2), torch.arange(2), input_type=edge_type)

    assert [seed_types_of(nodes(node_type), TYPED) for node_type in ("a", "b")] == [[0], [1]]
    assert [seed_types_of(links(edge_type), TYPED) for edge_type in (A_TO_B, B_TO_A)] == [[0, 1], [1, 0]]
    assert seed_types_of(nodes(None), one_type(4)) == [0]
    assert seed_types_of(links(None), one_type(4)) == [0, 0]


def test_tables_of_local_ids_do_not_fill_the_memory() -> None:
    """Every batch under way has one of as many entries as the graph has nodes, or of a few for each of its own."""
    config = SamplingConfig(NODE, [2], 4, True, False, False, False, False, False, "in", 0)
    found = [together(config, one_type(n), wish=7) for n in (1, 5_000_000, 20_000_000, 1 << 40)]
    assert found == [7, 7, 3, 7]
    least = MOST_DENSE_NODES
    assert [together(config, one_type(n), wish=16) for n in (least, least + 1)] == [2, 16]
    # Types count apart.
    assert together(config, replace(TYPED, num_nodes=(least // 2, 1 << 40)), wish=16) == 3
    # 256 MiB of tables are some four million nodes of batches.
    large = replace(config, num_neighbors=[20], batch_size=50_000)
    assert together(large, one_type(1 << 40), wish=7) == 3
    unknown = replace(config, num_neighbors=[-1])
    assert [together(unknown, one_type(n), wish=7) for n in (1, 1 << 40)] == [7, 1]


@dataclass(frozen=True)
class Rows:
    """What counts of the rows of a store."""

    shape: tuple[int, ...]
    dtype: torch.dtype


STORES = {
    "node_feature:0": Rows((9, 1000), torch.float32),  # 4,000 bytes a node, and a label
    "node_label:0": Rows((9,), torch.int64),
    "edge_feature:0": Rows((9, 2, 3), torch.int16),
    "edge_attr:0:length": Rows((9,), torch.float32),
}
SCHEMA = one_type(1 << 20)


@pytest.mark.parametrize("most", [1 << 12, 1 << 16, 300_000, 1 << 20, 1 << 30])
def test_together_they_have_no_more_bytes_than_there_is_room_for(most: int) -> None:
    config = SamplingConfig(NODE, [3, 2], 4, True, False, False, True, False, False, "in", 0, disjoint=True)
    edges, nodes = 12 + 24, 4 + 12 + 24
    bytes_of_a_batch = edges * (24 + 12 + 4) + nodes * (8 + 4000 + 8)
    for wish in (None, 1, 3, 60):
        found = together(config, SCHEMA, STORES, most, wish)
        assert found == max(1, min(16 if wish is None else wish, most // bytes_of_a_batch))
    bare = replace(config, collect_features=False)
    assert together(bare, SCHEMA, STORES, most) == max(1, min(16, most // (16 * edges + 8 * nodes)))
    with_ids = replace(bare, with_edge=True)
    assert together(with_ids, SCHEMA, STORES, most) == max(1, min(16, most // (24 * edges + 8 * nodes)))


def test_what_a_worker_has_room_for() -> None:
    assert most_together_bytes(1 << 20) == most_together_bytes(1 << 20, 3) == 1 << 17
    assert most_together_bytes(1 << 40) == 1 << 26
    assert most_together_bytes(5 << 30, 2) == 1 << 30
    assert expected_pair_bytes(3 << 30) == 1 << 30


def test_large_batches_that_share_many_rows_go_by_twos() -> None:
    """They would go alone: two of them have more than the bytes of a group."""
    config = SamplingConfig(NODE, [15, 10, 5], 1024, True, False, False, True, False, False, "in", 0)
    rows = {"node_feature:0": Rows((9, 64), torch.float32)}
    (nodes,), (edges,) = expected_size(config, one_type(200_000))
    pair = 2 * round((8 + 256) * nodes + 16 * edges)

    def found(pair_bytes: int = pair, num_nodes: int = 200_000, **settings: Any) -> int:
        changed = replace(config, **settings)
        return together(changed, one_type(num_nodes), rows, pair - 1, pair_bytes=pair_bytes)

    assert [found(0), found(pair - 1), found(pair), found(9 * pair)] == [1, 1, 2, 2]
    assert found(num_nodes=1_000_000_000) == 1  # they share few
    assert found(collect_features=False) == 6  # there are no rows


def test_two_pairs_of_large_batches_ask_for_rows_at_once() -> None:
    """As far as there are tables of local ids; others have asked for as many rows by then, or share few."""
    config = SamplingConfig(NODE, [15, 10, 5], 1024, True, False, False, True, False, False, "in", 0)
    rows = {"node_feature:0": Rows((9, 64), torch.float32)}

    def found(num_nodes: int, count: int, most: int, **settings: Any) -> int:
        changed = replace(config, **settings)
        plan = build_plan(one_type(num_nodes), changed.num_neighbors, optional=True)
        return pairs_asked_together(changed, plan, [0], rows, most, count)

    (nodes,), (edges,) = expected_size(config, one_type(200_000))
    pair = 2 * round((8 + 256) * nodes + 16 * edges)
    assert [found(200_000, count, pair - 1) for count in (1, 2, 3)] == [0, 2, 0]
    assert found(200_000, 2, pair) == 0  # they are no larger than others that go together
    assert found(16_000_000, 2, 1 << 20) == 2
    assert found(17_000_000, 2, 1 << 20) == 1
    assert found(200_000, 2, pair - 1, num_neighbors=[-1]) == 0  # who knows


def test_a_wish_where_nobody_knows_how_large_they_are() -> None:
    config = SamplingConfig(NODE, [-1], 4, True, False, False, True, False, False, "in", 0)
    assert [together(config, one_type(1000), STORES, wish=wish) for wish in (None, 5)] == [1, 5]
