"""Graphs that several GPUs hold a share of each. Here their memories are files of the host's, mapped side by side, and
the host runs the kernels' bodies: batches are those of the graph in one piece."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, DeviceGroup, Feature, Graph, Topology, graph
from graphlearn_dist.data.device.spread_tensor import SpreadHandle, spread
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import CudaError, InvalidArgumentError
from graphlearn_dist.loader import NeighborLoader, StaticShapes, SubGraphLoader
from graphlearn_dist.rpc import decode, encode
from graphlearn_dist.sampler import SamplingType
from tests.support.device_batches import (
    HOST,
    LINK_WAYS,
    WAYS,
    assert_same,
    assert_same_batches,
    assert_same_data,
    config_for,
    graph_for,
    link_graph,
    links_for,
    long_rows_for,
    on_device,
    sample,
    seeds_for,
)
from tests.support.graphs import TestGraph, make_dataset
from tests.support.processes import run_processes
from tests.support.static_batches import loader_of as padded_loader_of
from tests.support.waiting import collect

HERE = "tests.unit.data.test_spread_tensor"
DEADLINE_S = 90.0  # only ever reached by a hang
KINDS = ["homogeneous", "typed"]
GROUP = (0, 1, 2)
GROUPS = [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)]), DeviceGroup(1, ["cuda:2", "cuda:3"])]
PAGE = 4096


# --- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("count", [1, 5000, 3 * PAGE, 3 * PAGE + 1])
def test_values_are_read_across_the_ends_of_pieces(dtype: torch.dtype, count: int) -> None:
    values = (torch.arange(count) % 251).to(dtype)
    placed = spread(values, GROUP, HOST)
    assert placed.tensor.dtype == dtype
    assert torch.equal(placed.tensor, values)
    sizes = [num_bytes for _, num_bytes in placed.memory.pieces]
    assert [gpu for gpu, _ in placed.memory.pieces] == list(GROUP[: len(sizes)])
    assert sum(sizes) >= values.nbytes > sum(sizes) - PAGE
    assert max(sizes) - min(sizes[:-1], default=max(sizes)) == 0
    assert max(sizes) <= values.nbytes / 3 + PAGE


def test_shapes_and_strides_are_kept() -> None:
    values = torch.arange(6000).view(2, 3000)
    assert torch.equal(spread(values, GROUP, HOST).tensor, values)
    assert torch.equal(spread(values.T, GROUP, HOST).tensor, values.T)


def test_pieces_live_while_somebody_reads_them() -> None:
    collect()  # what other tests left in cycles
    before = len(os.listdir("/proc/self/fd"))
    placed = spread(torch.arange(5000), GROUP, HOST)
    handle = SpreadHandle.of(placed)
    tensor = placed.tensor[1000:]
    del placed
    opened = handle.open(HOST).tensor
    tensor[0] = -1
    assert opened[1000] == -1  # the same memory
    assert opened.data_ptr() != tensor.data_ptr() - 1000 * 8
    del handle, tensor, opened
    collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_room_that_torch_keeps_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    make, tried = _C.SpreadMemory, list[str]()

    def made(*wanted: Any) -> Any:
        tried.append("taken")
        if "emptied" not in tried:
            raise CudaError("GPU 0 has no room")
        return make(*wanted)

    monkeypatch.setattr(_C, "SpreadMemory", made)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: tried.append("emptied"))
    assert torch.equal(spread(torch.arange(9), GROUP, HOST).tensor, torch.arange(9))
    assert tried == ["taken", "emptied", "taken"]


def test_no_memory_and_no_places() -> None:
    for places, num_bytes in (([], 8), ([0], 0)):
        with pytest.raises(InvalidArgumentError, match="places, num_bytes: expected some of both"):
            _C.SpreadMemory(places, num_bytes, -1)
    with pytest.raises(InvalidArgumentError, match="pieces: expected some"):
        _C.SpreadMemory.receive([], [], -1)
    with pytest.raises(InvalidArgumentError, match="descriptors: expected one for each of 1 pieces, got 0"):
        _C.SpreadMemory.receive([(0, PAGE)], [], -1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _C.SpreadMemory.receive([(0, PAGE)], [-1], -1)


# --- batches -------------------------------------------------------------------------------------------------------


def whole_and_pieces(of: TestGraph, config: Any) -> tuple[Any, Any]:
    dataset = make_dataset(of)
    return on_device(dataset, config, HOST), on_device(dataset, config, HOST, group=GROUP)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_one_piece(kind: str, way: str) -> None:
    made = graph_for(kind, WAYS[way])
    for fanouts in ([4, 3, 2], [-1, 2]):
        whole, pieces = whole_and_pieces(made, config_for(fanouts, WAYS[way]))
        seeds = seeds_for(made, WAYS[way])
        assert_same(sample(pieces, seeds, 3), sample(whole, seeds, 3))


@pytest.mark.parametrize("way", ["weighted", "labor", "topk", "times-weighted"])
def test_long_rows_lie_in_several_pieces(way: str) -> None:
    made = long_rows_for(WAYS[way])
    whole, pieces = whole_and_pieces(made, config_for([8, 200], WAYS[way]))
    seeds = seeds_for(made, WAYS[way])
    assert_same(sample(pieces, seeds, 1), sample(whole, seeds, 1))


@pytest.mark.parametrize("way", LINK_WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_negatives_are_those_of_one_piece(kind: str, way: str) -> None:
    made = link_graph(kind, LINK_WAYS[way])
    config = config_for([3], {**LINK_WAYS[way], "with_neg": True}, SamplingType.LINK)
    graphs = whole_and_pieces(made, config)
    assert_same_batches(*graphs, make_dataset(made), links_for(made, "triplet-strict", LINK_WAYS[way]), config)


# --- graphs --------------------------------------------------------------------------------------------------------


def _imagine(patch: Any) -> None:
    patch(graph, "named_gpu", lambda number: HOST)
    patch(_C, "cuda_device_count", lambda: 4)
    patch(_C, "cuda_can_access_peer", lambda gpu, peer: gpu // 2 == peer // 2)


@pytest.fixture
def imagined_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four GPUs, of which 0 and 1, and 2 and 3, read each other's memory, which is the host's."""
    with monkeypatch.context() as patch:
        _imagine(patch.setattr)
        yield


