"""Every public door that takes tensors takes each kind for its numbers, or refuses it by the argument's name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data

from graphlearn_dist.data import Dataset, Feature, Graph, Topology, UnifiedTensor
from graphlearn_dist.data.sources import GraphSource
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.dist_server import DistServer
from graphlearn_dist.errors import GraphLearnError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.partition import (
    GLTPartitionBook,
    RandomPartitioner,
    RangePartitionBook,
    TablePartitionBook,
    TablePartitioner,
    load_partition_layout,
)
from graphlearn_dist.sampler import EdgeSamplerInput, NegativeSampling, NeighborSampler, NodeSamplerInput
from graphlearn_dist.typing import Split

A = torch.tensor
EDGES = A([[0, 0, 1, 2, 3, 3], [1, 2, 2, 3, 0, 1]])
IDS = A([3, 0, 2, 1])
OFFSETS = A([0, 2, 3, 4, 6])
ROWS = torch.arange(8.0).view(4, 2)
PER_EDGE = A([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
TIMES = A([1, 2, 3, 4, 5, 6])
MASK = A([True, False, True, True])


class Named(torch.Tensor):
    """A subclass over memory of its own."""


class Wrapper(torch.Tensor):
    """A subclass without memory, which says nothing of what it wraps."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError("nothing can be asked of it")


class OnGpu(torch.Tensor):
    """Numbers on a GPU, as far as a machine without one can tell: they can be copied to the host, and that is all."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device="cuda:0")  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and torch.device(kwargs["device"]).type == "cpu":
            return args[0].inner.clone()
        if func is torch.ops.aten.select.int:  # its rows lie where it lies
            return cls(args[0].inner.select(*args[1:]))
        raise NotImplementedError(f"{func} of a tensor that was not copied to the host")


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with others between them."""
    wide = torch.stack([tensor, tensor], -1)
    assert not wide[..., 0].is_contiguous()
    return wide[..., 0]


TAKEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "parameter": lambda t: torch.nn.Parameter(t.clone(), requires_grad=t.is_floating_point()),
    "subclass": lambda t: t.clone().as_subclass(Named),
    "not contiguous": spread,
    "on a GPU": OnGpu,
}
REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "wrapper": Wrapper,
    "meta": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "complex": lambda t: t.to(torch.complex64),
}
NOT_IDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "bool": lambda t: t.to(torch.bool),
    "float": lambda t: t.to(torch.float32),
}


def dataset(*, timed: bool = False) -> Dataset:
    made = Dataset(edge_dir="in")
    made.init_graph(EDGES, edge_times=TIMES if timed else None)
    made.init_node_features(ROWS)
    made.init_node_labels(IDS)
    return made


def graph_of(**arguments: Any) -> Any:
    made = Dataset(edge_dir="in")
    made.init_graph(**{"edge_index": EDGES, **arguments})
    return list(made.graph.topo.to_coo())


def split(ids: Any) -> Any:
    made = dataset()
    made.init_node_split((ids, None, None))
    return [batch.n_id for batch in NeighborLoader(made, [1], Split.train)]


def batches(loader: Any) -> Any:
    return [batch.edge_index for batch in loader]


def links(**arguments: Any) -> Any:
    timed = dataset(timed="edge_label_time" in arguments)
    loader = LinkNeighborLoader(timed, [2], **{"edge_label_index": EDGES, "batch_size": 3, **arguments})
    names = ("edge_index", "edge_label_index", "edge_label", "edge_label_time", "dst_neg_index")
    return [[batch.get(name) for name in names] for batch in loader]


