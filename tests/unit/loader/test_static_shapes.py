"""Batches of fixed shapes: the normal ones with padding that changes nothing, from the host and from kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv, GCNConv, HeteroConv, SAGEConv

from graphlearn_dist.errors import BatchOverflowError, InvalidArgumentError
from graphlearn_dist.loader import CapturedStep, LinkNeighborLoader, NeighborLoader, NodeLoader, StaticShapes
from graphlearn_dist.loader.transform import padded_to_pyg
from graphlearn_dist.sampler import NeighborSampler, SamplingType
from graphlearn_dist.sampler.device.static_batches import ask, new_request
from tests.support.device_batches import WAYS
from tests.support.graphs import make_dataset, random_graph, typed_graph
from tests.support.static_batches import assert_same_data, batches_of_kernels, loader_for, loader_of, unpadded

HOST = torch.device("cpu")
KINDS = ("homogeneous", "typed")
LIKES = ("user", "buys", "item")


def shapes_of(data: Any) -> list[dict[str, Any]]:
    return [
        {key: tuple(value.shape) if isinstance(value, torch.Tensor) else value for key, value in store.items()}
        for store in data.stores
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_without_their_padding_they_are_the_normal_batches(kind: str, way: str) -> None:
    for fanouts in ((3, 2), (-1, 2), (0, 2), (0,), (2, 0)):
        normal = loader_for(kind, way, fanouts)
        padded = loader_for(kind, way, fanouts, static_shapes=True)
        first = padded.batch(0, 0)
        for one, other in zip(normal, padded, strict=True):
            assert_same_data(unpadded(other), one)
            assert shapes_of(other) == shapes_of(first)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_make_the_batches_of_the_host(kind: str, way: str) -> None:
    """Launched over and over with one request that other numbers are written to, as a replayed CUDA graph is."""
    shapes = StaticShapes() if kind == "homogeneous" else StaticShapes({"item": 500}, {LIKES: 900})
    loader = loader_for(kind, way, (4, 3, 2), static_shapes=shapes)
    kernels = batches_of_kernels(loader, shapes, HOST)
    request = new_request(loader.config.seed, HOST)
    for epoch, index in ((0, 0), (0, 2), (3, 1), (0, 0)):
        ask(request, epoch, index)
        made = padded_to_pyg(kernels.sample(request), loader.data.schema)
        assert_same_data(made, loader.batch(epoch, index))
    kernels.check()


@pytest.mark.parametrize("explicit", [False, True])
def test_kernels_look_up_the_rows_of_scattered_ids(explicit: bool) -> None:
    graph = random_graph(60, 300, 2, explicit_edge_ids=explicit)
    loader = loader_of(graph, static_shapes=True)
    rows = torch.arange(60).flip(0)
    loader.data.init_node_features(graph.node_features()[None].flip(0), id2idx=rows)
    loader = NeighborLoader(loader.data, [3, 2], torch.arange(20), batch_size=8, with_edge=True, static_shapes=True)
    request = new_request(0, HOST)
    ask(request, 0, 1)
    made = padded_to_pyg(batches_of_kernels(loader, StaticShapes(), HOST).sample(request), loader.data.schema)
    assert_same_data(made, loader.batch(0, 1))
    assert torch.equal(made.x[made.node_mask][:, 0], made.n_id[made.node_mask].float())


def test_padding_has_no_ids_no_rows_and_no_edges_to_real_nodes() -> None:
    batch = loader_for("homogeneous", static_shapes=True).batch(0, 2)
    assert batch.seed_mask.sum() == 45 - 2 * 16
    assert batch.batch_size == batch.seed_mask.numel() == batch.input_id.numel() == 16
    assert (batch.input_id[~batch.seed_mask] == -1).all()
    assert not batch.node_mask[-1]
    for key in ("n_id", "e_id"):
        mask = batch.node_mask if key == "n_id" else batch.edge_mask
        assert ((batch[key] == -1) == ~mask).all()
    assert (batch.x[~batch.node_mask] == 0).all()
    assert (batch.edge_attr[~batch.edge_mask] == 0).all()
    assert not batch.node_mask[batch.edge_index[:, ~batch.edge_mask]].any()
    assert batch.node_mask[batch.edge_index[:, batch.edge_mask]].all()


def test_padding_of_trees_is_in_a_tree_of_its_own() -> None:
    batch = loader_for("homogeneous", "disjoint", static_shapes=True).batch(0, 0)
    assert (batch.batch[~batch.node_mask] == 16).all()
    assert (batch.batch[batch.node_mask] < 16).all()


class Homogeneous(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.first, self.second = layer((2, 2), 8), layer((8, 8), 3)

    def forward(self, data: Any) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)
        return out[: data.batch_size]


LAYERS = {
    "sage": lambda sizes, out: SAGEConv(sizes, out),
    "sage-max": lambda sizes, out: SAGEConv(sizes, out, aggr="max"),
    "gat": lambda sizes, out: GATConv(sizes[0], out, heads=2, concat=False),
    "gcn": lambda sizes, out: GCNConv(sizes[0], out),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_models_give_the_seeds_what_they_give_without_padding(layer: str) -> None:
    torch.manual_seed(0)
    model = Homogeneous(LAYERS[layer]).eval()
    for one, other in zip(loader_for("homogeneous"), loader_for("homogeneous", static_shapes=True), strict=True):
        expected, found = model(one), model(other)
        torch.testing.assert_close(found[other.seed_mask], expected)
        loss = (F.cross_entropy(found, other.y[:16] % 3, reduction="none") * other.seed_mask).sum()
        torch.testing.assert_close(loss / other.seed_mask.sum(), F.cross_entropy(expected, one.y[: len(expected)] % 3))


def test_models_of_typed_graphs_too() -> None:
    torch.manual_seed(0)
    plain, padded = loader_for("typed"), loader_for("typed", static_shapes=True)
    edge_types = plain.batch(0, 0).edge_types
    model = HeteroConv({name: SAGEConv((2, 2), 4) for name in edge_types})
    for one, other in zip(plain, padded, strict=True):
        for data in (one, other):
            data["item"].x = torch.stack([data["item"].n_id.clamp(min=0), data["item"].n_id % 7], dim=1).float()
        expected, found = (model(data.x_dict, data.edge_index_dict)["user"] for data in (one, other))
        size = one["user"].batch_size
        torch.testing.assert_close(found[: other["user"].batch_size][other["user"].seed_mask], expected[:size])


def bounds_for(kind: str, what: str, most: int) -> StaticShapes:
    """Bounds on users, or on what they buy, who are all nodes and edges of a homogeneous graph."""
    if what == "max_nodes":
        return StaticShapes(max_nodes=most if kind == "homogeneous" else {"user": most})
    return StaticShapes(max_edges=most if kind == "homogeneous" else {LIKES: most})


@pytest.mark.parametrize("what", ["max_nodes", "max_edges"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_told_and_nothing_else_is_touched(kind: str, what: str) -> None:
    """Over every bound from far too small to large enough the host and the kernels agree on which batches fit."""
    flawless, flawed, is_nodes = 0, 0, what == "max_nodes"
    for most in (17, 20, 40, 55, 70, 90, 150):
        shapes = bounds_for(kind, what, most)
        loader = loader_for(kind, static_shapes=shapes)
        kernels, request = batches_of_kernels(loader, shapes, HOST), new_request(loader.config.seed, HOST)
        for epoch, index in ((1, 0), (1, 1), (1, 2)):
            ask(request, epoch, index)
            made = padded_to_pyg(kernels.sample(request), loader.data.schema)
            told = [raised_by(lambda: loader.batch(epoch, index)), raised_by(kernels.check)]  # noqa: B023
            assert told[0] == told[1]
            if told[0] is None:
                flawless += 1
                assert_same_data(made, loader.batch(epoch, index))
            else:
                flawed += 1
                assert told[0].startswith(f"{what}: batch {index} of epoch 1 has more than the {most - is_nodes}")
                assert_is_all_padding(made)
            kernels.check()  # told once
    assert flawless
    assert flawed


def raised_by(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except BatchOverflowError as error:
        return str(error)
    return None


def assert_is_all_padding(data: Any) -> None:
    for store in data.stores:
        for key in ("node_mask", "edge_mask", "seed_mask"):
            assert key not in store or not store[key].any()
        for key in ("num_sampled_nodes", "num_sampled_edges"):
            assert key not in store or not store[key].any()
        if "edge_index" in store:
            ends = data.node_stores[0], data.node_stores[0]
            if isinstance(store._key, tuple):
                ends = data[store._key[0]], data[store._key[2]]
            for end, ids in zip(ends, store.edge_index, strict=True):
                assert ((ids >= 0) & (ids < end.num_nodes)).all()


def test_the_first_batch_that_does_not_fit_is_told_at_the_end() -> None:
    shapes = StaticShapes(max_nodes=17)
    loader = loader_for("homogeneous", static_shapes=shapes)
    kernels, request = batches_of_kernels(loader, shapes, HOST), new_request(loader.config.seed, HOST)
    for index in (1, 2, 0):
        ask(request, 7, index)
        kernels.sample(request)
    with pytest.raises(BatchOverflowError, match="batch 1 of epoch 7 has more than the 16 nodes that fit"):
        kernels.check()


def test_the_loader_tells_at_the_end_of_an_epoch() -> None:
    loader = loader_for("homogeneous", static_shapes=StaticShapes(max_nodes=17))
    loader.static_batches = batches_of_kernels(loader, StaticShapes(max_nodes=17), HOST)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    with pytest.raises(BatchOverflowError, match="batch 0 of epoch 0"):
        next(batches)


def test_bounds_beyond_what_there_may_be_are_taken_as_given() -> None:
    batch = loader_for("homogeneous", static_shapes=StaticShapes(max_nodes=4096, max_edges=8192)).batch(0, 0)
    assert batch.num_nodes == batch.x.size(0) == 4096
    assert batch.edge_index.shape == (2, 8192)


def test_bounds_make_take_all_of_hubs_possible() -> None:
    """Without them a batch might have as many edges as there are in the graph, for every seed."""
    graph = typed_graph(200, 90, 2500, 6)
    shapes = StaticShapes({"item": 91, "user": 201}, dict.fromkeys(graph.edges, 1000))
    plain, padded = (loader_of(graph, (-1, -1), static_shapes=given) for given in (False, shapes))
    with pytest.raises(BatchOverflowError):
        padded.batch(0, 0)
    shapes = StaticShapes({"item": 91, "user": 217}, dict.fromkeys(graph.edges, 40_000))
    padded = loader_of(graph, (-1, -1), static_shapes=shapes)
    assert_same_data(unpadded(padded.batch(0, 0)), plain.batch(0, 0))


def test_states_go_between_loaders_with_and_without() -> None:
    plain, padded = loader_for("homogeneous"), loader_for("homogeneous", static_shapes=True, prefetch=2)
    batches = iter(plain)
    next(batches)
    padded.load_state_dict(plain.state_dict())
    assert_same_data(unpadded(next(iter(padded))), next(batches))


@pytest.mark.parametrize(
    ("shapes", "match"),
    [
        (StaticShapes(max_nodes=16), "max_nodes: expected more than the 16 seeds"),
        (StaticShapes(max_nodes=0), "max_nodes: expected a number of at least 1, got 0"),
        (StaticShapes(max_edges={"likes": 5}), "max_edges: unknown type 'likes'"),
    ],
)
def test_bounds_that_cannot_be(shapes: StaticShapes, match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        loader_for("homogeneous", static_shapes=shapes)


def test_loaders_without_static_shapes_say_so() -> None:
    data = make_dataset(random_graph(20, 60, 1))
    sampler = NeighborSampler.of_dataset(data, [2])
    with pytest.raises(InvalidArgumentError, match="loader of neighborhoods of nodes, got one of SUBGRAPH"):
        NodeLoader(data, sampler, torch.arange(4), sampling_type=SamplingType.SUBGRAPH, static_shapes=True)
    with pytest.raises(InvalidArgumentError, match="PyG objects"):
        NeighborLoader(data, [2], torch.arange(4), as_pyg_v1=True, static_shapes=True)
    with pytest.raises(TypeError, match="static_shapes"):
        LinkNeighborLoader(data, [2], torch.tensor([[0, 1], [1, 2]]), static_shapes=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="give it static_shapes=True"):
        CapturedStep(NeighborLoader(data, [2], torch.arange(4)), lambda batch: batch)
    elsewhere = NeighborLoader(data, [2], torch.arange(4), device=torch.device("cpu"), static_shapes=True)
    elsewhere.static_batches.device = torch.device("cuda", 0)  # as of a graph on a GPU
    with pytest.raises(
        InvalidArgumentError, match=r"loader: expected one whose batches stay on cuda:0, .* device='cpu'"
    ):
        CapturedStep(elsewhere, lambda batch: batch)


def test_steps_of_the_host_go_through_epochs_as_the_loader_does() -> None:
    loader = loader_for("homogeneous", static_shapes=True)
    steps = CapturedStep(loader, lambda batch: batch.n_id.clone())
    assert len(steps) == len(loader) == 3
    for _ in range(2):
        for found, batch in zip(steps, loader, strict=True):
            assert torch.equal(found, batch.n_id)
    begun = iter(steps)
    next(begun)
    state = steps.state_dict()
    loader.load_state_dict(state)
    assert torch.equal(next(iter(loader)).n_id, next(begun))
    assert torch.equal(steps(1, 2), loader.batch(1, 2).n_id)
    with pytest.raises(InvalidArgumentError, match="expected a batch in"):
        steps(0, 3)
