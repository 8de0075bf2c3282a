"""Blocks whose neighborhoods do not fit into memory are computed in pieces, whose rows are the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, SAGEConv

from graphlearn_dist.inference import InferenceOptions, infer
from graphlearn_dist.inference import pieces as pieces_module
from graphlearn_dist.inference import run as run_module
from graphlearn_dist.inference.pieces import PieceSize
from graphlearn_dist.inference.source import BlockSource
from tests.support.graphs import TestGraph, random_graph, typed_graph, with_weights
from tests.support.inference import WIDTH, basic, dataset_of, partitions_of, pyg_of, typed_layers

ROW = 4 * WIDTH


def leave(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """So much memory is left to one thread for what it computes at once."""
    monkeypatch.setattr(pieces_module, "_LEAST_BUDGET", 0)
    monkeypatch.setattr(run_module, "memory_left_bytes", lambda: num_bytes * run_module._BLOCKS_SHARE)


class Counting(torch.nn.Module):
    """A layer that notes how many edges lead to the nodes of each piece, and how many rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(WIDTH, WIDTH)
        self.seen: list[tuple[int, int]] = []

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.seen.append((len(x), edge_index.size(1)))
        return self.conv(x, edge_index)  # type: ignore[no-any-return]


@pytest.mark.parametrize("num_threads", [pytest.param(1, marks=pytest.mark.thorough), 2])
@pytest.mark.parametrize(
    ("model", "graph"),
    [
        (basic(GraphSAGE), random_graph(300, 2500, 1)),
        (basic(GAT, heads=2), random_graph(300, 2500, 1)),
        (basic(GIN), random_graph(300, 2500, 1)),
        (basic(GCN), with_weights(random_graph(300, 2500, 1), 3, some_zero=True)),
        (typed_layers(pyg_of(typed_graph(130, 70, 900, 2))), typed_graph(130, 70, 900, 2)),
    ],
    ids=["sage", "gat", "gin", "gcn, weighted", "typed"],
)
def test_rows_do_not_depend_on_pieces(
    model: Any, graph: TestGraph, num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = InferenceOptions(num_threads=num_threads, weights=bool(graph.weights))
    expected = infer(model, dataset_of(graph), options=options)
    for num_bytes in (0, 3000, 20_000):
        leave(monkeypatch, num_bytes * num_threads)
        found = infer(model, dataset_of(graph), options=options)
        for node_type in expected.node_types:
            assert torch.equal(found.rows(node_type), expected.rows(node_type))


def hub_edges(graph: TestGraph, node: int) -> int:
    """Edges that lead to a node."""
    return int((graph.edges[None][1] == node).sum())


def test_pieces_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a node whose neighbors alone do not; behind it they grow again."""
    some = random_graph(600, 3000, 4)
    hub = torch.stack([torch.arange(400), torch.full((400,), 150)])
    graph = replace(some, edges={None: torch.cat([some.edges[None], hub], dim=1)})
    budget, layer = 20_000, Counting()
    leave(monkeypatch, budget)
    infer([layer], dataset_of(graph), options=InferenceOptions(num_threads=1))
    needed = [4 * rows * ROW + edges * (40 + ROW) for rows, edges in layer.seen]
    alone = [index for index, each in enumerate(needed) if each > budget + 4 * ROW]  # a layer may get a row of zeros
    assert sorted(layer.seen[index][1] for index in alone) == [hub_edges(graph, 150), hub_edges(graph, 0)]
    assert max(needed[alone[-1] + 1 :]) > budget / 2  # and not node by node
    assert sum(edges for _, edges in layer.seen) == 3400


def test_sizes_of_pieces() -> None:
    mega = 1 << 20
    size = PieceSize(1000, 10 * mega)
    assert size.nodes == 1000
    assert not size.fits(1000, 1000, 0, with_messages=True)  # until a row is seen, it is taken for one of 4 KiB
    assert size.fits(400, 400, 0, with_messages=True)
    size.learn_width(torch.zeros(7, 5, mega // 20))  # a megabyte
    size.learn_width(torch.zeros(7, 3))
    assert not size.fits(100, 3, 0, with_messages=False)  # twelve
    assert size.nodes == 50
    assert not size.fits(50, 2, 3, with_messages=True)  # eleven, of which three are messages
    assert size.fits(50, 2, 3, with_messages=False)
    assert size.nodes == 46
    assert size.fits(1, 10_000, 10_000, with_messages=True)  # there is nothing smaller
    assert size.nodes == 1
    for expected in (4, 16, 64, 256, 1000, 1000):
        assert size.fits(size.nodes, 0, 0, with_messages=True)
        assert size.nodes == expected
    assert size.fits(1, 0, 0, with_messages=True)  # the last of a block
    assert size.nodes == 1000


@pytest.mark.parametrize("num_parts", [1, 2])
def test_edges_are_known_before_they_are_sampled(num_parts: int, tmp_path: Path) -> None:
    graph = typed_graph(130, 70, 900, 2)
    source = BlockSource(partitions_of(graph, tmp_path, "random", num_parts), -1, 0)
    for node_type in range(2):
        found = 0
        for block in source.blocks(node_type, 7):
            ids = source.local_ids(node_type, block.partition)[block.first : block.last]
            assert source.num_edges(block) == source.sample(node_type, ids, 0).num_edges
            found += len(ids)
        assert found == source.num_nodes(node_type)


def test_embeddings_are_asked_for_ids_alone() -> None:
    def rows_of(ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.full((3,), float(i)) for i in ids.tolist()])  # no ids would be an error

    graph = random_graph(100, 500, 1)
    infer(GraphSAGE(WIDTH + 3, 8, 2, 4), dataset_of(graph), embeddings=rows_of)