def partitioned(**arguments: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "p"
        RandomPartitioner(root, 1, 4, **{"edge_index": EDGES, "edge_feat_dtype": None, **arguments}).partition()
        loaded = DistDataset()
        loaded.load(root, 0)
        stores = {name: store[torch.arange(store.size(0))] for name, store in sorted(loaded.stores().items())}
        found = list(loaded.graph.topo.to_coo()), stores, loaded.train_idx, load_partition_layout(root).num_parts
        return [part.clone() for part in flat(found)]


def table(owners: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "p"
        TablePartitioner(root, 4, 4, EDGES, node_owners=owners).partition()
        return load_partition_layout(root).node_book(None, 0)[IDS]


def served(name: str) -> Callable[[Any], Any]:
    server = object.__new__(DistServer)
    server.dataset = DistDataset.from_dataset(dataset())
    return lambda ids: getattr(server, name)(None, ids)


def unified(rows: Any) -> Any:
    tensor = UnifiedTensor()
    tensor.init_from([rows], [-1])
    return tensor[IDS]


def pyg(data: Any) -> Any:
    made = GraphSource.from_pyg(data).to_dataset()
    return list(made.graph.topo.to_coo()), made.node_features[IDS], made.node_labels


def sampler() -> NeighborSampler:
    return NeighborSampler(dataset().graph, [2], edge_dir="in")


def weighted(weight: Any) -> Any:
    return links(neg_sampling=NegativeSampling("triplet", 1, weight))


@dataclass(frozen=True)
class Door:
    """One argument: its name in errors (or one of several), what it is given, and what comes of it."""

    argument: str
    good: torch.Tensor
    call: Callable[[Any], Any]
    of_ids: bool = False
    takes_arrays: bool = False


DOORS: dict[str, Door] = {
    "Topology coo": Door("edge_index", EDGES, lambda t: Topology(t).to_coo(), of_ids=True, takes_arrays=True),
    "Topology csr": Door(
        "edge_index", OFFSETS, lambda t: Topology((t, EDGES[1]), input_layout="CSR").to_coo(), of_ids=True
    ),
    "Topology edge_ids": Door("edge_ids", TIMES, lambda t: Topology(EDGES, t).to_coo(), of_ids=True, takes_arrays=True),
    "Topology edge_weights": Door("edge_weights", PER_EDGE, lambda t: Topology(EDGES, edge_weights=t).to_coo()),
    "Topology edge_times": Door("edge_times", TIMES, lambda t: Topology(EDGES, edge_times=t).edge_times, of_ids=True),
    "Graph": Door("edge_index", EDGES, lambda t: Graph(Topology(t)).export_topology()[1], of_ids=True),
    "init_graph edge_index": Door(
        "edge_index", EDGES, lambda t: graph_of(edge_index=t), of_ids=True, takes_arrays=True
    ),
    "init_graph pair": Door("edge_index", EDGES[0], lambda t: graph_of(edge_index=(t, EDGES[1])), of_ids=True),
    "init_graph edge_ids": Door("edge_ids", TIMES, lambda t: graph_of(edge_ids=t), of_ids=True, takes_arrays=True),
    "init_graph edge_weights": Door("edge_weights", PER_EDGE, lambda t: graph_of(edge_weights=t), takes_arrays=True),
    "init_graph edge_times": Door("edge_times", TIMES, lambda t: graph_of(edge_times=t), of_ids=True),
    "init_graph node_times": Door("node_times", IDS, lambda t: graph_of(node_times=t), of_ids=True),
    "init_node_features": Door(
        "node_feature_data",
        ROWS,
        lambda t: (made := dataset(), made.init_node_features(t), made.node_features[IDS])[2],
        takes_arrays=True,
    ),
    "init_edge_features": Door(
        "edge_feature_data",
        PER_EDGE,
        lambda t: (made := dataset(), made.init_edge_features(t), made.edge_features[IDS])[2],
        takes_arrays=True,
    ),
    "init_node_labels": Door(
        "node_label_data",
        IDS,
        lambda t: (
            made := dataset(),
            made.init_node_labels(t),
            [batch.y for batch in NeighborLoader(made, [2], IDS)],
        )[2],
        takes_arrays=True,
    ),
    "init_node_split": Door("train split|node_split", IDS, split, of_ids=True, takes_arrays=True),
    "Feature rows": Door("feature_tensor", ROWS, lambda t: Feature(t)[IDS], takes_arrays=True),
    "Feature id2index": Door("id2index", IDS, lambda t: Feature(ROWS, t)[A([0, 1, 2, 3])], of_ids=True),
    "Feature ids": Door("ids", IDS, lambda t: Feature(ROWS)[t], of_ids=True),
    "Feature cpu_get": Door("ids", IDS, lambda t: Feature(ROWS, IDS).cpu_get(t), of_ids=True),
    "UnifiedTensor rows": Door("tensor", ROWS, unified),
    "UnifiedTensor ids": Door("ids", IDS, lambda t: unified_of_rows()[t], of_ids=True),
    "from_pyg edge_index": Door("edge_index", EDGES, lambda t: pyg(Data(ROWS, t, y=IDS)), of_ids=True),
    "from_pyg x": Door("x", ROWS, lambda t: pyg(Data(t, EDGES, y=IDS, num_nodes=4))),
    "from_pyg y": Door("y", IDS, lambda t: pyg(Data(ROWS, EDGES, y=t))),
    "input_nodes": Door("input_nodes", IDS, lambda t: batches(NeighborLoader(dataset(), [2], t)), of_ids=True),
    "input_nodes of subgraphs": Door(
        "input_nodes", IDS, lambda t: batches(SubGraphLoader(dataset(), t, [2])), of_ids=True
    ),
    "input_time": Door(
        "input_time",
        A([6, 5, 4, 3]),
        lambda t: batches(NeighborLoader(dataset(timed=True), [2], IDS, input_time=t)),
        of_ids=True,
    ),
    "edge_label_index": Door("edge_label_index", EDGES, lambda t: links(edge_label_index=t), of_ids=True),
    "edge_label_index pair": Door(
        "edge_label_index", EDGES[0], lambda t: links(edge_label_index=(t, EDGES[1])), of_ids=True
    ),
    "edge_label": Door("edge_label", PER_EDGE, lambda t: links(edge_label=t)),
    "edge_label_time": Door("edge_label_time", TIMES, lambda t: links(edge_label_time=t), of_ids=True),
    "NegativeSampling weight": Door("weight", A([1.0, 2.0, 3.0, 4.0]), weighted),
    "sample_from_nodes": Door(
        "node", IDS, lambda t: sampler().sample_from_nodes(NodeSamplerInput(t)).node, of_ids=True
    ),
    "sample_from_edges": Door(
        "row|edge_label_index",
        EDGES[0],
        lambda t: sampler().sample_from_edges(EdgeSamplerInput(t, EDGES[1])).node,
        of_ids=True,
    ),
    "subgraph": Door("node", IDS, lambda t: sampler().subgraph(NodeSamplerInput(t)).row, of_ids=True),
    "sample_one_hop": Door("input_seeds", IDS, lambda t: sampler().sample_one_hop(t, 2).nbr, of_ids=True),
    "sample_prob": Door("node", IDS, lambda t: sampler().sample_prob(NodeSamplerInput(t), 4), of_ids=True),
    "Inducer": Door("seeds", IDS, lambda t: sampler().create_inducer(4).init_node(t), of_ids=True),
    "partitioner edge_index": Door("edge_index", EDGES, lambda t: partitioned(edge_index=t), of_ids=True),
    "partitioner node_feat": Door("node_feat", ROWS, lambda t: partitioned(node_feat=t), takes_arrays=True),
    "partitioner node_labels": Door("node_labels", IDS, lambda t: partitioned(node_labels=t), takes_arrays=True),
    "partitioner edge_feat": Door("edge_feat", PER_EDGE, lambda t: partitioned(edge_feat=t), takes_arrays=True),
    "partitioner edge_weights": Door("edge_weights", PER_EDGE, lambda t: partitioned(edge_weights=t)),
    "partitioner edge_ids": Door("edge_ids", TIMES, lambda t: partitioned(edge_ids=t), of_ids=True),
    "partitioner node_times": Door("node_times", IDS, lambda t: partitioned(node_times=t), of_ids=True),
    "partitioner node_split": Door("node_split", IDS, lambda t: partitioned(node_split=(t, None, None)), of_ids=True),
    "TablePartitioner": Door("node_owners", IDS, table, of_ids=True),
    "TablePartitionBook": Door("owners", IDS, lambda t: TablePartitionBook.from_owners(t, 4)[IDS], of_ids=True),
    "GLTPartitionBook": Door("data", IDS, lambda t: GLTPartitionBook(t)[IDS]),
    "PartitionBook ids": Door("ids", IDS, lambda t: RangePartitionBook.near_equal(4, 2)[t], of_ids=True),
    "server node_feature": Door("ids", IDS, served("get_node_feature"), of_ids=True),
    "server node_label": Door("index", IDS, served("get_node_label"), of_ids=True),
    "server node_partition_id": Door("index", IDS, served("get_node_partition_id"), of_ids=True),
}


def unified_of_rows() -> UnifiedTensor:
    tensor = UnifiedTensor()
    tensor.append_cpu_tensor(ROWS)
    return tensor


@pytest.mark.parametrize(
    "append", [UnifiedTensor.append_cpu_tensor, lambda tensor, rows: tensor.init_from([rows], [-1])]
)
def test_pieces_for_the_host_come_from_a_gpu_to_host_memory(
    append: Callable[[UnifiedTensor, torch.Tensor], None],
) -> None:
    tensor = UnifiedTensor()
    append(tensor, OnGpu(ROWS))
    (part,) = tensor.parts
    assert (type(part), part.device.type, tensor.is_on_gpu) == (torch.Tensor, "cpu", False)
    assert torch.equal(tensor[IDS], ROWS[IDS])


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in flat(part)]
    return [value] if isinstance(value, torch.Tensor) else []


def check_taken(door: Door, given: Any) -> None:
    expected, found = flat(door.call(door.good)), flat(door.call(given))
    assert len(expected) == len(found) > 0
    for one, other in zip(expected, found, strict=True):
        assert type(other) is torch.Tensor
        assert not other.requires_grad
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def check_refused(door: Door, given: Any) -> None:
    with pytest.raises(GraphLearnError) as caught:
        door.call(given)
    assert any(name in str(caught.value) for name in door.argument.split("|")), caught.value


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("name", DOORS)
def test_what_has_numbers_is_taken_for_them(name: str, kind: str) -> None:
    if kind == "on a GPU" and name in ("Feature ids", "UnifiedTensor ids", "UnifiedTensor rows"):
        pytest.skip("they stay on the GPU, which needs one")
    check_taken(DOORS[name], TAKEN[kind](DOORS[name].good))


def of_pyg(loader: Any, **arguments: Any) -> Any:
    data = Data(ROWS, EDGES, y=IDS, time=TIMES[:4])
    names = ("n_id", "edge_index", "edge_label_index", "edge_label", "edge_label_time", "seed_time", "input_id")
    made = loader(data, [2], batch_size=2, seed=1, prefetch=0, **arguments)
    return [[batch.get(name) for name in names] for batch in made]


@pytest.mark.parametrize(
    ("loader", "others", "name", "given"),
    [
        (NeighborLoader, {}, "input_nodes", IDS),
        (NeighborLoader, {}, "input_nodes", MASK),
        (NeighborLoader, {"time_attr": "time", "input_nodes": IDS}, "input_time", IDS + 4),
        (NeighborLoader, {"input_nodes": IDS}, "input_id", IDS + 7),
        (LinkNeighborLoader, {}, "edge_label_index", EDGES),
        (LinkNeighborLoader, {"edge_label_index": EDGES}, "edge_label", TIMES),
        (LinkNeighborLoader, {"edge_label_index": EDGES, "time_attr": "time"}, "edge_label_time", TIMES),
    ],
)
def test_seeds_and_links_of_pyg_on_a_gpu(loader: Any, others: Any, name: str, given: torch.Tensor) -> None:
    found, expected = (flat(of_pyg(loader, **others, **{name: one})) for one in (OnGpu(given), given))
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", DOORS)
def test_what_has_none_is_refused_by_name(name: str, kind: str) -> None:
    door = DOORS[name]
    if kind == "complex" and not door.of_ids:
        pytest.skip("complex numbers are numbers")
    check_refused(door, REFUSED[kind](door.good))


@pytest.mark.parametrize("kind", NOT_IDS)
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.of_ids])
def test_what_is_no_id_is_refused_by_name(name: str, kind: str) -> None:
    if kind == "bool" and name.startswith(("input_nodes", "PartitionBook")):
        pytest.skip("a mask")
    check_refused(DOORS[name], NOT_IDS[kind](DOORS[name].good))


