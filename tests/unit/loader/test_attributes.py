"""All attributes of a data set come along into batches as from PyG's loaders, with the same bits in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader as PygNodeLoader
from torch_geometric.typing import TensorFrame

from graphlearn_dist.data import Dataset, GraphSource
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.pyg_sampler import PyGSampler
from graphlearn_dist.distributed.sampling.batches import PartitionedBatches
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.loader.transform import to_pyg
from graphlearn_dist.partition import load_partition_layout, partition_pyg, verify
from graphlearn_dist.sampler import NodeSamplerInput
from tests.distributed.test_oracle import make_all
from tests.support.direct_peers import DirectPeers
from tests.support.graphs import random_edges
from tests.support.jobs import running_servers
from tests.support.oracle import assert_same, load_partitions, pyg_tensors

BUYS, REV = ("user", "buys", "item"), ("item", "rev_buys", "user")


def rows(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Of several dtypes and shapes."""
    draw = torch.Generator().manual_seed(seed)
    return {
        "pos": torch.rand(count, 3, generator=draw, dtype=torch.float64),
        "time": torch.randint(0, 9, (count,), generator=draw),
        "is old": torch.rand(count, generator=draw) < 0.5,
        "image.raw": torch.randint(0, 255, (count, 2, 2), generator=draw, dtype=torch.uint8),
        "half": torch.rand(count, generator=draw).to(torch.bfloat16),
    }


def homogeneous() -> Data:
    edges = random_edges(50, 50, 400, 3)
    data = Data(x=torch.rand(50, 4), edge_index=edges, y=torch.arange(50), edge_attr=torch.rand(400, 2))
    data.edge_weight, data.edge_kind = torch.rand(400), torch.arange(400, dtype=torch.int16)
    for name, values in rows(50, 1).items():
        data[name] = values
    data.train_mask, data.val_mask = torch.arange(50) < 20, torch.arange(50) >= 40
    data.val_masks = torch.rand(50, 10) < 0.5
    data.name, data.scale, data.center, data.levels = "graph", 2.5, torch.tensor([1.0, 2.0]), [1, 2, 3]
    return data


def typed() -> HeteroData:
    data = HeteroData()
    data["user"].x, data["user"].num_nodes, data["item"].num_nodes = torch.rand(30, 2), 30, 20
    for name, values in rows(30, 1).items():
        data["user"][name] = values
    data["item"].price, data["item"].currency = torch.rand(20), "EUR"
    data[BUYS].edge_index, data[REV].edge_index = random_edges(30, 20, 200, 1), random_edges(20, 30, 220, 2)
    data[BUYS].edge_weight, data[REV].stars = torch.rand(200), torch.randint(0, 5, (220, 1))
    data[REV].unit, data.name = [1.0], "shop"
    return data


GRAPHS: dict[str, tuple[Any, Any]] = {"homogeneous": (homogeneous, torch.arange(50)), "typed": (typed, "user")}


def local(name: str, **changes: Any) -> NeighborLoader:
    make, seeds = GRAPHS[name]
    settings: dict[str, Any] = {"batch_size": 9, "shuffle": True, "with_edge": True, "prefetch": 0, **changes}
    return NeighborLoader(GraphSource.from_pyg(make()).to_dataset(), [4, 3], seeds, **settings)


@pytest.mark.parametrize("name", GRAPHS)
def test_batches_have_what_pygs_have(name: str) -> None:
    """PyG's own loader over the same data and a sampler of ours: every attribute that it gives, with its values."""
    torch.manual_seed(0)
    make, seeds = GRAPHS[name]
    data = make()
    dataset = GraphSource.from_pyg(data).to_dataset()
    theirs = PygNodeLoader(data, PyGSampler(dataset, [4, 3], with_edge=True), seeds, batch_size=9)
    for expected in theirs:
        stores = expected.stores
        for store in stores:
            key = getattr(store, "_key", None) if name == "typed" and store is not stores[0] else None
            source = data[key] if key is not None else data
            for attribute in store.keys():  # noqa: SIM118
                assert attribute in source or attribute in NOT_OF_THE_DATA, attribute
    torch.manual_seed(0)
    for batch in NeighborLoader(GraphSource.from_pyg(make()).to_dataset(), [4, 3], seeds, batch_size=9):
        check_rows(data, batch)


NOT_OF_THE_DATA = {
    "n_id", "e_id", "batch", "input_id", "batch_size", "num_nodes", "num_sampled_nodes", "num_sampled_edges",
    "seed_time",
}  # fmt: skip


