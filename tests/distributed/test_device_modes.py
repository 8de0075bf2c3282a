"""Distributed loaders of graphs on a device: its kernels sample, whatever the mode, and the batches are the oracle's.

The device is the host, which runs the kernels' bodies; ``tests/gpu`` has the same on a GPU.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistDataset,
    DistNeighborLoader,
    MpDistSamplingWorkerOptions,
)
from graphlearn_dist.distributed.sampling import batches as sampling_batches
from graphlearn_dist.distributed.sampling.batches import tell_where_sampled
from graphlearn_dist.distributed.workers.fork_server import hold_fork_server
from graphlearn_dist.errors import InvalidArgumentError, UnknownIdError
from graphlearn_dist.utils.device_exchange import Reading
from tests.support.graphs import Direction, make_dataset, random_graph
from tests.support.oracle import SAMPLINGS, compare_epochs, graph_of, open_loader, oracle_epochs, orders_of
from tests.support.processes import ROOT
from tests.support.stand_in import HOST, kernels_sample

DEADLINE_S = 60.0  # only ever reached by a hang
COLLOCATED = [CollocatedDistSamplingWorkerOptions(prefetch_size=0), CollocatedDistSamplingWorkerOptions()]
MP = MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB")
PROCESS_CASES = [
    ("homogeneous", ("node", "uniform")),
    ("typed", ("link", "uniform")),
    ("typed", ("subgraph", "weighted")),
    ("homogeneous", ("node", "as a matrix")),
]
ON_DEVICES = sorted(sampling for sampling in SAMPLINGS if sampling[0] != "hgt")
CASES = [(name, sampling) for name in ("homogeneous", "typed") for sampling in ON_DEVICES]


def data_on_device(name: str, edge_dir: Direction, mode: str = "CUDA") -> DistDataset:
    """One of the oracle's graphs, whole; where ``kernels_sample`` its kernels sample."""
    graph = graph_of(name)
    data = make_dataset(graph, edge_dir)
    data.init_order(orders_of(graph))
    for one in data.graphs().values():
        one.mode = mode
    return DistDataset.from_dataset(data)


