"""Batches that arrive on a GPU, copied on a stream of their own while the GPU works on the ones before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from graphlearn_dist.core import pooled_empty
from graphlearn_dist.data import Dataset
from graphlearn_dist.data.device.device_copies import DeviceCopies
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.loader import NeighborLoader
from tests.support.gpu import GPU, needs_gpu
from tests.support.processes import run_processes

pytestmark = needs_gpu
HERE = "tests.gpu.test_gpu_loaders"
DEADLINE_S = 120.0  # only ever reached by a hang
NUM_NODES = 4000
SETTINGS: dict[str, Any] = {"batch_size": 100, "shuffle": True, "with_edge": True}


def make_data(mode: str = "CPU", **features: Any) -> Dataset:
    dataset = Dataset()
    edges = torch.randint(0, NUM_NODES, (2, 20 * NUM_NODES), generator=torch.Generator().manual_seed(3))
    dataset.init_graph(edges, num_nodes=NUM_NODES, graph_mode=mode, device=None if mode == "CPU" else 0)
    dataset.init_node_features(torch.randn(NUM_NODES, 200, generator=torch.Generator().manual_seed(4)), **features)
    return dataset


def train_on(loader: Any) -> list[dict[str, torch.Tensor]]:
    """What an epoch's batches hold, read by the GPU after work that keeps it busy while the host runs ahead."""
    weights, seen = torch.ones(2000, 2000, device=GPU), []
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for batch in loader:
            for _ in range(5):
                weights = (weights @ weights).clamp(max=1.0)
            tensors = {key: value for key, value in batch.to_dict().items() if isinstance(value, torch.Tensor)}
            assert all(value.device == GPU for value in tensors.values())
            seen.append({key: value.clone() for key, value in tensors.items()})
            del batch, tensors  # its memory may be used for a batch to come, once the stream is done with it
    torch.cuda.synchronize()
    return seen


def assert_epochs(loader: Any) -> None:
    oracle = NeighborLoader(make_data(), [5, 3], torch.arange(NUM_NODES), **SETTINGS)
    for _ in range(2):
        for found, expected in zip(train_on(loader), oracle, strict=True):
            for key, value in found.items():
                assert torch.equal(value.cpu(), expected[key]), key


def test_pooled_memory_is_copied_from_where_it_lies() -> None:
    """And is not used again before the copy is done, however far the host runs ahead."""
    copies, numel = DeviceCopies(GPU), 4 << 20
    weights, moved = torch.ones(4000, 4000, device=GPU), []
    for number in range(40):
        received = pooled_empty((numel,), torch.float32).fill_(number)
        assert received.is_pinned()
        for _ in range(3):
            weights = (weights @ weights).clamp(max=1.0)
        moved.append(copies.begin(Data(x=received)))
        del received
    for number, copy in enumerate(moved):
        assert torch.equal(copies.finish(copy).x, torch.full((numel,), float(number), device=GPU))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_local_batches_arrive(prefetch: int) -> None:
    nodes = torch.arange(NUM_NODES)
    assert_epochs(NeighborLoader(make_data(), [5, 3], nodes, device=GPU, prefetch=prefetch, **SETTINGS))


@pytest.mark.parametrize("graph_mode", ["CPU", "CUDA"])
def test_matrices_arrive(graph_mode: str) -> None:
    """Made on the host, and where the GPU samples there."""
    data, nodes = make_data(), torch.arange(NUM_NODES)
    edges = torch.randint(0, NUM_NODES, (2, 20 * NUM_NODES), generator=torch.Generator().manual_seed(3))
    data.init_graph(edges, num_nodes=NUM_NODES, graph_mode=graph_mode, device=None if graph_mode == "CPU" else 0)
    loader = NeighborLoader(data, [5, 3], nodes, device=GPU, edge_format="adj_t", **SETTINGS)
    oracle = NeighborLoader(make_data(), [5, 3], nodes, edge_format="adj_t", **SETTINGS)
    for batch, expected in zip(loader, oracle, strict=True):
        assert batch.adj_t.device == GPU
        assert torch.equal(batch.e_id.cpu(), expected.e_id)
        assert torch.equal(batch.adj_t.crow_indices().cpu(), expected.adj_t.crow_indices())
        assert torch.equal(batch.adj_t.col_indices().cpu(), expected.adj_t.col_indices())
        product = batch.adj_t @ batch.x
        torch.testing.assert_close(product.cpu(), expected.adj_t @ expected.x, rtol=1e-4, atol=1e-4)


def sampled_on_gpu(table: torch.Tensor | None = None, *, gpu: bool = True) -> Dataset:
    """All of the data on the GPU, and labels; rows of features by a table. The same on the host without ``gpu``."""
    dataset, draw = Dataset(), torch.Generator().manual_seed(3)
    edges = torch.randint(0, NUM_NODES, (2, 20 * NUM_NODES), generator=draw)
    place: dict[str, Any] = {"graph_mode": "CUDA", "device": 0} if gpu else {"graph_mode": "CPU"}
    dataset.init_graph(edges, num_nodes=NUM_NODES, **place)
    hot: dict[str, Any] = {"split_ratio": 0.5, "device": 0} if gpu else {}
    dataset.init_node_features(torch.randn(NUM_NODES, 20, generator=draw), table, **hot)
    dataset.init_node_labels(torch.arange(NUM_NODES))
    return dataset