def check_rows(data: Any, batch: Any) -> None:
    """Every attribute of the data is in the batch: rows of its nodes or edges, or as it is."""
    is_typed = isinstance(data, HeteroData)
    pairs = (
        [(data, batch)] if not is_typed else [(data[key], batch[key]) for key in (*data.node_types, *data.edge_types)]
    )
    for store, found in pairs:
        for name in store.keys():  # noqa: SIM118
            value = store[name]
            if name in ("edge_index", "num_nodes"):
                continue
            if (data if not is_typed else store).is_node_attr(name):
                expected = value[found.n_id]
            elif (data if not is_typed else store).is_edge_attr(name):
                expected = value[found.e_id]
            else:
                expected = value
            if isinstance(expected, torch.Tensor):
                assert found[name].dtype == expected.dtype, name
                assert torch.equal(found[name], expected), name
            else:
                assert found[name] == expected, name
    if is_typed:
        assert batch.name == data.name


def test_all_kinds_of_loaders() -> None:
    torch.manual_seed(0)
    data = homogeneous()
    dataset = GraphSource.from_pyg(data).to_dataset()
    ids = torch.arange(20)
    loaders = [
        LinkNeighborLoader(dataset, [3], edge_label_index=data.edge_index[:, :20], batch_size=6),
        SubGraphLoader(dataset, ids, [3], batch_size=6),
        NeighborLoader(dataset, [3], ids, batch_size=6, disjoint=True),
    ]
    for loader in loaders:
        for batch in loader:
            check_rows(data, batch)


def test_static_shapes_pad_them() -> None:
    torch.manual_seed(0)
    for padded, batch in zip(local("homogeneous", static_shapes=True), reseeded("homogeneous"), strict=True):
        for name in rows(1, 0):
            assert torch.equal(padded[name][padded.node_mask], batch[name])
            assert not padded[name][~padded.node_mask].any()
        assert torch.equal(padded.edge_weight[padded.edge_mask], batch.edge_weight)
        assert padded.name == "graph"


def reseeded(name: str, **changes: Any) -> NeighborLoader:
    torch.manual_seed(0)
    return local(name, **changes)


