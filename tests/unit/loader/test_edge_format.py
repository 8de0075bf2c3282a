"""Batches whose edges are a sparse matrix: the same edges, in an order that sparse products take, at half the bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import EdgeConv, GATConv, GCNConv, GraphSAGE, HeteroConv, SAGEConv, TransformerConv
from torch_geometric.transforms import ToSparseTensor

from graphlearn_dist import _C
from graphlearn_dist.core import to_optional_tensor, to_tensor
from graphlearn_dist.data.device import device_copies
from graphlearn_dist.data.device.compressed_edges import CompressedEdges
from graphlearn_dist.distributed import DistNeighborLoader
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.glt.loader import SubGraphLoader as GltSubGraphLoader
from graphlearn_dist.inference import infer_by_batches
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.sampler import adjacency
from tests.support.graphs import Direction, TestGraph, make_dataset, random_graph, typed_graph

GRAPHS: dict[str, TestGraph] = {
    "homogeneous": random_graph(300, 2500, 3, explicit_edge_ids=True),
    "typed": typed_graph(60, 30, 400, 9),
}
_edges = GRAPHS["homogeneous"].edges[None].unique(dim=1)
# PyG itself reads a matrix otherwise than a list of edges where a pair of nodes has several, or a node one to itself.
SIMPLE = replace(GRAPHS["homogeneous"], edges={None: _edges[:, _edges[0] != _edges[1]]}, edge_ids={})
SEEDS = torch.tensor([0, 5, 59, 5, 17, 33, 42, 58, 1])
LOADERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nodes": (NeighborLoader, {"num_neighbors": [4, 3, 2]}),
    "with replacement": (NeighborLoader, {"num_neighbors": [4, 3], "replace": True}),
    "trees": (NeighborLoader, {"num_neighbors": [3, 3], "disjoint": True}),
    "one hop of nobody": (NeighborLoader, {"num_neighbors": [0]}),
    "links": (LinkNeighborLoader, {"num_neighbors": [3, 2], "neg_sampling": "binary"}),
    "subgraphs": (SubGraphLoader, {"num_neighbors": [4]}),
}


def open_both(graph: TestGraph, edge_dir: Direction, name: str) -> tuple[Any, Any]:
    """The same loader with either form of edges."""
    loader, arguments = LOADERS[name]
    seed_type = None if graph.is_homogeneous else "user"
    if name == "links":
        edge_type = None if graph.is_homogeneous else ("user", "buys", "item")
        links = graph.edges[edge_type][:, :9]
        arguments = {**arguments, "edge_label_index": links if edge_type is None else (edge_type, links)}
    else:
        arguments = {**arguments, "input_nodes": SEEDS if seed_type is None else (seed_type, SEEDS)}
    data = make_dataset(graph, edge_dir)
    made = [
        loader(data, batch_size=4, with_edge=True, seed=1, edge_format=edge_format, **arguments)
        for edge_format in ("edge_index", "adj_t")
    ]
    return made[0], made[1]


def expected(edge_index: torch.Tensor, e_id: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(targets, sources, ids) in the order of a matrix's rows, by sorting in Python."""
    edges = sorted(zip(edge_index[1].tolist(), edge_index[0].tolist(), range(e_id.numel()), strict=True))
    order = torch.tensor([place for _, _, place in edges], dtype=torch.int64)
    return edge_index[1][order], edge_index[0][order], e_id[order]


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", LOADERS)
def test_a_matrix_has_the_edges_of_the_batch(name: str, graph: str, edge_dir: Direction) -> None:
    plain, compressed = open_both(GRAPHS[graph], edge_dir, name)
    num_edges = 0
    for batch, other in zip(plain, compressed, strict=True):
        stores = zip(batch.edge_stores, other.edge_stores, strict=True)
        for store, of_other in stores:
            assert "edge_index" not in of_other
            targets, sources, ids = expected(store.edge_index, store.e_id)
            adj_t, (source, _, target) = of_other.adj_t, store._key or (None, None, None)
            sizes = [(batch if key is None else batch[key]).num_nodes for key in (target, source)]
            assert adj_t.layout is torch.sparse_csr
            assert tuple(adj_t.shape) == tuple(sizes)
            assert adj_t.crow_indices().dtype is adj_t.col_indices().dtype is torch.int64
            assert torch.equal(adj_t.crow_indices().long().diff(), torch.bincount(targets, minlength=sizes[0]))
            assert torch.equal(adj_t.col_indices().long(), sources)
            assert torch.equal(adj_t.values(), torch.ones(targets.numel()))
            assert torch.equal(of_other.e_id, ids)
            assert store.get("num_sampled_edges") == of_other.get("num_sampled_edges")
            assert ("edge_attr" in store) is ("edge_attr" in of_other)
            if "edge_attr" in store:
                assert torch.equal(of_other.edge_attr[:, 0] * 4, ids.float())
            num_edges += targets.numel()
        for one, of_nodes in zip(batch.node_stores, other.node_stores, strict=True):
            assert torch.equal(one.n_id, of_nodes.n_id)
            assert "x" not in one or torch.equal(one.x, of_nodes.x)
    assert num_edges > 0 or name == "one hop of nobody"


