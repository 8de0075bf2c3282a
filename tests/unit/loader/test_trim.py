"""What PyG's models do layer by layer: ``trim_to_layer`` on batches of typed graphs, ``inference`` over all nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.loader import NodeLoader as PygNodeLoader
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from graphlearn_dist.distributed import DistDataset, DistNeighborLoader
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.loader import NeighborLoader
from tests.support.graphs import Direction, make_dataset, typed_graph

GRAPH = typed_graph(60, 30, 300, 9)
WIDTH = 4
SEEDS = ("user", torch.tensor([0, 5, 59, 5, 17, 33, 42]))
FANOUTS: dict[str, Any] = {
    "all types": [3, 2, 2],
    "some types": {("user", "knows", "user"): [3, 2, 2], ("item", "rev_buys", "user"): [2, 1, 1], None: [0, 0, 0]},
}


def batches(loader: str, edge_dir: Direction, fanouts: Any) -> Any:
    if loader == "local":
        return NeighborLoader(make_dataset(GRAPH, edge_dir), fanouts, SEEDS, batch_size=4)
    if loader == "collocated":
        whole = DistDataset.from_dataset(make_dataset(GRAPH, edge_dir))
        return DistNeighborLoader(whole, fanouts, SEEDS, batch_size=4, edge_dir=edge_dir)
    data = HeteroData()
    for key, count in GRAPH.num_nodes.items():
        data[key].num_nodes = count
    for key, edges in GRAPH.edges.items():
        data[key].edge_index = edges
    return PygNodeLoader(data, PyGSampler(make_dataset(GRAPH, edge_dir), fanouts), SEEDS, batch_size=4)


def features(batch: Any) -> dict[str, torch.Tensor]:
    """A row for each node that tells it from all others."""
    powers = torch.arange(1, WIDTH + 1) / WIDTH
    return {key: torch.sin(ids[:, None] * powers + len(key)).double() for key, ids in batch.n_id_dict.items()}


def forward(layers: list[HeteroConv], batch: Any, *, trimmed: bool) -> tuple[torch.Tensor, int]:
    """The seeds' outputs, and how many edges were looked at."""
    x_dict, edge_index_dict, num_edges = features(batch), batch.edge_index_dict, 0
    for i, layer in enumerate(layers):
        if trimmed:
            x_dict, edge_index_dict, _ = trim_to_layer(
                i, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x_dict, edge_index_dict
            )
        num_edges += sum(edge_index.size(1) for edge_index in edge_index_dict.values())
        x_dict = {key: out.relu() for key, out in layer(x_dict, edge_index_dict).items()}
    return x_dict["user"][: batch["user"].batch_size], num_edges


@pytest.mark.parametrize("fanouts", FANOUTS)
@pytest.mark.parametrize(
    ("loader", "edge_dir"),
    [("local", "in"), ("local", "out"), ("collocated", "in"), ("collocated", "out"), ("PyG", "in")],
)
def test_trimmed_layers_give_the_seeds_the_same(loader: str, edge_dir: Direction, fanouts: str) -> None:
    asked = FANOUTS[fanouts]
    torch.manual_seed(0)
    layers: list[HeteroConv] = []
    for number, batch in enumerate(batches(loader, edge_dir, asked)):
        if not layers:
            convs = [{key: SAGEConv((WIDTH, WIDTH), WIDTH) for key in batch.edge_types} for _ in range(3)]
            layers = [HeteroConv(conv, aggr="sum").double() for conv in convs]
        with torch.no_grad():
            full, all_edges = forward(layers, batch, trimmed=False)
            trimmed, edges = forward(layers, batch, trimmed=True)
        assert full.shape == (4 if number == 0 else 3, WIDTH)
        assert torch.allclose(trimmed, full, rtol=1e-12, atol=1e-12)
        assert full.abs().sum() > 0
        assert edges < all_edges


def test_inference_of_models() -> None:
    torch.manual_seed(0)
    data = Data(x=torch.rand(40, WIDTH), edge_index=torch.randint(0, 40, (2, 120)))
    model = GraphSAGE(WIDTH, 8, num_layers=2, out_channels=3).eval()
    loader = PygNeighborLoader(data, [-1], batch_size=7, neighbor_sampler=PyGSampler(data, num_neighbors=[-1]))
    assert torch.allclose(model.inference(loader), model(data.x, data.edge_index), atol=1e-5)
