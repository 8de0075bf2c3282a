"""The order in which a data set's parts come does not matter."""

from __future__ import annotations

import torch

from graphlearn_dist.data import Dataset
from graphlearn_dist.loader import NeighborLoader

EDGES = torch.tensor([[0, 1], [1, 0]])


def test_rows_may_come_after_the_graph() -> None:
    """Nodes without edges have rows, and so exist, whichever came first."""
    for graph_first in (True, False):
        for edge_dir in ("in", "out"):
            dataset = Dataset(edge_dir=edge_dir)
            if graph_first:
                dataset.init_graph(EDGES)
            dataset.init_node_features(torch.arange(5.0).view(5, 1))
            dataset.init_node_labels(torch.arange(5))
            if not graph_first:
                dataset.init_graph(EDGES)
            assert dataset.schema.num_nodes == (5,)
            batch = NeighborLoader(dataset, [2], torch.tensor([4, 0]), batch_size=2).batch(0, 0)
            assert batch.n_id.tolist() == [4, 0, 1]
            assert batch.x.view(-1).tolist() == [4.0, 0.0, 1.0]


def test_a_node_type_without_edges() -> None:
    dataset = Dataset(edge_dir="in")
    dataset.init_graph({("a", "to", "b"): EDGES})
    dataset.init_node_features({"a": torch.zeros(4, 2), "z": torch.arange(3.0).view(3, 1)})
    schema = dataset.schema
    assert dict(zip(schema.node_types, schema.num_nodes, strict=True)) == {"a": 4, "b": 2, "z": 3}
    batch = NeighborLoader(dataset, [2], ("z", torch.tensor([1])), batch_size=1).batch(0, 0)
    assert batch["z"].x.tolist() == [[1.0]]
    assert batch["a"].x.shape == (0, 2)
    assert NeighborLoader(dataset, [2], ("b", torch.tensor([1])), batch_size=1).batch(0, 0)["a"].n_id.tolist() == [0]