@pytest.mark.parametrize(("name", "sampling"), CASES, ids=str)
def test_collocated_loaders_sample_where_the_graph_lies(
    name: str, sampling: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    edge_dir: Direction = "in" if CASES.index((name, sampling)) % 2 else "out"
    options = COLLOCATED[CASES.index((name, sampling)) // 2 % 2]
    expected = oracle_epochs(name, edge_dir, sampling)
    with (
        kernels_sample(monkeypatch) as made,
        open_loader(name, edge_dir, sampling, data_on_device(name, edge_dir), options) as loader,
    ):
        num_batches = compare_epochs(loader, expected)
        assert loader._producer.device == HOST
    assert len(set(made)) == num_batches


def test_hgt_samples_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_on_device("typed", "in")
    with kernels_sample(monkeypatch), pytest.raises(InvalidArgumentError, match="data: expected graphs in host memory"):
        open_loader("typed", "in", ("hgt", "uniform"), data, COLLOCATED[0])


def test_processes_sample_where_the_graph_lies(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    epochs = [oracle_epochs(name, "in", sampling) for name, sampling in PROCESS_CASES]
    with kernels_sample(monkeypatch) as made, hold_fork_server():
        for number, (name, sampling) in enumerate(PROCESS_CASES):
            data = data_on_device(name, "in", ("CUDA", "ZERO_COPY")[number % 2])
            with open_loader(name, "in", sampling, data, MP) as loader:
                num_batches = compare_epochs(loader, epochs[number])
                assert loader._producer.device is None  # they cross in host memory
            assert made == []
            assert capfd.readouterr().out.count("kernels sample") == num_batches


def test_a_data_set_that_was_sent_is_sampled_there(monkeypatch: pytest.MonkeyPatch) -> None:
    data, sampling = data_on_device("homogeneous", "out", "ZERO_COPY"), ("node", "uniform")
    received, expected = DistDataset.from_ipc_handle(data.share_ipc()), oracle_epochs("homogeneous", "out", sampling)
    with (
        kernels_sample(monkeypatch) as made,
        open_loader("homogeneous", "out", sampling, received, COLLOCATED[0]) as loader,
    ):
        assert compare_epochs(loader, expected) == len(made)


def test_rows_are_gathered_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the GPU that has some, as labels are, where the batch stays in the process, with one wait for all of them; on
    the host otherwise."""
    asked: list[int] = []
    waits: list[Reading] = []
    gather, wait = DeviceRows.begin_gather, Reading.wait

    def begin_gather(self: DeviceRows, ids: torch.Tensor, *how: Any) -> torch.Tensor:
        asked.append(len(ids))
        return gather(self, ids, *how)

    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(DeviceRows, "begin_gather", begin_gather)
    monkeypatch.setattr(Reading, "wait", lambda self: waits.append(self) or wait(self))
    graph, sampling = graph_of("homogeneous"), ("node", "uniform")
    data = make_dataset(graph, "in")
    data.init_order(orders_of(graph))
    data.init_node_features(data.node_features.feature_tensor, split_ratio=0.5, dtype=None)
    placed = DeviceRows([data.node_features.feature_tensor], HOST)
    data.graph.mode = "CUDA"
    on_gpu = DistDataset.from_dataset(data)
    assert on_gpu.node_features is data.node_features
    expected = oracle_epochs("homogeneous", "in", sampling)
    with kernels_sample(monkeypatch), monkeypatch.context() as patch:
        patch.setattr(data.node_features, "_placed", SimpleNamespace(on=lambda device: placed, counts=None))
        with open_loader("homogeneous", "in", sampling, on_gpu, COLLOCATED[1]) as loader:
            num_batches = compare_epochs(loader, expected)
    assert len(asked) == 2 * num_batches
    assert len(waits) == 2 * num_batches  # for its size, and for its rows
    asked.clear()
    with kernels_sample(monkeypatch), open_loader("homogeneous", "in", sampling, on_gpu, MP) as loader:
        compare_epochs(loader, expected)
    assert asked == []


@pytest.mark.parametrize("prefetch_size", [0, 4])
@pytest.mark.parametrize("without_a_row", [{"labels"}, {"labels", "features"}], ids=len)
def test_a_batch_without_a_row_is_told_in_its_place(
    without_a_row: set[str], prefetch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gathers, and wherever several kinds of rows are missing: the others come."""
    num_nodes = 40
    data = make_dataset(random_graph(num_nodes, 60, 3), "in")
    data.init_node_labels(torch.arange(num_nodes - 1))
    data.init_node_features(torch.ones(num_nodes - ("features" in without_a_row), 2))
    data.graph.mode = "CUDA"
    options = CollocatedDistSamplingWorkerOptions(prefetch_size=prefetch_size)
    seeds, found = [1, num_nodes - 1, 3, 4], []
    with kernels_sample(monkeypatch):
        loader = DistNeighborLoader(
            DistDataset.from_dataset(data),
            [0],
            torch.tensor(seeds),
            batch_size=1,
            collect_features=True,
            worker_options=options,
        )
        with loader:
            batches = iter(loader)
            for _ in seeds:
                try:
                    found.append(next(batches).n_id.tolist())
                except UnknownIdError as error:
                    found.append(str(error))
            assert list(batches) == []
    assert [found[0], *found[2:]] == [[1], [3], [4]]
    assert "39" in found[1]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Any:
    """What was logged of where a graph is sampled."""
    sampling_batches._tell_of_partitions.cache_clear()
    with caplog.at_level(logging.WARNING, sampling_batches.__name__):
        yield caplog
    sampling_batches._tell_of_partitions.cache_clear()


def test_a_partition_is_sampled_by_the_cpu_which_says_so_once(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    graph = graph_of("homogeneous")
    owners = torch.arange(graph.num_nodes[None]) % 2
    whole = make_dataset(graph, "out")
    whole.graph.device, whole.graph.mode = 0, "ZERO_COPY"
    part = DistDataset(2, 0, whole.graph, node_pb=owners, edge_dir="out")
    assert sampling_batches.sampling_device(part) is None
    assert part.share_ipc().device is None
    for _ in range(2):
        tell_where_sampled(part)
    (record,) = told.records
    assert "the CPU samples" in record.message
    assert "this is one of 2 partitions" in record.message


def test_nothing_is_said_of_what_is_as_asked(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 1)
    whole = make_dataset(graph_of("homogeneous"), "out")
    for mode, device in (("CPU", None), ("ZERO_COPY", None), ("CUDA", 0)):
        whole.graph.mode, whole.graph.device = mode, device
        made = DistDataset.from_dataset(whole)
        assert (made.graph.mode, made.graph.device) == (mode, device)
        wanted = None if device is None else torch.device("cuda", device)
        assert sampling_batches.sampling_device(made) == wanted
        assert (made.share_ipc().graph_mode, made.share_ipc().device) == (mode, device)
        tell_where_sampled(made)
    assert told.records == []


def test_graphs_on_different_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 2)
    data: Dataset = make_dataset(graph_of("typed"), "out")
    for number, one in enumerate(data.graphs().values()):
        one.mode, one.device = "CUDA", number % 2
    with pytest.raises(InvalidArgumentError, match="expected all graphs of a data set on one device"):
        DistDataset.from_dataset(data)


def test_a_device_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch's error is that of whoever sampled it, in this process as in others."""
    data = data_on_device("homogeneous", "out")
    data.graph.topo.indices[:] = 10**6
    seeds = torch.arange(10)
    with kernels_sample(monkeypatch):
        for options in (COLLOCATED[1], MP):
            with (
                DistNeighborLoader(data, [2], seeds, 5, temporal_strategy=None, worker_options=options) as loader,
                pytest.raises(Exception, match="a neighbor that is outside the graph"),
            ):
                next(iter(loader))


_WATCHED = """
import torch
from graphlearn_dist import _C

def refuse(*_):
    raise AssertionError("CUDA was asked for before a fork")

for name in [name for name in dir(_C) if name.startswith("cuda_")]:
    setattr(_C, name, refuse)
torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = refuse
from graphlearn_dist.distributed.workers import fork_server_main
assert not torch.cuda.is_initialized()
"""


def test_no_fork_comes_after_cuda() -> None:
    """CUDA cannot be used in a fork of a process that has: the one that workers are forked from asks for none of it."""
    subprocess.run([sys.executable, "-c", _WATCHED], cwd=ROOT, timeout=DEADLINE_S, check=True)