@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.of_ids])
def test_subclasses_of_pyg_are_the_tensors_that_they_stand_for(name: str) -> None:
    good = DOORS[name].good
    check_taken(DOORS[name], EdgeIndex(good) if good.dim() == 2 else Index(good))


@pytest.mark.parametrize("make", [lambda a: a[..., ::-1].copy()[..., ::-1], lambda a: a.astype(a.dtype.newbyteorder())])
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.takes_arrays])
def test_arrays_of_any_strides_and_byte_order_are_taken(name: str, make: Callable[[Any], Any]) -> None:
    check_taken(DOORS[name], make(DOORS[name].good.numpy()))


@pytest.mark.parametrize(
    "mask", [MASK.clone().as_subclass(Named), spread(MASK), torch.nn.Parameter(MASK, False), OnGpu(MASK)]
)
def test_masks(mask: torch.Tensor) -> None:
    expected = batches(NeighborLoader(dataset(), [2], MASK))
    assert all(map(torch.equal, batches(NeighborLoader(dataset(), [2], mask)), expected))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_mask_without_numbers(kind: str) -> None:
    if kind == "complex":
        pytest.skip("no mask")
    with pytest.raises(GraphLearnError, match="input_nodes"):
        NeighborLoader(dataset(), [2], REFUSED[kind](MASK))


def test_the_core_itself_refuses_tensors_without_memory() -> None:
    from graphlearn_dist import _C
    from graphlearn_dist.core import thread_pool

    for row in (Index(EDGES[0]), np.empty(0)):
        with pytest.raises((GraphLearnError, TypeError)):
            _C.build_csr(row, EDGES[1], None, 4, 4, thread_pool(1), None, None)
