"""Topologies: every way in, every way out, one canonical order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist.data import Graph, Topology
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from tests.support.graphs import TestGraph, analytic_edges, graphs

Triples = list[tuple[int, int, int]]


def triples(source: torch.Tensor, target: torch.Tensor, edge_ids: torch.Tensor) -> Triples:
    return sorted(zip(source.tolist(), target.tolist(), edge_ids.tolist(), strict=True))


def expand(indptr: torch.Tensor) -> torch.Tensor:
    return torch.arange(indptr.numel() - 1).repeat_interleave(indptr.diff())


@given(
    graph=graphs(typed=False), layout=st.sampled_from(["CSR", "CSC"]), dtype=st.sampled_from([torch.int32, torch.int64])
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_every_layout_in_and_out(graph: TestGraph, layout: Any, dtype: torch.dtype) -> None:
    """COO, CSR and CSC inputs of one graph make one topology, and every form that comes out has the same edges."""
    (source, target), ids, n = graph.edges[None], graph.ids_of(None), graph.num_nodes[None]
    wanted = triples(source, target, ids)
    made = Topology((source.to(dtype), target.to(dtype)), ids, layout=layout, num_nodes=(n, n))
    assert triples(*made.to_coo()[:3]) == wanted
    indptr, targets, csr_ids, _ = made.to_csr()
    sources, colptr, csc_ids, _ = made.to_csc()
    assert triples(expand(indptr), targets, csr_ids) == triples(sources, expand(colptr), csc_ids) == wanted
    for tensor in (*made.to_coo()[:3], indptr, targets, csr_ids, sources, colptr, csc_ids):
        assert tensor.dtype == torch.int64
    inputs = [("CSR", (indptr, targets), csr_ids), ("CSC", (sources, colptr), csc_ids)]
    for input_layout, edge_index, edge_ids in inputs:
        again = Topology(edge_index, edge_ids, input_layout=input_layout, layout=layout, num_nodes=(n, n))
        for name in ("indptr", "indices", "edge_ids"):
            assert torch.equal(again[name], made[name]), (input_layout, name)
    assert made.row_count == made.num_cols == n
    assert made.edge_count == len(wanted)
    assert torch.equal(made.degrees, torch.bincount(source if layout == "CSR" else target, minlength=n))


def test_the_analytic_graph() -> None:
    edges = analytic_edges(5)
    out, into = Topology(edges), Topology(edges, layout="CSC")
    assert out.indptr.tolist() == into.indptr.tolist() == [0, 2, 4, 6, 8, 10]
    assert out.indices.tolist() == [1, 2, 2, 3, 3, 4, 0, 4, 0, 1]  # sorted within each row
    assert out.edge_ids.tolist() == [0, 1, 2, 3, 4, 5, 7, 6, 8, 9]
    assert into.indices.tolist() == [3, 4, 0, 4, 0, 1, 1, 2, 2, 3]
    assert into.edge_ids.tolist() == [7, 8, 0, 9, 1, 2, 3, 4, 5, 6]
    assert out.indices.dtype == out.edge_ids.dtype == torch.int32


def test_forms_of_input() -> None:
    wanted = Topology(torch.tensor([[0, 1], [1, 2]]))
    tensors = torch.tensor([0, 1]), torch.tensor([1, 2])
    for pair in (
        tensors,
        list(tensors),
        np.array([[0, 1], [1, 2]]),
        [[0, 1], [1, 2]],
        tuple(t.numpy() for t in tensors),
    ):
        assert torch.equal(Topology(pair).indices, wanted.indices)
    transposed = torch.tensor([[0, 1], [1, 2]]).t().contiguous().t()  # not contiguous
    assert torch.equal(Topology(transposed).indices, wanted.indices)
    assert Topology(torch.empty(2, 0, dtype=torch.int64)).row_count == 0


def test_bipartite_extents() -> None:
    edges = torch.tensor([[0, 3], [7, 1]])
    for layout, rows, cols in (("CSR", 4, 8), ("CSC", 8, 4)):
        made: Any = Topology(edges, layout=layout)  # type: ignore[arg-type]
        assert (made.row_count, made.num_cols) == (rows, cols)
        graph = Graph(made)
        assert (graph.row_count, graph.col_count, graph.edge_count) == (rows, cols, 2)
        assert graph.graph_handler is graph.graph_handler
    assert Topology(edges, num_nodes=(10, 20)).to_csc()[1].numel() == 21


ZEROS = torch.zeros(2, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, InvalidArgumentError, r"edge_index: .*\(3, 2\)"),
        ({"edge_index": torch.zeros(2, dtype=torch.int64)}, InvalidArgumentError, "edge_index"),
        ({"edge_index": torch.zeros(2, 2)}, InvalidArgumentError, "expected"),
        ({"edge_index": ZEROS, "layout": "COO"}, InvalidArgumentError, "layout"),
        ({"edge_index": ZEROS, "input_layout": "X"}, InvalidArgumentError, "input_layout"),
        ({"edge_index": ZEROS, "edge_ids": [1]}, InvalidArgumentError, "edge_ids"),
        ({"edge_index": ZEROS, "edge_weights": [1, -1]}, InvalidArgumentError, "edge_weights"),
        ({"edge_index": torch.tensor([[0], [-1]])}, UnknownIdError, "-1 is outside"),
        ({"edge_index": torch.tensor([[0], [5]]), "num_nodes": (5, 5)}, UnknownIdError, "5 is outside"),
    ],
)
def test_refuses(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Topology(**arguments)


@pytest.mark.parametrize(("options", "match"), [({"mode": "DISK"}, "mode"), ({"device": 99}, "device: expected")])
def test_graph_refuses(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        Graph(Topology(analytic_edges(3)), **options)