def test_nobody_waits_for_a_batch_but_for_its_counters() -> None:
    loader = NeighborLoader(
        sampled_on_gpu(), [5, 3], torch.arange(NUM_NODES), prefetch=0, **{**SETTINGS, "with_edge": False}
    )
    epoch = iter(loader)
    next(epoch)  # what is made once
    torch.cuda.set_sync_debug_mode("error")  # torch refuses copies that wait, and reads of numbers
    try:
        for _ in range(10):
            next(epoch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_own_filter_reads_rows_that_are_there(prefetch: int) -> None:
    """Background threads hand it what the GPU may still be making, on a stream of theirs."""

    class Filtered(NeighborLoader):
        def filter_fn(self, out: Any) -> Any:
            batch = super().filter_fn(out)
            batch.x = batch.x * 2
            return batch

    settings = {**SETTINGS, "with_edge": False, "prefetch": prefetch}
    loader = Filtered(sampled_on_gpu(), [5, 3], torch.arange(NUM_NODES), **settings)
    oracle = NeighborLoader(sampled_on_gpu(gpu=False), [5, 3], torch.arange(NUM_NODES), **settings)
    for found, expected in zip(train_on(loader), oracle, strict=True):
        assert torch.equal(found["n_id"].cpu(), expected.n_id)
        assert torch.equal(found["x"].cpu(), expected.x * 2)


def checksum(batch: Any) -> torch.Tensor:
    """Numbers that change with every node, edge and bit of a row of a batch, int64 ``[3]``, where it lies."""
    places = torch.arange(1, batch.n_id.numel() + 1, device=batch.n_id.device)
    sources, targets = batch.edge_index
    edges = torch.arange(1, sources.numel() + 1, device=sources.device)
    rows = batch.x.view(torch.int32).long().sum(dim=1)
    sums = (batch.n_id * places).sum(), ((sources * 31 + targets * 17) * edges).sum(), (rows * places).sum()
    return torch.stack(sums)


def test_ten_thousand_batches_have_the_checksums_of_the_cpu() -> None:
    """Read on another stream than they are made on, beside other work, while the host runs ahead."""
    settings = {"batch_size": 64, "shuffle": True, "seed": 6}
    nodes, found, weights = torch.arange(NUM_NODES), [], torch.ones(500, 500, device=GPU)
    device = NeighborLoader(sampled_on_gpu(), [4, 3], nodes, prefetch=2, **settings)
    host = NeighborLoader(sampled_on_gpu(gpu=False), [4, 3], nodes, prefetch=2, **settings)
    num_epochs = -(-10_000 // len(device))
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        for _ in range(num_epochs):
            for batch in device:
                weights = (weights @ weights).clamp(max=1.0)
                found.append(checksum(batch))
    expected = torch.stack([checksum(batch) for _ in range(num_epochs) for batch in host])
    torch.cuda.synchronize()
    assert len(expected) >= 10_000
    assert torch.equal(torch.stack(found).cpu(), expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_node_without_a_row_is_told_later(prefetch: int) -> None:
    table = torch.arange(NUM_NODES)
    table[7] = -1
    loader = NeighborLoader(sampled_on_gpu(table), [5, 3], torch.arange(NUM_NODES), prefetch=prefetch, batch_size=100)
    with pytest.raises(UnknownIdError, match=r"batch \d+ of epoch 0: .*: id 7 has no feature row here"):
        list(loader)


def check_modes() -> None:
    data = DistDataset.from_dataset(make_data())
    nodes = torch.arange(NUM_NODES)
    for options in (
        CollocatedDistSamplingWorkerOptions(),
        MpDistSamplingWorkerOptions(num_workers=2),
        MpDistSamplingWorkerOptions(pin_memory=True),
    ):
        settings = {"collect_features": True, "to_device": GPU, "worker_options": options, **SETTINGS}
        with DistNeighborLoader(data, [5, 3], nodes, **settings) as loader:
            assert_epochs(loader)


def test_distributed_batches_arrive() -> None:
    run_processes([(f"{HERE}.check_modes", {})], DEADLINE_S)


def check_modes_of_a_graph_on_the_gpu() -> None:
    nodes = torch.arange(NUM_NODES)
    for mode in ("CUDA", "ZERO_COPY"):
        data = DistDataset.from_dataset(make_data(mode, split_ratio=0.3, hotness="degree"))
        for options in (
            CollocatedDistSamplingWorkerOptions(),
            CollocatedDistSamplingWorkerOptions(prefetch_size=0),
            MpDistSamplingWorkerOptions(num_workers=2),
        ):
            settings = {"collect_features": True, "worker_options": options, **SETTINGS}
            if isinstance(options, MpDistSamplingWorkerOptions):  # whose batches come in host memory
                settings["to_device"] = GPU
            with DistNeighborLoader(data, [5, 3], nodes, **settings) as loader:
                assert_epochs(loader)


def test_distributed_loaders_sample_on_the_gpu() -> None:
    """Processes too, in which CUDA begins after their fork."""
    run_processes([(f"{HERE}.check_modes_of_a_graph_on_the_gpu", {})], DEADLINE_S)
