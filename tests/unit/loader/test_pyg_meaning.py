"""What PyG's users find in a batch under PyG's names, compared with PyG's own loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.loader.utils import get_input_nodes
from torch_geometric.nn import global_mean_pool
from torch_geometric.sampler import NumNeighbors as PygNumNeighbors

from graphlearn_dist.data import GraphSource
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import NodeSamplerInput
from graphlearn_dist.sampler.inputs import concatenate_inputs
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.oracle import assert_same, pyg_tensors

BUYS, REV, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")


def typed() -> Any:
    return make_dataset(typed_graph(30, 15, 150, 2), "in")


def batches(num_neighbors: Any) -> list[dict[str, Any]]:
    loader = NeighborLoader(typed(), num_neighbors, "user", batch_size=10, prefetch=0)
    return [pyg_tensors(batch) for batch in loader]


def test_every_edge_type_has_fan_outs_or_a_default() -> None:
    graph = typed_graph(30, 15, 150, 2)
    first, *others = sorted(graph.edges)
    whole = batches({first: [3, 2], **{key: [2, 1] for key in others}})
    for given in ({first: [3, 2], None: [2, 1]}, PygNumNeighbors({first: [3, 2]}, default=[2, 1])):
        for batch, expected in zip(batches(given), whole, strict=True):
            assert_same(batch, expected)
    for batch, expected in zip(batches(PygNumNeighbors([3, 2])), batches([3, 2]), strict=True):
        assert_same(batch, expected)
    for given in ({first: [3, 2]}, PygNumNeighbors({first: [3, 2]})):
        with pytest.raises(InvalidArgumentError, match="num_neighbors: expected fan-outs for every edge type"):
            batches(given)
    with pytest.raises(InvalidArgumentError, match="unknown edge type"):
        batches({("a", "b", "c"): [1], None: [1]})
    with pytest.raises(InvalidArgumentError, match="as many hops for every edge type"):
        batches({first: [3, 2], None: [2]})


def test_a_default_travels() -> None:
    dataset = typed()
    fanouts = {sorted(typed_graph(30, 15, 150, 2).edges)[0]: [3, 2], None: [2, 1]}
    with DistNeighborLoader(
        DistDataset.from_dataset(dataset), fanouts, "user", 10, edge_dir="in", collect_features=True
    ) as far:
        for batch, expected in zip(far, NeighborLoader(dataset, fanouts, "user", batch_size=10), strict=True):
            assert_same(pyg_tensors(batch), pyg_tensors(expected))
        assert far.state_dict()["num_neighbors"]


def test_input_ids_of_a_mask_are_nodes() -> None:
    """As in PyG; those of ids are positions."""
    mask = torch.zeros(30, dtype=torch.bool)
    mask[[3, 7, 8, 21, 29]] = True
    data = HeteroData()
    data["user"].num_nodes = 30
    _, nodes, input_id = get_input_nodes(data, ("user", mask))
    assert torch.equal(input_id, nodes)
    for static in (False, True):
        loader = NeighborLoader(typed(), [2], ("user", mask), batch_size=2, shuffle=True, static_shapes=static)
        seen = torch.cat([batch["user"].input_id for batch in loader])
        assert sorted(seen[seen >= 0].tolist()) == nodes.tolist()
        for batch in loader:
            store = batch["user"]
            is_seed = store.input_id >= 0
            assert torch.equal(store.n_id[: store.batch_size][is_seed], store.input_id[is_seed])
    positions = [b["user"].input_id for b in NeighborLoader(typed(), [2], ("user", nodes), batch_size=2)]
    assert torch.cat(positions).tolist() == [0, 1, 2, 3, 4]


def test_input_ids_of_several_inputs() -> None:
    """They are nodes where all inputs are masks, else positions in the whole."""
    ids = torch.tensor([4, 5])
    named, plain = NodeSamplerInput(ids, "user", input_id=ids), NodeSamplerInput(ids, "user")
    assert concatenate_inputs([named, named]).input_id.tolist() == [4, 5, 4, 5]  # type: ignore[union-attr]
    assert concatenate_inputs([plain, named]).input_id is None  # type: ignore[union-attr]


@pytest.mark.parametrize("disjoint", [False, True])
def test_batches_can_be_pooled(disjoint: bool) -> None:
    """``batch`` says which tree a node stands in, or is not there: all nodes are then of one graph."""
    dataset = make_dataset(random_graph(40, 200, 1), "in")
    for batch in NeighborLoader(dataset, [3], torch.arange(20, 40), batch_size=5, disjoint=disjoint):
        assert (batch.batch is None) is not disjoint
        assert global_mean_pool(batch.x, batch.batch).size(0) == (5 if disjoint else 1)
    for batch in SubGraphLoader(dataset, torch.arange(20, 40), [3], batch_size=5):
        assert global_mean_pool(batch.x, batch.batch).size(0) == 1
    for batch in LinkNeighborLoader(dataset, [3], edge_label_index=torch.arange(40).view(2, 20), batch_size=5):
        assert global_mean_pool(batch.x, batch.batch).size(0) == 1


def test_ids_of_edges_are_there_where_they_were_needed() -> None:
    """With features of edges they were sampled anyway; without they are what ``with_edge`` asks for."""
    graph = random_graph(40, 200, 1)
    for with_features in (False, True):
        dataset = make_dataset(graph, "in", edge_features=with_features)
        for with_edge in (False, True):
            batch = next(iter(NeighborLoader(dataset, [3], torch.arange(5), batch_size=5, with_edge=with_edge)))
            assert ("e_id" in batch) is (with_features or with_edge)
            if "e_id" in batch:
                ends = graph.edges[None][:, batch.e_id]
                assert torch.equal(batch.n_id[batch.edge_index], ends)


def test_what_pyg_calls_data_is_read(tmp_path: Any) -> None:
    """Fan-outs by edge type of a HeteroData."""
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 3, 4
    data[BUYS].edge_index = torch.tensor([[0, 1, 2], [3, 0, 1]])
    loader = NeighborLoader(GraphSource.from_pyg(data).to_dataset(), {BUYS: [2]}, ("item", torch.tensor([3])))
    assert next(iter(loader))["user"].n_id.tolist() == [0]
