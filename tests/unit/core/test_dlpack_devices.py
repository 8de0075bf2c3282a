"""Which tensors the driver is asked about: builds without CUDA have none to ask, and refuse where one would be."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.errors import InvalidArgumentError

CUDA, CUDA_HOST, MANAGED = 2, 3, 13
pytestmark = pytest.mark.skipif(_C.cuda_is_built(), reason="this build has a driver to ask")


class Device(ctypes.Structure):
    """Of a DLManagedTensor, the beginning."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class Elsewhere:
    """A tensor that says that it lies in other memory than it does."""

    def __init__(self, tensor: torch.Tensor, device_type: int = CUDA, device_id: int = 0) -> None:
        self._tensor = tensor
        self._device = device_type, device_id

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, stream: int | None = None) -> Any:
        capsule = torch.utils.dlpack.to_dlpack(self._tensor)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        described = Device.from_address(get(capsule, b"dltensor"))
        described.device_type, described.device_id = self._device
        return capsule


def graph_on(device: int, *where: Any) -> _C.DeviceCsr:
    indptr, indices = torch.tensor([0, 4, 8, 8, 8, 8]), torch.arange(8) % 5
    return _C.DeviceCsr(Elsewhere(indptr, *where), Elsewhere(indices, *where), None, 5, device)


def test_the_tensors_of_a_batch_are_believed() -> None:
    """The batch gets as far as its launch, which this build does not have."""
    plan = _C.DeviceBatchPlan([5], [(0, 0, 8, 4, False)], [(0, 2, False)], [[2]], False, False)
    result, scratch = (torch.empty(size // 8, dtype=torch.int64) for size in (plan.num_bytes, plan.num_scratch_bytes))
    seeds, counter = torch.tensor([0, 1]), torch.tensor([0, 0, 0])
    blocks = [Elsewhere(result), Elsewhere(scratch)]
    with pytest.raises(InvalidArgumentError, match="this build has none"):
        plan.launch(
            [graph_on(0)], [_C.DrawMethod()], [Elsewhere(seeds)], None, Elsewhere(counter), *blocks, device=0, stream=0
        )


def test_the_tensors_of_a_gather_are_believed() -> None:
    ids, out, status = torch.tensor([1, 0]), torch.empty(2, 3), torch.tensor([-1])
    store = _C.DeviceRowStore([Elsewhere(torch.zeros(4, 3))], 0)
    with pytest.raises(InvalidArgumentError, match="this build has none"):
        store.gather(Elsewhere(ids), None, Elsewhere(out), Elsewhere(status), 0)


@pytest.mark.parametrize("where", [(CUDA, 1), (CUDA_HOST, 0), (MANAGED, 0)])
def test_the_driver_is_asked_about_all_other_memory(where: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="indptr: expected memory that GPU 0 can read"):
        graph_on(0, *where)


def test_other_devices_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="expected a tensor on a CUDA device or the host"):
        graph_on(0, 7, 0)