def test_it_is_what_pyg_makes_of_the_batch() -> None:
    """``ToSparseTensor``, which sorts each batch in Python, gives the same matrix and the same rows of edges."""
    plain, compressed = open_both(SIMPLE, "in", "nodes")
    transform = ToSparseTensor(layout=torch.sparse_csr)
    for batch, other in zip(plain, compressed, strict=True):
        made = transform(Data(edge_index=batch.edge_index, edge_attr=batch.edge_attr, num_nodes=batch.num_nodes))
        assert torch.equal(made.adj_t.to_dense(), other.adj_t.to_dense())
        assert torch.equal(made.edge_attr, other.edge_attr)


@pytest.mark.parametrize("conv", [SAGEConv, GCNConv, GATConv])
def test_models_give_the_same(conv: Any) -> None:
    torch.manual_seed(0)
    layer = conv(2, 5).double()
    plain, compressed = open_both(SIMPLE, "in", "nodes")
    for batch, other in zip(plain, compressed, strict=True):
        x = batch.x.double()
        assert torch.allclose(layer(x, batch.edge_index), layer(x, other.adj_t.double()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GraphSAGE(2, 8, num_layers=3, out_channels=4),
        lambda: TransformerConv(2, 4),
        lambda: GATConv(2, 4, add_self_loops=False),
        lambda: EdgeConv(torch.nn.Linear(4, 3)),
    ],
)
def test_gradients_are_the_same(make: Any) -> None:
    """Of layers whose messages are a product, and of those that look at edges one by one."""
    torch.manual_seed(0)
    model = make().double()
    plain, compressed = open_both(SIMPLE, "in", "nodes")
    for batch, other in zip(plain, compressed, strict=True):
        found = []
        for edges in (batch.edge_index, other.adj_t.double()):
            model.zero_grad()
            model(batch.x.double(), edges)[: batch.batch_size].square().sum().backward()
            found.append([weight.grad.clone() for weight in model.parameters()])
        assert all(torch.allclose(one, two) for one, two in zip(*found, strict=True))


@pytest.mark.parametrize("conv", [SAGEConv, GATConv])
def test_typed_models_give_the_same(conv: Any) -> None:
    torch.manual_seed(0)
    options = {"add_self_loops": False} if conv is GATConv else {}
    plain, compressed = open_both(GRAPHS["typed"], "in", "nodes")
    batch, other = next(iter(plain)), next(iter(compressed))
    x = {key: torch.sin(torch.stack([ids, ids + 1], 1).double()) for key, ids in batch.n_id_dict.items()}
    layer = HeteroConv({key: conv((2, 2), 3, **options) for key in batch.edge_types}).double()
    adjacencies = {key: matrix.double() for key, matrix in other.adj_t_dict.items()}
    outputs, gradients = [], []
    for edges in (batch.edge_index_dict, adjacencies):
        layer.zero_grad()
        outputs.append(layer(x, edges))
        sum(rows.square().sum() for rows in outputs[-1].values()).backward()  # type: ignore[union-attr]
        gradients.append([weight.grad.clone() for weight in layer.parameters() if weight.grad is not None])
    one, two = outputs
    assert one.keys() == two.keys()
    assert all(torch.allclose(one[key], two[key]) for key in one)
    assert len(gradients[0]) == len(gradients[1]) > 0
    assert all(torch.allclose(first, second) for first, second in zip(*gradients, strict=True))


