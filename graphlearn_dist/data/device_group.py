"""Groups of GPUs that hold one copy of something between them, and read each other's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .. import _C
from ..errors import InvalidArgumentError
from ..utils.device import gpu_number


@dataclass(frozen=True)
class DeviceGroup:
    """GPUs that hold one copy of the hot rows, or of the edges, between them, and read each other's memory."""

    group_id: int
    device_list: list[torch.device]

    @property
    def size(self) -> int:
        return len(self.device_list)


def usable_gpu(device: torch.device | str | int) -> int:
    """The number of the GPU that is named.

    Raises:
        InvalidArgumentError: no GPU is named, or one that is not there.
    """
    gpu, usable = gpu_number(device), _C.cuda_device_count()
    if gpu is None or gpu >= usable:
        raise InvalidArgumentError(f"device: GPU {gpu} was asked for, {usable} are usable")
    return gpu


def gpus_by_group(groups: Sequence[DeviceGroup] | None) -> list[tuple[int, ...]]:
    """Numbers of the GPUs of each group."""
    return [tuple(torch.device(device).index or 0 for device in group.device_list) for group in groups or ()]


def groups_of_gpus(gpus: Sequence[Sequence[int]]) -> tuple[DeviceGroup, ...]:
    """Groups of the GPUs of these numbers: the inverse of ``gpus_by_group``."""
    return tuple(DeviceGroup(i, [torch.device("cuda", gpu) for gpu in group]) for i, group in enumerate(gpus))


def check_usable(groups: Sequence[DeviceGroup]) -> None:
    """InvalidArgumentError unless all members of groups are GPUs that this process may use, no group has one twice."""
    for group in groups:
        for gpu in group.device_list:
            usable, device = _C.cuda_device_count(), torch.device(gpu)  # asked for here: no fork may come after CUDA
            if device.type != "cuda" or (device.index or 0) >= usable:
                raise InvalidArgumentError(f"device_group_list: expected GPUs, {usable} of them usable, got {device}")
    for gpus in gpus_by_group(groups):
        if len(set(gpus)) < len(gpus):
            raise InvalidArgumentError(f"device_group_list: expected each GPU of a group once, got {list(gpus)}")


def group_of(
    gpu: int, groups: Sequence[Sequence[int]], can_access: Callable[[int, int], bool] | None = None
) -> tuple[int, ...]:
    """The GPUs that hold a copy for one of them: its group, or itself alone where there are no groups.

    Args:
        gpu: who reads.
        groups: GPUs of each group.
        can_access: whether one GPU can read the memory of another.

    Raises:
        InvalidArgumentError: it is in none of the groups, or cannot read the memory of one in its group.
    """
    if not groups:
        return (gpu,)
    for group in groups:
        if gpu not in group:
            continue
        blocked = [peer for peer in group if can_access is not None and not can_access(gpu, peer)]
        if blocked:
            raise InvalidArgumentError(f"device_group_list: GPU {gpu} cannot read the memory of {blocked} of its group")
        return tuple(group)
    raise InvalidArgumentError(f"device_group_list: GPU {gpu} reads, and is in none of {[list(g) for g in groups]}")
