"""What PyG's own loaders would give where there is little to give: labels of one column, and batches without edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import trim_to_layer

from graphlearn_dist.data import Dataset
from graphlearn_dist.data.sources import GraphSource
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader
from graphlearn_dist.distributed.dist_options import CollocatedDistSamplingWorkerOptions
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader
from graphlearn_dist.loader.transform import to_data, to_hetero_data
from graphlearn_dist.partition import partition_pyg
from graphlearn_dist.sampler import EdgeSamplerInput, NeighborSampler, NodeSamplerInput

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])  # nodes 3 to 9 have no edges
ALONE = torch.tensor([5, 7, 9])


def typed_dataset() -> Dataset:
    dataset = Dataset(edge_dir="in")
    edges = {("user", "buys", "item"): EDGES, ("item", "of", "user"): EDGES}
    dataset.init_graph(edges, num_nodes={"user": 10, "item": 12})
    return dataset


@pytest.mark.parametrize("mode", ["in process", "partitioned"])
@pytest.mark.parametrize("columns", [1, 3])
def test_labels_keep_their_columns(mode: str, columns: int, tmp_path: Path) -> None:
    labels = torch.arange(10 * columns).view(10, columns)
    data = Data(x=torch.arange(10.0)[:, None], y=labels, edge_index=EDGES, num_nodes=10)
    arguments: dict[str, Any] = {"num_neighbors": [2], "input_nodes": torch.arange(10), "batch_size": 4}
    if mode == "in process":
        loader: Any = NeighborLoader(GraphSource.from_pyg(data).to_dataset(), **arguments)
    else:
        dataset = DistDataset()
        dataset.load(partition_pyg(data, tmp_path / "parts", num_parts=1), 0)
        options = CollocatedDistSamplingWorkerOptions()
        loader = DistNeighborLoader(dataset, edge_dir="in", collect_features=True, worker_options=options, **arguments)
    for batch in loader:
        assert batch.y.shape == (batch.num_nodes, columns)
        assert torch.equal(batch.y, labels[batch.n_id])
    if mode == "partitioned":
        loader.shutdown()


def test_links_keep_the_columns_of_their_labels() -> None:
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(EDGES, num_nodes=10)
    label = torch.tensor([[2.0], [3.0], [4.0]])
    loader = LinkNeighborLoader(
        dataset, [2], edge_label_index=EDGES, edge_label=label, neg_sampling="binary", batch_size=3
    )
    assert next(iter(loader)).edge_label.shape == (6, 1)


@pytest.mark.parametrize("fanouts", [[2], [2, 3]])
def test_counts_of_batches_without_edges(fanouts: list[int]) -> None:
    hops = len(fanouts)
    homogeneous, typed = Dataset(edge_dir="in"), typed_dataset()
    homogeneous.init_graph(EDGES, num_nodes=10)
    plain = NeighborSampler(homogeneous.graph, fanouts, edge_dir="in", with_edge=True)
    out: Any = plain.sample_from_nodes(NodeSamplerInput(ALONE))
    loaded = next(iter(NeighborLoader(homogeneous, fanouts, ALONE, batch_size=3)))
    links = EdgeSamplerInput(ALONE, ALONE.flip(0))
    for data in (to_data(out), loaded, to_data(plain.sample_from_edges(links))):  # type: ignore[arg-type]
        assert data.num_sampled_edges == [0] * hops
        assert data.num_sampled_nodes == [3, *[0] * hops]
    x, edge_index, _ = trim_to_layer(0, loaded.num_sampled_nodes, loaded.num_sampled_edges, ALONE, loaded.edge_index)
    assert (x.tolist(), edge_index.shape) == (ALONE.tolist(), (2, 0))

    sampler = NeighborSampler(typed.graph, fanouts, edge_dir="in", with_edge=True)
    made: HeteroData = to_hetero_data(sampler.sample_from_nodes(NodeSamplerInput(ALONE, "user")), edge_dir="in")  # type: ignore[arg-type]
    batch = next(iter(NeighborLoader(typed, fanouts, ("user", ALONE), batch_size=3)))
    for data in (made, batch):
        assert data.num_sampled_edges_dict == {edge_type: [0] * hops for edge_type in typed.get_edge_types()}
        assert data.num_sampled_nodes_dict == {"user": [3, *[0] * hops], "item": [0] * (hops + 1)}
        assert (data["item"].num_nodes, data["user"].num_nodes) == (0, 3)
    assert made.edge_index_dict.keys() == batch.edge_index_dict.keys()