def test_weights_of_edges_are_its_values() -> None:
    """As of ``ToSparseTensor``: weights that the data set has for its edges; other attributes stay beside it."""
    graph = GRAPHS["homogeneous"]
    source = Data(edge_index=graph.edges[None], num_nodes=300)
    source.edge_weight, source.stamp = torch.rand(2500), torch.arange(2500)
    loader = DistNeighborLoader(
        source, [5, 5], SEEDS, batch_size=4, with_edge=True, collect_features=True, edge_format="adj_t"
    )
    for batch in loader:
        assert torch.equal(batch.adj_t.values(), source.edge_weight[batch.e_id])
        assert torch.equal(batch.stamp, batch.e_id)
        assert "edge_weight" not in batch


def test_what_is_no_weight_of_each_edge_stays_beside_the_matrix() -> None:
    """A constant of an edge type by that name, integers; and an attribute by the name of what the matrix stands for."""
    data = HeteroData()
    data["u"].num_nodes = data["v"].num_nodes = 50
    for key in (("u", "a", "v"), ("v", "b", "u")):
        data[key].edge_index = torch.randint(0, 50, (2, 400))
    data["u", "a", "v"].edge_weight = torch.rand(3)
    data["v", "b", "u"].edge_weight = torch.arange(400)
    loader = DistNeighborLoader(
        data, [3, 2], ("u", torch.arange(9)), batch_size=9, collect_features=True, edge_format="adj_t"
    )
    (batch,) = loader
    for key in batch.edge_types:
        assert torch.equal(batch[key].adj_t.values(), torch.ones(batch[key].adj_t.col_indices().numel()))
    assert torch.equal(batch["u", "a", "v"].edge_weight, data["u", "a", "v"].edge_weight)
    assert torch.equal(batch["v", "b", "u"].edge_weight, batch["v", "b", "u"].e_id)


def test_results_of_batches() -> None:
    """``infer_by_batches`` gives a model what its loader's batches have."""
    graph, model = GRAPHS["homogeneous"], SAGEConv(2, 3)
    found = [
        infer_by_batches(model, NeighborLoader(make_dataset(graph, "in"), [-1], None, batch_size=64, edge_format=each))
        for each in ("edge_index", "adj_t")
    ]
    assert torch.allclose(found[0].rows(), found[1].rows(), atol=1e-5)


@pytest.mark.parametrize("value", ["csr", "", None, 1, np.str_("adj_t")])
def test_unknown_formats_are_refused(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"edge_format: expected one of .'edge_index', 'adj_t'., got"):
        NeighborLoader(make_dataset(GRAPHS["homogeneous"], "in"), [2], SEEDS, edge_format=value)


def test_pygs_data_have_their_own_form() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(InvalidArgumentError, match="edge_format: expected none with PyG's data"):
        NeighborLoader(data, [2], edge_format="adj_t")
    with pytest.raises(InvalidArgumentError, match="edge_format: expected 'edge_index' in this form"):
        GltSubGraphLoader(make_dataset(GRAPHS["homogeneous"], "in"), SEEDS, edge_format="adj_t")


@pytest.mark.parametrize("other", [{"as_pyg_v1": True}, {"static_shapes": True}])
def test_forms_that_have_no_matrix_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="edge_format: expected 'edge_index' with"):
        NeighborLoader(make_dataset(GRAPHS["homogeneous"], "in"), [2], SEEDS, edge_format="adj_t", **other)


# --- the operator --------------------------------------------------------------------------------------------------


