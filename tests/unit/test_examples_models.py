"""The examples' model and full-batch reference: equal on both forms of a graph, and able to learn from edges."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import datasets  # noqa: E402
import full_batch  # noqa: E402
from models import GraphSAGE  # noqa: E402


@pytest.fixture(scope="module")
def data() -> datasets.NodeDataset:
    return datasets.load("community:1500:12:4:8", seed=0)


def test_sparse_matrix_and_edge_index_agree(data: datasets.NodeDataset) -> None:
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, 4).eval()
    with torch.no_grad():
        by_edges = model(data.x, data.edge_index)
        by_matrix = full_batch.predict(model, data.x, full_batch.adjacency(data))
    torch.testing.assert_close(by_matrix, by_edges, rtol=1e-4, atol=1e-5)


def test_one_layer_is_self_plus_neighbor_mean() -> None:
    model = GraphSAGE(2, 16, 2, num_layers=1)
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]])
    conv = model.convs[0]
    with torch.no_grad():
        out = model(x, torch.tensor([[1, 2], [0, 0]]))
        mean = torch.tensor([[2.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
        expected = conv.lin_l(mean) + conv.lin_r(x)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_depth_and_widths(num_layers: int) -> None:
    model = GraphSAGE(5, 7, 3, num_layers=num_layers)
    out = model(torch.ones(4, 5), torch.empty(2, 0, dtype=torch.int64))
    assert out.shape == (4, 3)
    assert len(model.convs) == num_layers


def test_without_edges_ignores_the_graph(data: datasets.NodeDataset) -> None:
    model = GraphSAGE(8, 16, 4, use_edges=False).eval()
    assert torch.equal(model(data.x, data.edge_index), model(data.x))


def test_training_repeats_and_edges_pay(data: datasets.NodeDataset) -> None:
    first = full_batch.train_full_batch(data, hidden=16, epochs=30, seed=1)
    again = full_batch.train_full_batch(data, hidden=16, epochs=30, seed=1)
    alone = full_batch.train_full_batch(data, hidden=16, epochs=30, seed=1, use_edges=False)
    assert first.test_accuracy == again.test_accuracy
    assert first.test_accuracy > alone.test_accuracy + 0.1
    assert 1 <= first.best_epoch <= first.epochs == 30