def dataset_of(kind: str, groups: Any = GROUPS, device: int = 0) -> Dataset:
    made = graph_for(kind, {})
    dataset = make_dataset(made)
    place = {"graph_mode": "CUDA", "device": device, "device_group_list": groups}
    dataset.init_graph(made.unwrap(made.edges), num_nodes=made.unwrap(made.num_nodes), **place)
    return dataset


def input_of(kind: str) -> Any:
    return torch.arange(64) if kind == "homogeneous" else ("user", torch.arange(64))


def pieces_of(dataset: Dataset) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for one in dataset.graphs().values():
        for name, placed in one.on_device()._placed.items():
            if placed.tensor.numel():
                found[name] = placed.memory.pieces
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("imagined_gpus")
def test_loaders_give_the_batches_of_the_cpu(kind: str) -> None:
    dataset, nodes = dataset_of(kind), input_of(kind)
    both = make_dataset(graph_for(kind, {})), dataset
    settings: dict[str, Any] = {"batch_size": 16, "shuffle": True, "with_edge": True, "seed": 4, "prefetch": 0}
    for one, other in zip(*(NeighborLoader(data, [3, 2], nodes, **settings) for data in both), strict=True):
        assert_same_data(other, one)
    for one, other in zip(*(SubGraphLoader(data, nodes, [3, 2], **settings) for data in both), strict=True):
        assert_same_data(other, one)
    for pieces in pieces_of(dataset).values():
        assert [gpu for gpu, _ in pieces] == [0, 1][: len(pieces)]
    assert len(pieces_of(dataset)["indices"]) == 2


@pytest.mark.usefixtures("imagined_gpus")
def test_padded_batches_are_those_of_the_cpu() -> None:
    made = graph_for("homogeneous", {})
    expected = padded_loader_of(made, static_shapes=StaticShapes())
    found = NeighborLoader(
        dataset_of("homogeneous"),
        [3, 2],
        expected._input.node,
        batch_size=16,
        shuffle=True,
        with_edge=True,
        seed=5,
        prefetch=0,
        static_shapes=StaticShapes(),
    )
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.n_id, other.n_id)
        assert torch.equal(one.edge_index, other.edge_index)