@pytest.mark.parametrize("num_parts", [1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_partition_directories_hold_them(tmp_path: Path, name: str, num_parts: int) -> None:
    loader, (make, _) = reseeded(name), GRAPHS[name]
    expected = [pyg_tensors(batch) for batch in loader]
    torch.manual_seed(0)
    directory = partition_pyg(make(), tmp_path / "p", num_parts=num_parts)
    assert f"{num_parts} partitions" in verify(directory)
    datasets = load_partitions(directory, num_parts)
    services = [PartitionService(dataset) for dataset in datasets]
    seeds = NodeSamplerInput(torch.arange(50)) if name == "homogeneous" else NodeSamplerInput(torch.arange(30), "user")
    for dataset, service in zip(datasets, services, strict=True):
        batches = PartitionedBatches(dataset, seeds, loader.config, [service], DirectPeers(services))
        for actual, wanted in zip(make_all(batches, 0), expected, strict=True):
            assert_same(pyg_tensors(to_pyg(actual, dataset.schema, dataset.constants)), wanted)


@pytest.mark.parametrize(
    "options", [CollocatedDistSamplingWorkerOptions(), MpDistSamplingWorkerOptions(num_workers=2)], ids=["here", "mp"]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_distributed_loaders_give_them(name: str, options: Any) -> None:
    loader = reseeded(name)
    far = DistNeighborLoader(
        DistDataset.from_dataset(loader.data), [4, 3], GRAPHS[name][1], 9, True, with_edge=True, edge_dir="in",
        collect_features=True, worker_options=options,
    )  # fmt: skip
    with far:
        for actual, wanted in zip(far, loader, strict=True):
            assert_same(pyg_tensors(actual), pyg_tensors(wanted))


@pytest.mark.parametrize("name", GRAPHS)
def test_servers_give_them(tmp_path: Path, name: str) -> None:
    loader, (make, seeds) = reseeded(name), GRAPHS[name]
    expected = [pyg_tensors(batch) for batch in loader]
    torch.manual_seed(0)
    directory = partition_pyg(make(), tmp_path / "p", num_parts=2)
    with running_servers(directory, directory) as job, job.client():
        options = RemoteDistSamplingWorkerOptions([0, 1], buffer_size="16MB")
        with DistNeighborLoader(
            None, [4, 3], seeds, 9, True, with_edge=True, edge_dir="in", collect_features=True, worker_options=options
        ) as far:
            for actual, wanted in zip(far, expected, strict=True):
                assert_same(pyg_tensors(actual), wanted)


def test_they_go_to_other_processes() -> None:
    dataset = reseeded("typed").data
    for again in (
        type(dataset).from_ipc_handle(dataset.share_ipc()),
        DistDataset.from_ipc_handle(DistDataset.from_dataset(dataset).share_ipc()),
    ):
        assert again.node_attrs.keys() == dataset.node_attrs.keys()
        assert torch.equal(again.node_attrs["user"]["pos"], dataset.node_attrs["user"]["pos"])
        assert torch.equal(again.edge_attrs[REV]["stars"], dataset.edge_attrs[REV]["stars"])
        assert again.constants == dataset.constants


def test_which_of_them_come_along() -> None:
    torch.manual_seed(0)
    dataset = GraphSource.from_pyg(homogeneous(), attrs=["x", "pos", "edge_weight"]).to_dataset()
    batch = next(iter(NeighborLoader(dataset, [2], torch.arange(5), batch_size=5)))
    assert {"x", "pos", "edge_weight"} <= set(batch.keys())
    assert not {"time", "train_mask", "name"} & set(batch.keys())
    assert dataset.train_idx is not None
    with pytest.raises(InvalidArgumentError, match="attrs: no attribute 'cost'"):
        GraphSource.from_pyg(homogeneous(), attrs=["cost"])


def test_what_cannot_come_along_is_refused(tmp_path: Path) -> None:
    data = homogeneous()
    data.labels = ["a"] * 50
    with pytest.raises(InvalidArgumentError, match=r"data.labels: expected .* attrs= names"):
        GraphSource.from_pyg(data)

    class Frame(TensorFrame):  # type: ignore[misc]
        """As PyG knows one where torch-frame is not installed."""

        __init__ = object.__init__

        def __len__(self) -> int:
            return 50

    data.labels = Frame()
    with pytest.raises(InvalidArgumentError, match=r"data.labels: expected a tensor .*, got Frame; attrs= names"):
        GraphSource.from_pyg(data)
    assert GraphSource.from_pyg(data, attrs=["x"]).node_attrs == {}
    data = homogeneous()
    data.maker = object()
    assert GraphSource.from_pyg(data).to_dataset().constants[None]["maker"] is data.maker
    with pytest.raises(InvalidArgumentError, match="constants: maker: expected a tensor"):
        partition_pyg(data, tmp_path / "p", num_parts=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_a_number_without_dimensions(dtype: torch.dtype, tmp_path: Path) -> None:
    data = homogeneous()
    data.scale = torch.tensor(1.5).to(dtype)
    layout = load_partition_layout(partition_pyg(data, tmp_path / "p", num_parts=2), verify=True)
    found = layout.constants[None]["scale"]
    assert (found.dtype, found.shape) == (dtype, ())
    assert torch.equal(found, data.scale)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda count: [str(node) for node in range(count)], r"got \['0', '1', .*list"),
        (lambda count: np.array(["a"] * count), "got array.*numpy.str_"),
        (lambda count: np.array([None] * count), "got array.*numpy.object_"),
        (lambda count: torch.eye(count).to_sparse_csr(), r"got tensor.*index_select"),
    ],
    ids=["list", "texts", "objects", "csr"],
)
def test_what_has_no_rows_is_named(make: Any, got: str) -> None:
    data = homogeneous()
    data.names = make(50)
    with pytest.raises(InvalidArgumentError, match=f"^data: 'names': expected a dense tensor or .*{got}"):
        next(iter(NeighborLoader(data, [2], torch.arange(4))))
    data = typed()
    data["item"].names = make(20)
    with pytest.raises(InvalidArgumentError, match=f"^data: 'names' of item: expected a dense tensor .*{got}"):
        next(iter(NeighborLoader(data, [2], "user")))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64])
def test_dtypes_that_the_core_only_moves(dtype: torch.dtype) -> None:
    rows = torch.arange(12.0).view(4, 3).to(dtype)
    data = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), x=rows, num_nodes=4)
    dataset = Dataset(edge_dir="in")
    dataset.init_graph(data.edge_index)
    dataset.init_node_features(rows, dtype=None)
    for given in (data, dataset):
        batch = next(iter(NeighborLoader(given, [1], torch.tensor([2, 0]), batch_size=2)))
        assert batch.x.dtype == dtype
        assert torch.equal(batch.x.view(torch.uint8), rows.view(torch.uint8)[batch.n_id])