def compress(edges: Any, num_cols: int, ids: Any = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    offsets, rows, edge_ids = _C.compress_edges(torch.as_tensor(edges), ids, num_cols)
    return to_tensor(offsets), to_tensor(rows), to_optional_tensor(edge_ids)


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("num_edges", [0, 1, 7, 5000])
def test_edges_of_one_node_are_sorted_and_equal_ones_stay_in_order(num_edges: int, with_ids: bool) -> None:
    generator = torch.Generator().manual_seed(num_edges)
    cols = torch.randint(0, 20, (num_edges,), generator=generator).sort().values
    rows = torch.randint(0, 30, (num_edges,), generator=generator)
    edges, ids = torch.stack([rows, cols]), torch.arange(num_edges) + 100
    offsets, sources, edge_ids = compress(edges, 25, ids if with_ids else None)
    _, wanted, wanted_ids = expected(edges, ids)
    assert torch.equal(offsets.long().diff(), torch.bincount(cols, minlength=25))
    assert int(offsets[0]) == 0
    assert torch.equal(sources.long(), wanted)
    assert edge_ids is None if not with_ids else torch.equal(edge_ids, wanted_ids)


def test_it_is_the_same_where_a_gpu_has_the_edges() -> None:
    """By other operations, which run on the host as well."""
    generator = torch.Generator().manual_seed(3)
    cols = torch.randint(0, 20, (400,), generator=generator).sort().values
    edges, ids = torch.stack([torch.randint(0, 300, (400,), generator=generator), cols]), torch.arange(400)
    for with_ids in (ids, None):
        offsets, rows, edge_ids = compress(edges, 25, with_ids)
        there, ids_there = adjacency._compressed_there(edges, with_ids, 25)
        assert torch.equal(there.offsets, offsets)
        assert there.offsets.dtype is there.rows.dtype is torch.int32
        assert torch.equal(there.rows, rows)
        assert (edge_ids is None and ids_there is None) or torch.equal(edge_ids, ids_there)
        assert torch.equal(there.cols(), cols)


@pytest.mark.parametrize(
    ("edges", "num_cols", "what"),
    [
        ([[0, 0], [1, 0]], 2, "expected ascending targets"),
        ([[0], [2]], 2, "expected ascending targets"),
        ([[0], [-1]], 2, "expected ascending targets"),
        ([[-1], [0]], 2, "expected sources"),
        ([[1 << 31], [0]], 2, "expected sources"),
        ([0, 1], 2, r"expected int64 \[2, edges\]"),
        ([[0], [0]], -1, "expected at most"),
        ([[0], [0]], 1 << 31, "expected at most"),
    ],
)
def test_what_is_no_batch_is_refused(edges: Any, num_cols: int, what: str) -> None:
    with pytest.raises(InvalidArgumentError, match=what):
        compress(edges, num_cols)
    with pytest.raises(InvalidArgumentError, match="edge_ids"):
        compress([[0], [0]], 1, torch.arange(2))


# --- on its way to a device ----------------------------------------------------------------------------------------


def test_a_matrix_is_copied_by_its_parts() -> None:
    _, compressed = open_both(GRAPHS["homogeneous"], "in", "nodes")
    batch = next(iter(compressed))
    changed: list[tuple[int, ...]] = []

    def change(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.layout is torch.strided  # no other can be pinned
        changed.append(tuple(tensor.shape))
        return tensor.clone()

    before = batch.adj_t
    moved = device_copies._apply_once(batch, change)
    assert moved.adj_t is not before
    assert torch.equal(moved.adj_t.to_dense(), before.to_dense())
    # x, y, n_id (node), input_id, e_id (edge), edge_attr, and three of the matrix
    assert len(changed) == len({id(tensor) for tensor in device_copies._tensors(device_copies._values(moved))}) == 9
    assert all(tensor.layout is torch.strided for tensor in device_copies._tensors(device_copies._values(moved)))


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_device_is_sent_the_parts_of_a_matrix(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes it of them: batches are the same. Here the host stands for it."""
    _, plain = open_both(GRAPHS[graph], "in", "nodes")
    _, loader = open_both(GRAPHS[graph], "in", "nodes")
    sent: list[CompressedEdges] = []

    def begin(batch: Any) -> device_copies.Copy:
        values = device_copies._values(batch)
        sent.extend(value for value in values if isinstance(value, CompressedEdges))
        return device_copies.Copy(device_copies._apply_once(batch, torch.clone, is_there=True))

    monkeypatch.setattr(loader._copies, "_stream", object())
    monkeypatch.setattr(loader._copies, "begin", begin)
    monkeypatch.setattr(loader._copies, "finish", lambda copy: copy.batch)
    for found, batch in zip(loader, plain, strict=True):
        for one, other in zip(found.edge_stores, batch.edge_stores, strict=True):
            assert torch.equal(one.adj_t.to_dense(), other.adj_t.to_dense())
            assert torch.equal(one.adj_t.col_indices(), other.adj_t.col_indices())
    assert all(tensor.dtype == torch.int32 for edges in sent for tensor in edges.tensors)
    assert len(sent) == len(plain) * len(batch.edge_stores)