@pytest.mark.usefixtures("imagined_gpus")
def test_groups_that_do_not_fit_are_refused() -> None:
    topology = Topology(torch.tensor([[0, 1], [1, 0]]))

    def refused(match: str, groups: Any, **changes: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=match):
            Graph(topology, **{"mode": "CUDA", "device": 0, **changes}, device_group_list=groups)

    refused("device_group_list: expected mode 'CUDA' and a device, .* got mode 'ZERO_COPY'", GROUPS, mode="ZERO_COPY")
    refused("device_group_list: expected mode 'CUDA' and a device, .* device None", GROUPS, device=None)
    refused("device_group_list: GPU 0 reads, and is in none of", GROUPS[1:])
    refused(
        "device_group_list: expected a GPU .* 4 GPUs are usable, got 'cuda:4'", [DeviceGroup(0, ["cuda:0", "cuda:4"])]
    )
    refused("device_group_list: expected a GPU .* got 'cpu'", [DeviceGroup(0, ["cuda:0", "cpu"])])
    refused(r"device_group_list: expected each GPU once, got \[\(0, 0\)\]", [DeviceGroup(0, ["cuda:0"] * 2)])
    refused("expected each GPU once", [DeviceGroup(0, ["cuda:0", "cuda:1"]), DeviceGroup(1, ["cuda:1"])])
    for wrong in (5, DeviceGroup(0, ["cuda:0"])):
        refused("device_group_list: expected a list of DeviceGroup, got", wrong)
    for wrong in ("cuda:0", [[0, 1]], [*GROUPS, DeviceGroup(2, [])], [DeviceGroup(0, "cuda:0")]):
        refused("device_group_list: expected DeviceGroups, each with a list of GPUs, got", wrong)
    for gpu in ("nonsense", None, -1):
        refused(f"device_group_list: expected a GPU .* got {gpu!r}", [DeviceGroup(0, ["cuda:0", gpu])])
    assert Graph(topology, "CUDA", 0, device_group_list=[DeviceGroup(0, [0, 1])])._group_of(1) == (0, 1)
    refused(
        r"device_group_list: GPU 0 cannot read the memory of \[2\] of its group", [DeviceGroup(0, ["cuda:0", "cuda:2"])]
    )
    whole = Graph(topology, "CUDA", 0)
    for device, match in ((4, "device: expected a GPU .* 4 GPUs are usable, got 4"), ("cpu", "device: .* got 'cpu'")):
        with pytest.raises(InvalidArgumentError, match=match):
            whole.sample_on(device)
    with pytest.raises(InvalidArgumentError, match="device: expected a data set with graphs or features on a GPU"):
        make_dataset(graph_for("homogeneous", {})).sample_on(0)


@pytest.mark.usefixtures("imagined_gpus")
def test_gpus_of_a_group_read_the_same_pieces() -> None:
    dataset = dataset_of("typed")
    dataset.node_features = {"user": Feature(torch.zeros(200, 2), split_ratio=0.5, device=0)}
    for one in dataset.graphs().values():
        one.on_device().handler(weighted=False)
    placed = {key: one.on_device()._placed["indices"] for key, one in dataset.graphs().items()}
    dataset.sample_on(1)
    assert {one.device for one in (*dataset.graphs().values(), dataset.node_features["user"])} == {1}
    for key, one in dataset.graphs().items():
        one.on_device().handler(weighted=False)
        other = one.on_device()._placed["indices"]
        assert other.tensor.data_ptr() != placed[key].tensor.data_ptr()
        other.tensor[0] += 1  # seen by both: there is one copy
        assert other.tensor[0] == placed[key].tensor[0]
        other.tensor[0] -= 1
    dataset.sample_on(2)  # of another group, which holds a copy of its own
    for key, one in dataset.graphs().items():
        one.on_device().handler(weighted=False)
        one.on_device()._placed["indices"].tensor[0] += 1
        assert one.on_device()._placed["indices"].tensor[0] != placed[key].tensor[0]


@pytest.mark.usefixtures("imagined_gpus")
def test_features_alone_are_gathered_by_another_gpu() -> None:
    dataset = make_dataset(graph_for("homogeneous", {}))
    dataset.node_features = Feature(torch.zeros(300, 2), split_ratio=0.5, device=0)
    dataset.sample_on(3)
    assert dataset.node_features.device == 3
    assert dataset.graph.device is None
    dataset.node_features = Feature(torch.zeros(300, 2), None, 0.5, GROUPS[:1], 0)
    with pytest.raises(InvalidArgumentError, match="device_group_list: GPU 3 reads, and is in none of"):
        dataset.sample_on(3)
    assert dataset.node_features.device == 0


@pytest.mark.usefixtures("imagined_gpus")
def test_all_stays_where_a_feature_cannot_go() -> None:
    dataset = dataset_of("typed")
    dataset.node_features = {
        "item": Feature(torch.zeros(100, 2), split_ratio=0.5, device=0),
        "user": Feature(torch.zeros(200, 2), None, 0.5, GROUPS[:1], 0),
    }
    holders = *dataset.graphs().values(), *dataset.node_features.values()
    before = [each.device for each in holders]
    with pytest.raises(InvalidArgumentError, match="device_group_list: GPU 3 reads, and is in none of"):
        dataset.sample_on(3)
    assert [each.device for each in holders] == before


