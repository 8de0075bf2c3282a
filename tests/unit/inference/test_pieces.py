"""Blocks whose neighborhoods do not fit into memory are computed in pieces, whose rows are the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, SAGEConv

from graphlearn_dist.inference import InferenceOptions, infer
from graphlearn_dist.inference import run as run_module
from graphlearn_dist.inference.pieces import PieceSize
from tests.support.graphs import TestGraph, random_graph, typed_graph, with_weights
from tests.support.inference import WIDTH, basic, dataset_of, pyg_of, typed_layers

ROW = 4 * WIDTH


def leave(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """So much memory is left to one thread for what it computes at once."""
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


@pytest.mark.parametrize("num_threads", [1, 2])
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
    size = PieceSize(1000, 10_000)
    assert size.nodes == 64
    assert size.fits(64, 64, 10, with_messages=True)  # nothing is known of the rows yet, and edges are few
    assert size.nodes == 256
    size.learn_width(25)  # 100 bytes
    size.learn_width(3)
    assert not size.fits(100, 30, 0, with_messages=False)  # 12,000 bytes
    assert size.nodes == 50
    assert not size.fits(50, 25, 1, with_messages=True)  # 10,140, of which 100 are a message
    assert size.fits(50, 24, 10, with_messages=False)
    assert size.nodes == 37
    assert size.fits(1, 10_000, 10_000, with_messages=True)  # there is nothing smaller
    assert size.nodes == 1
    for expected in (4, 16, 64, 256, 1000, 1000):
        assert size.fits(size.nodes, 0, 0, with_messages=True)
        assert size.nodes == expected
