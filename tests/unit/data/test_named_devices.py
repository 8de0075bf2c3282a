"""Devices that arguments name: one meaning everywhere, and errors that name the argument and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, DeviceGroup, Feature, Graph, Topology, UnifiedTensor
from graphlearn_dist.distributed import DistDataset, DistNeighborLoader
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, SubGraphLoader
from graphlearn_dist.utils.device import gpu_number, parse_device

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
ROWS = torch.arange(8.0).view(4, 2)
NO_DEVICES = [-1, "gpu", "cuda:x", "", 1.5, "mps", "meta", True, torch.device("meta"), [0], "cuda:63", 63]
GPUS = [0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0)]


def data() -> Dataset:
    made = Dataset()
    made.init_graph(EDGES)
    made.init_node_features(ROWS)
    return made


def unified(device: Any) -> None:
    UnifiedTensor().append_device_tensor(ROWS, device)


DOORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Graph": ("device", lambda device: Graph(Topology(EDGES), "CUDA", device)),
    "Feature": ("device", lambda device: Feature(ROWS, device=device)),
    "init_graph": ("device", lambda device: Dataset().init_graph(EDGES, graph_mode="CUDA", device=device)),
    "init_node_features": ("device", lambda device: Dataset().init_node_features(ROWS, device=device)),
    "init_edge_features": ("device", lambda device: Dataset().init_edge_features(ROWS, device=device)),
    "append_device_tensor": ("device", unified),
    "init_from": ("tensor_devices", lambda device: UnifiedTensor().init_from([ROWS], [device])),
    "NeighborLoader": ("device", lambda device: NeighborLoader(data(), [1], torch.arange(4), device=device)),
    "LinkNeighborLoader": (
        "device",
        lambda device: LinkNeighborLoader(data(), [1], edge_label_index=EDGES, device=device),
    ),
    "SubGraphLoader": ("device", lambda device: SubGraphLoader(data(), torch.arange(4), [1], device=device)),
    "DistNeighborLoader": (
        "to_device",
        lambda device: DistNeighborLoader(DistDataset.from_dataset(data()), [1], torch.arange(4), to_device=device),
    ),
    "Graph groups": (
        "device_group_list",
        lambda device: Graph(Topology(EDGES), "CUDA", None, device_group_list=[DeviceGroup(0, [device])]),
    ),
    "Feature groups": (
        "device_group_list",
        lambda device: Feature(ROWS, device_group_list=[DeviceGroup(0, [device])], split_ratio=0.5),
    ),
    "sample_on": ("device", lambda device: data().sample_on(device)),
    "gather_on": ("device", lambda device: Feature(ROWS).gather_on(device)),
}


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("device", NO_DEVICES, ids=repr)
def test_what_is_no_device_is_refused_by_name(name: str, device: Any) -> None:
    argument, call = DOORS[name]
    if name == "init_from" and device == -1:
        pytest.skip("the host")
    with pytest.raises(InvalidArgumentError, match=rf"^{argument}.*: expected .*GPU.* usable, got .+"):
        call(device)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU")
@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("device", GPUS, ids=repr)
def test_hosts_without_a_gpu_refuse_every_name_of_one(name: str, device: Any) -> None:
    argument, call = DOORS[name]
    with pytest.raises(InvalidArgumentError, match=rf"^{argument}.*: expected .* 0 GPUs are usable, got .+"):
        call(device)


def test_names_of_one_device() -> None:
    four = {"count": lambda: 4}
    assert [gpu_number(device, **four) for device in (3, "cuda:3", torch.device("cuda", 3), None, "cpu", "cpu:0")] == [
        *[3] * 3,
        *[None] * 3,
    ]
    assert parse_device("cpu:0", count=pytest.fail) == torch.device("cpu")  # nobody is asked for GPUs
    assert gpu_number("cuda:9", must_be_there=False) == 9
    for device in ("cuda:4", 4, 300):
        with pytest.raises(InvalidArgumentError, match=r"^here: expected 'cpu' or a GPU .* 4 GPUs are usable, got"):
            parse_device(device, "here", **four)
    if not torch.cuda.is_available():
        assert gpu_number("cuda", **four) == 0


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")], ids=repr)
def test_the_cpu_is_a_device_of_whatever_can_do_without_a_gpu(device: Any) -> None:
    assert Graph(Topology(EDGES), "CUDA", device).sampling_device is None
    assert not Feature(ROWS, device=device).gathers_on_gpu
    assert next(iter(NeighborLoader(data(), [1], torch.arange(4), batch_size=4, device=device))).x.device.type == "cpu"


# --- groups of features, pieces of tensors ---------------------------------------------------------------------------


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("lists", "match"),
    [
        ([[0, 0]], r"expected each GPU once, got \[\(0, 0\)\]"),
        ([[0], ["cuda:0", 1]], "expected each GPU once"),
        ([["cpu"]], "expected a GPU that is there, .* got 'cpu'"),
        ([[0], []], "expected DeviceGroups, each with a list of GPUs"),
        ([[5]], "expected a GPU that is there, .* 4 GPUs are usable, got 5"),
        ([[1, 2]], "GPU 0 reads, and is in none of"),
    ],
)
def test_groups_that_do_not_fit_are_refused_by_features(lists: list[list[Any]], match: str) -> None:
    groups = [DeviceGroup(number, gpus) for number, gpus in enumerate(lists)]
    with pytest.raises(InvalidArgumentError, match=f"^device_group_list: {match}"):
        Feature(ROWS, None, 0.5, groups, 0)


@pytest.mark.usefixtures("four_gpus")
def test_what_is_no_list_of_groups() -> None:
    for wrong in ("cuda", [0], 5, DeviceGroup(0, [0])):
        with pytest.raises(InvalidArgumentError, match=r"^device_group_list: expected"):
            Feature(ROWS, None, 0.5, wrong, 0)  # type: ignore[arg-type]
    assert Feature(ROWS, None, 0.5, [DeviceGroup(0, [0, 1])], 0).device_group_list == [DeviceGroup(0, [0, 1])]


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (ROWS.double(), "expected dtype torch.float32, got torch.float64"),
        (torch.tensor(3.0), "expected rows, got a scalar"),
        (torch.zeros(5, 7), r"expected rows of shape \[2\], as those before, got \[7\]"),
        (torch.zeros(5), r"expected rows of shape \[2\], as those before, got \[\]"),
        ([1.0], "expected a tensor of rows, got list"),
    ],
)
def test_pieces_of_a_tensor_fit_together_wherever_they_lie(
    rows: Any, match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = UnifiedTensor()
    tensor.append_cpu_tensor(ROWS)
    for name, append in (
        ("cpu_tensor", tensor.append_cpu_tensor),
        ("tensor", lambda piece: tensor.append_device_tensor(piece, "cuda:1")),
        ("tensors", lambda piece: tensor.init_from([piece], [1])),
    ):
        with pytest.raises(InvalidArgumentError, match=f"^{name}: {match}"):
            append(rows)
    if isinstance(rows, torch.Tensor):
        handle = _handle_of(rows, monkeypatch)
        with pytest.raises(InvalidArgumentError, match=f"^shared_tensor: {match}"):
            tensor.append_shared_tensor(handle)
    assert len(tensor.parts) == 1


def _handle_of(rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    from graphlearn_dist.data import handles

    handle = object.__new__(handles.GpuHandle)
    monkeypatch.setattr(handles.GpuHandle, "open", lambda self: rows)
    return handle