@pytest.mark.usefixtures("imagined_gpus")
def test_a_graph_of_one_group_of_one_gpu_is_in_one_piece() -> None:
    dataset = dataset_of("homogeneous", [DeviceGroup(0, ["cuda:0"])])
    topology = dataset.graphs()[None].on_device()
    topology.handler(weighted=False)
    assert topology._placed["indices"].tensor is dataset.graphs()[None].topo.indices


@pytest.mark.usefixtures("imagined_gpus")
def test_distributed_data_sets_keep_the_groups() -> None:
    """Of one partition, in this process and in those that it tells where the edges lie."""
    whole = DistDataset.from_dataset(dataset_of("homogeneous"))
    for dataset in (whole, DistDataset.from_ipc_handle(decode(encode(whole.share_ipc()).head))):
        assert [list(map(torch.device, group.device_list)) for group in dataset.graph.device_group_list] == [
            list(map(torch.device, group.device_list)) for group in GROUPS
        ]
        dataset.graph.on_device().handler(weighted=False)
        assert len(pieces_of(dataset)["indices"]) == 2


# --- other processes -----------------------------------------------------------------------------------------------


def batches_of(dataset: Dataset) -> list[tuple[torch.Tensor, ...]]:
    loader = NeighborLoader(dataset, [3, 2], torch.arange(64), batch_size=32, prefetch=0)
    return [(batch.n_id, batch.edge_index) for batch in loader]


def use_received(inbox: Any, outbox: Any) -> None:
    """A child, whose GPU is number 1: makes batches from the data set that it is sent, and writes to the edges."""
    _imagine(setattr)
    dataset = inbox.get(timeout=DEADLINE_S)
    dataset.sample_on(1)
    outbox.put([tuple(part.numpy() for part in batch) for batch in batches_of(dataset)])
    placed = dataset.graph.on_device()._placed["edge_ids"]
    placed.tensor[-1] = 777
    outbox.put(len(placed.memory.pieces))
    inbox.get(timeout=DEADLINE_S)


def share_with_a_child() -> None:
    _imagine(setattr)
    context = mp.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    child = context.Process(target=use_received, args=(inbox, outbox), daemon=True)
    child.start()
    try:
        dataset = dataset_of("homogeneous")
        expected = batches_of(dataset)
        inbox.put(dataset)
        for one, other in zip(outbox.get(timeout=DEADLINE_S), expected, strict=True):
            assert all((a == b.numpy()).all() for a, b in zip(one, other, strict=True))
        assert outbox.get(timeout=DEADLINE_S) == 2
        assert dataset.graph.on_device()._placed["edge_ids"].tensor[-1] == 777  # there is one copy
        inbox.put(None)
        child.join(DEADLINE_S)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join(DEADLINE_S)


def test_another_process_reads_the_same_pieces() -> None:
    run_processes([(f"{HERE}.share_with_a_child", {})], DEADLINE_S)


class Imagined:
    """An argument of a process, at the receipt of which that imagines the GPUs, before later ones arrive."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _imagine, (setattr,)


def use_given(_: Any, dataset: Dataset, outbox: Any) -> None:
    """A child, whose GPU is number 1, started with the data set as an argument."""
    dataset.sample_on(1)
    outbox.put([tuple(part.numpy() for part in batch) for batch in batches_of(dataset)])
    assert len(dataset.graph.on_device()._placed["edge_ids"].memory.pieces) == 2


def start_a_child_with_it(method: str) -> None:
    _imagine(setattr)
    context: Any = mp.get_context(method)
    outbox, dataset = context.Queue(), dataset_of("homogeneous")
    expected = batches_of(dataset)
    for _ in range(2):  # the same data set once more
        child = context.Process(target=use_given, args=(Imagined(), dataset, outbox), daemon=True)
        child.start()
        try:
            for one, other in zip(outbox.get(timeout=DEADLINE_S), expected, strict=True):
                assert all((a == b.numpy()).all() for a, b in zip(one, other, strict=True))
            child.join(DEADLINE_S)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join(DEADLINE_S)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_is_started_with_them(method: str) -> None:
    """As ``torch.multiprocessing.spawn`` does: descriptors are handed over after all arguments were pickled."""
    run_processes([(f"{HERE}.start_a_child_with_it", {"method": method})], DEADLINE_S)
